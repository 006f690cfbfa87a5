"""What the decoding loop and a controller hand to each other.

Each step the loop asks for a plan, carries it out, and reports the outcome with the seconds that it took. A controller keeps no
clock: its decisions depend on its inputs alone, so a recorded session can be replayed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from specdec_plugins.decoding.values import Prefix, Step


class Plan(NamedTuple):
    """What the next step does."""

    lengths: Sequence[int]  # drafted tokens that each row is given at most; 0 for all: a plain step, at a plain step's cost


class Outcome(NamedTuple):
    """What became of a plan."""

    plan: Plan
    steps: Sequence[Step]  # one for each row
    seconds: float  # of draft, verification and commit, by the loop's clock


class Controller(Protocol):
    def plan(self, prefix: Prefix) -> Plan:
        """The next step for the ``len(prefix)`` rows in flight; ``prefix.room`` has the tokens that each may still commit.

        The loop offers no row more than its room, so a plan may ask for more.
        """

    def update(self, outcome: Outcome) -> None:
        """Called once after each plan."""


@lru_cache(maxsize=1024)
def uniform(rows: int, length: int) -> Plan:
    """The plan that gives each row as many tokens. Shared between steps, as a plain step can take less than 100 microseconds."""
    return Plan((length,) * rows)
