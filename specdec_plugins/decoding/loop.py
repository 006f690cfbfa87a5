"""Speculative decoding: a drafter proposes, a verifier scores, what passes is kept, and the verifier adds a token of its own.

This file is the algorithm (Xia et al. 2023, section 3). It knows nothing about models: the roles of `roles.py` do the work.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from threading import get_ident
from typing import NamedTuple

import torch

from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends import Pass, Reordered
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.native import native_loop
from specdec_plugins.decoding.native_search import native_search
from specdec_plugins.decoding.options import Tree
from specdec_plugins.decoding.prefix import Prefix, compacted
from specdec_plugins.decoding.roles import Acceptance, Controller, Drafter, Verifier
from specdec_plugins.decoding.search.groups import advance
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import AHEAD, breadth
from specdec_plugins.decoding.values import (
    LOGITS,
    Commit,
    Draft,
    Hypothesis,
    Iterations,
    ModelLimits,
    Outcome,
    Plan,
    Request,
    Source,
    Step,
)
from specdec_plugins.decoding.verifier import Unverified

TOGETHER = 16  # iterations per step of a run: Python overhead is negligible from four on
BRANCHING = Tree(16)  # drafts of beam searches, unless drafters follow the search: see `branched` in trees.py
PREFILL = 24  # forced tokens per pass: more would need more memory for logits than a long draft


class Ran(NamedTuple):
    """Some iterations: the rows that they finished, the rows' and searches' steps, their number, and the seconds that they took.
    ``first`` are the seconds of the first one, 0 if unknown."""

    finished: list[int]
    steps: list[Step]
    times: int
    seconds: float
    first: float = 0.0


class Session:
    """Continuous batching: requests join by `submit`, advance together by `step`, and leave when they finish or by `cancel`.

    A session has at most ``rows`` rows and belongs to the thread that made it.
    """

    def __init__(
        self, drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, admission: BoundedAdmission,
        rows: int, constraints: Constraints | None = None, stats: DecodeStats | None = None, device: torch.device | str = "cpu",
        limits: ModelLimits | None = None,
    ):  # fmt: skip
        """``limits`` bound requests; None: the verifier's."""
        self.drafter, self.verifier, self.acceptance, self.controller = drafter, verifier, acceptance, controller
        self.admission, self.rows, self.device = admission, rows, torch.device(device)
        self.limits = limits or verifier.limits
        self.waiting: deque[Request] = deque()
        self.prefix = Prefix(constraints, device)
        self.verifying = verifier.start(rows)  # the roles' states
        self.drafting = drafter.start(rows, self.verifying)
        self.stats = DecodeStats() if stats is None else stats
        self.native = native_loop(drafter, verifier, acceptance, self.prefix.constraints)
        self.searches = native_search(drafter, verifier, self.prefix.constraints)
        self._mixes = self.searches is not None and self.searches.joins
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
        if request.beam is not None and isinstance(self.verifier, Unverified):
            raise ValueError(f"request {request.index}: beam search needs a verifier")
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
            for hypothesis in self._retire(self._advance(TOGETHER)) + self._take_failed():
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
        if self._mixes and 0 < prefix.searching < len(prefix):
            self._place_searches_last()
        plan, rows = self.controller.plan(prefix), len(prefix)
        times = min(times, plan.times)

        # Iterate until a row finishes, in native calls of many iterations if the roles run natively.
        steps: list[Step] = []
        finished: list[int] = []
        made, seconds, first, recordings = 0, 0.0, 0.0, self.verifier.recordings
        while made < times and not finished and len(prefix) == rows:
            how = self._branching(plan) if prefix.searching == rows else plan
            ran = self._run_natively(how, times - made) or self._run_once(how)
            if ran is None:
                finished = prefix.failed
                break
            finished, first, made, seconds = ran.finished, first or ran.first, made + ran.times, seconds + ran.seconds
            steps += ran.steps
            stats.lap("elsewhere", device)
        if not made:
            return finished
        stats.record(steps, made, max(plan.lengths), plan.expects)
        self.controller.update(Outcome(plan, steps, seconds, made, self.verifier.recordings > recordings, first))
        return finished

    def _run_once(self, plan: Plan) -> Ran | None:
        """One iteration. None if requests failed instead: see `_draft`."""
        prefix = self.prefix
        if (batch := self._iterate(plan)) is None:
            return None
        finished, steps = prefix.commit(batch), prefix.counted(batch.steps) if prefix.searching else batch.steps
        seconds = batch.drafting + batch.verifying
        return Ran(finished, steps, 1, seconds, seconds)

    def _run_natively(self, plan: Plan, times: int) -> Ran | None:
        """Up to ``times`` iterations in one call of the kernels, two where some rows search and others do not; the searches may
        then make fewer, and count as passes of their own. None if the kernels cannot do all of it."""
        prefix, stats, ran = self.prefix, self.stats, None
        others = len(prefix) - prefix.searching
        if prefix.searching and (self.searches is None or any(plan.lengths[others:]) or (others and not self._mixes)):
            return None
        if others:
            batch = self.native and self.native(self.verifying, self.drafting, prefix, plan, times, others)
            if not batch:
                return None
            stats.book(drafting=batch.drafting, verifying=batch.verifying)
            times = len(batch.steps) // others
            ran = Ran(prefix.commit(batch, others), batch.steps, times, batch.drafting + batch.verifying, batch.first)
        if not prefix.searching or self.searches is None:
            return ran
        searched = self.searches(self.verifying, prefix, times)
        if self.drafting is not None:
            self.drafting.select(searched.order)
        stats.book(verifying=searched.seconds)
        if ran is None:
            return Ran(searched.finished, searched.steps, searched.times, searched.seconds)
        stats.record(searched.steps, searched.times, 0)
        return Ran(ran.finished + searched.finished, ran.steps, ran.times, ran.seconds + searched.seconds)

    def _place_searches_last(self) -> None:
        """Native calls take the first rows, or the last."""
        searches = [request.beam is not None for request in self.prefix.requests]
        order = sorted(range(len(searches)), key=searches.__getitem__)
        if order != [*range(len(order))]:
            self.prefix.select(order)
            self._select(order)

    def _branching(self, plan: Plan) -> Plan:
        """The plan of a batch of searches with trees, if the drafter drafts any. The larger a beam, the fewer steps ahead."""
        if not (self.drafter.traits.trees and any(plan.lengths)) or plan.tree is not None:
            return plan
        most = [AHEAD // breadth(request.beam) for request in self.prefix.requests if request.beam]
        return plan._replace(lengths=list(map(min, plan.lengths, most)), tree=BRANCHING)

    def _iterate(self, plan: Plan) -> Iterations | None:
        """One iteration; the prefix does not change. None if requests failed instead: see `_draft`."""
        prefix, stats, device = self.prefix, self.stats, self.device

        # 1. Draft, in one pass or one per token (`draft_in_turn`). A plain iteration drafts nothing, at no cost.
        began = time.perf_counter()
        searching, searches_only = prefix.searching, prefix.searching == len(prefix)
        asked = any(plan.lengths) and max(prefix.room) > 0
        draft = self._draft(plan) if asked else Draft([[] for _ in prefix.requests])
        if draft is None:
            return None
        stats.lap("drafting", device)
        drafted = time.perf_counter()

        # 2. Verify: one pass scores every position of the draft.
        observes = asked or self.drafter.traits.follows
        scores = self.verifier.score(self.verifying, prefix, draft, self.drafter.traits.wants if observes else LOGITS)

        # 3. Accept the longest prefix of the draft that passes; the verifier's own token follows it. Searches take steps as far
        # as the draft has their survivors, which move to other rows, fork or leave.
        observed: Pass | Reordered | None = scores
        verdict = None if searches_only else self.acceptance(scores, draft, prefix)
        if searching and scores is not None:
            ranked = scores.rank(draft, prefix.bounds(), [request.beam for request in prefix.requests])
            order, draft, verdict = advance(prefix, ranked, draft, verdict)
            self._select(order)
            observed = Reordered(scores, order)
        assert verdict is not None

        # 4. Let both models keep or learn from the verdict.
        self.verifier.commit(self.verifying, prefix, draft, verdict)
        if observes:
            self.drafter.observe(self.drafting, observed, draft, verdict)
        done = Iterations.of(draft, verdict, prefix.symbols.eos)
        stats.lap("verifying", device)
        return done._replace(drafting=drafted - began, verifying=time.perf_counter() - drafted)

    def _draft(self, plan: Plan) -> Draft | None:
        """The draft. If the drafter raises, the requests for which it raises alone fail with the error, and there is no draft."""
        prefix = self.prefix
        try:
            draft = prefix.clip(self.drafter.propose(self.drafting, prefix, plan), plan.lengths)
            if self.verifier.limits is not None:
                draft.check(len(prefix), self.verifier.limits.target)
            return draft
        except Exception as error:  # a drafter may be anybody's code
            rows = [row for row, length in enumerate(plan.lengths) if length]
            if len(rows) == 1:
                prefix.fail(rows[0], error)
            else:
                for row in rows:
                    self._draft(plan.alone(row))
            if not prefix.failed:
                raise
            return None

    def _refill(self) -> None:
        """Admit waiting requests and prefill their forced tokens."""
        count = self.admission.admits(self.prefix, self.waiting)
        if not count:
            return
        self._admit([self.waiting.popleft() for _ in range(count)])
        self.stats.lap("encoding", self.device)
        while any(unread := self.prefix.unread(PREFILL)):
            self.prefix.prefill(unread, self.verifier.prefill(self.verifying, self.prefix, unread))
            self.stats.prefilled += sum(map(len, unread))
            self.stats.lap("verifying", self.device)

    def _admit(self, requests: list[Request]) -> None:
        """Append groups. Each source is encoded once; further rows of a group are forks of its first.

        A request that a role cannot admit ends with the error; the others are admitted without it.
        """
        present = range(len(self.prefix))
        try:
            source = Source([request.tokens for request in requests], self.prefix.symbols, self.device)
            self.verifier.admit(self.verifying, source)
            self.drafter.admit(self.drafting, source)
        except Exception as error:  # a role may be anybody's code
            self._select([*present])
            if len(requests) == 1:
                (failed,) = requests
                self._failed += [Hypothesis(failed.index, [], [], [], False, n, error=error) for n in range(failed.outputs)]
            else:
                for request in requests:
                    self._admit([request])
            return
        if any(request.first_rows > 1 for request in requests):
            self._select([*present, *chain(*([row] * each.first_rows for row, each in enumerate(requests, len(present))))])
        self.prefix.admit(requests)

    def _retire(self, rows: list[int]) -> list[Hypothesis]:
        """Remove rows; the last rows of the batch fill the gaps. Returns the removed outputs."""
        if not rows:
            return []
        done = [*chain(*map(self.prefix.hypotheses, rows))]
        order = compacted(len(self.prefix), rows)
        self.prefix.select(order)
        self._select(order)
        for hypothesis in done:
            self.stats.finish(hypothesis)
        self.stats.lap("elsewhere", self.device)
        return done

    def _select(self, order: list[int]) -> None:
        """Reorder the rows of both states."""
        for state in (self.drafting, self.verifying):
            if state is not None:
                state.select(order)

    def _take_failed(self) -> list[Hypothesis]:
        failed, self._failed = self._failed, []
        return failed

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("a session belongs to the thread that made it; send requests there")


def speculative_decode(
    drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, requests: Sequence[Request],
    rows: int, stats: DecodeStats, constraints: Constraints | None = None, device: torch.device | str = "cpu",
) -> Iterator[Hypothesis]:  # fmt: skip
    """Yield outputs as they finish, with up to ``rows`` rows in flight."""
    rows = min(rows, max(1, sum(request.rows for request in requests)))
    admission = BoundedAdmission(rows)
    yield from Session(drafter, verifier, acceptance, controller, admission, rows, constraints, stats, device).run(requests)
