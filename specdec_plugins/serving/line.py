"""The requests of many callers, in line for the sessions of a model."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain, count
from threading import Lock
from typing import Protocol

from specdec_plugins.decoding.control.steady import Steady
from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL, Session
from specdec_plugins.decoding.requests import Commit, Hypothesis, Request
from specdec_plugins.decoding.roles import Controller
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.engine import Engine
from specdec_plugins.serving.threads import LATENCY, EngineThread

log = logging.getLogger(__name__)
ALONE = 3  # times as long if another session is idle: between steps of a large model Python takes long, its caches being cold
SOONEST, LATEST = 1.0, 60.0  # seconds until a session that could not be opened is tried again; they double


class Caller(Protocol):
    """A call with requests in a `Line`. The engine's threads report their results to it."""

    fresh: deque[Request]  # in no session yet
    streams: bool  # whether it wants commits as passes make them
    cancelled: bool

    def tell(self, commit: Commit, last: bool) -> None:
        """A commit; ``last``: it ends its request."""

    def fail(self, request: Request, error: Exception) -> None:
        """End a request with an error."""


class Line:
    """Requests of a model that wait for a row of any of its sessions, which have ``rows`` together, one session per thread.

    Guests' requests join in rotation, so that none waits for all texts of another.
    """

    def __init__(self, engine: Engine, rows: int, threads: Sequence[EngineThread]):
        self.engine, self.rows, self.threads = engine, rows, threads
        self.guests: deque[Caller] = deque()  # with requests that no session has yet
        self.learn: Callable[[Request, Hypothesis], None] | None = None  # called with each finished request and its first output
        self._lock = Lock()
        self.desks = [Desk(self, thread) for thread in threads]

    @property
    def rows_in_flight(self) -> int:
        return sum(desk.rows_in_flight for desk in self.desks)

    @property
    def busy(self) -> int:
        """How many of the threads have something to do, for any model."""
        return sum(bool(thread.desks) for thread in self.threads)

    def renew(self) -> None:
        """Decode what comes from now on in new sessions, as the engine's roles have changed."""
        for desk in self.desks:
            desk.thread.post(desk.renew)

    @property
    def failed(self) -> bool:
        """Whether no session is left. They are opened again, if it is time."""
        for desk in self.desks:
            if desk.failed:
                desk.thread.post(desk.open)
        return all(desk.failed for desk in self.desks)

    def enter(self, guest: Caller) -> None:
        with self._lock:
            if guest.fresh and guest not in self.guests and not guest.cancelled:  # desks may have taken all by now
                self.guests.append(guest)
        self.wake(len(guest.fresh))

    def wake(self, most: int) -> None:
        """Have up to so many desks take requests, idle ones first."""
        for desk in sorted(self.desks, key=lambda desk: (desk.failed, desk.rows_in_flight))[:most]:
            desk.thread.post(desk.enter)

    def take(self) -> tuple[Caller, Request] | None:
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

    def leave(self, guest: Caller) -> None:
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
        self.owners: dict[int, tuple[Caller, Request]] = {}  # of the session's requests
        self.unfinished: dict[int, int] = {}  # outputs of these requests
        self.stats = DecodeStats()
        self.seconds = LATENCY  # of a pass
        self.session: Session | None = None
        self.leaving: list[Session] = []  # of earlier roles, which keep the rows that they have
        self._numbers = count()
        self._lost, self._retry, self._delay = False, 0.0, SOONEST
        thread.post(self.open)  # before all else

    @property
    def rows_in_flight(self) -> int:
        return sum(len(session.prefix) for session in self.sessions)

    @property
    def sessions(self) -> list[Session]:
        return self.leaving if self.session is None else [*self.leaving, self.session]

    @property
    def failed(self) -> bool:
        """Whether the session could not be opened."""
        return self._lost or not self.thread.alive

    def open(self, controller: Controller | None = None) -> Session | None:
        """The session, which is opened, unless the last attempt was a moment ago. ``controller``: by default a new one."""
        if self.session is not None or time.monotonic() < self._retry:
            return self.session
        engine = self.line.engine
        try:
            if controller is None:
                controller = deepcopy(engine.roles.controller)
                if engine.settings.adaptive:
                    controller = Steady(controller, engine.trained_block_size, engine.beam is not None)
            roles = engine.roles._replace(controller=controller)
            self.session = engine.session(self.line.rows, usual_rows=self.rows, roles=roles, stats=self.stats)
        except Exception as error:  # too little memory, for instance, which may be there later
            log.error("a session cannot be opened; requests are refused until it can", exc_info=error)
            self._lost, self._retry = True, time.monotonic() + self._delay
            self._delay = min(2 * self._delay, LATEST)
        else:
            self._lost, self._delay = False, SOONEST
        return self.session

    def renew(self) -> None:
        """A new session for the requests that have no row yet, with what the old one's controller has learned."""
        if (old := self.session) is None:
            return
        self.session = None
        if (new := self.open(old.controller)) is None:
            self.session, self._lost = old, False
            return
        self.leaving += [] if old.idle else [old]
        while old.waiting:
            new.submit(old.waiting.popleft())

    def enter(self) -> None:
        if self not in self.thread.desks:
            self.thread.desks.append(self)

    def drop(self, guest: Caller) -> None:
        """Drop a guest's requests."""
        if (session := self.session) is None:  # and so nobody's requests
            return
        try:
            for number in [number for number, (owner, _) in self.owners.items() if owner is guest]:
                self._forget(number)
                for each in self.sessions:
                    each.cancel(number)
        except Exception as error:  # a role may be anybody's code
            self._start_over(session, error)

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
            self.leaving = [each for each in self.leaving if not each.idle]
            if session.idle and not self.leaving:
                return False
            busy, streams = self.line.busy, any(owner.streams for owner, _ in self.owners.values())
            self.line.engine.join(busy)
            patience = ALONE * LATENCY if busy < len(self.line.threads) else LATENCY  # others take what arrives meanwhile
            times = 1 if streams else int(patience / self.seconds)
            began, before = time.perf_counter(), session.stats.passes
            commits = [*chain(*(each.step(max(1, min(times, ITERATIONS_PER_CALL)), streams) for each in self.sessions))]
            if passes := session.stats.passes - before:
                self.seconds = (time.perf_counter() - began) / passes
            self._deliver(commits)
        except Exception as error:  # a pass failed: all its rows are lost, and nothing else
            self._start_over(session, error)
        return True

    def _fill(self, session: Session) -> None:
        """Hand requests to the session while it has rows for them."""
        rows = sum(each.prefix.reserved for each in self.sessions) + sum(request.rows for request in session.waiting)
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
                if self.line.learn is not None and not commit.finished.output:
                    self.line.learn(request, commit.finished)
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

    def _forget(self, number: int) -> tuple[Caller, Request]:
        del self.unfinished[number]
        return self.owners.pop(number)

    def _start_over(self, old: Session, error: Exception) -> None:
        """A new session with the waiting requests of the old one; those in flight end with the error."""
        self.session, self.leaving, lost = None, [], set(self.owners)
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
