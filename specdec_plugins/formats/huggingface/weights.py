"""The weights of a Hugging Face folder, mapped into memory: safetensors or PyTorch's files, whole or in shards."""

from collections.abc import Iterable
from pathlib import Path

from specdec_plugins.formats import tensors
from specdec_plugins.formats.arrays import Tensors, arrays
from specdec_plugins.formats.description import read_json
from specdec_plugins.formats.files import is_file_name
from specdec_plugins.formats.spec import storage_faults

KINDS = ("model.safetensors", "pytorch_model.bin")


def read_weights(folder: Path) -> Tensors:
    """Every tensor of the folder's weights. Raises ValueError naming the file at fault."""
    for name in KINDS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return read_file(folder / name)
        if index.is_file():
            return {key: each for file in shards(index) for key, each in read_file(folder / file).items()}
    raise ValueError(f"{folder}: no weights in it; expected {' or '.join(KINDS)}")


def shards(index: Path) -> Iterable[str]:
    """The names of the files that an index lists."""
    places = read_json(index).get("weight_map")
    files = (
        sorted(set(places.values())) if isinstance(places, dict) and all(type(each) is str for each in places.values()) else []
    )
    if not files:
        raise ValueError(f"{index}: damaged (no 'weight_map' of file names)")
    for file in files:
        if not is_file_name(file) or not (index.parent / file).is_file():
            raise ValueError(f"{index}: {file!r:.80} is not a file in the folder")
    return files


def read_file(path: Path) -> Tensors:
    if path.suffix == ".safetensors":
        return tensors.read(path)
    from specdec_plugins.formats import pytorch  # with the zip and pickle modules, which other folders do without

    found = pytorch.read(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: no weights by name")
    if fault := storage_faults(found):
        raise ValueError(f"{path}: {fault}")
    return arrays(found)
