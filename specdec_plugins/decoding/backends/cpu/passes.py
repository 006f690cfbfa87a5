"""The kernels' passes: one native call each, which also chooses or judges where it can.

B rows, Q tokens read, W of them with a prediction, S source positions, C candidates, D width, V vocabulary.
"""

from array import array
from collections.abc import Sequence
from ctypes import byref
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.candidates import CANDIDATES, branch, candidates_of, numbered
from specdec_plugins.decoding.backends.cpu.binding import address, floats, integers, kernels, start, starts
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.reading import NOT_WANTED, Reading
from specdec_plugins.decoding.constraints import Bounds, Repeats
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.trees import TreeDraft, by_row, groves_of, nodes_of, tokens_to, within_rows
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, Verdict, rejecting

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
        numbers, gates = integers(*choosing.options), self.results.get("gates")
        engine.library.specdec_choose(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), *choosing.symbols, start(numbers),
            address(gates), 0 if gates is None else gates.size(2), *choosing.arguments(),
        )  # fmt: skip
        return choosing.draft()

    def branch(self, prefix: Prefix, plan: Plan) -> Draft:
        model, logits, gates, tree = self.model, self.logits(), self.results.get("gates"), plan.tree
        if prefix.draws() is not None or tree is None or tree.shape:
            return branch(candidates_of(logits, gates, model.successor, model.vocabulary, prefix), prefix, plan)
        own, groves = numbered(prefix.symbols, model.vocabulary), groves_of(prefix, tree)
        most = max(max(nodes, width * self.width) for nodes, width, _ in groves)
        heads = ((nodes, width, len(rows), *rows) for nodes, width, rows in groves)
        numbers = integers(plan.lengths, [not output for output in prefix.outputs], [len(groves)], *heads)
        totals = array("d", bytes(8 * self.rows))
        for _, width, rows in groves:
            for row, node in zip(rows, prefix.beams_of(rows[0]).live if width else ()):
                totals[row] = node.total
        grown, (before, after, candidates) = array("q", bytes(8 * self.rows * (2 * most + 1))), successor_tables(model)
        model.engine.library.specdec_branch(
            model.engine.pointer, address(logits), self.rows, self.width, logits.size(2), own.pad, own.eos, start(numbers),
            address(gates), 0 if gates is None else gates.size(2), before, after, candidates,
            model.token_ids and start(model.token_ids), start(totals), most, start(grown),
        )  # fmt: skip
        flat, parents = grown.tolist(), self.rows * most  # from a row's tokens to their parents
        firsts = range(self.rows, self.rows * (most + 1), most)
        ends = [first + count for first, count in zip(firsts, flat)]
        tokens = [flat[first:end] for first, end in zip(firsts, ends)]
        return TreeDraft(tokens, [flat[first + parents : end + parents] for first, end in zip(firsts, ends)])

    def scores(self, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        logits, engine, scores = self.logits(), self.model.engine, array("f", bytes(4 * self.rows * self.width))
        numbers = integers(starts(tokens), *tokens)
        engine.library.specdec_score(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), start(numbers), start(scores)
        )
        return [scores[row * self.width :][: len(each)].tolist() for row, each in enumerate(tokens)]

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        judging = Judging(self.rows, self.width, draft, bounds, tolerances, draws)
        numbers = integers(starts(draft.tokens), *judging.options, *draft.tokens, *draft.parents)
        logits, engine = self.logits(), self.model.engine
        call = engine.pointer, address(logits), self.rows, self.width, logits.size(2), start(numbers), *judging.arguments()
        if not draft.parents:
            engine.library.specdec_judge(*call)
            return judging.verdict()
        paths = array("q", bytes(8 * self.rows * self.width))
        engine.library.specdec_judge_trees(*call, start(paths))
        verdict = judging.verdict()
        firsts = range(0, self.rows * self.width, self.width)
        return verdict._replace(paths=[paths[first : first + n].tolist() for first, n in zip(firsts, verdict.accepted)])

    def rank(self, draft: Draft, bounds: Bounds, beams: Sequence[Beam | None]) -> list[list[Ranked]]:
        logits, engine, symbols = self.logits(), self.model.engine, bounds.constraints.symbols
        nodes = nodes_of(draft, [row for row, beam in enumerate(beams) if beam])
        own, size = bounds.after(tokens_to(draft, nodes)), self.rows * self.width
        options, penalty = [(0, 0, 0, False)] * size, array("d", bytes(8 * size))  # no candidates where nothing was read
        repeats = [Repeats(0, ())] * size
        places = [row * self.width + node + 1 for row, node in nodes]
        for number, (place, (row, _)) in enumerate(zip(places, nodes)):
            beam = beams[row]
            assert beam is not None
            options[place] = beam.candidates, own.room[number], own.minimum[number], beam.renormalize
            penalty[place] = beam.unk_penalty
            if own.repeats:
                repeats[place] = own.repeats[number]
        few, width = [each[0] for each in options], max(beam.candidates for beam in beams if beam)
        numbers, banned = integers(*zip(*options)), integers(bounds.constraints.banned)
        bans = repeat_numbers(bounds._replace(repeats=repeats if own.repeats else None))
        tokens, scores = array("q", bytes(8 * size * width)), array("f", bytes(4 * size * width))
        engine.library.specdec_rank(
            engine.pointer, address(logits), size, logits.size(2), logits.size(2), start(numbers), symbols.mask, start(penalty),
            symbols.eos, len(banned), start(banned), bans and start(bans), width, start(tokens), start(scores),
        )  # fmt: skip
        found, values = tokens.tolist(), scores.tolist()
        ranges = (slice(place * width, place * width + few[place]) for place in places)
        return by_row(nodes, [Ranked(found[each], values[each]) for each in ranges], self.rows)


class CausalPass(CpuPass):
    """Each row's tokens, read after those in its cache; a tree's tokens are the last ones."""

    def __init__(self, model: "CpuModel", state: SlottedState, reading: Reading):
        sizes, firsts, want = list(map(len, reading.tokens)), reading.firsts, reading.want
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
        self.visible = None
        if reading.visible is not None:
            sinks, window, listed = reading.visible
            self.visible = byref(kernels().structs["Visible"](sinks, window, listed.size(1), address(listed)))
        # Calls that also choose or judge return no more than that.
        self.alone = want.features or want.attention or not want.logits or reading.parents is not None
        state.held = list(map(int.__add__, reading.positions, sizes))
        state.cache.reserve(state.targets.bound, max(state.held))

    def _call(self, numbers: array) -> tuple:
        """The first arguments of each call: engine, stack, shape, numbers, caches."""
        stack, state = self.model.stack, self.state
        shape = self.rows, self.width
        return stack.engine.pointer, stack.pointer, *shape, start(numbers), *state.cache.layout, *state.sources.cache.layout

    def _allocate(self) -> tuple[int | None, int | None, int | None]:
        """Allocate the results; returns the addresses of logits, gates and features."""
        model, shape = self.model, (self.rows, self.width)
        if not self.reading.want.logits:
            return None, None, None
        self.results["logits"], logits = model.logits.view(*shape, model.stack.vocabulary)
        gates = features = None
        if model.stack.gate:
            self.results["gates"], gates = model.gates.view(*shape, model.stack.gate.outputs)
        if self.reading.want.features:
            self.results["features"], features = model.features.view(*shape, model.width)
        return logits, gates, features

    def _allocate_attention(self) -> tuple[int | None, int, int, int]:
        """Allocate the attention, if wanted; returns its address, positions per result, layer and heads."""
        heads = self.reading.want.heads
        which = (-1, -1) if heads is None else (heads.layer, sum(1 << head for head in heads.heads))
        if not self.reading.want.attention or self.visible is not None:
            return None, 0, *which
        longest = self.state.sources.longest
        size = -(-longest // BLOCK) * BLOCK
        attention, where = self.model.attention.view(self.rows, self.width, size)
        self.results["attention"] = attention[..., :longest]
        return where, size, *which

    def _numbers(self, *options: Sequence[int]) -> array:
        """What each call reads of the rows, then ``options``, then the tokens."""
        tokens, positions, firsts = self.reading[:3]
        return integers(starts(tokens), positions, firsts or [0] * self.rows, *self.state.placed(), *options, *tokens)

    def run(self) -> None:
        numbers, parents, library = self._numbers(), self.reading.parents, self.model.stack.library
        if parents is None:
            call = *self._call(numbers), address(self.embeddings), self.visible
            library.specdec_read(*call, *self._allocate(), *self._allocate_attention())
        else:
            numbers.extend(chain.from_iterable(within_rows(self.reading.tokens, parents)))
            library.specdec_read_tree(*self._call(numbers), *self._allocate(), *self._allocate_attention())

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        """In one call with the pass, if that has not run."""
        if self.results or self.alone:
            return super().choose(prefix, plan)
        choosing = Choosing(self, prefix, plan)
        numbers, (logits, gates, _) = self._numbers(*choosing.options), self._allocate()
        self.model.stack.library.specdec_propose(
            *self._call(numbers), address(self.embeddings), self.visible, logits, gates, *choosing.symbols, *choosing.arguments()
        )
        return choosing.draft()

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        """In one call with the pass, if that has not run and has read just each row's last token and its draft."""
        if self.results or self.reading.firsts is not None or self.alone:
            return super().judge(draft, bounds, tolerances, draws)
        judging, tokens = Judging(self.rows, self.width, draft, bounds, tolerances, draws), self.reading.tokens
        numbers = integers(starts(tokens), self.reading.positions, *self.state.placed(), *judging.options, *tokens)
        logits, _, _ = self._allocate()
        self.model.stack.library.specdec_verify(*self._call(numbers), logits, *judging.arguments())
        return judging.verdict()


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
        numbers = integers(starts(outputs), self.lengths, *state.placed(), *outputs)
        model.stack.library.specdec_draft(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), self.prefix.symbols.mask,
            scratch_address, scratch.stride(0), *state.sources.cache.layout, copied, logits,
        )  # fmt: skip


class NativeSampling:
    """`Sampling` in sample.h and the memory that it points to, valid as long as this."""

    def __init__(self, draws: Sequence[Draws | None], token_ids: array | None = None, origins: Distribution | None = None):
        """``draws`` of each row; ``token_ids`` of a drafter's logits; ``origins`` of drafted tokens, to be read or written."""
        options, seeds, top_k, rejects, positions, prefixes = [], [], [], [], [], []
        for draw in draws:
            sampling, seed, prefix = draw or (None, 0, ())
            options += [sampling.temperature, sampling.top_p, sampling.repetition_penalty] if sampling else [0.0, 1.0, 1.0]
            seeds.append(seed)
            top_k.append(sampling.top_k if sampling else 0)
            rejects.append(sampling is not None and sampling.rule == "rejection")
            positions.append(len(prefix))
            prefixes.append(prefix if sampling and sampling.repetition_penalty != 1 else ())  # only the penalty needs it
        self._options = array("d", options)
        self._numbers = integers(seeds, top_k, rejects, positions, starts(prefixes), *prefixes)
        self._token_ids, self._origins = token_ids, origins
        self.struct = kernels().structs["Sampling"](
            options=start(self._options), numbers=start(self._numbers), token_ids=token_ids and start(token_ids)
        )
        if origins is not None:
            self._origins = tokens, probabilities = Distribution(origins.tokens.contiguous(), floats(origins.probabilities))
            self.struct.tokens, self.struct.probabilities = address(tokens), address(probabilities)
            self.struct.width, self.struct.candidates = tokens.shape[1:]
        self.pointer = byref(self.struct)


class Choosing:
    """Memory for the chosen tokens, their distribution if a row may reject."""

    def __init__(self, done: CpuPass, prefix: Prefix, plan: Plan):
        self.model, self.width, self.lengths = done.model, done.width, plan.lengths
        own = numbered(prefix.symbols, done.model.vocabulary)
        self.symbols = own.pad, own.eos
        self.options = plan.lengths, [not output for output in prefix.outputs]
        self.chosen = array("q", bytes(8 * done.rows * done.width))
        self.distribution, self.sampling, draws = None, None, prefix.draws()
        if draws is None:
            return
        if rejecting(draws):
            shape = done.rows, done.width, successor_tables(done.model)[2]
            self.distribution = Distribution(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.float32))
        self.sampling = NativeSampling(draws, done.model.token_ids, self.distribution)

    def arguments(self) -> tuple:
        return *successor_tables(self.model), start(self.chosen), self.sampling and self.sampling.pointer

    def draft(self) -> Draft:
        """Each row's chosen tokens, up to its draft length."""
        flat, width, vocabulary = self.chosen.tolist(), self.width, self.model.vocabulary
        tokens = [flat[row * width : row * width + length] for row, length in enumerate(self.lengths)]
        if vocabulary is not None:
            tokens = [[vocabulary[index] for index in row] for row in tokens]
        return Draft(tokens, self.distribution)


class Judging:
    """Memory for the verdict on a batch of drafts."""

    def __init__(
        self, rows: int, width: int, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance],
        draws: Sequence[Draws | None] | None,
    ):  # fmt: skip
        self.rows, self.width, self.eos = rows, width, bounds.constraints.symbols.eos
        self.options = [tolerance.beta for tolerance in tolerances], bounds.room, bounds.minimum
        self.banned, self.repeats = integers(bounds.constraints.banned), repeat_numbers(bounds)
        self.sampling = None if draws is None else NativeSampling(draws, origins=draft.distribution)
        self.tau = array("d", [tolerance.tau for tolerance in tolerances])
        self.judged, self.scores = array("q", bytes(24 * rows)), array("f", bytes(4 * rows * width))

    def arguments(self) -> tuple:
        memory = self.banned, self.tau, self.judged, self.scores
        sampling, repeats = self.sampling and self.sampling.pointer, self.repeats and start(self.repeats)
        return self.eos, len(self.banned), *map(start, memory), sampling, repeats

    def verdict(self) -> Verdict:
        rows, width = self.rows, self.width
        judged, scores = self.judged.tolist(), self.scores.tolist()
        counts = judged[:rows]
        parts = [scores[row * width : row * width + count + 1] for row, count in enumerate(counts)]
        return Verdict(counts, judged[rows : 2 * rows], parts, list(map(bool, judged[2 * rows :])))


def repeat_numbers(bounds: Bounds) -> array | None:
    """The bans on repeated n-grams, as `take` in judge.h reads them; None if no row has one."""
    if bounds.repeats is None:
        return None
    sizes, prefixes = zip(*bounds.repeats)
    return integers(sizes, starts(prefixes), *prefixes)


def successor_tables(model: "CpuModel") -> tuple[int | None, int | None, int]:
    """The addresses of the successor network's tables, and how many candidates it chooses among."""
    successor, candidates = model.successor, min(CANDIDATES, model.stack.vocabulary)
    return (None, None, candidates) if successor is None else (address(successor.tokens), address(successor.out), candidates)
