"""Linear layers packed for the CPU kernels, in a file of a model folder: panels, the same for all instruction sets, by the name
of a layer's first projection. They may be all that a folder has of its layers' matrices. Untrusted.

O outputs, I inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec_plugins.formats import tensors
from specdec_plugins.formats.arrays import BFLOAT16, Arrays, Lazy, all_finite
from specdec_plugins.formats.spec import Shapes, sides
from specdec_plugins.model.spec import ModelSpec

LAYOUT = 1  # of panels, csrc/weights.h; another is not read
MARK = "layout"
TILE = 32  # outputs of a panel; all widths except the vocabulary's are multiples of it
GROUP = 32  # inputs whose int4 weights have a scale for each output
TRAILER = 8 * TILE  # bytes of a panel's biases and scales
BYTES = {"int8": 1.0, "int4": 0.5 + 2 / GROUP}  # of a weight


def write(path: Path, panels: Arrays) -> None:
    """Write the panels (bytes,) uint8 of each layer."""
    tensors.write(path, {**panels, MARK: np.array([LAYOUT], np.uint8)})


def read(path: Path) -> Arrays:
    """Map a file's panels. Raises ValueError naming it."""
    found = tensors.read(path)
    mark = found.pop(MARK, np.zeros(0, np.uint8))
    if mark.tolist() != [LAYOUT]:
        raise ValueError(f"{path}: packed by another version; pack the folder again with specdec-pack --dtype")
    return found


def fault(panels: np.ndarray, outputs: int, inputs: int, dtype: str, part: slice = slice(None)) -> str | None:
    """Why these cannot be a layer's, of int8 or of int4 in groups, or this ``part`` of its panels; None if they can. Any weights
    are safe. Biases and scales must be finite, and int8's scales not negative, as the screen's bounds count on."""
    each = TILE * int(inputs * BYTES[dtype]) + TRAILER
    size = -(-outputs // TILE) * each
    if panels.dtype != np.uint8 or panels.shape != (size,):
        return f"is {panels.dtype} {panels.shape}, not uint8 ({size},)"
    rows = panels.reshape(-1, each)[part]
    if dtype == "int4" and not all_finite(_groups(rows)[1]):
        return "has scales that are not finite"
    numbers = rows[:, -TRAILER:].copy().view(np.float32)  # biases, then scales
    if not all_finite(numbers):
        return "has biases or scales that are not finite"
    return "has negative scales" if dtype == "int8" and (numbers[:, TILE:] < 0).any() else None


def _groups(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of panels (P, bytes) in int4: the groups' weights (P, I / GROUP, GROUP TILE / 2), and their scales (P, I / GROUP, TILE)."""
    size = GROUP * TILE // 2
    groups = rows[:, :-TRAILER].reshape(len(rows), -1, size + 2 * TILE)
    return groups[..., :size], groups[..., size:].copy().view(BFLOAT16)


def unpacked(panels: np.ndarray, inputs: int, dtype: str, part: slice = slice(None)) -> np.ndarray:
    """The weights (O, I) that this ``part`` of sound panels stands for, in float32; O is a multiple of TILE."""
    rows = panels.reshape(-1, TILE * int(inputs * BYTES[dtype]) + TRAILER)[part]
    if dtype == "int4":  # of four inputs at a time, those of two outputs in a byte
        bytes_, scales = _groups(rows)
        halves = bytes_.reshape(*scales.shape[:2], GROUP // 4, TILE // 2, 4)
        whole = np.concatenate([halves & 15, halves >> 4], -2).astype(np.float32) - 8  # (P, I / GROUP, GROUP / 4, TILE, 4)
        values = (whole * scales.astype(np.float32)[:, :, None, :, None]).reshape(len(rows), inputs // 4, TILE, 4)
    else:
        whole = rows[:, :-TRAILER].reshape(len(rows), inputs // 4, TILE, 4).astype(np.float32) - 128
        values = whole * rows[:, -TRAILER // 2 :].copy().view(np.float32)[:, None, :, None]
    return values.transpose(0, 2, 1, 3).reshape(-1, inputs)


def joined(spec: ModelSpec) -> Iterator[tuple[str, ...]]:
    """The projections of each linear layer that the kernels run, but the output layer: one product of those of the same input."""
    cross = not spec.decoder.attention.merged
    for name, side in sides(spec).items():
        parts = ["self_attn.out_proj", "fc1", "fc2"] + ["gate"] * side.feed_forward.gated
        if name == "decoder" and cross:
            parts += ["encoder_attn.q_proj", "encoder_attn.out_proj"]
        for layer in (f"{name}.layers.{index}" for index in range(side.layers)):
            yield tuple(f"{layer}.self_attn.{part}_proj" for part in "qkv")
            yield from ((f"{layer}.{part}",) for part in parts)
    reader = "encoder_attn" if cross else "self_attn"
    yield tuple(f"decoder.layers.{index}.{reader}.{part}_proj" for index in range(spec.decoder.layers) for part in "kv")


@dataclass(frozen=True, eq=False)
class Matrix(Lazy):
    """A weight matrix (O, I) that is stored as packed panels only: what they stand for, in float32."""

    name: str
    panels: np.ndarray
    outputs: int  # of the layer
    first: int  # the layer's output that is this matrix's first
    shape: tuple[int, int]
    kind: str  # int8, int4
    dtype = np.dtype(np.float32)

    def read(self) -> np.ndarray:
        (count, inputs), before = self.shape, self.first % TILE
        part = slice(self.first // TILE, -(-(self.first + count) // TILE))  # other matrices of the layer read the rest
        if found := fault(self.panels, self.outputs, inputs, self.kind, part):
            raise ValueError(f"packed {self.kind} weights: {self.name} {found}; pack the folder again")
        weights = unpacked(self.panels, inputs, self.kind, part)[before : before + count]
        if not all_finite(weights):
            raise ValueError(f"packed {self.kind} weights: {self.name} has values that are not finite")
        return weights


def matrices(spec: ModelSpec, shapes: Shapes, panels: Arrays, dtype: str) -> dict[str, Matrix]:
    """The matrices of the layers that ``panels`` has, by tensor; ``shapes`` are those of the spec's tensors."""
    found: dict[str, Matrix] = {}
    for names in joined(spec):
        sizes = [shapes[f"{name}.weight"] for name in names]
        first, outputs = 0, sum(size[0] for size in sizes)
        for name, (count, inputs) in zip(names, sizes if names[0] in panels else ()):
            found[f"{name}.weight"] = Matrix(names[0], panels[names[0]], outputs, first, (count, inputs), dtype)
            first += count
    return found
