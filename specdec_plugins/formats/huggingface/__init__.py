"""A model published for Hugging Face's transformers, from a local folder: config, generation config, weights, tokenizer files.

transformers is not needed. Everything that a config asks for is computed here or refused by name.
"""

from pathlib import Path

from specdec_plugins.formats.errors import listed
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import FAMILIES, model_of
from specdec_plugins.formats.huggingface.generation import generation_of
from specdec_plugins.formats.huggingface.weights import read_weights
from specdec_plugins.formats.spec import Model

CONFIG = "config.json"


def is_huggingface(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "model.json").exists()


def read_model(folder: Path) -> Model:
    """Read a folder's model. Raises ValueError with every fault, in one line."""
    config = Asked.read(folder / CONFIG)
    kind = config.values.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"{config.path}: model_type {kind!r:.80} is not supported; available: {', '.join(FAMILIES)}")
    architectures = config.values.get("architectures")
    if architectures not in (None, [], [FAMILIES[kind].architecture]):
        what = f"architectures {architectures!r:.80}; {kind} needs {FAMILIES[kind].architecture}"
        raise ValueError(f"{config.path}: {what}")
    path = folder / "generation_config.json"
    generation = generation_of(
        Asked.read(path) if path.is_file() else Asked(config.path, config.values), config, whole=path.is_file()
    )
    weights = read_weights(folder)
    model = model_of(FAMILIES[kind], config, generation, weights)
    faults = list(dict.fromkeys([*config.faults, *generation.faults]))
    if faults or model is None:
        raise ValueError(f"{folder}: {listed(faults, '; ')}")
    return model
