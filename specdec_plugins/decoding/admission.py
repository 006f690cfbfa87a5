"""Admission of waiting requests, bounded by rows, tokens in flight and bytes of cache.

Knows nothing about models. Requests join in the order of submission; the caller chooses it, for instance longest sources first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request

PATIENCE = 32  # most steps that a free row waits for others: about the length of an output


@dataclass
class BoundedAdmission:
    """At most ``rows`` rows, ``tokens`` source tokens (including padding) and ``bytes`` of cache.

    Requests join a quarter of the batch at a time, because encoding them one by one costs more, and each with its whole group. A
    request that exceeds a bound by itself is decoded alone. ``bytes_for`` is the memory that a request takes.
    """

    rows: int
    tokens: int | None = None
    bytes: int | None = None
    bytes_for: Callable[[Request], int] | None = None
    _waited: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a batch of {self.rows} rows; it needs at least one")

    def admits(self, prefix: Prefix, waiting: Sequence[Request]) -> int:
        """How many of the first waiting requests join now."""
        reserved = prefix.reserved
        if reserved >= self.rows or not waiting:
            return 0
        fitting, capacity = self._fitting(prefix, reserved, waiting)
        free = capacity - reserved
        self._waited += 1
        if not fitting or (len(prefix) and 4 * free < capacity and self._waited <= PATIENCE):
            return 0
        self._waited = 0
        return fitting

    def _fitting(self, prefix: Prefix, rows: int, waiting: Sequence[Request]) -> tuple[int, int]:
        """The number of waiting requests that fit beside ``rows``, and the rows of a full batch of such requests."""
        longest = used = fitting = 0
        capacity = self.rows
        if self.tokens is not None:
            longest = max((len(request.tokens) for request in prefix.requests), default=0)
        if self.bytes is not None and self.bytes_for:
            used = sum(map(self.bytes_for, {request.index: request for request in prefix.requests}.values()))
        for request in waiting:
            size = request.rows
            rows += size
            if self.tokens is not None:
                longest = max(longest, len(request.tokens))
                capacity = max(1, min(self.rows, self.tokens // longest))
            if self.bytes is not None and self.bytes_for:
                used += self.bytes_for(request)
            alone = rows == size
            if not alone and (rows > capacity or (self.bytes is not None and used > self.bytes)):
                break
            fitting += 1
        return fitting, capacity
