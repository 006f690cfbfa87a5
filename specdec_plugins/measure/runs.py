"""Measure systems in turn, round by round, on the same tokens, so that a drift of the machine's speed meets all of them.

Each system runs with the number of threads that is best for it.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdec_plugins.measure.systems import Run, System, SystemProcess
from specdec_plugins.text.lines import read_lines

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

PILOT = 48  # sentences to warm up with, and to find the best number of threads
PERCENTILES = (50, 95, 99)
MEMORY = ("weights", "caches", "recordings")  # of our own strategies; the last on a GPU


class Progress(Protocol):
    """Who is told how far a measurement has come."""

    def step(self, what: str, done: float) -> None:
        """``what`` is being done, when this share of everything is done."""

    def warn(self, message: str) -> None: ...


@dataclass(frozen=True)
class Text:
    """What is translated, in tokens with eos; empty lines are left out."""

    sources: list[list[int]]
    references: list[str] | None


@dataclass(frozen=True)
class Plan:
    """What is measured in one interleaved run."""

    model: str
    systems: Sequence[System]
    batch_sizes: Sequence[int]
    threads: Sequence[int]  # to choose from
    rounds: int


@dataclass(frozen=True)
class Measured:
    """What one system did at one batch size."""

    system: System
    batch_size: int
    threads: int
    runs: list[Run]
    memory: dict[str, int]  # bytes: weights and caches of our own strategies, and the process's peak


def read_text(reader: "Translator", source: str, reference: str | None, count: int | None, bpe: bool = False) -> Text:
    """The first ``count`` lines (None: all), as ``reader``'s tokens; with ``bpe`` they are tokens in BPE already.

    Raises ValueError if there is not a reference for each line, nothing to translate, or a line too long for the models.
    """
    from specdec_plugins.translator import SourceTooLong

    lines = list(itertools.islice(read_lines(source), count))
    references = list(itertools.islice(read_lines(reference), count)) if reference else None
    if references is not None and len(references) != len(lines):
        raise ValueError(f"{source} has {len(lines):,} lines and {reference} has {len(references):,}")
    try:
        sources = reader.encode(lines, bpe)
    except SourceTooLong as error:
        raise ValueError(f"{source}, line {error.index + 1}: {error}") from None
    kept = [index for index, tokens in enumerate(sources) if len(tokens) > 1]
    if not kept:
        raise ValueError(f"{source}: nothing to translate")
    return Text([sources[index] for index in kept], [references[index] for index in kept] if references else None)


def measure(plan: Plan, sources: list[list[int]], progress: Progress) -> tuple[list[Measured], list[str]]:
    """Run the systems in turn, by batch size. Returns also why some were left out; raises ValueError if none is left."""
    steps = itertools.count()
    total = len(plan.systems) * (1 + len(plan.batch_sizes) * plan.rounds)
    with ExitStack() as stack:
        processes: dict[System, SystemProcess] = {}
        threads: dict[tuple[System, int], int] = {}
        left_out = []
        for system in plan.systems:
            progress.step(f"loading {system.name}, and finding its best number of threads", next(steps) / total)
            process = SystemProcess(system, plan.model, sources)
            stack.callback(process.stop)
            try:
                threads |= {(system, size): best_threads(process, plan.threads, size) for size in plan.batch_sizes}
            except ValueError as error:
                progress.warn(f"left out: {error}")
                left_out.append(str(error))
                process.stop()
                continue
            processes[system] = process
        if not processes:
            raise ValueError("no system is left")

        runs: dict[tuple[System, int], list[Run]] = {key: [] for key in threads}
        for batch_size in plan.batch_sizes:
            for number in range(plan.rounds):
                for system, process in processes.items():
                    what = f"batch size {batch_size}, round {number + 1} of {plan.rounds}: {system.name}"
                    progress.step(what, next(steps) / total)
                    process.decode(threads[system, batch_size], batch_size, PILOT)  # warms up
                    runs[system, batch_size].append(process.decode(threads[system, batch_size], batch_size, len(sources)))
        memory = {key: processes[key[0]].memory(threads[key], key[1], len(sources)) for key in runs}
        peaks = {system: process.peak() for system, process in processes.items()}
    return [
        Measured(system, size, threads[system, size], runs[system, size], {**memory[system, size], "peak": peaks[system]})
        for size, system in itertools.product(plan.batch_sizes, processes)
    ], left_out


def best_threads(process: SystemProcess, numbers: Sequence[int], batch_size: int) -> int:
    """The number of threads that decodes some sentences fastest, the best of four rounds; a first one warms up.

    Where there is no choice, that one decodes them once: a system that cannot run shows it there.
    """
    if len(numbers) == 1:
        process.decode(numbers[0], batch_size, max(PILOT, batch_size))
        return numbers[0]
    rounds = [[process.decode(number, batch_size, max(PILOT, batch_size)).seconds for number in numbers] for _ in range(5)]
    fastest = list(map(min, zip(*rounds[1:])))
    return numbers[fastest.index(min(fastest))]


def summarise(measured: Measured, expected: list[list[str]]) -> dict[str, Any]:
    """A row of a report: medians over the rounds, and how many outputs are the ``expected`` ones."""
    import numpy as np

    system, found = measured.system, measured.runs
    seconds = float(np.median([run.seconds for run in found]))
    first = found[0]
    tokens = sum(len(output) + 1 for output in first.outputs)  # with eos, which each system must decode, too
    spent = sum(first.shares.values()) or 1.0
    row: dict[str, Any] = {
        "system": system.name, "strategy": system.strategy, "dtype": system.dtype, "block_size": system.block,
        "beta": system.beta, "tau": system.tau, "batch_size": measured.batch_size, "threads": measured.threads,
        "lengths": first.lengths, "accepted_lengths": first.accepted_lengths,
        "tokens_per_second": round(tokens / seconds), "sentences_per_second": round(len(first.outputs) / seconds, 1),
        "seconds": [round(run.seconds, 4) for run in found], "tokens": tokens,
        "mean_accepted_length": round(first.mean_accepted_length, 3),
        "acceptance_by_position": [round(rate, 3) for rate in first.acceptance_by_position],
        "time_shares": {name: round(value / spent, 3) for name, value in first.shares.items()},
        "identical": sum(ours == theirs for ours, theirs in zip(first.outputs, expected)), "of": len(expected),
        "peak_memory_mib": round(measured.memory["peak"] / 2**20),
        **{f"{name}_mib": round(measured.memory[name] / 2**20, 2) for name in MEMORY if name in measured.memory},
    }  # fmt: skip
    if measured.batch_size == 1:
        latencies = np.median([run.latencies for run in found], axis=0)  # of each sentence
        for percent, value in zip(PERCENTILES, np.percentile(latencies, PERCENTILES)):
            row[f"latency_p{percent}_ms"] = round(1000 * float(value), 2)
    return row
