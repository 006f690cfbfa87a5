"""The figures of ``specdec-benchmark``, drawn from the rows of its JSON: readable in black and white, and on a phone's screen."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WIDTH = 6  # inches
MARKERS = {"fairseq": "s", "fairseq-beam5": "D", "ctranslate2": "^", "ar": "o", "specdec": "P", "specdec-tolerant": "v",
           "drafter": "X"}  # fmt: skip
FILLS: dict[str, Any] = {"float32": "full", "bfloat16": "left", "int8": "none"}
FACES = {"fairseq": "0.85", "fairseq-beam5": "0.85", "ctranslate2": "0.7", "ar": "0.45"}  # greys of others' bars; ours are blue
OURS = "#1f4e9c"


def draw(rows: Sequence[Row], folder: Path) -> list[tuple[str, str]]:
    """Draw a report's figures; return the files' names, each with a caption."""
    speeds(rows, folder / "speeds.png")
    made = [("speeds.png", "Tokens a second of each system at its best; lines span the rounds.")]
    scored = [row for row in rows if "bleu" in row]
    if scored:
        frontier(scored, folder / "frontier.png")
        made.append(("frontier.png", "Speed against BLEU, by workload. Connected: what no system beats in both."))
    return made


def canvas(heights: Sequence[float]) -> tuple[Any, list[Any]]:
    """A figure with panels of these heights, in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(heights), figsize=(WIDTH, sum(heights)), layout="constrained", squeeze=False, height_ratios=heights
    )
    for each in axes[:, 0]:
        each.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[:, 0])


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def workloads(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by workload, which has a title."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        latency = row["kind"] == "latency"
        found.setdefault("one sentence at a time" if latency else f"throughput, batch size {row['batch_size']}", []).append(row)
    return found


def speeds(rows: Sequence[Row], path: Path) -> None:
    """Bars of tokens a second, a panel a workload; a line over a bar spans the rounds."""
    panels = workloads(rows)
    figure, axes = canvas([0.7 + 0.28 * len(each) for each in panels.values()])
    for panel, (title, each) in zip(axes, panels.items()):
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
        panel.margins(x=0.12)
        panel.set_title(title, size=10, loc="left")
    axes[-1].set_xlabel("tokens a second")
    save(figure, path)


def best(rows: Iterable[Row]) -> list[Row]:
    """The frontier: rows that none beats in speed and BLEU both, the fastest first."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["tokens_per_second"], -row["bleu"])):
        if not found or row["bleu"] > found[-1]["bleu"]:
            found.append(row)
    return found


def frontier(rows: Sequence[Row], path: Path) -> None:
    """Speed against BLEU, a panel a workload; markers tell strategies apart, their filling data types."""
    panels = workloads(rows)
    figure, axes = canvas([3.2] * len(panels))
    handles: dict[str, Any] = {}
    for panel, (title, each) in zip(axes, panels.items()):
        for row in each:
            (handles[f"{row['strategy']} {row['dtype']}"],) = panel.plot(
                row["tokens_per_second"], row["bleu"], MARKERS[row["strategy"]], fillstyle=FILLS.get(row["dtype"], "top"),
                color="black", markerfacecoloralt="white", markersize=8,
            )  # fmt: skip
        line = best(each)
        panel.plot([row["tokens_per_second"] for row in line], [row["bleu"] for row in line], "--", color="0.5", zorder=0)
        panel.margins(0.1)
        panel.grid(alpha=0.25)
        panel.set_ylabel("BLEU")
        panel.set_title(title, size=10, loc="left")
    axes[-1].set_xlabel("tokens a second")
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    save(figure, path)
