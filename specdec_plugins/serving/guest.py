"""Many callers, few sessions: concurrent calls share a model's batches, and each result is `Translator.translate`'s own.

A call runs that method unchanged, on the event loop's thread or, if large, on another. Its engine's host is a `Guest`, which
queues requests for the threads that own the sessions and waits for their commits. Meanwhile other calls run.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL, Session
from specdec_plugins.decoding.requests import Commit, Hypothesis, Request
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.serving.line import Line
from specdec_plugins.sessions import Requests

Item = TypeVar("Item")
Result = TypeVar("Result")
SLICE = 0.002  # seconds that a call works on text before it gives way to others


class Cancelled(Exception):
    """Ends a call whose caller has gone."""


class Bell(Protocol):
    """Wakes a call."""

    def ring(self) -> None:
        """From any thread."""

    def wait(self) -> None:
        """Called by the call: return when somebody has rung, or earlier."""


class Guest:
    """A call's session, for the callers' thread, and its engine's host.

    With ``on_commit``, commits arrive as passes make them.
    """

    def __init__(self, line: Line, bell: Bell, on_commit: Callable[[Commit], None] | None = None):
        self.line, self.bell, self.on_commit, self.streams = line, bell, on_commit, on_commit is not None
        self.stats = DecodeStats()
        self.fresh: deque[Request] = deque()  # in no session yet
        self.inbox: deque[tuple[Commit, bool]] = deque()  # and whether it ends its request
        self.ended, self.due = list[int](), 0  # requests; how many of them wake the guest
        self.waiting: set[int] = set()  # requests that have not ended
        self.cancelled = False
        self.until = time.perf_counter() + SLICE  # when it gives way to other calls

    @property
    def idle(self) -> bool:
        return not self.waiting

    def submit(self, request: Request) -> None:
        request.check(self.line.engine.limits)
        self.waiting.add(request.index)
        self.fresh.append(request)

    def tell(self, commit: Commit, last: bool) -> None:
        """From the engine's threads. Waking costs more than most else, so it happens once for all texts of a call."""
        self.inbox.append((commit, last))
        if last:
            self.ended.append(commit.request)
        failed = commit.finished is not None and commit.finished.error is not None
        if self.streams or failed or len(self.ended) >= self.due:
            self.bell.ring()

    def fail(self, request: Request, error: Exception) -> None:
        failed = Hypothesis(request.index, [], [], [], False, error=error)
        self.tell(Commit(request.index, 0, [], [], failed), True)

    def step(self, times: int = 1) -> list[Commit]:
        """Wait for commits. Raises `Cancelled`."""
        if self.fresh:
            self.line.enter(self)
        if not self.inbox:
            self.wait()
        if self.cancelled:
            raise Cancelled
        commits = []
        while self.inbox:
            commit, last = self.inbox.popleft()
            if last:
                self.waiting.discard(commit.request)
            if self.on_commit is not None:
                self.on_commit(commit)
            commits.append(commit)
        return commits

    def run(self, requests: Sequence[Request]) -> Iterator[Hypothesis]:
        for request in requests:
            self.submit(request)
        self.due = len(self.ended) + len(self.waiting)
        while not self.idle:
            for finished in [commit.finished for commit in self.step() if commit.finished is not None]:
                if finished.error is not None:
                    raise finished.error
                yield finished
        self.due = 0

    @contextmanager
    def lend(self, key: object, make: Callable[[], Session]) -> Iterator[Requests]:
        try:
            yield self
        finally:
            if not self.idle:
                self.cancel()

    def read(self, function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
        """On an engine's thread, between passes."""
        found = list[Result]()
        for start in range(0, len(items), ITERATIONS_PER_CALL):
            done: Future[list[Result]] = Future()
            done.add_done_callback(lambda _: self.bell.ring())
            self.line.threads[0].post(partial(settle, done, partial(function, items[start : start + ITERATIONS_PER_CALL])))
            while not done.done():
                self.wait()
            found += done.result()
        return found

    def wait(self) -> None:
        """Let other calls run until the bell rings. Raises `Cancelled`."""
        began = time.perf_counter()
        if not self.cancelled:
            self.bell.wait()
        if self.cancelled:
            raise Cancelled
        now = time.perf_counter()
        self.until = now + SLICE
        self.stats.book(elsewhere=now - began)  # not text

    def give_way(self) -> None:
        """Let other calls run if this one has worked for long. Raises `Cancelled`."""
        if self.cancelled or time.perf_counter() > self.until:
            self.bell.ring()
            self.wait()

    def cancel(self) -> None:
        """End the call."""
        self.cancelled = True
        self.line.leave(self)
        self.bell.ring()


def settle(done: Future[Result], job: Callable[[], Result]) -> None:
    try:
        done.set_result(job())
    except Exception as error:
        done.set_exception(error)
