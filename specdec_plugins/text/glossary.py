"""Glossaries: source terms and their translations, from a file of tab-separated values."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specdec_plugins.text.lines import read_lines, surrogate
from specdec_plugins.text.words import Span

MOST_TERMS, LONGEST = 100_000, 200  # terms, and characters of each
CASED = "case"  # third column: the source term only in this case
ENDING = 3  # letters by which an inflected form of a target term may be longer
Found = tuple[Span, "Term"]


@dataclass(frozen=True)
class Term:
    source: str
    target: str
    cased: bool = False


@dataclass(frozen=True)
class Glossary:
    terms: Sequence[Term]

    @classmethod
    def read(cls, path: str) -> "Glossary":
        """Read a file: source, target, perhaps ``case``. Raises ValueError naming the line at fault."""
        lines = enumerate(read_lines(Path(path)), 1)
        return cls(_terms((f"{path}, line {n}", line.split("\t")) for n, line in lines if line.strip() and line[0] != "#"))

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Glossary":
        """Source terms with their translations. Raises ValueError naming the pair at fault."""
        return cls(_terms((f"pair {number}", pair) for number, pair in enumerate(pairs, 1)))

    @cached_property
    def _index(self) -> tuple[dict[str, list[int]], dict[str, Term], dict[str, Term]]:
        """The terms' lengths by first word in lower case, the longest first; the terms; those without case, in lower case."""
        lengths: dict[str, set[int]] = {}
        exact, lower = dict[str, Term](), dict[str, Term]()
        for term in self.terms:
            lengths.setdefault(_first_word(term.source), set()).add(len(term.source))
            exact.setdefault(term.source, term)
            if not term.cased:
                lower.setdefault(term.source.lower(), term)
        return {word: sorted(each, reverse=True) for word, each in lengths.items()}, exact, lower

    def find(self, text: str) -> list[Found]:
        """The terms of a source in order, without overlap: of several at a place the longest, whole words only."""
        found: list[Found] = []
        lengths, exact, caseless = self._index
        lower = text.lower() if len(text.lower()) == len(text) else text
        for match in re.finditer(r"\w+|[^\w\s]", text):
            at = match.start()
            if found and at < found[-1][0][1]:
                continue
            for length in lengths.get(match[0].lower(), ()):
                end = at + length
                term = exact.get(text[at:end]) or caseless.get(lower[at:end])
                if term and not (text[end - 1 : end].isalnum() and text[end : end + 1].isalnum()):
                    found.append(((at, end), term))
                    break
        return found


def missing(found: Iterable[Found], text: str) -> list[Found]:
    """The terms that a translation lacks. If it has a term too few times, the last ones are missing."""
    left = Counter[str]()
    lacking = []
    found = list(found)
    for target in {term.target for _, term in found}:
        left[target] = len(re.findall(rf"(?<!\w){re.escape(target)}\w{{0,{ENDING}}}(?!\w)", text, re.IGNORECASE))
    for span, term in found:
        if left[term.target]:
            left[term.target] -= 1
        else:
            lacking.append((span, term))
    return lacking


def _terms(given: Iterable[tuple[str, Sequence[str]]]) -> list[Term]:
    """The terms of these places and their fields. Raises ValueError naming the place at fault."""
    terms = list[Term]()
    for place, named in given:
        source, *rest = [" ".join(field.split()) for field in named]
        if not 1 <= len(rest) <= 2 or not source or not rest[0] or rest[1:] not in ([], [""], [CASED]):
            raise ValueError(f"{place}: not a source term and its translation (a third field of a file can only be '{CASED}')")
        if surrogate(source) or surrogate(rest[0]):
            raise ValueError(f"{place}: a term is not Unicode: it has half of a surrogate pair")
        if max(len(source), len(rest[0])) > LONGEST or len(terms) == MOST_TERMS:
            raise ValueError(f"{place}: over {LONGEST} characters, or {MOST_TERMS:,} terms")
        terms.append(Term(source, rest[0], rest[1:] == [CASED]))
    return terms


def _first_word(text: str) -> str:
    match = re.match(r"\w+|[^\w\s]", text)
    assert match is not None, "terms are stripped"
    return match[0].lower()
