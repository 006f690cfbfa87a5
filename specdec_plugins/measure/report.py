"""The rows of ``specdec-benchmark``, and its report in a folder: JSON, Markdown and a figure."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.formats import files
from specdec_plugins.measure.machine import PACKAGES
from specdec_plugins.measure.runs import Plan, Progress, Text, measure, summarise
from specdec_plugins.measure.systems import System
from specdec_plugins.measure.tables import ABOUT, Row, tables

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

BASELINE = System("ar", "float32")  # where it is measured; else the first system
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


def write_report(folder: Path, result: dict[str, Any]) -> None:
    """Write report.json, the figure and report.md."""
    from specdec_plugins.measure.figures import speeds

    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / "report.json", json.dumps(result) + "\n")
    speeds(result["rows"], folder / FIGURE)
    files.write(folder / "report.md", render(result))


def render(result: dict[str, Any]) -> str:
    """The report in Markdown."""
    signature = result["signature"]
    versions = ", ".join(f"{name} {signature[name]}" for name in PACKAGES if name in signature)
    kernels = f", kernels {signature['kernels']}" if "kernels" in signature else ""
    parts = [
        f"# {signature['model']}",
        f"specdec-benchmark, {signature['date']}. {signature['cores']} cores, {signature['cpu']}{kernels}; "
        f"Python {signature['python']}, {versions}. {signature['sentences']:,} sentences of {signature['input']}, "
        f"{result['rounds']} interleaved rounds.",
        f"Compared with: {result['baseline']}." + (f" BLEU: `{result['bleu_signature']}`." if "bleu_signature" in result else ""),
        *(f"Left out: {line}" for line in result["left_out"]),
    ]
    for kind, table in tables(result["rows"], signature).items():
        parts += [ABOUT[kind], table]
    return "\n\n".join([*parts, f"![Tokens per second of each system at its best; error bars span the rounds]({FIGURE})"]) + "\n"
