"""The records of inputs: lines, or a column of TSV, JSONL and Parquet, by the file's name; text may be ``.gz`` or ``.zst``."""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, BinaryIO

from specdec_plugins.corpora.stores import open_file, stamp
from specdec_plugins.corpora.values import Piece
from specdec_plugins.extras import needed
from specdec_plugins.text.compressed import decompressed
from specdec_plugins.text.endings import ending_of, is_lines
from specdec_plugins.text.lines import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, LineReader

BLOCK = 1 << 20  # bytes
COLUMNS = ("tsv", "jsonl", "parquet")
Skipped = Callable[[ValueError], None] | None
Key = tuple[str, tuple[int, str]]  # a file as it was at a time
_behind: dict[Key, BinaryIO] = {}  # the compressed input whose piece this process read last, open where that ended


def form(path: str) -> str:
    """``lines``, ``tsv``, ``jsonl`` or ``parquet``. Raises ValueError for a file of another structure."""
    ending = ending_of(path)
    if ending in COLUMNS:
        return ending
    if not is_lines(path):
        raise ValueError(f"{path}: .{ending} files are not supported; inputs are lines of text, .tsv, .jsonl or .parquet")
    return "lines"


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Errors of reading name the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def opened(path: str, start: int = 0) -> BinaryIO:
    """A file's decompressed content from a byte on. A compressed file is read up to there, from the end of the last piece on if
    this process read that one last."""
    stream = _behind.pop((path, stamp(path)), None)
    if stream is None or stream.tell() > start:
        forget()
        stream = decompressed(open_file(path), path)
    if stream.seekable():
        stream.seek(start)
    while (left := start - stream.tell()) > 0 and stream.read(min(left, BLOCK)):
        pass
    return stream


def forget() -> None:
    """Close the input that was kept open."""
    while _behind:
        _behind.popitem()[1].close()


class PieceReader(LineReader):
    """The lines of an input from those of a piece on."""

    def __init__(self, piece: Piece, most: int | None, skipped: Skipped):
        self.name, self.number, self.most, self.skipped = piece.path, piece.line, most or MAX_LINE_BYTES, skipped
        with readable(piece.path):
            self.key = piece.path, stamp(piece.path)
            self.stream = opened(piece.path, piece.start)

    def __exit__(self, *error) -> None:
        if error[0] or not self.name.endswith((".gz", ".zst")):
            return self.stream.close()
        forget()
        _behind[self.key] = self.stream


def records(piece: Piece, column: str | None, most: int | None, skipped: Skipped) -> Iterator[str]:
    """The texts of a piece. Raises ValueError naming file and line; with ``skipped``, which is called with the error, such a
    text is empty."""
    found = {"lines": lines, "tsv": cells, "jsonl": fields, "parquet": rows}[form(piece.path)]
    count = 0
    for count, text in enumerate(found(piece, column or "", most, skipped), 1):
        if isinstance(text, ValueError):
            error = ValueError(f"{piece.path}, line {piece.line + count}: {text}")
            if skipped is None:
                raise error
            skipped(error)
            text = ""
        yield text
    if count < piece.count:
        raise ValueError(f"{piece.path}: has changed since it was planned; its lines end after {piece.line + count:,}")


def lines(piece: Piece, column: str, most: int | None, skipped: Skipped) -> Iterator[str]:
    with PieceReader(piece, most, skipped) as reader:
        yield from islice(reader, piece.count)


def cells(piece: Piece, column: str, most: int | None, skipped: Skipped) -> Iterator[str | ValueError]:
    """A column of TSV, by number from 1 or by the header's name. Fields are not quoted."""
    with readable(piece.path):
        index = int(column) - 1 if column.isdecimal() else header(piece.path, stamp(piece.path)).index(column)
    for line in lines(piece, column, most, skipped):
        row = line.split("\t")
        yield row[index] if index < len(row) else "" if not line else ValueError(f"has no column {column}")


@lru_cache(maxsize=1)
def header(path: str, date: tuple[int, str]) -> list[str]:
    """The names of a TSV file's columns, as of a date."""
    with PieceReader(Piece(path, 0, 0, 1), None, None) as reader:
        return next(iter(reader), "").split("\t")


def fields(piece: Piece, column: str, most: int | None, skipped: Skipped) -> Iterator[str | ValueError]:
    """A field of JSONL."""
    for line in lines(piece, column, MAX_DOCUMENT_BYTES, skipped):
        try:
            found = json.loads(line) if line else {column: ""}
            yield text_of(found[column], most)
        except (ValueError, RecursionError):
            yield ValueError("not JSON")
        except (KeyError, TypeError):
            yield ValueError(f"has no field {column}")


def rows(piece: Piece, column: str, most: int | None, skipped: Skipped) -> Iterator[str | ValueError]:
    """A column of Parquet, read a row group at a time."""
    with readable(piece.path), open_file(piece.path) as file:
        table, at = parquet(piece.path, file), 0
        for group in range(table.num_row_groups):
            size = table.metadata.row_group(group).num_rows
            first, last = max(piece.start - at, 0), min(piece.start + piece.count - at, size)
            if first < last:
                for cell in table.read_row_group(group, columns=[column]).column(0).slice(first, last - first):
                    try:
                        found = text_of(cell.as_py(), most)
                    except UnicodeDecodeError:
                        found = ValueError("not UTF-8")
                    yield found
            at += size


def text_of(value: object, most: int | None) -> str | ValueError:
    """A text as `LineReader` would have read it from a line of its own; a missing one is empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return ValueError("not text")
    if "\0" in value:
        return ValueError("contains a NUL byte, so it is not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return ValueError("contains half a surrogate pair, so it is not text")
    if size > (most or MAX_LINE_BYTES):
        return ValueError(f"longer than {most or MAX_LINE_BYTES:,} bytes")
    return re.sub("\r\n?|\n", " ", value.rstrip("\r\n"))


def parquet(path: str, file: BinaryIO) -> Any:
    with needed("corpora", ".parquet"):
        import pyarrow
        from pyarrow.parquet import ParquetFile
    try:
        return ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: {error}") from None


def scan(path: str, column: str | None, size: int, filled: int) -> tuple[list[tuple[Piece, int]], str]:
    """Cut an input into pieces of about ``size`` bytes, the first of ``size - filled``, each with its bytes; and its SHA-256."""
    kind = form(path)
    if kind != "lines" and not column:
        raise ValueError(f"{path}: name the column to translate with --column")
    with readable(path):
        if kind == "parquet":
            return scan_parquet(path, str(column), size, filled)
        with opened(path) as stream:
            digest, start = hashlib.sha256(), 0
            if kind == "tsv" and not str(column).strip("0"):
                raise ValueError(f"{path}: --column {column} is not a column; they are numbered from 1")
            if kind == "tsv" and not str(column).isdecimal():
                if column not in (names := header(path, stamp(path))):
                    raise ValueError(f"{path}: no column is named {column}; there are {', '.join(names)[:200]}")
                first = stream.readline()
                digest.update(first)
                start = len(first)
            return list(cuts(path, stream, start, size, filled, digest)), digest.hexdigest()


def cuts(path: str, stream: BinaryIO, offset: int, size: int, filled: int, digest: Any) -> Iterator[tuple[Piece, int]]:
    """The pieces of lines from ``offset`` on, after a header if that is not 0. Each ends with a line."""
    start, line, count, last = offset, int(offset > 0), 0, b"\n"
    while block := stream.read(BLOCK):
        digest.update(block)
        at = 0
        while True:
            end = block.find(b"\n", max(at, start + size - filled - 1 - offset))
            if end < 0:
                break
            count += block.count(b"\n", at, end + 1)
            at = end + 1
            yield Piece(path, start, line, count), offset + at - start
            start, line, count, filled = offset + at, line + count, 0, 0
        count += block.count(b"\n", at)
        last, offset = block[-1:], offset + len(block)
    if last != b"\n":
        count += 1
    if count:
        yield Piece(path, start, line, count), offset - start


def scan_parquet(path: str, column: str, size: int, filled: int) -> tuple[list[tuple[Piece, int]], str]:
    """The pieces of Parquet, for rows of average size."""
    with open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        table = parquet(path, file)
        if column not in table.schema_arrow.names:
            raise ValueError(f"{path}: no column is named {column}; there are {', '.join(table.schema_arrow.names)[:200]}")
        groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        total = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
        rows = table.metadata.num_rows
    each, start, pieces = max(1, total // max(1, rows)), 0, list[tuple[Piece, int]]()
    while start < rows:
        count = min(rows - start, -((filled - size) // each))
        pieces.append((Piece(path, start, start, count), count * each))
        start, filled = start + count, 0
    return pieces, digest
