"""The figure of ``specdec-benchmark``, from the rows of its JSON; readable in black and white and on a phone."""

from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.measure.tables import Row

WIDTH = 6  # inches
FACES = {"fairseq": "0.85", "fairseq-beam5": "0.85", "ctranslate2": "0.7", "ar": "0.45"}  # greys of others' bars; ours are blue
OURS = "#1f4e9c"


def speeds(rows: Sequence[Row], path: Path) -> None:
    """Draw bars of tokens per second, one panel per workload; error bars span the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Row]] = {}
    for row in rows:
        title = f"throughput, batch size {row['batch_size']}" if row["kind"] == "throughput" else "one sentence at a time"
        panels.setdefault(title, []).append(row)
    heights = [0.7 + 0.28 * len(each) for each in panels.values()]  # inches
    figure, axes = pyplot.subplots(
        len(heights), figsize=(WIDTH, sum(heights)), layout="constrained", squeeze=False, height_ratios=heights
    )
    for panel, (title, each) in zip(axes[:, 0], panels.items()):
        centres = list(range(len(each)))[::-1]
        values = [row["tokens_per_second"] for row in each]
        spans = [
            [max(0.0, value - row["tokens"] / max(row["seconds"])) for row, value in zip(each, values)],
            [max(0.0, row["tokens"] / min(row["seconds"]) - value) for row, value in zip(each, values)],
        ]
        faces = [FACES.get(row["strategy"], OURS) for row in each]
        panel.barh(centres, values, 0.7, color=faces, xerr=spans, error_kw={"elinewidth": 1.2, "capsize": 2})
        for centre, value, over in zip(centres, values, spans[1]):
            panel.annotate(f"{value:,}", (value + over, centre), (4, 0), textcoords="offset points", va="center", size=8)
        panel.set_yticks(centres, [row["system"] for row in each], size=8)
        panel.tick_params(axis="y", length=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.12)
        panel.set_title(title, size=10, loc="left")
    axes[-1, 0].set_xlabel("tokens per second")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
