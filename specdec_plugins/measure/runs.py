"""Measure systems in turn, round by round, on the same tokens, so that drifts in the machine's speed affect all of them.

Latency and throughput are measured separately, with every mix of workers and threads; a system's fastest mix counts.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from specdec_plugins.measure.machine import Mix, full_mixes
from specdec_plugins.measure.processes import RunningSystem
from specdec_plugins.measure.systems import Run, System
from specdec_plugins.text.lines import read_lines

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

WARM_UP = 48  # sentences per worker before a measurement; at least a batch
PERCENTILES = (50, 95, 99)


class Progress(Protocol):
    def step(self, what: str, done: float) -> None:
        """``what`` begins; ``done`` is the finished fraction of everything."""

    def say(self, message: str) -> None: ...


@dataclass(frozen=True)
class Text:
    """The sources, as token ids with eos, without empty lines; and their references."""

    sources: list[list[int]]
    references: list[str] | None


@dataclass(frozen=True)
class Workload:
    """``latency``: one sentence at a time. ``throughput``: a whole text on all cores, ``batch_size`` sentences at a time in each
    worker. ``mixes`` are the candidates."""

    kind: str
    batch_size: int
    mixes: tuple[Mix, ...]


def workloads(kinds: Sequence[str], batch_sizes: Sequence[int], threads: Sequence[int], device: str = "cpu") -> list[Workload]:
    """The workloads of these ``kinds``; ``threads`` are the candidates for a worker."""
    latency = Workload("latency", 1, tuple(Mix(1, number) for number in threads))
    throughput = [Workload("throughput", size, tuple(full_mixes(threads, device))) for size in batch_sizes]
    return [workload for workload in (latency, *throughput) if workload.kind in kinds]


@dataclass(frozen=True)
class Plan:
    """What is measured in one interleaved run."""

    model: str
    systems: Sequence[System]
    workloads: Sequence[Workload]
    rounds: int


@dataclass(frozen=True)
class Measured:
    """One system on one workload: ``seconds`` of each mix, round by round; everything else for the fastest mix."""

    system: System
    workload: Workload
    mix: Mix
    runs: list[Run]
    seconds: dict[Mix, list[float]]
    differing: int  # sentences whose output depends on the mix


def read_text(reader: "Translator", source: str, reference: str | None, count: int | None, tokenized: bool = False) -> Text:
    """The first ``count`` lines (None: all) in ``reader``'s tokens; ``tokenized`` lines are subwords already.

    Raises ValueError if the numbers of references and lines differ, nothing is left to translate, or a line is too long.
    """
    from specdec_plugins.translator import SourceTooLong

    lines = list(itertools.islice(read_lines(source), count))
    references = list(itertools.islice(read_lines(reference), count)) if reference else None
    if references is not None and len(references) != len(lines):
        raise ValueError(f"{source} has {len(lines):,} lines and {reference} has {len(references):,}")
    try:
        sources = reader.encode(lines, tokenized)
    except SourceTooLong as error:
        raise ValueError(f"{source}, line {error.index + 1}: {error}") from None
    kept = [index for index, tokens in enumerate(sources) if len(tokens) > 1]
    if not kept:
        raise ValueError(f"{source}: nothing to translate")
    return Text([sources[index] for index in kept], [references[index] for index in kept] if references else None)


def measure(plan: Plan, sources: list[list[int]], progress: Progress) -> tuple[list[Measured], list[str]]:
    """Run the systems in turn. Also returns why systems were left out; raises ValueError if none is left."""
    steps, total = itertools.count(), len(plan.systems) * (1 + len(plan.workloads) * plan.rounds)

    def step(what: str) -> None:
        progress.step(what, next(steps) / total)

    with ExitStack() as stack:
        systems: dict[System, dict[int, RunningSystem]] = {}  # by threads
        left_out, kernels = [], dict[str, str | None]()
        for system in plan.systems:
            step(f"loading {system.name}")
            largest = {mix.threads: mix for mix in sorted(mix for workload in plan.workloads for mix in workload.mixes)}
            running = {threads: RunningSystem(system, plan.model, sources, mix) for threads, mix in largest.items()}
            for each in running.values():
                stack.callback(each.stop)
            try:
                for each in running.values():
                    kernels[system.name] = each.decode("throughput", 1, count=1).kernels
            except ValueError as error:
                progress.say(f"left out: {error}")
                left_out.append(str(error))
                for each in running.values():
                    each.stop()
                continue
            systems[system] = running
        if not systems:
            raise ValueError("no system is left")
        check_kernels(kernels)
        return [*measured_runs(plan, systems, step, progress.say)], left_out


def measured_runs(
    plan: Plan, systems: dict[System, dict[int, RunningSystem]], step: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[Measured]:
    """The best mix of each system on each workload, from rounds of all in turn."""
    runs: dict[tuple[System, int], dict[Mix, list[Run]]] = {}
    turns = itertools.product(enumerate(plan.workloads), range(plan.rounds), systems.items())
    for (index, workload), number, (system, running) in turns:
        step(f"{workload.kind}, batch size {workload.batch_size}, round {number + 1} of {plan.rounds}: {system.name}")
        found = runs.setdefault((system, index), {mix: [] for mix in workload.mixes})
        for mix in workload.mixes:
            how = workload.kind, workload.batch_size
            running[mix.threads].decode(*how, count=max(WARM_UP, workload.batch_size))
            found[mix].append(running[mix.threads].decode(*how))
    for (system, index), found in runs.items():
        workload, seconds = plan.workloads[index], {mix: [run.seconds for run in each] for mix, each in found.items()}
        mix = min(seconds, key=lambda mix: median(seconds[mix]))
        by_sentence = zip(*(each[0].outputs for each in found.values()))
        differing = sum(any(output != first for output in others) for first, *others in by_sentence)
        if differing:
            warn(f"{system.name}: {differing} outputs depend on the mix of workers and threads")
        yield Measured(system, workload, mix, found[mix], seconds, differing)


def check_kernels(kernels: dict[str, str | None]) -> None:
    """Raise ValueError if systems run on kernels for different instruction sets, whose speeds are not comparable."""
    names = {name for name in kernels.values() if name}
    if len(names) > 1:
        found = ", ".join(f"{system} on {name}" for system, name in kernels.items() if name)
        raise ValueError(f"the systems run on kernels for different instruction sets ({found}); name one by --kernels")


def summarise(measured: Measured, expected: list[list[str]]) -> dict[str, Any]:
    """A row of a report: medians over the rounds, and the number of ``expected`` outputs."""
    import numpy as np

    system, workload, found = measured.system, measured.workload, measured.runs
    first = found[0]
    tokens = sum(len(output) + 1 for output in first.outputs)  # with eos, which each system decodes
    seconds = median(measured.seconds[measured.mix])
    spent = first.phases.total() or 1.0
    row: dict[str, Any] = {
        "system": system.name,
        "strategy": system.strategy,
        "dtype": system.dtype,
        "block_size": system.block,
        "beta": system.beta,
        "tau": system.tau,
        "kind": workload.kind,
        "batch_size": workload.batch_size,
        "workers": measured.mix.workers,
        "threads": measured.mix.threads,
        "lengths": dict(sorted(first.lengths.items())),
        "accepted_lengths": dict(sorted(first.accepted_lengths.items())),
        "tokens_per_second": round(tokens / seconds),
        "sentences_per_second": round(len(first.outputs) / seconds, 1),
        "seconds": [round(run.seconds, 4) for run in found],
        "tokens": tokens,
        "mixes": {str(mix): round(tokens / median(each)) for mix, each in measured.seconds.items()},  # tokens per second
        "differing": measured.differing,
        "mean_accepted_length": round(first.mean_accepted_length, 3),
        "acceptance_by_position": [round(rate, 3) for rate in first.acceptance_by_position],
        "time_by_phase": {name: round(value / spent, 3) for name, value in first.phases.items()},
        "identical": sum(ours == theirs for ours, theirs in zip(first.outputs, expected)),
        "of": len(expected),
        "peak_memory_mib": round(found[-1].peak / 2**20),
    }
    if workload.kind == "latency":
        latencies = np.median([run.latencies for run in found], axis=0)  # of each sentence
        for percent, value in zip(PERCENTILES, np.percentile(latencies, PERCENTILES)):
            row[f"latency_p{percent}_ms"] = round(1000 * float(value), 2)
    return row
