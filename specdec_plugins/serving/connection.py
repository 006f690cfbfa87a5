"""HTTP connections: uvicorn's h11, which bounds the size of headers, and here the time that they take, what is read at a time,
and clients that close their side once they have asked.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 20.0  # seconds for a request's headers
READ = 1 << 12  # bytes at a time: h11 takes 20 µs for each chunk of a body, and a chunk may be one byte
BEGINNING = b"HTTP/1.1 "  # of every answer
PROBES = 0.0, 0.1, 1.0, 5.0  # seconds between the first characters of an answer that is not there yet


class Patient(H11Protocol):
    """Closes a connection whose headers do not arrive. Answers clients that close their side of it (`Begun`)."""

    late: asyncio.TimerHandle | None = None
    ended = False  # whether the client sends no more

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

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: there is an answer to send."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        self.ended = True
        if not cycle.response_started:
            cycle.transport = Begun(self.transport, self.loop)  # type: ignore[assignment]
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.ended and self.cycle.response_complete:  # otherwise the client had sent another request
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()


class Begun:
    """The transport of an answer whose client sends no more: it waits, or it has left, which looks the same until something is
    sent. So the characters with which every answer begins are sent ahead, one at a time. If the client has left, the second or a
    later one ends the connection, and with it the work."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self.transport, self.loop, self.sent = transport, loop, 0
        self.next: asyncio.TimerHandle | None = None
        self._probe()

    def write(self, data: bytes) -> None:
        if self.next is not None:
            self.next.cancel()
        self.transport.write(data[self.sent :])
        self.sent = 0

    def close(self) -> None:
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def _probe(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(BEGINNING[self.sent : self.sent + 1])
        self.sent += 1
        self.next = self.loop.call_later(PROBES[self.sent], self._probe) if self.sent < len(PROBES) else None
