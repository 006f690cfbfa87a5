"""The tables of ``specdec-report``, in Markdown, from the rows of its JSON alone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

Row = dict[str, Any]


def rows_of(result: dict[str, Any], test_set: str | None) -> list[Row]:
    """The rows of one test set; those of a benchmark name none."""
    return [row for row in result["rows"] if row.get("test_set") == test_set]


def label(row: Row, signature: dict[str, Any]) -> str:
    """A system, for tables."""
    names = {
        "fairseq": "fairseq, beam 1", "fairseq-beam5": "fairseq, beam 5", "drafter": "`drafter`", "ar": "`ar`",
        "ctranslate2": f"CTranslate2 {signature.get('ctranslate2', '')}, greedy,", "specdec": "exact `specdec`",
        "specdec-tolerant": "tolerant `specdec`",
    }  # fmt: skip
    name = names[row["strategy"]] + (f" {row['dtype']}" if not row["strategy"].startswith("fairseq") else "")
    name += f", always {row['block_size']} tokens" if (row["block_size"] or "auto") != "auto" else ""
    tolerance = {**signature, **row} if row["strategy"] == "specdec-tolerant" else {}
    return name + (f", beta {tolerance['beta']}, tau {tolerance['tau']:g}" if tolerance else "")


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns are not padded: one changed figure changes one line of a README."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, ["---"] * len(titles), *lines)) + "\n"


def ratio(row: Row, rows: Iterable[Row], strategy: str) -> str:
    """How many times as fast a row is as the strategy with the same workload and data type; empty if that was not measured."""
    like = {name: row[name] for name in ("kind", "batch_size", "dtype")}
    base = next((each for each in rows if each["strategy"] == strategy and like.items() <= each.items()), None)
    return f"{row['tokens_per_second'] / base['tokens_per_second']:.2f}" if base else ""


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def by_batch(rows: list[Row], signature: dict[str, Any], title: str, value: Callable[[Row], str]) -> str:
    """A line a system, a column a batch size."""
    sizes = sorted({row["batch_size"] for row in rows})
    systems: dict[str, dict[int, Row]] = {}
    for row in rows:
        systems.setdefault(label(row, signature), {})[row["batch_size"]] = row
    lines = [[name, *(value(found[size]) if size in found else "" for size in sizes)] for name, found in systems.items()]
    return table([f"{title}, at batch size", *map(str, sizes)], lines)


def latency(rows: list[Row], signature: dict[str, Any]) -> str:
    """A line a system, one sentence at a time."""
    columns: dict[str, Callable[[Row], str]] = {
        "one sentence at a time": lambda row: label(row, signature),
        "median": lambda row: f"{row['latency_p50_ms']:.1f} ms",
        "95 %": lambda row: f"{row['latency_p95_ms']:.1f} ms",
        "99 %": lambda row: f"{row['latency_p99_ms']:.1f} ms",
        "tokens/s": lambda row: f"{row['tokens_per_second']:,}",
        "threads": lambda row: f"{row['threads']}",
        "times CTranslate2": lambda row: ratio(row, rows, "ctranslate2"),
        "times `ar`": lambda row: ratio(row, rows, "ar"),
    }
    if any("bleu" in row for row in rows):
        columns["BLEU"] = lambda row: f"{row['bleu']:.2f}"
    return table(list(columns), [[value(row) for value in columns.values()] for row in of_kind(rows, "latency")])


def throughput(rows: list[Row], signature: dict[str, Any]) -> str:
    def speed(row: Row) -> str:
        return f"{row['tokens_per_second']:,} ({row['workers']} x {row['threads']})"

    return by_batch(of_kind(rows, "throughput"), signature, "tokens/s (workers x threads)", speed)


def against(strategy: str, name: str, rows: list[Row], signature: dict[str, Any]) -> str:
    """Throughput against that of one strategy, where it was measured."""
    found = [row for row in of_kind(rows, "throughput") if ratio(row, rows, strategy)]
    return by_batch(found, signature, f"throughput, times {name} in the same data type", lambda row: ratio(row, rows, strategy))


def smallest(rows: list[Row]) -> list[Row]:
    """The rows of throughput at the smallest batch size."""
    rows = of_kind(rows, "throughput")
    return [row for row in rows if row["batch_size"] == min(row["batch_size"] for row in rows)]


def quality(rows: list[Row], signature: dict[str, Any]) -> str:
    lines = []
    for row in smallest(rows):
        found = row.get("bleu_difference")
        away = f"{found['difference']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})" if found else "same output"
        same = f"{row['identical']:,} of {row['of']:,} ({row['identical'] / row['of']:.1%})"
        lines.append([label(row, signature), f"{row['bleu']:.2f}", away, same])
    return table(["", "BLEU", "difference to `ar` float32 (95 %)", "identical to it"], lines)


def acceptance(rows: list[Row], signature: dict[str, Any]) -> str:
    drafted = [row for row in smallest(rows) if row["acceptance_by_position"] and row["strategy"] != "drafter"]
    longest = max((len(row["acceptance_by_position"]) for row in drafted), default=0)
    lines = []
    for row in drafted:
        rates = [f"{rate:.0%}" for rate in row["acceptance_by_position"]]
        lines.append([label(row, signature), f"{row['mean_accepted_length']:.2f}", *rates, *[""] * (longest - len(rates))])
    return table(["drafts that pass, by position", "tokens a pass", *map(str, range(1, longest + 1))], lines)


def memory(rows: list[Row], signature: dict[str, Any]) -> str:
    ours = [row for row in of_kind(rows, "throughput") if row["strategy"] in ("ar", "specdec")]
    return by_batch(ours, signature, "model states / in all, MiB",
                    lambda row: f"{row['weights_mib'] + row['caches_mib']:.0f} / {row['peak_memory_mib']:,}")  # fmt: skip


TABLES: dict[str, Callable[[list[Row], dict[str, Any]], str]] = {
    "latency": latency, "throughput": throughput, "ctranslate2": partial(against, "ctranslate2", "CTranslate2"),
    "ar": partial(against, "ar", "`ar`"), "quality": quality, "acceptance": acceptance, "memory": memory,
}  # fmt: skip
ABOUT = {
    "latency": "Latency: each system with the number of threads best for it. Medians of the rounds; only decoding is timed.",
    "throughput": "Throughput: the whole text on all cores, from a common start until the last worker has finished, each system "
    "with the mix of workers and threads best for it. A worker is a process, in CTranslate2 a translator (`inter_threads`).",
    "ctranslate2": "Each at its best, in the same run.",
    "ar": "Each at its best, in the same run.",
    "quality": "At the smallest batch size. The interval is that of sacreBLEU's paired bootstrap, 1,000 samples, seed 12345.",
    "acceptance": "At the smallest batch size. Tokens a pass: the verifier's own included, so 1.00 is plain decoding. A "
    "position's share is of the drafts that were so long; without a fixed length these can be a few trials.",
    "memory": "All processes of the mix of the throughput. Model states: weights as they are held, and keys and values "
    "while the longest sources are decoded. In all: the most that was held, interpreter, libraries and loading included.",
}
