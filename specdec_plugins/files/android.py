"""Android's strings.xml: strings, arrays of strings and plurals. What is marked as not translatable stays, as do references."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import unescape

from specdec_plugins.files import Options, Span, Unreadable, html
from specdec_plugins.files.markup import LONGEST_ENTITY, Dialect, Token, spans_of
from specdec_plugins.files.xml import closings, tokens
from specdec_plugins.text.lines import surrogate

LISTS = ("string-array", "plurals")
KEPT = frozenset(["xliff:g"])
REFERENCE = re.compile(r"\s*[@?](?:\+?[\w.:]+/|(?:null|empty)\s*\Z)")
ENTITY = rf"&[^;&\s]{{1,{LONGEST_ENTITY}}};"
ESCAPE = (
    rf"\\u(d[89ab][0-9a-f]{{2}})\\u(d[c-f][0-9a-f]{{2}})|\\u([0-9a-f]{{4}})|\\({ENTITY}|.)"  # first two halves of a character
)
PIECE = re.compile(rf"""{ESCAPE}|{ENTITY}|[ \t\r\n]+|"|[^\\&" \t\r\n]+|.""", re.DOTALL | re.IGNORECASE)
LETTERS = {"n": "\n", "t": "\t"}
SPELLED = {"'": "\\'", '"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
BARE = re.compile(r"(?<!\\)'")
CDATA, CDATA_END = "<![CDATA[", "]]>"


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    root = next((index for index, token in enumerate(found) if token.name), 0)
    if not found or found[root].name != "resources":
        raise Unreadable(0, "not Android's resources; other .xml files are not supported")
    yield from strings(source, found, closings(found), root, options)


def strings(source: str, found: Sequence[Token], ends: Sequence[int], parent: int, options: Options) -> Iterator[Span]:
    """The spans of the strings in an element, and of those in its lists."""
    index = parent + 1
    while index < ends[parent]:
        token, name = found[index], found[index].name
        attributes = dict(token.attributes)
        if attributes.get("translatable") != "false":
            if name in LISTS:
                yield from strings(source, found, ends, index, options)
            elif name == "string" or (name == "item" and (found[parent].name in LISTS or attributes.get("type") == "string")):
                yield from string(source, found[index + 1 : ends[index]], options)
        index = ends[index] + 1


def string(source: str, found: Sequence[Token], options: Options) -> Iterator[Span]:
    """The spans of a string. What stands in CDATA is HTML."""
    if REFERENCE.match("".join(token.text for token in found)):
        return
    at = 0
    for index, token in enumerate(found):
        if token.kind == "kept" and source.startswith(CDATA, token.start):
            yield from texts(source, found[at:index], Dialect(lambda name: True, KEPT | set(options.ignored)))
            yield from page(source, token.start + len(CDATA), token.end - len(CDATA_END), options)
            at = index + 1
    yield from texts(source, found[at:], Dialect(lambda name: True, KEPT | set(options.ignored)))


def page(source: str, start: int, end: int, options: Options) -> Iterator[Span]:
    try:
        found = html.tokens(source[start:end])
    except Unreadable as error:
        raise Unreadable(start + (error.at or 0), error.what) from None
    yield from texts(
        source, [each._replace(start=start + each.start, end=start + each.end) for each in found], html.dialect(options)
    )


def texts(source: str, found: Sequence[Token], dialect: Dialect) -> Iterator[Span]:
    """The spans of some tokens, whose text has Android's escapes."""
    own = list(pieces(source, found))
    raws = (source[token.start : token.end] for token in own if token.kind == "text")
    unicode = {token.text: raw for token, raw in zip((token for token in own if token.kind == "text"), raws) if raw[:2] == "\\u"}
    table = str.maketrans(unicode | SPELLED)
    for span in spans_of(source, own, dialect):
        yield replace(span, escape=partial(escaped, table=table, escape=span.escape), write=begun, lines=True)


def pieces(source: str, found: Sequence[Token]) -> Iterator[Token]:
    """The tokens, with each text as several: an escape is its character, white space a space, and a quote no text."""
    inside, at = False, 0  # whether in quotes; the token from which texts have not been read
    for index, token in enumerate([*found, Token("alone", 0, 0)]):
        if token.kind == "text":
            continue
        first, last = (found[at].start, found[index - 1].end) if at < index else (0, 0)
        for match in PIECE.finditer(source, first, last):
            if match[0] == '"':
                inside = not inside
                yield Token("alone", match.start(), match.end())
            else:
                yield Token("text", match.start(), match.end(), meaning(match, inside))
        if index < len(found):
            yield token
        at = index + 1


def meaning(match: re.Match[str], inside: bool) -> str:
    if match[1]:
        return bytes.fromhex(match[1] + match[2]).decode("utf-16-be")
    if match[3]:
        character = chr(int(match[3], 16))
        return "\ufffd" if surrogate(character) else character
    if match[4]:
        return LETTERS.get(match[4], unescape(match[4]))
    return unescape(match[0]) if inside or not match[0].isspace() else " "


def escaped(text: str, table: dict[int, str], escape: Callable[[str], str]) -> str:
    """A text with Android's escapes, and then the file's; none of the apostrophes that this may double is bare."""
    return BARE.sub(r"\\'", escape(text.translate(table)))


def begun(text: str, doubtful: bool) -> str:
    """A text, which is no reference."""
    return "\\" + text if text[:1] in ("@", "?") else text
