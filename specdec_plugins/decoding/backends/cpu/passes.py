"""The kernels' passes: a native call each, or one together with the choice or the judgement that it is for.

B rows, Q tokens read, W of them with a prediction, S source positions, D width, V vocabulary.
"""

from array import array
from collections.abc import Sequence
from ctypes import byref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.cache import Selection
from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, candidates_of, numbered
from specdec_plugins.decoding.backends.cpu.binding import Selection as NativeSelection
from specdec_plugins.decoding.backends.cpu.binding import address, floats, integers, start, starts
from specdec_plugins.decoding.backends.cpu.sampling import NativeSampling
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.trees import within_rows
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, Verdict, rejecting

if TYPE_CHECKING:
    from specdec_plugins.decoding.backends.cpu.model import CpuModel

BLOCK = 16  # positions: masses are written in whole blocks of attention, which have 16 at most (`W` in vectors.h)


class CpuPass:
    """A pass that runs when its results are asked for. They stand until the model's next pass."""

    def __init__(self, model: "CpuModel", rows: int, width: int):
        self.model, self.rows, self.width = model, rows, width
        self._logits: Tensor | None = None
        self._gates: Tensor | None = None
        self._features: Tensor | None = None
        self._masses: Tensor | None = None

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
        """Raises RuntimeError if the model was not told to keep them: see `CpuModel.features_wanted`."""
        self.logits()
        if self._features is None:
            raise RuntimeError("hidden states were not kept: set the model's features_wanted before decoding")
        return self._features

    def masses(self) -> Tensor:
        """Raises RuntimeError if the model was not told to keep them: see `CpuModel.masses_wanted`."""
        self.logits()
        if self._masses is None:
            raise RuntimeError("attention was not kept: set the model's masses_wanted before decoding, and let a pass read all")
        return self._masses

    def with_logits(self, logits: Tensor) -> "CpuPass":
        """The same pass with other logits."""
        self.logits()
        done = CpuPass.of(self.model, logits)
        done._gates, done._features, done._masses = self._gates, self._features, self._masses
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

    def __init__(
        self, model: "CpuModel", state: SlottedState, tokens: Sequence[Sequence[int]], positions: Sequence[int],
        firsts: Sequence[int] | None, embeddings: Tensor | None = None, selection: Selection | None = None,
    ):  # fmt: skip
        sizes = list(map(len, tokens))
        width = max(sizes) if firsts is None else max(size - first for size, first in zip(sizes, firsts))
        super().__init__(model, len(tokens), width)
        self.state, self.tokens, self.positions, self.firsts = state, tokens, positions, firsts
        self.embeddings = None if embeddings is None else floats(embeddings)
        if self.embeddings is not None and (
            self.embeddings.shape[1:] != (model.width,) or max(map(max, filter(None, tokens)), default=-1) >= len(self.embeddings)
        ):
            raise ValueError(
                f"vectors {tuple(self.embeddings.shape)} do not fit a width of {model.width}, or the numbers read of them"
            )
        self.selection = None
        if selection is not None:
            sinks, window, self._listed = selection  # which the native side reads
            self.selection = byref(NativeSelection(sinks, window, self._listed.size(1), address(self._listed)))
        state.held = list(map(int.__add__, positions, sizes))
        state.cache.reserve(state.targets.bound, max(state.held))

    @property
    def kept(self) -> bool:
        """Whether the pass has results that calls which also judge do not return."""
        return self.model.features_wanted or self.model.masses_wanted

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
        if model.features_wanted:
            self._features, features = model.features.view(*shape, model.width)
        return logits, gates, features

    def _mass_room(self) -> tuple[int | None, int]:
        """Make the masses' tensor, if they are wanted; returns where they go, and how many a result has."""
        if not self.model.masses_wanted or self.selection is not None:
            return None, 0
        longest = self.state.sources.longest
        size = -(-longest // BLOCK) * BLOCK
        held, masses = self.model.masses.view(self.rows, self.width, size)
        self._masses = held[..., :longest]
        return masses, size

    def run(self) -> None:
        state = self.state
        numbers = integers(
            starts(self.tokens), self.positions, self.firsts or [0] * self.rows, *state.placed(),
            *self.tokens,
        )  # fmt: skip
        stack = self.model.stack
        stack.library.specdec_read(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(),
            address(self.embeddings), self.selection, *self._results(), *self._mass_room(),
        )  # fmt: skip

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        """In one call with the pass, if that has not run."""
        if self._logits is not None or self.model.features_wanted:
            return super().choose(prefix, plan)
        state, model = self.state, self.model
        symbols = numbered(prefix.symbols, model.vocabulary)
        numbers = integers(
            starts(self.tokens), self.positions, self.firsts or [0] * self.rows, *state.placed(),
            plan.lengths, (not output for output in prefix.outputs), *self.tokens,
        )  # fmt: skip
        logits, gates, _ = self._results()
        choosing = Choosing(self, prefix, plan)
        model.stack.library.specdec_propose(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), *self._caches(),
            address(self.embeddings), self.selection, logits, gates, symbols.pad, symbols.eos, *choosing.arguments(),
        )  # fmt: skip
        return choosing.draft()

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        """In one call with the pass, if that has not run and has read just each row's last token and its draft."""
        if self._logits is not None or self.firsts is not None or self.kept:
            return super().judge(draft, bounds, tolerances, draws)
        state = self.state
        judging = Judging(self.rows, self.width, tolerances, draft, draws)
        numbers = integers(
            starts(self.tokens), self.positions, *state.placed(),
            *judging_options(bounds, tolerances), *self.tokens,
        )  # fmt: skip
        logits, _, _ = self._results()
        stack = self.model.stack
        stack.library.specdec_verify(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), logits,
            *judging.arguments(bounds),
        )  # fmt: skip
        return judging.verdict()


class TreePass(CausalPass):
    """Each row's tokens, the last of which are a tree."""

    def __init__(
        self, model: "CpuModel", state: SlottedState, tokens: Sequence[Sequence[int]], positions: Sequence[int],
        firsts: Sequence[int] | None, parents: Sequence[Sequence[int]],
    ):  # fmt: skip
        super().__init__(model, state, tokens, positions, firsts)
        self.parents = within_rows(tokens, parents)

    def run(self) -> None:
        state, stack = self.state, self.model.stack
        numbers = integers(
            starts(self.tokens), self.positions, self.firsts or [0] * self.rows, *state.placed(),
            *self.tokens, *self.parents,
        )  # fmt: skip
        stack.library.specdec_read_tree(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), *self._results(),
            *self._mass_room(),
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
        self.sampling = NativeSampling(draws, done.model.names, self.distribution)

    def arguments(self) -> tuple:
        confidence = self.confidence and start(self.confidence)
        return *successor_tables(self.model), start(self.chosen), self.sampling and self.sampling.pointer, confidence

    def draft(self) -> Draft:
        """The chosen tokens, of each row as many as it wanted."""
        names = self.model.vocabulary
        tokens = self._rows(self.chosen)
        confidence = None if self.confidence is None else self._rows(self.confidence)
        return Draft(tokens if names is None else [[names[n] for n in row] for row in tokens], self.distribution, confidence)

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
    return betas, bounds.room, bounds.minimum, starts(bounds.forced), *bounds.forced


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
