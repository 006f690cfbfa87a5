"""Cuts inputs into shards: the same inputs and size always give the same shards."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_plugins.corpora.inputs import scan
from specdec_plugins.corpora.stores import stamp
from specdec_plugins.corpora.values import Piece, Shard


@dataclass(frozen=True)
class Input:
    """An input as it was read: its size, its date and the SHA-256 of its content."""

    path: str
    size: int
    date: str
    sha256: str


@dataclass(frozen=True)
class Plan:
    """The inputs, their size decompressed, and the shards."""

    inputs: list[Input]
    size: int
    shards: list[Shard]

    @property
    def records(self) -> int:
        return sum(shard.count for shard in self.shards)


def make_plan(paths: Sequence[str], column: str | None, size: int, suffix: str) -> Plan:
    """Read all inputs once and cut them into shards of about ``size`` bytes, across the ends of files. Raises ValueError."""
    inputs, parts, total = list[Input](), [list[Piece]()], 0
    filled = 0
    for path in paths:
        found = Input(path, *stamped(path), "")
        pieces, digest = scan(path, column, size, filled)
        inputs.append(Input(path, found.size, found.date, digest))
        for piece, used in pieces:
            parts[-1].append(piece)
            filled, total = filled + used, total + used
            if filled >= size:
                parts.append([])
                filled = 0
    parts = [part for part in parts if part]
    width, first, shards = max(5, len(str(len(parts)))), 0, list[Shard]()
    for number, part in enumerate(parts):
        shards.append(Shard(number, f"part-{number:0{width}}{suffix}", first, tuple(part)))
        first += shards[-1].count
    return Plan(inputs, total, shards)


def stamped(path: str) -> tuple[int, str]:
    """The size and date of an input. Raises ValueError."""
    try:
        return stamp(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)  # stores do not say so
        raise ValueError(f"{path}: {error.strerror or ('No such file' if missing else 'cannot be read')}") from None
