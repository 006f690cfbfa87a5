"""Files that are compressed, by their names: ``.gz``, and ``.zst`` by zstandard, which is imported on first use."""

import gzip
import io
import os
from pathlib import Path
from typing import Any, BinaryIO, cast

from specdec_plugins.extras import needed

AnyPath = str | os.PathLike[str]
CHUNK = 512  # compressed bytes, which a hostile file may expand to 16 MB


def open_read(path: AnyPath) -> BinaryIO:
    """A file's content. Reading raises OSError, EOFError or zlib.error if it is damaged."""
    return decompressed(open(path, "rb"), path)


def decompressed(file: BinaryIO, path: AnyPath) -> BinaryIO:
    """The content of a file of this name that is open, and closed with what is returned."""
    suffix = Path(path).suffix
    if suffix == ".zst":
        return cast(BinaryIO, io.BufferedReader(ZstdFile(file)))
    if suffix != ".gz":
        return file
    stream = gzip.GzipFile(fileobj=file, mode="rb")
    stream.myfileobj = file  # type: ignore[assignment]  # it closes this one
    return cast(BinaryIO, stream)


def compress(data: bytes, path: AnyPath) -> bytes:
    """What a file of this name holds for ``data``: one member or frame, which others may follow."""
    suffix = Path(path).suffix
    if suffix == ".zst":
        return zstandard().ZstdCompressor().compress(data)
    return gzip.compress(data, mtime=0) if suffix == ".gz" else data


class ZstdFile(io.RawIOBase):
    """Decompresses frame after frame. One that is incomplete raises EOFError; the library's own reader would not notice."""

    def __init__(self, file: BinaryIO):
        self.library, self.file = zstandard(), file
        self.rest, self.position = b"", 0
        self.frame: Any = None  # None before the first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            over = self.frame is not None and self.frame.eof
            data = (self.frame.unused_data if over else b"") or self.file.read(CHUNK)
            if not data and self.frame is not None and not over:
                raise EOFError("the file ends within a frame")
            if not data:
                return 0
            if self.frame is None or over:
                self.frame = self.library.ZstdDecompressor().decompressobj()
            try:
                self.rest = self.frame.decompress(data)
            except self.library.ZstdError as error:
                raise OSError(str(error)) from None
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        self.position += count
        return count

    def tell(self) -> int:
        return self.position

    def close(self) -> None:
        self.file.close()
        super().close()


def zstandard() -> Any:
    with needed("files", ".zst"):
        import zstandard
    return zstandard
