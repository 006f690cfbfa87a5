"""Where corpora are: local paths, and URLs such as ``s3://bucket/folder``, which fsspec reads and writes.

Nothing here appends, and only local files are renamed: stores can do neither. A file of a store is written by one call and counts
only once a report names its size.
"""

import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from specdec_plugins.extras import needed
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import whole

STAMPS = ("mtime", "ETag", "LastModified", "updated", "created")  # how stores date a file


def placed(path: str) -> str:
    """A path that means the same in every process."""
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return path if "://" in path else os.path.abspath(path)


def within(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def store(path: str) -> tuple[Any, str]:
    """The file system of fsspec, and the path in it."""
    with needed("corpora", path):
        import fsspec
    try:
        return fsspec.core.url_to_fs(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@contextmanager
def reached(path: str) -> Iterator[None]:
    """Errors of a store's library, such as missing credentials, are errors of files."""
    try:
        yield
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, brief(error), path) from None


class StoredFile(io.RawIOBase):
    """Reads a file of a store."""

    def __init__(self, path: str):
        self.path = path
        with reached(path):
            system, inside = store(path)
            self.file = system.open(inside, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with reached(self.path):
            return self.file.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()


def open_file(path: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(StoredFile(path))) if "://" in path else open(path, "rb")


def stamp(path: str) -> tuple[int, str]:
    """The size of a file and when it was written."""
    if "://" not in path:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file, and inputs are read more than once", path)
        return found.st_size, str(found.st_mtime_ns)
    with reached(path):
        system, inside = store(path)
        info = system.info(inside)
    return info["size"], next((str(info[name]) for name in STAMPS if info.get(name)), "")


def sizes(folder: str) -> dict[str, int]:
    """The files of a folder with their sizes; none if it does not exist."""
    if "://" not in folder:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    with reached(folder):
        system, inside = store(folder)
        system.invalidate_cache()
        found = system.ls(inside, detail=True) if system.exists(inside) else []
    return {info["name"].rsplit("/", 1)[-1]: info["size"] for info in found if info["type"] == "file"}


def make_folder(folder: str) -> None:
    if "://" not in folder:
        return os.makedirs(folder, exist_ok=True)
    with reached(folder):
        system, inside = store(folder)
        system.makedirs(inside, exist_ok=True)


def read(path: str) -> bytes:
    with open_file(path) as file:
        return file.read()


def contents(folder: str) -> dict[str, bytes]:
    """The files of a folder. A store reads many at a time."""
    if "://" not in folder:
        return {name: read(within(folder, name)) for name in sizes(folder)}
    with reached(folder):
        system, inside = store(folder)
        paths = [within(inside, name) for name in sizes(folder)]
        return {path.rsplit("/", 1)[-1]: data for path, data in (system.cat(paths) if paths else {}).items()}


def write(path: str, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with temporary(path) as local:
        local.write_bytes(data)


@contextmanager
def temporary(path: str) -> Iterator[Path]:
    """Yields a local path whose file takes the place of ``path`` at the end. An error leaves ``path`` as it was."""
    if "://" not in path:
        with whole(path) as local:
            yield local
        return
    system, inside = store(path)
    with tempfile.TemporaryDirectory() as made:
        local = Path(made, path.rsplit("/", 1)[-1])
        yield local
        with reached(path):
            system.put_file(str(local), inside)
            system.invalidate_cache(inside)
            size = system.info(inside)["size"]
        if size != local.stat().st_size:
            raise OSError(f"{path}: has {size:,} bytes after writing {local.stat().st_size:,}")
