"""Speculative decoding: a drafter proposes, a verifier scores, what passes is kept, and the verifier adds a token of its own.

This file is the algorithm (Xia et al. 2023, section 3) and knows nothing about models: the roles of `roles.py` do the work.
A batch has B rows, each a sentence in flight; up to K tokens are drafted at a time.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from threading import get_ident

import torch

from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.native import Iterations, native_loop
from specdec_plugins.decoding.prefix import Prefix, compacted
from specdec_plugins.decoding.roles import Acceptance, Admission, Controller, Drafter, Verifier
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import LOGITS, Commit, Draft, Hypothesis, Iteration, Outcome, Plan, Request, Source, Step

TOGETHER = 16  # iterations per step of a run: Python overhead is negligible from four on
PREFILL = 24  # forced tokens read per pass: more would take more logits than a long draft


class Session:
    """Requests in flight. They join by `submit` and leave when they finish or by `cancel`; `step` advances all of them.

    A session has at most ``rows`` rows and belongs to the thread that made it.
    """

    def __init__(
        self, drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, admission: Admission,
        rows: int, constraints: Constraints | None = None, stats: DecodeStats | None = None, device: torch.device | str = "cpu",
    ):  # fmt: skip
        self.drafter, self.verifier, self.acceptance, self.controller = drafter, verifier, acceptance, controller
        self.admission, self.rows, self.device = admission, rows, torch.device(device)
        self.waiting: deque[Request] = deque()
        self.prefix = Prefix(constraints, device)
        # The states of the two models, by row.
        self.verifying = verifier.start(rows)
        self.drafting = drafter.start(rows, self.verifying)
        self.stats = DecodeStats() if stats is None else stats
        self.native = native_loop(drafter, verifier, acceptance, self.prefix.constraints)
        self._failed: list[Hypothesis] = []  # what requests had said when they failed, until it is returned
        self._thread = get_ident()

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, waiting or to be returned."""
        return not self.waiting and not len(self.prefix) and not self._failed

    def submit(self, request: Request) -> None:
        """Let a request wait for its turn. Raises ValueError for one that cannot be decoded."""
        self._check_thread()
        request.check(self.verifier.limits)
        if self.prefix.symbols.eos in request.forced:
            raise ValueError(f"request {request.index}: the forced tokens include eos, which ends an output")
        if request.rows > self.rows:
            raise ValueError(
                f"request {request.index}: {request.rows:,} outputs need as many rows; the session has {self.rows:,}"
            )
        self.waiting.append(request)

    def cancel(self, index: int) -> list[Hypothesis]:
        """Drop the request ``index``. Returns what its outputs in flight have said so far; [] if it was waiting or is unknown."""
        self._check_thread()
        self.waiting = deque(request for request in self.waiting if request.index != index)
        rows = self.prefix.group(index)
        return self._retire(rows) if rows else []

    def run(self, requests: Iterable[Request]) -> Iterator[Hypothesis]:
        """Submit requests, and yield outputs as they finish, until nothing is in flight. Raises the error of one that failed."""
        for request in requests:
            self.submit(request)
        while not self.idle:
            yield from self._retire(self._advance(TOGETHER))
            if failed := self._take_failed():
                assert failed[0].error is not None
                raise failed[0].error
        self.stats.settle()

    def step(self, times: int = 1) -> list[Commit]:
        """Admit waiting requests, and run up to ``times`` iterations of one plan; stop early when a row finishes.

        Returns what was committed. An output that finished or failed has its hypothesis in its last commit.
        """
        sizes = list(map(len, self.prefix.outputs))
        finished = self._advance(times)
        commits = self.prefix.commits(sizes, finished)
        self._retire(finished)
        return commits + [Commit(failed.index, failed.output, [], [], failed) for failed in self._take_failed()]

    def _advance(self, times: int) -> list[int]:
        """The work of a step. Returns the rows that are finished, which still have their places."""
        self._check_thread()
        prefix, stats, device = self.prefix, self.stats, self.device
        stats.lap(None, device)
        if self.waiting:
            self._refill()
        if not len(prefix):
            return []
        plan = self.controller.plan(prefix)
        times = min(times, plan.times)

        # Iterate until a row is finished, in native calls of many iterations where the kernels know the roles.
        steps: list[Step] = []
        finished: list[int] = []
        made, seconds, recordings = 0, 0.0, self.verifier.recordings
        while made < times and not finished:
            batch = self.native(self.verifying, self.drafting, prefix, plan, times - made) if self.native else None
            if batch is None:
                batch = self._iterate(plan)
            else:
                stats.book(drafting=batch.drafting, verifying=batch.verifying)
            # Commit what was accepted, and the verifier's own next token.
            for iteration in batch.iterations:
                finished = prefix.commit(iteration)
                steps += iteration.steps
            stats.lap("elsewhere", device)
            made += len(batch.iterations)
            seconds += batch.drafting + batch.verifying
        stats.record(steps, made, max(plan.lengths))
        self.controller.update(Outcome(plan, steps, seconds, made, self.verifier.recordings > recordings))
        return finished

    def _iterate(self, plan: Plan) -> Iterations:
        """One iteration. The prefix is not changed yet."""
        prefix, stats, device = self.prefix, self.stats, self.device

        # 1. Draft, in one pass or in one a token (`draft_in_turn`). A plain autoregressive iteration drafts nothing, at no cost.
        began = time.perf_counter()
        plan = prefix.gated(plan)
        draft = Draft([[] for _ in prefix.requests])
        asked = any(plan.lengths) and max(prefix.room) > 0
        if asked:
            draft = prefix.clip(self.drafter.propose(self.drafting, prefix, plan), plan.lengths).cut(plan.gate)
        stats.lap("drafting", device)
        drafted = time.perf_counter()

        # 2. Verify: one pass over the draft gives the verifier's choice after every drafted token.
        told = asked or self.drafter.traits.follows
        scores = self.verifier.score(self.verifying, prefix, draft, self.drafter.traits.wants if told else LOGITS)

        # 3. Accept the longest part of the draft that passes; the verifier's own token follows it.
        verdict = self.acceptance(scores, draft, prefix)

        # 4. Tell those who keep or learn something of it.
        self.verifier.commit(self.verifying, prefix, draft, verdict)
        if told:
            self.drafter.observe(self.drafting, scores, draft, verdict)
        stats.lap("verifying", device)
        return Iterations([Iteration.of(draft, verdict, prefix.symbols.eos)], drafted - began, time.perf_counter() - drafted)

    def _refill(self) -> None:
        """Admit as many waiting requests as admission allows, and read their forced tokens."""
        count = self.admission.admits(self.prefix, self.waiting)
        if not count:
            return
        self._admit([self.waiting.popleft() for _ in range(count)])
        self.stats.lap("encoding", self.device)
        while any(unread := [tokens[:PREFILL] for tokens in self.prefix.unread()]):
            self.prefix.prefill(unread, self.verifier.prefill(self.verifying, self.prefix, unread))
            self.stats.prefilled += sum(map(len, unread))
            self.stats.lap("verifying", self.device)

    def _admit(self, requests: list[Request]) -> None:
        """Append the groups of some requests. Each source is encoded once; the further rows of a group are forks of its first.

        One that a role cannot admit ends with the error; the others are admitted without it.
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
                self._failed += [Hypothesis(failed.index, [], [], [], False, n, error=error) for n in range(failed.rows)]
            else:
                for request in requests:
                    self._admit([request])
            return
        if any(request.rows > 1 for request in requests):
            self._select([*present, *chain(*([row] * each.rows for row, each in enumerate(requests, len(present))))])
        self.prefix.admit(requests)

    def _retire(self, rows: list[int]) -> list[Hypothesis]:
        """Remove rows; rows from the end of the batch take their places. Returns what the removed ones hold."""
        if not rows:
            return []
        done = [self.prefix.hypothesis(row) for row in rows]
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
            raise RuntimeError("a session belongs to the thread that made it; other threads must send their requests there")


def speculative_decode(
    drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, requests: Sequence[Request],
    rows: int, stats: DecodeStats, constraints: Constraints | None = None, device: torch.device | str = "cpu",
    max_tokens: int | None = None,
) -> Iterator[Hypothesis]:  # fmt: skip
    """Yield the outputs of ``requests`` as they finish, with up to ``rows`` rows in flight; adds to ``stats``.

    ``max_tokens`` bounds the source tokens in flight, padding included.
    """
    rows = min(rows, max(1, sum(request.rows for request in requests)))
    admission = BoundedAdmission(rows, max_tokens)
    yield from Session(drafter, verifier, acceptance, controller, admission, rows, constraints, stats, device).run(requests)
