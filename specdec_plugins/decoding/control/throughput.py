"""The policy that commits most tokens a second: it drafts as many tokens as pay, and none where drafts do not pay.

Tokens a second of a length = what the acceptance estimate expects it to commit / what the cost model expects it to take. Both are
measured while decoding. Costs differ with the number of rows, so there is a cost model for each class of batches (`batches`). The
choice changes only if the gain is clear (hysteresis), since estimates are noisy; lengths that are not chosen are tried at times
(`exploration`).

Most steps repeat the class's choice, and are not measured. A plain step can take less than 100 microseconds; repeating its plan
takes 0.16, and deciding anew some 50, so that is done at one plain step in 32. What passes of drafts is learned from all steps.
"""

from collections.abc import Sequence, Sized

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate
from specdec_plugins.decoding.control.batches import BatchClass, class_of, is_small
from specdec_plugins.decoding.control.costs import Pace
from specdec_plugins.decoding.control.exploration import FIRST_INTERVAL, WARM_START, Budget, Trials
from specdec_plugins.decoding.control.learned import Learned
from specdec_plugins.decoding.options import OPEN, Gate
from specdec_plugins.decoding.values import Outcome, Plan, uniform

LONGEST = 2  # block sizes: the longest draft
GAIN, GAIN_FROM_PLAIN = 1.03, 1.1  # tokens a second that another choice must promise, relative to the present one (hysteresis)
DECISION = 8  # passes after which the choice is reconsidered; at once if a cost is not as expected
HOLD = 8  # plain passes that follow when rows get fewer: the batch may be ending, and the drafter would catch up in vain


def best_length(tokens: Sequence[float], seconds: Sequence[float], present: int | None) -> int:
    """The length of most tokens a second, if it is clearly better than the present choice; else that one.

    ``tokens`` and ``seconds`` are those of an iteration with a draft of 0, 1, .. tokens, as far as they are known.
    """
    rates = [committed / cost for committed, cost in zip(tokens, seconds)]
    best = max(range(len(rates)), key=rates.__getitem__)
    if present is None or present >= len(rates) or rates[best] > (GAIN if present else GAIN_FROM_PLAIN) * rates[present]:
        return best
    return present


class Throughput:
    """For a drafter that was trained on blocks of ``block_size`` tokens; drafts pass the ``gate``. What was ``learned``
    before is where it starts from.
    """

    def __init__(self, block_size: int, gate: Gate = OPEN, learned: Learned | None = None):
        self.gate = gate
        self.block_size, self.longest = block_size, LONGEST * block_size
        self.acceptance = AcceptanceEstimate(self.longest)
        self.pace, self.budget = Pace(), Budget()
        self.classes: dict[int, BatchClass] = {}
        self.decided: list[BatchClass] = []  # classes with a choice of their own, in the order of their first decisions
        self._batch = self._new_class(0)  # class of the last step; a placeholder before the first
        self._rows = self._length = 0  # rows of the last step; length of the last step that was no repetition
        self._trial = 0  # passes of the present trial that are still to come
        self._repeated = self._repeat_until = 0  # the length that follows the last step, and up to which pass of its class
        self._measured = self._comparable = False  # whether the present step is measured; whether its cost is like others'
        if learned is not None:
            self._start(learned)

    def _start(self, learned: Learned) -> None:
        """Begin with what was learned: nothing has to be tried before the first decision."""
        learned.start(self.acceptance, self.gate)
        for key in learned.keys([self.gate]):
            batch = self.classes[key] = self._new_class(key)
            batch.costs = learned.costs(key, self.gate)
            batch.trials.series, batch.trials.due = [], FIRST_INTERVAL
            self._decide(batch)

    def plan(self, prefix: Sized) -> Plan:
        rows, batch = len(prefix), self._batch
        if batch.passes < self._repeat_until and rows == self._rows:  # most steps end here
            times = self._repeat_until - batch.passes
            batch.passes += 1
            self._measured = False
            return uniform(rows, self._repeated, times, self.gate)
        return self._plan(rows)

    def update(self, outcome: Outcome) -> None:
        self._batch.passes += outcome.times - 1
        if any(outcome.plan.lengths):
            self.acceptance.learn(outcome)
        if not self._measured:
            return
        batch, length, seconds = self._batch, self._length, outcome.seconds
        self.budget.earn(seconds * (batch.passes - batch.measured_at))  # for the repetitions before it, too
        batch.measured_at = batch.passes
        if self._trial:
            self._trial -= 1
            self.budget.spend(seconds)
            batch.trials.seconds += seconds
        if self._comparable and batch.costs.observe(length, self.pace.normalised(seconds, length, batch.costs)):
            batch.decide_at = 0

    def _plan(self, rows: int) -> Plan:
        """Choose a length, and what is repeated after it."""
        key = class_of(rows)
        if key not in self.classes:
            self.classes[key] = self._new_class(key)
        batch = self.classes[key]
        if batch is not self._batch:
            self._batch, self._trial = batch, 0
        was_plain, grown = self._length == 0, rows > self._rows
        ending, self._rows = was_plain and rows < self._rows, rows
        self._measured = batch.passes >= batch.repeat_until and not ending
        self._length = self._choose(batch) if self._measured else 0 if ending else batch.choice
        batch.passes += 1
        # The first pass allocates, a drafter that paused has to catch up, and new sentences have to be encoded.
        self._comparable = batch.passes > 1 and not grown and not (was_plain and self._length)
        self._repeat_until = 0
        if not self._trial:
            if self._measured:
                batch.repeat_until = batch.passes + batch.spacing - 1
            self._repeat_until = batch.passes + HOLD - 1 if ending else batch.repeat_until
            self._repeated = 0 if ending else batch.choice
        return uniform(rows, self._length, 1, self.gate)

    def _new_class(self, key: int) -> BatchClass:
        return BatchClass(key, Trials(self.block_size, is_small(key), WARM_START if self.decided else 0))

    def _choose(self, batch: BatchClass) -> int:
        """The length of a step that is measured."""
        if self._trial:
            return self._length
        affordable = batch.trials.affordable(self.budget, batch.costs.plain)
        if batch.trials.series:
            trial = batch.trials.initial(batch.passes, affordable)
            if trial is None:
                batch.choice = self._similar(batch)
                return batch.choice
        else:
            if batch.passes >= batch.decide_at:
                self._decide(batch)
            trial = batch.trials.periodic(batch.passes, batch.choice, affordable)
            if trial is None:
                return batch.varied(self.longest)
        self._trial = batch.trials.passes
        return trial

    def _similar(self, batch: BatchClass) -> int:
        """The choice of the nearest class that is small or large alike; none without one."""
        alike = [other for other in self.decided if other.trials.small == batch.trials.small]
        return min(alike, key=lambda other: abs(other.key - batch.key)).choice if alike else 0

    def _decide(self, batch: BatchClass) -> None:
        """Reconsider the choice of a class."""
        batch.decide_at = batch.passes + DECISION
        present = batch.choice if batch in self.decided else None
        if present is None:
            self.decided.append(batch)
        choice = best_length(self.acceptance.expected_tokens(), batch.costs.expected(batch.costs.longest), present)
        if choice != batch.choice:
            batch.choice = choice
            batch.trials.restart()
