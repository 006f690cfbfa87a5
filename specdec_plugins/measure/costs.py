"""What passes cost on this machine: a pair's own decoding, timed with fixed draft lengths."""

import statistics
import time
from collections.abc import Sequence

from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.engine import Engine
from specdec_plugins.measure.expectation import Costs

LENGTHS = (0, 2, 3, 4, 6, 8)  # of drafts
SENTENCES = {1: 4, 8: 16}  # of a measurement, by batch size: a batch is full for most of it
ROUNDS = 9  # measurements of each at most: the median is reported, as other programs may disturb some
PASSES = ("drafting", "verifying", "elsewhere")  # what belongs to passes in the statistics


def pass_costs(engine: Engine, requests: Sequence[Request], seconds: float) -> dict[int, Costs]:
    """By batch size, measured in turns for about this long. The engine has a drafter, trained or not: a pass costs the same."""
    longest, cases = max(1, engine.trained_block_size), []
    for rows, count in SENTENCES.items():
        for length in (each for each in LENGTHS if each <= longest):
            roles = engine.roles._replace(controller=FixedLength(length))
            cases.append((rows, length, requests[:count], engine.session(rows, roles=roles)))
    found: dict[tuple[int, int], list[tuple[float, float]]] = {(rows, length): [] for rows, length, *_ in cases}
    began = time.monotonic()
    for turn in range(ROUNDS + 1):
        for rows, length, some, session in cases:
            session.stats = DecodeStats()
            for hypothesis in session.run(some):
                if hypothesis.error is not None:
                    raise hypothesis.error
            stats = session.stats
            if turn:  # caches and threads are cold in the first
                spent = sum(stats.seconds[name] for name in PASSES) / max(1, stats.iterations)
                found[rows, length].append((spent, stats.seconds["encoding"] / max(1, stats.sentences)))
        if turn and time.monotonic() - began > seconds:
            break
    medians = {case: [statistics.median(each) for each in zip(*values)] for case, values in found.items()}
    return {
        rows: Costs(medians[rows, 0][1], {length: spent for (other, length), (spent, _) in medians.items() if other == rows})
        for rows in SENTENCES
    }
