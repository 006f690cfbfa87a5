"""Java properties: the values. Keys, comments and separators stay.

Some programs read these files as Latin-1, others as UTF-8. In a file that does not tell, new letters are written as \\uXXXX.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Token, message_spans, spelled
from specdec_plugins.files.values import is_prose
from specdec_plugins.text.icu import Reader, is_message
from specdec_plugins.text.lines import refuse_nul

BLANK = re.compile(r"[ \t\f\r\n]*")
COMMENT = re.compile(r"[#!][^\r\n]*")
MORE = r"\\(?:\r\n?|\n)[ \t\f]*"  # where a line continues
LINE = re.compile(rf"(?:[^\\\r\n]+|{MORE}|\\[^\r\n]|\\\Z)*+")
KEY = re.compile(rf"(?:[^\\ \t\f\r\n:=]+|{MORE}|\\[^\r\n])++|(?=[:=])")
SEPARATOR = re.compile(rf"(?:[ \t\f]|{MORE})*+(?:[:=](?:[ \t\f]|{MORE})*+)?")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(\r\n?|\n)[ \t\f]*|(.)|\Z)", re.DOTALL)
LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
SPELLED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"})
ARGUMENT = re.compile(r"\{\s*\d+\s*[,}]")  # of MessageFormat
MESSAGE = "properties.message"


def decoded(data: bytes) -> tuple[Callable[[str], bytes], str]:
    """The text, as UTF-8 where it is that, otherwise as Latin-1, in which every file is text. Raises ValueError."""
    encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "ascii" if data.isascii() else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding, text = "latin-1", data.decode("latin-1")
    refuse_nul(text)
    most = {"ascii": 0x7F, "latin-1": 0xFF}.get(encoding)
    return partial(encoded, encoding=encoding, most=most), text


def encoded(text: str, encoding: str, most: int | None) -> bytes:
    if most is not None:
        text = "".join(each if ord(each) <= most else units(each) for each in text)
    return text.encode(encoding)


def units(character: str) -> str:
    """A character as Java's escapes, two where it is beyond U+FFFF."""
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def spans(source: str, options: Options) -> Iterator[Span]:
    return (span for span in written(source, options) if is_prose(span.text))


def written(source: str, options: Options) -> Iterator[Span]:
    """All values."""
    at = 0
    while (at := BLANK.match(source, at).end()) < len(source):  # type: ignore[union-attr]
        if comment := COMMENT.match(source, at):
            at = comment.end()
            continue
        if not (key := KEY.match(source, at)):
            raise Unreadable(at, "not a line of a properties file")
        value(source, at, key.end())  # refuses what Java does
        start, end = SEPARATOR.match(source, key.end()).end(), LINE.match(source, at).end()  # type: ignore[union-attr]
        text = value(source, start, end)
        form = MESSAGE if ARGUMENT.search(text) and not is_message(text) and is_formatted(text) else None
        yield Span(start, end, text, partial(spelled, table=SPELLED), write=begun, lines=True, form=form)
        at = end


def value(source: str, start: int, end: int) -> str:
    """What the characters of a value mean. Raises Unreadable."""

    def meaning(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[3] == "u":
            raise Unreadable(start + match.start(), "\\u without four hexadecimal digits")
        return LETTERS.get(match[3], match[3]) if match[3] else ""

    text = ESCAPE.sub(meaning, source[start:end])
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")  # pairs of \u are one character
    except UnicodeDecodeError:
        raise Unreadable(start, "\\u of half a character") from None


def begun(text: str, doubtful: bool) -> str:
    """A value; its first space would belong to the separator."""
    return "\\" + text if text.startswith(" ") else text


def is_formatted(text: str) -> bool:
    """Whether apostrophes quote, as they do for MessageFormat: none stands between two letters by itself."""
    return re.search(r"\w'\w", text) is None


def message(source: str, options: Options) -> Iterator[Span]:
    """The span of a text with arguments, in which '' is an apostrophe."""
    reader = Reader(source)
    try:
        reader.message(0, 0, "")
    except ValueError:
        return
    own = [Token("text", at, at + 1, character) for at, character in enumerate(source)]
    for span in message_spans(source, own, reader.found, {}, doubled=True):
        yield replace(span, lines=True)
