"""File formats: where the text of a file is, and how a translation is written in its place. All other characters stay.

A format is a function in one file of this package, from the characters of a file to its `Span`s. It knows nothing of models.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import PurePath
from types import ModuleType

from specdec_plugins.files.rewriting import Written, meaning, misread, rewrite
from specdec_plugins.files.spans import Span
from specdec_plugins.text.endings import STRUCTURED, ending_of
from specdec_plugins.text.icu import is_message
from specdec_plugins.text.placing import Placed, Unit

MOST = 16_000_000  # bytes of a file, which is held in memory; lines of text are streamed
LONGEST = 1_000_000  # characters of a span
FORMATS = {
    "txt": "lines", "md": "markdown", "html": "html", "htm": "html", "po": "gettext", "xliff": "xliff", "xlf": "xliff",
    "json": "strings", "srt": "subtitles", "vtt": "subtitles", "csv": "tables.commas", "tsv": "tables.tabs",
    "yaml": "yaml", "yml": "yaml", "properties": "properties", "strings": "apple", "strings.xml": "android",
    "docx": "docx", "odt": "odt",
}  # fmt: skip
MARKUP = {"html": "html", "xml": "xml.fragment"}  # the format of texts that are marked up
MESSAGE = "strings.message"  # of texts with ICU's plurals


class Unreadable(ValueError):
    """A file that is not what its name says, or would not be with its translations; ``at`` is the character at fault, or None."""

    def __init__(self, at: int | None, what: str):
        super().__init__(at, what)
        self.at, self.what = at, what

    def where(self, source: str) -> str:
        """The line, to follow the file's name in an error."""
        return "" if self.at is None else f", line {source.count(chr(10), 0, self.at) + 1}"


@dataclass(frozen=True)
class Options:
    """The ``columns`` of tables, by number or name, and ``ignored`` tags, whose content is not translated."""

    columns: Sequence[str] = ()
    ignored: Sequence[str] = ()


def split(names: str | None) -> list[str]:
    """The names of an option, which commas separate."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def format_of(path: str) -> str | None:
    """The format of a file, by its name's ending; None if it is read as lines of text. Raises ValueError for others."""
    name, ending = PurePath(path).name.lower().removesuffix(".gz").removesuffix(".zst"), ending_of(path)
    if "." in name and name in FORMATS:
        return FORMATS[name]
    if ending in STRUCTURED and ending not in FORMATS:
        raise ValueError(
            f"{path}: .{ending} files are not supported; formats are {', '.join(FORMATS)}. To translate each of its lines, "
            "markup and all, give it on standard input, which is plain text"
        )
    return FORMATS.get(ending)


class TextFile:
    """The text of a file: the `Unit`s to translate, and the file with their translations.

    With ``markup``, html or xml, its texts are marked up. Raises Unreadable.
    """

    def __init__(self, source: str, form: str, options: Options, markup: str | None = None):
        self.source, self.form, self.options = source, form, options
        self.found = all_spans(source, form, options)
        self.spans = translatable(self.found)
        self.inner = [self._inner(span, options, markup) for span in self.spans]

    def _inner(self, span: Span, options: Options, markup: str | None) -> "TextFile | None":
        """A text that has spans of its own."""
        form, rest = span.form, markup if span.form else None
        if not form and not span.marks:
            form = MARKUP[markup] if markup else MESSAGE if not span.whole and is_message(span.text) else None
        with placed_at(span):
            return TextFile(span.text, form, options, rest) if form else None

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

        None, or an empty translation, leaves a text as it is. Raises Unreadable for one that would be read differently.
        """
        rest, whole = iter(placed), list[Placed | None]()
        for span, inner in zip(self.spans, self.inner):
            own = list(islice(rest, len(inner.units) if inner else 1))
            if inner and own and None not in own:
                with placed_at(span):
                    text = inner.translated(own)
                confidence = min((each.confidence for each in own if each), default=1.0)
                missing = [part for each in own if each for part in each.missing]
                same = text == inner.source and any(each.same for each in own if each)
                own = [Placed([text], text != inner.source, confidence, missing=missing, same=same)]
            whole.append(own[0] if own and None not in own else None)
        placements = [(span, arranged(span, each)) for span, each in zip(self.spans, whole) if each]
        empty = {span.top for span, each in placements if not meaning(span, each).strip()}
        changed = [(span, each) for span, each in placements if (each.changed or span.always) and span.top not in empty]
        text, written, meant = rewrite(self.source, changed, least)
        if changed:
            self._check(text, written, meant)
        return text

    def _check(self, text: str, written: Sequence[Written], meant: Mapping[tuple[int, int], str]) -> None:
        """Read a file with translations again. Raises Unreadable, with the character of the source, if it says anything else."""
        try:
            after = readable(text, self.form, self.options)
        except Unreadable as error:
            at = max((each.span.start for each in written if each.start <= (error.at or 0)), default=written[0].span.start)
            raise Unreadable(at, f"with its translations the file would be damaged ({error.what})") from None
        before = readable(self.source, self.form, self.options) if has_written(self.form) else self.found
        if fault := misread(before, after, written, meant):
            raise Unreadable(*fault)


def arranged(span: Span, placed: Placed) -> Placed:
    return replace(placed, pieces=span.arrange(placed.pieces)) if span.arrange else placed


@contextmanager
def placed_at(span: Span) -> Iterator[None]:
    """Errors of a text that has spans of its own are at its place in the file."""
    try:
        yield
    except Unreadable as error:
        raise Unreadable(span.start, error.what) from None


def translatable(spans: Iterable[Span]) -> list[Span]:
    return [span for span in spans if span.always or has_letters(span)]


def all_spans(source: str, form: str, options: Options, function: str = "") -> list[Span]:
    """What a format's function finds, in order; those around others first. Raises Unreadable."""
    found = getattr(module_of(form), function or form.partition(".")[2] or "spans")(source, options)
    spans = sorted(found, key=lambda span: (span.start, -span.end))
    for span in spans:
        if len(span.text) > LONGEST:
            raise Unreadable(span.start, f"a text of over {LONGEST:,} characters")
    return spans


def readable(source: str, form: str, options: Options) -> list[Span]:
    """All texts of a file, translated ones too: what ``written`` finds, in formats whose ``spans`` lack a translation."""
    return all_spans(source, form, options, "written" if has_written(form) else "")


def has_written(form: str) -> bool:
    return "." not in form and hasattr(module_of(form), "written")


def module_of(form: str) -> ModuleType:
    return import_module(f"specdec_plugins.files.{form.partition('.')[0]}")


def has_letters(span: Span) -> bool:
    """Whether a text has a letter that no tag replaces."""
    at, parts = 0, list[str]()
    for mark in span.marks:
        parts.append(span.text[at : mark.start])
        at = mark.end
    return any(map(str.isalpha, "".join([*parts, span.text[at:]])))
