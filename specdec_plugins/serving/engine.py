"""Many callers, few sessions: concurrent calls share a model's batches, and each result is `Translator.translate`'s own.

A call runs that method unchanged, on the callers' thread or, if large, beside it. Only its session is replaced, by a `Guest`:
it lines up requests for the threads that own the real ones and waits for what they commit. Meanwhile other calls run.
"""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Protocol, TypeVar, cast

import numpy as np

from specdec_plugins.decoding.control.steady import Steady
from specdec_plugins.decoding.loop import TOGETHER, Session
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.requests import Commit, Hypothesis, Request
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.engine import Engine
from specdec_plugins.settings import Settings

log = logging.getLogger(__name__)
Result = TypeVar("Result")
SESSIONS = 2  # of a model, at most: while Python prepares the passes of one, the kernels run those of another
LATENCY = 0.01  # seconds that a request waits to join, and to stream, at most; a single pass may take longer
ALONE = 3  # times as long if another session is idle: between steps of a large model Python takes long, its caches being cold
SLICE = 0.002  # seconds that a call works on text before it gives way to others
SOONEST, LATEST = 1.0, 60.0  # seconds until a session that could not be opened is tried again; they double


class Cancelled(Exception):
    """Ends a call whose caller has gone."""


class EngineThread:
    """Owns a session of each of one or several models, and runs busy ones in turn."""

    def __init__(self) -> None:
        self._mail: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.desks: list[Desk] = []  # with something to do; a model that nobody uses any more is thus freed
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, job: Callable[[], object] | None) -> None:
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


def close_all(threads: Sequence[EngineThread]) -> None:
    """End threads, before Python does: it must not while they are in a pass."""
    for thread in threads:
        thread.close()


class Line:
    """Requests of a model that wait for a row of any of its sessions, which have ``rows`` together, one session per thread.

    Guests' requests join in rotation, so that none waits for all texts of another.
    """

    def __init__(self, engine: Engine, rows: int, threads: Sequence[EngineThread]):
        self.engine, self.rows, self.threads = engine, rows, threads
        self.guests: deque[Guest] = deque()  # with requests that no session has yet
        self._lock = Lock()
        self.desks = [Desk(self, thread) for thread in threads]

    @property
    def rows_in_flight(self) -> int:
        return sum(desk.rows_in_flight for desk in self.desks)

    @property
    def busy(self) -> int:
        """How many of the threads have something to do, for any model."""
        return sum(bool(thread.desks) for thread in self.threads)

    @property
    def failed(self) -> bool:
        """Whether no session is left. They are opened again, if it is time."""
        for desk in self.desks:
            if desk.failed:
                desk.thread.post(desk.open)
        return all(desk.failed for desk in self.desks)

    def enter(self, guest: "Guest") -> None:
        with self._lock:
            if guest.fresh and guest not in self.guests and not guest.cancelled:  # desks may have taken all by now
                self.guests.append(guest)
        self.wake(len(guest.fresh))

    def wake(self, most: int) -> None:
        """Have up to so many desks take requests, idle ones first."""
        for desk in sorted(self.desks, key=lambda desk: (desk.failed, desk.rows_in_flight))[:most]:
            desk.thread.post(desk.enter)

    def take(self) -> "tuple[Guest, Request] | None":
        """The next request."""
        with self._lock:
            while self.guests:
                guest = self.guests.popleft()
                if guest.fresh:
                    request = guest.fresh.popleft()
                    if guest.fresh:
                        self.guests.append(guest)
                    return guest, request
        return None

    def leave(self, guest: "Guest") -> None:
        """Drop a guest's requests."""
        with self._lock:
            guest.fresh.clear()
            if guest in self.guests:
                self.guests.remove(guest)
        for desk in self.desks:
            desk.thread.post(partial(desk.drop, guest))


class Desk:
    """A session of a model, on one thread."""

    def __init__(self, line: Line, thread: EngineThread):
        self.line, self.thread = line, thread
        self.rows = -(-line.rows // len(line.threads))  # a larger search is alone
        self.owners: dict[int, tuple[Guest, Request]] = {}  # of the session's requests
        self.unfinished: dict[int, int] = {}  # outputs of these requests
        self.stats = DecodeStats()
        self.seconds = LATENCY  # of a pass
        self.session: Session | None = None
        self._numbers = count()
        self._lost, self._retry, self._delay = False, 0.0, SOONEST
        thread.post(self.open)  # before all else

    @property
    def rows_in_flight(self) -> int:
        session = self.session
        return 0 if session is None else len(session.prefix)

    @property
    def failed(self) -> bool:
        """Whether the session could not be opened."""
        return self._lost or not self.thread.alive

    def open(self) -> Session | None:
        """The session, which is opened, unless the last attempt was a moment ago."""
        if self.session is not None or time.monotonic() < self._retry:
            return self.session
        engine = self.line.engine
        try:
            session = engine.session(self.line.rows)
            session.admission = replace(session.admission, rows=self.rows)
            session.controller = deepcopy(session.controller)
            if engine.settings.adaptive:
                session.controller = Steady(session.controller, engine.trained_block_size, engine.beam is not None)
        except Exception as error:  # too little memory, for instance, which may be there later
            log.error("a session cannot be opened; requests are refused until it can", exc_info=error)
            self._lost, self._retry = True, time.monotonic() + self._delay
            self._delay = min(2 * self._delay, LATEST)
        else:
            session.stats, self.session, self._lost, self._delay = self.stats, session, False, SOONEST
        return self.session

    def enter(self) -> None:
        if self not in self.thread.desks:
            self.thread.desks.append(self)

    def drop(self, guest: "Guest") -> None:
        """Drop a guest's requests."""
        session = self.session
        try:
            for number in [number for number, (owner, _) in self.owners.items() if owner is guest]:
                self._forget(number)
                if session is not None:
                    session.cancel(number)
        except Exception as error:  # a role may be anybody's code
            self._start_over(cast(Session, session), error)

    def step(self) -> bool:
        """Admit requests and run passes for about `LATENCY`. Returns whether there is more to do."""
        if (session := self.session) is None:
            if self.line.failed:
                self._refuse(RuntimeError("no session can be opened"))
            elif self.line.guests:
                self.line.wake(1)
            return False
        try:
            self._fill(session)
            if session.idle:
                return False
            busy, streams = self.line.busy, any(owner.streams for owner, _ in self.owners.values())
            self.line.engine.join(busy)
            patience = ALONE * LATENCY if busy < len(self.line.threads) else LATENCY  # others take what arrives meanwhile
            times = 1 if streams else int(patience / self.seconds)
            began, before = time.perf_counter(), session.stats.passes
            commits = session.step(max(1, min(times, TOGETHER)), streams)
            if passes := session.stats.passes - before:
                self.seconds = (time.perf_counter() - began) / passes
            self._deliver(commits)
        except Exception as error:  # a pass failed: all its rows are lost, and nothing else
            self._start_over(session, error)
        return True

    def _fill(self, session: Session) -> None:
        """Hand requests to the session while it has rows for them."""
        rows = session.prefix.reserved + sum(request.rows for request in session.waiting)
        while rows < self.rows and (taken := self.line.take()):
            number = next(self._numbers)
            self.owners[number], self.unfinished[number] = taken, taken[1].outputs
            try:
                session.submit(replace(taken[1], index=number))
            except ValueError as error:
                self._end(number, error)
            else:
                rows += taken[1].rows

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
                guest.tell(commit._replace(request=request.index, finished=finished), last)
            elif guest.streams and commit.tokens:
                guest.tell(commit._replace(request=request.index), False)

    def _end(self, number: int, error: Exception) -> None:
        """End a request with an error."""
        guest, request = self._forget(number)
        guest.fail(request, error)

    def _forget(self, number: int) -> tuple["Guest", Request]:
        del self.unfinished[number]
        return self.owners.pop(number)

    def _start_over(self, old: Session, error: Exception) -> None:
        """A new session with the waiting requests of the old one; those in flight end with the error."""
        self.session, lost = None, set(self.owners)
        if (session := self.open()) is not None:
            for request in old.waiting:
                session.submit(request)
                lost.discard(request.index)
        for number in lost:
            self._end(number, RuntimeError(f"{type(error).__name__}: {error}"))

    def _refuse(self, error: Exception) -> None:
        """End all requests that wait, as nobody will take them."""
        while taken := self.line.take():
            taken[0].fail(taken[1], error)


class Bell(Protocol):
    """Wakes a call."""

    def ring(self) -> None:
        """From any thread."""

    def wait(self) -> None:
        """Called by the call: return when somebody has rung, or earlier."""


class Guest:
    """A call's view of a model's sessions: what an engine uses of `Session`, for the callers' thread.

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

    def on_engine(self, job: Callable[[], Result]) -> Result:
        """The result of ``job``, which the engine's thread runs between passes."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)

        done.add_done_callback(lambda _: self.bell.ring())
        self.line.threads[0].post(run)
        while not done.done():
            self.wait()
        return done.result()

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

    def attention(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray]:
        read, parts = super().attention, [pairs[start : start + TOGETHER] for start in range(0, len(pairs), TOGETHER)]
        return [each for part in parts for each in self.guest.on_engine(partial(read, part))]

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        settings = self.settings
        tolerance = Tolerance(settings.beta, math.inf if settings.tau is None else settings.tau)
        return super().request(index, source, **{"tolerance": tolerance, **options})
