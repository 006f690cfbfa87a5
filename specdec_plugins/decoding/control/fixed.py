"""A fixed draft length."""

import sys
from collections.abc import Sized
from dataclasses import dataclass

from specdec_plugins.decoding.options import Tree
from specdec_plugins.decoding.values import Plan, uniform

ALWAYS = sys.maxsize  # iterations of a plan that never changes


@dataclass(frozen=True)
class FixedLength:
    """``length`` drafted tokens per row in each iteration; 0 is plain autoregressive decoding."""

    length: int
    tree: Tree | None = None

    def plan(self, prefix: Sized) -> Plan:
        return uniform(len(prefix), self.length, ALWAYS, self.tree)

    def update(self, outcome: object) -> None:
        """Learns nothing."""
