"""The command ``specdec-score``: scores of hypotheses against references, each with its signature."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import Parser, command, same_file, say
from specdec_plugins.fields import Fault
from specdec_plugins.formats.errors import printable
from specdec_plugins.measure.hypotheses import read, same_length, wrong_tokenisation
from specdec_plugins.measure.scores import TESTS, UNKNOWN, add_comet, add_rouge, compare, make_metrics, scores


def parser() -> Parser:
    p = Parser(
        prog="specdec-score",
        description="Score translations: sacreBLEU's BLEU and chrF; for tokenised text, BLEU as in fairseq-score; for German "
        "also compound-split BLEU, as for WMT14 English-German.",
        epilog="A FILE is plain text, the output of fairseq-generate (D, H and T lines, in any order) or JSON lines of "
        "specdec-translate; .gz allowed. Exit status: 0 done; 1 bad input; 2 wrong options.",
    )
    add = p.add_argument
    add("systems", nargs="+", metavar="FILE", help="hypotheses, one file per system: D lines, or H without D")
    add("--reference", metavar="FILE", help="references (default: the first system's T lines)")
    add(
        "--baseline",
        metavar="FILE",
        help="hypotheses to compare each system with, such as greedy decoding's: paired bootstrap, approximate "
        "randomisation, identical sentences, BLEU between the two",
    )
    add("-t", "--target-lang", metavar="LANG", help="de: also compound-split BLEU; zh, ja, ko: sacreBLEU's tokenisers for these")
    add(
        "--tokenized",
        action="store_true",
        help="all text is tokens (H lines, JSON's tokens): tokenised BLEU instead of BLEU and chrF",
    )
    add("--remove-bpe", action="store_true", help="join subwords first")
    add("--rouge", action="store_true", help="also ROUGE-1, ROUGE-2 and ROUGE-Lsum of summaries (extra: summarisation)")
    add("--comet", metavar="MODEL", help="also a COMET model, such as Unbabel/wmt22-comet-da (extra: comet)")
    add("--source", metavar="FILE", help="source text, for --comet")
    add("--json", metavar="FILE", help="write all results as one JSON object; -: to stdout, instead of the table")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options."""
    if options.target_lang and not re.fullmatch("[a-z]{2}", options.target_lang):
        yield "target_lang", f"{options.target_lang} is not a two-letter code"
    if bool(options.comet) != bool(options.source):
        yield "comet", "and --source require each other"
    for name in ("comet", "rouge"):
        if getattr(options, name) and options.tokenized:
            yield name, "requires plain text, not --tokenized"
    files = *options.systems, options.reference, options.baseline, options.source
    if any(same_file(options.json, path) for path in files):
        yield "json", f"{options.json} is also an input"


def run(options: argparse.Namespace) -> None:
    """Score; print the table or write the JSON. Raises ValueError or OSError."""
    ready.readable(*options.systems, options.reference, options.baseline, options.source)
    ready.writable(None if options.json == "-" else options.json)
    how = options.tokenized, options.remove_bpe
    reference = read(options.reference or options.systems[0], "T", *how)
    if not options.reference and reference.kind != "T":
        raise ValueError(f"{reference.path} has no T lines: give --reference")
    paths = [options.baseline] * bool(options.baseline) + options.systems
    systems = [read(path, "HD" if options.tokenized else "DH", *how) for path in paths]
    source = read(options.source, "S", *how) if options.source else None
    for text in [*systems, *([source] if source else [])]:
        same_length(text, reference)
    for text in {(text.path, text.kind): text for text in [*systems, reference]}.values():
        if warning := wrong_tokenisation(text, options.tokenized):
            say(f"specdec-score: warning: {warning}")
    if options.tokenized:
        reference.lines[:] = [UNKNOWN.sub("<<unk>>", line) for line in reference.lines]

    metrics = make_metrics(options.target_lang, options.tokenized)
    result = {
        "command": "specdec-score",
        "reference": reference.path,
        "baseline": options.baseline,
        "sentences": len(reference.lines),
        "systems": [{"system": text.path, "form": text.kind, "scores": scores(metrics, text, reference)} for text in systems],
        "signatures": {name: str(metric.get_signature()) for name, metric in metrics.items()},
    }
    if options.baseline:
        compare(metrics, systems, reference, result)
    if options.rouge:
        add_rouge(systems, reference, result)
    if source:
        add_comet(options.comet, source, systems, reference, result)
    content = json.dumps(result, ensure_ascii=False)
    print(content if options.json == "-" else table(result), flush=True)
    if options.json and options.json != "-":
        Path(options.json).write_text(content + "\n", encoding="utf-8")


def table(result: dict[str, Any]) -> str:
    """A line per system and its comparison with the baseline; the signatures at the end."""
    from tabulate import tabulate

    total, names = result["sentences"], list(result["systems"][0]["scores"])
    rows: list[list[str]] = []
    below: dict[int, str] = {}  # agreement with the baseline, by the number of rows above
    for row in result["systems"]:
        scored = row["scores"]
        rows.append([printable(row["system"]), *(f"{scored[name]['score']:.{4 if name == 'COMET' else 2}f}" for name in names)])
        if "identical" in row:
            for title in TESTS.values():
                chances = [scored[name].get(title, {}).get("p_value") for name in names]
                rows.append([f"  p, {title}", *("-" if p is None else f"{p:.4f}" for p in chances)])
            same = f"{row['identical']:,} of {total:,} ({row['identical'] / total:.1%})"
            below[len(rows)] = printable(
                f"  sentences identical to {result['baseline']}: {same}; {names[0]} to it {row['bleu_to_baseline']:.2f}"
            )
    plain: dict[str, Any] = {"tablefmt": "plain", "disable_numparse": True, "preserve_whitespace": True}
    columns = ("left", *["right"] * len(names))
    lines = tabulate(rows, [f"sentences: {total:,}", *names], colalign=columns, **plain).splitlines()
    shown = [part for number, line in enumerate(lines) for part in (line, below.get(number)) if part is not None]
    return "\n".join([*shown, "", tabulate(result["signatures"].items(), **plain)])


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
