"""Runs synchronous code for an event loop. Each call is a greenlet, of the loop's thread or of one beside it; others run while it
waits.

Waking a thread costs more than most else, so it happens once for all calls that a pass ends. Small calls run on the loop's own
thread. What takes longer runs on `BESIDE`, where only code that holds the interpreter lock can hold up the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import Generic, TypeVar

from specdec_plugins.extras import needed

with needed("serve", "AsyncTranslator"):
    from greenlet import greenlet

Result = TypeVar("Result")
BESIDE = ThreadPoolExecutor(1, "texts")  # one for all models: they share the interpreter lock


class Calls:
    """The calls of a loop that are ready to continue, on its own thread or ``beside`` it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, beside: bool = False):
        self.loop, self.beside = loop, beside
        self._rung: deque[Call] = deque()
        self._due = False  # whether the thread will look
        self.running = 0

    def ring(self, call: "Call") -> None:
        """Mark a call as ready, from any thread."""
        self._rung.append(call)
        if not self._due:
            self._due = True
            self.post(self._answer)

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job`` on the calls' thread."""
        with suppress(RuntimeError):  # the loop has closed, or the process ends, and so have its calls
            if self.beside:
                BESIDE.submit(job)
            else:
                self.loop.call_soon_threadsafe(job)

    def tell(self, job: Callable[[], object]) -> None:
        """From a call: run ``job`` on the loop's thread, after all earlier ones."""
        if not self.beside:
            job()
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(job)

    def _answer(self) -> None:
        self._due = False  # before looking: who rings from now on has the thread look again
        for _ in range(len(self._rung)):
            self._rung.popleft().resume()


class Call(Generic[Result]):
    """Work with a future result."""

    def __init__(self, calls: Calls):
        self.calls, self.ended = calls, False
        self.future: asyncio.Future[Result] = calls.loop.create_future()
        self._greenlet: greenlet | None = None

    def start(self, work: Callable[[], Result]) -> None:
        """Do ``work``, until it waits for the first time. Beside the loop, this returns at once."""
        if self.calls.beside:
            self.calls.post(partial(self._start, work))
        else:
            self._start(work)

    def ring(self) -> None:
        self.calls.ring(self)

    def wait(self) -> None:
        """Called by the work: return to the thread until it resumes the call."""
        assert self._greenlet is not None
        self._greenlet.parent.switch()

    def resume(self) -> None:
        """On the calls' thread: let the work continue."""
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.switch()

    def end(self) -> None:
        """Have the work see at once that it was cancelled."""
        if self.calls.beside:
            self.ring()
        else:
            self.resume()

    def _start(self, work: Callable[[], Result]) -> None:
        if self.future.done():  # cancelled before it began
            return
        self._greenlet = greenlet(self._run)
        self.calls.running += 1
        self._greenlet.switch(work)

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            settle = partial(self._settle, work(), None)
        except Exception as error:
            clear_frames(error.__traceback__)  # or all that they hold would be garbage for a full collection: error refers to us
            settle = partial(self._settle, None, error)
        self.ended = True
        self.calls.running -= 1
        self.calls.tell(settle)

    def _settle(self, result: Result | None, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)  # type: ignore[arg-type]
        else:
            self.future.set_exception(error)
