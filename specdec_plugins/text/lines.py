"""Read lines of text: UTF-8, plain or compressed, with every error naming file and line."""

import codecs
import errno
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO

from specdec_plugins.text.compressed import AnyPath, open_read

# A longer "line" is a file without line ends. A megabyte far exceeds what any model reads, so a source that is too long is still
# reported by its number of tokens.
MAX_LINE_BYTES = 1_000_000
MAX_DOCUMENT_BYTES = 16_000_000  # of a line that is split into windows: over two million words


class LineReader:
    """Iterates over the lines of a UTF-8 text file (plain, ``.gz`` or ``.zst``), or of stdin without a path. A context manager.

    Lines come without their ends. Only ``\\n`` ends a line, as for ``wc -l``; U+2028 does not, so parallel files stay parallel. A
    carriage return is dropped at the end of a line and becomes a space elsewhere, because other tools would end the line there. A
    byte order mark is dropped. ``name`` is the file's name in messages, and ``number`` the number of lines read so far.

    Raises ValueError, naming file and line, if a line is not UTF-8, contains a NUL byte or exceeds ``most`` bytes
    (`MAX_LINE_BYTES`), or if the file cannot be read. With ``skipped``, which is called with the error, such a line is empty.
    """

    def __init__(
        self,
        path: AnyPath | None = None,
        most: int | None = None,
        skipped: Callable[[ValueError], None] | None = None,
    ):
        self.name, self.number, self.most = "stdin" if path is None else str(path), 0, most or MAX_LINE_BYTES
        self.skipped = skipped
        try:
            self.stream = _open(path)
        except OSError as error:
            raise self._unreadable(error) from None

    def __iter__(self) -> Iterator[str]:
        try:
            while data := self.stream.readline(self.most + 1):
                self.number += 1
                try:
                    line = self._text(data)
                except ValueError as error:
                    if self.skipped is None:
                        raise
                    self.skipped(error)
                    line = ""
                    while len(data) > self.most and not data.endswith(b"\n"):
                        data = self.stream.readline(self.most + 1)
                yield line
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None

    def skip(self, count: int) -> int:
        """Read up to ``count`` lines. Returns their number."""
        return sum(1 for _ in islice(self, count))

    def __enter__(self) -> "LineReader":
        return self

    def __exit__(self, *error) -> None:
        self.stream.close()

    def _text(self, data: bytes) -> str:
        if len(data) > self.most:
            raise ValueError(f"{self.name}, line {self.number}: longer than {self.most:,} bytes")
        if b"\0" in data:
            raise ValueError(f"{self.name}, line {self.number}: contains a NUL byte, so it is not text")
        try:
            line = data.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.name}, line {self.number}: not UTF-8 (byte {error.start + 1} of the line)") from None
        if self.number == 1:
            line = line.removeprefix("\ufeff")
        return line.rstrip("\r").replace("\r", " ") if "\r" in line else line

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"{self.name}: {getattr(error, 'strerror', None) or error}")


def read_lines(path: AnyPath) -> Iterator[str]:
    """Yield the lines of a file as `LineReader` does."""
    with LineReader(path) as lines:
        yield from lines


def count_line_ends(path: AnyPath) -> int:
    """The number of ``\\n`` in a file, unchecked: for a progress bar. Raises OSError."""
    with _open(path) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def read_bytes(path: AnyPath, most: int) -> bytes:
    """The content of a file, plain or compressed. Raises ValueError, naming it, if unreadable or over ``most`` bytes."""
    try:
        with open_read(path) as stream:
            data = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > most:
        raise ValueError(f"{path}: larger than {most:,} bytes")
    return data


def decoded(data: bytes) -> tuple[str, str]:
    """The byte order mark, perhaps empty, and the text of a file's content. Raises ValueError, naming the line at fault."""
    at, what = data.find(b"\0"), "contains a NUL byte, so it is not text"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        at, what = 0, "UTF-16; convert the file to UTF-8"
    elif at < 0:
        try:
            text = data.decode()
            return text[: text.startswith("\ufeff")], text.removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            at, what = error.start, "not UTF-8"
    line = data.count(b"\n", 0, at) + 1
    raise ValueError(f"line {line}: {what}")


def _open(path: AnyPath | None) -> BinaryIO:
    if path is not None:
        return open_read(path)
    if sys.stdin is None:
        raise OSError(errno.EBADF, "closed")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def refuse_nul(text: str) -> None:
    """Raises ValueError, naming the line, for a text with a NUL byte."""
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise ValueError(f"line {line}: contains a NUL byte, so it is not text")


def surrogate(text: str) -> bool:
    """Whether a text cannot be encoded. JSON may contain such texts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
