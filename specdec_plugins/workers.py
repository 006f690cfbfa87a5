"""A pool of numbered processes that answers in order.

Each worker shares a pipe with its parent, so either end notices when the other dies. (``ProcessPoolExecutor`` does not number its
processes, leaves them running when the parent is killed, and before Python 3.11.5 can wait forever for a dead one.)
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread, current_thread, local, main_thread
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")
LOOKAHEAD = 2  # tasks per process that are running, waiting, or answered early
EXPECTED = (ValueError, OSError, EOFError, ImportError, MemoryError)  # errors that the commands report in one line
GRACE = 5.0  # seconds that a worker has to exit by itself


class Workers(Generic[Task, Answer]):
    """``count`` processes, numbered from 0, each running the function that ``build(number)`` returns. A context manager.

    ``build``, tasks and answers are pickled. An `EXPECTED` error of any ``build`` is raised here; other errors kill the process.
    """

    def __init__(self, count: int, build: Callable[[int], Callable[[Task], Answer]]):
        self.workers: list[Worker] = []
        self.unclaimed: SimpleQueue[Worker] = SimpleQueue()
        self.own = local()
        self.threads = ThreadPoolExecutor(count, initializer=self._claim)
        try:
            self.workers += (Worker(number, build) for number in range(count))
            for worker in self.workers:
                worker.receive()
        except BaseException:
            self.stop()
            raise
        for worker in self.workers:
            self.unclaimed.put(worker)

    def map(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Yield the answers in the order of the tasks, which are consumed a few at a time.

        Raises an `EXPECTED` error of a task, and ValueError if a process died.
        """
        waiting: deque[Future[Answer]] = deque()
        for task in tasks:
            waiting.append(self.threads.submit(self._ask, task))
            if len(waiting) == LOOKAHEAD * len(self.workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _claim(self) -> None:
        """Give this thread a worker for good, so that a task fails only after the task that ended its worker."""
        self.own.worker = self.unclaimed.get()  # never waits: there are as many threads as workers

    def _ask(self, task: Task) -> Answer:
        return self.own.worker.ask(task)

    def stop(self) -> None:
        """Terminate the processes, busy or not."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.threads.shutdown()

    def __enter__(self) -> "Workers[Task, Answer]":
        return self

    def __exit__(self, *error) -> None:
        self.stop()


class Worker:
    """One process, which runs the function that ``build(number)`` returns. The first `receive` raises the error of ``build``."""

    def __init__(self, number: int, build: Callable[[int], Callable]):
        context = get_context("spawn")  # a fork would lack this process's threads, and could not use a GPU
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, number, build), daemon=True)
        with uninterrupted():
            self.process.start()
        theirs.close()

    def ask(self, task: Any) -> Any:
        self.send(task)
        return self.receive()

    def send(self, task: Any) -> None:
        with suppress(OSError):  # it died; `receive` reports it, perhaps with the reason
            self.connection.send(task)

    def receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise ValueError("a worker process died (killed, perhaps out of memory)") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """Let the process exit; terminate it after `GRACE` seconds."""
        self.connection.close()
        self.process.join(GRACE)
        self.process.terminate()
        self.process.join()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that start meanwhile inherit that Ctrl-C is ignored: only the parent handles it. Threads other than the main one
    cannot set that, and `serve` does it a moment later."""
    if current_thread() is not main_thread():
        yield
        return
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)


def serve(connection: Connection, number: int, build: Callable[[int], Callable]) -> None:
    """The worker process: report that the function is built, then answer until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    function = attempt(build, number)
    failed = isinstance(function, Exception)
    with suppress(EOFError, BrokenPipeError):  # the parent closed the pipe
        connection.send(function if failed else None)
        while not failed:
            answer = attempt(function, connection.recv())
            failed = isinstance(answer, Exception)
            connection.send(answer)


def attempt(function: Callable, *arguments: Any) -> Any:
    """A function's result, or its `EXPECTED` error."""
    try:
        return function(*arguments)
    except EXPECTED as error:
        return error


def _end_with_parent() -> None:
    """Exit when the parent does, even during a task."""
    if parent := parent_process():
        parent.join()
        os._exit(1)
