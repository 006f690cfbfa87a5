"""Continuous batching: admit requests, plan, run, retire. `runner.py` has the algorithm; the roles of `roles.py` do the work."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from threading import get_ident

from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.prefix import Prefix, compacted
from specdec_plugins.decoding.requests import Commit, Hypothesis, ModelLimits, Request, Source
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.runner import Runner
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Outcome
from specdec_plugins.decoding.verifier import Unverified

ITERATIONS_PER_CALL = 16  # Python overhead is negligible from four on
PREFILL = 24  # forced tokens per pass: more would need more memory for logits than a long draft


class Session:
    """Continuous batching: requests join by `submit`, advance together by `step`, and leave when they finish or by `cancel`.

    A session has at most ``rows`` rows and belongs to the thread that made it.
    """

    def __init__(
        self,
        roles: Roles,
        admission: BoundedAdmission,
        rows: int,
        constraints: Constraints | None = None,
        stats: DecodeStats | None = None,
        device: str = "cpu",
        limits: ModelLimits | None = None,
    ):
        """``limits`` bound requests; None: the verifier's."""
        self.controller, self.admission, self.rows, self.device = roles.controller, admission, rows, device
        self.limits = limits or roles.verifier.limits
        self.waiting: deque[Request] = deque()
        self.prefix = Prefix(constraints, device)
        self.runner = (roles.verifier.runner or Runner)(roles, rows, self.prefix.constraints)
        self.stats = DecodeStats() if stats is None else stats
        self._failed: list[Hypothesis] = []  # outputs of failed requests, until they are returned
        self._thread = get_ident()

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, waiting or yet to be returned."""
        return not self.waiting and not len(self.prefix) and not self._failed

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError for one that cannot be decoded."""
        self._check_thread()
        request.check(self.limits)
        if self.prefix.symbols.eos in request.forced:
            raise ValueError(f"request {request.index}: the forced tokens include eos, which ends an output")
        if request.scored and isinstance(self.runner.verifier, Unverified):
            what = "scores need" if request.beam is None else "beam search needs"
            raise ValueError(f"request {request.index}: {what} a verifier")
        if request.rows > self.rows:
            what = "outputs" if request.beam is None else "live hypotheses"
            raise ValueError(f"request {request.index}: {request.rows:,} {what} need as many rows; there are {self.rows:,}")
        self.waiting.append(request)

    def cancel(self, index: int) -> list[Hypothesis]:
        """Drop request ``index``. Returns its outputs so far; [] if it was waiting or is unknown."""
        self._check_thread()
        self.waiting = deque(request for request in self.waiting if request.index != index)
        rows = self.prefix.group(index)
        return self._retire(rows) if rows else []

    def run(self, requests: Iterable[Request]) -> Iterator[Hypothesis]:
        """Submit requests and yield outputs as they finish. Raises the error of a request that fails."""
        for request in requests:
            self.submit(request)
        while not self.idle:
            for hypothesis in self._retire(self._advance(ITERATIONS_PER_CALL)) + self._take_failed():
                if hypothesis.error is not None:
                    raise hypothesis.error
                yield hypothesis
        self.stats.settle()

    def step(self, times: int = 1, partial: bool = True) -> list[Commit]:
        """Admit waiting requests, and run up to ``times`` iterations of one plan; stop early when a row finishes, or a quarter of
        the searches.

        Returns the commits, or without ``partial`` only those that end an output. The last one of an output, finished or failed,
        has its hypothesis.
        """
        finished = self._advance(times)
        commits = self.prefix.commits(finished, partial)
        self._retire(finished)
        return commits + [Commit(failed.index, failed.output, [], [], failed) for failed in self._take_failed()]

    def _advance(self, times: int) -> list[int]:
        """The work of a step. Returns the finished rows, which are still in the batch."""
        self._check_thread()
        prefix, stats, device = self.prefix, self.stats, self.device
        stats.lap(None, device)
        if self.waiting:
            self._refill()
        if not len(prefix):
            return []
        plan, recordings = self.controller.plan(prefix), self.runner.verifier.recordings
        done = self.runner.run(prefix, plan, min(times, plan.times), stats)
        if not done.times:
            return done.finished
        stats.record(done.steps, done.times, max(plan.lengths), plan.expects)
        recorded = self.runner.verifier.recordings > recordings
        self.controller.update(Outcome(plan, done.steps, done.seconds, done.times, recorded, done.first))
        return done.finished

    def _refill(self) -> None:
        """Admit waiting requests and prefill their forced tokens."""
        count = self.admission.admits(self.prefix, self.waiting)
        if not count:
            return
        self._admit([self.waiting.popleft() for _ in range(count)])
        self.stats.lap("encoding", self.device)
        while any(unread := self.prefix.unread(PREFILL)):
            self.prefix.prefill(unread, self.runner.prefill(self.prefix, unread))
            self.stats.prefilled += sum(map(len, unread))
            self.stats.lap("verifying", self.device)

    def _admit(self, requests: list[Request]) -> None:
        """Append groups. Each source is encoded once; further rows of a group are forks of its first.

        A request that a role cannot admit ends with the error; the others are admitted without it.
        """
        present = range(len(self.prefix))
        try:
            self.runner.admit(Source([request.tokens for request in requests], self.prefix.symbols, self.device))
        except Exception as error:  # a role may be anybody's code
            self.runner.select([*present])
            if len(requests) == 1:
                (failed,) = requests
                self._failed += [Hypothesis(failed.index, [], [], [], False, n, error=error) for n in range(failed.outputs)]
            else:
                for request in requests:
                    self._admit([request])
            return
        if any(request.first_rows > 1 for request in requests):
            self.runner.select([*present, *chain(*([row] * each.first_rows for row, each in enumerate(requests, len(present))))])
        self.prefix.admit(requests)

    def _retire(self, rows: list[int]) -> list[Hypothesis]:
        """Remove rows; the last rows of the batch fill the gaps. Returns the removed outputs."""
        if not rows:
            return []
        done = [*chain(*map(self.prefix.hypotheses, rows))]
        order = compacted(len(self.prefix), rows)
        self.prefix.select(order)
        self.runner.select(order)
        for hypothesis in done:
            self.stats.finish(hypothesis)
        self.stats.lap("elsewhere", self.device)
        return done

    def _take_failed(self) -> list[Hypothesis]:
        failed, self._failed = self._failed, []
        return failed

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("a session belongs to the thread that made it; send requests there")


def speculative_decode(
    roles: Roles,
    requests: Sequence[Request],
    rows: int,
    stats: DecodeStats,
    constraints: Constraints | None = None,
    device: str = "cpu",
) -> Iterator[Hypothesis]:
    """Yield outputs as they finish, with up to ``rows`` rows in flight."""
    rows = min(rows, max(1, sum(request.rows for request in requests)))
    yield from Session(roles, BoundedAdmission(rows), rows, constraints, stats, device).run(requests)
