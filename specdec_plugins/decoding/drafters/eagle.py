"""A causal layer over the verifier's hidden states and tokens (EAGLE, Li et al. 2024, arXiv 2401.15077), one pass per token.

Its input is a token's embedding joined with the hidden state that predicted the token. Its output predicts the verifier's next
hidden state, which the verifier's output projection maps to logits. While drafting, its own outputs replace hidden states that
the verifier has not computed yet; training unrolls this for some steps (as EAGLE-3, Li et al. 2025, arXiv 2503.01840). Unlike
EAGLE, it attends to a source. At a sentence's start and after plain iterations it reads a learned hidden state.

B sentences, T target positions, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec_plugins.decoding.backends import LoadedModel, Reading
from specdec_plugins.decoding.drafters import CachedDrafter, CachedRows, draft_in_turn, matching, options_of, over_the_verifier
from specdec_plugins.decoding.drafters.block import within_positions
from specdec_plugins.decoding.loading import shallower
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Traits
from specdec_plugins.decoding.values import Array, Draft, Plan, Verdict, Want
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec

FEATURES = Want(features=True)


@dataclass
class Options:
    layers: int = 1
    steps: int = 4  # unrolled in training; the first reads the verifier's hidden states
    untold: float = 0.1  # fraction of hidden states that training replaces by the learned one


def shape(verifier: ModelSpec, layers: int) -> ModelSpec:
    """The verifier's, with fewer decoder layers and inputs that are already scaled."""
    side = replace(shallower(verifier.decoder, layers), embedding=replace(verifier.decoder.embedding, scale=1.0))
    return replace(verifier, decoder=side, zero_start=False)


@dataclass
class EagleRow:
    """The cache holds ``read`` inputs with the verifier's hidden states; ``states`` (N, D) belong to the next ones."""

    states: Array
    read: int = 0


class EagleDrafter(CachedDrafter[EagleRow]):
    traits = Traits(needs_verifier=True, wants=replace(FEATURES, logits=False))

    def __init__(self, model: LoadedModel, verifier: LoadedModel, join: Callable[[Array], Array], unknown: Array):
        super().__init__(model)
        self.verifier, self.join, self.xp = verifier, join, model.xp
        self.unknown = verifier.array(unknown)

    def fresh(self) -> EagleRow:
        return EagleRow(self.unknown[None])

    @staticmethod
    def held(row: EagleRow) -> int:
        return row.read  # without its own outputs

    def propose(self, state: CachedRows[EagleRow], prefix: Prefix, plan: Plan) -> Draft:
        inputs = [self._due(row, [prefix.symbols.start, *output]) for row, output in zip(state.rows, prefix.outputs)]
        places = [row.read for row in state.rows]

        def choose(ahead: Prefix, wanted: Sequence[bool]) -> Draft:
            tokens = [due[0] if more else [] for due, more in zip(inputs, wanted)]
            states = self.xp.concatenate([due[1] for due, more in zip(inputs, wanted) if more])  # (N, D)
            joined = self._embed([token for row in tokens for token in row], states)
            numbers = iter(range(len(joined)))
            rows = [[next(numbers) for _ in row] for row in tokens]
            firsts = [max(0, len(row) - 1) for row in rows]
            done = self.model.read(state.cache, Reading(rows, places, firsts, embeddings=joined, want=FEATURES))
            one = done.choose(ahead, Plan([int(more) for more in wanted]))
            outputs = done.features()
            for row, more in enumerate(wanted):
                if more:
                    places[row] += len(tokens[row])
                    inputs[row] = [one.tokens[row][0]], self.xp.concatenate([outputs[row, :1]])  # a copy
            return one

        for row, length in zip(state.rows, plan.lengths):
            if length:
                row.read, row.states = row.read + len(row.states), row.states[:0]
        return within_positions(draft_in_turn(prefix, plan, choose, self.xp), prefix, self.model)

    def _due(self, row: EagleRow, text: Sequence[int]) -> tuple[list[int], Array]:
        """A row's unread tokens and the hidden states that predicted them; ``row`` keeps the latter."""
        missing = len(text) - row.read - len(row.states)
        if missing:
            row.states = self.xp.concatenate([row.states, *[self.unknown[None]] * missing])
        return list(text[row.read :]), row.states

    def _embed(self, tokens: Sequence[int], states: Array) -> Array:
        """(N, D) inputs without positions."""
        table, scale = self.verifier.target_embeddings, self.verifier.spec.decoder.embedding.scale
        return self.join(self.xp.concatenate([table[[*tokens]] * scale, states], 1))

    def observe(self, state: CachedRows[EagleRow], scores: Any, draft: Draft, verdict: Verdict) -> None:
        features = scores.features()
        for row, kept in enumerate(state.rows):
            told = features[row, list(verdict.results(row))]
            state.rows[row] = replace(kept, states=self.xp.concatenate([kept.states, told]))


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return over_the_verifier(weights, verifier, shape(verifier.spec, options_of(Options, weights.options).layers))


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> EagleDrafter:
    """Raises ValueError with every tensor that does not fit."""
    width = verifier.spec.decoder.width
    own = matching(weights, {"join.weight": (width, 2 * width), "join.bias": (width,), "unknown": (width,)})
    return EagleDrafter(model, verifier, verifier.linear(own["join.weight"], own["join.bias"]), own["unknown"])
