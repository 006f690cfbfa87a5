"""A report: systems over test sets and batch sizes, measured group by group and kept, then shown as Markdown, figures and JSON.

A cell is one system on one test set with one workload: latency, or throughput at a batch size. Speeds compare only within one
interleaved run, so what is measured, stored and resumed is a *group*: all cells of one test set and workload. A group's file
names everything that it depends on (model, texts and engine by their hash), and it is measured again when that changes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.formats import files
from specdec_plugins.measure.machine import PACKAGES, fingerprint, machine
from specdec_plugins.measure.runs import Plan, Progress, Text, Workload, measure, summarise, workloads
from specdec_plugins.measure.systems import KINDS, System
from specdec_plugins.measure.tables import ABOUT, TABLES, Row, rows_of

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

BASELINE = System("ar", "float32")
PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class TestSet:
    """A text and its references, with the paths of both."""

    name: str
    text: Text
    source: Path
    reference: Path


@dataclass(frozen=True)
class Matrix:
    """Everything that a report measures."""

    model: str
    systems: Sequence[System]  # the baseline first
    batch_sizes: Sequence[int]
    threads: Sequence[int]  # to choose from
    rounds: int
    sentences: int | None  # of each test set; None: all


@dataclass(frozen=True)
class Group:
    """All systems on one test set with one workload. ``key`` is what the measurement depends on."""

    test_set: TestSet
    workload: Workload
    key: dict[str, Any]

    @property
    def file(self) -> str:
        kind = "latency" if self.workload.kind == "latency" else f"batch{self.workload.batch_size}"
        return f"{self.test_set.name}.{kind}.json"

    @property
    def tokens(self) -> int:
        return sum(map(len, self.test_set.text.sources))


class Report:
    """A report in ``folder``; measured groups are kept in its folder ``cells``."""

    def __init__(self, folder: Path, matrix: Matrix, test_sets: Sequence[TestSet], reader: "Translator"):
        self.folder, self.matrix, self.test_sets, self.reader = folder, matrix, test_sets, reader
        (folder / "cells").mkdir(parents=True, exist_ok=True)
        self.signature = {**machine(), "block_size": reader.pair.block_size, "model": matrix.model}
        shared = {
            **{name: value for name, value in self.signature.items() if name not in ("date", "model")},
            "model": fingerprint(path for path in Path(matrix.model).iterdir() if path.is_file()),
            "engine": fingerprint(path for path in (PACKAGE / "decoding").rglob("*") if path.suffix in (".py", ".so")),
            "systems": [system.name for system in matrix.systems], "threads": matrix.threads,
            "rounds": matrix.rounds, "sentences": matrix.sentences,
        }  # fmt: skip
        self.groups = []
        for test_set in test_sets:
            files = {"source": fingerprint([test_set.source]), "reference": fingerprint([test_set.reference])}
            for workload in workloads(KINDS, matrix.batch_sizes, matrix.threads):
                key = {"test_set": test_set.name, "kind": workload.kind, "batch_size": workload.batch_size, **files, **shared}
                self.groups.append(Group(test_set, workload, key))
        self.stored = {group.file: recall(folder / "cells" / group.file, group.key) for group in self.groups}

    @property
    def missing(self) -> list[Group]:
        """The groups that are still to be measured."""
        return [group for group in self.groups if not self.stored[group.file]]

    def measure(self, group: Group, progress: Progress) -> None:
        """Measure a group and keep it. Raises ValueError if the baseline does not run."""
        matrix = self.matrix
        plan = Plan(matrix.model, matrix.systems, [group.workload], matrix.rounds)
        measured, left_out = measure(plan, group.test_set.text.sources, progress)
        if measured[0].system != BASELINE:
            raise ValueError(f"{BASELINE.name}, with which everything is compared, does not run: {left_out[0]}")
        rows = [{"test_set": group.test_set.name, **summarise(each, measured[0].runs[0].outputs)} for each in measured]
        outputs = [[self.reader.text(tokens) for tokens in each.runs[0].outputs] for each in measured]
        bleu_signature = add_bleu(rows, outputs, group.test_set.text.references or [])
        found = {
            "group": group.key, "rows": rows, "left_out": left_out, "bleu_signature": bleu_signature, "signature": self.signature
        }  # fmt: skip
        self.stored[group.file] = found
        write(self.folder / "cells" / group.file, json.dumps(found))

    def publish(self) -> Path:
        """Write report.json, the figures and report.md, of which the path is returned. Every group must have been measured."""
        from specdec_plugins.measure import figures

        parts = [self.stored[group.file] for group in self.groups]
        dates = sorted({each["signature"]["date"] for each in parts})
        result: dict[str, Any] = {
            "command": "specdec-report", "rows": [row for each in parts for row in each["rows"]], "rounds": self.matrix.rounds,
            "test_sets": {each.name: len(each.text.sources) for each in self.test_sets},
            "left_out": sorted({line for each in parts for line in each["left_out"]}),
            "bleu_signature": parts[0]["bleu_signature"],
            "signature": {**self.signature, "date": " to ".join(dict.fromkeys((dates[0], dates[-1])))},
            "groups": [each["group"] for each in parts],
        }  # fmt: skip
        result["figures"] = {
            each.name: figures.draw(rows_of(result, each.name), self.folder, each.name) for each in self.test_sets
        }
        write(self.folder / "report.json", json.dumps(result) + "\n")
        write(self.folder / "report.md", render(result))
        return self.folder / "report.md"


def add_bleu(rows: list[Row], outputs: list[list[str]], references: list[str]) -> str:
    """Add BLEU to the rows, and its difference to the first row's where the output differs. Returns BLEU's signature."""
    from sacrebleu.metrics import BLEU

    from specdec_plugins.measure.scores import difference

    metric = BLEU()
    known: dict[tuple[str, ...], dict[str, Any]] = {tuple(outputs[0]): {}}
    for row, lines in zip(rows, outputs):
        row["bleu"] = round(metric.corpus_score(lines, [references]).score, 2)
        if tuple(lines) not in known:
            found = difference(metric, lines, outputs[0], references)
            known[tuple(lines)] = {"bleu_difference": {name: round(value, 3) for name, value in found.items()}}
        row.update(known[tuple(lines)])
    return f"{metric.get_signature()}"


def recall(path: Path, key: dict[str, Any]) -> dict[str, Any]:
    """What was measured, if it depended on the same things; else nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) and found.get("group") == key else {}


def write(path: Path, content: str) -> None:
    """Write a file, whole or not at all."""
    with files.whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def render(result: dict[str, Any]) -> str:
    """The report in Markdown, from its JSON."""
    from jinja2 import Environment, FileSystemLoader

    signature = result["signature"]
    sets = []
    for name, count in result["test_sets"].items():
        rows = rows_of(result, name)
        tables = {kind: make(rows, signature) for kind, make in TABLES.items()}
        outputs: dict[str, set] = {}
        for row in rows:
            outputs.setdefault(row["system"], set()).add((row["identical"], row["bleu"]))
        sets.append({
            "name": name, "sentences": f"{count:,}", "figures": result["figures"][name],
            "tables": [(ABOUT[kind], table) for kind, table in tables.items() if table.count("\n") > 2],
            "changing": ", ".join(system for system, kinds in outputs.items() if len(kinds) > 1),
        })  # fmt: skip
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), trim_blocks=True, keep_trailing_newline=True
    )
    versions = ", ".join(f"{name} {signature[name]}" for name in PACKAGES if name in signature)
    page = environment.get_template("report.md")
    return page.render(result=result, signature=signature, versions=versions, test_sets=sets).rstrip() + "\n"
