"""Classes of batches: what a controller knows about decoding a similar number of rows.

Costs are measured for each class by itself, since they are no simple function of the rows: kernels change their blocking, and
threads their shares. A class holds numbers of rows within about a fifth of each other.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from specdec_plugins.decoding.control.costs import CostModel
from specdec_plugins.decoding.control.exploration import Trials

CLASSES = 4  # for each doubling of the rows
SMALL = 4  # rows that a small batch has at most: reading weights takes most of a pass, so that drafts are likely to pay
TRYING_SPACING = 4  # passes, before the first decision: outputs may be as short as a few long plans
# Of so many passes one is measured, as measuring would show where passes are short: of plain ones at first, of drafts at first,
# and of both at last.
PLAIN_SPACING, DRAFTED_SPACING, LAST_SPACING = 32, 1, 128
SPACING_STEP = 24  # passes after which there is one pass more between measurements
# Plain passes that follow when rows get fewer, as the batch may be ending, and a drafter with a model would have to read all of
# its outputs: where drafts promise a large gain, and where they do not.
HOLD, LONG_HOLD = 8, 64
VARIATION = 4  # a measured draft differs from the choice by up to a fourth, so that the slope of the costs is known


def class_of(rows: int) -> int:
    return round(CLASSES * math.log2(max(1, rows)))


def is_small(key: int) -> bool:
    return key <= class_of(SMALL)


def nearest(keys: Iterable[int], key: int) -> int | None:
    """Of some classes the most similar one that is small or large alike."""
    alike = [other for other in keys if is_small(other) == is_small(key)]
    return min(alike, key=lambda other: abs(other - key), default=None)


@dataclass(eq=False)
class BatchClass:
    """What is known of batches of similar size."""

    key: int  # `class_of` the rows
    trials: Trials
    costs: CostModel = field(default_factory=CostModel)
    choice: int = 0  # the draft length; before the first decision, that of a similar class
    promise: float = math.inf  # tokens a second of the choice, relative to plain passes, when it was made
    passes: int = 0
    decide_at: int = 0  # the pass from which the choice is reconsidered
    repeat_until: int = 0  # the pass up to which the choice is repeated unmeasured

    @property
    def spacing(self) -> int:
        """Of so many passes one is measured."""
        if self.trials.series:
            return TRYING_SPACING
        first = DRAFTED_SPACING if self.choice else PLAIN_SPACING
        return min(LAST_SPACING, first + self.passes // SPACING_STEP)

    def varied(self, longest: int) -> int:
        """The choice, at one measurement in four a fourth less or more."""
        change = (0, 0, 0, -1, 0, 0, 0, 1)[self.passes // self.spacing % 8] * (self.choice // VARIATION)
        return min(self.choice + change, longest)
