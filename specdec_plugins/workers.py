"""Processes that work side by side and answer in order. Knows nothing about what they do.

Parent and worker hold the two ends of a pipe, so the parent notices when a worker ends; a worker ends with its parent.
(The standard library's ``ProcessPoolExecutor`` does not number its processes, leaves them running when the parent is killed, and
before Python 3.11.5 can wait for ever for one that died.)
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")
LOOKAHEAD = 2  # tasks for each process that are under way, waiting, or answered before their turn
GRACE = 5.0  # seconds that a single worker has to end by itself


class Workers(Generic[Task, Answer]):
    """``count`` processes, each with the function that ``build(number)`` gave it, number 0, 1, ..; a context manager.

    ``build``, tasks and answers are pickled. Raises the ValueError or OSError of any ``build`` before it takes up a task. A
    process in which anything else is raised prints that and is gone.
    """

    def __init__(self, count: int, build: Callable[[int], Callable[[Task], Answer]]):
        self.workers: list[Worker] = []
        self.threads = ThreadPoolExecutor(count)
        try:
            self.workers += (Worker(number, build) for number in range(count))
            for worker in self.workers:
                worker.receive()
        except BaseException:
            self.stop()
            raise
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)

    def map(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Yield the answers in the order of the tasks, which are taken up a few at a time.

        Raises the ValueError or OSError that an answer is; ValueError when a process has died.
        """
        waiting: deque[Future[Answer]] = deque()
        for task in tasks:
            waiting.append(self.threads.submit(self._ask, task))
            if len(waiting) == LOOKAHEAD * len(self.workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _ask(self, task: Task) -> Answer:
        worker = self.idle.get()  # at once: there are as many threads as processes
        try:
            return worker.ask(task)
        finally:
            self.idle.put(worker)

    def stop(self) -> None:
        """End the processes, whatever they are doing."""
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
    """One process with the function that ``build(number)`` makes there. `receive` tells whether it has been made."""

    def __init__(self, number: int, build: Callable[[int], Callable]):
        context = get_context("spawn")  # started afresh: a copy of this process would lack its threads, and could not use a GPU
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, number, build), daemon=True)
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for this process to answer
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, interrupt)
        theirs.close()

    def ask(self, task: Any) -> Any:
        self.send(task)
        return self.receive()

    def send(self, task: Any) -> None:
        with suppress(OSError):  # if it has died, perhaps with a word about why
            self.connection.send(task)

    def receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise ValueError("a worker process died (killed, perhaps for want of memory)") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """End the process: an idle one by itself, one that is busy for longer than `GRACE` by force."""
        self.connection.close()
        self.process.join(GRACE)
        self.process.terminate()
        self.process.join()


def serve(connection: Connection, number: int, build: Callable[[int], Callable]) -> None:
    """The worker process: say that the function is built, or why not, and answer until the parent closes the pipe."""
    Thread(target=_end_with_parent, daemon=True).start()
    function = attempt(build, number)
    failed = isinstance(function, Exception)
    with suppress(EOFError, BrokenPipeError):  # the parent has closed the pipe
        connection.send(function if failed else None)
        while not failed:
            answer = attempt(function, connection.recv())
            failed = isinstance(answer, Exception)
            connection.send(answer)


def attempt(function: Callable, *arguments: Any) -> Any:
    """What a function returns, or the error that it raises, if it is one that a person is told in a line."""
    try:
        return function(*arguments)
    except (ValueError, OSError, EOFError, ImportError, MemoryError) as error:
        return error


def _end_with_parent() -> None:
    """End this process when its parent has, also in the middle of a task."""
    if parent := parent_process():
        parent.join()
        os._exit(1)
