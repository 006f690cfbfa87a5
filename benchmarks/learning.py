"""A drafter that learns while it serves: tokens a pass on requests that it has not seen, outputs, latency, memory.

    benchmarks/learning.py --model data/docs.en-fr --input CAPTIONS --input NEWS [--requests 5000] [--share 0.5]
    benchmarks/learning.py --model data/docs.en-fr --input CAPTIONS --input NEWS --requests 35000 --updates 800

Each input gives equally many requests, a line each, in random order. Those of the last tenth are never served: they are decoded
with the drafter at the start and with the one at the end, in drafts as long as in training. The others are served twice, a few
dozens at a time: by a server that does not learn, while the other's learning process is stopped, and by the one that learns. All
outputs are compared with plain decoding's. Latency needs a quiet machine.

With --updates nothing is served: the drafter learns in one round what it could have been served.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import resource
import signal
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.commands.draft_text import requests_of  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.serving.learning import USUAL_PACE, Learning, Lessons, learner  # noqa: E402
from specdec_plugins.serving.translator import AsyncTranslator  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.training.drafting import Training  # noqa: E402
from specdec_plugins.training.pairs import Pair  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

LONGEST = 300  # characters of a line
UNSEEN = 600  # lines to measure on, at most, where nothing is served
SETTINGS = Settings(dtype="int8", threads=1)
BLOCK, MEMORIES = 50, 20  # requests between two turns; memory is read so often


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--input", required=True, action="append", help="lines of text; .gz allowed; repeat it")
    p.add_argument("--requests", type=int, default=5000)
    p.add_argument("--share", type=float, default=0.5)
    p.add_argument("--every", type=float, default=0.2, metavar="SECONDS", help="from one request to the next, at least")
    p.add_argument("--settle", type=float, default=0.0, metavar="SECONDS", help="to learn after the last request")
    p.add_argument("--busy", action="store_true", help="the machine is busy: do not wait for idle time")
    p.add_argument("--updates", type=int, metavar="N", help="learn so often, in hundreds, without serving")
    options = p.parse_args()
    found = alone(options) if options.updates else asyncio.run(measured(options))
    print(json.dumps({"benchmark": "learning", **found, "signature": {**machine("cpu"), **vars(options)}}))


def lines_of(options: argparse.Namespace) -> list[str]:
    """Of all inputs, in random order."""
    found, rng = [], random.Random(1)
    for path in options.input:
        with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            lines = [line for line in dict.fromkeys(map(str.strip, file)) if 2 < len(line) <= LONGEST]
        found += rng.sample(lines, min(len(lines), options.requests // len(options.input)))
    rng.shuffle(found)
    return found


def decoded(translator: Translator, lines: list[str]) -> tuple[list[list[str]], float]:
    """Outputs, and tokens a pass."""
    translator.engine.take_stats()
    outputs = [each.tokens for each in translator.translate(lines)]
    return outputs, round(translator.engine.take_stats().mean_accepted_length, 3)


def alone(options: argparse.Namespace) -> dict[str, object]:
    """Tokens a pass after each hundred updates, whose rate falls at the end of all."""
    lines, pair = lines_of(options), learner(options.model, None)
    part, drafter = min(len(lines) // 10, UNSEEN), pair.drafter
    assert drafter is not None, "it learns"
    plain, drafting = (
        Translator(pair, replace(SETTINGS, **how)) for how in ({"strategy": "ar"}, {"block_size": pair.block_size})
    )
    requests = requests_of(plain, lines[part:], (None, None))
    training = Training.of(drafter, pair.verifier)
    training.feed([Pair(requests[each.index].tokens, each.tokens) for each in plain.engine.decode(requests, 32, None)])
    course = [(0, decoded(drafting, lines[:part])[1])]
    for number in range(1, options.updates + 1):
        training.update((number - 1) / options.updates)
        if number % 100 == 0:
            drafting.engine.redraft(training.drafter())
            course.append((number, decoded(drafting, lines[:part])[1]))
            print(f"{number:,} updates: {course[-1][1]:.2f} tokens a pass", file=sys.stderr)
    return {"pairs": len(training.pairs), "course": course}


async def measured(options: argparse.Namespace) -> dict[str, object]:
    lines, pair = lines_of(options), learner(options.model, None)
    part = len(lines) // 10
    seen, unseen = lines[part:], lines[:part]
    drafting = Translator(pair, replace(SETTINGS, block_size=pair.block_size))
    wanted, before = decoded(drafting, unseen)
    servers = {name: AsyncTranslator(Translator(pair, SETTINGS)) for name in ("usual", "learning")}
    served, pace = servers["learning"], replace(USUAL_PACE, idle_time=not options.busy)
    learning = served.learning = Learning("model", served.line, options.model, Lessons(options.share, pace=pace))
    outputs: dict[str, list[list[str]]] = {name: [] for name in servers}
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    memory, course = [(resident(), resident(learning))], list[tuple[int, float]]()
    try:
        for first in range(0, len(seen), BLOCK):
            for name, server in servers.items():
                signalled(learning, signal.SIGSTOP if name == "usual" else signal.SIGCONT)
                for line in seen[first : first + BLOCK]:
                    began = time.perf_counter()
                    outputs[name].append((await server.translate(line))[0].tokens)
                    seconds[name].append(time.perf_counter() - began)
                    await asyncio.sleep(max(0.0, options.every - seconds[name][-1]))
            if len(course) < learning.swaps:
                course.append((first + BLOCK, round(learning.present, 3)))
                print(f"request {first + BLOCK:,}: {learning.present:.2f} tokens a pass", file=sys.stderr)
            if len(memory) * len(seen) <= MEMORIES * (first + BLOCK):
                memory.append((resident(), resident(learning)))
        await asyncio.sleep(options.settle)
    finally:
        learning.close()  # also kills a process that is stopped
    drafting.engine.redraft(learning.drafter)
    again, after = decoded(drafting, unseen)
    plain = decoded(Translator(pair, replace(SETTINGS, strategy="ar")), seen)[0]
    for server in servers.values():
        await server.close()
    slow = {name: 1000 * statistics.quantiles(each, n=20)[-1] for name, each in seconds.items()}
    return {
        "before": before,
        "after": after,
        "gain": round(after / before, 3),
        "p95_ms": {name: round(each, 2) for name, each in slow.items()},
        "p95_ratio": round(slow["learning"] / slow["usual"], 3),
        "memory_mib": dict(zip(("server", "learner"), zip(*memory))),
        **{name: getattr(learning, name) for name in ("updates", "swaps", "refused")},
        "course": course,
        "served_differ": sum(one != other for each in outputs.values() for one, other in zip(each, plain)),
        "unseen_differ": sum(one != other for one, other in zip(again, wanted)),
    }


def signalled(learning: Learning, number: signal.Signals) -> None:
    """Stop or continue the learning process, if there is one."""
    if learning.process is not None:
        os.kill(learning.process, number)


def resident(learning: Learning | None = None) -> int:
    """MiB of this process, or of the learning process: 0 without one."""
    process = os.getpid() if learning is None else learning.process
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
    return 0


if __name__ == "__main__":
    main()
