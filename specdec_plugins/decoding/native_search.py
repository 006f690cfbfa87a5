"""Many iterations of a session's beam searches in one call of the CPU kernels, with the results of the steps in `search/`.

Requires a verifier on the kernels and a drafter that needs no feedback.
"""

from array import array
from collections.abc import Iterator, Sequence
from ctypes import byref
from dataclasses import dataclass, field
from itertools import islice

from specdec_plugins.decoding.backends.cpu.binding import integers, start
from specdec_plugins.decoding.backends.cpu.model import CpuModel
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.options import STOPPING, Beam
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Verifier
from specdec_plugins.decoding.search.beam import Beams, Node, Search
from specdec_plugins.decoding.values import Step
from specdec_plugins.decoding.verifier import ModelVerifier

# Bytes of decoder weights: where other rows take a call of their own, weights are read twice, and this many cost as much as
# Python's part of an iteration. 3 searches beside 3 rows, int8, Zen 4: 1.4 times as fast with 6 MB, 0.7 times with 52.
TWICE = 16 << 20


@dataclass
class Group:
    """A search in a call: its rows, and its state after the steps read so far."""

    search: Search
    rows: list[int]  # best hypothesis first
    beams: Beams
    slots: list[int]
    origins: list[int] = field(init=False)  # the row that each live hypothesis had

    def __post_init__(self) -> None:
        self.origins = self.rows

    def follow(self, record: Iterator[int], scores: Iterator[float]) -> Step:
        """Take what a step chose: see `BeamSearch::write` in search.h."""
        living, ending, over = islice(record, 3)
        live, parents = self._continued(living, record, scores)
        ended, _ = self._continued(max(0, ending), record, scores)
        if ending < 0:
            ended = [*self.beams.live]
        search, finished = self.search, self.beams.finished
        if ended:
            finished = search.kept([*finished, *((search.normalised(node), node) for node in ended)])
        self.beams = Beams(tuple(live), finished, tuple(parents), bool(over))
        self.origins = self.rows[:1] if over else [self.origins[parent] for parent in parents]
        return Step([], 0, search.eos if over else live[0].token)

    def _continued(self, count: int, record: Iterator[int], scores: Iterator[float]) -> tuple[list[Node], list[int]]:
        """Hypotheses that are one token longer, and the ranks of those that they continue."""
        parents, live = list(islice(record, count)), self.beams.live
        grown = zip(parents, islice(record, count), islice(scores, count))
        return [live[parent].then(token, score) for parent, token, score in grown], parents


@dataclass(frozen=True)
class Searched:
    """Iterations of searches: their number, a step for each search in each, the rows whose search is over, the former row of
    each row, and the seconds that they took."""

    times: int
    steps: list[Step]
    finished: list[int]
    order: list[int]
    seconds: float


class NativeSearch:
    """For one session."""

    def __init__(self, verifier: CpuModel, constraints: Constraints):
        self.verifier, self.context = verifier, constraints.context
        symbols, self._banned = constraints.symbols, integers(constraints.banned)
        self._record, self._scores = array("q"), array("f")
        linears = [*verifier.stack.linears, verifier.stack.projection]
        self.joins = sum(linear.weight_bytes for linear in linears if linear) <= TWICE  # batches with other rows
        self._call = kernels().structs["SearchCall"](
            verifier=verifier.stack.pointer, start=symbols.start, eos=symbols.eos, unk=symbols.mask,
            banned_count=len(self._banned), banned=start(self._banned), ends=constraints.rules.ends, context=len(self.context),
        )  # fmt: skip

    def __call__(self, verifying: SlottedState, prefix: Prefix, times: int) -> Searched:
        """Run up to ``times`` iterations; stop early when a quarter of the searches are over, which admission waits for. Rows of
        the state and the prefix fork and move. Rows that do not search come first, and stay."""
        verifying.encode()
        groups = [self._group(rows, verifying, prefix) for rows in prefix.searches()]
        call, cache, longest = self._call, verifying.cache, prefix.longest
        cache.reserve(verifying.targets.bound, longest + 1)
        call.caches = verifying.caches()
        slots = integers(*(group.slots for group in groups))
        call.logits = self.verifier.logits.view(len(slots), 1, self.verifier.stack.vocabulary)[1]
        call.searches, call.steps = len(groups), min(times, cache.capacity)
        rows, hypotheses, tokens, finished, divisors = self._described(groups, verifying, prefix)
        self._reserve(call.steps * (3 * len(groups) + 4 * len(slots)))
        call.rows, call.hypotheses, call.tokens = start(rows), start(hypotheses), start(tokens)
        call.finished, call.divisors, call.slots = start(finished), start(divisors), start(slots)
        engine = self.verifier.engine
        engine.library.specdec_search(engine.pointer, byref(call))
        record, scores = iter(self._record), iter(self._scores)
        steps = [group.follow(record, scores) for _ in range(call.taken) for group in groups if not group.beams.over]
        order, over = self._place(groups, verifying, prefix, slots.tolist())
        return Searched(call.taken, steps, over, order, call.seconds)

    def _group(self, rows: list[int], verifying: SlottedState, prefix: Prefix) -> Group:
        """A search, with slots for as many hypotheses as may live."""
        search = prefix.search(rows[0])
        free = [verifying.targets.take() for _ in range(search.beam.size - len(rows))]
        return Group(search, rows, prefix.beams_of(rows[0]), [*(verifying.slots[row] for row in rows), *free])

    def _described(self, groups: Sequence[Group], verifying: SlottedState, prefix: Prefix) -> tuple[array, ...]:
        """Searches, their live hypotheses, these ones' tokens, the scores of finished ones, and divisors, as in `SearchCall`."""
        library, sources = kernels(), verifying.sources
        firsts, beams = [group.rows[0] for group in groups], [group.search.beam for group in groups]
        requests, states = [prefix.requests[row] for row in firsts], [group.beams for group in groups]
        rows = library.rows(
            "SearchRow",
            size=[beam.size for beam in beams],
            huggingface=[beam.rules == "huggingface" for beam in beams],
            stopping=[STOPPING.index(stopping_of(beam)) for beam in beams],
            renormalise=[beam.renormalize for beam in beams],
            limit=[group.search.limit for group in groups],
            minimum=[request.min_length for request in requests],
            repeats=[request.no_repeat for request in requests],
            source_slot=[sources.slots[row] for row in firsts],
            source_length=[sources.lengths[row] for row in firsts],
            living=[len(state.live) for state in states],
            finished=[len(state.finished) for state in states],
            unk_penalty=[beam.unk_penalty for beam in beams],
            longest=[power(group.search.limit + group.search.ends, beam.length_penalty) for group, beam in zip(groups, beams)],
        )
        outputs = [[*self.context, *prefix.outputs[row]] for group in groups for row in group.rows]
        totals = [node.total for state in states for node in state.live]
        hypotheses = library.rows("HypothesisRow", tokens=map(len, outputs), total=totals)
        finished = array("d", [score for state in states for score, _ in state.finished])
        divisors = array("d")
        for beam, state in zip(beams, states):
            divisors.extend(power(state.live[0].length + step, beam.length_penalty) for step in range(1, self._call.steps + 1))
        return rows, hypotheses, integers(*outputs), finished, divisors

    def _reserve(self, numbers: int) -> None:
        """Room for what the call writes."""
        if len(self._record) < numbers:
            self._record, self._scores = array("q", bytes(8 * numbers)), array("f", bytes(4 * numbers))
            self._call.record, self._call.scores = start(self._record), start(self._scores)

    def _place(
        self, groups: Sequence[Group], verifying: SlottedState, prefix: Prefix, slots: list[int]
    ) -> tuple[list[int], list[int]]:
        """Order the rows by search and rank. Returns each one's former row, and the rows whose search is over."""
        others, first, finished = len(prefix) - prefix.searching, 0, list[int]()
        order, placed = [*range(others)], verifying.slots[:others]
        numbers, beams = prefix.numbers[:others], prefix.beams[:others]
        for group in groups:
            rows = len(group.origins)
            if group.beams.over:
                finished.append(len(order))
            order += group.origins
            numbers += range(rows)
            beams += [group.beams] * rows
            placed += slots[first : first + rows]
            first += group.search.beam.size
        prefix.select(order)
        prefix.numbers, prefix.beams = numbers, beams
        for output, passes, number, state in zip(prefix.outputs, prefix.steps, numbers, beams):
            if state is not None:
                output += [prefix.symbols.eos] if state.over else state.live[number].after(len(output))
                passes += [Step([], 0, prefix.symbols.eos)] * self._call.taken
        held = verifying.held[:others] + [len(output) for output in prefix.outputs[others:]]
        verifying.moved(order, placed, [*verifying.slots[:others], *slots], held)
        return order, finished


def stopping_of(beam: Beam) -> str:
    """How a search ends: the bound of a live hypothesis takes the longest length only where length raises scores."""
    return "false" if beam.early_stopping == "never" and beam.length_penalty <= 0 else beam.early_stopping


def native_search(drafter: Drafter, verifier: Verifier, constraints: Constraints) -> NativeSearch | None:
    """The native searches of these roles; None if they cannot run natively."""
    if type(verifier) is not ModelVerifier or type(verifier.model) is not CpuModel or drafter.traits.follows:
        return None
    return NativeSearch(verifier.model, constraints)
