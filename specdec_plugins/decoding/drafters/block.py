"""The published block drafter: fills K mask symbols after the prefix in one pass (Xia et al. 2023, section 3.2).

Its decoder attends in both directions, so the target side cannot be cached: every draft reads the whole prefix again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdec_plugins.decoding.backends import LoadedModel, Pass, RowState
from specdec_plugins.decoding.backends.candidates import branch
from specdec_plugins.decoding.drafters import complete, options_of
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec


@dataclass
class Options:
    length: int = 12  # K in training
    dropout: float = 0.1  # of the embedded input
    label_smoothing: float = 0.1
    glance_first: float = 0.5  # revealed tokens per wrong one, at the start of the training
    glance_last: float = 0.3  # and at its end


class BlockDrafter(Drafter):
    traits = Traits(trees=True)

    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int, shared: object) -> RowState:
        return self.model.start(rows)

    def admit(self, state: RowState, source: Source) -> None:
        state.admit(source)

    def propose(self, state: RowState, prefix: Prefix, plan: Plan) -> Draft:
        done = self.model.read_block(state, prefix, plan.lengths)
        return within_positions(drafted(done, prefix, plan), prefix, self.model)

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), 0)


def drafted(done: Pass, prefix: Prefix, plan: Plan) -> Draft:
    """The chain or tree of a plan, from a pass over the positions to draft."""
    return done.choose(prefix, plan) if plan.tree is None else branch(done.candidates(prefix), prefix, plan)


def within_positions(draft: Draft, prefix: Prefix, model: LoadedModel) -> Draft:
    """The part of a draft for which the drafter has positions. It is truncated afterwards, as a narrower block would change the
    tokens of a model that attends in both directions."""
    positions = model.spec.decoder.max_positions
    return draft.clip([max(0, positions - len(output)) for output in prefix.outputs], prefix.symbols.eos)


def loaded(weights: DrafterModel, model: LoadedModel | None) -> LoadedModel:
    """The drafter's Transformer. Raises ValueError if its folder has none."""
    if model is None:
        raise ValueError(f"drafter '{weights.code}' needs a spec, and model.json has none")
    return model


def check(verifier: ModelSpec) -> None:
    """Raises ValueError for a verifier in whose shape it cannot be trained."""
    encoder, decoder = verifier.encoder, verifier.decoder
    if encoder.embedding.offset is None or decoder.embedding.offset is None:
        raise ValueError("drafter 'block' tells mask symbols apart by position embeddings, and the verifier has none")
    if len({encoder.width, decoder.width, decoder.key_width}) > 1:
        raise ValueError("drafter 'block' copies the source, but the verifier's encoder, decoder and keys differ in width")


def filled(own: Mapping[str, Any], verifier: Mapping[str, Any]) -> dict[str, Any]:
    """A whole model's tensors, given its ``own``: of tied ones the first by name. What it has none of is the verifier's."""
    first: dict[int, str] = {}
    for name in sorted(verifier):
        first.setdefault(id(verifier[name]), name)
    return {**{name: own.get(first[id(tensor)], tensor) for name, tensor in verifier.items()}, **own}


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    """A drafter that has a spec is complete, another has the verifier's."""
    if weights.spec is not None:
        return complete(weights, "source_copy")
    options_of(Options, weights.options)
    return replace(weights, spec=verifier.spec, tensors=filled(weights.tensors, verifier.tensors))


def build(weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel) -> BlockDrafter:
    return BlockDrafter(loaded(weights, model))
