"""Heads on the verifier's last hidden state, one for each drafted token (Medusa, Cai et al. 2024, arXiv 2401.10774).

The verifier's own token comes from a hidden state x. Head k maps it to x + silu(W_k x), and the verifier's output projection maps
that to the logits of the k-th token after the own one, so a draft costs about as much as its logits. Before a sentence's first
pass, a learned mean of the encoder's output replaces x.

B sentences, S source positions, T target positions, A blocks per sentence, K heads, N predicted positions of the batch, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from specdec_plugins.decoding.backends import LoadedModel, Reading, RowState
from specdec_plugins.decoding.drafters import matching, options_of, over_the_verifier
from specdec_plugins.decoding.drafters.block import drafted
from specdec_plugins.decoding.loading import shallower
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, Traits, Vectors
from specdec_plugins.decoding.values import Array, Draft, Plan, Verdict, Want
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec

POSITIONS = "decoder.embed_positions.weight"


@dataclass
class Options:
    heads: int = 5


@dataclass
class HeadsState:
    """The model's state, and the hidden state that each row's last token was predicted from."""

    cache: RowState
    states: Array  # (N, D) after the last iteration
    starts: list[Callable[[], Array]] = field(default_factory=list)  # compute (D,) before each row's first iteration
    places: list[int | None] = field(default_factory=list)  # each row's index in `states`; None before its first iteration
    xp: Any = np  # see `LoadedModel`

    def select(self, order: list[int]) -> None:
        self.cache.held = [0] * len(self.starts)  # each draft begins anew
        self.cache.select(order)
        self.starts = [self.starts[row] for row in order]
        self.places = [self.places[row] for row in order]

    def replace(self, states: Array) -> None:
        """Take ``states`` (B, D), which predicted each row's last token."""
        self.states, self.places = states, [*range(len(states))]

    def current(self) -> Array:
        """(B, D) each row's hidden state."""
        if self.places != [*range(len(self.states))]:
            states = [start() if place is None else self.states[place] for start, place in zip(self.starts, self.places)]
            self.replace(self.xp.stack(states))
        return self.states


class HeadsDrafter(Drafter):
    """Decoding with heads of any kind."""

    traits = Traits(needs_verifier=True, follows=True, trees=True, wants=Want(features=True, logits=False))

    def __init__(
        self,
        model: LoadedModel,
        verifier: LoadedModel,
        length: int,
        heads: Callable[[Array, Sequence[int]], Array],
        beginning: Callable[[Array], Array],
    ):
        self.model, self.verifier, self.length, self.heads, self.beginning = model, verifier, length, heads, beginning
        self.unread = verifier.array(np.empty((0, verifier.spec.decoder.width), np.float32))  # states of no rows

    def start(self, rows: int, shared: object) -> HeadsState:
        return HeadsState(self.model.start(rows), self.unread, xp=self.model.xp)

    def admit(self, state: HeadsState, source: Source) -> None:
        state.cache.admit(source)
        state.starts += [cache(partial(self._first_state, source, number)) for number in range(len(source.sizes))]
        state.places += [None] * len(source.sizes)

    def _first_state(self, source: Source, number: int) -> Array:
        """(D,) from the sentence alone, so that it does not depend on the batch."""
        return self.beginning(self.verifier.encode(source)[number, : source.sizes[number]])

    def recipe(self) -> Vectors:
        return Vectors(self.model, self.heads, self.length)

    def propose(self, state: HeadsState, prefix: Prefix, plan: Plan) -> Draft:
        vectors = self.heads(state.current(), prefix.last)  # (B, vectors, D)
        count = vectors.shape[1]
        lengths = [min(length, self.length) for length in plan.lengths]
        # Token k is drafted from vector k, or the last one.
        numbers = [[row * count + min(k, count - 1) for k in range(length)] for row, length in enumerate(lengths)]
        done = self.model.read(
            state.cache, Reading(numbers, [0] * len(lengths), embeddings=vectors.reshape(-1, vectors.shape[2]))
        )
        return drafted(done, prefix, plan._replace(lengths=lengths))

    def observe(self, state: HeadsState, scores: Any, draft: Draft, verdict: Verdict) -> None:
        features = scores.features()
        state.replace(self.model.xp.stack([features[row, verdict.results(row)[-1]] for row in range(len(state.places))]))

    def bytes_for(self, request: Request) -> int:
        encoded: int = self.unread.itemsize * self.verifier.spec.encoder.width  # kept for the beginning
        return self.model.bytes_for(len(request.tokens), 0) + encoded * len(request.tokens)


def layerless(verifier: ModelSpec) -> ModelSpec:
    """A decoder that only projects: no layers, no norms, nothing scaled."""
    embedding = replace(verifier.decoder.embedding, scale=1.0, norm=False)
    side = replace(shallower(verifier.decoder, 0), final_norm=False, embedding=embedding)
    return replace(verifier, decoder=side, output=replace(verifier.output, scale=1.0), zero_start=False)


def projecting(weights: DrafterModel, verifier: Model, options: Any, spec: ModelSpec) -> DrafterModel:
    """A Transformer that reads vectors: the drafter's layers and the verifier's output projection."""
    made = over_the_verifier(replace(weights, options=asdict(options)), verifier, spec)
    kept = {name: tensor for name, tensor in made.tensors.items() if not name.startswith("decoder.layernorm_embedding.")}
    if POSITIONS not in weights.tensors:
        kept[POSITIONS] = np.zeros_like(array(kept[POSITIONS]))
    return replace(made, tensors=kept)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return projecting(weights, verifier, options_of(Options, weights.options), layerless(verifier.spec))


def heads_drafter(
    weights: DrafterModel, model: LoadedModel, verifier: LoadedModel, length: int, count: int, reads_token: bool
) -> HeadsDrafter:
    """A drafter of ``length`` tokens from ``count`` vectors. Raises ValueError with every tensor that does not fit."""
    width, source = verifier.spec.decoder.width, verifier.spec.encoder.width
    shapes = {
        "heads.weight": (count * width, width * (1 + reads_token)),
        "heads.bias": (count * width,),
        "beginning.query": (source,),
        "beginning.out.weight": (width, source),
        "beginning.out.bias": (width,),
    }
    own = matching(weights, shapes)
    beginning = verifier.beginning(own["beginning.query"], own["beginning.out.weight"], own["beginning.out.bias"])
    heads = verifier.heads(own["heads.weight"], own["heads.bias"], reads_token)
    return HeadsDrafter(model, verifier, length, heads, beginning)


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    count = options_of(Options, weights.options).heads
    return heads_drafter(weights, model, verifier, count, count, reads_token=False)
