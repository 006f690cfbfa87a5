"""Linear layers packed for the CPU kernels, in a file of a model folder: panels, the same for all instruction sets, by the name
of a layer's first projection. Untrusted: the kernels' side checks sizes and scales (`panels_fault`)."""

from pathlib import Path

import numpy as np

from specdec_plugins.formats import tensors
from specdec_plugins.formats.arrays import Arrays

LAYOUT = 1  # of panels, csrc/weights.h; another is not read
MARK = "layout"


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
