"""Exploration: which length is tried next, when, and what trials may cost.

The cost model and the acceptance estimate know only what was decoded. Each class of batches therefore begins with a series of
trials, and later tries something else from time to time, less and less often while the decision stays the same. In large batches
a draft can take as long as many plain passes, and with few rows there may be nothing to gain for hours: there trials are paid
from a budget, a share of all time.
"""

from dataclasses import dataclass, field

BUDGET = 0.01  # share of all time that trials may take where they are rationed
LARGE_CREDIT = 10  # plain passes that trials in large batches may take at the start: drafts that pay are not missed for long
MIN_TRIAL = 5  # plain passes that a trial takes at least; what the last one took is known better
SMALL_TRIAL, LARGE_TRIAL = 5, 2  # passes of a trial: the first after plain passes is no measurement, as the drafter catches up,
# and the others are one call, as other calls are: a pass takes longer where Python ran before it
WARM_START = 16  # passes in a new class of batches before the first trial, where similar classes tell what to do until then
FIRST_INTERVAL, LAST_INTERVAL = 32, 512  # passes between trials: doubled after each
RATIONED_INTERVAL = 256  # passes: from this interval on, small batches that do not draft pay from the budget, too


@dataclass
class TrialBudget:
    """Seconds that trials may still take."""

    seconds: float = 0.0
    share: float = BUDGET
    begun: set[bool] = field(default_factory=set)  # kinds of batches that had their credit

    def earn(self, seconds: float) -> None:
        """Called with all time that passes, in trials or not."""
        self.seconds += self.share * seconds

    def begin(self, small: bool, seconds: float) -> None:
        """Give credit for the first trials in small or in large batches, once for each."""
        if small not in self.begun:
            self.begun.add(small)
            self.seconds += seconds

    def spend(self, seconds: float) -> None:
        self.seconds -= seconds

    def allows(self, seconds: float) -> bool:
        return seconds < self.seconds


class Trials:
    """Schedule of one class of batches, in passes of that class.

    ``small`` batches are likely to gain from drafts: they try long and short ones and none, and once more unless drafts lose
    clearly. Large ones are likely to be slowed down by drafts: they try a short one.
    """

    def __init__(self, block_size: int, small: bool):
        third = max(1, block_size // 3)
        self.block_size, self.small, self.passes = block_size, small, SMALL_TRIAL if small else LARGE_TRIAL
        self.drafts = (block_size, third) if small else (third, max(1, third // 2))  # lengths to try where nothing is drafted
        once = [*self.drafts, 0]
        self.series = once * 2 if small else [third]  # lengths still to try before the first decision
        self.repetition = once if small else None  # the part of the series that is left out where drafts lose clearly
        self.turn = 0
        self.due = 0  # the pass from which the next trial may be made
        self.checking = False  # whether what it tries first is the choice that it follows
        self.intervals = {False: FIRST_INTERVAL, True: FIRST_INTERVAL}  # by whether drafts are chosen
        self.seconds = 0.0  # that the last trial took

    def follow(self, choice: int, fewer: bool) -> None:
        """Begin with the choice of a similar class, of ``fewer`` rows or of more, and try nothing for a while. But drafts that
        pay with fewer rows may not pay here: large batches compare them with plain passes at once.
        """
        self.checking = choice > 0 and fewer and not self.small
        if self.checking:
            self.series = [choice, 0]
        else:
            self.due = WARM_START

    @property
    def rationed(self) -> bool:
        """Whether trials are paid from the budget, where nothing is drafted."""
        return not (self.small or self.checking) or self.intervals[False] >= RATIONED_INTERVAL

    def affordable(self, budget: TrialBudget, plain: float) -> bool:
        """Whether the budget has enough for one more trial; ``plain`` seconds of a plain pass."""
        return budget.allows(max(self.seconds, MIN_TRIAL * plain))

    def once_more(self) -> bool:
        """Whether everything was tried once, and the series begins again."""
        return self.series == self.repetition

    def end_series(self, now: int) -> None:
        self.series, self.due = [], now + FIRST_INTERVAL

    def initial(self, now: int, affordable: bool) -> int | None:
        """The next length of the series, if it is time for one at pass ``now``."""
        if now < self.due or not (affordable or self.small or self.checking):
            return None
        length = self.series.pop(0)
        if not self.series:
            self.due = now + FIRST_INTERVAL
        self.seconds = 0.0
        return length

    def periodic(self, now: int, chosen: int, affordable: bool) -> int | None:
        """A length other than ``chosen``, if it is time for a trial at pass ``now``."""
        drafting = chosen > 0
        if now < self.due or not (affordable or drafting or not self.rationed):
            return None
        self.checking = False
        self.intervals[drafting] = interval = min(2 * self.intervals[drafting], LAST_INTERVAL)
        self.due = now + interval
        self.seconds = 0.0
        turn, self.turn = self.turn, self.turn + 1
        long, short = self.drafts
        lengths = [length for length in ((self.block_size, 0, short) if drafting else (short, long)) if length != chosen]
        return lengths[turn % len(lengths)]

    def restart(self, drafting: bool) -> None:
        """Try more often again, as the decision changed. Where drafts were soon given up, they are tried as seldom as before."""
        if drafting or self.intervals[True] >= RATIONED_INTERVAL:
            self.intervals[drafting] = FIRST_INTERVAL
