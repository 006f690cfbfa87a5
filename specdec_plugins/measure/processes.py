"""A system in worker processes that start together; only they load the engine.

Separate processes keep a system's idle threads and memory from affecting another's.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from specdec_plugins.measure.machine import Mix, peak_memory
from specdec_plugins.measure.systems import CTranslate2, Order, OwnSystem, Run, Sources, System
from specdec_plugins.workers import Worker

LEAD = 0.05  # seconds between an order and its start, so that every worker has received it


class RunningSystem:
    """A loaded system: one process per worker of its mix; CTranslate2 runs its workers in one process.

    Faults in its processes raise ValueError naming the system.
    """

    def __init__(self, system: System, model: str, sources: Sources, mix: Mix):
        self.system, self.sources = system, sources
        together = system.strategy == "ctranslate2"
        inside = mix if together else Mix(1, mix.threads)
        build = partial(SystemServer, system, model, sources, inside)
        self.processes = [Worker(number, build) for number in range(1 if together else mix.workers)]
        self.loaded = 0  # of the processes

    def decode(self, kind: str, batch_size: int, count: int | None = None) -> Run:
        """Decode all sources, or about ``count`` per worker; latency uses one process."""
        latency = kind == "latency"
        parts = [list(range(len(self.sources)))] if latency else split(self.sources, len(self.processes))
        if count:
            parts = [part[:: max(1, len(part) // count)] for part in parts]
        start = time.monotonic() + LEAD
        runs = self._ask(Order(kind, batch_size, part, start) for part in parts)
        return joined(runs, parts)

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def _ask(self, orders: Iterable[Order]) -> list[Run]:
        try:
            for process in self.processes[self.loaded :]:
                process.receive()
                self.loaded += 1
            asked = list(zip(self.processes, orders))
            for process, order in asked:
                process.send(order)
            return [process.receive() for process, _ in asked]
        except ValueError as error:
            raise ValueError(f"{self.system.name}: {error}") from None


def split(sources: Sources, count: int) -> list[list[int]]:
    """Deal out the indices of the sources, longest first, so that parts have equal work; none is empty."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    return [order[number::count] for number in range(min(count, len(order)))]


def joined(runs: Sequence[Run], parts: Sequence[Sequence[int]]) -> Run:
    """Parallel runs as one: outputs in the order of the sources, seconds until the last run ended, all else added up."""
    placed = {index: output for run, part in zip(runs, parts) for index, output in zip(part, run.outputs)}
    names = ("phases", "drafted", "accepted", "lengths", "accepted_lengths")
    counts: dict[str, Any] = {name: sum((getattr(run, name) for run in runs), Counter[Any]()) for name in names}
    outputs = [placed[index] for index in sorted(placed)]
    peak, kernels = sum(run.peak for run in runs), runs[0].kernels
    return Run(max(run.seconds for run in runs), runs[0].latencies, outputs, **counts, peak=peak, kernels=kernels)


class SystemServer:
    """Loads a system in its process and answers orders."""

    def __init__(self, system: System, model: str, sources: Sources, mix: Mix, number: int):
        from specdec_plugins.formats.folder import load_folder

        logging.disable(logging.WARNING)  # fairseq warns about optional packages
        os.environ["OMP_NUM_THREADS"] = str(mix.threads)  # read when PyTorch loads
        self.device = system.device
        build = CTranslate2 if system.strategy == "ctranslate2" else OwnSystem
        pair = load_folder(model, system.device)
        with refusals():
            self.decoder: OwnSystem | CTranslate2 = build(system, pair, mix, sources)

    def __call__(self, order: Order) -> Run:
        with refusals():
            return replace(self.decoder.decode(order), peak=peak_memory(self.device))


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a system's errors (a missing data type, device or package, no memory) into ValueError."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        raise ValueError(str(error)) from None
