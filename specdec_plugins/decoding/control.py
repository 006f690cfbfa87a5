"""How many tokens the next draft has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedLength:
    """Always the same block size K; 0 is plain autoregressive decoding."""

    length: int

    def next_length(self) -> int:
        return self.length

    def update(self, drafted: int, accepted: int) -> None:
        """Told after each pass how many tokens the batch was offered, and how many passed."""
