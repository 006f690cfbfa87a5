"""How long a corpus will take, from a sample of its lines."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from specdec_plugins.corpora.inputs import records
from specdec_plugins.corpora.plan import Plan
from specdec_plugins.corpora.values import Job, Piece
from specdec_plugins.workers import Workers

PLACES, LINES = 16, 64  # where lines are taken, and how many of them


def estimate(plan: Plan, job: Job, workers: int) -> list[str]:
    """Lines of text. Nothing is written."""
    size = f"{plan.records:,} lines, {plan.size / 1e6:,.1f} MB; shards: {len(plan.shards):,}"
    if not plan.shards:
        return [size]
    sample = [batch for piece in places(plan) if (batch := taken(piece, job))]
    if workers == 1:
        translate = Sampler(job)
        began = time.perf_counter()
        tokens = sum(map(translate, sample))
        seconds = time.perf_counter() - began
    else:
        with Workers(workers, partial(Sampler, job)) as pool:
            began = time.perf_counter()
            tokens = sum(pool.map(sample))
            seconds = time.perf_counter() - began
    count = sum(map(len, sample))
    hours = seconds * plan.records / count / 3600
    return [
        size,
        f"{count:,} lines of a sample took {seconds:.1f} s: {count / seconds:,.1f} lines/s, {tokens / seconds:,.0f} tokens/s",
        f"all would take about {hours:,.1f} hours" if hours >= 1 else f"all would take about {hours * 60:,.1f} minutes",
    ]


def places(plan: Plan) -> Iterator[Piece]:
    """The beginnings of pieces, spread over the corpus."""
    pieces = [piece for shard in plan.shards for piece in shard.pieces]
    step = max(1, len(pieces) // PLACES)
    for piece in pieces[::step][:PLACES]:
        yield replace(piece, count=min(LINES, piece.count))


def taken(piece: Piece, job: Job) -> list[str]:
    skipped: Callable[[ValueError], None] | None = (lambda error: None) if job.skips else None
    return list(records(piece, job.column, job.longest, skipped))


class Sampler:
    """Translates lines in process ``number`` and counts their tokens."""

    def __init__(self, job: Job, number: int = 0):
        self.translate = job.build(number)

    def __call__(self, lines: list[str]) -> int:
        return self.translate(0, lines).stats.committed
