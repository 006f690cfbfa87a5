"""A report in a folder: systems measured workload by workload, as JSON, Markdown and a figure.

Speeds compare only within one interleaved run, so a file in ``cells/`` has all systems on one workload. It names everything it
depends on (model, text and engine by hash) and is measured again when that changes.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.formats import files
from specdec_plugins.measure.machine import PACKAGES, fingerprint
from specdec_plugins.measure.runs import Plan, Progress, Text, Workload, measure, summarise
from specdec_plugins.measure.systems import System
from specdec_plugins.measure.tables import ABOUT, Row, tables

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

BASELINE = System("ar", "float32")  # where it is measured; else the first system
PACKAGE = Path(__file__).parent.parent
FIGURE = "speeds.png"


def measured_rows(plan: Plan, text: Text, reader: "Translator", progress: Progress) -> dict[str, Any]:
    """Measure a plan: its rows, why systems were left out, and BLEU if there are references."""
    measured, left_out = measure(plan, text.sources, progress)
    baseline = next((each for each in measured if each.system == BASELINE), measured[0])
    rows = [summarise(each, baseline.runs[0].outputs) for each in measured]
    result = {"rows": rows, "left_out": left_out, "baseline": baseline.system.name}
    if text.references:
        outputs = [[reader.codec.decode(reader.codec.target.ids(tokens)) for tokens in each.runs[0].outputs] for each in measured]
        result["bleu_signature"] = add_bleu(rows, outputs, outputs[measured.index(baseline)], text.references)
    return result


def add_bleu(rows: list[Row], outputs: list[list[str]], baseline: list[str], references: list[str]) -> str:
    """Add BLEU to the rows, and its difference from the baseline where the output differs. Returns BLEU's signature."""
    from sacrebleu.metrics import BLEU

    from specdec_plugins.measure.scores import difference

    metric = BLEU()
    known: dict[tuple[str, ...], dict[str, Any]] = {tuple(baseline): {}}
    for row, lines in zip(rows, outputs):
        row["bleu"] = round(metric.corpus_score(lines, [references]).score, 2)
        if tuple(lines) not in known:
            found = difference(metric, lines, baseline, references)
            known[tuple(lines)] = {"bleu_difference": {name: round(value, 3) for name, value in found.items()}}
        row.update(known[tuple(lines)])
    return str(metric.get_signature())


class Report:
    """A report on one plan and text. ``signature`` names machine, model and text."""

    def __init__(self, folder: Path, plan: Plan, texts: Sequence[Path], signature: dict[str, Any]):
        self.folder, self.plan, self.signature = folder, plan, signature
        (folder / "cells").mkdir(parents=True, exist_ok=True)
        shared = {
            **{name: value for name, value in signature.items() if name != "date"},
            "model": fingerprint(path for path in Path(plan.model).iterdir() if path.is_file()),
            "engine": fingerprint(path for path in (PACKAGE / "decoding").rglob("*") if path.suffix in (".py", ".so")),
            "texts": [fingerprint([path]) for path in texts],
            "systems": [system.name for system in plan.systems], "rounds": plan.rounds,
        }  # fmt: skip
        self.keys = {
            load: {**shared, "kind": load.kind, "batch_size": load.batch_size, "mixes": [str(mix) for mix in load.mixes]}
            for load in plan.workloads
        }
        self.stored = {load: recall(self.path(load), key) for load, key in self.keys.items()}

    def path(self, load: Workload) -> Path:
        return self.folder / "cells" / f"{'latency' if load.kind == 'latency' else f'batch{load.batch_size}'}.json"

    @property
    def missing(self) -> list[Workload]:
        """The workloads that remain to be measured."""
        return [load for load, found in self.stored.items() if not found]

    def measure(self, load: Workload, text: Text, reader: "Translator", progress: Progress) -> None:
        """Measure a workload and save it."""
        found = measured_rows(replace(self.plan, workloads=[load]), text, reader, progress)
        self.stored[load] = {"key": self.keys[load], **found}
        files.write(self.path(load), json.dumps(self.stored[load]))

    def publish(self) -> dict[str, Any]:
        """Write report.json, the figure and report.md; return the JSON's content. Requires every workload to be measured."""
        from specdec_plugins.measure.figures import speeds

        parts = list(self.stored.values())
        result: dict[str, Any] = {
            "benchmark": "specdec-benchmark", "rows": [row for each in parts for row in each["rows"]], "rounds": self.plan.rounds,
            "left_out": sorted({line for each in parts for line in each["left_out"]}), "baseline": parts[0]["baseline"],
            "bleu_signature": parts[0]["bleu_signature"], "signature": self.signature,
        }  # fmt: skip
        files.write(self.folder / "report.json", json.dumps(result) + "\n")
        speeds(result["rows"], self.folder / FIGURE)
        files.write(self.folder / "report.md", render(result))
        return result


def recall(path: Path, key: dict[str, Any]) -> dict[str, Any]:
    """A stored measurement, if its key matches; otherwise empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) and found.get("key") == key else {}


def render(result: dict[str, Any]) -> str:
    """The report in Markdown."""
    signature = result["signature"]
    versions = ", ".join(f"{name} {signature[name]}" for name in PACKAGES if name in signature)
    parts = [
        f"# {signature['model']}",
        f"specdec-benchmark, {signature['date']}. {signature['cores']} cores, {signature['cpu']}; Python {signature['python']}, "
        f"{versions}. {signature['sentences']:,} sentences of {signature['input']}, {result['rounds']} interleaved rounds.",
        f"BLEU: `{result['bleu_signature']}`. Compared with: {result['baseline']}.",
        *(f"Left out: {line}" for line in result["left_out"]),
    ]
    for kind, table in tables(result["rows"], signature).items():
        parts += [ABOUT[kind], table]
    return "\n\n".join([*parts, f"![Tokens per second of each system at its best; error bars span the rounds]({FIGURE})"]) + "\n"
