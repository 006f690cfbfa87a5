"""The throughput controller: drafts as many tokens as pay, and none where drafts do not pay.

Expected tokens per second of a length = tokens by the acceptance estimate / seconds by the cost model, both measured while
decoding. Estimates are noisy, so the choice changes only for a clear gain (hysteresis); other lengths are tried from time to time
(`exploration`). Batches with similar numbers of rows form a class with its own cost model, because costs are no simple function
of the rows: kernels change their blocking, and threads the way they split the work.

A plan holds for several iterations. Its first call is measured, as the mean of its iterations; in small batches without the first
one, for which processor caches are cold. The rest repeats the class's choice unmeasured. A plain iteration can take less than 100
microseconds and a decision some 50, so plans grow longer over time. Acceptance is learned from all iterations.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate, CopyEstimate
from specdec_plugins.decoding.control.costs import CostModel, Pace
from specdec_plugins.decoding.control.exploration import BUDGET, CREDIT, SEARCH_BUDGET, TrialBudget, Trials
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Expected, Outcome, Plan, uniform

LONGEST = 2  # longest draft, in block sizes
LEAST = 0.5  # a confident draft ends where it is more likely to be refused than accepted
SEARCHED = 8  # largest block size for beam searches, whose passes seldom replay more than a few steps
# Expected tokens per second, relative to the present choice or to plain passes:
GAIN, SWITCH = 1.015, 1.05  # what another choice must promise (hysteresis)
RESUMED = 1.3  # what drafts must promise for the last rows of a plain batch to resume drafting soon
DECISION = 2  # measurements between decisions; a trial or a surprising cost brings the next one forward
CLASSES = 4  # per doubling of the rows: those of a class differ by up to a fifth
SMALL = 4  # rows of a small batch, at most: reading weights dominates a pass, so drafts are likely to pay
# Time one pass in N; timing every pass would be measurable itself. While lengths are tried, because outputs may end soon; at
# first where nothing is drafted; at last.
TRYING_SPACING, PLAIN_SPACING, LAST_SPACING = 8, 32, 128
SPACING_STEP = 24  # passes after which N grows by one
# Plain passes that follow when rows leave a plain batch: it may be ending, and a drafter with a model would first have to read
# all outputs. The first where drafts promise a large gain.
HOLD, LONG_HOLD = 8, 64
VARIATION = 4  # measured drafts differ from the choice by up to a fourth, which gives the cost model its slope


def class_of(rows: int) -> int:
    return round(CLASSES * math.log2(max(1, rows)))


def is_small(key: int) -> bool:
    return key <= class_of(SMALL)


def nearest(keys: Iterable[int], key: int) -> int | None:
    """The most similar of some classes, among those that are small or large like ``key``."""
    alike = [other for other in keys if is_small(other) == is_small(key)]
    return min(alike, key=lambda other: abs(other - key), default=None)


@dataclass(eq=False)
class BatchClass:
    """What is known about batches of similar size."""

    key: int  # `class_of` the rows
    trials: Trials
    costs: CostModel = field(default_factory=CostModel)
    choice: int = 0  # the draft length; before the first decision, that of a similar class
    promise: float = math.inf  # expected tokens per second of the choice, relative to plain passes, when it was made
    expected: list[Expected] = field(default_factory=list)  # by draft length, as of the last decision; empty: unknown
    passes: int = 0
    decide_at: int = 0  # the pass from which the choice is reconsidered
    repeat_until: int = 0  # the pass up to which the choice is repeated without measuring

    @property
    def spacing(self) -> int:
        """One pass in this many is measured."""
        if self.trials.series:
            return TRYING_SPACING
        first = TRYING_SPACING if self.choice else PLAIN_SPACING
        return min(LAST_SPACING, first + self.passes // SPACING_STEP)

    def varied(self, longest: int) -> int:
        """The choice; in one measurement of four, up to a fourth less or more."""
        change = (0, 0, 0, -1, 0, 0, 0, 1)[self.passes // self.spacing % 8] * (self.choice // VARIATION)
        return min(self.choice + change, longest)


def best_choice(rates: Sequence[float], present: int | None) -> int:
    """The length of the highest rate if it is clearly better than the present one; otherwise that one."""
    best = max(range(len(rates)), key=rates.__getitem__)
    if present is None or present >= len(rates) or rates[best] > (GAIN if present and best else SWITCH) * rates[present]:
        return best
    return present


def offered(outcome: Outcome) -> int:
    """Mean tokens per draft, at least one: an iteration whose drafter had nothing to offer costs more than a plain one."""
    return max(1, round(sum(len(step.drafted) for step in outcome.steps) / len(outcome.steps)))


class Throughput:
    """For a drafter trained on blocks of ``block_size`` tokens.

    A drafter that copies text (``copies``) has nothing to catch up with after plain passes, so the last rows of a batch draft at
    once. Drafts of a ``confident`` one end below the probability `LEAST`.

    Where the rows are those of beam ``searches``, a pass reads several nodes for each and drafts seldom pay, so trials are
    rationed in all batches. Such a batch counts as large as it may become: a search begins with one row.
    """

    def __init__(self, block_size: int, copies: bool = False, confident: bool = False, searches: bool = False):
        self.block_size = min(block_size, SEARCHED) if searches else block_size
        self.longest, self.searches = LONGEST * self.block_size, searches
        self.copies = copies and not searches
        self.acceptance = (CopyEstimate if self.copies else AcceptanceEstimate)(self.longest)
        self.least, self.catches_up = LEAST if confident and not searches else 0.0, not self.copies
        self.pace, self.budget = Pace(), TrialBudget(SEARCH_BUDGET if searches else BUDGET)
        self.classes: dict[int, BatchClass] = {}
        self.decided: list[BatchClass] = []  # classes with a decision of their own, in order
        self._batch = self._new_class(0)  # of the last step; a placeholder before the first
        self._rows = self._choice = 0  # rows of the last step; choice of the last step that was no repetition
        self._trial = 0  # passes left of the present trial
        self._again = uniform(0, 0)  # the plan to repeat
        self._again_until = 0  # the pass of its class before which a repetition may start; it may end later
        self._measured = self._comparable = False  # whether the present step is measured; whether its cost is typical

    def plan(self, prefix: Prefix) -> Plan:
        rows, batch = prefix.reserved if self.searches else len(prefix), self._batch
        if batch.passes < self._again_until and rows == self._rows:  # most steps end here
            batch.passes += 1
            self._measured = False
            plan = self._again
        else:
            plan = self._plan(rows)
        if len(plan.lengths) != len(prefix):
            plan = plan._replace(lengths=uniform(len(prefix), plan.lengths[0]).lengths)
        return plan

    def update(self, outcome: Outcome) -> None:
        self._batch.passes += outcome.times - 1
        if any(outcome.plan.lengths):
            self.acceptance.observe(outcome.steps, outcome.plan.lengths[0])
        if outcome.recorded:
            if self._measured:  # measure the next step instead
                self._again_until = self._batch.repeat_until = 0
            return
        self.budget.earn(outcome.seconds)
        if not self._measured:
            return
        batch, costs = self._batch, self._batch.costs
        if self._trial:
            self._trial = max(0, self._trial - outcome.times)
            if not self._trial:
                batch.decide_at = 0
            batch.trials.seconds += outcome.seconds
            if batch.trials.rationed:
                self.budget.spend(outcome.seconds)
        warm = outcome.warm if batch.trials.small else None  # large batches take longer, and their rows end often
        typical = warm or outcome
        size, seconds = self._choice and offered(typical), typical.seconds / typical.times
        counts = warm is not None or (self._comparable and not costs.warm(size))
        if counts and costs.observe(size, self.pace.normalised(seconds, size, costs), warm is not None):
            batch.decide_at = 0

    def _plan(self, rows: int) -> Plan:
        """Choose a length, and the plan to repeat after it."""
        key = class_of(rows)
        if key not in self.classes:
            self.classes[key] = self._new_class(key)
        batch = self.classes[key]
        if batch is not self._batch:
            self._batch, self._trial = batch, 0
        was_plain, grown = self._choice == 0, rows > self._rows
        ending, self._rows = was_plain and rows < self._rows and self.catches_up, rows
        self._measured = batch.passes >= batch.repeat_until and not ending
        self._choice = self._choose(batch) if self._measured else 0 if ending else batch.choice
        batch.passes += 1
        # The first pass allocates, a drafter that paused has to catch up, and new sentences have to be encoded.
        catching_up = was_plain and self._choice > 0 and self.catches_up
        self._comparable = batch.passes > 1 and not grown and not catching_up
        self._again_until = 0
        if self._trial:
            alone = catching_up and not batch.trials.small
            return self._uniform(rows, self._choice, 1 if alone else self._trial)
        if self._measured:
            batch.repeat_until = batch.passes + batch.spacing - 1
        if ending:
            choice, times = 0, HOLD if batch.promise > RESUMED else LONG_HOLD
            self._again_until = batch.passes + times - 1
        else:
            choice, times, self._again_until = batch.choice, batch.spacing, batch.repeat_until
        self._again = self._uniform(rows, choice, times, ending)
        return self._uniform(rows, self._choice, times, ending)

    def _uniform(self, rows: int, length: int, times: int, ending: bool = False) -> Plan:
        expected = [] if ending else self._batch.expected  # catching up has a cost of its own
        return uniform(rows, length, times, least=self.least)._replace(expects=expected[length] if expected else None)

    def _new_class(self, key: int) -> BatchClass:
        # The last rows of a batch are few only for a moment, so the cost of trials counts. (Other drafters wait there.)
        ending = self.copies and any(other > key for other in self.classes)
        small = is_small(key) and not ending and not self.searches
        batch = BatchClass(key, Trials(self.block_size, small))
        if self.searches:
            batch.trials.end_series(0)
        if self.decided:
            similar = self._similar(batch)
            batch.choice = similar.choice
            batch.trials.follow(similar.choice, fewer=similar.key < key)
        elif small:
            batch.choice = batch.trials.short
        return batch

    def _choose(self, batch: BatchClass) -> int:
        """The length of a measured step."""
        if self._trial:
            return self._choice
        if not batch.trials.small and batch.costs.plain < math.inf:
            self.budget.begin(CREDIT * batch.costs.plain)
        affordable = batch.trials.affordable(self.budget, batch.costs.plain)
        if batch.trials.series:
            trial = batch.trials.initial(batch.passes, affordable)
            if trial is None:
                batch.choice = self._similar(batch).choice
                return batch.choice
        else:
            if batch.passes >= batch.decide_at:
                self._decide(batch)
            trial = batch.trials.periodic(batch.passes, batch.choice, self.longest, affordable)
            if trial is None:
                return batch.varied(self.longest)
        self._trial = batch.trials.passes
        if trial and not batch.choice:  # old figures may be of harder sentences, or of cold caches
            self.acceptance.fade()
            batch.costs.doubt(batch.trials.drafts if self.catches_up else [*batch.costs.measured])
        return trial

    def _similar(self, batch: BatchClass) -> BatchClass:
        """The nearest class with a decision of its own, or the class itself."""
        key = nearest((other.key for other in self.decided), batch.key)
        return batch if key is None else self.classes[key]

    def _decide(self, batch: BatchClass) -> None:
        """Reconsider the choice of a class, by expected tokens per second with a draft of 0, 1, .. tokens; 0 where the cost is
        unknown."""
        present = batch.choice if batch in self.decided else None
        if present is None:
            self.decided.append(batch)
        tokens, seconds = self.acceptance.expected_tokens(), self.acceptance.expected_seconds(batch.costs)
        rates = [committed / cost for committed, cost in zip(tokens, seconds)]
        choice = best_choice(rates, present)
        batch.promise = rates[choice] / rates[0] if rates[0] else math.inf
        if rates[0] and (best := max(rates[1:])):
            batch.expected = [Expected(max(1.0, cost / seconds[0]), best / rates[0]) for cost in seconds]  # no draft is faster
        if choice != batch.choice:
            batch.choice = choice
            batch.trials.restart(choice > 0)
        batch.decide_at = batch.passes + DECISION * batch.spacing
