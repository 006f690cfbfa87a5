"""Read lines of text: UTF-8, plain or gzip, each fault named with its file and line. Knows nothing about models."""

import errno
import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

# A longer "line" is a file without line ends, not a sentence. A megabyte holds far more than any model reads, so that a source
# that is too long is reported as such, with its number of tokens, and not as a broken file.
MAX_LINE_BYTES = 1_000_000
MAX_DOCUMENT_BYTES = 16_000_000  # of a line that is cut into windows: over two million words


class LineReader:
    """Iterates over the lines of a UTF-8 text file (plain or ``.gz``), or of stdin without a path. A context manager.

    Lines come without their ends. Only ``\\n`` ends a line, as for ``wc -l``: U+2028 and its like do not, so parallel files stay
    parallel. A carriage return before the end is dropped and elsewhere becomes a space, because other tools would take it for a
    line end. A byte order mark at the beginning of the file is dropped. ``name`` is what messages call the file, and ``number``
    is the number of lines read so far.

    Raises ValueError naming file and line when a line is not UTF-8, has a NUL byte or has over ``most`` bytes (`MAX_LINE_BYTES`),
    or naming the file when it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, most: int | None = None):
        self.name, self.number, self.most = "stdin" if path is None else str(path), 0, most or MAX_LINE_BYTES
        try:
            self.stream = _open(path)
        except OSError as error:
            raise self._unreadable(error) from None

    def __iter__(self) -> Iterator[str]:
        try:
            while data := self.stream.readline(self.most + 1):
                self.number += 1
                yield self._text(data)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None

    def skip(self, count: int) -> int:
        """Read ``count`` lines, or as many as there are. Returns how many these were."""
        return sum(1 for _ in islice(self, count))

    def __enter__(self) -> "LineReader":
        return self

    def __exit__(self, *error) -> None:
        self.stream.close()

    def _text(self, data: bytes) -> str:
        if len(data) > self.most:
            raise ValueError(f"{self.name}, line {self.number}: longer than {self.most:,} bytes")
        if b"\0" in data:
            raise ValueError(f"{self.name}, line {self.number}: holds a NUL byte, so this is no text")
        try:
            line = data.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.name}, line {self.number}: not UTF-8 (byte {error.start + 1} of the line)") from None
        if self.number == 1:
            line = line.removeprefix("\ufeff")
        return line.rstrip("\r").replace("\r", " ") if "\r" in line else line

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"{self.name}: {getattr(error, 'strerror', None) or error}")


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a file, as `LineReader` does, and close it after the last."""
    with LineReader(path) as lines:
        yield from lines


def count_line_ends(path: str | os.PathLike[str]) -> int:
    """The number of ``\\n`` in a file, which nothing is checked of: for a progress bar. Raises OSError."""
    with _open(path) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def _open(path: str | os.PathLike[str] | None) -> BinaryIO:
    if path is None:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "closed")
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    return cast(BinaryIO, gzip.open(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb"))
