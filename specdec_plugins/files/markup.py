"""Spans of markup: what HTML, XML and the inline text of Markdown share, from the tokens of their parsers.

A span is the text between two block tags; inline tags become marks in it. Tags around all of its text stay outside of it.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import unescape
from typing import Literal, NamedTuple

from specdec_plugins.files import Span, Unreadable
from specdec_plugins.text.icu import Message, messages, quotes_nothing
from specdec_plugins.text.placing import DEEPEST, Mark

SPACE = " \t\n\r\f"
LINKS = ("a", "link")  # of HTML and Markdown
ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
TAG = re.compile(r"</?[^\t\n\f\r />]+")
ATTRIBUTE = re.compile(  # as browsers read them, and so those of XML too
    r"""[\t\n\f\r /]*+(?P<name>[^\t\n\f\r />][^\t\n\f\r />=]*+)"""
    r"""(?:[\t\n\f\r ]*=[\t\n\f\r ]*(?:(?P<value>"[^"]*"|'[^']*'|[^\t\n\f\r >"'][^\t\n\f\r >]*)|(?=>)))?"""
)
VALUE = re.compile(r"[\t\n\f\r ]*=[\t\n\f\r ]*[^\t\n\f\r >]")  # one that is not closed
MOST_TOKENS = 1_000_000  # tags and texts of a file, which take half a kilobyte each
LONGEST_ENTITY = 40  # characters
CHARACTER = re.compile(rf"&[^;&\s]{{1,{LONGEST_ENTITY}}};|.", re.DOTALL)  # an entity, or itself
HIDDEN = "\ufffc"  # a tag, where only text counts


class Token(NamedTuple):
    """Characters ``start`` to ``end`` of a file. ``text`` is what they mean; that of a ``kept`` token must not be translated."""

    kind: Literal["open", "close", "alone", "text", "kept"]
    start: int
    end: int
    text: str = ""
    name: str = ""
    attributes: Sequence[tuple[str, str | None]] = ()


class Tokens(list[Token]):
    """The tokens of a file. Raises Unreadable for more than `MOST_TOKENS`."""

    def append(self, token: Token) -> None:
        if len(self) == MOST_TOKENS:
            raise Unreadable(token.start, f"over {MOST_TOKENS:,} tags and texts")
        super().append(token)


@dataclass(frozen=True)
class Dialect:
    """``is_inline`` tells tags within text from those that end it. ``verbatim`` elements have text that is not translated,
    ``codes`` none at all."""

    is_inline: Callable[[str], bool]
    verbatim: Collection[str] = ()
    attributes: Collection[str] = ()
    codes: Collection[str] = ()


def spans_of(source: str, tokens: Iterable[Token], dialect: Dialect) -> Iterator[Span]:
    """The spans of a file or fragment, attributes before the text around them."""
    blocks = Blocks(source, dialect)
    for token in tokens:
        yield from blocks.take(token)
    yield from blocks.flush()


class Blocks:
    def __init__(self, source: str, dialect: Dialect):
        self.source, self.dialect = source, dialect
        self.elements: list[tuple[str, bool]] = []  # open ones, and whether their text is translated
        self.names = Counter[str]()  # of these
        self.run: list[Token] = []  # the block's tokens
        self.kept: list[Token] = []  # an inline element that is not translated
        self.level = 0  # elements of its name in it

    @property
    def translated(self) -> bool:
        return not self.elements or self.elements[-1][1]

    def take(self, token: Token) -> Iterator[Span]:
        if self.kept:
            self._keep(token)
        elif token.kind == "text":
            self.run += [token] * self.translated
        elif token.kind == "close":
            inside, closes = self.translated, self._close(token.name)
            self.run += [token if closes else token._replace(kind="alone")] * inside
            if not self.dialect.is_inline(token.name) or (inside and not self.translated):
                yield from self.flush()
        else:
            yield from self._start(token)

    def flush(self) -> Iterator[Span]:
        yield from block_spans(self.source, self.run)
        self.run, self.kept = [], []

    def _start(self, token: Token) -> Iterator[Span]:
        inside, on = self.translated, self._on(token)
        if on:
            yield from attribute_spans(self.source, token, self.dialect.attributes)
        inline = self.dialect.is_inline(token.name)
        if inline and inside and not on:
            self._keep(token)
            return
        if token.kind == "open":
            self.elements.append((token.name, on))
            self.names[token.name] += 1
        if not inline:
            yield from self.flush()
        self.run += [token] * (inline and inside)

    def _on(self, token: Token) -> bool:
        """Whether the text in an element is translated."""
        attributes = dict(reversed(token.attributes))  # the first of a name counts
        if attributes.get("translate") == "no" or "notranslate" in (attributes.get("class") or "").split():
            return False
        return attributes.get("translate") == "yes" or (
            self.translated and token.name not in (*self.dialect.verbatim, *self.dialect.codes)
        )

    def _close(self, name: str) -> bool:
        """Close an element and all that is open in it. False if no such element is open."""
        if not self.names[name]:
            return False
        closed = ""
        while closed != name:
            closed, _ = self.elements.pop()
            self.names[closed] -= 1
        return True

    def _keep(self, token: Token) -> None:
        self.kept.append(token)
        self.level += (token.kind == "open") - (token.kind == "close") if token.name == self.kept[0].name else 0
        if not self.level:
            text = "" if token.name in self.dialect.codes else "".join(each.text for each in self.kept)
            self.run.append(Token("kept", self.kept[0].start, token.end, text))
            self.kept = []


def block_spans(source: str, tokens: Sequence[Token], escapes: Mapping[str, str] | None = None) -> Iterator[Span]:
    """The span of a block's tokens; of an ICU message also those of its branches, and none if it is not well formed."""
    text = "".join(token.text if token.kind == "text" else HIDDEN for token in tokens)
    try:
        found = messages(text)
        tokens = [each for token in tokens for each in characters(source, token)] if found else tokens
    except ValueError:
        return
    if not found and (span := span_of(source, tokens, escapes)):
        yield span
    yield from message_spans(source, tokens, found, escapes, any(piece.is_text for message in found for piece in message.pieces))


def message_spans(
    source: str, tokens: Sequence[Token], found: Sequence[Message], escapes: Mapping[str, str] | None, doubled: bool
) -> Iterator[Span]:
    """The spans of the messages in a text, whose tokens are its characters. An apostrophe is spelled ``doubled``, or not."""
    for message in found:
        own, at = list[Token](), message.start
        for start, end, shown in message.pieces:
            kind: Literal["text", "kept"] = "text" if shown == "'" else "kept"
            token = Token(kind, tokens[start].start, tokens[end - 1].end, shown.replace(HIDDEN, ""))
            own += [*tokens[at:start], token]
            at = end
        if span := span_of(source, [*own, *tokens[at : message.end]], escapes):
            yield replace(span, escape=partial(in_message, doubled=doubled, escape=span.escape))


def in_message(text: str, doubled: bool, escape: Callable[[str], str]) -> str:
    return escape(quotes_nothing(text, doubled))


def characters(source: str, token: Token) -> Iterator[Token]:
    """The token, or one for each character of a text. Raises ValueError for a text that is spelled in another way."""
    if token.kind != "text" or len(token.text) == 1:
        yield token
        return
    found = CHARACTER.finditer(source, token.start, token.end)
    for match, character in zip(found, token.text, strict=True):
        yield token._replace(start=match.start(), end=match.end(), text=character)


def span_of(source: str, tokens: Sequence[Token], escapes: Mapping[str, str] | None = None) -> Span | None:
    """The span of a block's tokens, which follow one another; None without text.

    ``escapes`` spell characters; without them, they are XML's and the entities that the block itself has.
    """
    partners = partners_of(tokens)
    first, last = trimmed(tokens, partners)
    tokens, partners = tokens[first:last], {index - first: other - first for index, other in partners.items()}
    if not any(token.kind == "text" and token.text.strip(SPACE) for token in tokens):
        return None
    start, end = tokens[0].start, tokens[-1].end
    texts = [token.text if token.kind in ("text", "kept") else "" for token in tokens]
    if tokens[0].kind == "text":
        raw = source[start : tokens[0].end]
        start, texts[0] = tokens[0].end - len(raw.lstrip(SPACE)), texts[0].lstrip(SPACE)
    if tokens[-1].kind == "text":
        raw = source[tokens[-1].start : end]
        end, texts[-1] = tokens[-1].start + len(raw.rstrip(SPACE)), texts[-1].rstrip(SPACE)
    marks, places, at = [], [], 0
    numbers = {index: number for number, index in enumerate(n for n, token in enumerate(tokens) if token.kind != "text")}
    for index, (token, text) in enumerate(zip(tokens, texts)):
        if token.kind != "text":
            marks.append(Mark(at, at + len(text), numbers.get(partners.get(index, -1)), token.name in LINKS))
            places.append((token.start, token.end))
        at += len(text)
    table = str.maketrans(dict(escapes) if escapes is not None else ESCAPED | entities(source, tokens))
    return Span(start, end, "".join(texts), partial(spelled, table=table), marks, places)


def spelled(text: str, table: dict[int, str]) -> str:
    return text.translate(table)


def partners_of(tokens: Sequence[Token]) -> dict[int, int]:
    """The closing tag of each opening tag, and the reverse, by index; tags without a partner stand alone."""
    partners: dict[int, int] = {}
    names, stack = Counter[str](), list[int]()
    for index, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(index)
            names[token.name] += 1
            if len(stack) > DEEPEST:
                raise Unreadable(token.start, f"more than {DEEPEST} tags within one another")
        elif token.kind == "close" and names[token.name]:
            while True:
                opening = stack.pop()
                names[tokens[opening].name] -= 1
                if tokens[opening].name == token.name:
                    break
            partners |= {opening: index, index: opening}
    return partners


def trimmed(tokens: Sequence[Token], partners: Mapping[int, int]) -> tuple[int, int]:
    """The tokens without what surrounds all text: white space, tags around it, and tags that hold none."""
    first, last = 0, len(tokens)

    def outside(index: int) -> bool:
        token = tokens[index]
        if token.text:
            return token.kind == "text" and not token.text.strip(SPACE)
        return index not in partners

    while first < last:
        if outside(first):
            first += 1
        elif outside(last - 1):
            last -= 1
        elif partners.get(first) == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    return first, last


def attribute_spans(source: str, token: Token, names: Collection[str]) -> Iterator[Span]:
    """The values of a tag's attributes that are text and in quotes."""
    if not any(name in names and value for name, value in token.attributes):
        return
    for (name, value), match in zip(token.attributes, attributes_of(source, token.start), strict=True):
        quote = (match["value"] or "")[:1]
        if value and name in names and quote in ("'", '"'):
            table = str.maketrans(ESCAPED | {quote: "&quot;" if quote == '"' else "&#39;"})
            yield Span(match.start("value") + 1, match.end("value") - 1, value, partial(spelled, table=table))


def attributes_of(source: str, start: int) -> Iterator[re.Match[str]]:
    """The attributes of the tag that begins at a character, as they are spelled. Raises Unreadable for an open quote."""
    match = TAG.match(source, start)
    while match and (match := ATTRIBUTE.match(source, match.end())):
        yield match
        if match["value"] is None and VALUE.match(source, match.end()):
            raise Unreadable(start, "a tag, comment or declaration is not closed")


def entities(source: str, tokens: Iterable[Token]) -> dict[str, str]:
    """The characters that a block's text spells as entities, and how."""
    found: dict[str, str] = {}
    for token in tokens:
        at = source.find("&", token.start, token.end) if token.kind == "text" else -1
        while at >= 0:
            end = source.find(";", at, min(at + LONGEST_ENTITY, token.end)) + 1
            if end and len(character := unescape(source[at:end])) == 1:
                found[character] = source[at:end]
            at = source.find("&", at + 1, token.end)
    return found
