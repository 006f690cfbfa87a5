"""HTML: the text between block tags, and attributes that are text.

The tokens are those of the standard (html.spec.whatwg.org, 13.2.5), as browsers read them, with their places. Python's own parser
gives no positions of attributes and, depending on its version, reads some comments, scripts and attributes differently.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from html import unescape
from html.entities import html5

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import TAG, Dialect, Token, Tokens, attributes_of, spans_of
from specdec_plugins.text.placing import DEEPEST

INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q rp rt ruby s samp small span "
    "strike strong sub sup time tt u var wbr".split()
)
VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
RCDATA = frozenset(["title", "textarea"])  # without tags inside, but with entities
RAW = RCDATA | frozenset("style script xmp iframe noembed noframes plaintext".split())
VERBATIM = RAW - {"title"} | frozenset("code kbd samp var pre math svg template".split())
ATTRIBUTES = frozenset("alt title placeholder label aria-label aria-description".split())


FOREIGN = ("svg", "math")
BACK = ("foreignobject", "desc", "title")  # in them, HTML again
LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
MARKUP = re.compile(r"<(?=[A-Za-z!?]|/.)", re.DOTALL)
COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)", re.DOTALL)
CDATA = re.compile(r"<!\[CDATA\[.*?\]\]>", re.DOTALL)
DECLARATION = re.compile(r"<[^>]*>")
CLOSE = re.compile(r"[\t\n\f\r /]*+>")
SCRIPT = re.compile(r"<script[\t\n\f\r />]", re.IGNORECASE | re.ASCII)
IN_VALUE = re.compile(r"&(?:#[xX][0-9a-fA-F]+;?|#[0-9]+;?|([A-Za-z][A-Za-z0-9]*)(;|(?![=A-Za-z0-9])))")
CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    for token in found:
        if token.name == "meta" and (charset := charset_of(dict(reversed(token.attributes)))).lower() not in (
            "",
            "utf-8",
            "utf8",
        ):
            raise Unreadable(token.start, f"declares the encoding {charset[:40]}; convert the file to UTF-8")
    yield from fragment(source, found, options)


def charset_of(attributes: dict[str, str | None]) -> str:
    """The encoding that a meta tag declares, if it does."""
    if (attributes.get("http-equiv") or "").lower() == "content-type":
        return match[1] if (match := CHARSET.search(attributes.get("content") or "")) else ""
    return attributes.get("charset") or ""


def fragment(source: str, found: Sequence[Token], options: Options) -> Iterator[Span]:
    return spans_of(source, found, dialect(options))


def dialect(options: Options) -> Dialect:
    return Dialect(lambda name: name in INLINE or not name, VERBATIM | set(options.ignored), ATTRIBUTES)


def tokens(source: str, raw: Collection[str] = RAW) -> Sequence[Token]:
    """The tokens of a file. There are no tags in ``raw`` elements. Raises Unreadable."""
    found, at, foreign = Tokens(), 0, list[str]()
    while at < len(source):
        match = MARKUP.search(source, at)
        start = match.start() if match else len(source)
        if start > at:
            found.append(Token("text", at, start, unescape(source[at:start])))
        if match:
            token = markup(source, start, is_foreign(foreign))
            found.append(token)
            enter(token, foreign)
            if token.name in raw and not source.startswith("/", start + 1) and not is_foreign(foreign):
                found.extend(raw_text(source, token))
        at = found[-1].end
    return found


def is_foreign(elements: Sequence[str]) -> bool:
    return elements[-1:] in (["svg"], ["math"])


def enter(token: Token, foreign: list[str]) -> None:
    """Note what ``foreign`` elements, and elements of HTML in them, are open after a token."""
    if token.kind == "open" and (token.name in FOREIGN or (foreign and token.name in BACK)):
        foreign.append(token.name)
        if len(foreign) > DEEPEST:
            raise Unreadable(token.start, f"more than {DEEPEST} elements of SVG within one another")
    elif token.kind == "close" and token.name in foreign:
        while foreign.pop() != token.name:
            pass


def markup(source: str, start: int, foreign: bool = False) -> Token:
    """The tag, comment or declaration that begins at a character; CDATA in ``foreign`` elements. Raises Unreadable."""
    letter = source[start + 1 : start + 3].lstrip("/")[:1]
    if letter.isascii() and letter.isalpha():
        return tag(source, start)
    if source.startswith("<!--", start):
        found = COMMENT.match(source, start)
    elif foreign and source.startswith("<![CDATA[", start):
        found = CDATA.match(source, start)
    else:
        found = DECLARATION.match(source, start)
    if not found:
        raise open_at(start)
    return Token("alone", start, found.end())


def tag(source: str, start: int) -> Token:
    name = TAG.match(source, start)
    assert name is not None
    attributes, end = list[tuple[str, str | None]](), name.end()
    for each in attributes_of(source, start):
        value, end = each["value"], each.end()
        value = value[1:-1] if value and value[0] in "\"'" else value
        attributes.append((each["name"].translate(LOWER), value and IN_VALUE.sub(meaning, value)))
    close = CLOSE.match(source, end)
    if not close:
        raise open_at(start)
    shown = name[0].lstrip("</").translate(LOWER)
    alone = shown in VOID or close[0].endswith("/>")
    return Token("alone" if alone else "close" if name[0][1] == "/" else "open", start, close.end(), "", shown, attributes)


def open_at(start: int) -> Unreadable:
    return Unreadable(start, "a tag, comment or declaration is not closed")


def meaning(entity: re.Match[str]) -> str:
    """What an entity in an attribute means. Without its semicolon, it must be one that needs none, and end there."""
    return entity[0] if entity[1] and not entity[2] and entity[1] not in html5 else unescape(entity[0])


def raw_text(source: str, token: Token) -> list[Token]:
    """The text of an element without tags inside, if it has some. Raises Unreadable if it is not closed."""
    end = re.compile(rf"</{token.name}(?=[\t\n\f\r />])", re.IGNORECASE | re.ASCII).search(source, token.end)
    if token.kind == "alone" or not end:
        raise Unreadable(token.start, f"<{token.name}> is not closed by </{token.name}>")
    text = source[token.end : end.start()]
    if token.name == "script" and "<!--" in text and SCRIPT.search(text, text.index("<!--")):
        raise Unreadable(token.start, "a script within a comment of a script, which browsers may end elsewhere")
    return [Token("text", token.end, end.start(), unescape(text) if token.name in RCDATA else text)] if text else []
