"""Runs synchronous code on an event loop. Each call is a greenlet; the loop continues while the call waits.

Waking the loop costs more than most else, so it happens once for all calls that a pass ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from specdec_plugins.extras import needed

with needed("serve", "AsyncTranslator"):
    from greenlet import greenlet

Result = TypeVar("Result")


class Calls:
    """The calls of a loop that are ready to continue."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._rung: deque[Call] = deque()
        self._due = False  # whether the loop will look

    def ring(self, call: "Call") -> None:
        """Mark a call as ready, from any thread."""
        self._rung.append(call)
        if not self._due:
            self._due = True
            with suppress(RuntimeError):  # the loop has closed, and so have its calls
                self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._due = False  # before looking: who rings from now on has the loop look again
        for _ in range(len(self._rung)):
            self._rung.popleft().resume()


class Call(Generic[Result]):
    """Work with a future result."""

    def __init__(self, calls: Calls):
        self.calls = calls
        self.future: asyncio.Future[Result] = calls.loop.create_future()
        self._greenlet = greenlet(self._run)

    @property
    def ended(self) -> bool:
        return self._greenlet.dead

    def start(self, work: Callable[[], Result]) -> None:
        """Do ``work``, until it waits for the first time."""
        self._greenlet.switch(work)

    def ring(self) -> None:
        self.calls.ring(self)

    def wait(self) -> None:
        """Called by the work: return to the loop until it resumes the call."""
        self._greenlet.parent.switch()

    def resume(self) -> None:
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            result = work()
        except Exception as error:
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)
