"""The input of ``specdec-translate``: buffers of lines, each with its references. Knows nothing about models."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from specdec_plugins.text.lines import LineReader


@dataclass(frozen=True)
class Buffer:
    """Some lines of the input, the first of which is number ``first``, from 0. ``fault`` ended the reading after them."""

    first: int
    lines: list[str] = field(default_factory=list)
    references: list[str | None] = field(default_factory=list)
    fault: ValueError | None = None


def read_buffers(source: LineReader, references: LineReader | None, size: int) -> Iterator[Buffer]:
    """Yield up to ``size`` lines at a time; a fault comes with the lines before it, so that these can still be translated."""
    lines, expected, first = iter(source), _references(references), source.number
    while True:
        buffer = Buffer(first)
        try:
            for line in islice(lines, size):
                buffer.references.append(next(expected))
                buffer.lines.append(line)
        except ValueError as error:
            yield replace(buffer, fault=error)
            return
        if not buffer.lines:
            return
        yield buffer
        first += len(buffer.lines)


def _references(reader: LineReader | None) -> Iterator[str | None]:
    """Yield the reference of each line, or None for each if there are none. Raises ValueError if they end too soon."""
    while reader is None:
        yield None
    yield from reader
    raise ValueError(f"{reader.name} has only {reader.number:,} lines")
