"""Iterations of a session's rows by passes of its roles: draft, verify, accept, commit (Xia et al. 2023, section 3).

This is how PyTorch decodes, and what the CPU kernels' runner (`backends/cpu/runner.py`) does in one call where it can. It knows
nothing about models.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.backends import Pass, Reordered
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.options import Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source, Step
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.search.groups import advance
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import MAX_DRAFTED, breadth
from specdec_plugins.decoding.values import LOGITS, Draft, Iterations, Plan

BRANCHING = Tree(16)  # drafts of beam searches, unless drafters follow the search: see `branched` in trees.py


class Record(NamedTuple):
    """Some iterations: the rows that they finished, the steps of rows and searches, their number, and the seconds that they took.
    ``first`` are the seconds of the first one, 0 if unknown."""

    finished: list[int]
    steps: list[Step]
    times: int
    seconds: float
    first: float = 0.0

    def then(self, more: "Record") -> "Record":
        """Both, one after the other."""
        times, seconds = self.times + more.times, self.seconds + more.seconds
        return Record(more.finished, self.steps + more.steps, times, seconds, self.first if self.times else more.first)


class Runner:
    """For one session. Owns the states of the roles."""

    def __init__(self, roles: Roles, rows: int, constraints: Constraints):
        """``rows``: the most that the session may have."""
        self.drafter, self.verifier, self.acceptance = roles[:3]
        self.verifying = self.verifier.start(rows)
        self.drafting = self.drafter.start(rows, self.verifying)

    def admit(self, source: Source) -> None:
        """Append the sentences of ``source`` as rows."""
        self.verifier.admit(self.verifying, source)
        self.drafter.admit(self.drafting, source)

    def select(self, order: list[int]) -> None:
        """See `State.select`."""
        for state in (self.drafting, self.verifying):
            if state is not None:
                state.select(order)

    def prefill(self, prefix: Prefix, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Verifier.prefill`."""
        return self.verifier.prefill(self.verifying, prefix, tokens)

    def run(self, prefix: Prefix, plan: Plan, times: int, stats: DecodeStats) -> Record:
        """Run up to ``times`` iterations of the plan and commit them to the prefix; stop early when a row finishes, or a quarter
        of the searches. If the drafter raises, fewer iterations: the requests that it raises for have failed."""
        done, rows = Record([], [], 0, 0.0), len(prefix)
        while done.times < times and not done.finished and len(prefix) == rows:
            some = self.iterate(prefix, self._branching(prefix, plan), times - done.times, stats)
            if some is None:
                return done._replace(finished=prefix.failed)
            done = done.then(some)
            stats.lap("elsewhere", prefix.device)
        return done

    def _branching(self, prefix: Prefix, plan: Plan) -> Plan:
        """The plan, with trees if all rows search and the drafter drafts any. The larger a beam, the fewer steps ahead."""
        if prefix.searching < len(prefix) or not (self.drafter.traits.trees and any(plan.lengths)) or plan.tree is not None:
            return plan
        most = [MAX_DRAFTED // breadth(request.beam) for request in prefix.requests if request.beam]
        return plan._replace(lengths=list(map(min, plan.lengths, most)), tree=BRANCHING)

    def iterate(self, prefix: Prefix, plan: Plan, times: int, stats: DecodeStats) -> Record | None:
        """At least one iteration and at most ``times``. None if requests failed instead: see `draft`."""
        # 1. Draft, in one pass or one per token (`draft_in_turn`). A plain iteration drafts nothing, at no cost.
        began = time.perf_counter()
        searching, searches_only = prefix.searching, prefix.searching == len(prefix)
        asked = any(plan.lengths) and max(prefix.room) > 0
        draft = self.draft(prefix, plan) if asked else Draft([[] for _ in prefix.requests])
        if draft is None:
            return None
        stats.lap("drafting", prefix.device)

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
            self.select(order)
            observed = Reordered(scores, order)
        assert verdict is not None

        # 4. Let both models keep or learn from the verdict, and commit it.
        self.verifier.commit(self.verifying, prefix, draft, verdict)
        if observes:
            self.drafter.observe(self.drafting, observed, draft, verdict)
        done = Iterations.of(draft, verdict, prefix.symbols.eos)
        stats.lap("verifying", prefix.device)
        seconds = time.perf_counter() - began
        finished = prefix.commit(done)
        return Record(finished, prefix.counted(done.steps) if searching else done.steps, 1, seconds, seconds)

    def draft(self, prefix: Prefix, plan: Plan) -> Draft | None:
        """The drafter's draft, checked. If it raises, the requests for which it raises alone fail with the error, and there is no
        draft."""
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
                    self.draft(prefix, plan.alone(row))
            if not prefix.failed:
                raise
            return None
