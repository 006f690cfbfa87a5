"""XML: the tokens of a file by expat, which refuses what is not well formed. Entities are never declared, expanded or fetched."""

from collections.abc import Iterator, Sequence
from xml.parsers import expat

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.html import ATTRIBUTES
from specdec_plugins.files.markup import Dialect, Token, Tokens, spans_of

ROOT = "<x>"  # makes a fragment a document
NESTED = 200  # elements within one another


def fragment(source: str, options: Options) -> Iterator[Span]:
    """The span of a text in which all tags are inline."""
    return spans_of(source, tokens(source, ROOT)[1:-1], Dialect(lambda name: True, frozenset(options.ignored), ATTRIBUTES))


def tokens(source: str, root: str = "") -> Sequence[Token]:
    """The tokens of a document, or of what a ``root`` element may hold, each ending where the next one starts."""
    parser = Reader(len(root))
    text = f"{root}{source}{root.replace('<', '</')}".encode()
    try:
        parser.read(text)
    except expat.ExpatError as error:
        at = len(text[: max(0, parser.expat.ErrorByteIndex)].decode(errors="ignore")) - len(root)
        raise Unreadable(max(0, at), expat.errors.messages[error.code]) from None
    found, parser.found = parser.found, Tokens()  # expat's handlers keep the parser, as cyclic garbage
    ends = [token.start for token in found[1:]] + [len(source)]
    return [token._replace(end=end) for token, end in zip(found, ends)]


class Reader:
    def __init__(self, before: int):
        self.found = Tokens()
        self.expat = parser = expat.ParserCreate("utf-8")
        self.text, self.bytes, self.characters = b"", 0, -before  # read so far
        parser.ordered_attributes = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.DefaultHandler = self._text, self._other
        parser.XmlDeclHandler, parser.EntityDeclHandler = self._declared, self._entity
        parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = self._cdata, self._cdata_end
        self.cdata = False

    def read(self, text: bytes) -> None:
        self.text = text
        self.expat.Parse(text, True)

    def _found(self, kind, name="", attributes=(), text=""):
        at = self.expat.CurrentByteIndex
        self.characters += len(self.text[self.bytes : at].decode())
        self.bytes = at
        self.found.append(Token(kind, self.characters, 0, text, name, attributes))

    def _start(self, name, attributes):
        self._found("open", name, list(zip(attributes[::2], attributes[1::2])))

    def _end(self, name):
        at = self.expat.CurrentByteIndex
        if self.found[-1].kind == "open" and self.text[at - 2 : at] == b"/>":
            self.found[-1] = self.found[-1]._replace(kind="alone")
        else:
            self._found("close", name)

    def _text(self, text):
        if self.cdata:
            self.found[-1] = self.found[-1]._replace(text=self.found[-1].text + text)
        else:
            self._found("text", text=text)

    def _other(self, text):
        if not self.cdata:
            self._found("alone")

    def _cdata(self):
        self._found("kept")
        self.cdata = True

    def _cdata_end(self):
        self.cdata = False

    def _declared(self, version, encoding, standalone):
        if encoding and encoding.lower() != "utf-8":
            raise Unreadable(0, f"declares the encoding {encoding[:40]}; convert the file to UTF-8")
        self._found("alone")

    def _entity(self, name, *rest):
        raise Unreadable(self.characters, f"declares an entity ({name[:40]}), which is not read")


def closings(found: Sequence[Token]) -> list[int]:
    """For each token the index of the one that ends its element, which is its own except of an opening tag.

    Raises Unreadable for elements that are nested too deep.
    """
    ends, opened = list(range(len(found))), list[int]()
    for index, token in enumerate(found):
        if token.kind == "open":
            opened.append(index)
            if len(opened) > NESTED:
                raise Unreadable(token.start, f"more than {NESTED} elements within one another")
        elif token.kind == "close":
            ends[opened.pop()] = index
    return ends


def namespace(found: Sequence[Token], prefix: str) -> str | None:
    """The namespace of a prefix in the root element."""
    root = next((token for token in found if token.name), None)
    return dict(root.attributes).get(f"xmlns:{prefix}") if root else None
