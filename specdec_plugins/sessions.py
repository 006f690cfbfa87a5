"""Where an engine's requests run: in a session of its own, or, on a server, in one that callers share."""

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Protocol, TypeVar

from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.requests import Commit, Hypothesis, Request
from specdec_plugins.decoding.stats import DecodeStats

Item = TypeVar("Item")
Result = TypeVar("Result")


class Requests(Protocol):
    """What callers use of a `Session`."""

    stats: DecodeStats

    @property
    def waiting(self) -> Sized: ...

    @property
    def idle(self) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def step(self, times: int = 1) -> list[Commit]: ...

    def run(self, requests: Sequence[Request]) -> Iterator[Hypothesis]: ...


class Host(Protocol):
    """Lends sessions to an engine. ``stats`` totals what they decode."""

    stats: DecodeStats

    def lend(self, key: object, make: Callable[[], Session]) -> AbstractContextManager[Requests]:
        """A session until its borrower is through: the last one, if it had the same ``key``, a new one, or a shared one."""

    def read(self, function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
        """``function(items)``, perhaps in parts: passes that belong to no session."""

    def give_way(self) -> None:
        """Let other callers run. Called for each sentence that is read, written or worked on."""


class OwnHost:
    """Of a single caller. Keeps the last session, with its caches; drops one that its borrower abandoned."""

    def __init__(self) -> None:
        self.stats = DecodeStats()
        self._kept: tuple[object, Session] | None = None

    @contextmanager
    def lend(self, key: object, make: Callable[[], Session]) -> Iterator[Session]:
        how, kept, self._kept = (key, get_ident()), self._kept, None
        session = kept[1] if kept and kept[0] == how else make()
        session.stats = self.stats
        yield session
        self._kept = how, session

    def read(self, function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
        return function(items)

    def give_way(self) -> None:
        return None
