#!/usr/bin/env python3
"""Beam search against fairseq's and CTranslate2's: latency, throughput and memory by beam size.

    benchmarks/beams.py --input FILE [--model data/demo.en-de]        # ten minutes with the pair that ships
    benchmarks/beams.py --random [--layers 6 --width 512 --inner 2048 --heads 8 --vocabulary 58101]     # OPUS-MT's shape

Every system runs in its own processes, and for every beam size all take turns, round by round, at their best number of threads,
which is tried first. Throughput takes one single-threaded process per core. Models with random weights write outputs of a fixed
length. Nothing else should run on the machine. The last line is JSON.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.measure.processes import split  # noqa: E402

SOURCE, OUTPUT = 25, 28  # tokens of a sentence of random models, eos included
TRIED = 12  # sentences to choose the number of threads by
SLOW_BEAMS = (1, 5)  # of fairseq, in one round
Sources = list[list[int]]


class Said(NamedTuple):
    """Best outputs as token ids, without eos, in the order of the sources."""

    seconds: float
    outputs: Sources


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "data" / "demo.en-de"))
    parser.add_argument("--input", help="source text; --random needs none")
    parser.add_argument("--random", action="store_true", help="a model with random weights in place of --model")
    for name, size in {"layers": 6, "width": 512, "inner": 2048, "heads": 8, "vocabulary": 58101}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--systems", nargs="+", default=["ours", "ctranslate2", "fairseq"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 2, 4, 5, 8])
    parser.add_argument("--dtypes", nargs="+", default=["int8", "float32"])
    parser.add_argument("--sentences", type=int, default=40, help="one at a time; throughput takes five times as many")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.input and not options.random:
        parser.error("--input is required without --random")
    with tempfile.TemporaryDirectory() as place:
        if options.random:
            from memory import write_folder

            write_folder(options, Path(place))
            options.model = f"{place}/model"
        sources = text_of(options)
        systems = [System(name, dtype, options) for dtype in options.dtypes for name in options.systems if exists(name, dtype)]
        for system in systems:
            system.choose_threads(sources[:TRIED], max(options.beams))
        rows = [*speeds(systems, sources, options), *memory(systems, sources, options)]
    print(json.dumps({"benchmark": "beams", "rows": rows, "signature": {**machine(), **vars(options)}}))
    return 0


def exists(name: str, dtype: str) -> bool:
    return name != "fairseq" or dtype == "float32"


def text_of(options: argparse.Namespace) -> Sources:
    if options.random:
        chance, count = random.Random(2), 5 * options.sentences
        return [[*(chance.randrange(4, options.vocabulary) for _ in range(SOURCE - 1)), 2] for _ in range(count)]
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.runs import read_text
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    translator = Translator(load_folder(options.model), Settings(strategy="ar", threads=1))
    return read_text(translator, options.input, None, None).sources


# ---- in a system's processes

decoder: Any


def start(name: str, model: str, dtype: str, threads: int, fixed: int | None) -> None:
    """Build ``decoder``."""
    import logging

    import torch

    logging.disable(logging.WARNING)
    global decoder
    torch.set_num_threads(threads)
    decoder = (CTranslate2 if name == "ctranslate2" else Engines)(name, model, dtype, threads, fixed)


def decode(sources: Sources, beam: int, batch_size: int, begin: float) -> Said:
    time.sleep(max(0.0, begin - time.monotonic()))
    began = time.perf_counter()
    groups = [[source] for source in sources] if batch_size == 1 else [sources]
    outputs = [output for group in groups for output in decoder(group, beam, batch_size)]
    return Said(time.perf_counter() - began, outputs)


def cache_bytes(sources: Sources, beam: int) -> int:
    return decoder.cache_bytes(sources, beam)


class Engines:
    """Our engine, or fairseq's generator, with a beam of any size."""

    def __init__(self, name: str, model: str, dtype: str, threads: int, fixed: int | None):
        from specdec_plugins.formats.folder import load_folder
        from specdec_plugins.settings import Settings
        from specdec_plugins.translator import engine_of

        lengths: dict[str, Any] = {} if fixed is None else {"min_len": fixed, "max_len_b": fixed}
        strategy = "ar" if name == "ours" else name
        self.engine = engine_of(load_folder(model), Settings(strategy=strategy, dtype=dtype, threads=threads, **lengths))

    def resize(self, beam: int) -> None:
        self.engine = self.engine.under(replace(self.engine.settings, beam=beam))

    def __call__(self, sources: Sources, beam: int, batch_size: int) -> Sources:
        self.resize(beam)
        return [each.tokens for each in self.engine.generate(sources, batch_size)]

    def cache_bytes(self, sources: Sources, beam: int) -> int:
        """Of a session that has decoded the sources together."""
        self.resize(beam)
        session = self.engine.session(beam * len(sources))
        for index, source in enumerate(sources):
            session.submit(self.engine.request(index, source))
        while not session.idle:
            session.step(16)
        state = session.runner.verifying
        return state.cache.data.nbytes + state.sources.cache.data.nbytes


class CTranslate2:
    """With fairseq's length penalty of 1."""

    def __init__(self, name: str, model: str, dtype: str, threads: int, fixed: int | None):
        from specdec_plugins.formats.folder import load_folder
        from specdec_plugins.measure.systems import ctranslate2_of

        self.pair = load_folder(model)
        self.lengths = {"max_decoding_length": fixed or 200, "min_decoding_length": fixed or 1}
        self.translator = ctranslate2_of(self.pair, dtype, threads)

    def __call__(self, sources: Sources, beam: int, batch_size: int) -> Sources:
        tokens = [self.pair.source.tokens(source[:-1]) for source in sources]
        found = self.translator.translate_batch(
            tokens, max_batch_size=batch_size, beam_size=beam, length_penalty=1, **self.lengths
        )
        return [self.pair.target.ids(each.hypotheses[0]) for each in found]


# ---- measuring


@dataclass
class System:
    """A system's processes: one per core with a single thread, and one with a thread per core."""

    name: str
    dtype: str
    options: argparse.Namespace
    single: list[ProcessPoolExecutor] = field(default_factory=list)
    threads: int = 1  # that serve one sentence best

    def __post_init__(self) -> None:
        self.single = [self._process(1) for _ in range(usable_cpus())]
        self.latency = self.single[0]

    def _process(self, threads: int) -> ProcessPoolExecutor:
        fixed = OUTPUT - 1 if self.options.random else None
        arguments = self.name, self.options.model, self.dtype, threads, fixed
        return ProcessPoolExecutor(1, get_context("spawn"), start, arguments)

    def choose_threads(self, sources: Sources, beam: int) -> None:
        """Keep the process that is the faster one with a sentence at a time."""
        if usable_cpus() == 1:
            return
        several = self._process(usable_cpus())
        seconds = [
            min(process.submit(decode, sources, beam, 1, 0.0).result().seconds for _ in range(2))
            for process in (self.latency, several)
        ]
        if seconds[1] < seconds[0]:
            self.latency, self.threads = several, usable_cpus()
        else:
            several.shutdown()

    def one_by_one(self, sources: Sources, beam: int) -> Said:
        return self.latency.submit(decode, sources, beam, 1, 0.0).result()

    def together(self, sources: Sources, beam: int) -> Said:
        """On all cores; seconds until the last process is done."""
        parts, begin = split(sources, len(self.single)), time.monotonic() + 0.05
        waiting = [
            process.submit(decode, [sources[n] for n in part], beam, self.options.batch_size, begin)
            for process, part in zip(self.single, parts)
        ]
        said = [each.result() for each in waiting]
        placed = {n: output for part, each in zip(parts, said) for n, output in zip(part, each.outputs)}
        return Said(max(each.seconds for each in said), [placed[n] for n in sorted(placed)])


def speeds(systems: list[System], sources: Sources, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All systems in turn, beam by beam within a round. Tokens are those of each system's own outputs, eos included."""
    few, many = sources[: options.sentences], sources[: 5 * options.sentences]
    found: dict[tuple[int, int, str], list[Said]] = {}
    for kind, given in (("latency", few), ("throughput", many)):
        for number in range(options.rounds + 1):  # the first warms up
            for beam in options.beams:
                for system in random.sample(systems, len(systems)):
                    if system.name == "fairseq" and (number != 1 or beam not in SLOW_BEAMS):
                        continue
                    ask = system.one_by_one if kind == "latency" else system.together
                    said = ask(given if number else given[: len(given) // 4 + 1], beam)
                    found.setdefault((id(system), beam, kind), []).extend([said] * (number > 0))
    rows = []
    for kind in ("latency", "throughput"):
        for beam in options.beams:
            for system in systems:
                runs = found.get((id(system), beam, kind))
                if not runs:
                    continue
                outputs, seconds = runs[0].outputs, statistics.median(run.seconds for run in runs)
                tokens = sum(len(output) + 1 for output in outputs)
                first = statistics.median(run.seconds for run in found[id(system), options.beams[0], kind])
                rows.append(
                    {
                        "measure": kind,
                        "system": system.name,
                        "dtype": system.dtype,
                        "beam": beam,
                        "threads": system.threads if kind == "latency" else 1,
                        "sentences": len(outputs),
                        "seconds": [round(run.seconds, 4) for run in runs],
                        "tokens_per_second": round(tokens / seconds),
                        "ms_per_sentence": round(1000 * seconds / len(outputs), 3),
                        "times_first_beam": round(seconds / first, 2),
                    }
                )
                print(
                    "{measure:10} beam {beam} {system:12}{dtype:8} {threads} threads {tokens_per_second:7,} tokens/s "
                    "{ms_per_sentence:9.2f} ms a sentence {times_first_beam:5.2f} x the first beam".format(**rows[-1]),
                    flush=True,
                )
    return rows


def memory(systems: list[System], sources: Sources, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Our caches by beam and batch size."""
    rows, longest = [], sorted(sources, key=len)
    for system in systems:
        if system.name != "ours" or system.dtype != options.dtypes[0]:
            continue
        for beam in options.beams:
            for size in (1, options.batch_size):
                held = system.single[0].submit(cache_bytes, longest[-size:], beam).result() / 2**20
                rows.append({"measure": "memory", "beam": beam, "batch_size": size, "caches_mib": round(held, 2)})
                print(f"memory     beam {beam} batch {size}: caches of {held:.1f} MiB", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
