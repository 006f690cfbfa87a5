#!/usr/bin/env python3
"""Draw how drafts become a sentence, pass by pass, for the README: benchmarks/trace.py docs/trace.png"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

from specdec_plugins import Translator  # noqa: E402

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window while two children are watching him."
SIZE, DPI = 10, 150  # points; dots an inch
LOOKS = {  # of a token: its box, its frame, its text
    "accepted": ("#dff0d8", "#3a7d2c", "black"),
    "own": ("#1f4e9c", "#1f4e9c", "white"),
    "refused": ("white", "0.6", "0.45"),
}


def trace(path: Path) -> None:
    """One line per pass: accepted tokens, the verifier's own, and the refused ones struck out."""
    translator = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), strategy="specdec", block_size=8)
    (result,) = translator.translate([SENTENCE])
    lines = []
    for step in result.steps:
        words = translator.codec.target.tokens([*step.drafted, *([step.own] if step.own is not None else [])])
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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    trace(Path(sys.argv[1]))
