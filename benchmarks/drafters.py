#!/usr/bin/env python3
"""Drafters compared with `ar` in the same data type: speed, tokens per pass, drafting cost. Every output must equal `ar`'s.

All drafters at all block sizes take turns in random order, a sentence at a time (two batches for larger batch sizes), on one copy
of the weights; each model folder is a separate run, because copies evict each other from the caches. A turn's time is the median
of the rounds. `auto` is also compared with the best of `ar` and the fixed block sizes. `auto` and drafters that learn start fresh
in each round. A drafter with weights is named after its folder. Hints of `previous`: ``live``, the model's translation of the
sentence without its last two words; ``again``, its translation of the whole sentence; ``reference``, a person's; ``source``, the
sentence.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from turns import plain, session_on

from specdec_plugins.assignment import controller_of, facts_of
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.formats.spec import fingerprint
from specdec_plugins.measure.machine import machine
from specdec_plugins.settings import UNTRAINED, Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

HINTS = ("live", "again", "reference", "source")


class System:
    """A drafter or `ar` at one block size, data type and batch size."""

    def __init__(self, name: str, size: str, translator: Translator, cell: "Cell"):
        self.name, self.translator, self.rows = name, translator, cell.batch
        self.block_size: int | str = size if size == "auto" else int(size)
        self.drafter, _, self.hint = name.partition(" ")
        self.untrained = self.drafter in UNTRAINED
        self.settings = translator.settings
        if name == "ar":
            self.roles = plain(translator.engine.roles)
        else:
            self.settings = replace(
                self.settings,
                block_size=self.block_size,
                draft_with=self.drafter if self.untrained else None,
                datastore=cell.options.datastore if self.drafter == "retrieval" else None,
            )
            self.roles = translator.engine.roles
        self.rounds: list[list[float]] = []  # seconds of each turn

    def begin(self) -> None:
        """A new round."""
        if self.untrained:
            self.roles = self.roles._replace(drafter=self.without_weights())
        if self.name != "ar":
            trained = self.translator.engine.trained_block_size
            self.roles = self.roles._replace(controller=controller_of(self.settings, trained, self.roles.drafter))
        self.session = session_on(self.translator, self.roles, self.rows)
        self.rounds.append([])

    def without_weights(self) -> Drafter:
        """The drafter, fresh."""
        verifier = self.roles.verifier
        assert isinstance(verifier, ModelVerifier)
        return drafters.without_weights(self.drafter, facts_of(self.translator.pair, self.settings, verifier.model))

    def decode(self, sources: Sequence[list[int]], hints: Sequence[Sequence[int]]) -> list[list[int]]:
        """A turn's outputs, in the order of its sources."""
        began = time.perf_counter()
        requests = [self.translator.engine.request(i, source, hint=hint) for i, (source, hint) in enumerate(zip(sources, hints))]
        outputs = sorted(self.session.run(requests), key=lambda output: output.index)
        self.rounds[-1].append(time.perf_counter() - began)
        return [output.tokens for output in outputs]

    @property
    def seconds(self) -> float:
        """Of all turns, each the median of the rounds."""
        return sum(map(statistics.median, zip(*self.rounds)))


class Cell:
    """All systems at one data type and batch size, `ar` first."""

    def __init__(self, options: argparse.Namespace, translator: Translator, dtype: str, batch: int):
        self.options, self.dtype, self.batch = options, dtype, batch
        names = [options.model.name] if translator.pair.drafter else []
        names += options.without if options.datastore else [name for name in options.without if name != "retrieval"]
        self.systems = [System("ar", "0", translator, self)]
        self.systems += [System(name, size, translator, self) for size in options.block_sizes for name in names]

    def measure(self, sources: list[list[int]], hints: Mapping[str, Sequence[Sequence[int]]]) -> list[dict]:
        """A row per system. Raises SystemExit if an output differs from `ar`'s."""
        size = 1 if self.batch == 1 else 2 * self.batch
        nothing: list[Sequence[int]] = [()] * len(sources)
        for _ in range(self.options.rounds):
            for system in self.systems:
                system.begin()
            for start in range(0, len(sources), size):
                expected = None
                for system in random.sample(self.systems, len(self.systems)):
                    given = hints[system.hint] if system.hint else nothing
                    outputs = system.decode(sources[start : start + size], given[start : start + size])
                    expected = expected or outputs
                    if outputs != expected:
                        raise SystemExit(f"{system.name}: other outputs for lines {start + 1} to {start + len(outputs)}")
        return [self.row(system) for system in self.systems]

    def row(self, system: System) -> dict:
        stats = system.session.stats
        times_ar, times_ar_range = speed(system, self.systems[0])
        row = {
            "drafter": system.name,
            "dtype": self.dtype,
            "batch": self.batch,
            "block_size": system.block_size,
            "times_ar": times_ar,
            "range": times_ar_range,
            "tokens_a_pass": round(stats.mean_accepted_length, 3),
            "drafted_a_pass": round(stats.drafted / stats.iterations, 2),
            "accepted": round(stats.acceptance_rate, 3),
            "drafting_us": round(1e6 * stats.seconds["drafting"] / stats.passes),
            "verifying_us": round(1e6 * stats.seconds["verifying"] / stats.passes),
        }
        if system.block_size == "auto":
            others = [each for each in self.systems if each.name in ("ar", system.name) and each.block_size != "auto"]
            row["times_best"], row["times_best_range"] = speed(system, min(others, key=lambda each: each.seconds))
        return row


def speed(system: System, baseline: System) -> tuple[float, list[float]]:
    """The speed relative to the baseline, with the range over the rounds."""
    ratios = [sum(theirs) / sum(ours) for ours, theirs in zip(system.rounds, baseline.rounds)]
    return round(baseline.seconds / system.seconds, 3), [round(min(ratios), 3), round(max(ratios), 3)]


def shown(times: float, within: list[float]) -> str:
    return f"{times:.2f} ({within[0]:.2f}-{within[1]:.2f})"


def hints_of(pair: Pair, lines: list[str], references: list[str], sources: list[list[int]]) -> dict[str, list[list[int]]]:
    translator = Translator(pair, Settings(strategy="ar", beam=1))

    def translated(texts: list[str]) -> list[list[int]]:
        requests = [translator.engine.request(i, source) for i, source in enumerate(translator.encode(texts))]
        return [each.tokens for each in sorted(translator.engine.session(32).run(requests), key=lambda each: each.index)]

    return {
        "live": translated([" ".join(line.split()[:-2]) or line for line in lines]),
        "again": translated(lines),
        "reference": translator.encode_target(references),
        "source": [source[:-1] for source in sources],
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", type=Path, required=True, metavar="DIR", help="model folder")
    p.add_argument("--input", required=True)
    p.add_argument("--reference", required=True)
    p.add_argument("--datastore", help="of text that does not have the reference")
    p.add_argument("--without", nargs="*", metavar="NAME", help="drafters without weights, 'previous live' and so on")
    p.add_argument("--sentences", type=int, default=100)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--block-sizes", nargs="+", default=["4"], help="numbers, or auto")
    p.add_argument("--dtypes", nargs="+", default=["int8"])
    p.add_argument("--batch-sizes", type=int, nargs="+", default=[1])
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--output", type=Path, help="append a JSON line a data type and batch size")
    p.set_defaults(without=["ngram", "recycling", "lookahead", "retrieval", *(f"previous {hint}" for hint in HINTS[:3])])
    options = p.parse_args()
    pair = load_folder(options.model)
    lines, references = (list(read_lines(path))[: options.sentences] for path in (options.input, options.reference))
    sources = Translator(pair, Settings(strategy="ar")).encode(lines)
    hints = hints_of(pair, lines, references, sources)
    model = fingerprint(pair.verifier)[:12]
    signature = {
        **machine(),
        "model": model,
        "input": Path(options.input).name,
        "sentences": len(lines),
        "rounds": options.rounds,
        "threads": options.threads,
    }
    heads = ["dtype", "batch", "K", "drafter", "times `ar`", "times the best", "tokens per pass", "accepted", "drafting, us"]
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    for dtype in options.dtypes:
        how = Settings(dtype=dtype, threads=options.threads, draft_with=None if pair.drafter else "ngram")
        translator = Translator(pair, how)
        for batch in options.batch_sizes:
            rows = Cell(options, translator, dtype, batch).measure(sources, hints)
            for row in rows:
                best = shown(row["times_best"], row["times_best_range"]) if "times_best" in row else ""
                print(
                    f"| {dtype} | {batch} | {row['block_size']} | {row['drafter']} | {shown(row['times_ar'], row['range'])} | "
                    f"{best} | {row['tokens_a_pass']:.2f} | {row['accepted']:.0%} | {row['drafting_us']} |",
                    flush=True,
                )
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"signature": signature, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
