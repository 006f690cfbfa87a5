"""XLIFF 1.2 and 2: each unit whose target is missing or empty gets one, with the inline tags of its source."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Dialect, Token, spans_of
from specdec_plugins.files.xml import ROOT, tokens

UNITS = ("trans-unit", "segment")  # of version 1.2, of 2
INITIAL = ("new", "needs-translation", "initial")  # states of targets in version 1.2, of segments in 2
CONTENT = "xliff.content"
ATTRIBUTE = re.compile(r"""\s+([^\s=]+)\s*=\s*(?:"[^"]*"|'[^']*')""")
CODES = ("ph", "bpt", "ept", "it")  # hold code of the document


@dataclass
class Unit:
    """What a unit has, as indices of tokens."""

    name: str
    opening: int = 0
    on: bool = True  # it is to be translated
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None
    before: int = 0  # the token that a new target follows

    def note(self, name: str, first: int, last: int, at: int) -> None:
        """Note a part. Raises Unreadable if it is there twice."""
        if name in ("source", "seg-source"):
            self.before = last
        if name in ("source", "target"):
            if getattr(self, name):
                raise Unreadable(at, f"a {self.name} has two elements <{name}>")
            setattr(self, name, (first, last))


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    for unit in units(found):
        if unit.on and unit.source and is_new(found, unit):
            yield from translated(source, found, unit)


def written(source: str, options: Options) -> Iterator[Span]:
    """The targets of a file, with their tags."""
    found = tokens(source)
    for unit in units(found):
        if unit.source and unit.target:
            first, last = (found[index] for index in unit.target)
            start, end = (first.end, last.start) if first is not last else (first.end, first.end)
            yield Span(start, end, source[start:end])


def units(found: Sequence[Token]) -> Iterator[Unit]:
    if next((token.name for token in found if token.name), "") != "xliff":
        raise Unreadable(0, "not an XLIFF file")
    elements: list[tuple[str, int, bool]] = []  # open ones: name, first token, whether translated
    unit = Unit("")
    for index, token in enumerate(found):
        if token.kind == "open":
            on = (not elements or elements[-1][2]) and dict(token.attributes).get("translate") != "no"
            elements.append((token.name, index, on))
            unit = Unit(token.name, index, on) if token.name in UNITS else unit
        elif token.kind == "alone" and token.name in ("target", "seg-source") and elements[-1][0] == unit.name:
            unit.note(token.name, index, index, token.start)
        elif token.kind == "close":
            name, first, _ = elements.pop()
            if name in UNITS:
                yield unit
                unit = Unit("")
            elif elements and elements[-1][0] == unit.name:  # those of <alt-trans> are others'
                unit.note(name, first, index, found[first].start)


def content(source: str, options: Options) -> Iterator[Span]:
    """The spans of a source."""
    return spans_of(source, tokens(source, ROOT)[1:-1], Dialect(lambda name: True, options.ignored, codes=CODES))


def is_new(found: Sequence[Token], unit: Unit) -> bool:
    """Whether a unit has no translation: no target, an empty one, or in an initial state the text of its source."""
    source, target = (
        "".join(token.text for token in found[slice(*(side or (0, 0)))]).strip() for side in (unit.source, unit.target)
    )
    stated = found[unit.target[0] if unit.target and unit.name == "trans-unit" else unit.opening]
    return not target or (target == source and dict(stated.attributes).get("state") in INITIAL)


def translated(source: str, found: Sequence[Token], unit: Unit) -> Iterator[Span]:
    """The unit's text, to be written to its target; from the opening tag of a segment on, which has the target's state."""
    assert unit.source is not None
    opening, closing, head = found[unit.source[0]], found[unit.source[1]], found[unit.opening]
    start = end = found[unit.before].end
    indent = source[source.rfind("\n", 0, opening.start) + 1 : opening.start]
    space, attributes = "\n" + indent if not indent.strip() else "", ""
    if unit.target:
        old, until = found[unit.target[0]], found[unit.target[1]]
        start, end, space = old.start, until.end, ""
        kept = [(name, value) for name, value in old.attributes if name != "state"]
        attributes = "".join(f" {name}={quoteattr(value or '')}" for name, value in kept)
    in_target = unit.name == "trans-unit"

    def write(text: str, doubtful: bool) -> str:
        state = ' state="needs-review-translation"' if doubtful and in_target else ""
        around = "" if in_target else stated(source[head.start : head.end], doubtful) + source[head.end : start]
        return f"{around}{space}<target{attributes}{state}>{text}</target>"

    yield Span(
        start if in_target else head.start, end, source[opening.end : closing.start], write=write, always=True, form=CONTENT
    )


def stated(tag: str, doubtful: bool) -> str:
    """The opening tag of a segment with its new state if it had one, or if it needs review."""
    bare = ATTRIBUTE.sub(lambda match: "" if match[1] in ("state", "subState") else match[0], tag)
    if doubtful:
        return f'{bare[:-1]} state="initial" subState="specdec:needs-review">'
    return f'{bare[:-1]} state="translated">' if bare != tag else tag
