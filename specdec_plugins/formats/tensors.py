"""safetensors files: mapped into memory when read, streamed when written."""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import BFLOAT16, Tensors, address, aligned, array, float16, is_floating
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import Mapped, mapping, whole
from specdec_plugins.formats.spec import all_finite

# The format's names of data types: https://github.com/huggingface/safetensors
DTYPES = {
    name: np.dtype(ours)
    for name, ours in {
        "F64": "float64", "F32": "float32", "F16": "float16", "BF16": BFLOAT16.name, "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
        "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    }.items()
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")  # of the header, before it
CACHE_LINE = 64  # bytes; where data begin


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Wraps reading a safetensors file: raises ValueError naming it."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file, or a damaged one ({brief(error)})") from None


def read(path: Path) -> Tensors:
    """A file's tensors as stored, in its order, mapped into memory. Raises ValueError naming the file.

    safetensors checks the header: the tensors follow it in order, without gaps, to the end of the file.
    """
    from safetensors import safe_open

    with readable(path), safe_open(path, framework="np") as file:
        entries = [(name, file.get_slice(name)) for name in file.offset_keys()]
        stored = [(name, entry.get_dtype(), tuple(entry.get_shape())) for name, entry in entries]
    content = np.asarray(np.memmap(path, np.uint8, "c"))
    mapping(path)
    place, found = LENGTH.size + LENGTH.unpack(content[: LENGTH.size].tobytes())[0], Tensors()
    for name, kind, shape in stored:
        if kind not in DTYPES:
            raise ValueError(f"{path}: the weight {brief(name)} has the data type {brief(kind)}, which is not supported")
        end = place + math.prod(shape) * DTYPES[kind].itemsize
        found[name] = aligned(content[place:end].view(DTYPES[kind]).reshape(shape))
        place = end
    return found


def write(path: Path, tensors: Mapping[str, Any], half: bool = False) -> None:
    """Write a file, whole or not at all, with ``half`` in float16. Never holds more than one tensor besides those given.

    Raises ValueError naming a tensor that is not finite.
    """
    header, end, mapped = {}, 0, Mapped()
    # Largest elements first: all are aligned.
    ordered = dict(sorted(((name, array(each)) for name, each in tensors.items()), key=lambda item: -item[1].itemsize))
    for name, each in ordered.items():
        dtype = np.dtype(np.float16) if half and is_floating(each) else each.dtype
        begin, end = end, end + each.size * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(each.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(LENGTH.size + len(text)) % CACHE_LINE)
    with whole(path) as temporary, open(temporary, "wb") as file:
        file.write(LENGTH.pack(len(text)) + text)
        for name, each in ordered.items():
            stored = float16(each) if half and is_floating(each) else each
            if is_floating(stored) and not all_finite(stored):
                raise ValueError(f"{path.stem}: {name} has values that are not finite{' in float16' if half else ''}")
            file.write(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
            mapped.read(address(each), each.nbytes)
    mapped.unload()
