"""Statistics of the loop. Imports torch only to time a GPU, so that processes which only add up need none."""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .requests import Hypothesis, Step
    from .values import Expected

COUNTS = (
    "sentences",
    "passes",
    "iterations",
    "drafting",
    "drafted",
    "accepted",
    "own_tokens",
    "cut",
    "prefilled",
    "compared_tokens",
    "compared_cost",
    "plain",
    "plain_cost",
)


@dataclass
class DecodeStats:
    """Running sums. Always: committed = accepted + own tokens."""

    sentences: int = 0
    passes: int = 0  # of the verifier, over a whole batch
    iterations: int = 0  # passes, counted once per row
    drafting: int = 0  # iterations with a draft
    drafted: int = 0  # tokens offered for verification
    accepted: int = 0
    own_tokens: int = 0  # the verifier's own, recovered or bonus
    cut: int = 0  # outputs that the length limit ended
    prefilled: int = 0  # forced tokens of outputs, not committed by iterations
    # Of iterations with a planned draft whose cost the controller knew: tokens, and cost in plain iterations. Of those without
    # one: their number, and what the best drafts were expected to cost for the same tokens. See `Expected`.
    compared_tokens: int = 0
    compared_cost: float = 0.0
    plain: int = 0
    plain_cost: float = 0.0
    drafter: str | None = None  # the engine's; None: no drafts
    beam: int = 1  # the engine's beam size
    lengths: Counter[int] = field(default_factory=Counter)  # passes by longest planned draft
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("text", "encoding", "drafting", "verifying", "elsewhere"), 0.0)
    )
    _since: float = 0.0
    _marks: deque[tuple[str | None, Any]] = field(default_factory=deque)  # GPU laps, starting with the last booked one

    @property
    def committed(self) -> int:
        """Tokens of all outputs, including eos, without forced ones."""
        return self.accepted + self.own_tokens

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per verifier pass and row, including the verifier's own; 1.0 is plain decoding."""
        return self.committed / max(1, self.iterations)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per drafted token."""
        return self.accepted / max(1, self.drafted)

    @property
    def gain(self) -> float | None:
        """Tokens per second of iterations with drafts, relative to plain ones, as the controller measured both; None: unknown."""
        return self.compared_tokens / self.compared_cost if self.compared_cost else None

    @property
    def missed_gain(self) -> float | None:
        """The same for drafts of the best length where none were planned, as the controller expected it; None: unknown."""
        return self.plain / self.plain_cost if self.plain_cost else None

    def __add__(self, other: "DecodeStats") -> "DecodeStats":
        """The sums over both."""
        return DecodeStats(
            **{name: getattr(self, name) + getattr(other, name) for name in COUNTS},
            drafter=self.drafter or other.drafter,
            beam=max(self.beam, other.beam),
            lengths=self.lengths + other.lengths,
            seconds={name: seconds + other.seconds[name] for name, seconds in self.seconds.items()},
        )

    def record(self, steps: Sequence["Step"], passes: int, length: int, expected: "Expected | None" = None) -> None:
        """Count passes over the batch and their steps, one per row and pass; the longest planned draft had ``length`` tokens.
        ``expected`` is the plan's."""
        rows, (drafts, accepted, own) = len(steps) // passes, zip(*steps)
        taken, owned = sum(accepted), len(own) - own.count(None)
        self.lengths.update(length if any(drafts[at : at + rows]) else 0 for at in range(0, passes * rows, rows))
        self.passes += passes
        self.iterations += len(steps)
        self.drafting += sum(map(bool, drafts))
        self.drafted += sum(map(len, drafts))
        self.accepted += taken
        self.own_tokens += owned
        if expected is not None and not length:
            self.plain += len(steps)
            self.plain_cost += len(steps) / expected.speed
        elif expected is not None and expected.cost < math.inf:
            self.compared_tokens += taken + owned
            self.compared_cost += len(steps) * expected.cost

    def book(self, **seconds: float) -> None:
        """Book parts of the time since the last lap by name; the rest belongs to the next lap."""
        for what, part in seconds.items():
            self.seconds[what] += part
            self._since += part

    def finish(self, hypothesis: "Hypothesis") -> None:
        self.sentences += 1
        self.cut += hypothesis.cut

    def lap(self, what: str | None, device: str) -> None:
        """Book the time since the last lap under ``what``, or not at all. On a GPU, events keep the host from waiting."""
        if device.startswith("cuda"):
            from specdec_plugins.decoding.backends.torch.tensors import mark

            self._marks.append((what, mark(device)))
            return self._book()
        now = time.perf_counter()
        if what is not None:
            self.seconds[what] += now - self._since
        self._since = now

    def settle(self) -> None:
        """Wait for the GPU and book its remaining laps."""
        if self._marks:
            self._marks[-1][1].synchronize()
            self._book()
            self._marks.clear()

    def _book(self) -> None:
        while len(self._marks) > 1 and self._marks[1][1].query():
            (_, since), (what, until) = self._marks.popleft(), self._marks[0]
            if what is not None:
                self.seconds[what] += since.elapsed_time(until) / 1000  # from milliseconds
