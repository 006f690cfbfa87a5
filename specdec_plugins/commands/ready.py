"""What commands refuse at once, before they import the engine and load a model: missing files, outputs that cannot be written,
unknown drafters, devices that are not there. Nothing is changed on disk, except that models of the Hub are fetched."""

import errno
import importlib.util
import os
import re
from contextlib import suppress
from pathlib import Path

from specdec_plugins.extras import needed
from specdec_plugins.formats import drafter_folder, hub
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import AnyPath
from specdec_plugins.settings import UNTRAINED


def model(name: AnyPath) -> str:
    """The folder of a model, which may be one of the Hub. Raises ValueError or ImportError."""
    folder = hub.find(name)
    if not folder.is_dir():
        raise ValueError(f"{folder}: not a model folder (not a folder)")
    if not any((folder / each).exists() for each in ("model.json", "config.json")):
        if (folder / drafter_folder.NAME).exists():
            raise ValueError(f"{folder}: a drafter; name its model with --model, and this with --drafter")
        raise ValueError(f"{folder}: not a model folder (no model.json in it)")
    if (folder / "model.json").exists():
        complete(folder, "model", files_of(folder / "model.json"))
    return str(folder)


def trained_drafter(name: str, model_folder: str) -> str:
    """The name of one of a model's drafters as it is; else the folder of a drafter or of a model that drafts, perhaps one of the
    Hub. Raises ValueError or ImportError."""
    own = [each.code for each in drafter_folder.drafters_in(Path(model_folder))]
    if name in own:
        return name
    try:
        folder = hub.find_drafter(name).absolute()  # which no drafter of the model is called
    except ValueError as error:
        names = f"; drafters of {model_folder}: {', '.join(map(brief, own))}" if own and "/" not in name else ""
        raise ValueError(f"{error}{names}") from None
    entries = drafter_folder.drafters_in(folder)
    complete(folder, "drafter", [each.weights for each in entries])
    return str(folder) if entries else model(folder)


def complete(folder: Path, what: str, files: list[str]) -> None:
    """Raise ValueError for the first file that a folder lacks."""
    for file in files:
        if Path(file).name == file and not (folder / file).exists():  # other names are refused when it is read
            raise ValueError(f"{folder}: not a {what} folder (no {file} in it)")


def files_of(path: Path) -> list[str]:
    """The names of the files that a ``model.json`` asks for. Raises ValueError if it is damaged."""
    from specdec_plugins.formats.description import read_description

    described = read_description(path)
    weights = [part.weights for part in (described.verifier, described.drafter) if part]
    weights += [part.weights for part in getattr(described, "other_drafters", ())]
    weights += getattr(described.verifier, "packed", {}).values()
    return [*weights, *described.codec.files.values()]


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
    """Raise ValueError for a name that no drafter without weights has, or for one in a package that is not installed."""
    if name is None or name in UNTRAINED:
        return
    package, object_given, _ = name.partition(":")
    if object_given:
        package = package.partition(".")[0]
        if package and importlib.util.find_spec(package) is None:
            raise ValueError(f"drafter '{name}': No module named '{package}'")
        return
    from importlib.metadata import entry_points

    installed = [point.name for point in entry_points(group="specdec.drafters")]
    if name not in installed:
        names = ", ".join([*UNTRAINED, *installed])
        raise ValueError(f"no drafter without weights is named '{name}'; available: {names}, and module:object")


def device(name: str) -> None:
    """Raise ValueError for an unknown device, and for a GPU where PyTorch is a build for CPUs; ImportError without PyTorch."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise ValueError(f"device {name}: use cpu, cuda or cuda:N")
    if name == "cpu":
        return
    pytorch(f"device {name}")
    from importlib.metadata import PackageNotFoundError, version

    with suppress(PackageNotFoundError):  # a PyTorch without metadata may have any device
        if version("torch").endswith("+cpu"):
            raise ValueError(
                f"device {name}: PyTorch is installed as its CPU build; install its CUDA build (CUDA=1 make install)"
            )


def pytorch(feature: str) -> None:
    """Raise ImportError where PyTorch is not installed, which ``feature`` needs."""
    if importlib.util.find_spec("torch") is None:
        with needed("torch", feature):
            raise ImportError("No module named 'torch'")


def kernels(name: str | None) -> None:
    """Raise ValueError for CPU kernels that this machine cannot run."""
    from specdec_plugins.decoding.compiled import chosen

    if name is not None:
        chosen(name)


def keys(path: AnyPath) -> frozenset[str]:
    """A file with a key per line; # begins a comment. Raises OSError, or ValueError if it has none or is not text."""
    readable(path)
    try:
        lines = [line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8; write one key per line") from None
    if not (found := frozenset(filter(None, lines))):
        raise ValueError(f"{path}: no keys; write one per line")
    return found


def _require_room(folder: Path, parents: bool, path: AnyPath) -> None:
    while parents and not os.path.lexists(folder):
        folder = folder.parent
    _require(os.path.lexists(folder), errno.ENOENT, path)
    _require(folder.is_dir(), errno.ENOTDIR, path)
    _require(os.access(folder, os.W_OK | os.X_OK), errno.EACCES, path)


def _require(fact: bool, number: int, path: AnyPath) -> None:
    if not fact:
        raise OSError(number, os.strerror(number), os.fspath(path))
