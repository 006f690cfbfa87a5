"""The command ``specdec-score``: hypotheses against references, every score under the signature that says what it is.

The metrics and the paired tests are sacreBLEU's own. Tokenised and compound-split BLEU are its BLEU with a tokeniser put in and
without smoothing, which makes it that of fairseq-score. What is ours is reading, checking and showing.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.moses import Moses

MAX_LINES = 1_000_000  # a longer file is a training corpus, given by mistake
TESTS = {"bs": "paired bootstrap", "ar": "approximate randomisation"}
MAX_PAIRED = 20_000  # sentences; sacreBLEU's bootstrap holds all its samples at once: 1.4 GB of chrF's counts

FAIRSEQ_LINE = re.compile(r"[STHD]-([0-9]{1,9})\t")
SUBWORD = re.compile(r"@@(?: |$)")
# What Moses leaves in text, and what it never leaves. French has a space before other marks, so these are commas and full stops.
TOKENISED = re.compile(r" [,.](?: |$)|&(?:apos|quot|amp|lt|gt|#91|#93|#124);| @-@ ")
PLAIN = re.compile(r"\w[,!?](?: |$)|\w{4}\.$")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-score", allow_abbrev=False,
        description="Score translations: sacreBLEU's BLEU and chrF; of tokenised text BLEU as fairseq-score computes it; "
        "for German also compound-split BLEU, as for WMT14 English-German.",
        epilog="A FILE is plain text, the output of fairseq-generate (D, H and T lines, put in order) or JSON lines of "
        "specdec-translate; .gz allowed. Exit status: 0 done; 1 bad input; 2 wrong options.",
    )  # fmt: skip
    p.add_argument(
        "systems", nargs="+", metavar="FILE", help="hypotheses, a file a system: its D lines, or H where there are no D"
    )
    p.add_argument("--reference", metavar="FILE", help="references (default: the T lines of the first system)")
    p.add_argument("--baseline", metavar="FILE",
                   help="hypotheses to compare each system with, as those of greedy decoding: paired bootstrap, approximate "
                   "randomisation, identical sentences, BLEU between the two")  # fmt: skip
    p.add_argument("-t", "--target-lang", metavar="LANG",
                   help="de: also compound-split BLEU; zh, ja, ko: sacreBLEU's tokenisers for these")  # fmt: skip
    p.add_argument("--tokenized", action="store_true",
                   help="all text is in tokens (H lines, JSON's tokens): tokenised BLEU instead of BLEU and chrF")  # fmt: skip
    p.add_argument("--remove-bpe", action="store_true", help="join subwords first")
    p.add_argument("--comet", metavar="MODEL", help="also COMET, such as Unbabel/wmt22-comet-da (pip install specdec[comet])")
    p.add_argument("--source", metavar="FILE", help="source text, for --comet")
    p.add_argument("--json", metavar="FILE", help="write everything as one JSON object; -: to stdout, instead of the table")
    return p


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        check(options)
    except ValueError as error:
        print(f"specdec-score: error: {error}", file=sys.stderr)
        return 2
    try:
        run(options)
    except BrokenPipeError:  # the reader of stdout has left, as `head` does
        return 141
    except OSError as error:
        print(f"specdec-score: error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (ValueError, ImportError, RuntimeError) as error:  # sacreBLEU raises the last if a language's tokeniser is not there
        print(f"specdec-score: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nspecdec-score: stopped", file=sys.stderr)
        return 130
    return 0


def check(options: argparse.Namespace) -> None:
    """Raise ValueError with every way in which the options do not go together."""
    faults = []
    if options.target_lang and not re.fullmatch("[a-z]{2}", options.target_lang):
        faults.append(f"--target-lang {options.target_lang} is no two-letter code")
    if bool(options.comet) != bool(options.source):
        faults.append("--comet and --source need each other")
    if options.comet and options.tokenized:
        faults.append("--comet wants plain text, not --tokenized")
    files = [path for path in (*options.systems, options.reference, options.baseline, options.source) if path]
    if options.json and any(os.path.realpath(path) == os.path.realpath(options.json) for path in files):
        faults.append(f"--json {options.json} is also an input")
    if faults:
        raise ValueError("; ".join(faults))


def run(options: argparse.Namespace) -> None:
    """Score, and print the table or write the JSON. Raises ValueError or OSError with one line that names what is wrong."""
    reference = read(options.reference or options.systems[0], "T", options)
    if not options.reference and reference.kind != "T":
        raise ValueError(f"{reference.path} has no T lines: give --reference")
    paths = [options.baseline] * bool(options.baseline) + options.systems
    systems = [read(path, "HD" if options.tokenized else "DH", options) for path in paths]
    source = read(options.source, "S", options) if options.source else None
    for text in [*systems, *([source] if source else [])]:
        same_length(text, reference)
    for text in {(text.path, text.kind): text for text in [*systems, reference]}.values():
        warn_of_tokens(text, options.tokenized)
    if options.tokenized:  # fairseq matches no hypothesis with the reference's unknown words, and writes them so in T lines
        reference.lines[:] = [re.sub(r"(?<!\S)<unk>(?!\S)", "<<unk>>", line) for line in reference.lines]

    metrics = make_metrics(options)
    result = {
        "command": "specdec-score", "reference": reference.path, "baseline": options.baseline, "sentences": len(reference.lines),
        "systems": [
            {"system": text.path, "form": text.kind, "scores": scores(metrics, text, reference)} for text in systems
        ],
        "signatures": {name: str(metric.get_signature()) for name, metric in metrics.items()},
    }  # fmt: skip
    if options.baseline:
        compare(metrics, systems, reference, result)
    if source:
        add_comet(options.comet, source, systems, reference, result)
    content = json.dumps(result, ensure_ascii=False)
    print(content if options.json == "-" else table(result), flush=True)
    if options.json and options.json != "-":
        Path(options.json).write_text(content + "\n", encoding="utf-8")


# ---- reading and checking


@dataclass(frozen=True)
class Text:
    """Sentences, and the line of the file at which each stands. ``kind``: plain, json, or the letter of fairseq's lines."""

    path: str
    kind: str
    lines: list[str]
    numbers: list[int]

    def at(self, index: int) -> str:
        """Where sentence ``index`` is, for messages."""
        return f"{self.path}, line {self.numbers[index]}"


def read(path: str, kinds: str, options: argparse.Namespace) -> Text:
    """Read plain text, JSON lines, or of fairseq's output the first of ``kinds`` that it has. Raises ValueError for bad input."""
    content = list(enumerate(islice(read_lines(Path(path)), MAX_LINES + 1), 1))
    if len(content) > MAX_LINES:
        raise ValueError(f"{path}, line {MAX_LINES + 1}: too long for a test set")
    if not any(line.strip() for _, line in content):
        raise ValueError(f"{path} is empty")
    if content[0][1].startswith('{"'):
        kind = "json"
        sentences = in_order(path, "id ", (record(path, *each, options.tokenized) for each in content))
    elif letters := {line[0] for _, line in content if FAIRSEQ_LINE.match(line)}:
        kind = next((kind for kind in kinds if kind in letters), "")
        if not kind:
            raise ValueError(f"{path} has no {' or '.join(kinds)} lines")
        chosen = (each for each in content if each[1].startswith(kind) and FAIRSEQ_LINE.match(each[1]))
        sentences = in_order(path, f"{kind}-", (labelled(path, *each) for each in chosen))
    else:
        kind, sentences = "plain", content
    if options.remove_bpe:
        sentences = [(number, remove_bpe(line)) for number, line in sentences]
    for number, line in sentences:
        if SUBWORD.search(line):
            raise ValueError(f"{path}, line {number}: BPE left in the text ('@@ '): --remove-bpe joins it")
    return Text(path, kind, [line for _, line in sentences], [number for number, _ in sentences])


def labelled(path: str, number: int, line: str) -> tuple[int, int, str]:
    """One line of fairseq's output: its index, the line's number, the sentence, which in H and D lines follows a score."""
    fields = line.split("\t", 2 if line[0] in "HD" else 1)
    if line[0] in "HD" and len(fields) < 3:
        raise ValueError(f"{path}, line {number}: not index, score and text, as fairseq's H and D lines are")
    return int(fields[0][2:]), number, fields[-1]


def record(path: str, number: int, line: str, tokenized: bool) -> tuple[int, int, str]:
    """One JSON line of specdec-translate: its id, the line's number, the sentence."""
    try:
        fields = json.loads(line)
        index, text = fields["id"], " ".join(fields["tokens"]) if tokenized else fields["text"]
        if isinstance(index, int) and isinstance(text, str):
            return index, number, text
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path}, line {number}: not JSON of specdec-translate (id, text, tokens)")


def in_order(path: str, name: str, found: Iterable[tuple[int, int, str]]) -> list[tuple[int, str]]:
    """Line numbers and sentences by index, from (index, line number, sentence) in any order; none may be missing or twice."""
    places: dict[int, tuple[int, str]] = {}
    for index, number, line in found:
        if index in places:
            raise ValueError(f"{path}, line {number}: {name}{index} a second time, after line {places[index][0]}")
        places[index] = number, line
    missing, last = next((index for index in range(len(places)) if index not in places), None), max(places)
    if missing is not None:
        raise ValueError(f"{path}, line {places[last][0]}: {name}{last}, but {name}{missing} is missing")
    return [places[index] for index in range(len(places))]


def same_length(text: Text, reference: Text) -> None:
    """Raise ValueError if there is not a reference for each sentence."""
    short, long = sorted((text, reference), key=lambda each: len(each.lines))
    if len(short.lines) < len(long.lines):
        counts = f"{short.path} has {len(short.lines)} and {long.path} has {len(long.lines)}"
        raise ValueError(f"{long.at(len(short.lines))}: one sentence too many: {counts}")


def warn_of_tokens(text: Text, tokenized: bool) -> None:
    """Say on stderr if a text looks like what it should not be: tokens, or with ``tokenized`` none."""
    sign, what = (PLAIN, "not tokenised, but --tokenized takes it as it is") if tokenized else (
        TOKENISED, "tokenised, but sacreBLEU wants plain text (detokenise it, or give --tokenized)")  # fmt: skip
    suspects = [index for index, line in enumerate(text.lines) if sign.search(line)]
    if len(suspects) * 10 > len(text.lines):  # a few lines of any text may look so
        print(f"specdec-score: warning: {text.at(suspects[0])}: looks {what}", file=sys.stderr)


# ---- scoring


def make_metrics(options: argparse.Namespace) -> dict[str, Any]:
    """The metrics that suit the text, by name."""
    from sacrebleu.metrics import BLEU, CHRF

    def fairseq_bleu(tokeniser: Callable[[str], str], signature: str) -> Any:
        metric = BLEU(tokenize="none", smooth_method="none", force=True)
        metric.tokenizer, metric.tokenizer_signature = tokeniser, signature
        return metric

    if options.tokenized:
        metrics = {"tokenised BLEU": fairseq_bleu(str, "none")}
    else:  # force: sacreBLEU's own warning of tokenised text comes late and has three lines
        metrics = {"BLEU": BLEU(trg_lang=options.target_lang or "", force=True), "chrF2": CHRF()}
    if options.target_lang == "de":
        if options.tokenized:
            metrics["compound-split BLEU"] = fairseq_bleu(split_compounds, "none+compound-split")
        else:
            moses = Moses("de").tokenizer  # as tokenizer.perl -l de: nothing normalised in a reference, hyphens left whole
            tokenise = cache(lambda line: split_compounds(moses.tokenize(line, return_str=True)))  # each test asks again
            metrics["compound-split BLEU"] = fairseq_bleu(tokenise, f"moses-de-{version('sacremoses')}+compound-split")
    return metrics


def split_compounds(line: str) -> str:
    """Split hyphens inside tokens: ``E-Mail`` becomes ``E ##AT##-##AT## Mail``.

    On bytes, because the Perl line of the published scripts runs so: of ``a-b-c`` only the first hyphen has a letter left.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def scores(metrics: dict[str, Any], text: Text, reference: Text) -> dict[str, dict[str, Any]]:
    """Each metric's score, unrounded, and what BLEU is made of."""
    parts = ("score", "precisions", "bp", "sys_len", "ref_len")
    found = {name: metric.corpus_score(text.lines, [reference.lines]) for name, metric in metrics.items()}
    return {name: {part: getattr(score, part) for part in parts if hasattr(score, part)} for name, score in found.items()}


def compare(metrics: dict[str, Any], systems: Sequence[Text], reference: Text, result: dict[str, Any]) -> None:
    """Add to ``result`` what paired tests say of each system against the first, and how far the outputs agree."""
    from sacrebleu.significance import PairedTest

    if len(reference.lines) > MAX_PAIRED:
        raise ValueError(f"{reference.at(MAX_PAIRED)}: the tests of --baseline take no more than {MAX_PAIRED:,} sentences")
    named: list[tuple[str, Sequence[str]]] = [(text.path, text.lines) for text in systems]
    for name, metric in metrics.items():
        for test, title in TESTS.items():
            # A metric at a time: sacreBLEU tells results apart by the metric's own name, and all kinds of BLEU have the same.
            signed, found = PairedTest(named, {name: metric}, [reference.lines], test)()
            ((own_name, signature),) = signed.items()
            added = [part for part in str(signature).split("|") if part not in result["signatures"][name]]
            result["signatures"][title] = "|".join(added)  # samples and seed
            for text, row, outcome in zip(systems, result["systems"], found[own_name]):
                parts = {part: getattr(outcome, part) for part in ("p_value", "mean", "ci")}
                if text.lines == systems[0].lines:  # sacreBLEU would find a difference of nothing significant: p = 1 / (n + 1)
                    parts["p_value"] = None
                row["scores"][name][title] = {part: float(value) for part, value in parts.items() if value is not None}
    first = next(iter(metrics.values()))
    for text, row in zip(systems[1:], result["systems"][1:]):
        row["identical"] = sum(ours == theirs for ours, theirs in zip(text.lines, systems[0].lines))
        row["bleu_to_baseline"] = first.corpus_score(text.lines, [systems[0].lines]).score


def difference(metric: Any, ours: Sequence[str], theirs: Sequence[str], reference: Sequence[str]) -> dict[str, float]:
    """By how much ours scores higher, and the 95 % interval of that over the samples of sacreBLEU's paired bootstrap."""
    import numpy as np

    seed, count = 12345, 1000  # sacreBLEU's own; how it samples, and where it cuts, too
    picks = np.random.default_rng(seed).choice(len(reference), size=(count, len(reference)), replace=True)
    whole, sampled = [], []
    for lines in (ours, theirs):
        stats = np.array(metric._extract_corpus_statistics(lines, [reference]), dtype="float32")
        whole.append(metric._compute_score_from_stats(stats.sum(0)).score)
        sampled.append([metric._compute_score_from_stats(stats[pick].sum(0)).score for pick in picks])
    found = np.sort(np.array(sampled[0]) - np.array(sampled[1]))
    low, high = found[count // 40], found[-count // 40 - 1]
    return {"difference": whole[0] - whole[1], "mean": float(found.mean()), "low": float(low), "high": float(high)}


def add_comet(model: str, source: Text, systems: Sequence[Text], reference: Text, result: dict[str, Any]) -> None:
    """Add COMET's scores to ``result``."""
    try:
        import comet
    except ImportError as error:
        raise ImportError(f"--comet needs a package that is not here: pip install 'specdec[comet]' ({error})") from None
    import torch

    try:
        scorer = comet.load_from_checkpoint(comet.download_model(model))
        for text, row in zip(systems, result["systems"]):
            data = [{"src": s, "mt": m, "ref": r} for s, m, r in zip(source.lines, text.lines, reference.lines)]
            row["scores"]["COMET"] = {"score": float(scorer.predict(data, gpus=int(torch.cuda.is_available())).system_score)}
    except Exception as error:  # the package downloads and runs a model: anything may be raised, and each fault is one line
        raise ValueError(f"--comet {model}: {error}") from None
    result["signatures"]["COMET"] = f"model:{model}|unbabel-comet:{version('unbabel-comet')}"


# ---- showing


def table(result: dict[str, Any]) -> str:
    """For people: a line a system, below it what the comparison with the baseline says, at the end the signatures."""
    rows, total = result["systems"], result["sentences"]
    names = list(rows[0]["scores"])
    first = max(31, *(len(row["system"]) + 2 for row in rows))

    def line(title: str, values: Iterable[str]) -> str:
        return f"{title:{first}}" + "".join(f"{value:>{max(len(name), 7) + 2}}" for name, value in zip(names, values))

    lines = [line(f"sentences: {total:,}", names)]
    for row in rows:
        scores = row["scores"]
        lines.append(line(row["system"], (f"{scores[name]['score']:.{4 if name == 'COMET' else 2}f}" for name in names)))
        if "identical" in row:
            for title in TESTS.values():
                found = [scores[name].get(title, {}).get("p_value") for name in names]
                lines.append(line(f"  p, {title}", ("-" if p is None else f"{p:.4f}" for p in found)))
            share = f"{row['identical']:,} of {total:,} ({row['identical'] / total:.1%})"
            lines.append(
                f"  sentences identical to {result['baseline']}: {share}; {names[0]} to it {row['bleu_to_baseline']:.2f}"
            )
    width = max(map(len, result["signatures"])) + 2
    return "\n".join([*lines, "", *(f"{name:{width}}{signature}" for name, signature in result["signatures"].items())])


if __name__ == "__main__":
    sys.exit(main())
