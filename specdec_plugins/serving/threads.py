"""Threads that own sessions. All passes of the models run on them."""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

SESSIONS = 2  # of a model, at most: while Python prepares the passes of one, the kernels run those of another
LATENCY = 0.01  # seconds that a request waits to join, and to stream, at most; a single pass may take longer


class Worker(Protocol):
    """Has work for a thread."""

    def step(self) -> bool:
        """Work for about `LATENCY`. Returns whether there is more to do."""


class EngineThread:
    """Owns a session of each of one or several models, and runs busy ones in turn."""

    def __init__(self) -> None:
        self._mail: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.desks: list[Worker] = []  # with something to do; a model that nobody uses any more is thus freed
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
