"""The beam searches of a call of the kernels: their description, and what the call recorded. The steps are those of `search/`.

S rows of searches, live hypotheses by search.
"""

from array import array
from collections.abc import Iterator
from ctypes import Structure
from dataclasses import dataclass, field
from itertools import islice

from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.options import STOPPING, Beam
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.search.beam import Beams, Node, Search
from specdec_plugins.decoding.trees import depths, parents_of, path_to
from specdec_plugins.decoding.values import Draft, Verdict, accepted_first


@dataclass
class Group:
    """A search in a call: its rows, and its state after the steps read so far."""

    search: Search
    rows: list[int]  # best hypothesis first
    beams: Beams
    slots: list[int]
    origins: list[int] = field(init=False)  # the row that each live hypothesis had
    paths: list[list[int]] = field(default_factory=list)  # the nodes of its row's draft that each got in the last iteration
    steps: list[Step] = field(default_factory=list)  # of the best hypothesis, by iteration

    def __post_init__(self) -> None:
        self.origins = self.rows

    def follow(self, record: Iterator[int], scores: Iterator[float], draft: Draft | None) -> Step:
        """Take what an iteration chose, which read the ``draft`` of each row, if any: see `BeamSearch::advance` in search.h."""
        search, taken = self.search, next(record)
        for _ in range(taken):
            living, ending, over = islice(record, 3)
            live, parents = self._continued(living, record, scores)
            ended, _ = self._continued(max(0, ending), record, scores)
            if ending < 0:
                ended = [*self.beams.live]
            finished = self.beams.finished
            if ended:
                finished = search.kept([*finished, *((search.normalised(node), node) for node in ended)])
            self.beams = Beams(tuple(live), finished, tuple(parents), bool(over))
        ends, drafted = list(islice(record, 2 if self.beams.over else 2 * living)), list[int]()
        self.origins = [self.origins[row] for row in ends[::2]]
        if draft is not None:
            self.paths = [path_to(node, parents_of(draft, row)) for row, node in zip(self.origins, ends[1::2])]
            drafted = accepted_first(draft.tokens[self.origins[0]], self.paths[0])
        self.steps.append(Step(drafted, taken - 1, self.own(0)))
        return self.steps[-1]

    def own(self, number: int) -> int:
        """The last token of a live hypothesis; eos of a search that is over."""
        return self.search.eos if self.beams.over else self.beams.live[number].token

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

    def begin(self, state: SlottedState, prefix: Prefix, times: int, draft: Draft) -> int:
        """Describe the searches before a call of so many iterations, the first with a draft. Returns the most rows that they may
        have."""
        self.groups = [self._group(rows, state, prefix) for rows in prefix.searches()] if prefix.searching else []
        self.call.searches = len(self.groups)
        if not self.groups:
            return 0
        self._slots = integers(*(group.slots for group in self.groups))
        call, rows = self.call, len(self._slots)
        drafted = self.rows if any(draft.tokens) else ()
        call.steps = times + max((depth for row in drafted for depth in depths(parents_of(draft, row))), default=0)
        self._memory = [*self._described(state, prefix, draft), self._slots]
        call.rows, call.hypotheses, call.tokens, call.finished, call.divisors, call.slots = map(start, self._memory)
        numbers = call.steps * (4 * len(self.groups) + 6 * rows)
        self._record, self._scores = array("q", bytes(8 * numbers)), array("f", bytes(4 * numbers))
        call.record, call.scores = start(self._record), start(self._scores)
        return rows

    def _group(self, rows: list[int], state: SlottedState, prefix: Prefix) -> Group:
        """A search, with slots for as many hypotheses as may live."""
        search = prefix.search(rows[0])
        free = [state.targets.take() for _ in range(search.beam.size - len(rows))]
        return Group(search, rows, prefix.beams_of(rows[0]), [*(state.slots[row] for row in rows), *free])

    def _described(self, state: SlottedState, prefix: Prefix, draft: Draft) -> "tuple[array[int] | array[float], ...]":
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
        drafted = [len(draft.tokens[row]) for row in self.rows]
        hypotheses = library.rows("HypothesisRow", tokens=map(len, outputs), drafted=drafted, total=totals)
        finished = array("d", [score for state in states for score, _ in state.finished])
        divisors = array("d")
        for beam, each in zip(beams, states):
            first = each.live[0].length + 1
            divisors.extend(power(length, beam.length_penalty) for length in range(first, first + self.call.steps))
        return rows, hypotheses, integers(*outputs), finished, divisors

    def place(
        self, others: list[int], state: SlottedState, prefix: Prefix, taken: int, draft: Draft
    ) -> tuple[list[int] | None, list[int], list[list[Step]]]:
        """Take what was recorded of a call with that draft, and order the rows: the ``others`` first, then those of searches by
        rank. Rows fork and move.

        Returns each one's former row (None: nothing searches), the rows whose search is over, and for each of the iterations
        ``taken`` a step of each search that was not over."""
        if not self.groups:
            return None, [], []
        record, scores, drafted = iter(self._record), iter(self._scores), draft if any(draft.tokens) else None
        steps = [[group.follow(record, scores, drafted) for group in self.groups if not group.beams.over] for _ in range(taken)]
        slots, first, finished = self._slots.tolist(), 0, list[int]()
        order, placed = [*others], [state.slots[row] for row in others]
        numbers, groups = [prefix.numbers[row] for row in others], list[Group | None]([None] * len(others))
        used = [*placed, *slots]
        for group in self.groups:
            rows = len(group.origins)
            if group.beams.over:
                finished.append(len(order))
            order += group.origins
            numbers += range(rows)
            groups += [group] * rows
            placed += slots[first : first + rows]
            first += group.search.beam.size
        prefix.select(order)
        prefix.numbers, prefix.beams = numbers, [None if each is None else each.beams for each in groups]
        for output, passes, number, each in zip(prefix.outputs, prefix.steps, numbers, groups):
            if each is not None:
                output += [prefix.symbols.eos] if each.beams.over else each.beams.live[number].after(len(output))
                passes += each.steps
        state.moved(order, placed, used, [*(state.held[row] for row in others), *map(len, prefix.outputs[len(others) :])])
        return order, finished, steps

    @property
    def rows(self) -> list[int]:
        """Those that a call reads, in its order."""
        return [row for group in self.groups for row in group.rows]

    def verdict(self) -> Verdict:
        """On the drafts of a call of one iteration, by the rows that `place` has made."""
        paths = [path for group in self.groups for path in group.paths or [[]] * len(group.origins)]
        own = [group.own(number) for group in self.groups for number in range(len(group.origins))]
        return Verdict(list(map(len, paths)), own, [[0.0] * (len(path) + 1) for path in paths], [False] * len(paths), paths)


def stopping_of(beam: Beam) -> str:
    """How a search ends: the bound of a live hypothesis takes the longest length only where length raises scores."""
    return "false" if beam.early_stopping == "never" and beam.length_penalty <= 0 else beam.early_stopping
