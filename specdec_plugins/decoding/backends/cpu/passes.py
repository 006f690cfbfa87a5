"""The kernels' passes: a native call each, or one together with the choice or the judgement that it is for.

B rows, Q tokens read, W of them with a prediction, S source positions, D width, V vocabulary.
"""

from array import array
from collections.abc import Sequence
from ctypes import byref
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, candidates_of, numbered
from specdec_plugins.decoding.backends.cpu.binding import VisiblePositions, address, floats, integers, start, starts
from specdec_plugins.decoding.backends.cpu.sampling import NativeSampling
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.reading import NOT_WANTED, Reading
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.trees import within_rows
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, Verdict, rejecting

if TYPE_CHECKING:
    from specdec_plugins.decoding.backends.cpu.model import CpuModel

BLOCK = 16  # positions: attention is written in whole blocks, which have 16 at most (`W` in vectors.h)


class CpuPass:
    """A pass that runs when its results are asked for. They stand until the model's next pass."""

    def __init__(self, model: "CpuModel", rows: int, width: int):
        self.model, self.rows, self.width = model, rows, width
        self._logits: Tensor | None = None
        self._gates: Tensor | None = None
        self._features: Tensor | None = None
        self._attention: Tensor | None = None

    @classmethod
    def of(cls, model: "CpuModel", logits: Tensor) -> "CpuPass":
        """A pass whose logits (B, W, V) were computed elsewhere."""
        done = cls(model, *logits.shape[:2])
        done._logits = logits.contiguous()
        return done

    def run(self) -> None:
        """Compute the pass alone."""
        raise NotImplementedError

    def logits(self) -> Tensor:
        if self._logits is None:
            self.run()
        assert self._logits is not None
        return self._logits

    def features(self) -> Tensor:
        self.logits()
        if self._features is None:
            raise RuntimeError(NOT_WANTED)
        return self._features

    def attention(self) -> Tensor:
        self.logits()
        if self._attention is None:
            raise RuntimeError(NOT_WANTED)
        return self._attention

    def with_logits(self, logits: Tensor) -> "CpuPass":
        """The same pass with other logits."""
        self.logits()
        done = CpuPass.of(self.model, logits)
        done._gates, done._features, done._attention = self._gates, self._features, self._attention
        return done

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        model, logits = self.model, self.logits()
        symbols = numbered(prefix.symbols, model.vocabulary)
        numbers = integers(plan.lengths, (not output for output in prefix.outputs))
        choosing = Choosing(self, prefix, plan)
        model.engine.library.specdec_choose(
            model.engine.pointer, address(logits), self.rows, self.width, logits.size(2), symbols.pad, symbols.eos,
            start(numbers),
            address(self._gates), 0 if self._gates is None else self._gates.size(2), *choosing.arguments(),
        )  # fmt: skip
        return choosing.draft()

    def candidates(self, prefix: Prefix) -> Candidates:
        model, logits = self.model, self.logits()
        return candidates_of(logits, self._gates, model.successor, model.vocabulary, prefix)

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        judging = Judging(self.rows, self.width, tolerances, draft, draws)
        numbers = integers(starts(draft.tokens), *judging_options(bounds, tolerances), *draft.tokens)
        logits, engine = self.logits(), self.model.engine
        engine.library.specdec_judge(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), start(numbers), *judging.arguments(bounds)
        )
        return judging.verdict()


class CausalPass(CpuPass):
    """Each row's tokens, read after those in its cache."""

    def __init__(self, model: "CpuModel", state: SlottedState, reading: Reading):
        sizes, firsts = list(map(len, reading.tokens)), reading.firsts
        width = max(sizes) if firsts is None else max(size - first for size, first in zip(sizes, firsts))
        super().__init__(model, len(sizes), width)
        self.state, self.reading = state, reading
        self.embeddings = None if reading.embeddings is None else floats(reading.embeddings)
        if self.embeddings is not None:
            largest = max(map(max, filter(None, reading.tokens)), default=-1)
            if self.embeddings.shape[1:] != (model.width,) or largest >= len(self.embeddings):
                raise ValueError(
                    f"vectors {tuple(self.embeddings.shape)} do not fit a width of {model.width}, or the numbers read of them"
                )
        self.visible = None
        if reading.visible is not None:
            sinks, window, listed = reading.visible
            self.visible = byref(VisiblePositions(sinks, window, listed.size(1), address(listed)))
        self.alone = reading.want.features or reading.want.attention  # which a call that also chooses or judges does not return
        state.held = list(map(int.__add__, reading.positions, sizes))
        state.cache.reserve(state.targets.bound, max(state.held))

    def _caches(self) -> tuple[int, ...]:
        """Where the entries of the target and of the source are."""
        return *self.state.cache.layout, *self.state.sources.cache.layout

    def _results(self) -> tuple[int, int | None, int | None]:
        """Make the results' tensors; returns where logits, gates and features go."""
        model, shape = self.model, (self.rows, self.width)
        self._logits, logits = model.logits.view(*shape, model.stack.vocabulary)
        gates = features = None
        if model.stack.gate:
            self._gates, gates = model.gates.view(*shape, model.stack.gate.outputs)
        if self.reading.want.features:
            self._features, features = model.features.view(*shape, model.width)
        return logits, gates, features

    def _attention_room(self) -> tuple[int | None, int]:
        """Make the tensor for attention, if wanted; returns where it goes, and how many positions a result has."""
        if not self.reading.want.attention or self.visible is not None:
            return None, 0
        longest = self.state.sources.longest
        size = -(-longest // BLOCK) * BLOCK
        room, place = self.model.attention.view(self.rows, self.width, size)
        self._attention = room[..., :longest]
        return place, size

    def _numbers(self, *more: Sequence[int]) -> array:
        """What all passes are told of the rows, ``more``, and the tokens."""
        tokens, positions, firsts = self.reading[:3]
        return integers(starts(tokens), positions, firsts or [0] * self.rows, *self.state.placed(), *more, *tokens)

    def run(self) -> None:
        numbers, stack = self._numbers(), self.model.stack
        stack.library.specdec_read(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(),
            address(self.embeddings), self.visible, *self._results(), *self._attention_room(),
        )  # fmt: skip

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        """In one call with the pass, if that has not run."""
        if self._logits is not None or self.alone:
            return super().choose(prefix, plan)
        model, symbols = self.model, numbered(prefix.symbols, self.model.vocabulary)
        numbers = self._numbers(plan.lengths, [not output for output in prefix.outputs])
        logits, gates, _ = self._results()
        choosing = Choosing(self, prefix, plan)
        model.stack.library.specdec_propose(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), *self._caches(),
            address(self.embeddings), self.visible, logits, gates, symbols.pad, symbols.eos, *choosing.arguments(),
        )  # fmt: skip
        return choosing.draft()

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        """In one call with the pass, if that has not run and has read just each row's last token and its draft."""
        if self._logits is not None or self.reading.firsts is not None or self.alone:
            return super().judge(draft, bounds, tolerances, draws)
        judging, tokens = Judging(self.rows, self.width, tolerances, draft, draws), self.reading.tokens
        numbers = integers(
            starts(tokens), self.reading.positions, *self.state.placed(), *judging_options(bounds, tolerances), *tokens
        )
        logits, _, _ = self._results()
        stack = self.model.stack
        stack.library.specdec_verify(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), logits,
            *judging.arguments(bounds),
        )  # fmt: skip
        return judging.verdict()


class TreePass(CausalPass):
    """Each row's tokens, the last of which are a tree."""

    def run(self) -> None:
        assert self.reading.parents is not None
        stack = self.model.stack
        numbers = self._numbers()
        numbers.extend(chain.from_iterable(within_rows(self.reading.tokens, self.reading.parents)))
        stack.library.specdec_read_tree(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), *self._results(),
            *self._attention_room(),
        )  # fmt: skip

    choose, judge = CpuPass.choose, CpuPass.judge  # not in one call with the pass


class BlockPass(CpuPass):
    """Each row's prefix and masks, which all attend to each other."""

    def __init__(self, model: "CpuModel", state: SlottedState, prefix: Prefix, lengths: Sequence[int]):
        super().__init__(model, len(prefix), max(lengths))
        self.state, self.prefix, self.lengths = state, prefix, lengths

    def run(self) -> None:
        model, state, outputs = self.model, self.state, self.prefix.outputs
        longest = max(len(output) + length for output, length in zip(outputs, self.lengths))
        scratch, scratch_address = model.block.view(state.targets.bound, longest, 2 * model.width)
        self._logits, logits = model.logits.view(self.rows, self.width, model.stack.vocabulary)
        copied = None if model.copy is None else address(state.sources.cache.data[model.layers])
        numbers = integers(starts(outputs), self.lengths, *state.placed(), *outputs)
        model.stack.library.specdec_draft(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), self.prefix.symbols.mask,
            scratch_address, scratch.stride(0),
            *state.sources.cache.layout, copied, logits,
        )  # fmt: skip


class Choosing:
    """Room for the chosen numbers of logits, for what they are drawn from, if a row may reject, and for the confidence, if the
    plan's gate asks for it."""

    def __init__(self, done: CpuPass, prefix: Prefix, plan: Plan):
        self.model, self.width, self.lengths = done.model, done.width, plan.lengths
        size = done.rows * done.width
        self.chosen = array("q", bytes(8 * size))
        self.confidence = array("f", bytes(4 * size)) if plan.gate.drafter else None
        self.distribution, self.sampling, draws = None, None, prefix.draws()
        if draws is None:
            return
        if rejecting(draws):
            shape = done.rows, done.width, successor_tables(done.model)[2]
            self.distribution = Distribution(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.float32))
        self.sampling = NativeSampling(draws, done.model.token_ids, self.distribution)

    def arguments(self) -> tuple:
        confidence = self.confidence and start(self.confidence)
        return *successor_tables(self.model), start(self.chosen), self.sampling and self.sampling.pointer, confidence

    def draft(self) -> Draft:
        """The chosen tokens, of each row as many as it wanted."""
        vocabulary = self.model.vocabulary
        tokens = self._rows(self.chosen)
        confidence = None if self.confidence is None else self._rows(self.confidence)
        return Draft(
            tokens if vocabulary is None else [[vocabulary[n] for n in row] for row in tokens], self.distribution, confidence
        )

    def _rows(self, numbers: array) -> list[list]:
        flat, width = numbers.tolist(), self.width
        return [flat[row * width : row * width + k] for row, k in enumerate(self.lengths)]


class Judging:
    """Room for a verdict on a batch of drafts, and where the native side writes it."""

    def __init__(
        self, rows: int, width: int, tolerances: Sequence[Tolerance], draft: Draft, draws: Sequence[Draws | None] | None
    ):  # fmt: skip
        self.rows, self.width = rows, width
        self.sampling = None if draws is None else NativeSampling(draws, origins=draft.distribution)
        self.tau = array("d", [tolerance.tau for tolerance in tolerances])
        self.judged, self.scores = array("q", bytes(24 * rows)), array("f", bytes(4 * rows * width))

    def arguments(self, bounds: Bounds) -> tuple:
        symbols = bounds.constraints.symbols
        self.suppressed = suppressed = integers(bounds.constraints.suppressed)
        self.repeats = repeat_numbers(bounds)
        return (
            symbols.pad,
            symbols.eos,
            len(suppressed),
            start(suppressed),
            start(self.tau),
            start(self.judged),
            start(self.scores),
            self.sampling and self.sampling.pointer,
            self.repeats and start(self.repeats),
        )

    def verdict(self) -> Verdict:
        rows, width = self.rows, self.width
        judged, scores = self.judged.tolist(), self.scores.tolist()
        counts = judged[:rows]
        parts = [scores[row * width : row * width + count + 1] for row, count in enumerate(counts)]
        return Verdict(counts, judged[rows : 2 * rows], parts, list(map(bool, judged[2 * rows :])))


def judging_options(bounds: Bounds, tolerances: Sequence[Tolerance]) -> tuple:
    """The options by row that the native rule reads, in its order."""
    betas = [tolerance.beta for tolerance in tolerances]
    return betas, bounds.room, bounds.minimum


def repeat_numbers(bounds: Bounds) -> array | None:
    """The rules against repeats as `take` in judge.h reads them; None where no row has one."""
    if bounds.repeats is None:
        return None
    sizes, prefixes = zip(*bounds.repeats)
    return integers(sizes, starts(prefixes), *prefixes)


def successor_tables(model: "CpuModel") -> tuple[int | None, int | None, int]:
    """The successor network's tables, and how many candidates it chooses among."""
    successor = model.successor
    candidates = min(CANDIDATES, model.stack.vocabulary)
    return (None, None, candidates) if successor is None else (address(successor.tokens), address(successor.out), candidates)
