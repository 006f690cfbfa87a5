"""Compare systems on one copy of a translator's models, in turn, batch by batch.

A shared machine's speed changes by a tenth within seconds, and systems with separate weights evict each other's from the caches.
So every system decodes a batch, in random order and on the same weights, before any decodes the next one. Two equal systems then
differ by less than 1 %.
"""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specdec_plugins import Translator
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats


class Timed(NamedTuple):
    """A system's cost for all sources."""

    seconds: float
    tokens: float
    stats: DecodeStats  # of all rounds


def plain(roles: Roles) -> Roles:
    """`ar` on the verifier of ``roles``."""
    return roles._replace(drafter=NoDrafter(), controller=FixedLength(0))


def session_on(translator: Translator, roles: Roles, rows: int) -> Session:
    """A session on other roles than the translator's, with its own statistics."""
    return translator.engine.session(rows, roles=roles, stats=DecodeStats())


def by_turns(
    translator: Translator, systems: Mapping[str, Roles], sources: Sequence[list[int]], batch_size: int, rounds: int
) -> dict[str, Timed]:
    """Decode the sources with every system. Seconds are the sum over batches of the rounds' medians, after a warm-up round."""
    sessions = {name: session_on(translator, roles, batch_size) for name, roles in systems.items()}
    seconds = dict.fromkeys(systems, 0.0)
    for start in range(0, len(sources), batch_size):
        requests = [translator.engine.request(start + n, source) for n, source in enumerate(sources[start : start + batch_size])]
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds + 1):
            for name in random.sample(list(systems), len(systems)):
                began = time.perf_counter()
                for _ in sessions[name].run(requests):
                    pass
                times[name].append(time.perf_counter() - began)
        for name, each in times.items():
            seconds[name] += statistics.median(each[1:])
    return {
        name: Timed(seconds[name], session.stats.committed / (rounds + 1), session.stats) for name, session in sessions.items()
    }
