"""Strings files of iOS and macOS: ``"key" = "value";`` in UTF-8 or UTF-16. The values are translated."""

import codecs
import re
from collections.abc import Callable, Iterator
from functools import partial

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import spelled
from specdec_plugins.text.lines import decoded as utf8
from specdec_plugins.text.lines import refuse_nul

SKIPPED = re.compile(r"(?:\s+|//[^\r\n]*|/\*.*?\*/)*+", re.DOTALL)
STRING = re.compile(r'"((?:[^"\\]+|\\.)*+)"', re.DOTALL)
WORD = re.compile(r"[\w$./:-]+")  # what needs no quotes
ESCAPE = re.compile(r"\\(?:[Uu]([0-9a-fA-F]{4})|([0-7]{1,3})|(.))", re.DOTALL)
LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": "\n"}
SPELLED = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\r": "\\r"}
UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def decoded(data: bytes) -> tuple[Callable[[str], bytes], str]:
    """The text of a file, by its byte order mark, and what encodes it. Raises ValueError."""
    if data.startswith(b"bplist"):
        raise ValueError("line 1: compiled; convert it with plutil -convert strings")
    mark = data[:2]
    if (encoding := UTF_16.get(mark)) is None:
        first, text = utf8(data)
        return lambda text: (first + text).encode(), text
    try:
        text = data[2:].decode(encoding)
    except UnicodeDecodeError as error:
        line = data[2 : error.start + 2].decode(encoding, "replace").count("\n") + 1
        raise ValueError(f"line {line}: not UTF-16") from None
    refuse_nul(text)
    return lambda text: mark + text.encode(encoding), text


def spans(source: str, options: Options) -> Iterator[Span]:
    at = skipped(source, 0)
    while at < len(source):
        key = STRING.match(source, at) or WORD.match(source, at)
        if not key:
            raise Unreadable(at, 'not a strings file: a line is "key" = "value";')
        at = skipped(source, key.end())
        if source.startswith("=", at):
            at = skipped(source, at + 1)
            if not (value := STRING.match(source, at) or WORD.match(source, at)):
                raise Unreadable(at, "not a strings file: a key has no value in quotes, or its quotes are not closed")
            if value[0].startswith('"'):
                table = str.maketrans(SPELLED | ({} if "\n" in value[1] and "\\n" not in value[1] else {"\n": "\\n"}))
                yield Span(value.start(1), value.end(1), meaning(value), partial(spelled, table=table), lines=True)
            at = skipped(source, value.end())
        if not source.startswith(";", at):
            raise Unreadable(key.start(), "not a strings file: no ; ends the line")
        at = skipped(source, at + 1)


def skipped(source: str, at: int) -> int:
    """The end of white space and comments."""
    end = SKIPPED.match(source, at).end()  # type: ignore[union-attr]
    if source.startswith("/*", end):
        raise Unreadable(end, "a comment is not closed")
    return end


def meaning(value: re.Match[str]) -> str:
    """What the characters of a string mean. Raises Unreadable."""

    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return chr(int(match[2], 8)) if match[2] else LETTERS.get(match[3], match[3])

    text = ESCAPE.sub(character, value[1])
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Unreadable(value.start(), "\\U of half a character") from None
