"""Controllers: policies that plan how many tokens the next step drafts. One file a policy.

They know nothing about models, and keep no clock: see `protocol`.
"""

import time
from collections.abc import Callable, Sequence

from specdec_plugins.decoding.control.fixed import FixedLength as FixedLength
from specdec_plugins.decoding.control.protocol import Controller as Controller
from specdec_plugins.decoding.control.protocol import Outcome as Outcome
from specdec_plugins.decoding.control.protocol import Plan as Plan
from specdec_plugins.decoding.control.throughput import Throughput as Throughput
from specdec_plugins.decoding.values import Step


class Adaptive:
    """`Throughput` for callers of the protocol before `Plan`."""

    def __init__(self, block_size: int, clock: Callable[[], float] = time.perf_counter):
        self.policy, self.clock, self.planned, self.began = Throughput(block_size), clock, Plan(()), 0.0

    def next_length(self, rows: int) -> int:
        self.planned, self.began = self.policy.plan(range(rows)), self.clock()
        return self.planned.lengths[0]

    def update(self, steps: Sequence[Step]) -> None:
        self.policy.update(Outcome(self.planned, steps, self.clock() - self.began))
