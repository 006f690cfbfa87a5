"""Scores of translations, with sacreBLEU's metrics and paired tests.

Tokenised and compound-split BLEU are sacreBLEU's without smoothing and with another tokeniser, and equal fairseq-score's.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.measure.hypotheses import Text
from specdec_plugins.text.moses_rules import MosesRules

TESTS = {"bs": "paired bootstrap", "ar": "approximate randomisation"}
MAX_PAIRED = 20_000  # sentences; sacreBLEU's bootstrap keeps all samples in memory: 1.4 GB for chrF
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeLsum": "ROUGE-Lsum"}
SENTENCE_END = re.compile(r"(?<=[.!?]) +")
UNKNOWN = re.compile(r"(?<!\S)<unk>(?!\S)")  # in references; fairseq-score has <<unk>>, which no hypothesis matches


def make_metrics(target_lang: str | None, tokenized: bool) -> dict[str, Any]:
    """The metrics for the text, by name. Raises ValueError if sacreBLEU lacks the language's tokeniser."""
    from sacrebleu.metrics import BLEU, CHRF

    def fairseq_bleu(tokeniser: Callable[[str], str], signature: str) -> Any:
        metric = BLEU(tokenize="none", smooth_method="none", force=True)
        metric.tokenizer, metric.tokenizer_signature = tokeniser, signature
        return metric

    if tokenized:
        metrics = {"tokenised BLEU": fairseq_bleu(str, "none")}
    else:  # force: sacreBLEU's own warning about tokenised text is late and long
        try:
            metrics = {"BLEU": BLEU(trg_lang=target_lang or "", force=True), "chrF2": CHRF()}
        except RuntimeError as error:
            raise ValueError(" ".join(str(error).split())) from None
    if target_lang == "de":
        if tokenized:
            metrics["compound-split BLEU"] = fairseq_bleu(split_compounds, "none+compound-split")
        else:
            moses = MosesRules("de")  # as tokenizer.perl -l de: no normalisation, hyphens intact
            tokenise = cache(lambda line: split_compounds(moses.tokenize(line, hyphens=False)))  # each test repeats the calls
            metrics["compound-split BLEU"] = fairseq_bleu(tokenise, f"moses-de-{version('sacremoses')}+compound-split")
    return metrics


def split_compounds(line: str) -> str:
    """Split hyphens inside tokens: ``E-Mail`` becomes ``E ##AT##-##AT## Mail``.

    On bytes, as in the Perl line of the published scripts; in ``a-b-c`` only the first hyphen is split.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def scores(metrics: dict[str, Any], text: Text, reference: Text) -> dict[str, dict[str, Any]]:
    """Each metric's score, unrounded, and BLEU's components."""
    parts = ("score", "precisions", "bp", "sys_len", "ref_len")
    found = {name: metric.corpus_score(text.lines, [reference.lines]) for name, metric in metrics.items()}
    return {name: {part: getattr(score, part) for part in parts if hasattr(score, part)} for name, score in found.items()}


def compare(metrics: dict[str, Any], systems: Sequence[Text], reference: Text, result: dict[str, Any]) -> None:
    """Add to ``result`` paired tests of each system against the first, and the agreement of their outputs."""
    from sacrebleu.significance import PairedTest

    if len(reference.lines) > MAX_PAIRED:
        raise ValueError(f"{reference.at(MAX_PAIRED)}: the tests of --baseline take no more than {MAX_PAIRED:,} sentences")
    named: list[tuple[str, Sequence[str]]] = [(text.path, text.lines) for text in systems]
    for name, metric in metrics.items():
        for test, title in TESTS.items():
            # One metric at a time: sacreBLEU keys results by the metric's own name, which all kinds of BLEU share.
            signed, found = PairedTest(named, {name: metric}, [reference.lines], test)()
            ((own_name, signature),) = signed.items()
            added = [part for part in str(signature).split("|") if part not in result["signatures"][name]]
            result["signatures"][title] = "|".join(added)  # samples and seed
            for text, row, outcome in zip(systems, result["systems"], found[own_name]):
                parts = {part: getattr(outcome, part) for part in ("p_value", "mean", "ci")}
                if text.lines == systems[0].lines:  # sacreBLEU would call no difference significant: p = 1 / (n + 1)
                    parts["p_value"] = None
                row["scores"][name][title] = {part: float(value) for part, value in parts.items() if value is not None}
    first = next(iter(metrics.values()))
    for text, row in zip(systems[1:], result["systems"][1:]):
        row["identical"] = sum(ours == theirs for ours, theirs in zip(text.lines, systems[0].lines))
        row["bleu_to_baseline"] = first.corpus_score(text.lines, [systems[0].lines]).score


def difference(metric: Any, ours: Sequence[str], theirs: Sequence[str], reference: Sequence[str]) -> dict[str, float]:
    """Ours minus theirs, and its 95 % interval over the samples of sacreBLEU's paired bootstrap."""
    import numpy as np

    seed, count = 12345, 1000  # sacreBLEU's values; sampling and percentiles are also its own
    picks = np.random.default_rng(seed).choice(len(reference), size=(count, len(reference)), replace=True)
    whole, sampled = [], []
    for lines in (ours, theirs):
        stats = np.array(metric._extract_corpus_statistics(lines, [reference]), dtype="float32")
        whole.append(metric._compute_score_from_stats(stats.sum(0)).score)
        sampled.append([metric._compute_score_from_stats(stats[pick].sum(0)).score for pick in picks])
    found = np.sort(np.array(sampled[0]) - np.array(sampled[1]))
    low, high = found[count // 40], found[-count // 40 - 1]
    return {"difference": whole[0] - whole[1], "mean": float(found.mean()), "low": float(low), "high": float(high)}


def add_rouge(systems: Sequence[Text], reference: Text, result: dict[str, Any]) -> None:
    """Add the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-Lsum to ``result``, in per cent. Raises ImportError."""
    with needed("summarisation", "--rouge"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    for text, row in zip(systems, result["systems"]):
        pairs = zip(reference.lines, text.lines)  # ROUGE-Lsum expects one sentence per line
        found = [scorer.score(*(SENTENCE_END.sub("\n", summary) for summary in pair)) for pair in pairs]
        for name, title in ROUGE.items():
            row["scores"][title] = {"score": 100 * sum(each[name].fmeasure for each in found) / len(found)}
    how = f"mean F1|stemmer:yes|sentences end:.!?|rouge-score:{version('rouge-score')}"
    result["signatures"] |= dict.fromkeys(ROUGE.values(), how)


def add_comet(model: str, source: Text, systems: Sequence[Text], reference: Text, result: dict[str, Any]) -> None:
    """Add COMET's scores to ``result``."""
    with needed("comet", "--comet"):
        import comet
    import torch

    try:
        scorer = comet.load_from_checkpoint(comet.download_model(model))
        for text, row in zip(systems, result["systems"]):
            data = [{"src": s, "mt": m, "ref": r} for s, m, r in zip(source.lines, text.lines, reference.lines)]
            row["scores"]["COMET"] = {"score": float(scorer.predict(data, gpus=int(torch.cuda.is_available())).system_score)}
    except Exception as error:  # downloading and running a model may raise anything
        raise ValueError(f"--comet {model}: {error}") from None
    result["signatures"]["COMET"] = f"model:{model}|unbabel-comet:{version('unbabel-comet')}"
