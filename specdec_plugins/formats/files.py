"""Atomic writes, locks, and files mapped into memory."""

import ctypes
import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AnyPath = str | os.PathLike[str]


def is_file_name(name: str) -> bool:
    """Whether an untrusted name can be a file's in a folder, and leads nowhere else."""
    return Path(name).name == name and name not in ("", "..") and name.isprintable()


@contextmanager
def whole(path: AnyPath) -> Iterator[Path]:
    """Yields a temporary path that replaces ``path`` at the end, with a new file's permissions. An error leaves ``path`` as it
    was, and so does a loss of power: the file reaches the disk before it takes the place."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the process's number: on two machines that share the folder it may be the same.
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # safetensors makes files private to their owner
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's names, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a file of indented JSON, whole or not at all."""
    write(path, json.dumps(value, indent=1) + "\n")


def lock(file: int, taken: str) -> None:
    """Lock an open file until it is closed. Raises ValueError with the message ``taken`` if it is locked. File systems without
    locks do nothing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(taken) from None
    except OSError:
        pass


MADV_DONTNEED = 4
_mapped = set[str]()  # the files of weights that this process has mapped


def mapping(path: AnyPath) -> None:
    """Note that a file of weights is mapped. `unload` drops the pages of no other: a library's hold its relocated data."""
    _mapped.add(os.path.realpath(path))


class Mapped:
    """Unloads files of weights while they are read, so that few of their pages are in memory at a time."""

    MOST = 1 << 26  # bytes

    def __init__(self) -> None:
        self._addresses, self._bytes = set[int](), 0

    def read(self, address: int, size: int) -> None:
        """Note that these bytes, of a mapped file or not, have been read and are not needed for now."""
        self._addresses.add(address)
        self._bytes += size
        if self._bytes >= self.MOST:
            self.unload()

    def unload(self) -> None:
        """Unload now. Later, the memory of a tensor that is gone may be another's."""
        unload(self._addresses)
        self._addresses, self._bytes = set(), 0


def unload(addresses: Iterable[int]) -> None:
    """Release the memory of files of weights mapped at any of these addresses (`mapping`); pages are read again on access.

    A loaded model has packed its weights, but mapped pages still count as the process's memory. Changes to them are lost.
    """
    known = set(_mapped)
    if not known:
        return
    needed, present = list(addresses), set[str]()
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux: the system reclaims the pages itself
        return
    for line in lines:
        place, *_, path = line.split(maxsplit=5)
        if path in known:
            present.add(path)
            start, end = (int(number, 16) for number in place.split("-"))
            if any(start <= address < end for address in needed):
                ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
    _mapped.difference_update(known - present)  # reading the maps takes milliseconds, for nothing once they are gone
