"""The pickles in PyTorch's files of weights, read by a machine of our own.

A pickle is a program, and untrusted. This machine knows the opcodes and the names that weights need, and can build nothing but
numbers, strings, tuples, lists, dictionaries and descriptions of tensors. Everything else is refused.
"""

import pickletools
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from specdec_plugins.formats.arrays import BFLOAT16
from specdec_plugins.formats.errors import brief

MOST_DIMENSIONS = 32
Values = tuple[Any, ...]
STORAGES = {  # by torch's names
    f"{name}Storage": np.dtype(ours)
    for name, ours in {
        "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": BFLOAT16.name, "Long": "int64", "Int": "int32",
        "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    }.items()
}  # fmt: skip


class Refused(ValueError):
    """A file has something that weights do not need; the message says what."""


class Storage(NamedTuple):
    dtype: np.dtype
    key: str
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.itemsize


class View(NamedTuple):
    """A tensor, as part of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


# ---- what the names in a pickle stand for


def ordered_dict() -> dict[Any, Any]:
    return {}


def tensor(
    storage: Storage, offset: int, size: Values, stride: Values, requires_grad: bool, hooks: object, metadata: object = None
) -> View:
    if type(storage) is not Storage or type(size) is not tuple or type(stride) is not tuple:
        raise ValueError("a tensor without a storage, sizes and strides")
    if len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(size)} sizes and {len(stride)} strides")
    if any(type(each) is not int or each < 0 for each in (offset, *size, *stride)):
        raise ValueError("a tensor whose sizes and strides are no whole numbers")
    return View(storage, offset, size, stride)


def parameter(data: View, requires_grad: bool, hooks: object, *state: object) -> View:
    if type(data) is not View:
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

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}  # by key

    def run(self, pickle: BinaryIO) -> Any:
        """The value that the next pickle of a stream describes. Raises ValueError, or what Python raises for a damaged one."""
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name not in OPCODES:
                raise Refused(f"its pickle has the opcode {opcode.name}, which weights do not need")
            OPCODES[opcode.name](self, argument)
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> Values:
        """The last values, in order."""
        if not 0 <= count <= len(self.stack):
            raise ValueError("its pickle takes values that it does not have")
        first = len(self.stack) - count
        values = tuple(self.stack[first:])
        del self.stack[first:]
        return values

    def marked(self) -> Values:
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

    def append(self, values: Values) -> None:
        (target,) = self.stack[-1:]
        if type(target) is not list:
            raise ValueError("its pickle appends to what is no list")
        target.extend(values)

    def set_items(self, values: Values) -> None:
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
        """``("storage", type, key, location, elements)``, in the format before 1.6 followed by what it is a part of: None."""
        (identity,) = self.pop(1)
        kind, dtype, key, _, count, *whole = identity
        if kind != "storage" or not isinstance(dtype, np.dtype) or type(key) is not str or type(count) is not int:
            raise ValueError("its pickle names a storage of another kind")
        if whole not in ([], [None]):
            raise Refused("its storages are parts of others; save it again with a newer PyTorch, or as safetensors")
        storage = Storage(dtype, key, count)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError("a storage of two types or sizes")
        self.push(storage)


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
