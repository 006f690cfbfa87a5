"""Many callers, one session: concurrent calls share a model's batch, and each result is `Translator.translate`'s own.

A call runs that method unchanged, in a thread of a pool. Only its session is replaced, by a `Guest`, which hands requests to the
thread that owns the real one and waits for what it commits. The calls of a model take turns with everything else, mostly text,
because a translator serves one thread at a time.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeVar, cast

import torch

from specdec_plugins.decoding.control.steady import Steady
from specdec_plugins.decoding.loop import TOGETHER, Session
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Commit, Hypothesis, Request
from specdec_plugins.engine import Engine
from specdec_plugins.settings import Settings

Result = TypeVar("Result")
LATENCY = 0.01  # seconds that a request waits to join, and to stream, at most; a single pass may take longer
WAKING = 0.0002  # seconds that a thread needs to take a lock that it waits for


class Cancelled(Exception):
    """Ends a call whose caller has gone."""


class EngineThread:
    """Owns the sessions of one or several models, and runs busy ones in turn."""

    def __init__(self) -> None:
        self._mail: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.desks: list[Desk] = []  # with something to do; a model that nobody uses any more is thus freed
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None] | None) -> None:
        """Run ``job`` on the thread, between passes; None ends the thread."""
        self._mail.put(job)

    def close(self) -> None:
        self.post(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.desks = [desk for desk in self.desks if desk.step()]
            try:
                job, until = self._mail.get(block=not self.desks), time.perf_counter() + LATENCY
                while job is not None:
                    job()
                    if time.perf_counter() > until:  # callers may post jobs faster than these are done
                        break
                    job = self._mail.get_nowait()
                else:
                    return
            except Empty:
                pass


class Desk:
    """The session of one model. Guests' requests join it in rotation, so that none waits for all texts of another."""

    def __init__(self, engine: Engine, rows: int, thread: EngineThread):
        self.engine, self.rows, self.thread = engine, rows, thread
        self.guests: deque[Guest] = deque()  # with requests that the session does not have yet
        self.owners: dict[int, tuple[Guest, Request]] = {}  # of the session's requests
        self.unfinished: dict[int, int] = {}  # outputs of these requests
        self._numbers = count()
        self._pass = LATENCY  # seconds of a pass
        self.session = cast(Session, None)  # until the thread has opened it, before all else
        thread.post(self._open)

    @property
    def rows_in_flight(self) -> int:
        return len(self.session.prefix) if self.session else 0

    def _open(self) -> None:
        self.session = self.engine.session(self.rows)
        if self.engine.settings.adaptive:
            searches = self.engine.beam is not None
            self.session.controller = Steady(self.session.controller, self.engine.trained_block_size, searches)

    def enter(self, guest: "Guest") -> None:
        if guest.fresh and guest not in self.guests:
            self.guests.append(guest)
        if self not in self.thread.desks:
            self.thread.desks.append(self)

    def leave(self, guest: "Guest") -> None:
        """Drop a guest's requests."""
        guest.fresh.clear()
        for number in [number for number, (owner, _) in self.owners.items() if owner is guest]:
            self._forget(number)
            self.session.cancel(number)

    def step(self) -> bool:
        """Admit requests and run passes for about `LATENCY`. Returns whether there is more to do."""
        try:
            self._fill()
            if self.session.idle:
                return False
            times = 1 if any(owner.streams for owner, _ in self.owners.values()) else int(LATENCY / self._pass)
            began, before = time.perf_counter(), self.session.stats.passes
            commits = self.session.step(max(1, min(times, TOGETHER)))
            if passes := self.session.stats.passes - before:
                self._pass = (time.perf_counter() - began) / passes
            self._deliver(commits)
        except Exception as error:  # a pass failed: all its rows are lost, and nothing else
            self._start_over(error)
        return bool(self.guests) or not self.session.idle

    def _fill(self) -> None:
        """Hand requests to the session, one of each guest in turn."""
        while self.guests and len(self.session.waiting) < self.rows:
            guest = self.guests.popleft()
            if not guest.fresh:
                continue
            number, request = next(self._numbers), guest.fresh.popleft()
            self.owners[number], self.unfinished[number] = (guest, request), request.outputs
            try:
                self.session.submit(replace(request, index=number))
            except ValueError as error:
                self._end(number, error)
            if guest.fresh:
                self.guests.append(guest)

    def _deliver(self, commits: Sequence[Commit]) -> None:
        for number, outputs in Counter(commit.request for commit in commits if commit.finished is not None).items():
            if number in self.owners and self.owners[number][1].beam is not None:
                self.unfinished[number] = outputs  # a search ends with all its outputs, which may be fewer than were asked for
        for commit in commits:
            if commit.request not in self.owners:  # further outputs of a request that failed
                continue
            guest, request = self.owners[commit.request]
            if commit.finished is not None:
                self.unfinished[commit.request] -= 1
                last = not self.unfinished[commit.request] or commit.finished.error is not None
                if last:
                    self._forget(commit.request)
                finished = replace(commit.finished, index=request.index)
                guest.inbox.put((commit._replace(request=request.index, finished=finished), last))
            elif guest.streams and commit.tokens:
                guest.inbox.put((commit._replace(request=request.index), False))

    def _end(self, number: int, error: Exception) -> None:
        """End a request with an error."""
        guest, request = self._forget(number)
        failed = Hypothesis(request.index, [], [], [], False, error=error)
        guest.inbox.put((Commit(request.index, 0, [], [], failed), True))

    def _forget(self, number: int) -> tuple["Guest", Request]:
        del self.unfinished[number]
        return self.owners.pop(number)

    def _start_over(self, error: Exception) -> None:
        """A new session with the waiting requests of the old one; those in flight end with the error."""
        waiting = list(self.session.waiting)
        self._open()
        for request in waiting:
            self.session.submit(request)
        for number in self.owners.keys() - {request.index for request in waiting}:
            self._end(number, RuntimeError(f"{type(error).__name__}: {error}"))


class Guest:
    """A call's view of a shared session: what an engine uses of `Session`, for the call's own thread.

    ``turn`` is released while the guest waits. With ``on_commit``, commits arrive as passes make them.
    """

    def __init__(self, desk: Desk, turn: Lock, on_commit: Callable[[Commit], None] | None = None):
        self.desk, self.turn, self.on_commit, self.streams = desk, turn, on_commit, on_commit is not None
        self.stats = DecodeStats()
        self.fresh: deque[Request] = deque()  # not in the session yet
        self.inbox: SimpleQueue[tuple[Commit, bool] | None] = SimpleQueue()  # and whether it ends its request; None: cancelled
        self.waiting: set[int] = set()  # requests that have not ended
        self.cancelled = False
        self.until = 0.0  # when it gives way to other calls

    @property
    def idle(self) -> bool:
        return not self.waiting

    def submit(self, request: Request) -> None:
        request.check(self.desk.engine.limits)
        self.waiting.add(request.index)
        self.fresh.append(request)

    def step(self, times: int = 1) -> list[Commit]:
        """Wait for commits. Raises `Cancelled`."""
        if self.fresh:
            self.desk.thread.post(partial(self.desk.enter, self))
        self.turn.release()
        try:
            mail = [self.inbox.get()]
        finally:
            self.resume()
        while not self.inbox.empty():
            mail.append(self.inbox.get())
        commits = []
        for letter in mail:
            if letter is None:
                raise Cancelled
            commit, last = letter
            if last:
                self.waiting.discard(commit.request)
            if self.on_commit is not None:
                self.on_commit(commit)
            commits.append(commit)
        return commits

    def run(self, requests: Sequence[Request]) -> Iterator[Hypothesis]:
        for request in requests:
            self.submit(request)
        while not self.idle:
            for finished in [commit.finished for commit in self.step() if commit.finished is not None]:
                if finished.error is not None:
                    raise finished.error
                yield finished

    def on_engine(self, job: Callable[[], Result]) -> Result:
        """The result of ``job``, which the engine's thread runs between passes."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)

        self.desk.thread.post(run)
        self.turn.release()
        try:
            return done.result()
        finally:
            self.resume()

    def resume(self) -> None:
        """Take the turn."""
        self.turn.acquire()
        self.until = time.perf_counter() + LATENCY

    def give_way(self) -> None:
        """Let other calls take the turn, if this one has had it for long. Raises `Cancelled`."""
        if self.cancelled:
            raise Cancelled
        if time.perf_counter() > self.until:
            self.turn.release()
            time.sleep(WAKING)
            self.resume()

    def cancel(self) -> None:
        """From any thread: end the call."""
        self.cancelled = True
        self.inbox.put(None)
        self.desk.thread.post(partial(self.desk.leave, self))


class SharedEngine(Engine):
    """An engine's models, with the settings of a call and a guest for a session. Nothing else may run a pass."""

    def __init__(self, engine: Engine, settings: Settings, guest: Guest):
        vars(self).update(vars(engine))
        self.stats, self.guest = guest.stats, guest
        self.adopt(settings)

    @contextmanager
    def borrowed(self, rows: int, max_tokens: int | None) -> Iterator[Session]:
        try:
            yield cast(Session, self.guest)
        finally:
            if not self.guest.idle:
                self.guest.cancel()

    def give_way(self) -> None:
        self.guest.give_way()

    def attention(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[torch.Tensor]:
        read, parts = super().attention, [pairs[start : start + TOGETHER] for start in range(0, len(pairs), TOGETHER)]
        return [each for part in parts for each in self.guest.on_engine(partial(read, part))]

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        settings = self.settings
        tolerance = Tolerance(settings.beta, math.inf if settings.tau is None else settings.tau)
        return super().request(index, source, **{"tolerance": tolerance, **options})
