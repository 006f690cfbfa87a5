"""Exploration: which draft length is tried next, when, and what trials may cost.

The cost model and the acceptance estimate know only what was decoded. So each class of batches begins with a series of trials
and later tries another length from time to time, less often the longer its choice stays the same. In large batches a draft can
take as long as many plain passes, and with few rows there may be nothing to gain for hours: there, trials are paid from a
budget.
"""

from dataclasses import dataclass

BUDGET = 0.01  # fraction of all time that rationed trials may take
SEARCH_BUDGET = 0.005  # the same for beam searches, where drafts seldom pay
CREDIT = 10  # plain passes that trials in large batches may cost at first, so that drafts that pay are found soon
# Passes of a trial in small and in large batches. The first one after plain passes is not measured, because the drafter catches
# up.
SMALL_TRIAL, LARGE_TRIAL = 3, 2
FIRST_INTERVAL, LAST_INTERVAL = 32, 512  # passes between trials, doubled after each


@dataclass
class TrialBudget:
    """Seconds that trials may still take: a ``share`` of all time."""

    share: float = BUDGET
    seconds: float = 0.0
    begun: bool = False  # whether the credit was given

    def earn(self, seconds: float) -> None:
        """Add the budget's fraction of time spent, in trials or not."""
        self.seconds += self.share * seconds

    def begin(self, seconds: float) -> None:
        """Give credit for the first trials, once."""
        if not self.begun:
            self.begun = True
            self.seconds += seconds

    def spend(self, seconds: float) -> None:
        self.seconds -= seconds

    def allows(self, seconds: float) -> bool:
        return seconds < self.seconds


class Trials:
    """Schedule of one class of batches, in passes of that class.

    Drafts are likely to pay in ``small`` batches, which try a longer one, none and a short one. They are likely to lose in large
    ones, which try a short one.
    """

    def __init__(self, block_size: int, small: bool):
        self.short, self.small, self.passes = max(1, block_size // 4), small, SMALL_TRIAL if small else LARGE_TRIAL
        # Lengths to try while nothing is drafted, and those still to try before the first decision.
        self.drafts = (self.short, 2 * self.short) if small else (max(1, self.short // 2), self.short)
        self.series = [2 * self.short, 0, self.short] if small else [self.short]
        self.turn = 0
        self.due = 0  # the pass from which the next trial may start
        self.checking = False  # whether it first tries the choice that it follows
        self.intervals = {False: FIRST_INTERVAL, True: FIRST_INTERVAL}  # by whether drafts are chosen
        self.seconds = 0.0  # that the last trial took

    def follow(self, choice: int, fewer: bool) -> None:
        """Begin with the choice of a similar class with ``fewer`` rows or with more, and try nothing for a while.

        Drafts that pay with fewer rows may not pay here, so large batches compare them with plain passes at once.
        """
        self.checking = choice > 0 and fewer and not self.small
        if self.checking:
            self.series = [choice, 0]
        else:
            self.due = FIRST_INTERVAL

    @property
    def rationed(self) -> bool:
        """Whether trials are paid from the budget while nothing is drafted."""
        return not (self.small or self.checking) or self.intervals[False] == LAST_INTERVAL

    def affordable(self, budget: TrialBudget, plain: float) -> bool:
        """Whether the budget allows another trial, given the seconds of a ``plain`` pass."""
        return budget.allows(max(self.seconds, SMALL_TRIAL * plain))

    def end_series(self, now: int) -> None:
        self.series, self.due = [], now + FIRST_INTERVAL

    def initial(self, now: int, affordable: bool) -> int | None:
        """The next length of the series, if a trial is due at pass ``now``."""
        if now < self.due or not (affordable or self.small or self.checking):
            return None
        length = self.series.pop(0)
        if not self.series:
            self.due = now + FIRST_INTERVAL
        self.seconds = 0.0
        return length

    def periodic(self, now: int, chosen: int, longest: int, affordable: bool) -> int | None:
        """A length up to ``longest`` to compare with the ``chosen`` one, if a trial is due at pass ``now``."""
        drafting = chosen > 0
        if now < self.due or not (affordable or drafting or not self.rationed):
            return None
        self.checking = False
        self.intervals[drafting] = interval = min(2 * self.intervals[drafting], LAST_INTERVAL)
        self.due = now + interval
        self.seconds = 0.0
        turn, self.turn = self.turn, self.turn + 1
        lengths = (0, min(2 * chosen, longest), chosen // 2) if drafting else self.drafts
        return lengths[turn % len(lengths)]

    def restart(self, drafting: bool) -> None:
        """Try more often again after the choice changed, unless drafts were given up soon after they were chosen."""
        if drafting or self.intervals[True] == LAST_INTERVAL:
            self.intervals[drafting] = FIRST_INTERVAL
