"""The command ``specdec-report``: strategies x data types x batch sizes x beta and tau, over test sets, as tables and figures.

A cell is one system on one test set at one batch size. Speeds compare only within one interleaved run, so what is measured,
stored and resumed is a *group*: all cells of one test set and one batch size. Its file names everything that it depends on,
models, texts and engine by their hash, and it is measured again when that changes. `benchmark.py` measures; here it is shown.

Tables are made from the JSON alone, so that a text between ``<!-- speed of FILE.json -->`` and ``<!-- end -->`` can be checked.
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec_plugins.commands import benchmark
from specdec_plugins.commands.benchmark import DRAFTERLESS, DTYPES, SYSTEMS, Plan, System

Row = dict[str, Any]
BASELINE = System("ar", "float32")

ENGINE = Path(__file__).parent.with_name("decoding")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-report", allow_abbrev=False,
        usage="%(prog)s --model DIR --test-set SOURCE REFERENCE --output DIR [option ...]",
        description="Measure a matrix of ways to decode, and write tables, figures and JSON. Run again, it goes on where it was.",
        epilog="Writes report.md, report.json, figures, and in cells/ what is measured. While a group is measured, each of "
        "its systems is a process that holds a model. Needs: pip install 'specdec[bench]'. Exit status: 0 done; 1 bad input; "
        "2 wrong options.",
    )  # fmt: skip
    names = [name for name in SYSTEMS if name != "specdec-tolerant"]
    p.add_argument("--model", required=True, metavar="DIR", help="model folder")
    p.add_argument("--test-set", required=True, nargs=2, action="append", metavar=("SOURCE", "REFERENCE"), help="may be repeated")
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the report")
    p.add_argument("--sentences", type=int, metavar="N", help="only the first N of each test set")
    p.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    p.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="T", help=", ".join(DTYPES))
    p.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 4, 8, 16, 32], metavar="N", help="(default: 1 4 8 16 32)")
    p.add_argument("--block-sizes", nargs="+", metavar="K", help="of exact specdec (default: auto and the model's)")
    p.add_argument("--betas", nargs="*", type=int, default=[2, 3, 5], metavar="N", help="of tolerant specdec (default: 2 3 5)")
    p.add_argument("--taus", nargs="*", type=float, default=[0.5, 1.0, 2.0], metavar="X", help="nats (default: 0.5 1 2)")
    p.add_argument("--threads", nargs="+", type=int, metavar="N", help="numbers to choose from (default: 1, 2, 4 .. all cores)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    return p


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        check(options)
    except ValueError as error:
        print(f"specdec-report: error: {error}", file=sys.stderr)
        return 2
    try:
        run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"specdec-report: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nspecdec-report: stopped; the same command goes on after the last group that was finished", file=sys.stderr)
        return 130
    return 0


def check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that cannot be, before anything is measured."""
    benchmark.check(options)
    if options.betas and min(options.betas) < 2:
        raise ValueError(f"--betas: {min(options.betas)} is less than 2, and 1 is exact")
    for tau in options.taus:
        if not 0 <= tau < math.inf:
            raise ValueError(f"--taus: {tau} is not a number of nats")
    names = [Path(source).stem for source, _ in options.test_set]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"--test-set: two of the name '{twice}'")
    for package in ["matplotlib", *["ctranslate2"] * ("ctranslate2" in options.systems)]:
        if not find_spec(package):
            way = " (or leave it out of --systems)" * (package == "ctranslate2")
            raise ValueError(f"{package} is not installed: pip install 'specdec[bench]'{way}")


# ---- measuring


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, and write the report."""
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.figures import draw
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    folder = Path(options.output)
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    pair = load_folder(options.model)
    reader = Translator(pair, Settings(strategy="ar", threads=1))
    systems = matrix(options, pair.drafter is not None, pair.block_size)
    signature = {**benchmark.machine(), "block_size": pair.block_size, "model": options.model}
    shared = {
        **{name: value for name, value in signature.items() if name not in ("date", "model")},
        "model": fingerprint(path for path in Path(options.model).iterdir() if path.is_file()),
        "engine": fingerprint(path for path in ENGINE.rglob("*") if path.suffix in (".py", ".so")),
        "systems": [system.name for system in systems], "threads": options.threads or benchmark.thread_choices(),
        "rounds": options.rounds, "sentences": options.sentences,
    }  # fmt: skip
    groups: list[dict[str, Any]] = []
    texts = {}
    for source, reference in options.test_set:
        name = Path(source).stem
        texts[name] = benchmark.read(reader, source, reference, options.sentences)
        files = {"source": fingerprint([Path(source)]), "reference": fingerprint([Path(reference)])}
        groups += [{"test_set": name, "batch_size": size, **files, **shared} for size in options.batch_sizes]
    stored = {place(folder, group): recall(place(folder, group), group) for group in groups}
    missing = [group for group in groups if not stored[place(folder, group)]]
    print(f"{len(groups) * len(systems)} cells in {len(groups)} groups, {len(missing)} groups to measure", file=sys.stderr)
    clock = Clock([sum(map(len, texts[group["test_set"]].sources)) / math.sqrt(group["batch_size"]) for group in missing])
    for number, group in enumerate(missing):
        clock.begin(number, f"{group['test_set']}: ")
        plan = Plan(options.model, systems, [group["batch_size"]], shared["threads"], options.rounds)
        text = texts[group["test_set"]]
        measured, left_out = benchmark.measure(plan, text.sources, clock)
        if measured[0].system != BASELINE:
            raise ValueError(f"{BASELINE.name}, with which everything is compared, does not run: {left_out[0]}")
        rows = [{"test_set": group["test_set"], **benchmark.summarise(each, measured[0].runs[0].outputs)} for each in measured]
        outputs = [[reader.text(tokens) for tokens in each.runs[0].outputs] for each in measured]
        bleu_signature = judge(rows, outputs, text.references or [])
        found = {"group": group, "rows": rows, "left_out": left_out, "bleu_signature": bleu_signature, "signature": signature}
        stored[place(folder, group)] = found
        write(place(folder, group), json.dumps(found))
    benchmark.say("")

    parts = [stored[place(folder, group)] for group in groups]
    dates = sorted({each["signature"]["date"] for each in parts})
    result: dict[str, Any] = {
        "command": "specdec-report", "rows": [row for each in parts for row in each["rows"]], "rounds": options.rounds,
        "test_sets": {name: len(text.sources) for name, text in texts.items()},
        "left_out": sorted({line for each in parts for line in each["left_out"]}),
        "bleu_signature": parts[0]["bleu_signature"],
        "signature": {**signature, "date": " to ".join(dict.fromkeys((dates[0], dates[-1])))},
        "groups": [each["group"] for each in parts],
    }  # fmt: skip
    result["figures"] = {name: draw(chosen(result, name), folder, name) for name in texts}
    write(folder / "report.json", json.dumps(result) + "\n")
    write(folder / "report.md", render(result))
    print(f"{folder / 'report.md'}")


def matrix(options: argparse.Namespace, drafter: bool, block_size: int) -> list[System]:
    """The systems, the baseline first."""
    blocks = options.block_sizes or ["auto", str(block_size)]
    found = [BASELINE]
    for name in options.systems:
        for dtype in ["float32"] if name.startswith("fairseq") else options.dtypes:
            if name == "specdec":
                found += [System(name, dtype, block) for block in blocks]
                found += [System("specdec-tolerant", dtype, None, beta, tau) for beta in options.betas for tau in options.taus]
            else:
                found.append(System(name, dtype))
    return [system for system in dict.fromkeys(found) if drafter or system.strategy in DRAFTERLESS]


def judge(rows: list[Row], outputs: list[list[str]], references: list[str]) -> str:
    """Add BLEU to the rows, and its difference to the first row's where the output differs. Returns BLEU's signature."""
    from sacrebleu.metrics import BLEU

    from specdec_plugins.commands.score import difference

    metric = BLEU()
    known: dict[tuple[str, ...], dict[str, Any]] = {tuple(outputs[0]): {}}
    for row, lines in zip(rows, outputs):
        row["bleu"] = round(metric.corpus_score(lines, [references]).score, 2)
        if tuple(lines) not in known:
            found = difference(metric, lines, outputs[0], references)
            known[tuple(lines)] = {"bleu_difference": {name: round(value, 3) for name, value in found.items()}}
        row.update(known[tuple(lines)])
    return f"{metric.get_signature()}"


class Clock:
    """Shows what is being done and about how long the rest takes, from how long it took to do a part."""

    def __init__(self, weights: Sequence[float]):
        self.weights, self.began, self.shown = weights, time.monotonic(), -math.inf

    def begin(self, number: int, what: str) -> None:
        self.number, self.what = number, f"group {number + 1} of {len(self.weights)}, {what}"

    def __call__(self, what: str, share: float) -> None:
        now, done = time.monotonic(), sum(self.weights[: self.number]) + share * self.weights[self.number]
        if not sys.stderr.isatty() and now - self.shown < 10:
            return
        self.shown = now
        left = (now - self.began) * (sum(self.weights) / done - 1) if done else 0.0
        benchmark.say(self.what + what + (f"; about {left / 60:.0f} min left" if left else ""))


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of some files' names and contents."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def place(folder: Path, group: dict[str, Any]) -> Path:
    return folder / "cells" / f"{group['test_set']}.batch{group['batch_size']}.json"


def recall(path: Path, group: dict[str, Any]) -> dict[str, Any]:
    """What was measured, if it is still true; else nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) and found.get("group") == group else {}


def write(path: Path, content: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


# ---- showing


def chosen(result: dict[str, Any], test_set: str | None) -> list[Row]:
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


def render(result: dict[str, Any]) -> str:
    """The report in Markdown, from its JSON."""
    signed = result["signature"]
    packages = ("torch", "fairseq-fixed", "fairseq", "ctranslate2")
    versions = ", ".join(f"{name} {signed[name]}" for name in packages if name in signed)
    parts = [
        f"# {signed['model']}\n",
        f"specdec-report, {signed['date']}. {signed['cores']} cores, {signed['cpu']}; Python {signed['python']}, {versions}.\n",
        f"Systems of one test set and one batch size ran by turns, {result['rounds']} rounds: compare within a column.\n",
        f"BLEU: `{result['bleu_signature']}`.\n",
    ]
    parts += [f"Left out: {line}\n" for line in result["left_out"]]
    for name, count in result["test_sets"].items():
        rows = chosen(result, name)
        parts.append(f"## {name}, {count:,} sentences\n")
        for kind, make in TABLES.items():
            content = make(rows, signed)
            if content.count("\n") > 2:
                parts += [f"{ABOUT[kind]}\n", content]
        outputs: dict[str, set] = {}
        for row in rows:
            outputs.setdefault(row["system"], set()).add((row["identical"], row["bleu"]))
        changing = [system for system, kinds in outputs.items() if len(kinds) > 1]
        parts += [f"Their outputs differ between batch sizes: {', '.join(changing)}.\n"] * bool(changing)
        parts += [f"![{caption}]({file})\n\n{caption}\n" for file, caption in result["figures"][name]]
    return "\n".join(parts)


MARKED = re.compile(r"(<!-- (\w+) of ([^\s,]+)(?:, (\S+))? -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """A text with each marked table made again from its JSON, whose path is relative to ``folder``."""

    def make(match: re.Match[str]) -> str:
        head, kind, file, test_set = match.groups()
        if kind not in TABLES:
            raise ValueError(f"no table '{kind}'; available: {', '.join(TABLES)}")
        result = json.loads((folder / file).read_text(encoding="utf-8"))
        return f"{head}\n{TABLES[kind](chosen(result, test_set), result['signature'])}\n"

    return MARKED.sub(make, text)


if __name__ == "__main__":
    sys.exit(main())
