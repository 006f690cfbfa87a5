#!/usr/bin/env python3
"""Draw what the READMEs show: how a sentence comes about, throughput, and what drafters that differ in one thing are accepted.

    benchmarks/figures.py trace docs/trace.png
    benchmarks/figures.py throughput benchmarks/multi30k.json benchmarks/batch_sizes.png
    benchmarks/figures.py ablation RUN MACHINE benchmarks/ablation.png

RUN holds what benchmarks/ablation.sh made, MACHINE says on what; it is added to benchmarks/ablation.jsonl, and a table of all
goes to stdout. Needs: pip install -e '.[bench]'.
"""

import json
import re
import sys
from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.measure.figures import STYLES, plot_speeds  # noqa: E402
from specdec_plugins.measure.tables import read  # noqa: E402

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window while two children are watching him."
SIZE, DPI = 10, 150  # points; dots an inch
LOOKS = {  # of a token: its box, its frame, its text
    "accepted": ("#dff0d8", "#3a7d2c", "black"), "own": ("#1f4e9c", "#1f4e9c", "white"), "refused": ("white", "0.6", "0.45"),
}  # fmt: skip


def trace(path: Path) -> None:
    """A line a pass: accepted tokens, the verifier's own, and struck out what was refused."""
    translator = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), strategy="specdec", block_size=8)
    (result,) = translator.translate([SENTENCE])
    lines = []
    for step in result.steps:
        words = translator.words([*step.drafted, *([step.own] if step.own is not None else [])])
        line = [(word, "accepted") for word in words[: step.accepted]]
        line += [(word, "own") for word in words[len(step.drafted) :]]
        line += [(word, "refused") for word in words[step.accepted : len(step.drafted)]]
        lines.append(line)
    height = 0.34 * (len(lines) + 3)
    figure = pyplot.figure(figsize=(8, height))

    def put(x: float, y: float, word: str, look: str) -> float:
        """Draw a token at so many inches from the left and top; returns where the next one begins."""
        face, edge, colour = LOOKS[look]
        box = {"boxstyle": "round,pad=0.25", "facecolor": face, "edgecolor": edge, "linewidth": 0.8}
        text = figure.text(x / 8, 1 - y / height, word, size=SIZE, color=colour, va="center", bbox=box)
        width = text.get_window_extent().width / figure.dpi
        if look == "refused":
            ends = [x / 8, (x + width) / 8]
            figure.add_artist(Line2D(ends, [1 - y / height] * 2, color=colour, linewidth=1, zorder=9))
        return x + width + 0.16

    figure.text(0.02, 1 - 0.25 / height, SENTENCE, size=SIZE, va="center")
    for number, line in enumerate(lines, 1):
        y = 0.34 * (number + 0.9)
        figure.text(0.02, 1 - y / height, f"pass {number}", size=SIZE, color="0.45", va="center")
        x = 0.85
        for token, look in line:
            x = put(x, y, token, look)
    x, y = 0.85, 0.34 * (len(lines) + 2.1)
    for token, look in (("drafted and accepted", "accepted"), ("the verifier's own", "own"), ("drafted and refused", "refused")):
        x = put(x, y, token, look)
    figure.savefig(path, dpi=DPI)


def variants(run: Path, machine: str) -> Iterator[dict[str, Any]]:
    """What each finished variant came to: on a whole test set, blocks of 8."""
    for folder in sorted((run / "ablation").iterdir()):
        if (folder / "acceptance.log").exists() and "{" in (folder / "acceptance.log").read_text():
            found = json.loads((folder / "acceptance.log").read_text().splitlines()[-1])["rows"][0]
            log = (folder / "train.log").read_text()
            updates = max(int(number) for number in re.findall(r"@ (\d+) updates", log))
            name, seed = folder.name.rsplit(".", 1)
            yield {
                "variant": name, "seed": int(seed), "updates": updates, "tokens_a_pass": found["mean_accepted_length"],
                "by_position": found["by_position"], "machine": machine,
            }  # fmt: skip


def ablation(run: Path, machine: str, path: Path) -> None:
    """A table of what every variant came to, and a figure of how far drafts pass with the final recipe and the published one."""
    record = path.with_suffix(".jsonl")
    known = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    latest = {identity(row): row for row in [*known, *variants(run, machine)]}
    rows = [latest[key] for key in sorted(latest)]
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in sorted(rows, key=lambda row: -row["tokens_a_pass"]):
        shares = ", ".join(f"{share:.2f}" for share in row["by_position"])
        print(f"| {row['variant']} | {row['seed']} | {row['updates']} | {row['tokens_a_pass']:.2f} | {shares} |")
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    names = {
        ("final", 3200): "final, 3,200 updates",
        ("published", 950): "published, as many minutes",
        ("final", 500): "final, 500 updates",
        ("published", 200): "published, about as many",
    }
    for (colour, style, marker, _), (name, label) in zip(STYLES, names.items()):
        row = next(row for row in rows if (row["variant"], row["updates"]) == name)
        heights = [100 * share for share in accumulate(row["by_position"], mul)]
        axes.plot(range(1, len(heights) + 1), heights, style, marker=marker, color=colour, label=label)
    axes.set(xlabel="position in the draft", ylabel="drafts that pass this far, %", ylim=(0, 100))
    axes.grid(alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=DPI)


def identity(row: dict[str, Any]) -> tuple[str, int, int, str]:
    """What tells a training from another."""
    return row["variant"], row["updates"], row["seed"], row["machine"]


if __name__ == "__main__":
    what, *paths = sys.argv[1:] or ["help"]
    if what == "trace" and len(paths) == 1:
        trace(Path(paths[0]))
    elif what == "throughput" and len(paths) == 2:
        plot_speeds(read(Path(paths[0]))["rows"], paths[1])
    elif what == "ablation" and len(paths) == 3:
        ablation(Path(paths[0]), paths[1], Path(paths[2]))
    else:
        sys.exit(__doc__)
