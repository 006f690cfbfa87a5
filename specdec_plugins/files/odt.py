"""ODT: the paragraphs and headings of the document, its headers and footers, its notes and comments."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Token, span_of
from specdec_plugins.files.packages import Package
from specdec_plugins.files.xml import closings, namespace, tokens

TYPE = b"application/vnd.oasis.opendocument.text"
NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
MANIFEST = "META-INF/manifest.xml"
PARAGRAPHS = ("text:p", "text:h")
INLINE = frozenset(["text:span", "text:a", "text:meta"])
BREAKS = frozenset(["text:tab", "text:line-break"])
DELETED = "text:tracked-changes"
NO_FIELDS = frozenset(["text:note", "text:ruby"])  # elements whose text is not part of the sentence
MOST_SPACES = 100  # of one element


def parts(package: Package) -> list[str]:
    """The members that have text."""
    if "mimetype" not in package.members or not package.read("mimetype").startswith(TYPE):
        raise Unreadable(None, "not an ODT file: its type is another")
    if MANIFEST in package.members and b"encryption-data" in package.read(MANIFEST):
        raise Unreadable(None, "encrypted; save it without a password")
    return [name for name in ("content.xml", "styles.xml") if name == "content.xml" or name in package.members]


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    if namespace(found, "text") != NAMESPACE:
        raise Unreadable(0, "not OpenDocument with its usual prefix, text; save the file again with a word processor")
    yield from paragraphs(source, found, closings(found), 0, len(found))


def paragraphs(source: str, found: Sequence[Token], ends: Sequence[int], first: int, last: int) -> Iterator[Span]:
    """The spans of the paragraphs among some tokens."""
    index = first
    while index < last:
        token = found[index]
        if token.kind == "open" and token.name == DELETED:
            index = ends[index]
        elif token.kind == "open" and token.name in PARAGRAPHS:
            yield from paragraph(source, found, ends, index + 1, ends[index])
            index = ends[index]
        index += 1


def paragraph(source: str, found: Sequence[Token], ends: Sequence[int], first: int, last: int) -> Iterator[Span]:
    """The spans of a paragraph, which tabs and line breaks end, and of those in its notes, comments and frames."""
    own, index = list[Token](), first
    while index < last:
        token, end = found[index], ends[index]
        if token.kind == "text":
            own.append(token._replace(text=re.sub(r"\s+", " ", token.text)))
        elif token.kind == "close" or (token.name in INLINE and token.kind == "open"):
            own.append(token)
        elif token.name == "text:s":
            own.append(Token("text", token.start, found[end].end, " " * spaces(token)))
            index = end
        elif token.name in BREAKS:
            yield from spaced(source, own)
            own, index = [], end
        else:
            yield from paragraphs(source, found, ends, index + 1, end)
            shown = "".join(each.text for each in found[index:end]) if token.name.startswith("text:") else ""
            shown = "" if token.name in NO_FIELDS else " ".join(shown.split())
            own.append(Token("kept" if shown else "alone", token.start, found[end].end, shown))
            index = end
        index += 1
    yield from spaced(source, own)


def spaces(token: Token) -> int:
    count = dict(token.attributes).get("text:c") or "1"
    return min(int(count), MOST_SPACES) if count.isascii() and count.isdecimal() and len(count) < 10 else 1


def spaced(source: str, own: Sequence[Token]) -> Iterator[Span]:
    """The span of the tokens, in which several spaces are an element."""
    if span := span_of(source, own):
        yield replace(span, escape=partial(with_spaces, escape=span.escape))


def with_spaces(text: str, escape: Callable[[str], str]) -> str:
    return re.sub(" {2,}", lambda match: f' <text:s text:c="{len(match[0]) - 1}"/>', escape(text))
