"""The input of ``specdec-translate``: buffers of lines, each with its reference and its hint. Knows nothing about models."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from specdec_plugins.text.lines import LineReader

FULL = 1 << 20  # characters, after which a buffer ends: 512 sentences have some 50,000, and 512 documents must not all be held


@dataclass(frozen=True)
class Buffer:
    """Some lines of the input, the first of which is number ``first``, from 0. ``fault`` ended the reading after them."""

    first: int
    lines: list[str] = field(default_factory=list)
    references: list[str | None] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # none where no line has one
    fault: ValueError | None = None


def read_buffers(
    source: LineReader, references: LineReader | None, size: int, hints: LineReader | None = None
) -> Iterator[Buffer]:
    """Yield up to ``size`` lines at a time, fewer where these have over `FULL` characters.

    A fault comes with the lines before it, so that these can still be translated.
    """
    lines, expected, hinted, first = iter(source), _beside(references), _beside(hints), source.number
    while True:
        buffer = Buffer(first)
        try:
            characters = 0
            for line in islice(lines, size):
                reference, hint = next(expected), next(hinted)
                buffer.references.append(reference)
                buffer.hints.extend([] if hint is None else [hint])
                buffer.lines.append(line)
                characters += len(line)
                if characters >= FULL:
                    break
        except ValueError as error:
            yield replace(buffer, fault=error)
            return
        if not buffer.lines:
            for reader in (references, hints):
                if reader is not None and reader.skip(1):
                    yield replace(buffer, fault=ValueError(f"{reader.name} has more lines than {source.name}"))
            return
        yield buffer
        first += len(buffer.lines)


def _beside(reader: LineReader | None) -> Iterator[str | None]:
    """Yield the reference or hint of each line, or None for each if there are none. Raises ValueError if they end too soon."""
    while reader is None:
        yield None
    yield from reader
    raise ValueError(f"{reader.name} has only {reader.number:,} lines")
