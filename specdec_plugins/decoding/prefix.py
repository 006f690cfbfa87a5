"""The committed tokens of the rows in flight."""

from collections.abc import Sequence
from copy import copy
from itertools import accumulate, chain, pairwise

from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.requests import Commit, Hypothesis, Request, Step
from specdec_plugins.decoding.search import begin
from specdec_plugins.decoding.search.beam import Beams, Search
from specdec_plugins.decoding.values import Draft, Draws, Iterations

HISTORIES = "outputs", "scores", "steps"  # lists that grow with each row


class Prefix:
    """The rows of the batch. A request's group joins by `admit`; `select` moves, forks and drops rows.

    Row b is output ``numbers[b]`` of ``requests[b]``, or live hypothesis ``numbers[b]`` of its beam search, best first, and
    ``outputs[b]`` its y1 .. yn.
    """

    def __init__(self, constraints: Constraints | None = None, device: str = "cpu"):
        self.constraints = constraints or Constraints()
        self.symbols = self.constraints.symbols
        self.device = device
        self.requests: list[Request] = []
        self.numbers: list[int] = []
        self.outputs: list[list[int]] = []
        self.scores: list[list[float]] = []
        self.steps: list[list[Step]] = []
        self.cut: list[bool] = []
        self.prefilled: list[int] = []  # each row's number of forced tokens
        self.errors: list[Exception | None] = []  # that end each row's request
        self.beams: list[Beams | None] = []  # the state of each row's search, from its first step on
        self.reported: list[int] = []  # how many of each row's tokens commits have had
        self.searching = 0  # the number of rows that belong to beam searches

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def longest(self) -> int:
        """The length of the longest output."""
        return max(map(len, self.outputs), default=0)

    @property
    def last(self) -> list[int]:
        """Each row's last token; the start token before any."""
        start = self.symbols.start
        return [output[-1] if output else start for output in self.outputs]

    @property
    def room(self) -> list[int]:
        """Tokens that each row may still commit before eos."""
        return [request.limit - len(output) for request, output in zip(self.requests, self.outputs)]

    def bounds(self) -> Bounds:
        """Constraints on each row's next tokens."""
        sizes = list(map(len, self.outputs))
        minimum = [max(0, request.min_length - size) for request, size in zip(self.requests, sizes)]
        repeats = None
        if any(request.no_repeat for request in self.requests):
            before = self.constraints.context
            # An n-gram longer than the output never recurs; PyTorch's memory for the ban grows with n.
            bans = [request.no_repeat * (request.no_repeat <= len(before) + request.limit) for request in self.requests]
            repeats = [Repeats(size, [*before, *output] if size else ()) for size, output in zip(bans, self.outputs)]
        return Bounds(self.constraints, self.room, minimum, repeats)

    def draws(self) -> list[Draws | None] | None:
        """What each row's next samples depend on, None for greedy rows; None if all are greedy."""
        if all(request.sampling is None for request in self.requests):
            return None
        return [
            Draws(request.sampling, request.seeds[number], output) if request.sampling else None
            for request, number, output in zip(self.requests, self.numbers, self.outputs)
        ]

    def scored(self) -> list[bool]:
        """The rows whose scores the acceptance rule computes; a search has its own."""
        return [request.scores and request.beam is None for request in self.requests]

    def admit(self, requests: Sequence[Request]) -> None:
        """Append the groups of some requests, with nothing committed."""
        for request in requests:
            rows = request.first_rows
            self.requests += [request] * rows
            self.numbers += range(rows)
        fresh = len(self.requests) - len(self.outputs)
        for name in HISTORIES:
            getattr(self, name).extend([] for _ in range(fresh))
        self.cut += [False] * fresh
        self.prefilled += [0] * fresh
        self.errors += [None] * fresh
        self.beams += [None] * fresh
        self.reported += [0] * fresh
        self._changed()

    def _changed(self) -> None:
        """Update what depends on which rows there are."""
        self.searching = len(self.requests) - [request.beam for request in self.requests].count(None)

    def select(self, order: list[int]) -> None:
        """Make row ``order[i]`` the new row i. Rows not named leave; a row named twice is forked."""
        forked = len(set(order)) < len(order)
        for name in (*HISTORIES, "requests", "numbers", "cut", "prefilled", "errors", "beams", "reported"):
            values = [*map(getattr(self, name).__getitem__, order)]
            setattr(self, name, [*map(list.copy, values)] if forked and name in HISTORIES else values)
        self._changed()

    @property
    def failed(self) -> list[int]:
        return [row for row, error in enumerate(self.errors) if error is not None]

    def fail(self, row: int, error: Exception) -> None:
        """Mark the request of a row, with all its rows, as ended by an error."""
        for each in self.group(self.requests[row].index):
            self.errors[each] = error

    def group(self, index: int) -> list[int]:
        """The rows of the request ``index``."""
        return [row for row, request in enumerate(self.requests) if request.index == index]

    def ahead(self, drafted: Sequence[Sequence[int]]) -> "Prefix":
        """A read-only copy with drafted tokens appended."""
        later = copy(self)
        later.outputs = [[*output, *tokens] for output, tokens in zip(self.outputs, drafted)]
        return later

    def clip(self, draft: Draft, lengths: Sequence[int]) -> Draft:
        """Truncate a draft after eos, at the length limit, and at ``lengths[b]`` tokens of row b."""
        return draft.clip(list(map(min, self.room, lengths)), self.symbols.eos)

    def unread(self, most: int) -> list[tuple[int, ...]]:
        """The next forced tokens that each row still has to read, up to its limit."""
        model, rows = self.constraints.forced, zip(self.requests, self.outputs)
        if not model and not any(request.forced for request in self.requests):  # as mostly
            return []
        return [(*model, *request.forced)[len(output) : min(request.limit, len(output) + most)] for request, output in rows]

    def prefill(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        """Append forced tokens, which belong to no step."""
        for row, (forced, own) in enumerate(zip(tokens, scores)):
            self.outputs[row] += forced
            self.scores[row] += own
            self.prefilled[row] += len(forced)

    def some(self, rows: Sequence[int]) -> "Prefix":
        """A read-only copy with some rows only."""
        some = copy(self)
        for name in ("requests", "numbers", "outputs"):
            setattr(some, name, [getattr(self, name)[row] for row in rows])
        return some

    def commit(self, done: Iterations, rows: int | None = None) -> list[int]:
        """Append accepted tokens and the verifier's own to each row, or to the first ``rows``. Returns the rows that the last
        iteration finished."""
        eos, rows, finished = self.symbols.eos, len(self.outputs) if rows is None else rows, []
        for row, output in enumerate(self.outputs[:rows]):
            steps = done.steps[row::rows]
            for drafted, accepted, own in steps:
                if accepted:
                    output += drafted[:accepted]
                if own is not None:
                    output.append(own)
            self.scores[row] += chain.from_iterable(done.scores[row::rows])
            self.steps[row] += steps
            if output and output[-1] == eos:
                finished.append(row)
                self.cut[row] = bool(own is not None and done.cut[row - rows])
            elif own is None and (not accepted or len(output) >= self.requests[row].limit):  # unverified, up to its limit
                finished.append(row)
                self.cut[row] = True
        return finished

    def hypothesis(self, row: int) -> Hypothesis:
        """A row's output so far. One that stops at the limit has no score for eos, unless the model's rules write it."""
        request, output, scores = self.requests[row], self.outputs[row], self.scores[row]
        return Hypothesis(
            request.index,
            output[:-1] if output[-1:] == [self.symbols.eos] else output,
            (scores if self.constraints.rules.ends else scores[: request.limit]) if request.scores else None,
            self.steps[row],
            self.cut[row],
            self.numbers[row],
            self.prefilled[row],
            self.errors[row],
        )

    def hypotheses(self, row: int) -> list[Hypothesis]:
        """The outputs of a row: one. A search's outputs, best first, are those of its first row."""
        request = self.requests[row]
        if request.beam is None:
            return [self.hypothesis(row)]
        if self.numbers[row]:
            return []
        beams, search, found = self.beams_of(row), self.search(row), list[Hypothesis]()
        live = [] if beams.over else [(search.normalised(node), node) for node in beams.live]
        for score, node in [*beams.best(), *live][: request.beam.nbest]:
            path, prefilled = node.path(), self.prefilled[row]
            tokens, scores = [each.token for each in path], [each.score for each in path]
            steps = self._passes(row, tokens[prefilled:])
            if tokens[-1:] == [self.symbols.eos]:
                tokens.pop()
            cut = beams.over and len(tokens) >= request.limit
            found.append(Hypothesis(request.index, tokens, scores, steps, cut, len(found), prefilled, self.errors[row], score))
        return found

    def commits(self, finished: Sequence[int], partial: bool = True) -> list[Commit]:
        """What was committed to each output since it was last asked for, with ``finished`` rows' outputs; without ``partial``,
        only to these.

        A search commits what all its hypotheses begin with to its first output; further ones come whole at its end.
        """
        commits = []
        for row in range(len(self)) if partial else finished:
            request = self.requests[row]
            if row in finished:
                for output in self.hypotheses(row):
                    size = self.reported[row] if request.beam is None or not output.output else 0
                    new = output.tokens[size:], (output.token_scores or [])[size:]
                    commits.append(Commit(request.index, output.output, *new, output, output.steps))
                continue
            size, tokens, scores, steps = self.reported[row], self.outputs[row], self.scores[row], self.steps[row]
            if request.beam is not None:
                beams, steps = self.beams_of(row), []
                path = beams.live[0].path()[: beams.shared]
                tokens, scores = [node.token for node in path], [node.score for node in path]
            self.reported[row] = len(tokens)
            if request.beam is None or not self.numbers[row]:
                commits.append(Commit(request.index, self.numbers[row], tokens[size:], scores[size:], steps=steps))
        return commits

    # ---- beam search

    @property
    def reserved(self) -> int:
        """The rows in use or kept free for searches in flight."""
        searches = [self.requests[rows[0]].rows for rows in self.searches()] if self.searching else []
        return len(self.requests) - self.searching + sum(searches)

    def searches(self) -> list[list[int]]:
        """The rows of each search, in the order of its live hypotheses."""
        groups: dict[int, list[int]] = {}
        for row, request in enumerate(self.requests):
            if request.beam is not None:
                groups.setdefault(request.index, []).append(row)
        return [sorted(rows, key=self.numbers.__getitem__) for rows in groups.values()]

    def search(self, row: int) -> Search:
        """The constants of a row's search."""
        request = self.requests[row]
        assert request.beam is not None
        return Search(request.beam, self.symbols.eos, request.limit, self.constraints.rules.ends)

    def beams_of(self, row: int) -> Beams:
        """The state of a row's search."""
        return self.beams[row] or begin(self.search(row), self.outputs[row], self.scores[row])

    def _passes(self, row: int, tokens: Sequence[int]) -> list[Step]:
        """The passes in which a search of ``row`` found the tokens of a hypothesis. Refused tokens are not among them."""
        ends = [0, *accumulate(step.accepted + 1 for step in self.steps[row])]
        parts = [[*tokens[first:end]] for first, end in pairwise(ends) if first < len(tokens)]
        return [Step(part[:-1], len(part) - 1, part[-1]) for part in parts]

    def counted(self, steps: Sequence[Step]) -> list[Step]:
        """One step for each output, or search."""
        rows = zip(steps, self.requests, self.numbers)
        return [step for step, request, number in rows if request.beam is None or not number]


def compacted(rows: int, leaving: Sequence[int]) -> list[int]:
    """The remaining rows, with the last rows of the batch in the gaps, so that few move."""
    gone = set(leaving)
    staying = rows - len(gone)
    movers = [row for row in range(staying, rows) if row not in gone]
    return [movers.pop() if row in gone else row for row in range(staying)]
