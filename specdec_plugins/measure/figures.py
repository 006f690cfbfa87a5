"""The figure of ``specdec-benchmark``, drawn from the rows of its JSON: readable in black and white, and on a phone's screen."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WIDTH = 6  # inches
FACES = {"fairseq": "0.85", "fairseq-beam5": "0.85", "ctranslate2": "0.7", "ar": "0.45"}  # greys of others' bars; ours are blue
OURS = "#1f4e9c"


def workloads(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by workload, which has a title."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        latency = row["kind"] == "latency"
        found.setdefault("one sentence at a time" if latency else f"throughput, batch size {row['batch_size']}", []).append(row)
    return found


def speeds(rows: Sequence[Row], path: Path) -> None:
    """Bars of tokens a second, a panel a workload; a line over a bar spans the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = workloads(rows)
    heights = [0.7 + 0.28 * len(each) for each in panels.values()]  # inches
    figure, axes = pyplot.subplots(
        len(heights), figsize=(WIDTH, sum(heights)), layout="constrained", squeeze=False, height_ratios=heights
    )
    for panel, (title, each) in zip(axes[:, 0], panels.items()):
        centres = list(range(len(each)))[::-1]
        values = [row["tokens_per_second"] for row in each]
        spans = [[value - row["tokens"] / max(row["seconds"]) for row, value in zip(each, values)],
                 [row["tokens"] / min(row["seconds"]) - value for row, value in zip(each, values)]]  # fmt: skip
        spans = [[max(0.0, length) for length in side] for side in spans]
        faces = [FACES.get(row["strategy"], OURS) for row in each]
        panel.barh(centres, values, 0.7, color=faces, xerr=spans, error_kw={"elinewidth": 1.2, "capsize": 2})
        for centre, value, over in zip(centres, values, spans[1]):
            panel.annotate(f"{value:,}", (value + over, centre), (4, 0), textcoords="offset points", va="center", size=8)
        panel.set_yticks(centres, [row["system"] for row in each], size=8)
        panel.tick_params(axis="y", length=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.12)
        panel.set_title(title, size=10, loc="left")
    axes[-1, 0].set_xlabel("tokens a second")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
