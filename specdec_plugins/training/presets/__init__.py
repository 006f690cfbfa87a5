"""What ``train.sh`` trains, as data: a JSON file a preset, and one a recipe of the drafter, in ``recipes/``.

A preset has

    about                   one line for a person
    languages               source and target; absent where the preset's name has them (``small.SRC-TGT``)
    corpus                  the script data/CORPUS.sh, or ``prepare`` for the text in the folder of ``--local``
    prepare                 options of the script, or of ``specdec-prepare`` of text from ``--local``
    pretrained              the checkpoint that the verifier starts from, in the data's folder; absent where there is none
    decoding                options of ``specdec-translate`` for how long outputs are; absent for those of translations
    rouge                   true where outputs are scored by ROUGE, not BLEU
    model                   options of fairseq-train for both models: their shape
    tokens, device_tokens   tokens of the longer side, padding included: of an update, and at most of a batch on one device
    save_every, keep        updates from checkpoint to checkpoint, and how many are kept and averaged
    verifier                a training: ``updates``, ``schedule``, ``options`` of fairseq-train
    drafter                 the same by recipe, with ``block_size``, and with options of the initial checkpoint (``init``)
                            where they differ from the recipe's

A recipe with ``init`` trains one of the plugin's own architectures from an initial checkpoint. Any other is named after a drafter
that is one file, trains that on the frozen verifier as the preset trains the default recipe's, and says its ``block_size``.

Options are fairseq's names with their values, true for one without a value. This module imports neither fairseq nor torch.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECIPES = tuple(sorted(path.stem for path in (HERE / "recipes").glob("*.json")))
DEFAULT_RECIPE = "block_causal"
TRANSLATIONS = {"max-len-a": 1.2, "max-len-b": 10}  # how long they are
# Options of the task: a recipe that takes its shape from the verifier still has them.
OF_THE_TASK = ("truncate-source", "skip-invalid-size-inputs-valid-test", "max-source-positions", "max-target-positions")
PATTERN = re.compile(r"small\.([a-z]{2})-([a-z]{2})")  # the preset whose name has the languages


def names() -> list[str]:
    """What a preset may be called."""
    return sorted("small.SRC-TGT" if path.stem == "small" else path.stem for path in HERE.glob("*.json"))


def read(name: str) -> dict[str, Any]:
    """Return a preset, with its languages. Raises ValueError for an unknown name."""
    pattern = PATTERN.fullmatch(name)
    if not pattern and (name not in names() or "SRC-TGT" in name):
        raise ValueError(f"no preset named '{name}'. Available: {', '.join(names())}")
    preset = json.loads((HERE / f"{'small' if pattern else name}.json").read_text(encoding="utf-8"))
    return {**preset, "languages": pattern.groups()} if pattern else preset


def settings(name: str, recipe: str | None = None, updates: int | None = None) -> dict[str, str | int | list[str]]:
    """Return the variables of ``train.sh``: strings, numbers, lists for options; ``updates`` is for both trainings.

    Raises ValueError for an unknown preset or recipe.
    """
    preset = read(name)
    recipe = recipe or DEFAULT_RECIPE
    if recipe not in RECIPES:
        raise ValueError(f"no recipe named '{recipe}'. Available: {', '.join(RECIPES)}")
    common = json.loads((HERE / "recipes" / f"{recipe}.json").read_text(encoding="utf-8"))
    verifier, drafter = preset["verifier"], preset["drafter"].get(recipe, preset["drafter"][DEFAULT_RECIPE])
    shape = {"share-all-embeddings": True, **preset["model"]}
    verifier_updates, drafter_updates = updates or verifier["updates"], updates or drafter["updates"]
    prepare = preset.get("prepare", {})
    initialised = "init" in common
    drafter_options = [common["drafter"], schedule(drafter, drafter_updates), drafter["options"]]
    if initialised:
        drafter_options.insert(0, shape)
    else:  # its shape is the verifier's, and dropout one of its own options
        drafter_options.insert(0, {name: value for name, value in shape.items() if name in OF_THE_TASK})
        drafter_options[-1] = {name: value for name, value in drafter["options"].items() if name != "dropout"}
    return {
        "src": preset["languages"][0],
        "tgt": preset["languages"][1],
        "corpus": preset["corpus"],
        "tokenizer": prepare.get("tokenizer", "moses"),
        "prepare_options": command_line(prepare),
        "pretrained": preset.get("pretrained", ""),
        "decoding_options": command_line(preset.get("decoding", TRANSLATIONS)),
        "rouge": "yes" if preset.get("rouge") else "",
        "recipe": recipe,
        "tokens": preset["tokens"],
        "device_tokens": preset["device_tokens"],
        "save_every": min(preset["save_every"], drafter_updates),
        "keep": preset["keep"],
        "block": common.get("block_size", drafter["block_size"]),
        "initialised": "yes" if initialised else "",
        "verifier_updates": verifier_updates,
        "drafter_updates": drafter_updates,
        "verifier_options": command_line(shape, schedule(verifier, verifier_updates), verifier["options"]),
        "drafter_options": command_line(*drafter_options),
        "init_options": command_line(common["init"], drafter.get("init", {})) if initialised else [],
    }


def schedule(training: Mapping[str, Any], updates: int) -> dict[str, Any]:
    """Options of fairseq-train for how the learning rate goes: linearly to 0 over the training, or by the inverse square root."""
    if training["schedule"] == "linear":
        return {"lr-scheduler": "polynomial_decay", "total-num-update": updates}
    return {"lr-scheduler": "inverse_sqrt", "warmup-init-lr": 1e-7}


def command_line(*options: Mapping[str, Any]) -> list[str]:
    """Return options as a command line has them; later ones win."""
    merged = {name: value for part in options for name, value in part.items()}
    return [word for name, value in merged.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]


def shell(variables: Mapping[str, str | int | list[str]]) -> Iterable[str]:
    """Yield an assignment a variable, quoted so that a shell can evaluate it; lists become arrays."""
    for name, value in variables.items():
        yield f"{name}=({shlex.join(value)})" if isinstance(value, list) else f"{name}={shlex.quote(str(value))}"
