"""File formats: where the text of a file is, and how a translation is written in its place. All other characters stay.

A format is a function in one file of this package, from the characters of a file to its `Span`s. It knows nothing of models.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import PurePath

from specdec_plugins.text.icu import is_message
from specdec_plugins.text.placing import Mark, Placed, Unit

MOST = 16_000_000  # bytes of a file, which is held in memory; lines of text are streamed
LONGEST = 1_000_000  # characters of a span
FORMATS = {
    "txt": "lines", "md": "markdown", "html": "html", "htm": "html", "po": "gettext", "xliff": "xliff", "xlf": "xliff",
    "json": "strings", "srt": "subtitles", "vtt": "subtitles", "csv": "tables.commas", "tsv": "tables.tabs",
}  # fmt: skip
CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # what XML cannot hold, and models write for unknown letters
COMPRESSED = (".gz", ".zst")
MARKUP = {"html": "html", "xml": "xml.fragment"}  # the format of texts that are marked up
MESSAGE = "strings.message"  # of texts with ICU's plurals


class Unreadable(ValueError):
    """A file that is not what its name says; ``at`` is the character at fault, or None."""

    def __init__(self, at: int | None, what: str):
        super().__init__(at, what)
        self.at, self.what = at, what


@dataclass(frozen=True)
class Span:
    """The characters ``start`` to ``end`` of a file, which a translation of ``text`` replaces.

    ``escape`` spells text as the file does. ``marks`` are inline tags, and ``places`` the characters of the file that they are.
    ``write`` makes the replacement from the translation so spelled, told whether it needs review. Unless it is ``always``
    written, a translation equal to its text changes nothing. ``whole`` and ``lines`` are those of `Unit`. If the text needs
    review, the span that starts at ``marked`` says so. A text may be of a ``form``, as a file is.
    """

    start: int
    end: int
    text: str
    escape: Callable[[str], str] = str
    marks: Sequence[Mark] = ()
    places: Sequence[tuple[int, int]] = ()
    write: Callable[[str, bool], str] = lambda text, doubtful: text
    always: bool = False
    whole: bool = False
    lines: bool = False
    marked: int | None = None
    form: str | None = None


@dataclass(frozen=True)
class Options:
    """The ``columns`` of tables, by number or name, and ``ignored`` tags, whose content is not translated."""

    columns: Sequence[str] = ()
    ignored: Sequence[str] = ()


def split(names: str | None) -> list[str]:
    """The names of an option, which commas separate."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def format_of(path: str) -> str | None:
    """The format of a file, by its name without the endings of compression; None if it is read as lines of text."""
    name = PurePath(path)
    name = name.with_suffix("") if name.suffix in COMPRESSED else name
    return FORMATS.get(name.suffix[1:].lower())


class TextFile:
    """The text of a file: the `Unit`s to translate, and the file with their translations.

    With ``markup``, html or xml, its texts are marked up. Raises Unreadable.
    """

    def __init__(self, source: str, form: str, options: Options, markup: str | None = None):
        self.source, self.spans = source, find_spans(source, form, options)
        self.inner = [self._inner(span, options, markup) for span in self.spans]

    def _inner(self, span: Span, options: Options, markup: str | None) -> "TextFile | None":
        """A text that has spans of its own."""
        form, rest = span.form, markup if span.form else None
        if not form and not span.marks:
            form = MARKUP[markup] if markup else MESSAGE if not span.whole and is_message(span.text) else None
        try:
            return TextFile(span.text, form, options, rest) if form else None
        except Unreadable as error:
            raise Unreadable(span.start, error.what) from None

    @property
    def units(self) -> list[Unit]:
        units = list[Unit]()
        for span, inner in zip(self.spans, self.inner):
            units += inner.units if inner else [Unit(span.text, span.marks, span.whole, span.lines)]
        return units

    def lines(self) -> list[int]:
        """The line of each unit."""
        ends = [match.start() for match in re.finditer("\n", self.source)]
        counts = [len(inner.units) if inner else 1 for inner in self.inner]
        return [bisect_left(ends, span.start) + 1 for span, count in zip(self.spans, counts) for _ in range(count)]

    def translated(self, placed: Sequence[Placed | None], least: float = 0.0) -> str:
        """The file with the translation of each unit; those of less confidence than ``least`` are marked where the format can.

        None leaves a text as it is.
        """
        rest, whole = iter(placed), list[Placed | None]()
        for inner in self.inner:
            own = list(islice(rest, len(inner.units) if inner else 1))
            if inner and own and None not in own:
                text = inner.translated(own)
                confidence = min((each.confidence for each in own if each), default=1.0)
                own = [Placed([text], text != inner.source, confidence)]
            whole.append(own[0] if own and None not in own else None)
        return rewrite(self.source, zip(self.spans, whole), least)


def find_spans(source: str, form: str, options: Options) -> list[Span]:
    """The spans of a file, in order; those around others first."""
    module, _, function = form.partition(".")
    found = getattr(import_module(f"specdec_plugins.files.{module}"), function or "spans")(source, options)
    spans = sorted(found, key=lambda span: (span.start, -span.end))
    for span in spans:
        if len(span.text) > LONGEST:
            raise Unreadable(span.start, f"a text of over {LONGEST:,} characters")
    return spans


def rewrite(source: str, translated: Iterable[tuple[Span, Placed | None]], least: float) -> str:
    """The file with its translations. They come as `find_spans` returns the spans."""
    changed = [(span, placed) for span, placed in translated if placed and (placed.changed or span.always)]
    starts = [span.start for span, _ in changed]
    doubtful = {span.start if span.marked is None else span.marked for span, placed in changed if placed.confidence < least}

    def piece(span: Span, each: str | int) -> str:
        if isinstance(each, int):
            return patched(*span.places[each])
        clean = CONTROL.sub("", each)
        return span.escape(clean if clean == each or not CONTROL.search(span.text) else each)

    def patched(start: int, end: int) -> str:
        """Part of the file with the spans in it, and those in their tags."""
        parts, at = list[str](), start
        for span, placed in changed[bisect_left(starts, start) : bisect_left(starts, end)]:
            if at <= span.start and span.end <= end:
                text = "".join(piece(span, each) for each in placed.pieces)
                parts += [source[at : span.start], span.write(text, span.start in doubtful)]
                at = span.end
        return "".join([*parts, source[at:end]])

    text = patched(0, len(source) + 1)
    changed.clear()  # the functions above refer to each other, so they and it would be cyclic garbage
    return text
