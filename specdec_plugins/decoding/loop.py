"""Speculative decoding: a drafter proposes, a verifier scores, what passes is kept, and the verifier adds a token of its own.

This file is the algorithm (Xia et al. 2023, section 3) and knows nothing about models: the roles of `roles.py` do the work.
A batch has B rows, each a sentence in flight; up to K tokens are drafted at a time.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.native import Taken, native_loop
from specdec_plugins.decoding.prefix import Prefix, compacted
from specdec_plugins.decoding.roles import Acceptance, Admission, Controller, Drafter, Verifier
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Draft, Hypothesis, Iteration, Outcome, Plan, Request, Source, Step, uniform

TOGETHER = 16  # iterations that a run makes before it asks again what to do: Python's part of each is small from four on


class Session:
    """Requests in flight. They join by `submit` and leave when they finish or by `cancel`; `step` advances all of them."""

    def __init__(
        self, drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, admission: Admission,
        rows: int, constraints: Constraints | None = None, stats: DecodeStats | None = None, device: torch.device | str = "cpu",
    ):  # fmt: skip
        self.drafter, self.verifier, self.acceptance, self.controller = drafter, verifier, acceptance, controller
        self.admission, self.device = admission, torch.device(device)
        self.waiting: deque[Request] = deque()
        self.prefix = Prefix(constraints, device)
        # The states of the two models, a row a sentence.
        self.verifying = verifier.start(rows)
        self.drafting = drafter.start(rows, self.verifying)
        self.stats = DecodeStats() if stats is None else stats
        self.native = native_loop(drafter, verifier, acceptance, self.prefix.constraints)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight or waiting."""
        return not self.waiting and not len(self.prefix)

    def submit(self, request: Request) -> None:
        """Let a request wait for its turn. Raises ValueError as `Request.check` does."""
        request.check()
        self.waiting.append(request)

    def cancel(self, index: int) -> Hypothesis | None:
        """Drop the request ``index``: returns what it has said so far, None if it was waiting or is unknown."""
        for row, request in enumerate(self.prefix.requests):
            if request.index == index:
                return self._retire([row])[0]
        self.waiting = deque(request for request in self.waiting if request.index != index)
        return None

    def run(self, requests: Iterable[Request]) -> Iterator[Hypothesis]:
        """Submit requests, and yield outputs as they finish, until nothing is in flight."""
        for request in requests:
            self.submit(request)
        while not self.idle:
            yield from self.step(TOGETHER)
        self.stats.settle()

    def step(self, times: int = 1) -> list[Hypothesis]:
        """Refill, and advance all rows by an iteration; by up to ``times`` of the same plan, but not beyond the end of a row.
        Returns the outputs that finished.
        """
        prefix, stats, device = self.prefix, self.stats, self.device
        stats.lap(None, device)
        if self.waiting:
            self._refill()
        if not len(prefix):
            return []
        given = self._given()
        plan = self.controller.plan(prefix) if given is None else uniform(len(prefix), 0)
        times, native = min(times, plan.times), self.native if given is None else None

        # Iterate until a row is finished, in native calls of many iterations where the roles are those that the kernels know.
        steps: list[Step] = []
        finished: list[int] = []
        made, seconds = 0, 0.0
        while made < times and not finished:
            taken = native(self.verifying, self.drafting, prefix, plan, times - made) if native else None
            if taken is None:
                taken = self._iterate(plan, given)
            else:
                stats.book(drafting=taken.drafting, verifying=taken.verifying)
            # Commit what passed with the verifier's own next token.
            for iteration in taken.iterations:
                finished = prefix.commit(iteration)
                steps += iteration.steps
            stats.lap("elsewhere", device)
            made += len(taken.iterations)
            seconds += taken.drafting + taken.verifying
        stats.record(steps, made, max(plan.lengths))
        if given is None:
            self.controller.update(Outcome(plan, steps, seconds, made))

        # Finished sentences leave.
        done = self._retire(finished) if finished else []
        stats.lap("elsewhere", device)
        return done

    def _given(self) -> Draft | None:
        """The next of the tokens that outputs are forced to begin with, as a draft, so that one pass reads many of them; other
        rows draft nothing meanwhile. None where no row has some left, or where a draft could change an output."""
        usual = getattr(self.acceptance, "tolerance", None)
        if not self.prefix.asking or usual is None:
            return None
        exact = all(
            (request.tolerance or usual).beta == 1 and not (request.sampling and request.sampling.rule == "rejection")
            for request in self.prefix.requests
        )
        return self.prefix.given() if exact else None

    def _iterate(self, plan: Plan, given: Draft | None = None) -> Taken:
        """One iteration, with ``given`` in place of a draft. The prefix is not changed yet."""
        prefix, stats, device = self.prefix, self.stats, self.device

        # 1. Draft, in one pass or in one a token (turns.py). A plain autoregressive iteration drafts nothing, at no cost.
        began = time.perf_counter()
        plan = prefix.gated(plan)
        draft = given or Draft([[] for _ in prefix.requests])
        asked = any(plan.lengths) and max(prefix.room) > 0
        if asked:
            draft = prefix.clip(self.drafter.propose(self.drafting, prefix, plan), plan.lengths).cut(plan.gate)
        stats.lap("drafting", device)
        drafted = time.perf_counter()

        # 2. Verify: one pass over the draft gives the verifier's choice after every drafted token.
        scores = self.verifier.score(self.verifying, prefix, draft)

        # 3. Accept the longest part of the draft that passes; the verifier's own token follows it.
        verdict = self.acceptance(scores, draft, prefix)

        # 4. Tell those who keep or learn something of it.
        self.verifier.commit(self.verifying, prefix, draft, verdict)
        if asked or self.drafter.traits.follows:
            self.drafter.observe(self.drafting, scores, draft, verdict)
        stats.lap("verifying", device)
        return Taken([Iteration.of(draft, verdict, prefix.symbols.eos)], drafted - began, time.perf_counter() - drafted)

    def _refill(self) -> None:
        """Let waiting requests join, as many as admission allows."""
        count = self.admission.admits(self.prefix, self.waiting)
        if not count:
            return
        present = len(self.prefix)
        owners = {id(request.tokens): row for row, request in enumerate(self.prefix.requests)}
        first: list[Request] = []  # of their sources ..
        further: list[Request] = []  # .. and others with a source that a row has already
        for request in (self.waiting.popleft() for _ in range(count)):
            new = owners.setdefault(id(request.tokens), present + len(first)) == present + len(first)
            (first if new else further).append(request)
        if first:
            source = Source([request.tokens for request in first], self.prefix.symbols, self.device)
            self.verifier.admit(self.verifying, source)
            self.drafter.admit(self.drafting, source)
        if further:
            rows = [owners[id(request.tokens)] for request in further]
            source = Source([request.tokens for request in further], self.prefix.symbols, self.device)
            for role, state in ((self.verifier, self.verifying), (self.drafter, self.drafting)):
                if hasattr(state, "share"):
                    state.share(rows)
                else:
                    role.admit(state, source)
        self.prefix.admit(first + further)
        self.stats.lap("encoding", self.device)

    def _retire(self, rows: list[int]) -> list[Hypothesis]:
        """Remove rows; rows from the end of the batch take their places. Returns what the removed ones hold."""
        done = [self.prefix.hypothesis(row) for row in rows]
        order = compacted(len(self.prefix), rows)
        for state in (self.prefix, self.drafting, self.verifying):
            if state is not None:
                state.select(order)
        for hypothesis in done:
            self.stats.finish(hypothesis)
        return done


def speculative_decode(
    drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, requests: Sequence[Request],
    rows: int, stats: DecodeStats, constraints: Constraints | None = None, device: torch.device | str = "cpu",
    max_tokens: int | None = None,
) -> Iterator[Hypothesis]:  # fmt: skip
    """Yield the outputs of ``requests`` as they finish, with up to ``rows`` sentences in flight; adds to ``stats``.

    ``max_tokens`` bounds the source tokens in flight, padding included.
    """
    rows = min(rows, max(1, len(requests)))
    admission = BoundedAdmission(rows, max_tokens)
    yield from Session(drafter, verifier, acceptance, controller, admission, rows, constraints, stats, device).run(requests)
