"""Translates texts with inline tags: sentence by sentence, without the tags, which are then put around their words."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec_plugins.interfaces import Translates
from specdec_plugins.text.alignment import words_of
from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.patterns import pattern
from specdec_plugins.text.placing import Aligned, Mark, Pieces, Placed, Unit, place, unmoved
from specdec_plugins.text.protected import Protected
from specdec_plugins.text.sentences import outlined, sentence_spans
from specdec_plugins.text.words import Span
from specdec_plugins.translations import SourceTooLong, Translation

LONGEST = 150  # words of a sentence; a longer one is split at a clause, where the model reads so many
WRAPPED = 50  # characters of a line that may have been wrapped within a sentence
PLACEHOLDERS = pattern()
SPACES = {ord(character): " " for character in "\t\n\r\f\v"}


@dataclass(frozen=True)
class Part:
    """A sentence, or the characters between two, which are not translated. Its marks come with their indices in the unit.
    A sentence has as many ``lines`` as its translation should have."""

    text: str
    marks: Sequence[tuple[int, Mark]]
    sentence: bool
    whole: bool = False
    lines: int = 1


def translate_units(
    translator: Translates, units: Sequence[Unit], placeholders: bool = True, **choices: Any
) -> list[Placed | None]:
    """Translate units; None where a sentence was too long and skipped. Raises SourceTooLong with the unit's index.

    ``placeholders``: protect what `PLACEHOLDERS` matches, except in units that are whole.
    """
    lang = choices.get("source_lang") or translator.engine.pair.config.source_lang
    language, most = two_letters(lang) or lang, min(LONGEST, translator.max_source // 3)
    settings = translator.engine.settings
    windows = settings.windows is not None
    if windows and not all(unit.whole for unit in units):
        raise ValueError("windows are for lines of plain text, not for marked-up text or files of other formats")
    aligns = not windows and settings.strategy in ("specdec", "ar")
    protects = aligns and settings.drawn == 1 and not settings.sampling
    split = list[list[Part]]()
    for unit in units:
        translator.engine.give_way()
        split.append(list(parts_of(unit, language, most)))
    sentences = [(number, part) for number, parts in enumerate(split) for part in parts if part.sentence]
    results: dict[int, Translation] = {}
    faults: list[SourceTooLong] = []
    for tags in (False, True):  # those without are not aligned, which takes time
        chosen = [n for n, (_, part) in enumerate(sentences) if bool(part.marks) == tags]
        parts = [sentences[n][1] for n in chosen]
        choices |= {"alignments": True} if tags and aligns else {}
        choices |= {"protected": [protected(part, placeholders) for part in parts]} if protects else {}
        try:
            found = translator.translate([part.text.translate(SPACES) for part in parts], **choices) if chosen else []
        except SourceTooLong as error:
            faults.append(SourceTooLong(sentences[chosen[error.index]][0], *error.args[1:]))
            continue
        results |= zip(chosen, found)
    if faults:
        raise min(faults, key=lambda fault: fault.index)
    ordered = (results[n] for n in range(len(sentences)))
    done: list[Placed | None] = []
    for parts in split:
        translator.engine.give_way()
        done.append(placed(parts, [next(ordered) for part in parts if part.sentence], protects and placeholders))
    return done


def translate_first_units(
    translator: Translates, units: Sequence[Unit], **choices: Any
) -> tuple[list[Placed | None], SourceTooLong | None]:
    """The translations of the units up to the first that is too long, and the error for that."""
    try:
        return translate_units(translator, units, **choices), None
    except SourceTooLong as error:
        return translate_units(translator, units[: error.index], **choices), error


def protected(part: Part, placeholders: bool) -> list[Span] | None:
    """What a translation must contain unchanged: text that tags replace, and ``placeholders``, except in lines of plain text.

    None where it need not keep numbers either.
    """
    code = [(mark.start, mark.end) for _, mark in part.marks if mark.start < mark.end]
    if part.whole or not placeholders:
        return code or None
    return code + [match.span() for match in PLACEHOLDERS.finditer(part.text)]


def parts_of(unit: Unit, language: str, most: int) -> Iterator[Part]:
    """The sentences of a unit and what is between them."""
    text, marks = unit.text, list(enumerate(unit.marks))
    trimmed = (len(text) - len(text.lstrip()), len(text.rstrip()))
    found = [trimmed] if unit.whole and text.strip() else []
    code = [(mark.start, mark.end) for mark in unit.marks if mark.start < mark.end]
    links = [(mark.start, unit.marks[mark.partner].start) for n, mark in marks if mark.link and mark.partner and mark.partner > n]
    names = [] if unit.whole else [match.span() for match in PLACEHOLDERS.finditer(text)]
    outline = text if unit.whole else outlined(text, code + names, links)
    for start, line in () if unit.whole else lines_of(text) if unit.lines else [(0, text)]:
        sentences = sentence_spans(outline[start : start + len(line)], language, most)
        found += [(start + first, start + last) for first, last in sentences]
    ends = [end for _, end in code]
    spans: list[Span] = []
    for start, end in found:
        over = code[(at := bisect_right(ends, spans[-1][1])) : at + 1] if spans else []
        if over and over[0][0] < start:  # code that holds the end of a line
            start = spans.pop()[0]
        spans.append((start, end))
    owners: list[float] = []
    for number, mark in marks:
        owners.append(max([owner_of(mark, spans, mark.partner is not None and mark.partner < number), *owners[-1:]]))

    def owned(owner: float, start: int, end: int) -> list[tuple[int, Mark]]:
        own = marks[bisect_left(owners, owner) : bisect_right(owners, owner)]
        return [(index, shifted(mark, start, end)) for index, mark in own]

    at = 0
    for number, (start, end) in enumerate(spans):
        yield Part(text[at:start], owned(number - 0.5, at, start), False)
        own = owned(number, start, end)
        lines = 1 + text.count("\n", start, end) * unit.lines
        yield Part(text[start:end], own, unit.whole or has_letters(text[start:end], own), unit.whole, lines)
        at = end
    yield Part(text[at:], [] if spans else marks, False)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The parts of a text between line breaks and tabs, each with the place of its first character. A wrapped line includes the
    next: one that continues in lower case, or is long and ends without punctuation."""
    start = 0
    for match in re.finditer(r"\n\s*|\t+", text):
        line, following = text[start : match.start()], text[match.end() : match.end() + 1]
        long = len(line) - line.rfind("\n") > WRAPPED
        wrapped = following.islower() or (long and line[-1].isalnum() and following.isalnum())
        if match[0] != "\n" or not wrapped:
            yield start, line
            start = match.end()
    yield start, text[start:]


def owner_of(mark: Mark, spans: Sequence[Span], closes: bool) -> float:
    """The sentence of a tag. One that closes belongs to what is before it, others to what follows unless they touch it.

    One that stands alone in the white space before sentence ``n`` belongs to that: ``n - 0.5``.
    """
    if closes:
        return max(0, bisect_left(spans, (mark.start, 0)) - 1)
    opens = mark.partner is not None
    found = min(bisect_left(spans, mark.start + opens, key=lambda span: span[1]), max(0, len(spans) - 1))
    return found - 0.5 if found and not opens and mark.end < spans[found][0] else found


def shifted(mark: Mark, start: int, end: int) -> Mark:
    """A tag's place in the sentence from ``start`` to ``end``."""
    first, last = (min(max(at, start), end) - start for at in (mark.start, mark.end))
    return Mark(first, last, mark.partner)


def has_letters(text: str, marks: Sequence[tuple[int, Mark]]) -> bool:
    """Whether text that tags do not replace has a letter."""
    return any(isinstance(piece, str) and any(map(str.isalpha, piece)) for piece in unmoved(text, marks))


def source_of(part: Part) -> Protected:
    return Protected.of(part.text, None if part.whole else PLACEHOLDERS, protected(part, False))


def lost(part: Part, text: str) -> list[str]:
    """The placeholders of a sentence that a translation lacks; text that tags replace comes with these."""
    code = protected(part, False) or []
    damaged = source_of(part).damaged(text)
    return [part.text[first:end] for first, end in damaged if not any(start < end and first < stop for start, stop in code)]


def placed(parts: Sequence[Part], results: Sequence[Translation], kept: bool) -> Placed | None:
    """A unit's translation from those of its sentences; ``kept``: these have all placeholders."""
    pieces: Pieces = []
    missing, same = list[str](), False
    changed, confidence, rest = False, 1.0, iter(results)
    for part in parts:
        result = next(rest) if part.sentence else None
        if result is not None and result.shortened and not result.source_tokens:
            return None
        if result is None or result.text.split() == part.text.split():
            pieces += unmoved(part.text, part.marks)
        else:
            changed = True
            result = replace(result, text=wrapped(result.text, part.lines))
            pieces += place(part.text, part.marks, aligned(part.text, result)) if part.marks else [result.text]
        if result is not None:
            confidence = min(confidence, 1.0 if result.confidence is None else result.confidence)
            missing += [*result.missing_numbers, *lost(part, result.text) * (not kept)]
            same = same or (not changed and any(map(str.isalpha, source_of(part).rest)))
    unplaced = [term for result in results for term in result.unplaced]
    return Placed(pieces, changed, confidence, unplaced, missing, same and not changed)


def wrapped(text: str, lines: int) -> str:
    """The text in so many lines of about equal length, or as many as it has words; of the same characters otherwise."""
    spaces = [match.start() for match in re.finditer(r"(?<=\S) (?=\S)", text)] if lines > 1 else []
    for number in range(1, min(lines, len(spaces) + 1)):
        at = min(spaces, key=lambda space: abs(space * lines - len(text) * number))
        spaces.remove(at)
        text = f"{text[:at]}\n{text[at + 1 :]}"
    return text


def aligned(source: str, result: Translation) -> Aligned:
    """A translation with its alignment; without one, of windows or another strategy, words correspond in order."""
    if (known := result.alignment) is not None:
        text = result.text
        words = [(end - len(text[start:end].lstrip()), end) for start, end in known.target]  # a part put back has its space
        return Aligned(text, known.source, [(start, start + len(text[start:end].rstrip())) for start, end in words], known.pairs)
    own, words = words_of(source), words_of(result.text)
    return Aligned(result.text, own, words, [(n * len(own) // len(words), n) for n in range(len(words) if own else 0)])
