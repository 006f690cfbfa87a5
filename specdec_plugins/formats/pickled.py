"""PyTorch's files of weights without PyTorch: an allow-listing reader of their zip and their pickle. Tensors are mapped.

`torch.save` writes a zip of uncompressed records: ``PREFIX/data.pkl``, a pickle of protocol 2, in which a tensor is a view of a
storage, and ``PREFIX/data/KEY`` for each storage. A file is untrusted: a machine of our own reads the pickle. It knows the
opcodes and the names that weights need, and can build nothing but numbers, strings, tuples, lists, dictionaries and views of the
file. Everything else is refused.
"""

import pickletools
import struct
from collections.abc import Callable
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from specdec_plugins.formats.arrays import BFLOAT16, address
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import mapping

MAGIC = b"PK\x03\x04"
MOST_BYTES = 1 << 22  # of the pickle, and of the directory: a tensor takes about 200 of each
MOST_DIMENSIONS = 32
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, and the lengths of the name and the extra field that follow
STORAGES = {  # by torch's names
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


# What zipfile, pickletools, NumPy and the machine raise for damaged files.
FAULTS = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, OSError, EOFError, BadZipFile, struct.error)


class Refused(ValueError):
    """What a file of weights has no use for; the message says what."""


class Bounded(BufferedReader):
    """A file for zipfile, which reads a directory in one piece, and makes an object of 15 times its size for each entry."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MOST_BYTES:
            raise Refused(f"its directory is larger than {MOST_BYTES:,} bytes")
        return super().read(size)


class Storage(NamedTuple):
    """Numbers in the file, or, if they are not aligned there, a copy."""

    dtype: np.dtype
    content: np.ndarray  # bytes


def read(path: Path) -> Any:
    """What a file holds, most often a dictionary of arrays. Raises ValueError naming the file if it is damaged, has more than
    weights, or is not a zip."""
    try:
        with Bounded(open(path, "rb", buffering=0)) as file, ZipFile(file) as archive:
            records = {each.filename: each for each in archive.infolist()}
            prefix = archive.filelist[0].filename.partition("/")[0]
        content = np.asarray(np.memmap(path, np.uint8, "c"))
        found = partial(record, content, records, prefix)
        if f"{prefix}/byteorder" in records and found("byteorder").tobytes() != b"little":
            raise Refused("its numbers are big-endian; save it again on another machine, or as safetensors")
        pickle = found("data.pkl")
        if len(pickle) > MOST_BYTES:
            raise Refused(f"its pickle is larger than {MOST_BYTES:,} bytes")
        result = Machine(found).run(pickle.tobytes())
    except Refused as error:
        raise ValueError(f"{path}: refused: {error}") from None
    except FAULTS as error:
        what = f"{type(error).__name__}: {brief(error)}"
        raise ValueError(f"{path}: not a readable file of weights, or a damaged one ({what})") from None
    mapping(path)
    return result


def record(content: np.ndarray, records: dict[str, ZipInfo], prefix: str, name: str) -> np.ndarray:
    """The bytes of a record of the file with these bytes. Raises ValueError."""
    entry = records.get(f"{prefix}/{name}")
    if entry is None:
        raise ValueError(f"no record {name:.80}")
    if entry.compress_type or entry.flag_bits & 1:
        raise Refused("it is compressed or encrypted")
    place = max(0, entry.header_offset)
    header = content[place : place + LOCAL_HEADER.size].tobytes()
    signature, *lengths = LOCAL_HEADER.unpack(header)
    start = place + LOCAL_HEADER.size + sum(lengths)
    if signature != MAGIC or entry.compress_size != entry.file_size or start + entry.file_size > len(content):
        raise ValueError(f"record {name:.80} is not in the file")
    return content[start : start + entry.file_size]


# ---- what the names in a pickle stand for


def ordered_dict() -> dict:
    return {}


def tensor(
    storage: Storage, offset: int, size: tuple, stride: tuple, requires_grad: bool, hooks: dict, *metadata: Any
) -> np.ndarray:
    """A view of a storage from element ``offset`` on. Raises ValueError for one that leaves the storage; one that has an element
    more than once may be of any size (`formats.spec.storage_fault`)."""
    if not isinstance(storage, Storage) or type(size) is not tuple or type(stride) is not tuple:
        raise ValueError("a tensor without a storage, sizes and strides")
    if len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(size)} sizes and {len(stride)} strides")
    if any(type(each) is not int or each < 0 for each in (offset, *size, *stride)):
        raise ValueError("a tensor whose sizes and strides are no whole numbers")
    width = storage.dtype.itemsize
    last = offset + sum((count - 1) * step for count, step in zip(size, stride))
    if 0 in size:
        return np.empty(size, storage.dtype)
    if last >= len(storage.content) // width:
        raise ValueError("a tensor outside its storage")
    strides = tuple(width * step for step in stride)
    return np.ndarray(size, storage.dtype, storage.content, width * offset, strides)


def parameter(data: np.ndarray, requires_grad: bool, hooks: dict, *state: Any) -> np.ndarray:
    if not isinstance(data, np.ndarray):
        raise ValueError("a parameter without a tensor")
    return data


NAMES: dict[str, Callable[..., Any] | np.dtype] = {
    "collections OrderedDict": ordered_dict,
    "torch._utils _rebuild_tensor_v2": tensor,
    "torch._utils _rebuild_parameter": parameter,
    "torch._utils _rebuild_parameter_with_state": parameter,
    **{f"torch {name}": dtype for name, dtype in STORAGES.items()},
}


class Machine:
    """The pickle machine, as far as weights need it. Its stack and memo have at most one value for each opcode."""

    def __init__(self, record: Callable[[str], np.ndarray]):
        self.record = record
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self, pickle: bytes) -> Any:
        """The value that a pickle describes. Raises ValueError, or what Python raises for a damaged one."""
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name not in OPCODES:
                raise Refused(f"its pickle has the opcode {opcode.name}, which weights do not need")
            OPCODES[opcode.name](self, argument)
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> tuple:
        """The last values, in order."""
        if not 0 <= count <= len(self.stack):
            raise ValueError("its pickle takes values that it does not have")
        first = len(self.stack) - count
        values = tuple(self.stack[first:])
        del self.stack[first:]
        return values

    def marked(self) -> tuple:
        """The values after the last mark."""
        return self.pop(len(self.stack) - self.marks.pop())

    def mark(self, argument: None) -> None:
        self.marks.append(len(self.stack))

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        self.push(self.memo[place])

    def name(self, name: str) -> None:
        if name not in NAMES:
            raise Refused(f"its pickle names the global {'.'.join(brief(name).split())}, which is not one of weights")
        self.push(NAMES[name])

    def protocol(self, number: int) -> None:
        if number != 2:
            raise Refused(f"its pickle has protocol {number}, not 2")

    def append(self, values: tuple) -> None:
        (target,) = self.stack[-1:]
        if type(target) is not list:
            raise ValueError("its pickle appends to what is no list")
        target.extend(values)

    def set_items(self, values: tuple) -> None:
        (target,) = self.stack[-1:]
        keys = values[::2]
        # Hashing a tuple takes time that grows with what is in it, which may be the same many times over.
        if type(target) is not dict or len(values) % 2 or any(type(key) not in (str, int) for key in keys):
            raise ValueError("its pickle has a dictionary whose keys are no names")
        target.update(zip(keys, values[1::2]))

    def reduce(self, argument: None) -> None:
        """Calls a function of this file."""
        function, arguments = self.pop(2)
        if not callable(function) or type(arguments) is not tuple:
            raise ValueError("its pickle calls what is no function")
        self.push(function(*arguments))

    def build(self, argument: None) -> None:
        """The attributes of a dictionary of PyTorch's, which say versions of modules: dropped."""
        target, _ = self.pop(2)
        if type(target) is not dict:
            raise ValueError("its pickle gives attributes to what is no dictionary")
        self.push(target)

    def storage(self, argument: None) -> None:
        """``("storage", type, key, location, elements)``"""
        (identity,) = self.pop(1)
        kind, dtype, key, _, count = identity
        if kind != "storage" or not isinstance(dtype, np.dtype) or type(key) is not str or type(count) is not int:
            raise ValueError("its pickle names a storage of another kind")
        if key not in self.storages:
            content, size = self.record(f"data/{key}"), count * dtype.itemsize
            if not 0 <= size <= len(content):
                raise ValueError(f"a storage of {count:,} elements, which the file does not have")
            place = address(content) % dtype.itemsize
            self.storages[key] = Storage(dtype, content[:size].copy() if place else content[:size])
        elif self.storages[key].dtype != dtype:
            raise ValueError("a storage of two data types")
        self.push(self.storages[key])


OPCODES: dict[str, Callable[[Machine, Any], None]] = {
    "PROTO": Machine.protocol,
    "STOP": lambda machine, _: None,
    "MARK": Machine.mark,
    "GLOBAL": Machine.name,
    "REDUCE": Machine.reduce,
    "BUILD": Machine.build,
    "BINPERSID": Machine.storage,
    "NONE": Machine.push,
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "TUPLE": lambda machine, _: machine.push(machine.marked()),
    "TUPLE1": lambda machine, _: machine.push(machine.pop(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.pop(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.pop(3)),
    "APPEND": lambda machine, _: machine.append(machine.pop(1)),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), Machine.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), Machine.get),
}
