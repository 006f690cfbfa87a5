"""What the bandits share: pulls, the present choice, and what exploration may cost. A bandit adds how arms are judged.

A pull plays an arm for some iterations, and measures them together. The present choice of a class of batches is the arm of the
highest expected goodput; the longer nothing surprises, the longer its pulls. At each decision the bandit's judgement may name
another arm, for what could be learned of it: that pull is paid from a budget, by the time that it is expected to lose against
the present choice. So a wide prior costs no more than the budget, in batches of any size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate, TreeEstimates, committed
from specdec_plugins.decoding.control.arms import NONE, Arm, Estimates, Known, lengths_for, sizes_for
from specdec_plugins.decoding.control.batches import HOLD, class_of, is_small, nearest
from specdec_plugins.decoding.control.costs import Pace
from specdec_plugins.decoding.control.exploration import LARGE_CREDIT, MIN_TRIAL, WARM_START, TrialBudget
from specdec_plugins.decoding.control.learned import Learned
from specdec_plugins.decoding.options import OPEN, Gate, Tree
from specdec_plugins.decoding.values import Outcome, Plan, uniform

PULL, LARGE_PULL = 8, 3  # iterations of a pull in small and in large batches
SLOW = 1.5  # times the others' seconds an iteration: what the slowest call of a pull counts as at most
MORE, MORE_PLAIN = 24, 120  # iterations at most by which a pull of the present choice is longer; plain ones can be very short
CREDIT = 48  # plain passes that exploration may lose at the start in small batches; in large ones as in `exploration`
GAIN, GAIN_FROM_PLAIN = 1.02, 1.05  # goodput that another choice must promise, relative to the present one
SHARE = 0.003  # of all time that exploration may lose
SETTLED = 24  # pulls without a surprise: from then on the present choice follows each trial, as a decision takes time, too
DECAY = 0.995  # weight of a draft relative to the next one: similar arms are told apart by 200 drafts rather than by 100
FADING = 0.999  # of what is known about acceptance, by iteration: it is doubted after some thousand
CATCH_UP = 16  # plain passes at most that a drafter's catching up is taken to cost


class Bandit(ABC):
    """For a drafter that was trained on blocks of ``block_size`` tokens. All drafts pass the ``gate``; with further ``gates``
    there are arms for each of them, too, and with ``nodes`` for trees of up to so many tokens. What was ``learned`` before is
    where it starts from.
    """

    def __init__(
        self, block_size: int, gate: Gate = OPEN, gates: Sequence[Gate] = (), learned: Learned | None = None, nodes: int = 0
    ):  # fmt: skip
        lengths = lengths_for(block_size)
        self.gates = (gate, *gates)
        self.arms = [NONE, *(Arm(length, number) for number in range(len(self.gates)) for length in lengths)]
        self.first = {True: block_size, False: max(1, block_size // 3)}  # the draft tried first, by whether batches are small
        basis = AcceptanceEstimate(lengths[-1], decay=DECAY)
        self.trees = TreeEstimates(sizes_for(nodes), block_size, basis, DECAY)
        self.acceptance = [
            basis, *(AcceptanceEstimate(lengths[-1], basis, DECAY) for _ in gates), *self.trees.by_size.values()
        ]  # fmt: skip
        self.arms += [Arm(self.trees.depth(size), kind, size) for kind, size in enumerate(sizes_for(nodes), len(self.gates))]
        self.pace, self.budget = Pace(), TrialBudget(share=SHARE)
        self.classes: dict[int, Known] = {}
        self._key, self._rows = -1, 0
        self._arm = NONE
        self._last = NONE  # the arm of the iteration before
        self._left = 0  # iterations of the present phase: a pull, or plain iterations that are not measured
        self._call = HOLD  # iterations of a call at most: a pull has two calls or more, so that an interruption shows
        self._measured = self._exploring = False
        self._comparable = True  # not the first pass of a drafter that paused
        self._calls: list[tuple[float, int]] = []  # seconds and iterations of the present pull
        self._since = 0  # iterations since the last decision
        self._present = 0.0  # goodput that is expected of the present choice
        if learned is not None:
            self._start(learned)

    @abstractmethod
    def judge(self, estimates: Estimates) -> list[float]:
        """What speaks for each arm: goodput, with an allowance for what is not known."""

    def _start(self, learned: Learned) -> None:
        """Begin with what was learned."""
        for gate, estimate in zip(self.gates, self.acceptance):
            learned.start(estimate, gate)
        for key in learned.keys(self.gates):
            known = Known(len(self.acceptance))
            known.costs[: len(self.gates)] = [learned.costs(key, gate) for gate in self.gates]
            if known.plain < float("inf") and known.tried:
                estimates = self._estimates(known)
                expected = goodput(estimates, estimates.rates, estimates.seconds)
                known.chosen, known.decided = self.arms[max(range(len(expected)), key=expected.__getitem__)], True
                self.classes[key] = known

    def plan(self, prefix: Sized) -> Plan:
        rows = len(prefix)
        if rows != self._rows or not self._left:
            self._advance(rows)
        length, kind, nodes = self._arm
        times = min(self._left, self._call) if self._comparable else 1
        return uniform(rows, length, times, self.gates[0 if nodes else kind], Tree(nodes) if nodes else None)

    def update(self, outcome: Outcome) -> None:
        times = outcome.times
        self.budget.earn(outcome.seconds)
        self._left -= times
        self._since += times
        self._last = self._arm
        if self._measured:
            self._measure(outcome)

    def _advance(self, rows: int) -> None:
        """Go to the next phase, as the last one ended or the rows changed."""
        fewer, grown, key = rows < self._rows, rows > self._rows, class_of(rows)
        moved, self._rows, self._key = key != self._key, rows, key
        if moved:
            self._left, self._exploring = 0, False
        if fewer and not self._last.length and not self._arm.length:
            self._arm, self._measured, self._comparable, self._left, self._call = NONE, False, True, HOLD, HOLD
            return
        if not self._left:
            self._pull()
        self._comparable = not grown and (self._last.length > 0 or not self._arm.length)
        if not self._comparable:  # one iteration more
            self._left += 1

    def _measure(self, outcome: Outcome) -> None:
        """Take in iterations of a pull."""
        arm, known = self._arm, self.classes[self._key]
        known.passes += outcome.times
        if arm.length:
            (self.trees if outcome.plan.tree else self.acceptance[arm.kind]).learn(outcome)
        if not self._comparable:
            self._comparable = True
            if self._exploring and arm.length:
                plain = known.plain if known.plain < float("inf") else 0.0
                self.budget.spend(min(outcome.seconds, CATCH_UP * plain))
            return
        self._calls.append((outcome.seconds, outcome.times))
        if not self._left:
            self._settle(known)

    def _settle(self, known: Known) -> None:
        """A pull has ended."""
        arm, costs = self._arm, known.costs[self._arm.kind]
        iterations = sum(times for _, times in self._calls)
        if costs.observe(arm.length, self.pace.normalised(typical(self._calls), arm.length, costs)):
            known.stable = 0
        small = is_small(self._key)
        if not arm.length:
            self.budget.begin(small, (CREDIT if small else LARGE_CREDIT) * known.plain)
        if self._exploring:
            took, tokens = costs.measured[arm.length].seconds, self.acceptance[arm.kind].expected_tokens()[arm.length]
            self.budget.spend(iterations * max(0.0, took - tokens / self._present) if self._present else 0.0)

    def _pull(self) -> None:
        """Decide which arm is played next."""
        if self._key not in self.classes:
            self.classes[self._key] = Known(len(self.acceptance))
        known, small = self.classes[self._key], is_small(self._key)
        again = self._exploring and known.stable > SETTLED
        if known.decided and known.stable and not known.chosen.length:  # nothing was learned of drafts meanwhile
            again |= not self.budget.allows(MIN_TRIAL * known.plain)
        for estimate in self.acceptance:
            estimate.fade(FADING**self._since)
        self._since = 0
        arm = known.chosen if again else self._decide(known, small)
        self._exploring = arm != known.chosen
        self._arm, self._measured, self._calls = arm, True, []
        self._left = PULL if small else LARGE_PULL
        if known.decided and not self._exploring:
            self._left += min(MORE if arm.length else MORE_PLAIN, self._left * known.stable)
        self._call = (self._left + 1) // 2
        known.stable += 1

    def _decide(self, known: Known, small: bool) -> Arm:
        similar = self._similar()
        if not known.decided and similar is not None and known.passes < WARM_START:
            known.chosen = similar.chosen
            return known.chosen
        if known.plain == float("inf"):
            return NONE
        plain, first = known.plain, Arm(self.first[small])
        if not known.tried and similar is None:
            return first if self.budget.allows(MIN_TRIAL * plain) else NONE
        estimates = self._estimates(known)
        expected = goodput(estimates, estimates.rates, estimates.seconds)
        present, best = self.arms.index(known.chosen), max(range(len(expected)), key=expected.__getitem__)
        margin = GAIN if known.chosen.length else GAIN_FROM_PLAIN
        if not known.decided or expected[best] > margin * expected[present]:
            if self.arms[best] != known.chosen:
                known.stable = 0
            known.chosen, known.decided, present = self.arms[best], True, best
        self._present = expected[present]
        scores = self.judge(estimates)
        wanted = max(range(len(scores)), key=scores.__getitem__)
        if wanted == present:
            return known.chosen
        lost = max(0.0, 1 - expected[wanted] / expected[present]) * (PULL if small else LARGE_PULL) * estimates.seconds[wanted]
        if self.arms[wanted].length and not known.chosen.length:
            lost += MIN_TRIAL * plain
        return self.arms[wanted] if self.budget.allows(lost) else known.chosen

    def _similar(self) -> Known | None:
        """The nearest other class with a choice of its own."""
        key = nearest((key for key, known in self.classes.items() if known.decided and key != self._key), self._key)
        return None if key is None else self.classes[key]

    def _estimates(self, known: Known) -> Estimates:
        rates = [estimate.rates() for estimate in self.acceptance]
        deviations = [estimate.deviations(each) for estimate, each in zip(self.acceptance, rates)]
        return Estimates(self.arms, rates, deviations, *known.seconds(self.arms, self._similar()))


def typical(calls: Sequence[tuple[float, int]]) -> float:
    """Seconds an iteration over some calls (seconds, iterations). The slowest one may have been interrupted."""
    seconds, times = (sum(each) for each in zip(*calls))
    slowest, its_times = max(calls, key=lambda call: call[0] / call[1])
    if times > its_times:
        seconds += min(0.0, SLOW * its_times * (seconds - slowest) / (times - its_times) - slowest)
    return seconds / times


def goodput(estimates: Estimates, rates: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Tokens a second of each arm, if tokens pass at such rates (by kind and position) and iterations take such seconds."""
    tokens = [committed(each) for each in rates]
    return [tokens[arm.kind][arm.length] / cost for arm, cost in zip(estimates.arms, seconds)]
