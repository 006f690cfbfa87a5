"""Minimum Bayes risk decoding (Eikema and Aziz 2020, arXiv 2005.10283) with sacreBLEU's chrF as the utility.

N different texts. sacreBLEU counts each text's n-grams once, and numpy compares all pairs, with the arithmetic of its
``sentence_score``, so that sums and ties are the same.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np

ENTRIES = 1 << 20  # of a matrix at a time: 4 MB


def most_agreed(texts: Sequence[str], give_way: Callable[[], object] = lambda: None) -> int:
    """The index of the text with the highest mean chrF against the others; the first of several.

    ``give_way`` is called now and then, as many or long texts take seconds.
    """
    counts = Counter(texts)
    times, scores = [*counts.values()], chrf([*counts], give_way)
    total = np.zeros(len(counts))
    for other, often in enumerate(times):  # in turn, as numpy's sums are rounded otherwise
        weights = np.full(len(counts), float(often))
        weights[other] -= 1
        total += weights * scores[:, other]
    return texts.index([*counts][int(total.argmax())])


def chrf(texts: Sequence[str], give_way: Callable[[], object] = lambda: None) -> np.ndarray:
    """(N, N): the chrF of each text with each as its reference."""
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    ngrams = list[list[Counter[str]]]()  # by text and order
    for text in texts:
        give_way()
        ngrams.append(extract_all_char_ngrams(text, CHRF.CHAR_ORDER))
    precision, recall, orders = (np.zeros((len(texts), len(texts))) for _ in range(3))
    for counters in zip(*ngrams):
        sizes = np.array([counter.total() for counter in counters], dtype=float)
        common, known = overlaps(counters, give_way), (sizes[:, None] > 0) & (sizes > 0)
        precision += np.divide(common, sizes[:, None], out=np.zeros_like(common), where=known)
        recall += np.divide(common, sizes, out=np.zeros_like(common), where=known)
        orders += known
    precision, recall = (each / np.maximum(orders, 1) for each in (precision, recall))
    factor = CHRF.BETA**2
    below = factor * precision + recall
    return 100 * np.divide((1 + factor) * precision * recall, below, out=np.zeros_like(below), where=below > 0)


def overlaps(counters: Sequence[Counter[str]], give_way: Callable[[], object]) -> np.ndarray:
    """(N, N): how many n-grams two texts have in common, each as often as both have it.

    That is the product of a matrix that has a column for the first, second, ... occurrence of each n-gram with its transpose.
    """
    numbers, rows, columns = dict[tuple[str, int], int](), list[int](), list[int]()
    for text, counter in enumerate(counters):
        give_way()
        found = [(gram, again) for gram, count in counter.items() for again in range(count)]
        columns += [numbers.setdefault(each, len(numbers)) for each in found]
        rows += repeat(text, len(found))
    order = np.argsort(columns, kind="stable")
    row, column = np.array(rows, dtype=np.int64)[order], np.array(columns, dtype=np.int64)[order]
    common, width = np.zeros((len(counters), len(counters))), max(1, ENTRIES // max(1, len(counters)))
    for start in range(0, len(numbers), width):
        give_way()
        first, last = np.searchsorted(column, (start, start + width))
        part = np.zeros((len(counters), min(width, len(numbers) - start)), dtype=np.float32)
        part[row[first:last], column[first:last] - start] = 1
        common += part @ part.T
    return common
