"""The beam searches of a call of the kernels: their description, and what the call recorded. The steps are those of `search/`."""

from array import array
from collections.abc import Iterator
from ctypes import Structure
from dataclasses import dataclass, field
from itertools import islice

from specdec_plugins.decoding.backends.cpu.binding import integers, start
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.options import STOPPING, Beam
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.search.beam import Beams, Node, Search


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


class Searches:
    """Fills in ``call``, a `SearchCall` in csrc/calls.h, for one session."""

    def __init__(self, call: Structure, constraints: Constraints):
        self.call, self.context = call, constraints.context
        call.start, call.unk = constraints.symbols.start, constraints.symbols.mask
        call.ends, call.context = constraints.rules.ends, len(self.context)
        self.groups: list[Group] = []
        self._memory: list[array[int] | array[float]] = []  # that a call points to

    def begin(self, state: SlottedState, prefix: Prefix, steps: int) -> int:
        """Describe the searches before a call of so many steps. Returns the most rows that they may have."""
        self.groups = [self._group(rows, state, prefix) for rows in prefix.searches()] if prefix.searching else []
        self.call.searches = len(self.groups)
        if not self.groups:
            return 0
        self._slots = integers(*(group.slots for group in self.groups))
        self._memory = [*self._described(state, prefix, steps), self._slots]
        call, rows = self.call, len(self._slots)
        call.rows, call.hypotheses, call.tokens, call.finished, call.divisors, call.slots = map(start, self._memory)
        numbers = steps * (3 * len(self.groups) + 4 * rows)
        self._record, self._scores = array("q", bytes(8 * numbers)), array("f", bytes(4 * numbers))
        call.record, call.scores = start(self._record), start(self._scores)
        return rows

    def _group(self, rows: list[int], state: SlottedState, prefix: Prefix) -> Group:
        """A search, with slots for as many hypotheses as may live."""
        search = prefix.search(rows[0])
        free = [state.targets.take() for _ in range(search.beam.size - len(rows))]
        return Group(search, rows, prefix.beams_of(rows[0]), [*(state.slots[row] for row in rows), *free])

    def _described(self, state: SlottedState, prefix: Prefix, steps: int) -> "tuple[array[int] | array[float], ...]":
        """Searches, their live hypotheses, these ones' tokens, the scores of finished ones, and divisors, as in `SearchCall`."""
        library, sources, groups = kernels(), state.sources, self.groups
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
        for beam, each in zip(beams, states):
            divisors.extend(power(each.live[0].length + step, beam.length_penalty) for step in range(1, steps + 1))
        return rows, hypotheses, integers(*outputs), finished, divisors

    def place(
        self, others: list[int], state: SlottedState, prefix: Prefix, taken: int
    ) -> tuple[list[int] | None, list[int], list[list[Step]]]:
        """Take the recorded steps, and order the rows: the ``others`` first, then those of searches by rank. Rows fork and move.

        Returns each one's former row (None: nothing searches), the rows whose search is over, and for each of the iterations
        ``taken`` a step of each search that was not over."""
        if not self.groups:
            return None, [], []
        record, scores = iter(self._record), iter(self._scores)
        steps = [[group.follow(record, scores) for group in self.groups if not group.beams.over] for _ in range(taken)]
        slots, first, finished = self._slots.tolist(), 0, list[int]()
        order, placed = [*others], [state.slots[row] for row in others]
        numbers, beams = [prefix.numbers[row] for row in others], list[Beams | None]([None] * len(others))
        used = [*placed, *slots]
        for group in self.groups:
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
        for output, passes, number, each in zip(prefix.outputs, prefix.steps, numbers, beams):
            if each is not None:
                output += [prefix.symbols.eos] if each.over else each.live[number].after(len(output))
                passes += [Step([], 0, prefix.symbols.eos)] * taken
        state.moved(order, placed, used, [*(state.held[row] for row in others), *map(len, prefix.outputs[len(others) :])])
        return order, finished, steps


def stopping_of(beam: Beam) -> str:
    """How a search ends: the bound of a live hypothesis takes the longest length only where length raises scores."""
    return "false" if beam.early_stopping == "never" and beam.length_penalty <= 0 else beam.early_stopping
