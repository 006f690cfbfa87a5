"""What commands refuse at once, before they import torch and load a model: missing files, outputs that cannot be written, unknown
drafters. Nothing is changed on disk, except that models of the Hub are fetched."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from specdec_plugins.formats import hub
from specdec_plugins.settings import UNTRAINED

AnyPath = str | os.PathLike[str]


def model(name: AnyPath) -> str:
    """The folder of a model, which may be one of the Hub. Raises ValueError or ImportError."""
    folder = hub.find(name)
    if not folder.is_dir():
        raise ValueError(f"{folder}: not a model folder (not a folder)")
    if not any((folder / each).exists() for each in ("model.json", "config.json")):
        raise ValueError(f"{folder}: not a model folder (no model.json in it)")
    return str(folder)


def readable(*paths: AnyPath | None) -> None:
    """Raise OSError for the first file that is missing, a folder or not readable; None stands for no file."""
    for path in paths:
        if path is not None:
            os.stat(path)
            _require(not os.path.isdir(path), errno.EISDIR, path)
            _require(os.access(path, os.R_OK), errno.EACCES, path)


def folder(path: AnyPath | None) -> None:
    """Raise OSError if the folder, if one is given, is missing."""
    if path is not None:
        os.stat(path)
        _require(os.path.isdir(path), errno.ENOTDIR, path)


def writable(path: AnyPath | None, parents: bool = False) -> None:
    """Raise OSError unless the file can be written. With ``parents``, missing folders above it are made."""
    if path is None:
        return
    _require(not os.path.isdir(path), errno.EISDIR, path)
    if os.path.exists(path):
        _require(os.access(path, os.W_OK), errno.EACCES, path)
    else:
        _require_room(Path(path).absolute().parent, parents, path)


def writable_folder(path: AnyPath | None) -> None:
    """Raise OSError unless files can be written into the folder, which is made if it is missing."""
    if path is not None:
        _require_room(Path(path).absolute(), True, path)


def new_folder(path: AnyPath | None) -> None:
    """Raise ValueError if the folder exists, OSError if it cannot be made."""
    if path is not None:
        if os.path.lexists(path):
            raise ValueError(f"{path} already exists")
        _require_room(Path(path).absolute().parent, True, path)


def drafter(name: str | None) -> None:
    """Raise ValueError for a name that no drafter without weights has."""
    if name is None or name in UNTRAINED or ":" in name:
        return
    from importlib.metadata import entry_points

    installed = [point.name for point in entry_points(group="specdec.drafters")]
    if name not in installed:
        names = ", ".join([*UNTRAINED, *installed])
        raise ValueError(f"no drafter without weights is named '{name}'; available: {names}, and module:object")


def device(name: str) -> None:
    """Raise ValueError for a GPU where torch is a build for CPUs."""
    if not name.startswith("cuda"):
        return
    from importlib.metadata import PackageNotFoundError, version

    with suppress(PackageNotFoundError):  # a torch without metadata may have any device
        if version("torch").endswith("+cpu"):
            raise ValueError(f"device {name}: torch is installed as its CPU build; install its CUDA build (CUDA=1 make install)")


def _require_room(folder: Path, parents: bool, path: AnyPath) -> None:
    while parents and not os.path.lexists(folder):
        folder = folder.parent
    _require(os.path.lexists(folder), errno.ENOENT, path)
    _require(folder.is_dir(), errno.ENOTDIR, path)
    _require(os.access(folder, os.W_OK | os.X_OK), errno.EACCES, path)


def _require(fact: bool, number: int, path: AnyPath) -> None:
    if not fact:
        raise OSError(number, os.strerror(number), os.fspath(path))
