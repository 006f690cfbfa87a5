#!/usr/bin/env python3
"""BLEU and chrF against latency, in one figure: greedy, drafts, tolerance, beams and minimum Bayes risk; ours and peers.

    benchmarks/quality.py --input FILE --reference FILE [--model data/demo.en-de] [--figure FILE.png]

Quality is that of all lines, with 95 % intervals by bootstrap. Latency is that of the first --sentences lines, one at a time on
one thread, all systems in turn. Nothing else should run on the machine. The last line is JSON.
"""

import argparse
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.formats.folder import load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.measure.systems import ctranslate2_of  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402

TOLERANCES = {"tolerant 2, 0.3": (2, 0.3), "tolerant 3, 1": (3, 1.0)}
Translate = Callable[[Sequence[str], int], list[str]]  # lines and a batch size to translations


class System(NamedTuple):
    family: str  # those of a family are joined by a line
    name: str
    translate: Translate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "data" / "demo.en-de"))
    parser.add_argument("--input", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 2, 4, 5, 8])
    parser.add_argument("--dtype", default="int8", help="of all but fairseq, which has float32")
    parser.add_argument("--sentences", type=int, default=40, help="timed ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--figure", metavar="FILE.png")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # fairseq's
    lines, references = list(read_lines(options.input)), list(read_lines(options.reference))
    systems = [*ours(options), *ctranslate2(options), *fairseq(options)]
    rows = []
    for system, milliseconds in zip(systems, latencies(systems, lines[: options.sentences], options.rounds)):
        rows.append({"family": system.family, "system": system.name, "ms": milliseconds, **scores(system, lines, references)})
        said = "{family:14}{system:18}{ms:9.2f} ms  BLEU {BLEU[0]:.2f} +-{BLEU[1]:.2f}  chrF2 {chrF2[0]:.2f} +-{chrF2[1]:.2f}"
        print(said.format(**rows[-1]), flush=True)
    if options.figure:
        draw(rows, Path(options.figure))
    print(json.dumps({"benchmark": "quality", "rows": rows, "signature": {**machine(), **vars(options)}}))
    return 0


def ours(options: argparse.Namespace) -> list[System]:
    def system(family: str, name: str, **settings: Any) -> System:
        translator = Translator(pair, Settings(dtype=options.dtype, threads=1, **settings))

        def translate(lines: Sequence[str], batch_size: int) -> list[str]:
            return [each.text for each in translator.translate(lines, batch_size=batch_size)]

        return System(family, name, translate)

    pair = load_folder(options.model)
    systems = [system("ours", f"beam {beam}", strategy="ar", beam=beam) for beam in options.beams]
    systems.append(system("ours, drafts", "exact", strategy="specdec"))
    for name, (beta, tau) in TOLERANCES.items():
        systems.append(system("ours, drafts", name, strategy="specdec", beta=beta, tau=tau))
    for samples in (8, 16):
        systems.append(system("ours, MBR", f"MBR {samples}", strategy="ar", sampling=True, temperature=0.5, mbr=samples))
    return systems


def ctranslate2(options: argparse.Namespace) -> list[System]:
    pair = load_folder(options.model)
    translator = ctranslate2_of(pair, options.dtype, 1)

    def system(beam: int) -> System:
        def translate(lines: Sequence[str], batch_size: int) -> list[str]:
            sources = [pair.source.tokens(list(pair.codec.encode(line).ids)[:-1]) for line in lines]
            found = translator.translate_batch(sources, max_batch_size=batch_size, beam_size=beam, length_penalty=1)
            return [pair.codec.decode(pair.target.ids(each.hypotheses[0])) for each in found]

        return System("CTranslate2", f"beam {beam}", translate)

    return [system(beam) for beam in options.beams]


def fairseq(options: argparse.Namespace) -> list[System]:
    def system(beam: int) -> System:
        translator = Translator.from_pretrained(options.model, strategy="fairseq", beam=beam, threads=1)
        return System(
            "fairseq", f"beam {beam}", lambda lines, size: [t.text for t in translator.translate(lines, batch_size=size)]
        )

    return [system(beam) for beam in (1, 5)]


def latencies(systems: list[System], lines: list[str], rounds: int) -> list[float]:
    """Milliseconds a sentence: medians over rounds, after one that warms up. fairseq has one round."""
    seconds: dict[int, list[float]] = {number: [] for number in range(len(systems))}
    for turn in range(rounds + 1):
        for number in random.sample(range(len(systems)), len(systems)):
            if systems[number].family == "fairseq" and turn > 1:
                continue
            given = lines if turn else lines[:5]
            began = time.perf_counter()
            for line in given:
                systems[number].translate([line], 1)
            if turn:
                seconds[number].append(time.perf_counter() - began)
    return [round(1000 * statistics.median(each) / len(lines), 3) for each in seconds.values()]


def scores(system: System, lines: list[str], references: list[str]) -> dict[str, list[float]]:
    """Each metric's score and the half width of its interval."""
    from sacrebleu.metrics import BLEU, CHRF

    outputs, found = system.translate(lines, 32), {}
    for metric in (BLEU(), CHRF()):
        score = metric.corpus_score(outputs, [references], n_bootstrap=1000)
        found[score.name] = [round(score.score, 2), round(float(score._ci), 2)]
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 4), layout="constrained")
    styles = {
        "ours": ("#1f4e9c", "o-"),
        "ours, drafts": ("#1f4e9c", "^:"),
        "ours, MBR": ("#1f4e9c", "s:"),
        "CTranslate2": ("0.45", "o-"),
        "fairseq": ("0.7", "o-"),
    }
    for family, (colour, style) in styles.items():
        points = [(row["ms"], row["BLEU"][0], row["system"]) for row in rows if row["family"] == family]
        panel.plot([x for x, _, _ in points], [y for _, y, _ in points], style, color=colour, label=family, markersize=5)
        for x, y, name in points:
            panel.annotate(name.removeprefix("beam "), (x, y), (4, 4), textcoords="offset points", size=7, color=colour)
    panel.set_xscale("log")
    panel.set_xlabel("milliseconds a sentence, one at a time, one thread")
    panel.set_ylabel("BLEU")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8, title="numbers are beams", title_fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
