"""ICU messages (MessageFormat 1): which characters of ``{n, plural, one {# file} other {# files}}`` are text.

Libraries return trees without positions, so a message cannot be written back byte for byte. This module therefore parses the
skeleton itself: arguments, their branches and quoted text, as ICU and FormatJS do. Imports nothing heavy.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specdec_plugins.text.patterns import PATTERNS

DEEPEST = 20  # branches within branches
LONGEST = 50_000  # characters of a message
MANY = "5"  # stands for a plural's # where its branch does not say how many
BRANCHING = re.compile(r"\{\s*([^\s{}<>',|#]+)\s*,\s*(plural|selectordinal|select)\s*,(?:\s*offset\s*:\s*\d+)?")
SELECTOR = re.compile(r"\s*(=\d+|[^\s{}<>',|#=]+)\s*\{")
END = re.compile(r"\s*\}")
SIGN = re.compile(r"''|'(?=[{}#])|[{}#]|\Z")
QUOTED = re.compile(r"[^']*(?:''[^']*)*'?")  # '' inside quotes is an apostrophe
OTHER_ARGUMENT = re.compile(r"\{\{[^{}]*\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")  # mustache's too, which templates mix in
CODE = re.compile(PATTERNS["code"])


class Piece(NamedTuple):
    """Characters that the surrounding text shows as ``shown``. Only an apostrophe may change in translation."""

    start: int
    end: int
    shown: str

    @property
    def is_text(self) -> bool:
        return self.shown == "'"


@dataclass
class Message:
    """The text around all branches, or that of one branch: its characters, without those of its pieces."""

    start: int
    end: int = 0
    pieces: list[Piece] = field(default_factory=list)


def messages(text: str) -> Sequence[Message]:
    """The message around all branches and that of each branch, at any depth; none of a text without branches.

    Raises ValueError for a message that is not well formed.
    """
    if not BRANCHING.search(text) or not BRANCHING.search(CODE.sub("", text)):
        return []
    if len(text) > LONGEST:
        raise ValueError("too long for a message")
    reader = Reader(text)
    reader.message(0, 0, "")
    return reader.found if len(reader.found) > 1 else []


def is_message(text: str) -> bool:
    """Whether a text has branches, even if they are not well formed."""
    try:
        return bool(messages(text))
    except ValueError:
        return True


def arguments(text: str) -> list[tuple[int, int]]:
    """The characters of each argument with branches that is not within another; all of a message that is not well formed."""
    try:
        outer = messages(text)[:1]
    except ValueError:
        return [(0, len(text))]
    return [(piece.start, piece.end) for each in outer for piece in each.pieces if BRANCHING.match(text, piece.start)]


def quotes_nothing(text: str, doubled: bool = False) -> str:
    """The text with apostrophes that begin no quotation: ``doubled``, or typographic before what they would quote."""
    return text.replace("'", "''") if doubled else re.sub(r"'(?=[{}#]|\Z)", "’", text)


class Reader:
    def __init__(self, text: str):
        self.text = text
        self.found: list[Message] = []
        self.names = {*re.findall(r"\{[^{},]*\}", text)}

    def message(self, at: int, depth: int, number: str) -> int:
        """Read a message from ``at`` on. ``number`` is shown for #, which is text where it is empty. Returns the end."""
        if depth > DEEPEST:
            raise ValueError("branches are too deep")
        own = Message(at)
        self.found.append(own)
        while match := SIGN.search(self.text, at):
            start, at, sign = match.start(), match.end(), match[0]
            if sign == "" or (sign == "}" and depth):
                own.end = start
                break
            if sign == "''":
                own.pieces.append(Piece(start, at, "'"))
            elif sign == "'" and (self.text[at : at + 1] != "#" or number):
                at = QUOTED.match(self.text, at).end()  # type: ignore[union-attr]
                own.pieces.append(Piece(start, at, self.text[start:at]))
            elif sign == "#" and number:
                own.pieces.append(Piece(start, at, number))
            elif sign == "{":
                at = self._argument(own, start, depth, number)
        if depth and not sign:
            raise ValueError("a branch is not closed")
        return at

    def _argument(self, own: Message, start: int, depth: int, number: str) -> int:
        if match := BRANCHING.match(self.text, start):
            at = match.end()
            while selector := SELECTOR.match(self.text, at):
                exact = {"one": "1", "zero": "0", "two": "2"}.get(selector[1], selector[1].lstrip("="))
                shown = number if match[2] == "select" else exact if exact.isdecimal() else MANY
                at = self.message(selector.end(), depth + 1, shown)
            end = END.match(self.text, at)
            if at == match.end() or not end:
                raise ValueError("an argument is not closed")
            own.pieces.append(Piece(start, end.end(), self._name(match[1])))
            return end.end()
        if other := OTHER_ARGUMENT.match(self.text, start):
            return other.end()
        if depth:
            raise ValueError("an argument is not closed")
        return start + 1

    def _name(self, name: str) -> str:
        """What is shown for an argument: its name as a placeholder, unlike any other."""
        shown = f"{{{name}}}"
        if shown in self.names:
            shown = f"{{{name}_{len(self.names)}}}"
        self.names.add(shown)
        return shown
