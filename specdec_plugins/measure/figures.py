"""The figures of ``specdec-report`` and ``specdec-benchmark``, drawn from the rows of their JSON.

Each shows one idea, at a width that a phone's screen has, and tells its parts apart by markers, line styles and hatching, not by
colour alone.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WIDTH = 6  # inches
MARKERS = {"fairseq": "s", "fairseq-beam5": "D", "ctranslate2": "^", "ar": "o", "specdec": "P", "specdec-tolerant": "v",
           "drafter": "X"}  # fmt: skip
FILLS: dict[str, Any] = {"float32": "full", "bfloat16": "left", "int8": "none"}
STYLES = [("#1f4e9c", "-", "o", ""), ("#c4500a", "--", "s", "///"), ("#3a7d2c", ":", "^", "..."), ("#6b2d8c", "-.", "D", "xxx")]
DTYPES = ("float32", "bfloat16", "int8", "float16")  # the order of panels
DEPTH = 5  # BLEU below the best that the frontier's figure still shows


def draw(rows: Sequence[Row], folder: Path, name: str) -> list[tuple[str, str]]:
    """Draw everything that the rows of one test set have data for; speeds are throughputs.

    Returns the files' names, each with a caption.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["kind"] == "throughput"]
    style: dict[Any, Any] = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "hatch.linewidth": 0.6,
             "legend.frameon": False, "legend.handlelength": 3}  # fmt: skip
    sizes = sorted({row["batch_size"] for row in rows})
    at = {size: [row for row in rows if row["batch_size"] == size] for size in sizes}
    first, small = rows[0]["dtype"], at[sizes[0]]  # rows begin with the baseline
    grid = [row for row in small if row["strategy"] == "specdec-tolerant"]
    ours = [row for row in rows if row["strategy"] in ("ar", "specdec") and row["dtype"] == first]
    drafts = [row for row in chosen(small) if row["dtype"] == first]
    drafts = [row for row in drafts if row["block_size"] != "auto"] or drafts  # auto may draft a few times only, as a trial
    speculative = len(sizes) > 1 and bool(chosen(rows))
    where = f"batch size {sizes[0]}"
    one = f"{first}, {where}"
    plans: list[tuple[bool, str, str, Callable[[], Any]]] = [
        (True, f"frontier.batch{size}", f"Speed against BLEU, batch size {size}. Numbered: what nothing beats in both."
         + beyond(at[size]), partial(frontier, at[size])) for size in dict.fromkeys((sizes[0], sizes[-1]))
    ]  # fmt: skip
    plans += [
        (speculative, "speedup", "Speed against `ar` of the same data type in the same run.", lambda: speedup(rows, sizes)),
        (bool(drafts), "accepted", f"Tokens that a pass of the verifier committed, {one}.", lambda: accepted(drafts)),
        (bool(drafts), "positions", f"How far drafts pass, {one}.", lambda: positions(drafts)),
        (len(grid) > 1, "grid_bleu", f"BLEU by beta and tau, {where}.", lambda: heat(grid, small, "BLEU")),
        (len(grid) > 1, "grid_speed", f"Speed by beta and tau, {where}.", lambda: heat(grid, small, "speed")),
        (True, "time", f"Where the time goes, {first}.", lambda: time_split(ours)),
        (True, "memory", f"Memory, {first}.", lambda: memory(ours)),
    ]
    made = []
    for wanted, title, caption, make in plans:
        if wanted:
            with matplotlib.rc_context(style):
                figure = make()
                figure.savefig(folder / f"{name}.{title}.png", dpi=150)
                pyplot.close(figure)
            made.append((f"{name}.{title}.png", caption))
    return made


def canvas(height: float, panels: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(panels, figsize=(WIDTH, height), layout="constrained", squeeze=False)
    return figure, list(axes[:, 0])


def chosen(rows: Iterable[Row]) -> list[Row]:
    """What few lines can show: exact `specdec`, each block size, and the most tolerant."""
    rows = list(rows)
    most = max(((row["beta"], row["tau"]) for row in rows if row["strategy"] == "specdec-tolerant"), default=None)
    return [row for row in rows if row["strategy"] == "specdec" or (row["beta"], row["tau"]) == most]


def short(row: Row) -> str:
    """A row's system without its data type."""
    if row["strategy"] == "specdec-tolerant":
        return f"beta {row['beta']}, tau {row['tau']:g}"
    block = row["block_size"]
    return row["strategy"] + (f" {block}" if block == "auto" else f" K={block}" if block else "")


def deep(rows: Sequence[Row]) -> list[Row]:
    """What has so low a BLEU that showing it would hide the differences of the rest."""
    best = max(row["bleu"] for row in rows)
    return [row for row in rows if row["bleu"] < best - DEPTH]


def beyond(rows: Sequence[Row]) -> str:
    lines = [f"{row['system']} ({row['bleu']:.1f}, {row['tokens_per_second']:,})" for row in deep(rows)]
    return f" Below the figure: {', '.join(lines)}." if lines else ""


def best(rows: Iterable[Row]) -> list[Row]:
    """The frontier: rows that none beats in speed and BLEU both, the fastest first."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["tokens_per_second"], -row["bleu"])):
        if not found or row["bleu"] > found[-1]["bleu"]:
            found.append(row)
    return found


def frontier(rows: Sequence[Row]) -> Any:
    from matplotlib.lines import Line2D

    figure, (axes,) = canvas(6.2)
    shown = [row for row in rows if row not in deep(rows)]
    for row in shown:
        axes.plot(row["tokens_per_second"], row["bleu"], MARKERS[row["strategy"]], fillstyle=FILLS[row["dtype"]],
                  color="black", markerfacecoloralt="white", markersize=8)  # fmt: skip
    line = best(shown)[::-1]  # from left to right
    axes.plot([row["tokens_per_second"] for row in line], [row["bleu"] for row in line], "--", color="0.5", zorder=0)
    for number, row in enumerate(line, 1):
        axes.annotate(f"{number}", (row["tokens_per_second"], row["bleu"]), (6, 6), textcoords="offset points", weight="bold")
    axes.margins(0.1)
    axes.grid(alpha=0.25)
    axes.set(xlabel="tokens a second", ylabel="BLEU")
    strategies, dtypes = {row["strategy"] for row in shown}, {row["dtype"] for row in shown}
    look: dict[str, Any] = {"linestyle": "", "color": "black", "markersize": 8}
    handles = [Line2D([], [], marker=MARKERS[name], label=name, **look) for name in MARKERS if name in strategies]
    for name in FILLS:
        if name in dtypes and len(dtypes) > 1:
            handles.append(Line2D([], [], marker="o", fillstyle=FILLS[name], markerfacecoloralt="white", label=name, **look))
    numbered = [f"{number}  {short(row)}, {row['dtype']}" for number, row in enumerate(line, 1)]
    handles += [Line2D([], [], linestyle="", label=" ")] * (len(numbered) - len(handles))  # a column each
    handles += [Line2D([], [], linestyle="", label=text) for text in numbered]
    handles += [Line2D([], [], linestyle="", label=" ")] * (len(handles) - 2 * len(numbered))
    figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1, columnspacing=1)
    return figure


def speedup(rows: Sequence[Row], sizes: Sequence[int]) -> Any:
    dtypes = list(dict.fromkeys(row["dtype"] for row in chosen(rows)))
    figure, panels = canvas(0.6 + 2.5 * len(dtypes), len(dtypes))
    plain = {(row["dtype"], row["batch_size"]): row["tokens_per_second"] for row in rows if row["strategy"] == "ar"}
    for axes, dtype in zip(panels, dtypes):
        mine = [row for row in chosen(rows) if row["dtype"] == dtype and (dtype, row["batch_size"]) in plain]
        for (color, line, marker, _), name in zip(STYLES, dict.fromkeys(map(short, mine))):
            points = [(row["batch_size"], row["tokens_per_second"] / plain[dtype, row["batch_size"]])
                      for row in mine if short(row) == name]  # fmt: skip
            axes.plot(*zip(*points), line, marker=marker, color=color, label=name)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", ylabel="times ar's speed", title=dtype)
        axes.set_ylim(bottom=0)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    panels[-1].set_xlabel("batch size (sentences)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def accepted(rows: Sequence[Row]) -> Any:
    figure, (axes,) = canvas(4.2)
    rows = rows[: len(STYLES)]
    width = 0.8 / len(rows)
    for number, (row, (color, _, _, hatch)) in enumerate(zip(rows, STYLES)):
        counts = {int(length): passes for length, passes in row["accepted_lengths"].items()}
        total, offset = sum(counts.values()), (number - (len(rows) - 1) / 2) * width
        label = f"{short(row)}, mean {row['mean_accepted_length']:.2f}"
        axes.bar([length + offset for length in counts], [100 * passes / total for passes in counts.values()], width,
                 facecolor=color if not hatch else "white", edgecolor=color, hatch=hatch, label=label)  # fmt: skip
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="tokens committed by a pass, the verifier's own included", ylabel="passes, %")
    figure.legend(loc="outside upper left")
    return figure


def positions(rows: Sequence[Row]) -> Any:
    figure, (axes,) = canvas(4)
    for row, (color, line, marker, _) in zip(rows, STYLES):
        rates = [100 * rate for rate in row["acceptance_by_position"]]
        axes.plot(range(1, len(rates) + 1), rates, line, marker=marker, color=color, label=short(row))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="position in the draft", ylabel="drafts that pass this far, %", ylim=(0, 100))
    axes.grid(alpha=0.25)
    axes.legend()
    return figure


def heat(grid: Sequence[Row], rows: Sequence[Row], what: str) -> Any:
    """A panel a data type; in its title what exact decoding has, so that what tolerance costs and brings can be read off."""
    betas, taus = sorted({row["beta"] for row in grid}), sorted({row["tau"] for row in grid})
    dtypes = list(dict.fromkeys(row["dtype"] for row in grid))
    figure, panels = canvas((1.2 + 0.45 * len(betas)) * len(dtypes), len(dtypes))
    for axes, dtype in zip(panels, dtypes):
        plain = next((row for row in rows if row["strategy"] == "ar" and row["dtype"] == dtype), rows[0])
        values = {
            (row["beta"], row["tau"]): row["bleu"] if what == "BLEU" else row["tokens_per_second"] / plain["tokens_per_second"]
            for row in grid
            if row["dtype"] == dtype
        }
        low, high = min(values.values()), max(values.values())
        shades = [[values.get((beta, tau), low) for tau in taus] for beta in betas]
        axes.imshow(shades, cmap="Greys", aspect="auto", vmin=low - 0.2 * (high - low or 1), vmax=high + 0.2 * (high - low or 1))
        for (beta, tau), value in values.items():
            dark = value > (low + high) / 2
            axes.text(
                taus.index(tau), betas.index(beta), f"{value:.2f}", ha="center", va="center", color="white" if dark else "black"
            )
        axes.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
        axes.set_yticks(range(len(betas)), [str(beta) for beta in betas])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        exact = f"BLEU (ar: {plain['bleu']:.2f})" if what == "BLEU" else f"speed, times ar {plain['dtype']}"
        axes.set(ylabel="beta", title=f"{dtype}: {exact}")
    panels[-1].set_xlabel("tau (nats)")
    return figure


def stacked(rows: Sequence[Row], parts: Sequence[str], value: Callable[[Row, str], float], unit: str) -> Any:
    """Horizontal bars of parts, grouped by batch size."""
    names = list(dict.fromkeys(map(short, rows)))
    sizes = sorted({row["batch_size"] for row in rows})
    rows = sorted(rows, key=lambda row: (row["batch_size"], names.index(short(row))))
    places = [number + 0.6 * sizes.index(row["batch_size"]) for number, row in enumerate(rows)]
    figure, (axes,) = canvas(1.5 + 0.3 * (len(rows) + 0.6 * len(sizes)))
    left = [0.0] * len(rows)
    looks = [("0.2", ""), ("white", "///"), ("0.65", ""), ("white", "...")]
    for part, (face, hatch) in zip(parts, looks):
        widths = [value(row, part) for row in rows]
        axes.barh(places, widths, 0.85, left, facecolor=face, edgecolor="black", hatch=hatch, linewidth=0.6, label=part)
        left = [start + width for start, width in zip(left, widths)]
    axes.set_yticks(places, [f"{short(row)}, batch {row['batch_size']}" for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.margins(y=0.02)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    figure.legend(loc="outside upper left", ncols=4, handlelength=1.5, columnspacing=1)
    return figure


def time_split(rows: Sequence[Row]) -> Any:
    parts = ("encoding", "drafting", "verifying", "elsewhere")
    return stacked(rows, parts, lambda row, part: 100 * row["time_shares"].get(part, 0), "time, %")


def memory(rows: Sequence[Row]) -> Any:
    def mib(row: Row, part: str) -> float:
        known = row["weights_mib"], row["caches_mib"]
        return dict(zip(("weights", "keys and values", "all else"), (*known, row["peak_memory_mib"] - sum(known))))[part]

    return stacked(rows, ("weights", "keys and values", "all else"), mib, "peak memory of the processes, MiB")


def plot_speeds(rows: Sequence[Row], path: str | Path) -> None:
    """Throughput against batch size, a panel a data type, a line a system; which markers and line styles tell apart, too."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["kind"] == "throughput"]
    dtypes = [dtype for dtype in DTYPES if any(row["dtype"] == dtype for row in rows)]
    kinds = list(dict.fromkeys((row["strategy"], row["block_size"]) for row in rows))
    sizes = sorted({row["batch_size"] for row in rows})
    figure, panels = pyplot.subplots(
        len(dtypes), figsize=(6, 0.8 + 3.2 * len(dtypes)), layout="constrained", squeeze=False, sharey=True
    )
    lines: dict[str, Any] = {}
    for dtype, axes in zip(dtypes, panels[:, 0]):
        looks = zip(kinds, cycle("osD^v<>PX*"), cycle(("-", "--", "-.", ":")))
        for number, (kind, marker, style) in enumerate(looks):
            shown = [row for row in rows if (row["strategy"], row["block_size"]) == kind and row["dtype"] == dtype]
            if shown:
                points = zip(*((row["batch_size"], row["tokens_per_second"]) for row in shown))
                name = kind[0] + (f" K={kind[1]}" if kind[1] and kind[1] != "auto" else "")
                (lines[name],) = axes.plot(*points, style, marker=marker, color=f"C{number}", label=name)
        axes.set(xscale="log", yscale="log", ylabel="tokens a second, all cores (log)", title=dtype)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        low, high = axes.get_ylim()
        ticks = [step * 10**power for power in range(7) for step in (1, 2, 5) if low <= step * 10**power <= high]
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("batch size (sentences)")
    figure.legend(lines.values(), lines, loc="outside lower left", ncols=3, fontsize=9)
    figure.savefig(path, dpi=120)
