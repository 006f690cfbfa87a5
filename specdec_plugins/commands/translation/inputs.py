"""The input of ``specdec-translate``: buffers of lines with their references and hints."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice

from specdec_plugins.text.lines import LineReader

FULL = 1 << 20  # characters that end a buffer: 512 sentences have about 50,000; 512 documents would not fit in memory


@dataclass(frozen=True)
class Buffer:
    """Some input lines, numbered from ``first`` (from 0). ``fault`` ended the reading after them."""

    first: int
    lines: list[str] = field(default_factory=list)
    references: list[str | None] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # empty without a hint file
    fault: ValueError | None = None


class Inputs:
    """The lines of several files in turn, or of stdin. A context manager."""

    def __init__(self, paths: Sequence[str], longest: int | None = None, skipped: Callable[[ValueError], None] | None = None):
        with ExitStack() as stack:
            given: Sequence[str | None] = paths or [None]
            self.readers = [stack.enter_context(LineReader(path, longest, skipped)) for path in given]
            self._open = stack.pop_all()
        self.name = self.readers[0].name if len(self.readers) == 1 else "the input"

    @property
    def number(self) -> int:
        """Lines read so far."""
        return sum(reader.number for reader in self.readers)

    def place(self, index: int) -> str:
        """The file and line number of a line that has been read, by its index."""
        for reader in self.readers:
            if index < reader.number:
                break
            index -= reader.number
        return f"{reader.name}, line {index + 1}"

    def __iter__(self) -> Iterator[str]:
        for reader in self.readers:
            yield from reader

    def __enter__(self) -> "Inputs":
        return self

    def __exit__(self, *error) -> None:
        self._open.close()


def read_buffers(
    source: Inputs, size: int, references: LineReader | None = None, hints: LineReader | None = None
) -> Iterator[Buffer]:
    """Yield up to ``size`` lines at a time, fewer if they exceed `FULL` characters. A fault comes with the lines before it."""
    lines, expected, hinted, first = iter(source), _beside(references), _beside(hints), source.number
    while True:
        buffer, characters = Buffer(first), 0
        try:
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
    """Yield each line's reference or hint, or None without a file. Raises ValueError if the file is too short."""
    while reader is None:
        yield None
    yield from reader
    raise ValueError(f"{reader.name} has only {reader.number:,} lines")
