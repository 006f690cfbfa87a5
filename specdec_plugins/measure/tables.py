"""The tables of ``specdec-report``, in Markdown, from the rows of its JSON alone.

A table in a text between ``<!-- speed of FILE.json -->`` and ``<!-- end -->`` can be made again, and so be checked, by `filled`.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
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


def by_batch(
    rows: list[Row], signature: dict[str, Any], title: str, value: Callable[[Row], str], more: dict[str, Callable]
) -> str:
    """A line a system, a column a batch size, and some of the smallest batch size."""
    sizes = sorted({row["batch_size"] for row in rows})
    systems: dict[str, dict[int, Row]] = {}
    for row in rows:
        systems.setdefault(label(row, signature), {})[row["batch_size"]] = row
    lines = [
        [
            name,
            *(value(found[size]) if size in found else "" for size in sizes),
            *(each(found[min(found)]) for each in more.values()),
        ]
        for name, found in systems.items()
    ]
    return table([f"{title}, at batch size", *map(str, sizes), *more], lines)


def speed(rows: list[Row], signature: dict[str, Any]) -> str:
    more: dict[str, Callable[[Row], str]] = {"BLEU": lambda row: f"{row['bleu']:.2f}"} if "bleu" in rows[0] else {}
    if any(row["batch_size"] == 1 for row in rows):
        more = {"median latency at 1": lambda row: f"{row['latency_p50_ms']:.1f} ms", **more}
    return by_batch(rows, signature, "tokens a second", lambda row: f"{row['tokens_per_second']:,}", more)


def speedup(rows: list[Row], signature: dict[str, Any]) -> str:
    plain = {(row["dtype"], row["batch_size"]): row["tokens_per_second"] for row in rows if row["strategy"] == "ar"}

    def times(row: Row) -> str:
        size = row["batch_size"]
        return f"{row['tokens_per_second'] / plain.get((row['dtype'], size), plain['float32', size]):.2f}"

    return by_batch(rows, signature, "times the speed of `ar` in the same data type", times, {})


def smallest(rows: list[Row]) -> list[Row]:
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
    ours = [row for row in rows if row["strategy"] in ("ar", "specdec")]
    return by_batch(ours, signature, "model states / in all, MiB",
                    lambda row: f"{row['weights_mib'] + row['caches_mib']:.0f} / {row['peak_memory_mib']:,}", {})  # fmt: skip


TABLES = {"speed": speed, "speedup": speedup, "quality": quality, "acceptance": acceptance, "memory": memory}
ABOUT = {
    "speed": "Medians of the rounds, each system with the number of threads best for it; only decoding is timed.",
    "speedup": "In the same run.",
    "quality": "At the smallest batch size. The interval is that of sacreBLEU's paired bootstrap, 1,000 samples, seed 12345.",
    "acceptance": "At the smallest batch size. Tokens a pass: the verifier's own included, so 1.00 is plain decoding. A "
    "position's share is of the drafts that were so long; without a fixed length these can be a few trials.",
    "memory": "Model states: weights as they are held, and keys and values while the longest sources are decoded. In all: the "
    "most that the process held, interpreter, libraries and loading included.",
}


MARKED = re.compile(r"(<!-- (\w+) of ([^\s,]+)(?:, (\S+))? -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """A text with each marked table made again from its JSON, whose path is relative to ``folder``."""

    def make(match: re.Match[str]) -> str:
        head, kind, file, test_set = match.groups()
        if kind not in TABLES:
            raise ValueError(f"no table '{kind}'; available: {', '.join(TABLES)}")
        result = json.loads((folder / file).read_text(encoding="utf-8"))
        return f"{head}\n{TABLES[kind](rows_of(result, test_set), result['signature'])}\n"

    return MARKED.sub(make, text)
