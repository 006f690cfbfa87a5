"""safetensors files: mapped into memory when read, streamed when written."""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import Mapped, mapping, whole
from specdec_plugins.formats.spec import aligned, all_finite

# The format's names of data types: https://github.com/huggingface/safetensors
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Wraps reading a safetensors file: raises ValueError naming it."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file, or a damaged one ({brief(error)})") from None


def read(path: Path) -> dict[str, Tensor]:
    """A file's tensors as stored, mapped into memory."""
    from safetensors.torch import load_file

    with readable(path):
        tensors = load_file(path)
    mapping(path)
    return {name: aligned(each) for name, each in tensors.items()}


def write(path: Path, tensors: Mapping[str, Tensor], half: bool = False) -> None:
    """Write a file, whole or not at all, with ``half`` in float16. Never holds more than one tensor besides those given.

    Raises ValueError naming a tensor that is not finite.
    """
    header, end, mapped = {}, 0, Mapped()
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # largest elements first: all are aligned
    dtypes = {name: torch.float16 if half and each.is_floating_point() else each.dtype for name, each in ordered.items()}
    for name, tensor in ordered.items():
        begin, end = end, end + tensor.numel() * dtypes[name].itemsize
        header[name] = {"dtype": DTYPES[dtypes[name]], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in ordered.items():
            stored = tensor.detach().to(dtypes[name]).contiguous()
            if stored.is_floating_point() and not all_finite(stored):
                raise ValueError(f"{path.stem}: {name} has values that are not finite{' in float16' if half else ''}")
            file.write(stored.reshape(-1).view(torch.uint8).numpy().data)
            mapped.read(tensor.data_ptr(), tensor.nbytes)
    mapped.unload()
