"""The compiled CPU kernels that this machine has, by instruction set. Imports no torch.

``backends/cpu/csrc`` has their sources; ``backends/cpu/binding.py`` calls them.
"""

import ctypes
import hashlib
import re
from array import array
from collections.abc import Callable, Iterable
from ctypes import c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache, partial
from itertools import chain
from operator import not_
from pathlib import Path
from struct import pack
from typing import Any

from specdec_plugins.decoding.options import KERNELS

FOLDER = Path(__file__).parent / "backends" / "cpu"
SOURCES = FOLDER / "csrc"  # in checkouts
VARIANTS: tuple[str, ...] = KERNELS
SCALARS = {"int": c_int, "int64_t": c_int64, "float": c_float, "double": c_double}


@cache
def sources_hash(folder: Path) -> str:
    """A hash of the kernels' sources, which setup.py compiles into them."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cpp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


class Library(ctypes.CDLL):
    """Compiled kernels. ``name`` is their instruction set, ``structs`` their C structs by name, as ctypes types; pointers in them
    are addresses. Structs are the same for all instruction sets, objects and their addresses are not.
    """

    name: str
    structs: dict[str, Any]

    def rows(self, name: str, **columns: Iterable[float]) -> "array[int]":
        """An array of the struct ``name``, whose fields all have 8 bytes, from a column of numbers for each field."""
        fields, form, whole = form_of(self.structs[name])
        numbers = [*chain.from_iterable(zip(*map(columns.__getitem__, fields), strict=True))]
        assert len(columns) == len(fields), f"{name} has no {', '.join(columns.keys() - {*fields})}"
        return array("q", numbers if whole else pack(form * (len(numbers) // len(fields)), *numbers))

    def declare(self) -> None:
        """Give ctypes the structs and functions as the library's own source text declares them: see exported.h."""
        self.specdec_declarations.restype = c_char_p
        text = self.specdec_declarations().decode()
        self.structs = structs_of(text)
        for result, name, body in DECLARATION.findall(text):
            if result == "struct":
                continue
            function = getattr(self, f"specdec_{name}")
            function.argtypes = [kind for _, kind in fields_of(body.split(","), self.structs)]
            function.restype = None if result == "void" else c_int if result == "int" else c_void_p
            if result != "void":
                function.errcheck = partial(check_memory, *(("a pass", bool) if result == "int" else ("weights", not_)))


@cache
def form_of(struct: Any) -> tuple[tuple[str, ...], str, bool]:
    """The fields of a row, their codes in `array` and `struct`, and whether all are whole numbers."""
    codes = {c_double: "d"}
    form = "".join(codes.get(kind, "q") for _, kind in struct._fields_)
    return tuple(name for name, _ in struct._fields_), form, "d" not in form


DECLARATION = re.compile(r"^(\S+) (\w+){(.*)}$", re.MULTILINE)


@cache
def structs_of(text: str) -> dict[str, Any]:
    """The structs that a library declares, by name: one type for the libraries of all instruction sets."""
    structs = dict[str, Any]()
    for _, name, body in (each for each in DECLARATION.findall(text) if each[0] == "struct"):
        fields = fields_of(body.split(";")[:-1], structs)
        structs[name] = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
    return structs


def fields_of(declarations: Iterable[str], structs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name and type of each field or parameter; a declaration may have several."""
    fields = []
    for declaration in declarations:
        kind, names = re.findall(r"^\s*(?:const )?(\w+)(.*)$", declaration)[0]
        for name in names.split(","):
            fields.append((name.strip(" *"), c_void_p if "*" in name else SCALARS.get(kind) or structs[kind]))
    return fields


def sources_of(library: ctypes.CDLL) -> str | None:
    """The hash of the sources that a library was compiled from; None if it does not say."""
    if not hasattr(library, "specdec_sources"):
        return None
    library.specdec_sources.restype = c_char_p
    text: bytes = library.specdec_sources()
    return text.decode()


def check_memory(what: str, failed: Callable[[Any], bool], result: Any, function: object, arguments: object) -> Any:
    if failed(result):
        raise MemoryError(f"too little memory for {what} on the CPU kernels")
    return result


@cache
def library(name: str | None = None) -> Library | None:
    """The kernels for an instruction set, by default the best that this CPU supports; None if this CPU does not support it or
    they were not compiled.

    Raises ImportError for a library compiled from other sources.
    """
    if name is None:
        return next((found for found in map(library, VARIANTS) if found), None)
    for path in FOLDER.glob(f"_kernels_{name}.*"):
        found = Library(str(path))
        if SOURCES.is_dir() and sources_of(found) != sources_hash(SOURCES):
            raise ImportError(f"{path} was compiled from other sources: run `pip install -e .` in a checkout, or reinstall")
        if found.specdec_supported():
            found.declare()
            found.name = name
            return found
    return None


def available() -> list[str]:
    """The instruction sets that this machine can run, best first."""
    return [name for name in VARIANTS if library(name)]


def chosen(name: str | None) -> Library | None:
    """As `library`, but raises ValueError for a named instruction set that this machine cannot run."""
    found = library(name)
    if found is None and name is not None:
        compiled = any(FOLDER.glob(f"_kernels_{name}.*"))
        reason = "this CPU lacks these instructions" if compiled else "they were not compiled"
        raise ValueError(f"kernels for {name} cannot run here: {reason}; available: {', '.join(available()) or 'none'}")
    return found


def kernels() -> Library:
    """The best kernels, for code that runs only where there are some."""
    found = library()
    assert found is not None, "no kernels were compiled for this machine"
    return found
