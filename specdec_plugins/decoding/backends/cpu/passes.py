"""The kernels' passes: one native call each, which also chooses or judges where it can.

B rows, Q tokens read, W of them with a prediction, S source positions, C candidates, D width, V vocabulary.
"""

import math
from array import array
from collections.abc import Sequence
from ctypes import Structure, addressof, byref
from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.decoding.backends import NOT_WANTED, Reading
from specdec_plugins.decoding.backends.candidates import Candidates
from specdec_plugins.decoding.backends.cpu.arguments import address, floats, integers, start
from specdec_plugins.decoding.backends.cpu.candidates import best_few, candidates_of
from specdec_plugins.decoding.backends.cpu.rules import Choosing, Judging, NativeRepeats
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.trees import by_row, nodes_of, tokens_to, within_rows
from specdec_plugins.decoding.values import Draft, Draws, Plan, Verdict, Want
from specdec_plugins.formats.arrays import array as array_of

if TYPE_CHECKING:
    from specdec_plugins.decoding.backends.cpu.model import CpuModel

BLOCK = 16  # attention is written in whole blocks of positions, at most this long (`W` in vectors.h)
VIEWS = 1024  # shapes that a buffer remembers: growing sources and outputs keep making new ones


class Buffer(local):
    """Reused float32 memory of each thread for results that are read before its next pass: allocation costs more than a pass."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.float32)
        self.views: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}

    def view(self, *shape: int) -> tuple[np.ndarray, int]:
        """An uninitialised array of that shape, and its address."""
        if shape not in self.views:
            if len(self.views) >= VIEWS:
                self.views.clear()
            size = math.prod(shape)
            if self.memory.size < size:
                self.memory = np.empty(2 * size, np.float32)
                self.views.clear()
            self.views[shape] = self.memory[:size].reshape(shape), address(self.memory)
        return self.views[shape]


class CpuPass:
    """A pass that runs when a result is asked for. Results are valid until the model's next pass."""

    def __init__(self, model: "CpuModel", rows: int, width: int):
        self.model, self.rows, self.width = model, rows, width
        self.results: dict[str, np.ndarray] = {}  # empty until it runs

    @classmethod
    def of(cls, model: "CpuModel", logits: np.ndarray, **others: np.ndarray | None) -> "CpuPass":
        """A pass whose results, with logits (B, W, V), were computed elsewhere."""
        done = cls(model, *logits.shape[:2])
        done.results = {"logits": floats(logits), **{name: array_of(each) for name, each in others.items() if each is not None}}
        return done

    def run(self) -> None:
        """Compute the results."""
        raise NotImplementedError

    def _result(self, name: str) -> np.ndarray:
        if not self.results:
            self.run()
        if name not in self.results:
            raise RuntimeError(NOT_WANTED)
        return self.results[name]

    def logits(self) -> np.ndarray:
        return self._result("logits")

    def features(self) -> np.ndarray:
        return self._result("features")

    def attention(self) -> np.ndarray:
        return self._result("attention")

    def with_logits(self, logits: np.ndarray) -> "CpuPass":
        self.logits()
        return CpuPass.of(self.model, **{**self.results, "logits": logits})

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        choosing, logits, engine = Choosing(self.model, self.rows, self.width, prefix, plan), self.logits(), self.model.engine
        engine.library.specdec_choose(
            engine.pointer, address(logits), self.rows, self.width, logits.shape[2], *self._gates(), byref(choosing.call)
        )
        return choosing.draft()

    def _gates(self) -> tuple[int | None, int]:
        """The gates' address and width."""
        gates = self.results.get("gates")
        return address(gates), 0 if gates is None else gates.shape[2]

    def candidates(self, prefix: Prefix) -> Candidates:
        return candidates_of(self.logits(), self.results.get("gates"), self.model.successor, self.model.vocabulary, prefix)

    def scores(self, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        logits, engine, scores = self.logits(), self.model.engine, array("f", bytes(4 * self.rows * self.width))
        lengths, given = integers(map(len, tokens)), integers(*tokens)
        engine.library.specdec_score(
            engine.pointer, address(logits), self.rows, self.width, logits.shape[2], start(lengths), start(given), start(scores)
        )
        return [scores[row * self.width :][: len(each)].tolist() for row, each in enumerate(tokens)]

    def judge(
        self,
        draft: Draft,
        bounds: Bounds,
        tolerances: Sequence[Tolerance],
        draws: Sequence[Draws | None] | None = None,
        scored: Sequence[bool] | None = None,
    ) -> Verdict:
        judging = Judging(self.width, draft, bounds, tolerances, draws, scored)
        logits, engine = self.logits(), self.model.engine
        engine.library.specdec_judge(engine.pointer, address(logits), self.rows, self.width, logits.shape[2], byref(judging.call))
        return judging.verdict()

    def likeliest(self, places: Sequence[tuple[int, int]], count: int) -> list[list[tuple[float, int]]]:
        logits = self.logits()[tuple(zip(*places))]
        best, scores = best_few(logits, count)
        scores = scores - scores[:, :1] - np.log(np.exp(logits - scores[:, :1]).sum(-1, keepdims=True))
        return [list(zip(*each)) for each in zip(scores.tolist(), best.tolist())]

    def rank(self, draft: Draft, bounds: Bounds, beams: Sequence[Beam | None]) -> list[list[Ranked]]:
        logits, engine, symbols = self.logits(), self.model.engine, bounds.constraints.symbols
        nodes = nodes_of(draft, [row for row, beam in enumerate(beams) if beam])
        own, kinds = bounds.after(tokens_to(draft, nodes)), [beam for row, _ in nodes if (beam := beams[row])]
        few = [beam.candidates for beam in kinds]
        rows = engine.library.rows(
            "RankRow",
            row=[row for row, _ in nodes],
            result=[node + 1 for _, node in nodes],
            few=few,
            room=own.room,
            minimum=own.minimum,
            renormalise=[beam.renormalize for beam in kinds],
            penalty=[beam.unk_penalty for beam in kinds],
        )
        banned, bans, width = integers(bounds.constraints.banned), NativeRepeats.of(own.repeats), max(few)
        tokens, scores = array("q", bytes(8 * len(nodes) * width)), array("f", bytes(4 * len(nodes) * width))
        call = engine.library.structs["RankCall"](
            unk=symbols.mask,
            eos=symbols.eos,
            banned_count=len(banned),
            banned=start(banned),
            rows=start(rows),
            repeats=bans and bans.pointer,
            width=width,
            tokens=start(tokens),
            scores=start(scores),
        )
        engine.library.specdec_rank(engine.pointer, address(logits), len(nodes), self.width, logits.shape[2], byref(call))
        found, values = tokens.tolist(), scores.tolist()
        ranges = (slice(number * width, number * width + count) for number, count in enumerate(few))
        return by_row(nodes, [Ranked(found[each], values[each]) for each in ranges], self.rows)


class CausalPass(CpuPass):
    """Each row's tokens, read after those in its cache; a tree's tokens are the last ones."""

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
                    f"embeddings {tuple(self.embeddings.shape)} do not fit width {model.width}, or end before index {largest}"
                )
        self._visible: Structure | None = None
        if reading.visible is not None:
            sinks, window, sources = reading.visible
            self._listed = listed = np.ascontiguousarray(array_of(sources), np.int64)
            self._visible = kernels().structs["Visible"](sinks, window, listed.shape[1], address(listed))
        state.held = list(map(int.__add__, reading.positions, sizes))
        state.cache.reserve(state.targets.bound, max(state.held))

    def _call(self) -> Structure:
        """The pass, with memory for its results. What the call points to lives as long as this."""
        model, reading, state = self.model, self.reading, self.state
        library, (slots, source_slots, lengths) = model.stack.library, state.placed()
        self._rows = library.rows(
            "ReadRow",
            tokens=map(len, reading.tokens),
            position=reading.positions,
            first=reading.firsts or [0] * self.rows,
            slot=slots,
            source_slot=source_slots,
            source_length=lengths,
        )
        self._tokens, self._parents = integers(*reading.tokens), None
        if reading.parents is not None:
            self._parents = integers(*within_rows(reading.tokens, reading.parents))
        want = replace(reading.want, attention=reading.want.attention and reading.visible is None)
        self.results, fields = results_of(model, state, want, self.rows, self.width)
        call: Structure = library.structs["ReadCall"](
            stack=model.stack.pointer,
            caches=state.caches(),
            batch=self.rows,
            width=self.width,
            rows=start(self._rows),
            tokens=start(self._tokens),
            parents=self._parents and start(self._parents),
            embeddings=address(self.embeddings),
            visible=self._visible and addressof(self._visible),
            **fields,
        )
        return call

    def run(self) -> None:
        engine = self.model.engine
        engine.library.specdec_read(engine.pointer, byref(self._call()))


def results_of(
    model: "CpuModel", state: SlottedState, want: Want, rows: int, width: int
) -> tuple[dict[str, np.ndarray], dict[str, int | None]]:
    """Memory for what is wanted of a pass: arrays (rows, width, ..), and the fields of a call that say where they are."""
    results: dict[str, np.ndarray] = {}
    fields: dict[str, int | None] = {"features": None, "attention": None}

    def add(name: str, buffer: Buffer, size: int) -> None:
        results[name], fields[name] = buffer.view(rows, width, size)

    if want.logits:
        add("logits", model.logits, model.stack.vocabulary)
    if want.logits and model.stack.output.gate:
        add("gates", model.gates, model.stack.output.gate.outputs)
    if want.features:
        add("features", model.features, model.width)
    if want.attention:
        longest = state.sources.longest
        add("attention", model.attention, -(-longest // BLOCK) * BLOCK)
        fields["attention_size"] = results["attention"].shape[2]
        results["attention"] = results["attention"][..., :longest]
    heads = want.heads
    fields["layer"], fields["heads"] = (-1, -1) if heads is None else (heads.layer, sum(1 << head for head in heads.heads))
    return results, fields


class BlockPass(CpuPass):
    """Each row's prefix and masks, which all attend to each other."""

    def __init__(self, model: "CpuModel", state: SlottedState, prefix: Prefix, lengths: Sequence[int]):
        super().__init__(model, len(prefix), max(lengths))
        self.state, self.prefix, self.lengths = state, prefix, lengths

    def run(self) -> None:
        model, state, outputs = self.model, self.state, self.prefix.outputs
        longest = max(len(output) + length for output, length in zip(outputs, self.lengths))
        scratch, scratch_address = model.block.view(state.targets.bound, longest, 2 * model.width)
        self.results["logits"], logits = model.logits.view(self.rows, self.width, model.stack.vocabulary)
        copied = None if model.copy is None else address(state.sources.cache.data[model.layers])
        slots, source_slots, lengths = state.placed()
        library, tokens = model.engine.library, integers(*outputs)
        rows = library.rows(
            "BlockRow",
            tokens=map(len, outputs),
            drafted=self.lengths,
            slot=slots,
            source_slot=source_slots,
            source_length=lengths,
        )
        library.specdec_draft(
            model.engine.pointer,
            model.stack.pointer,
            self.rows,
            self.width,
            start(rows),
            start(tokens),
            self.prefix.symbols.mask,
            scratch_address,
            scratch.strides[0] // scratch.itemsize,
            *state.sources.cache.layout,
            copied,
            logits,
        )
