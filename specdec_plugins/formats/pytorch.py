"""PyTorch's files of weights without PyTorch: tensors are views of the file, which is mapped. Untrusted: see `pickled.py`.

Since version 1.6 `torch.save` writes a zip of uncompressed records: ``PREFIX/data.pkl``, a pickle, and ``PREFIX/data/KEY`` for
each storage. Before, it wrote five pickles (a magic number, the version of the format, facts about the machine, the content, the
keys of the storages), then each storage after its number of elements.
"""

import math
import struct
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from specdec_plugins.formats.arrays import Tensors, address
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import mapping
from specdec_plugins.formats.pickled import Machine, Refused, Storage, View

ZIP = b"PK\x03\x04"
OLD = 0x1950A86A20F9469CFC6C, 1001  # magic number and version of the format before 1.6
OLD_START = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # the magic number's pickle
MOST_BYTES = 1 << 22  # of pickles, and of a zip's directory: a tensor takes about 200 of each
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, and the lengths of the name and the extra field that follow
COUNT = struct.Struct("<q")
# What zipfile, pickletools, NumPy and the machine raise for damaged files.
FAULTS = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, OSError, EOFError, BadZipFile, struct.error)


def read(path: Path) -> Any:
    """What a file holds, most often a dictionary of arrays. Raises ValueError naming the file if it is damaged, or has more than
    weights."""
    try:
        content = np.asarray(np.memmap(path, np.uint8, "c"))
        start = content[: len(OLD_START)].tobytes()
        if not start.startswith((ZIP, OLD_START)):
            raise ValueError("neither a zip nor PyTorch's older format")
        value, storages = zipped(path, content) if start.startswith(ZIP) else unzipped(content)
        if type(value) is dict:
            value = {name: placed(each, storages) if type(each) is View else each for name, each in value.items()}
    except Refused as error:
        raise ValueError(f"{path}: refused: {error}") from None
    except FAULTS as error:
        what = f"{type(error).__name__}: {brief(error)}"
        raise ValueError(f"{path}: not a readable file of weights, or a damaged one ({what})") from None
    mapping(path)
    return value


# ---- views


def aligned(storage: Storage, content: np.ndarray) -> np.ndarray:
    """The bytes of a storage, which begins ``content``; a copy if they are at an odd address. Raises ValueError."""
    size = storage.bytes
    if not 0 <= size <= len(content):
        raise ValueError(f"a storage of {storage.elements:,} elements, which the file does not have")
    return content[:size].copy() if address(content) % storage.dtype.itemsize else content[:size]


def placed(view: View, storages: Tensors) -> np.ndarray:
    """A tensor in the bytes of its storage. Raises ValueError for one that leaves them; one that has an element more than once
    may be of any size (`formats.spec.storage_fault`)."""
    (dtype, key, elements), offset, size, stride = view
    if not math.prod(size):
        return np.empty(size, dtype)
    if offset + sum((each - 1) * step for each, step in zip(size, stride)) >= elements:
        raise ValueError("a tensor outside its storage")
    width = dtype.itemsize
    return np.ndarray(size, dtype, storages[key], width * offset, tuple(width * step for step in stride))


# ---- the zip


class Bounded(BufferedReader):
    """A file for zipfile, which reads a directory in one piece, and makes an object of 15 times its size for each entry."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MOST_BYTES:
            raise Refused(f"its directory is larger than {MOST_BYTES:,} bytes")
        return super().read(size)


def zipped(path: Path, content: np.ndarray) -> tuple[Any, Tensors]:
    """The value of a zip's pickle, and its storages by key."""
    with Bounded(open(path, "rb", buffering=0)) as file, ZipFile(file) as archive:
        records = {each.filename: each for each in archive.infolist()}
        prefix = archive.filelist[0].filename.partition("/")[0]
    found = partial(record, content, records, prefix)
    if f"{prefix}/byteorder" in records and found("byteorder").tobytes() != b"little":
        raise Refused("its numbers are big-endian; save it again on another machine, or as safetensors")
    pickle = found("data.pkl")
    if len(pickle) > MOST_BYTES:
        raise Refused(f"its pickle is larger than {MOST_BYTES:,} bytes")
    machine = Machine()
    value = machine.run(BytesIO(pickle.tobytes()))
    if sum(each.bytes for each in machine.storages.values()) > len(content):  # they overlap, and each may be copied
        raise ValueError("storages larger than the file")
    return value, {key: aligned(each, found(f"data/{key}")) for key, each in machine.storages.items()}


def record(content: np.ndarray, records: dict[str, ZipInfo], prefix: str, name: str) -> np.ndarray:
    """The bytes of a zip's record; ``content`` is the whole file. Raises ValueError."""
    entry = records.get(f"{prefix}/{name}")
    if entry is None:
        raise ValueError(f"no record {name:.80}")
    if entry.compress_type or entry.flag_bits & 1:
        raise Refused("it is compressed or encrypted")
    place = max(0, entry.header_offset)
    signature, *lengths = LOCAL_HEADER.unpack(content[place : place + LOCAL_HEADER.size].tobytes())
    start = place + LOCAL_HEADER.size + sum(lengths)
    if signature != ZIP or entry.compress_size != entry.file_size or start + entry.file_size > len(content):
        raise ValueError(f"record {name:.80} is not in the file")
    return content[start : start + entry.file_size]


# ---- the format before 1.6


def unzipped(content: np.ndarray) -> tuple[Any, Tensors]:
    """The value of an old file's pickle, and its storages by key."""
    pickles = BytesIO(content[:MOST_BYTES].tobytes())
    magic, version, machine_facts = (Machine().run(pickles) for _ in range(3))
    if (magic, version) != OLD or type(machine_facts) is not dict or machine_facts.get("little_endian") is not True:
        raise Refused("its format is older than PyTorch 0.4, or its numbers are big-endian; save it again")
    machine = Machine()
    value, keys = machine.run(pickles), Machine().run(pickles)
    place, found = pickles.tell(), Tensors()
    if type(keys) is not list or set(map(type, keys)) - {str} or {*keys} != {*machine.storages}:
        raise ValueError("its keys are not those of its storages")
    for key in keys:
        storage = machine.storages[key]
        if COUNT.unpack(content[place : place + COUNT.size].tobytes())[0] != storage.elements:
            raise ValueError("a storage of another size")
        place += COUNT.size
        found[key] = aligned(storage, content[place:])
        place += storage.bytes
    return value, found
