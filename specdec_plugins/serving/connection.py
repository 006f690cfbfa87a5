"""HTTP connections: uvicorn's h11, which bounds the size of headers, and here the time that they take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 20.0  # seconds for a request's headers
READ = 1 << 12  # bytes at a time: h11 takes 20 µs for each chunk of a body, and a chunk may be one byte


class Patient(H11Protocol):
    """Closes a connection whose headers do not arrive."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = READ  # asyncio's, usually 256 KiB
        self.late = self.loop.call_later(HEADERS, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between = self.cycle is None or self.cycle.response_complete  # a request has begun, but not its answer
        if self.late is not None and not between:
            self.late.cancel()
            self.late = None
        elif self.late is None and between:
            self.late = self.loop.call_later(HEADERS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()
