"""A model published for Hugging Face's transformers, from a local folder: config, generation config, weights, tokenizer files.

transformers is not needed. Everything that a config asks for is computed here or refused by name.
"""

from pathlib import Path
from typing import Any

from specdec_plugins.formats.errors import brief, listed
from specdec_plugins.formats.huggingface import bart, t5, t5gemma, t5gemma2
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import Reader
from specdec_plugins.formats.huggingface.generation import generation_of, rules_under
from specdec_plugins.formats.huggingface.weights import read_weights
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import OutputRules

CONFIG = "config.json"
FAMILIES: dict[str, Reader] = {**bart.FAMILIES, **t5.FAMILIES, **t5gemma.FAMILIES, **t5gemma2.FAMILIES}  # by model_type
# What a model_type that is not supported is closest to
NEAREST = {
    "longt5": "t5", "switch_transformers": "t5", "pegasus_x": "pegasus", "bigbird_pegasus": "pegasus",
    "led": "bart", "mvp": "bart", "plbart": "mbart", "fsmt": "marian", "nllb-moe": "m2m_100", "prophetnet": "bart",
}  # fmt: skip


def is_huggingface(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "model.json").exists()


def read_model(folder: Path) -> tuple[Model, dict[str, Any]]:
    """A folder's model, and its config with the generation config over it. Raises ValueError with every fault, in one line."""
    config = Asked.read(folder / CONFIG)
    kind = config.get("model_type")
    if type(kind) is not str or kind not in FAMILIES:
        nearest = f" (the nearest that is: {NEAREST[kind]})" if type(kind) is str and kind in NEAREST else ""
        raise ValueError(f"{config.path}: model_type {kind!r:.80} is not supported{nearest}; available: {', '.join(FAMILIES)}")
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


def task_of(folder: Path, task: str, rules: OutputRules) -> tuple[OutputRules, str | None]:
    """A model's ``rules`` with the settings that its config has for a task, as the pipelines of transformers 4 took them, and the
    text that begins its sources, if any. Raises ValueError for an unknown task, and for settings that are not rules."""
    config = Asked.read(folder / CONFIG)
    tasks = config.get("task_specific_params")
    own = tasks.get(task) if isinstance(tasks, dict) else None
    if not isinstance(own, dict):
        known = ", ".join(sorted(map(str, tasks))) if isinstance(tasks, dict) and tasks else "none"
        raise ValueError(f"{config.path}: task '{task:.80}' has no settings; these have: {brief(known, 400)}")
    asked = Asked(config.path, {name: value for name, value in own.items() if name != "prefix"})
    prefix = Asked(config.path, own, asked.faults).word("prefix", "")
    found = rules_under(asked, rules)
    if asked.faults:
        raise ValueError(f"{config.path}: task {task}: {listed(asked.faults, '; ')}")
    return found, prefix or None
