"""The tables of ``specdec-benchmark``, in Markdown, from the rows of its JSON."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

Row = dict[str, Any]
Signature = dict[str, Any]
NAMES = {
    "fairseq": "fairseq, beam 1",
    "fairseq-beam5": "fairseq, beam 5",
    "drafter": "`drafter`",
    "ar": "`ar`",
    "ctranslate2": "CTranslate2 {ctranslate2}, greedy,",
    "specdec": "exact `specdec`",
    "specdec-tolerant": "tolerant `specdec`",
}


def tables(rows: list[Row], signature: Signature) -> dict[str, str]:
    """The tables that have figures, by kind."""
    made = {kind: make(rows, signature) for kind, make in TABLES.items()}
    return {kind: table for kind, table in made.items() if table.count("\n") > 1}


def label(row: Row, signature: Signature) -> str:
    """The name of a row's system."""
    name = NAMES[row["strategy"]].format(ctranslate2=signature.get("ctranslate2", ""))
    name += f" {row['dtype']}" if not row["strategy"].startswith("fairseq") else ""
    name += f", always {row['block_size']} tokens" if (row["block_size"] or "auto") != "auto" else ""
    return name + (f", beta {row['beta']}, tau {row['tau']:g}" if row["strategy"] == "specdec-tolerant" else "")


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    from tabulate import tabulate

    alignment = ["left", *["right"] * (len(titles) - 1)]
    return tabulate(list(lines), titles, tablefmt="pipe", disable_numparse=True, colalign=alignment)


def ratio(row: Row, rows: Iterable[Row], strategy: str) -> str:
    """A row's speed relative to a strategy on the same workload and data type; empty if that was not measured."""
    like = {name: row[name] for name in ("kind", "batch_size", "dtype")}
    base = next((each for each in rows if each["strategy"] == strategy and like.items() <= each.items()), None)
    return f"{row['tokens_per_second'] / base['tokens_per_second']:.2f}" if base else ""


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def smallest(rows: list[Row]) -> list[Row]:
    """The rows of the smallest batch size, from throughput if measured."""
    rows = of_kind(rows, "throughput") or rows
    return [row for row in rows if row["batch_size"] == min(row["batch_size"] for row in rows)]


def by_batch(rows: list[Row], signature: Signature, title: str, value: Callable[[Row], str]) -> str:
    """One line per system, one column per batch size."""
    sizes = sorted({row["batch_size"] for row in rows})
    systems: dict[str, dict[int, Row]] = {}
    for row in rows:
        systems.setdefault(label(row, signature), {})[row["batch_size"]] = row
    lines = [[name, *(value(found[size]) if size in found else "" for size in sizes)] for name, found in systems.items()]
    return table([f"{title}, at batch size", *map(str, sizes)], lines)


def latency(rows: list[Row], signature: Signature) -> str:
    """One line per system."""
    columns: dict[str, Callable[[Row], str]] = {
        "one sentence at a time": lambda row: label(row, signature),
        "median": lambda row: f"{row['latency_p50_ms']:.1f} ms",
        "95 %": lambda row: f"{row['latency_p95_ms']:.1f} ms",
        "99 %": lambda row: f"{row['latency_p99_ms']:.1f} ms",
        "tokens/s": lambda row: f"{row['tokens_per_second']:,}",
        "rounds": lambda row: (
            f"± {(max(row['seconds']) - min(row['seconds'])) / sum(row['seconds']) * len(row['seconds']) / 2:.0%}"
        ),
        "threads": lambda row: f"{row['threads']}",
        "times CTranslate2": lambda row: ratio(row, rows, "ctranslate2"),
        "times `ar`": lambda row: ratio(row, rows, "ar"),
    }
    shown = {title: [value(row) for row in of_kind(rows, "latency")] for title, value in columns.items()}
    shown = {title: cells for title, cells in shown.items() if any(cells)}
    return table(list(shown), list(zip(*shown.values())))


def throughput(rows: list[Row], signature: Signature) -> str:
    def speed(row: Row) -> str:
        return f"{row['tokens_per_second']:,} ({row['workers']} x {row['threads']})"

    return by_batch(of_kind(rows, "throughput"), signature, "tokens/s (workers x threads)", speed)


def against(strategy: str, name: str, rows: list[Row], signature: Signature) -> str:
    """Throughput relative to one strategy."""
    found = [row for row in of_kind(rows, "throughput") if ratio(row, rows, strategy)]
    return by_batch(found, signature, f"throughput, times {name} in the same data type", lambda row: ratio(row, rows, strategy))


def quality(rows: list[Row], signature: Signature) -> str:
    lines = []
    for row in smallest(rows):
        found = row.get("bleu_difference")
        away = f"{found['difference']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})" if found else "same output"
        scored = [f"{row['bleu']:.2f}", away] if "bleu" in row else ["", ""]
        same = f"{row['identical']:,} of {row['of']:,} ({row['identical'] / row['of']:.1%})"
        lines.append([label(row, signature), *scored, same])
    return table(["output", "BLEU", "difference to the baseline (95 %)", "identical to it"], lines)


def acceptance(rows: list[Row], signature: Signature) -> str:
    drafted = [row for row in smallest(rows) if row["acceptance_by_position"] and row["strategy"] != "drafter"]
    longest = max((len(row["acceptance_by_position"]) for row in drafted), default=0)
    lines = []
    for row in drafted:
        rates = [f"{rate:.0%}" for rate in row["acceptance_by_position"]]
        lines.append([label(row, signature), f"{row['mean_accepted_length']:.2f}", *rates, *[""] * (longest - len(rates))])
    return table(["drafts accepted, by position", "tokens per pass", *map(str, range(1, longest + 1))], lines)


def memory(rows: list[Row], signature: Signature) -> str:
    return by_batch(of_kind(rows, "throughput") or rows, signature, "peak, MiB", lambda row: f"{row['peak_memory_mib']:,}")


TABLES: dict[str, Callable[[list[Row], Signature], str]] = {
    "latency": latency,
    "throughput": throughput,
    "ctranslate2": partial(against, "ctranslate2", "CTranslate2"),
    "ar": partial(against, "ar", "`ar`"),
    "quality": quality,
    "acceptance": acceptance,
    "memory": memory,
}
ABOUT = {
    "latency": "Latency: each system with its best number of threads. Medians of the rounds; only decoding is timed.",
    "throughput": "Throughput: the whole text on all cores, from a common start until the last worker finishes, each system with "
    "its best mix of workers and threads. A worker is a process; in CTranslate2 it is a translator (`inter_threads`).",
    "ctranslate2": "Each at its best, in the same run.",
    "ar": "Each at its best, in the same run.",
    "quality": "At the smallest batch size. Intervals are from sacreBLEU's paired bootstrap, 1,000 samples, seed 12345.",
    "acceptance": "At the smallest batch size. Tokens per pass include the verifier's own: 1.00 is plain decoding. A position's "
    "rate counts the drafts that reach it; without a fixed length these can be few.",
    "memory": "The maximum of all processes of the throughput mix, including interpreter, libraries and loading.",
}
