"""Iterations in one call of the kernels (csrc/run.h), with the results of `Runner`.

Where the drafter has a recipe, a call runs many iterations; otherwise, and for trees and drafts of searches, the drafter is asked
once per call. Acceptance rules of one's own take the way of `Runner`.

B rows without a search, S rows of searches, K drafted tokens.
"""

import time
from array import array
from ctypes import byref
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from specdec_plugins.decoding.backends import Reordered
from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.cpu.drafts import GIVEN, drafting_by
from specdec_plugins.decoding.backends.cpu.passes import CpuPass, results_of
from specdec_plugins.decoding.backends.cpu.rules import NativeRepeats, NativeSampling
from specdec_plugins.decoding.backends.cpu.searches import Searches
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.runner import Record, Runner
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import NOTHING, Distribution, Draft, Iterations, Plan, Verdict, Want


class CpuRunner(Runner):
    """For one session."""

    verifying: SlottedState

    def __init__(self, roles: Roles, rows: int, constraints: Constraints):
        super().__init__(roles, rows, constraints)
        self.model: Any = roles.verifier.model  # type: ignore[attr-defined]
        symbols, self._banned = constraints.symbols, integers(constraints.banned)
        self.call = self.model.engine.library.structs["RunCall"](
            verifier=self.model.stack.pointer, eos=symbols.eos, banned_count=len(self._banned), banned=start(self._banned)
        )
        self.searches = Searches(self.call.search, constraints)
        recipe = self.drafter.recipe()
        model: Any = recipe and recipe.model
        here = model is not None and model.runner is self.verifier.runner and model.engine is self.model.engine
        self.native = drafting_by(recipe, self.call.draft, symbols) if recipe and here else None  # None: the drafter proposes

    def iterate(self, prefix: Prefix, plan: Plan, times: int, stats: DecodeStats) -> Record | None:
        tolerance, began = getattr(self.acceptance, "tolerance", None), time.perf_counter()
        if tolerance is None:
            return super().iterate(prefix, plan, times, stats)
        draft, asks = None, any(plan.lengths) and max(prefix.room) > 0 and not self._drafts_here(prefix, plan)
        if asks:
            draft = self.draft(prefix, plan)
            if draft is None:
                return None
            stats.lap("drafting", prefix.device)
        observes = self.drafter.observes and (asks or (self.native is None and self.drafter.traits.follows))
        batch = Batch(self, prefix, plan, draft, tolerance, self.drafter.traits.wants if observes else NOTHING)
        encoding = batch.run(1 if asks or observes else times)
        done, call, alone = batch.iterations(), self.call, batch.alone
        order, over, searched = self.searches.place(alone, self.verifying, prefix, call.taken, batch.draft)
        if order is not None and self.drafting is not None:
            self.drafting.select(order)
        if observes:
            self._observe(batch, done, order)
        if asks or observes:
            stats.lap("verifying", prefix.device)
            seconds = first = time.perf_counter() - began
        else:
            drafting, verifying = encoding + call.drafting_seconds, call.verifying_seconds
            stats.book(drafting=drafting, verifying=verifying)
            seconds, first = drafting + verifying, encoding + call.first_seconds
        steps, rows = done.steps, len(alone)
        if order is not None:  # those of an iteration lie together
            steps = [step for at, some in enumerate(searched) for step in (*steps[at * rows : (at + 1) * rows], *some)]
        return Record(prefix.commit(done, len(alone)) + over, steps, call.taken, seconds, first)

    def _drafts_here(self, prefix: Prefix, plan: Plan) -> bool:
        """Whether the call drafts what the plan asks for: chains, behind rows that do not search."""
        if self.native is None or (plan.tree is not None and self.drafter.traits.trees):
            return False
        return not (prefix.searching and any(each.beam and length for each, length in zip(prefix.requests, plan.lengths)))

    def _observe(self, batch: "Batch", done: Iterations, order: list[int] | None) -> None:
        """Show the drafter an iteration; with searches, their rows in the new ``order``."""
        eos, draft = batch.prefix.symbols.eos, batch.draft
        accepted, own = [step.accepted for step in done.steps], [eos if step.own is None else step.own for step in done.steps]
        verdict, seen = Verdict(accepted, own, done.scores, done.cut, batch.paths()), CpuPass.of(self.model, **batch.results)
        if not batch.observed.logits:
            del seen.results["logits"]  # perhaps bounds
        if order is None:
            return self.drafter.observe(self.drafting, seen, draft, verdict)
        places = {row: place for place, row in enumerate(batch.read)}
        counts, tokens, scores, cut, paths = self.searches.verdict()
        assert tokens is not None and paths is not None
        verdict = Verdict(
            verdict.accepted + counts,
            own + tokens,
            done.scores + scores,
            done.cut + cut,
            None if verdict.paths is None else verdict.paths + paths,
        )
        self.drafter.observe(self.drafting, Reordered(seen, [places[row] for row in order]), draft.select(order), verdict)


class Batch:
    """A call of the kernels for the rows of a prefix: what it reads, and what it writes."""

    def __init__(self, runner: CpuRunner, prefix: Prefix, plan: Plan, draft: Draft | None, tolerance: Tolerance, want: Want):
        """Without a ``draft`` the call drafts itself. ``want``: what the drafter observes of the last pass."""
        self.runner, self.prefix, self.plan, self.tolerance, self.observed = runner, prefix, plan, tolerance, want
        self.call, self.state = runner.call, runner.verifying
        self.drafting = runner.native if draft is None else None
        self.draft = draft or Draft([[] for _ in prefix.requests])
        self.alone = [row for row, request in enumerate(prefix.requests) if request.beam is None]  # rows without a search
        self.read = self.alone
        self.rows = prefix if len(self.alone) == len(prefix) else prefix.some(self.alone)
        self.positions = list(map(len, self.rows.outputs))
        self.lengths = [plan.lengths[row] if self.drafting else len(self.draft.tokens[row]) for row in self.alone]
        self.longest = max(self.lengths if self.drafting else map(len, self.draft.tokens), default=0)
        self.results: dict[str, np.ndarray] = {}

    def run(self, times: int) -> float:
        """Up to so many iterations. Returns the seconds that encoding the drafter's sources took."""
        call, state, model, prefix = self.call, self.state, self.runner.model, self.prefix
        batch, needed = len(self.alone), prefix.longest + self.longest + 1
        state.encode()
        plane = model.stack.output.plane
        call.screened = 0 if self.observed.logits or plane is None else plane.rows
        call.batch, call.longest, call.steps = batch, self.longest, min(times, model.spec.decoder.max_positions)
        searching = self.runner.searches.begin(state, prefix, call.steps, self.draft)
        self.read = self.alone + self.runner.searches.rows
        state.cache.reserve(state.targets.bound, needed)
        call.caches = state.caches()
        unread, drafter_state, encoding = [[token] for token in self.rows.last], state, 0.0
        call.draft.recipe = GIVEN
        if self.drafting is not None:
            call.draft.recipe = self.drafting.number
            unread = self.drafting.begin(self.runner.drafting, self.alone, self.rows, self.longest)
            if self.longest:
                began = time.perf_counter()
                drafter_state = self.drafting.prepare(self.runner.drafting, batch, self.longest, needed)
                encoding = time.perf_counter() - began
        want = self.drafting.wants if self.drafting else replace(self.observed, logits=True)
        self.results, fields = results_of(model, state, want, batch + searching, self.longest + 1)
        for name, value in fields.items():
            setattr(call, name, value)
        memory, steps = self._described(unread, drafter_state) if batch else (), call.steps * batch
        given = integers(*(self.draft.tokens[row] for row in self.read))
        parents = integers(*(self.draft.parents[row] for row in self.read if self.draft.parents))
        call.given, call.parents = start(given), start(parents) if parents else None
        self._record, self._drafts = array("q", bytes(32 * steps)), array("q", bytes(8 * steps * self.longest))
        self._scores, self._paths = array("f", bytes(4 * steps * (self.longest + 1))), array("q", bytes(8 * batch * self.longest))
        call.record, call.drafts, call.paths = start(self._record), start(self._drafts), start(self._paths)
        call.scores = start(self._scores)
        model.engine.library.specdec_run(model.engine.pointer, byref(call))
        del memory, given, parents
        if self.drafting is not None:
            self.drafting.end(self.runner.drafting, self.alone)
        return encoding

    def _described(self, unread: list[list[int]], drafter_state: SlottedState) -> tuple[Any, ...]:
        """Describe the rows. Returns what must be kept until the call has returned."""
        call, state, rows, alone = self.call, self.state, self.rows, self.alone
        bounds, requests, sources = rows.bounds(), rows.requests, drafter_state.sources
        tolerances = [request.tolerance or self.tolerance for request in requests]
        given = self.runner.model.engine.library.rows(
            "DecodeRow",
            position=self.positions,
            draft_length=self.lengths,
            slot=[state.slots[row] for row in alone],
            source_slot=[state.sources.slots[row] for row in alone],
            drafter_slot=[drafter_state.slots[row] for row in alone],
            drafter_source_slot=[sources.slots[row] for row in alone],
            source_length=[state.sources.lengths[row] for row in alone],
            beta=[tolerance.beta for tolerance in tolerances],
            room=bounds.room,
            minimum=bounds.minimum,
            unread=map(len, unread),
            scored=rows.scored(),
            tau=[tolerance.tau for tolerance in tolerances],
            least=self.plan.least_of(requests),
        )
        drawn, draws = self.draft.distribution, rows.draws()
        if drawn is not None and rows is not self.prefix:
            drawn = Distribution(*(each[alone] for each in drawn))
        sampling = None if draws is None else NativeSampling(draws, drawn)
        tokens, repeats = integers(*unread), NativeRepeats.of(bounds.repeats)
        call.rows, call.tokens = start(given), start(tokens)
        call.sampling, call.repeats = sampling and sampling.pointer, repeats and repeats.pointer
        return given, tokens, sampling, repeats

    def paths(self) -> list[list[int]] | None:
        """The accepted nodes of each row's tree; None of chains."""
        if not self.draft.parents:
            return None
        counts, firsts = self._record[1::4], count(0, self.longest)
        return [self._paths[first : first + accepted].tolist() for first, accepted in zip(firsts, counts)]

    def iterations(self) -> Iterations:
        """What the call has recorded. Sets the positions that the rows hold."""
        call, longest, rows = self.call, self.longest, len(self.alone)
        if not rows:
            return Iterations([], [], [])
        steps = call.taken * rows
        record = self._record[: 4 * steps].tolist()
        drafts, scores = self._drafts[: steps * longest].tolist(), self._scores[: steps * (longest + 1)].tolist()
        sizes, accepted, owns, cut = (record[field::4] for field in range(4))
        tokens = [drafts[step * longest : step * longest + size] for step, size in enumerate(sizes)]
        firsts = range(0, len(scores), longest + 1)
        wanted = self.rows.scored() * call.taken
        parts = [scores[at : at + (size + (own >= 0)) * some] for at, size, own, some in zip(firsts, accepted, owns, wanted)]
        for number, (row, position) in enumerate(zip(self.alone, self.positions)):
            self.state.held[row] = position + call.taken + sum(accepted[number::rows])
        own = [None if each < 0 else each for each in owns]
        return Iterations(list(map(Step, tokens, accepted, own)), parts, list(map(bool, cut)))
