"""Word alignments: which words of a source the words of its translation come from. Knows characters, not models.

S source tokens, T output tokens.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import array
from specdec_plugins.text.words import Span

# A word's attention to a second source word, times that to its first, at least: best of 0 and 0.3 on half the gold sets
MINOR = 0.3
WORD = re.compile(r"\w+|[^\w\s]")  # the units that are linked: subwords are too small, parts between spaces too large


@dataclass(frozen=True)
class Alignment:
    """The words of a source and of its translation, as characters, and the numbers of those that correspond."""

    source: Sequence[Span]
    target: Sequence[Span]
    pairs: Sequence[tuple[int, int]]

    @property
    def links(self) -> list[tuple[Span, Span]]:
        return [(self.source[one], self.target[other]) for one, other in self.pairs]

    def numbers(self, source: str, text: str) -> list[tuple[int, int]]:
        """The links as in Moses's format: numbers, from 0, of the parts of both texts between white space.

        Punctuation counts only where a part has nothing else.
        """
        owners = [numbered(*each) for each in ((source, self.source), (text, self.target))]
        pairs = ((owners[0].get(one), owners[1].get(other)) for one, other in self.pairs)
        return sorted({(one, other) for one, other in pairs if one is not None and other is not None})


def words_of(text: str) -> list[Span]:
    """The units of a text that are linked."""
    return [match.span() for match in WORD.finditer(text)]


def parts_of(text: str) -> list[Span]:
    """The parts of a text between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def numbered(text: str, words: Sequence[Span]) -> dict[int, int]:
    """The part of a text between white space that each word belongs to, by number; not for punctuation beside a word."""
    parts = parts_of(text)
    found = {}
    for number, word in enumerate(words):
        part = within(word, parts)
        if part is not None and (spoken(text, word) or not spoken(text, parts[part])):
            found[number] = part
    return found


def spoken(text: str, span: Span) -> bool:
    """Whether there is a letter or digit."""
    return any(map(str.isalnum, text[slice(*span)]))


def link(attention: Any, spans: Sequence[Span], source: str, output: Sequence[Span], text: str) -> Alignment:
    """Link each word of ``text`` to the word of ``source`` of whose attention it has the largest part: every token attends to
    some, such as the last. A source word left over is linked to the word with the largest part of it, unless that attends far
    more to another.

    ``attention`` (T, S) is an array or a tensor; ``spans`` and ``output`` are the characters of the source's and the output's
    tokens. Tokens without characters, such as eos, count for nothing.
    """
    words = [words_of(source), words_of(text)]
    (rows, targets), (columns, sources) = (owners(*each) for each in ((output, words[1]), (spans, words[0])))
    if not rows or not columns:
        return Alignment(words[0], words[1], [])
    weights = array(attention)
    by_source = np.zeros((len(words[0]), len(weights)), weights.dtype)
    np.add.at(by_source, sources, weights.T[columns])
    table = np.zeros((len(words[1]), len(words[0])), weights.dtype)
    np.add.at(table, targets, by_source.T[rows])
    # Added in order, in float64: the order of `sum` depends on the CPU.
    totals = np.cumsum(table, 0, np.float64)[-1].astype(table.dtype)
    parts = table / (totals + table.dtype.type(1e-9))
    best, back = parts.argmax(1).tolist(), parts.argmax(0).tolist()
    pairs = {(best[word], word) for word in targets}
    linked = {source for source, _ in pairs}
    enough = (MINOR * table.max(1)).tolist()
    pairs |= {(source, back[source]) for source in {*sources} - linked if table[back[source], source] > enough[back[source]]}
    return Alignment(words[0], words[1], sorted(pairs, key=lambda pair: (pair[1], pair[0])))


def owners(spans: Sequence[Span], words: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Tokens and words that have characters in common, as the numbers of both."""
    starts, ends = [first for first, _ in words], [end for _, end in words]
    pairs = [
        (token, word)
        for token, (first, end) in enumerate(spans)
        for word in range(bisect_right(ends, first), bisect_left(starts, end))
    ]
    return [token for token, _ in pairs], [word for _, word in pairs]


def within(span: Span, parts: Sequence[Span]) -> int | None:
    """The number of the part in which a span begins."""
    number = bisect_right(parts, span[0], key=lambda part: part[0]) - 1
    return number if number >= 0 and span[0] < parts[number][1] else None
