"""Statistics of the loop. Imports torch only to time a GPU, so that processes which only add up need none."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .values import Hypothesis, Step


@dataclass
class DecodeStats:
    """Running sums. Always: committed = accepted + own tokens."""

    sentences: int = 0
    passes: int = 0  # of the verifier, over a whole batch
    iterations: int = 0  # passes, counted once per row
    drafted: int = 0  # tokens offered for verification
    accepted: int = 0
    own_tokens: int = 0  # the verifier's own, recovered or bonus
    cut: int = 0  # outputs that the length limit ended
    prefilled: int = 0  # forced tokens of outputs, not committed by iterations
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

    def __add__(self, other: "DecodeStats") -> "DecodeStats":
        """The sums over both."""
        counts = ("sentences", "passes", "iterations", "drafted", "accepted", "own_tokens", "cut", "prefilled")
        return DecodeStats(
            **{name: getattr(self, name) + getattr(other, name) for name in counts}, lengths=self.lengths + other.lengths,
            seconds={name: seconds + other.seconds[name] for name, seconds in self.seconds.items()},
        )  # fmt: skip

    def record(self, steps: Sequence["Step"], passes: int, length: int) -> None:
        """Count passes over the batch and their steps, one per row and pass; the longest planned draft had ``length`` tokens."""
        rows, (drafts, accepted, own) = len(steps) // passes, zip(*steps)
        self.lengths.update(length if any(drafts[at : at + rows]) else 0 for at in range(0, passes * rows, rows))
        self.passes += passes
        self.iterations += len(steps)
        self.drafted += sum(map(len, drafts))
        self.accepted += sum(accepted)
        self.own_tokens += len(own) - own.count(None)

    def book(self, **seconds: float) -> None:
        """Book parts of the time since the last lap by name; the rest belongs to the next lap."""
        for what, part in seconds.items():
            self.seconds[what] += part
            self._since += part

    def finish(self, hypothesis: "Hypothesis") -> None:
        self.sentences += 1
        self.cut += hypothesis.cut

    def lap(self, what: str | None, device: "torch.device") -> None:
        """Book the time since the last lap under ``what``, or not at all. On a GPU, events keep the host from waiting."""
        if device.type == "cuda":
            import torch

            mark = torch.cuda.Event(enable_timing=True)
            mark.record(torch.cuda.current_stream(device))
            self._marks.append((what, mark))
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
