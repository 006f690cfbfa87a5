"""A drafter that learns while it serves: tokens a pass on requests that it has not seen, outputs, latency, memory.

    benchmarks/learning.py --model data/docs.en-fr --input CAPTIONS --input NEWS [--requests 5000] [--share 0.5]

Each input gives equally many requests, a line each, in random order. Those of the last tenth are never served: they are decoded
with the drafter at the start and with the one at the end, in drafts as long as in training. All outputs that were served
are compared with plain decoding. For latency compare with ``--share 0``, which does not learn, on a quiet machine.
"""

import argparse
import asyncio
import gzip
import json
import random
import resource
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.serving.learning import USUAL_PACE, Learning, Lessons, learner  # noqa: E402
from specdec_plugins.serving.translator import AsyncTranslator  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

LONGEST = 300  # characters of a line


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--input", required=True, action="append", help="lines of text; .gz allowed; repeat it")
    p.add_argument("--requests", type=int, default=5000)
    p.add_argument("--share", type=float, default=0.5)
    p.add_argument("--every", type=float, default=0.2, metavar="SECONDS", help="from one request to the next, at least")
    p.add_argument("--settle", type=float, default=0.0, metavar="SECONDS", help="to learn after the last request")
    p.add_argument("--busy", action="store_true", help="the machine is busy: do not wait for idle time")
    options = p.parse_args()
    print(
        json.dumps({"benchmark": "learning", **asyncio.run(measured(options)), "signature": {**machine("cpu"), **vars(options)}})
    )


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


async def measured(options: argparse.Namespace) -> dict[str, object]:
    lines, settings = lines_of(options), Settings(dtype="int8", threads=1)
    part = len(lines) // 10
    seen, unseen, pair = lines[part:], lines[:part], learner(options.model, None)
    drafting = Translator(pair, replace(settings, block_size=pair.block_size))
    wanted, before = decoded(drafting, unseen)
    served = AsyncTranslator(Translator(pair, settings))
    if options.share:
        pace = replace(USUAL_PACE, idle_time=not options.busy)
        served.learning = Learning("model", served.line, options.model, Lessons(options.share, pace=pace))
    outputs, seconds, memory, course = list[list[str]](), list[float](), list[float](), list[tuple[int, float]]()
    for number, line in enumerate(seen):
        began = time.perf_counter()
        outputs.append((await served.translate(line))[0].tokens)
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, options.every - seconds[-1]))
        if served.learning and len(course) < served.learning.swaps:
            course.append((number, round(served.learning.present, 3)))
            print(f"request {number:,}: {served.learning.present:.2f} tokens a pass", file=sys.stderr)
        if number % max(1, len(seen) // 20) == 0:
            memory.append(round(resident()))
    await asyncio.sleep(options.settle)
    found = {"before": before, "p95_ms": round(1000 * statistics.quantiles(seconds, n=20)[-1], 2), "memory_mib": memory}
    if served.learning:
        served.learning.close()
        drafting.engine.redraft(served.learning.drafter)
        again, after = decoded(drafting, unseen)
        counts = {name: getattr(served.learning, name) for name in ("updates", "swaps", "refused")}
        found |= {"after": after, "gain": round(after / before, 3), **counts, "course": course, "unseen_differ": again != wanted}
    await served.close()
    plain = decoded(Translator(pair, replace(settings, strategy="ar")), seen)[0]
    return {**found, "served_differ": sum(one != other for one, other in zip(outputs, plain))}


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
