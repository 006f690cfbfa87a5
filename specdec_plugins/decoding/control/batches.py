"""Classes of batches: what a controller knows about decoding similar numbers of rows.

Costs are measured separately for each class because they are no simple function of the rows: kernels change their blocking, and
threads the way they split the work. A class holds numbers of rows within about a fifth of each other.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from specdec_plugins.decoding.control.costs import CostModel
from specdec_plugins.decoding.control.exploration import Trials

CLASSES = 4  # per doubling of the rows
SMALL = 4  # rows of a small batch, at most: reading weights dominates a pass, so drafts are likely to pay
# Time one pass in N; timing every pass would be measurable itself. While lengths are tried, because outputs may end soon; at
# first where nothing is drafted; at last.
TRYING_SPACING, PLAIN_SPACING, LAST_SPACING = 4, 32, 128
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
    passes: int = 0
    decide_at: int = 0  # the pass from which the choice is reconsidered
    repeat_until: int = 0  # the pass up to which the choice is repeated without measuring

    @property
    def spacing(self) -> int:
        """One pass in this many is measured."""
        if self.trials.series:
            return TRYING_SPACING
        first = 1 if self.choice else PLAIN_SPACING
        return min(LAST_SPACING, first + self.passes // SPACING_STEP)

    def varied(self, longest: int) -> int:
        """The choice; in one measurement of four, up to a fourth less or more."""
        change = (0, 0, 0, -1, 0, 0, 0, 1)[self.passes // self.spacing % 8] * (self.choice // VARIATION)
        return min(self.choice + change, longest)
