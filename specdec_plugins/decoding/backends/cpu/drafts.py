"""Drafts of the kernels: what `DraftCall` in csrc/calls.h says of a recipe, a drafter's state, and the rows of a call.

B rows, K drafted tokens.
"""

from array import array
from ctypes import Structure
from typing import Any, ClassVar

import numpy as np

from specdec_plugins.decoding.backends.candidates import numbered
from specdec_plugins.decoding.backends.cpu.arguments import address, integers, start
from specdec_plugins.decoding.backends.cpu.passes import Buffer
from specdec_plugins.decoding.backends.cpu.rules import successor_tables
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import InTurn, Masked, Recipe, Vectors
from specdec_plugins.decoding.values import LOGITS, Want
from specdec_plugins.model.spec import Symbols

GIVEN, IN_TURN, MASKED, FROM_VECTORS = range(4)  # `Recipe` in csrc/chains.h
ENDLESS = 1 << 40  # positions of a drafter that embeds none
# Weights of an output layer from which on threads share passes over one token. With 12 million (width 512, screened, two threads
# of Zen 4) four of them take 436 us alone and 412 shared, with 7 million 346 and 259.
WORTH_SHARING = 4 << 20


class Drafting:
    """By a recipe, for one session."""

    number: ClassVar[int]  # of the recipe
    wants: ClassVar[Want] = LOGITS  # of the verifier's passes

    def __init__(self, call: Structure, model: Any, symbols: Symbols):
        self.call, self.model = call, model
        own = numbered(symbols, model.vocabulary)
        call.stack, call.pad, call.eos, call.mask = model.stack.pointer, own.pad, own.eos, symbols.mask
        call.tokens, call.outs, call.candidates = successor_tables(model)
        call.token_ids = model.token_ids and start(model.token_ids)
        call.positions = model.spec.decoder.max_positions

    def prepare(self, state: Any, rows: int, longest: int, positions: int) -> SlottedState:
        """Encode new sources, and reserve memory for drafts of up to K = ``longest`` > 0 tokens in rows of up to ``positions``
        positions. Returns the state of the model."""
        cache: SlottedState = state.cache
        cache.encode()
        cache.cache.reserve(cache.targets.bound, positions)
        self.call.caches = cache.caches()
        self.call.logits = self.model.logits.view(rows, longest, self.model.stack.vocabulary)[1]
        if self.model.stack.output.gate:
            self.call.gates = self.model.gates.view(rows, longest, self.model.stack.output.gate.outputs)[1]
        return cache

    def begin(self, state: Any, rows: list[int], prefix: Prefix, longest: int) -> list[list[int]]:
        """Describe the state of ``rows``, whose tokens are in ``prefix``. Returns the tokens that the drafter has yet to read, at
        least each row's last one."""
        return [[token] for token in prefix.last]

    def end(self, state: Any, rows: list[int]) -> None:
        """Copy what the call changed back into the state."""


class DraftingInTurn(Drafting):
    number = IN_TURN

    def __init__(self, call: Structure, recipe: InTurn, symbols: Symbols):
        super().__init__(call, recipe.model, symbols)
        call.shared = self.model.width * self.model.stack.vocabulary >= WORTH_SHARING


class DraftingMasked(Drafting):
    number = MASKED

    def __init__(self, call: Structure, recipe: Masked, symbols: Symbols):
        super().__init__(call, recipe.model, symbols)
        self._read = array("q")

    def begin(self, state: Any, rows: list[int], prefix: Prefix, longest: int) -> list[list[int]]:
        self._read = integers(state.rows[row] for row in rows)
        self.call.read, beginning = start(self._read), [prefix.symbols.start]
        return [output[n - 1 :] if n else beginning + output for output, n in zip(prefix.outputs, self._read)]

    def end(self, state: Any, rows: list[int]) -> None:
        for row, count in zip(rows, self._read):
            state.rows[row] = count


class DraftingFromVectors(Drafting):
    number, wants = FROM_VECTORS, Want(features=True)

    def __init__(self, call: Structure, recipe: Vectors, symbols: Symbols):
        super().__init__(call, recipe.model, symbols)
        self.heads, self._vectors = recipe.heads, Buffer()
        self._states = self._own = np.empty(0)  # of all rows, and of those that draft
        call.heads, call.embeddings, call.scale = self.heads.linear.pointer, self.heads.embeddings, self.heads.scale
        call.longest, call.positions = recipe.length, ENDLESS

    def prepare(self, state: Any, rows: int, longest: int, positions: int) -> SlottedState:
        cache = super().prepare(state, rows, longest, longest)
        self.call.caches.positions = ENDLESS  # each draft replaces the previous one
        self.call.vectors = self._vectors.view(rows, self.heads.count, self.heads.width)[1]
        return cache

    def begin(self, state: Any, rows: list[int], prefix: Prefix, longest: int) -> list[list[int]]:
        everyone = len(rows) == len(state.places)
        # A plain iteration of all rows reads no states.
        self._states = state.current() if longest or not everyone else np.empty((len(rows), self.heads.width), np.float32)
        self._own = self._states if everyone else self._states[rows]
        self.call.states = address(self._own)
        return super().begin(state, rows, prefix, longest)

    def end(self, state: Any, rows: list[int]) -> None:
        if self._own is not self._states:
            self._states[rows] = self._own
        state.replace(self._states)


def drafting_by(recipe: Recipe, call: Structure, symbols: Symbols) -> Drafting:
    match recipe:
        case InTurn():
            return DraftingInTurn(call, recipe, symbols)
        case Masked():
            return DraftingMasked(call, recipe, symbols)
        case Vectors():
            return DraftingFromVectors(call, recipe, symbols)
