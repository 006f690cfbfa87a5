"""Minimum Bayes risk decoding (Eikema and Aziz 2020, arXiv 2005.10283) with sacreBLEU's chrF as the utility."""

from collections import Counter
from collections.abc import Sequence


def most_agreed(texts: Sequence[str]) -> int:
    """The index of the text with the highest mean chrF against the others; the first of several."""
    from sacrebleu.metrics.chrf import CHRF

    counts = Counter(texts)
    metric = CHRF()

    def agreement(text: str) -> float:
        others = ((other, times - (other == text)) for other, times in counts.items())
        return sum(times * metric.sentence_score(text, [other]).score for other, times in others if times)

    best = max(counts, key=agreement)
    return texts.index(best)
