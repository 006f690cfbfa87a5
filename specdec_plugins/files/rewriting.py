"""Writes translations into a file, and reads the result again: its texts must be what was meant, and nothing else may change."""

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from specdec_plugins.files.spans import Span
from specdec_plugins.text.placing import Placed

CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # what XML cannot hold, and models write for unknown letters
SPACE = " \t\n\r\f"  # of markup
SHOWN = 60  # characters of a translation in an error
Place = tuple[int, int]


@dataclass(frozen=True)
class Written:
    """A span outside all others whose text was replaced: the characters ``start`` to ``end`` of the new file."""

    span: Span
    start: int
    end: int


def rewrite(
    source: str, changed: Sequence[tuple[Span, Placed]], least: float
) -> tuple[str, Sequence[Written], Mapping[Place, str]]:
    """The file with its translations, where those are in it, and what each means, by the place of its span.

    The spans come in order, those around others first.
    """
    text, written = Rewriter(source, changed, least).patched(0, len(source) + 1)
    return text, written, {(span.start, span.end): meaning(span, placed) for span, placed in changed}


class Rewriter:
    def __init__(self, source: str, changed: Sequence[tuple[Span, Placed]], least: float):
        self.source, self.changed, self.starts = source, changed, [span.start for span, _ in changed]
        self.doubtful = {span.top for span, placed in changed if placed.confidence < least or placed.missing or placed.same}

    def patched(self, start: int, end: int) -> tuple[str, list[Written]]:
        """Part of the file with the spans in it, and those in their tags."""
        parts, at, size, found = list[str](), start, 0, list[Written]()
        for span, placed in self.changed[bisect_left(self.starts, start) : bisect_left(self.starts, end)]:
            if at <= span.start and span.end <= end:
                text = span.write("".join(self._piece(span, each) for each in placed.pieces), span.start in self.doubtful)
                parts += [self.source[at : span.start], text]
                size += span.start - at + len(text)
                found.append(Written(span, size - len(text), size))
                at = span.end
        return "".join([*parts, self.source[at:end]]), found

    def _piece(self, span: Span, each: str | int) -> str:
        return self.patched(*span.places[each])[0] if isinstance(each, int) else span.escape(cleaned(span, each))


def cleaned(span: Span, text: str) -> str:
    """A translation without control characters, unless its source has some."""
    return text if CONTROL.search(span.text) else CONTROL.sub("", text)


def meaning(span: Span, placed: Placed) -> str:
    """The text of a translation, with what its tags replace; nothing if it has only tags."""
    texts = [span.text[mark.start : mark.end] for mark in span.marks]
    found = [texts[each] if isinstance(each, int) else cleaned(span, each) for each in placed.pieces]
    own = not texts or any(isinstance(each, str) and text.strip(SPACE) for each, text in zip(placed.pieces, found))
    return "".join(found) if own else ""


def misread(
    before: Sequence[Span], after: Sequence[Span], written: Sequence[Written], meant: Mapping[Place, str]
) -> tuple[int, str] | None:
    """Where and why the new file would not be read as it was meant; None if all is well.

    ``before`` and ``after`` are what can be read in the source and in the new file. A text must be what was ``meant``, and the
    others must be there as they were.
    """
    olds, news = [(each.span.start, each.span.end) for each in written], [(each.start, each.end) for each in written]
    shifts = [0, *(new - old for (_, old), (_, new) in zip(olds, news))]
    ends = [end for _, end in olds]
    inside, outside = divided(before, olds)
    found, others = divided(after, news)
    for each, own, texts in zip(written, inside, found):
        place = each.span.start, each.span.end
        nested = [] if each.span.always else [span for span in own if (span.start, span.end) != place]
        wanted = [each.span.reads(meant[place]), *(span.reads(meant.get((span.start, span.end), span.text)) for span in nested)]
        read = [span.reads(span.text) for span in texts]
        if readings(wanted, each.span.lines) != readings(read, each.span.lines):
            return each.span.start, f"the translation {shown(wanted)} cannot be written here, it would be read as {shown(read)}"

    def moved(at: int) -> int:
        return at + shifts[bisect_right(ends, at)]

    kept = [(moved(span.start), moved(span.end), span.text) for span in outside]
    read_again = [(span.start, span.end, span.text) for span in others]
    for one, other in zip_longest(kept, read_again, fillvalue=(sys.maxsize, 0, "")):
        if one != other:
            index = max(0, bisect_left(news, (min(one[0], other[0]), 0)) - 1)
            return olds[index][0], f"the translation {shown([meant[olds[index]]])} would change how the text after it is read"
    return None


def divided(spans: Sequence[Span], places: Sequence[Place]) -> tuple[list[list[Span]], list[Span]]:
    """The spans in each of the places, and the others."""
    inside, outside = [list[Span]() for _ in places], list[Span]()
    for span in spans:
        index = bisect_right(places, (span.start, sys.maxsize)) - 1
        (inside[index] if index >= 0 and span.end <= places[index][1] else outside).append(span)
    return inside, outside


def readings(texts: Iterable[str], exact: bool) -> list[str]:
    """Texts to be compared, in any order: tags move. White space around them does not count, and within them it is a space unless
    they are ``exact``. Apostrophes of messages may be typographic."""
    straight = (text.replace("’", "'") for text in texts)
    return sorted(text.strip() if exact else " ".join(text.split()) for text in straight)


def shown(texts: Iterable[str]) -> str:
    text = " | ".join(texts)
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…") if text else "nothing"
