"""Files that are written whole or not at all, and files mapped into memory."""

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to; what is there at the end becomes ``path``, with the permissions of any new file. After an error
    ``path`` is what it was."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # safetensors writes files that only their owner reads
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


MADV_DONTNEED = 4


def unload(addresses: Iterable[int]) -> None:
    """Give back the memory of safetensors files that are mapped at some of these addresses; it is read again where it is used.

    A model in use has packed its weights, and mapped pages would count as the process's memory. They must not have been written
    to: changes would be lost.
    """
    needed = sorted(addresses)
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux: the pages stay until the system wants them
        return
    for line in lines:
        if line.endswith(".safetensors"):
            start, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
            if any(start <= address < end for address in needed):
                ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
