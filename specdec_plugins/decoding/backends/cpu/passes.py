"""The kernels' passes: one native call each, which also chooses or judges where it can.

B rows, Q tokens read, W of them with a prediction, S source positions, C candidates, D width, V vocabulary.
"""

from array import array
from collections.abc import Sequence
from ctypes import Structure, addressof, byref
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, candidates_of, numbered
from specdec_plugins.decoding.backends.cpu.binding import Buffer, address, floats, integers, start
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.reading import NOT_WANTED, Reading
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Bounds, Repeats
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.trees import by_row, nodes_of, tokens_to, within_rows
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, Verdict, Want, rejecting

if TYPE_CHECKING:
    from specdec_plugins.decoding.backends.cpu.model import CpuModel

BLOCK = 16  # attention is written in whole blocks of positions, at most this long (`W` in vectors.h)


class CpuPass:
    """A pass that runs when a result is asked for. Results are valid until the model's next pass."""

    judges_trees: ClassVar[bool] = True

    def __init__(self, model: "CpuModel", rows: int, width: int):
        self.model, self.rows, self.width = model, rows, width
        self.results: dict[str, Tensor] = {}  # empty until it runs

    @classmethod
    def of(cls, model: "CpuModel", logits: Tensor, **others: Tensor | None) -> "CpuPass":
        """A pass whose results, with logits (B, W, V), were computed elsewhere."""
        done = cls(model, *logits.shape[:2])
        done.results = {"logits": logits.contiguous(), **{name: each for name, each in others.items() if each is not None}}
        return done

    def run(self) -> None:
        """Compute the results."""
        raise NotImplementedError

    def _result(self, name: str) -> Tensor:
        if not self.results:
            self.run()
        if name not in self.results:
            raise RuntimeError(NOT_WANTED)
        return self.results[name]

    def logits(self) -> Tensor:
        return self._result("logits")

    def features(self) -> Tensor:
        return self._result("features")

    def attention(self) -> Tensor:
        return self._result("attention")

    def with_logits(self, logits: Tensor) -> "CpuPass":
        self.logits()
        return CpuPass.of(self.model, **{**self.results, "logits": logits})

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        choosing, logits, engine = Choosing(self, prefix, plan), self.logits(), self.model.engine
        engine.library.specdec_choose(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), *self._gates(), byref(choosing.call)
        )
        return choosing.draft()

    def _gates(self) -> tuple[int | None, int]:
        """The gates' address and width."""
        gates = self.results.get("gates")
        return address(gates), 0 if gates is None else gates.size(2)

    def candidates(self, prefix: Prefix) -> Candidates:
        model = self.model
        return candidates_of(self.logits(), self.results.get("gates"), model.successor, model.vocabulary, prefix)

    def scores(self, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        logits, engine, scores = self.logits(), self.model.engine, array("f", bytes(4 * self.rows * self.width))
        lengths, given = integers(map(len, tokens)), integers(*tokens)
        engine.library.specdec_score(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), start(lengths), start(given), start(scores)
        )
        return [scores[row * self.width :][: len(each)].tolist() for row, each in enumerate(tokens)]

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        judging, logits, engine = Judging(self, draft, bounds, tolerances, draws), self.logits(), self.model.engine
        engine.library.specdec_judge(engine.pointer, address(logits), self.rows, self.width, logits.size(2), byref(judging.call))
        return judging.verdict()

    def rank(self, draft: Draft, bounds: Bounds, beams: Sequence[Beam | None]) -> list[list[Ranked]]:
        logits, engine, symbols = self.logits(), self.model.engine, bounds.constraints.symbols
        nodes = nodes_of(draft, [row for row, beam in enumerate(beams) if beam])
        own, size = bounds.after(tokens_to(draft, nodes)), self.rows * self.width
        options = [(0, 0, 0, False, 0.0)] * size  # no candidates where nothing was read
        repeats = [Repeats(0, ())] * size
        places = [row * self.width + node + 1 for row, node in nodes]
        for number, (place, (row, _)) in enumerate(zip(places, nodes)):
            beam = beams[row]
            assert beam is not None
            options[place] = beam.candidates, own.room[number], own.minimum[number], beam.renormalize, beam.unk_penalty
            if own.repeats:
                repeats[place] = own.repeats[number]
        width = max(beam.candidates for beam in beams if beam)
        few, room, minimum, renormalise, penalty = zip(*options)
        rows = engine.library.rows("RankRow", few=few, room=room, minimum=minimum, renormalise=renormalise, penalty=penalty)
        banned, bans = integers(bounds.constraints.banned), NativeRepeats.of(repeats if own.repeats else None)
        tokens, scores = array("q", bytes(8 * size * width)), array("f", bytes(4 * size * width))
        call = engine.library.structs["RankCall"](
            unk=symbols.mask, eos=symbols.eos, banned_count=len(banned), banned=start(banned), rows=start(rows),
            repeats=bans and bans.pointer, width=width, tokens=start(tokens), scores=start(scores),
        )  # fmt: skip
        engine.library.specdec_rank(engine.pointer, address(logits), size, logits.size(2), logits.size(2), byref(call))
        found, values = tokens.tolist(), scores.tolist()
        ranges = (slice(place * width, place * width + few[place]) for place in places)
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
            sinks, window, listed = reading.visible
            self._visible = kernels().structs["Visible"](sinks, window, listed.size(1), address(listed))
        state.held = list(map(int.__add__, reading.positions, sizes))
        state.cache.reserve(state.targets.bound, max(state.held))

    def _call(self) -> Structure:
        """The pass, with memory for its results. What the call points to lives as long as this."""
        model, reading, state = self.model, self.reading, self.state
        library, (slots, source_slots, lengths) = model.stack.library, state.placed()
        self._rows = library.rows(
            "ReadRow", tokens=map(len, reading.tokens), position=reading.positions, first=reading.firsts or [0] * self.rows,
            slot=slots, source_slot=source_slots, source_length=lengths,
        )  # fmt: skip
        self._tokens, self._parents = integers(*reading.tokens), None
        if reading.parents is not None:
            self._parents = integers(*within_rows(reading.tokens, reading.parents))
        want = replace(reading.want, attention=reading.want.attention and reading.visible is None)
        self.results, fields = results_of(model, state, want, self.rows, self.width)
        return library.structs["ReadCall"](
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

    def run(self) -> None:
        engine = self.model.engine
        engine.library.specdec_read(engine.pointer, byref(self._call()))


def results_of(
    model: "CpuModel", state: SlottedState, want: Want, rows: int, width: int
) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """Memory for what is wanted of a pass: tensors (rows, width, ..), and the fields of a call that say where they are."""
    results: dict[str, Tensor] = {}
    fields: dict[str, int | None] = {"features": None, "attention": None}

    def add(name: str, buffer: Buffer, size: int) -> None:
        results[name], fields[name] = buffer.view(rows, width, size)

    if want.logits:
        add("logits", model.logits, model.stack.vocabulary)
    if want.logits and model.stack.gate:
        add("gates", model.gates, model.stack.gate.outputs)
    if want.features:
        add("features", model.features, model.width)
    if want.attention:
        longest = state.sources.longest
        add("attention", model.attention, -(-longest // BLOCK) * BLOCK)
        fields["attention_size"] = results["attention"].size(2)
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
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(rows), start(tokens),
            self.prefix.symbols.mask, scratch_address, scratch.stride(0), *state.sources.cache.layout, copied, logits,
        )  # fmt: skip


class NativeSampling:
    """`Sampling` in calls.h and the memory that it points to, valid as long as this."""

    def __init__(self, draws: Sequence[Draws | None], origins: Distribution | None = None):
        """``draws`` of each row; ``origins`` of drafted tokens, to be read or written."""
        library, rows, prefixes = kernels(), [], []
        for draw in draws:
            sampling, seed, prefix = draw or (None, 0, ())
            own = prefix if sampling and sampling.repetition_penalty != 1 else ()  # only the penalty needs it
            options = (sampling.temperature, sampling.top_p, sampling.repetition_penalty) if sampling else (0.0, 1.0, 1.0)
            rejects = sampling is not None and sampling.rule == "rejection"
            rows.append((*options, seed, sampling.top_k if sampling else 0, rejects, len(prefix), len(own)))
            prefixes.append(own)
        temperature, top_p, penalty, seeds, top_k, rejecting, positions, sizes = zip(*rows)
        self._rows = library.rows(
            "SamplingRow", temperature=temperature, top_p=top_p, penalty=penalty, seed=seeds, top_k=top_k, rejects=rejecting,
            position=positions, prefix=sizes,
        )  # fmt: skip
        self._prefixes = integers(*prefixes)
        self.struct = library.structs["Sampling"](rows=start(self._rows), prefixes=start(self._prefixes))
        if origins is not None:
            self._origins = tokens, probabilities = Distribution(origins.tokens.contiguous(), floats(origins.probabilities))
            self.struct.tokens, self.struct.probabilities = address(tokens), address(probabilities)
            self.struct.width, self.struct.candidates = tokens.shape[1:]
        self.pointer = addressof(self.struct)


class NativeRepeats:
    """`NoRepeats` in calls.h and the memory that it points to, valid as long as this."""

    def __init__(self, repeats: Sequence[Repeats]):
        sizes, prefixes = zip(*repeats)
        self._rows = kernels().rows("RepeatRow", size=sizes, prefix=map(len, prefixes))
        self._prefixes = integers(*prefixes)
        self._struct = kernels().structs["NoRepeats"](start(self._rows), start(self._prefixes))
        self.pointer = addressof(self._struct)

    @classmethod
    def of(cls, repeats: Sequence[Repeats] | None) -> "NativeRepeats | None":
        """None if no row bans repeats."""
        return None if repeats is None else cls(repeats)


class Choosing:
    """`ChooseCall` in calls.h, with memory for the chosen tokens, and their distribution if a row may reject."""

    def __init__(self, done: CpuPass, prefix: Prefix, plan: Plan):
        model = done.model
        self.width, self.lengths, self.vocabulary = done.width, plan.lengths, model.vocabulary
        own, (before, after, candidates) = numbered(prefix.symbols, model.vocabulary), successor_tables(model)
        self._rows = kernels().rows("ChooseRow", drafted=plan.lengths, empty=[not output for output in prefix.outputs])
        self.chosen = array("q", bytes(8 * done.rows * done.width))
        self.distribution, self._sampling, draws = None, None, prefix.draws()
        if draws is not None:
            if rejecting(draws):
                shape = done.rows, done.width, candidates
                self.distribution = Distribution(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.float32))
            self._sampling = NativeSampling(draws, self.distribution)
        self.call = kernels().structs["ChooseCall"](
            pad=own.pad, eos=own.eos, rows=start(self._rows), tokens=before, outs=after, candidates=candidates,
            token_ids=model.token_ids and start(model.token_ids), chosen=start(self.chosen),
            sampling=self._sampling and self._sampling.pointer,
        )  # fmt: skip

    def draft(self) -> Draft:
        """Each row's chosen tokens, up to its draft length."""
        flat, width, vocabulary = self.chosen.tolist(), self.width, self.vocabulary
        tokens = [flat[row * width : row * width + length] for row, length in enumerate(self.lengths)]
        if vocabulary is not None:
            tokens = [[vocabulary[index] for index in row] for row in tokens]
        return Draft(tokens, self.distribution)


class Judging:
    """`JudgeCall` in calls.h, with memory for the verdict on a batch of drafts."""

    def __init__(
        self, done: CpuPass, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None
    ):
        library, rows, width = kernels(), done.rows, done.width
        self.width = width
        self._rows = library.rows(
            "JudgeRow", drafted=map(len, draft.tokens), beta=[tolerance.beta for tolerance in tolerances],
            tau=[tolerance.tau for tolerance in tolerances], room=bounds.room, minimum=bounds.minimum,
        )  # fmt: skip
        self._tokens, self._branches = integers(*draft.tokens), bool(draft.parents)
        self._parents = integers(*draft.parents)
        self._banned, self._repeats = integers(bounds.constraints.banned), NativeRepeats.of(bounds.repeats)
        self._sampling = None if draws is None else NativeSampling(draws, draft.distribution)
        self._verdicts, self._scores = array("q", bytes(24 * rows)), array("f", bytes(4 * rows * width))
        self._paths = array("q", bytes(8 * rows * width if self._branches else 0))
        self.call = library.structs["JudgeCall"](
            eos=bounds.constraints.symbols.eos, banned_count=len(self._banned), banned=start(self._banned),
            rows=start(self._rows), tokens=start(self._tokens), parents=start(self._parents) if self._parents else None,
            sampling=self._sampling and self._sampling.pointer, repeats=self._repeats and self._repeats.pointer,
            verdicts=start(self._verdicts), scores=start(self._scores), paths=start(self._paths),
        )  # fmt: skip

    def verdict(self) -> Verdict:
        verdicts, scores, width = self._verdicts.tolist(), self._scores.tolist(), self.width
        accepted, own, cut = verdicts[::3], verdicts[1::3], verdicts[2::3]
        firsts = range(0, len(scores), width)
        parts = [scores[first : first + count + 1] for first, count in zip(firsts, accepted)]
        paths = (
            [self._paths[first : first + count].tolist() for first, count in zip(firsts, accepted)] if self._branches else None
        )
        return Verdict(accepted, own, parts, list(map(bool, cut)), paths)


def successor_tables(model: "CpuModel") -> tuple[int | None, int | None, int]:
    """The addresses of the successor network's tables, and how many candidates it chooses among."""
    successor, candidates = model.successor, min(CANDIDATES, model.stack.vocabulary)
    return (None, None, candidates) if successor is None else (address(successor.tokens), address(successor.out), candidates)
