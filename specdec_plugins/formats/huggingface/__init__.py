"""A model published for Hugging Face's transformers, from a local folder: config, generation config, weights, tokenizer files.

transformers is not needed. Everything that a config asks for is computed here or refused by name.
"""

from pathlib import Path
from typing import Any

from specdec_plugins.formats.errors import listed
from specdec_plugins.formats.huggingface import bart, t5, t5gemma
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import Reader
from specdec_plugins.formats.huggingface.generation import generation_of
from specdec_plugins.formats.huggingface.weights import read_weights
from specdec_plugins.formats.spec import Model

CONFIG = "config.json"
FAMILIES: dict[str, Reader] = {**bart.FAMILIES, **t5.FAMILIES, **t5gemma.FAMILIES}  # by model_type


def is_huggingface(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "model.json").exists()


def read_model(folder: Path) -> tuple[Model, dict[str, Any]]:
    """A folder's model, and its config with the generation config over it. Raises ValueError with every fault, in one line."""
    config = Asked.read(folder / CONFIG)
    kind = config.get("model_type")
    if type(kind) is not str or kind not in FAMILIES:
        raise ValueError(f"{config.path}: model_type {kind!r:.80} is not supported; available: {', '.join(FAMILIES)}")
    family, architectures = FAMILIES[kind], config.get("architectures")
    if architectures not in (None, [], *([name] for name in family.names)):
        raise ValueError(f"{config.path}: architectures {architectures!r:.80}; {kind} needs {family.architecture}")
    config.values = {**family.defaults(config), **config.values}
    path = folder / "generation_config.json"
    whole = path.is_file()
    asked = Asked.read(path) if whole else Asked(config.path, config.values)
    generation, weights, model = generation_of(asked, config, whole), read_weights(folder), None
    try:
        model = family.model_of(config, generation, weights)
    except ValueError as error:
        config.faults.append(str(error))
    faults = list(dict.fromkeys([*config.faults, *asked.faults]))
    if faults or model is None:
        raise ValueError(f"{folder}: {listed(faults, '; ')}")
    return model, {**config.values, **asked.values}
