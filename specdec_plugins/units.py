"""Translates texts with inline tags: sentence by sentence, without the tags, which are then put around their words."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.placing import Aligned, Mark, Pieces, Placed, Unit, place, unmoved
from specdec_plugins.text.sentences import sentence_spans
from specdec_plugins.text.words import Span
from specdec_plugins.translations import SourceTooLong, Translation

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

LONGEST = 150  # words of a sentence; a longer one is split at a clause, where the model reads so many
WORD = re.compile(r"\w+|[^\w\s]")
SPACES = {ord(character): " " for character in "\t\n\r\f\v"}


@dataclass(frozen=True)
class Part:
    """A sentence, or the characters between two, which are not translated. Its marks come with their indices in the unit."""

    text: str
    marks: Sequence[tuple[int, Mark]]
    sentence: bool


def translate_units(translator: "Translator", units: Sequence[Unit], **choices: Any) -> list[Placed | None]:
    """Translate units; None where a sentence was too long and skipped. Raises SourceTooLong with the unit's index."""
    lang = choices.get("source_lang") or translator.pair.config.source_lang
    language, most = two_letters(lang) or lang, min(LONGEST, translator.max_source // 3)
    windows = translator.settings.windows is not None
    split = [list(parts_of(unit, language, most, unit.whole or windows)) for unit in units]
    owners = [number for number, parts in enumerate(split) for part in parts if part.sentence]
    texts = [part.text.translate(SPACES) for parts in split for part in parts if part.sentence]
    try:
        results = iter(translator.translate(texts, **choices))
    except SourceTooLong as error:
        raise SourceTooLong(owners[error.index], *error.args[1:]) from None
    return [placed(parts, [next(results) for part in parts if part.sentence]) for parts in split]


def parts_of(unit: Unit, language: str, most: int, whole: bool) -> Iterator[Part]:
    """The sentences of a unit and what is between them; as one sentence if ``whole``."""
    text, marks = unit.text, list(enumerate(unit.marks))
    trimmed = (len(text) - len(text.lstrip()), len(text.rstrip()))
    found = [trimmed] if whole and text.strip() else list(sentence_spans(text, language, most))
    spans: list[Span] = []
    for start, end in found:
        if spans and any(mark.start < start and mark.end > spans[-1][1] for mark in unit.marks):  # code holds the end of one
            start = spans.pop()[0]
        spans.append((start, end))
    owners: list[int] = []
    for _, mark in marks:
        owners.append(max([owner_of(mark, spans, mark.partner in range(len(owners))), *owners[-1:]]))
    at = 0
    for number, (start, end) in enumerate(spans):
        yield Part(text[at:start], [], False)
        own = [(index, shifted(mark, start, end)) for (index, mark), owner in zip(marks, owners) if owner == number]
        yield Part(text[start:end], own, unit.whole or has_letters(text[start:end], own))
        at = end
    yield Part(text[at:], [] if spans else marks, False)


def owner_of(mark: Mark, spans: Sequence[Span], closes: bool) -> int:
    """The sentence of a tag. One that closes belongs to what is before it, others to what follows unless they touch it."""
    if closes:
        return max((number for number, (start, _) in enumerate(spans) if start < mark.start), default=0)
    opens = mark.partner is not None
    return next((number for number, (_, end) in enumerate(spans) if mark.start + opens <= end), max(0, len(spans) - 1))


def shifted(mark: Mark, start: int, end: int) -> Mark:
    """A tag's place in the sentence from ``start`` to ``end``."""
    first, last = (min(max(at, start), end) - start for at in (mark.start, mark.end))
    return Mark(first, last, mark.partner)


def has_letters(text: str, marks: Sequence[tuple[int, Mark]]) -> bool:
    """Whether text that tags do not replace has a letter."""
    return any(isinstance(piece, str) and any(map(str.isalpha, piece)) for piece in unmoved(text, marks))


def placed(parts: Sequence[Part], results: Sequence[Translation]) -> Placed | None:
    """A unit's translation from those of its sentences."""
    pieces: Pieces = []
    changed, confidence, rest = False, 1.0, iter(results)
    for part in parts:
        result = next(rest) if part.sentence else None
        if result is not None and result.shortened and not result.source_tokens:
            return None
        if result is None or result.text.split() == part.text.split():
            pieces += unmoved(part.text, part.marks)
        else:
            changed = True
            pieces += place(part.text, part.marks, diagonal(part.text, result.text)) if part.marks else [result.text]
        if result is not None and result.token_scores:
            confidence = min(confidence, math.exp(sum(result.token_scores) / len(result.token_scores)))
    return Placed(pieces, changed, confidence)


def diagonal(source: str, text: str) -> Aligned:
    """A translation whose words correspond to those of the source in order, for want of an alignment."""
    own, words = ([match.span() for match in WORD.finditer(each)] for each in (source, text))
    return Aligned(text, own, words, [(number * len(own) // len(words), number) for number in range(len(words) if own else 0)])
