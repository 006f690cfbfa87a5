"""A small autoregressive drafter, one pass per token: a decoder of few layers over the verifier's encoder and embeddings, or a
whole smaller model with the verifier's vocabulary.

Speculative decoding as first published (Leviathan et al. 2023, arXiv 2211.17192), with a shared encoder pass and vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec_plugins.decoding.backends import LoadedModel, Reading
from specdec_plugins.decoding.drafters import (
    CachedDrafter,
    CachedRows,
    agreeing,
    draft_in_turn,
    matching,
    options_of,
    over_the_verifier,
)
from specdec_plugins.decoding.drafters.block import within_positions
from specdec_plugins.decoding.loading import shallower
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec


@dataclass
class Options:
    layers: int = 1
    dropout: float = 0.1  # of the embedded input


def shape(verifier: ModelSpec, layers: int) -> ModelSpec:
    """The verifier's, with fewer decoder layers."""
    return replace(verifier, decoder=shallower(verifier.decoder, layers))


class SmallDrafter(CachedDrafter[list[int]]):
    """A row has the tokens in its cache: the prefix and drafted ones, accepted or refused."""

    held = staticmethod(len)

    def fresh(self) -> list[int]:
        return []

    def propose(self, state: CachedRows[list[int]], prefix: Prefix, plan: Plan) -> Draft:
        most = self.model.spec.decoder.max_positions

        def choose(ahead: Prefix, wanted: Sequence[bool]) -> Draft:
            tokens: list[list[int]] = []
            places: list[int] = []
            for row, output in enumerate(ahead.outputs):
                text = [ahead.symbols.start, *output][:most]
                # A backend may write past the tokens of a row that reads nothing.
                known = agreeing(state.rows[row], text[:-1]) if wanted[row] else len(state.rows[row])
                places.append(known)
                tokens.append(text[known:] if wanted[row] else [])
                if wanted[row]:
                    state.rows[row] = text
            firsts = [max(0, len(row) - 1) for row in tokens]
            one = Plan([int(more) for more in wanted])
            return self.model.read(state.cache, Reading(tokens, places, firsts)).choose(ahead, one)

        return within_positions(draft_in_turn(prefix, plan, choose, self.model.xp), prefix, self.model)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    if weights.spec is not None:  # a whole model: see `with_drafter`
        return weights
    return over_the_verifier(weights, verifier, shape(verifier.spec, options_of(Options, weights.options).layers))


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> SmallDrafter:
    if weights.spec is None:
        matching(weights, {})
    return SmallDrafter(model)
