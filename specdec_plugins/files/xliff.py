"""XLIFF 1.2 and 2: each unit whose target is missing or empty gets one, with the inline tags of its source."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Dialect, Token, spans_of
from specdec_plugins.files.xml import tokens

UNITS = ("trans-unit", "segment")  # of version 1.2, of 2
CODES = ("ph", "bpt", "ept", "it")  # hold code of the document


@dataclass
class Unit:
    """What a unit has, as indices of tokens."""

    name: str
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    if next((token.name for token in found if token.name), "") != "xliff":
        raise Unreadable(0, "not an XLIFF file")
    dialect = Dialect(lambda name: True, options.ignored, codes=CODES)
    elements: list[tuple[str, int, bool]] = []  # open ones: name, first token, whether translated
    unit = Unit("")
    for index, token in enumerate(found):
        if token.kind == "open":
            on = (not elements or elements[-1][2]) and dict(token.attributes).get("translate") != "no"
            elements.append((token.name, index, on))
            unit = Unit(token.name) if token.name in UNITS else unit
        elif token.kind == "alone" and token.name == "target" and elements[-1][0] == unit.name:
            unit.target = index, index
        elif token.kind == "close":
            name, first, on = elements.pop()
            if name in UNITS:
                if on and unit.source and not (unit.target and has_text(found[slice(*unit.target)])):
                    yield from translated(source, found, unit, dialect)
                unit = Unit("")
            elif name in ("source", "target") and elements[-1][0] == unit.name:  # those of <alt-trans> are others'
                setattr(unit, name, (first, index))


def has_text(found: Sequence[Token]) -> bool:
    return any(token.text.strip() for token in found)


def translated(source: str, found: Sequence[Token], unit: Unit, dialect: Dialect) -> Iterator[Span]:
    """The unit's text, to be written to its target."""
    assert unit.source is not None
    first, last = unit.source
    opening, closing = found[first], found[last]
    for span in spans_of(source, found[first + 1 : last], dialect):
        before, after = source[opening.end : span.start], source[span.end : closing.start]
        start = end = closing.end
        line = source.rfind("\n", 0, opening.start) + 1
        indent = source[line : opening.start]
        space, attributes = "\n" + indent if not indent.strip() else "", ""
        if unit.target:
            old, until = found[unit.target[0]], found[unit.target[1]]
            start, end, space = old.start, until.end, ""
            kept = [(name, value) for name, value in old.attributes if name != "state"]
            attributes = "".join(f' {name}="{span.escape(value or "").replace(chr(34), "&quot;")}"' for name, value in kept)

        def write(text: str, doubtful: bool, space=space, attributes=attributes, before=before, after=after) -> str:
            state = ' state="needs-review-translation"' if doubtful and unit.name == "trans-unit" else ""
            return f"{space}<target{attributes}{state}>{before}{text}{after}</target>"

        yield replace(span, start=start, end=end, write=write, always=True)
        return
