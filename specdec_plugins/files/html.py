"""HTML: the text between block tags, and attributes that are text. The parser is Python's own, which forgives as browsers do."""

from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import accumulate

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Dialect, Token, Tokens, spans_of

INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q rp rt ruby s samp small span "  # noqa: SIM905
    "strike strong sub sup time tt u var wbr".split()
)
VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())  # noqa: SIM905
VERBATIM = frozenset("code kbd samp var pre script style textarea math svg template".split())  # noqa: SIM905
ATTRIBUTES = frozenset(["alt", "title", "placeholder", "label", "aria-label", "aria-description"])


def spans(source: str, options: Options) -> Iterator[Span]:
    found = list(tokens(source))
    for token in found:
        charset = dict(token.attributes).get("charset") if token.name == "meta" else None
        if charset and charset.lower() not in ("utf-8", "utf8", "us-ascii"):
            raise Unreadable(token.start, f"declares the encoding {charset[:40]}; convert the file to UTF-8")
    yield from fragment(source, found, options)


def fragment(source: str, found: Sequence[Token], options: Options) -> Iterator[Span]:
    return spans_of(source, found, dialect(options))


def dialect(options: Options) -> Dialect:
    return Dialect(lambda name: name in INLINE or not name, VERBATIM | set(options.ignored), ATTRIBUTES)


def tokens(source: str) -> Sequence[Token]:
    """The tokens of a file; each ends where the next one starts. Raises Unreadable."""
    parser = Reader(source)
    try:
        parser.feed(source)
    except AssertionError as error:  # an unknown declaration
        raise Unreadable(parser.place(), str(error)) from None
    left = parser.rawdata
    if left[:1] == "<" and (left[1:2].isalpha() or left[1:2] in ("/", "!", "?")):
        raise Unreadable(len(source) - len(left), "a tag, comment or declaration is not closed")
    parser.close()
    ends = [token.start for token in parser.found[1:]] + [len(source)]
    return [token._replace(end=end) for token, end in zip(parser.found, ends)]


class Reader(HTMLParser):
    def __init__(self, source: str):
        super().__init__()
        self.found = Tokens()
        self.lines = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]

    def place(self) -> int:
        line, column = self.getpos()
        return self.lines[line - 1] + column

    def handle_starttag(self, tag, attrs):
        self._found("alone" if tag in VOID else "open", tag, attrs)

    def handle_startendtag(self, tag, attrs):
        self._found("alone", tag, attrs)

    def handle_endtag(self, tag):
        self._found("alone" if tag in VOID else "close", tag)

    def handle_data(self, data):
        self._found("text", text=data)

    def handle_comment(self, data):
        self._found("alone")

    handle_decl = handle_pi = unknown_decl = handle_comment

    def _found(self, kind, name="", attributes=(), text=""):
        self.found.append(Token(kind, self.place(), 0, text, name, attributes))
