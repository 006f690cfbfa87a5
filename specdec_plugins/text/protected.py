"""Text that a translation must contain unchanged, such as placeholders: finding it, replacing it, putting it back.

Knows no model: `protection.py` translates.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from specdec_plugins.text.alignment import Alignment
from specdec_plugins.text.icu import arguments
from specdec_plugins.text.numbers import missing_numbers, number_spans
from specdec_plugins.text.patterns import ORDERED
from specdec_plugins.text.words import Span

MOST = 1000  # protected parts of a text
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts that join words, or suffixes
)
LETTER = rf"[^\W{UNSPACED}]"  # extends a word
AFTER, AFTER_ADDRESS = re.compile(LETTER), re.compile(rf"{LETTER}|[/#=&%]")
BEFORE, BEFORE_SIGN = re.compile(LETTER), re.compile(rf"{LETTER}|[-/.]")
SIGNS = "-/."  # begin options, paths and file names
STEM = "X"  # of masks
EXAMPLE = "{n, plural, other {#}}"  # what protects this protects all ICU messages


@dataclass(frozen=True)
class Edits:
    """Replaces parts of a text: ``parts`` are spans, in order and without overlap, and what takes their place."""

    parts: Sequence[tuple[Span, str]]

    def __call__(self, text: str) -> str:
        pieces, at = [], 0
        for (first, end), new in self.parts:
            pieces += [text[at:first], new]
            at = end
        return "".join(pieces) + text[at:]

    @cached_property
    def places(self) -> list[Span]:
        """Where the replacements are in the new text."""
        places, shift = [], 0
        for (first, end), new in self.parts:
            places.append((first + shift, first + shift + len(new)))
            shift += len(new) - (end - first)
        return places

    def back(self, span: Span) -> Span:
        """The old place of a span of the new text; of a span that has characters of a replacement, the replaced part's."""
        first, end, shift = *span, 0
        for ((start, stop), new), (begin, finish) in zip(self.parts, self.places):
            if begin < end and first < finish:
                return start, stop
            shift += (stop - start) - len(new) if finish <= first else 0
        return first + shift, end + shift

    def ahead(self, span: Span) -> Span:
        """The new place of a span of the old text."""
        return Edits([(place, " " * (end - first)) for ((first, end), _), place in zip(self.parts, self.places)]).back(span)


@dataclass(frozen=True)
class Protected:
    """A source with the ``spans`` that its translation must contain, each exactly once. Those of ``messages`` are arguments of
    an ICU message, whose branches are to be translated. Those of ``numbers`` it may spell in another way."""

    text: str
    spans: Sequence[Span]
    messages: Sequence[Span] = ()
    numbers: Sequence[Span] = ()

    @classmethod
    def of(cls, text: str, protected: re.Pattern[str] | None, spans: Iterable[Span] | None = ()) -> "Protected":
        """Protect what matches, further ``spans``, and numbers; nothing without both. Spans that overlap are one.

        Raises ValueError for one outside the text.
        """
        if protected is None and spans is None:
            return cls(text, [])
        messages = arguments(text) if protected and protected.match(EXAMPLE) else []
        matches = (match.span() for match in protected.finditer(text)) if protected else ()
        found = sorted([*(own := [*(spans or ())]), *messages, *matches])
        merged: list[Span] = []
        if found and not 0 <= found[0][0] <= max(end for _, end in found) <= len(text):
            raise ValueError(f"protected spans {found!r:.100} are not all within a text of {len(text):,} characters")
        for first, end in found:
            if merged and first < merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            elif first < end:
                merged.append((first, end))
        kept = {*merged[:MOST]} - {span for span in messages if any(a < span[1] and span[0] < b for a, b in own)}
        spans = merged[:MOST]
        return cls(text, spans, [span for span in messages if span in kept], number_spans(blanked(text, merged))[:MOST])

    @property
    def parts(self) -> list[str]:
        return [self.text[first:end] for first, end in self.spans]

    @property
    def rest(self) -> str:
        """The text with spaces in place of the parts."""
        return blanked(self.text, self.spans)

    def with_numbers(self, numbers: Iterable[Span]) -> "Protected":
        """The same with some of its numbers among the parts, which are kept as they are."""
        return replace(self, spans=sorted({*self.spans, *numbers}), messages=(), numbers=())

    def intact(self, text: str) -> bool:
        """Whether ``text`` has every part as often as the source, and those that count by their order in that order."""
        return not self.damaged(text)

    def damaged(self, text: str) -> list[Span]:
        """The spans of the parts that ``text`` lacks, repeats or reorders."""
        if not self.spans:
            return []
        own, found = self.found(self.text), self.found(text)
        counts = Counter(own), Counter(found)
        wrong = {part for part in {*own, *found} if counts[0][part] != counts[1][part]}
        swapped = {sign for sign in "%{<" if [*of_kind(sign, own)] != [*of_kind(sign, found)]}
        return [span for span, part in zip(self.spans, self.parts) if part in wrong or kind(part) in swapped]

    def lost(self, text: str) -> list[Span]:
        """The damaged parts and the numbers that ``text`` lacks."""
        return sorted([*self.damaged(text), *self.lost_numbers(text)])

    def lost_numbers(self, text: str) -> list[Span]:
        """The spans of the numbers that ``text`` has too rarely."""
        if not self.numbers:
            return []
        numbers = " ; ".join(self.text[slice(*span)] for span in self.numbers)
        missing = missing_numbers(numbers, blanked(text, self.places(text)))
        return [span for span in self.numbers if self.text[slice(*span)] in missing]

    def found(self, text: str) -> list[str]:
        """The parts that a text has, as `places` finds them."""
        return [text[first:end] for first, end in self.places(text)]

    def places(self, text: str) -> list[Span]:
        """Where a text has the parts, longer ones first; within a longer word, option or path only if the source has it so."""
        taken = bytearray(len(text))
        found = list[Span]()
        for part, joined in self._joins.items():
            first = text.find(part)
            while first >= 0:
                end = first + len(part)
                if not taken[first] and not taken[end - 1] and (joined or is_whole(text, first, end)):
                    taken[first:end] = b"\1" * len(part)
                    found.append((first, end))
                first = text.find(part, first + 1)
        return sorted(found)

    @cached_property
    def _joins(self) -> dict[str, bool]:
        """The parts, the longest first, and whether the source has one within a longer word."""
        parts = zip(self.spans, self.parts)
        joins = {part for span, part in parts if not is_whole(self.text, *span)}
        return {part: part in joins for part in sorted({*self.parts}, key=len, reverse=True)}

    def masks(self) -> list[str]:
        """A word for each part that models copy, and that the source does not have."""
        stem = next(stem for stem in (STEM * times for times in count(1)) if stem not in self.text)
        return [f"{stem}{number}" for number in range(1, len(self.spans) + 1)]

    def masked(self, masks: Sequence[str]) -> Edits:
        """The edits that put a mask in each part's place, apart from words."""
        parts = zip(self.spans, masks, self._joined())
        return Edits([(span, f"{' ' * before}{mask}{' ' * after}") for span, mask, (before, after) in parts])

    def _joined(self) -> list[tuple[bool, bool]]:
        """Whether words touch each part, before and after it."""
        return [(self.text[:first][-1:].isalnum(), self.text[end : end + 1].isalnum()) for first, end in self.spans]

    def unmasked(self, text: str, masks: Sequence[str]) -> Edits | None:
        """The edits that put the parts into a translation in place of their masks; None unless it has each mask once."""
        whole = (
            f"{' ?' * before}(?<!{LETTER}){re.escape(mask)}(?!{LETTER}){' ?' * after}"
            for mask, (before, after) in zip(masks, self._joined())
        )
        places = [[match.span() for match in re.finditer(each, text)] for each in whole]
        if any(len(found) != 1 for found in places):
            return None
        return Edits(sorted((found[0], part) for found, part in zip(places, self.parts)))

    def inserted(self, text: str, alignment: Alignment) -> tuple[Edits, list[int]]:
        """The edits that insert the parts into a translation of the rest, and the number of each edit's part.

        A part follows the translation of the word before it, or else precedes that of the next one, as do parts that touch only
        that. ``alignment`` has the source's own characters.
        """
        places: list[tuple[int, int]] = []
        for number, (first, end) in enumerate(self.spans):
            before = max((source[1] for source, _ in alignment.links if source[1] <= first), default=None)
            after = min((source[0] for source, _ in alignment.links if source[0] >= end), default=None)
            ahead = self.text[end : end + 1].isalnum() and not self.text[:first][-1:].isalnum() and after is not None
            if before is not None and not ahead:
                at = max(target[1] for source, target in alignment.links if source[1] == before)
            else:
                at = min((target[0] for source, target in alignment.links if source[0] == after), default=0)
            places.append((at, number))
        places.sort()
        for each in "%{<":
            same = [index for index, (_, number) in enumerate(places) if kind(self.parts[number]) == each]
            for index, number in zip(same, sorted(places[index][1] for index in same)):
                places[index] = places[index][0], number
        found = []
        for (at, number), following in zip(places, [*places[1:], None]):
            first, end = self.spans[number]
            left = at > 0 and (first == 0 or self.text[first - 1].isspace()) and not text[at - 1].isspace()
            right = at < len(text) and (end == len(self.text) or self.text[end].isspace()) and not text[at].isspace()
            mark = self.text[end : end + 1]  # such as a full stop, which the model put a space before
            last = following is None or following[0] != at
            spaced = last and mark != "" and not mark.isalnum() and text[at : at + 2] == f" {mark}"
            found.append(((at, at + spaced), f"{' ' * left}{self.text[first:end]}{' ' * right}"))
        return Edits(found), [number for _, number in places]


def blanked(text: str, spans: Sequence[Span]) -> str:
    return Edits([((first, end), " " * (end - first)) for first, end in spans])(text)


def is_whole(text: str, first: int, end: int) -> bool:
    """Whether a part is no piece of a longer word, option, path or address."""
    begins = text[first]
    before = BEFORE_SIGN if begins in SIGNS else BEFORE
    if (begins.isalnum() or begins in SIGNS) and first and before.match(text, first - 1):
        return False
    after = AFTER_ADDRESS if text.find("://", first, end) >= 0 else AFTER
    return not (text[end - 1].isalnum() and after.match(text, end))


def of_kind(sign: str, parts: Sequence[str]) -> Iterator[str]:
    return (part for part in parts if kind(part) == sign)


def kind(part: str) -> str:
    """The first character of a part that counts by its order; empty for others."""
    return part[0] if ORDERED.match(part) else ""
