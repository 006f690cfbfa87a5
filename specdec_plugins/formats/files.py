"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def usual_permissions(path: str | os.PathLike[str]) -> None:
    """Give a file the permissions of any new one: safetensors writes files that only their owner reads."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to; what is there at the end becomes ``path``. After an error ``path`` is what it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
