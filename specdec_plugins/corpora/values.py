"""The values of a run over a corpus, which can be pickled, and the role of an executor."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Piece:
    """``count`` consecutive records of an input: lines after the first ``line``, from byte ``start`` of the decompressed text on;
    of Parquet, rows from ``start`` on."""

    path: str
    start: int
    line: int
    count: int


@dataclass(frozen=True)
class Shard:
    """A part of the corpus and the name of the file with its translations. ``first`` counts the records before it."""

    number: int
    output: str
    first: int
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        """Its records."""
        return sum(piece.count for piece in self.pieces)

    def place(self, index: int) -> str:
        """The file and line of a record."""
        for piece in self.pieces:
            if index < piece.count:
                break
            index -= piece.count
        return f"{piece.path}, line {piece.line + index + 1}"


class Answers(Protocol):
    """The translations of lines, up to one that is too long. Each of ``lines`` has ``text``, without the last line end, and
    ``said``, what a person should know about it."""

    @property
    def lines(self) -> Sequence[Any]: ...

    @property
    def too_long(self) -> str: ...

    @property
    def stats(self) -> Any: ...  # DecodeStats


Translate = Callable[[int, Sequence[str]], Answers]  # the number of the first line in the corpus, from 0, and lines


@dataclass(frozen=True)
class Job:
    """What the shards of a run have in common. ``build(number)`` loads the model in process ``number``, from 0."""

    folder: str  # of the output, or its URL
    build: Callable[[int], Translate]
    column: str | None = None  # of TSV, JSONL and Parquet
    outputs: int = 1  # lines per record
    batch: int = 512  # records translated at a time
    longest: int | None = None  # bytes of a line
    skips: bool = False  # report lines that cannot be translated and leave empty lines; otherwise they end the run
    dedup: bool = False  # translate equal lines of a shard once


COUNTED = tuple(
    """
    passes iterations drafting drafted accepted compared_tokens compared_cost plain plain_cost
""".split()
)


@dataclass(frozen=True)
class ShardReport:
    """A shard that is written. ``tokens`` to ``beam`` are those of `DecodeStats`."""

    number: int
    output: str
    records: int
    lines: int
    size: int  # bytes of the file
    sha256: str  # of its decompressed content
    tokens: int
    passes: int
    iterations: int
    drafting: int
    drafted: int
    accepted: int
    compared_tokens: int
    compared_cost: float
    plain: int
    plain_cost: float
    drafter: str | None
    beam: int
    seconds: float
    errors: list[str] = field(default_factory=list)  # of lines, with their places


class Executor(Protocol):
    """Runs `translate_shard` for each shard, anywhere and in any order."""

    def run(self, shards: Iterable[Shard], job: Job) -> Iterator[ShardReport]:
        """Yield reports as shards are written. Raises ValueError, OSError, ImportError or MemoryError."""
        ...
