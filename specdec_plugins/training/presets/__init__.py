"""What ``train.sh`` trains, as JSON: a file per preset, and in ``recipes/`` a file per recipe for the drafter.

A preset has

    about                   one line of description
    languages               source and target; the preset ``small.SRC-TGT`` has them in its name
    corpus                  the script data/CORPUS.sh, ``prepare`` for text in the folder of ``--local``, or ``folder`` for a
                            model folder and source text
    prepare                 options of that script or of ``specdec-prepare``
    pretrained              optional: a checkpoint in the data's folder that the verifier starts from
    decoding                length options of ``specdec-translate``, if not those of translations
    rouge                   true if outputs are scored by ROUGE instead of BLEU
    model                   options of fairseq-train for both models: their shape
    tokens, device_tokens   tokens of the longer side, padding included: per update, and at most per batch on a device
    save_every, keep        updates between checkpoints, and how many are kept and averaged
    verifier                a training: ``updates``, ``schedule`` (a name of ``--lr-scheduler``), ``options`` of
                            fairseq-train; none for a model folder
    drafter                 a training per recipe, with ``block_size``

A recipe with ``init`` trains ``--arch block`` from an initial checkpoint, made with these options. Any other has the name of a
drafter that is one file and a ``block_size``; it trains that drafter on the frozen verifier as the preset trains the default
recipe's.

Options have fairseq's names and their values, true for a flag. This module imports neither fairseq nor torch.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECIPES = tuple(sorted(path.stem for path in (HERE / "recipes").glob("*.json")))
DEFAULT_RECIPE = "glide"
DRAFTER = {"adam-betas": "(0.9, 0.999)", "adam-eps": 1e-6, "weight-decay": 0.01, "clip-norm": 5}  # options of every drafter
TRANSLATIONS = {"max-len-a": 1.2, "max-len-b": 10}  # length limits
# Options of fairseq's task, which recipes without a shape of their own keep.
TASK_OPTIONS = ("truncate-source", "skip-invalid-size-inputs-valid-test", "max-source-positions", "max-target-positions")
PATTERN = re.compile(r"small\.([a-z]{2})-([a-z]{2})")  # the preset with the languages in its name


def names() -> list[str]:
    """The names of the presets."""
    return sorted("small.SRC-TGT" if path.stem == "small" else path.stem for path in HERE.glob("*.json"))


def read(name: str) -> dict[str, Any]:
    """A preset with its languages. Raises ValueError for an unknown name."""
    pattern = PATTERN.fullmatch(name)
    if not pattern and (name not in names() or "SRC-TGT" in name):
        raise ValueError(f"no preset named '{name}'. Available: {', '.join(names())}")
    preset = json.loads((HERE / f"{'small' if pattern else name}.json").read_text(encoding="utf-8"))
    return {**preset, "languages": pattern.groups()} if pattern else preset


def settings(name: str, recipe: str | None = None, updates: int | None = None) -> dict[str, str | int | list[str]]:
    """The variables of ``train.sh``; ``updates`` replaces those of both trainings. Raises ValueError for an unknown name."""
    preset = read(name)
    recipe = recipe or DEFAULT_RECIPE
    if recipe not in RECIPES:
        raise ValueError(f"no recipe named '{recipe}'. Available: {', '.join(RECIPES)}")
    common = json.loads((HERE / "recipes" / f"{recipe}.json").read_text(encoding="utf-8"))
    drafter = preset["drafter"].get(recipe, preset["drafter"][DEFAULT_RECIPE])
    verifier = preset.get("verifier", drafter)  # a model folder's is trained
    block = common.get("block_size", drafter["block_size"])
    shape = {"share-all-embeddings": True, **preset["model"]}
    verifier_updates, drafter_updates = updates or verifier["updates"], updates or drafter["updates"]
    prepare = preset.get("prepare", {})
    own, initialised = drafter["options"], "init" in common
    drafter_shape = shape
    if not initialised:  # its shape is the verifier's, and dropout is one of its own options
        drafter_shape = {name: value for name, value in shape.items() if name in TASK_OPTIONS}
        own = {name: value for name, value in own.items() if name != "dropout"}
        own["drafter-options"] = common["drafter"]["drafter-options"].format(block=block)
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
        "block": block,
        "initialised": "yes" if initialised else "",
        "verifier_updates": verifier_updates,
        "drafter_updates": drafter_updates,
        "verifier_options": command_line(shape, schedule(verifier, verifier_updates), verifier["options"]),
        "drafter_options": command_line(drafter_shape, DRAFTER, common["drafter"], schedule(drafter, drafter_updates), own),
        "init_options": command_line(common.get("init", {})),
    }


def for_folder(recipe: str) -> dict[str, Any]:
    """How ``specdec-draft`` trains a drafter: the name of its ``code``, ``block_size``, ``tokens`` of an update, ``options`` of
    the optimiser by fairseq's names, and ``drafter_options`` (NAME=VALUE). A name of no recipe is taken for that of a drafter's
    code."""
    preset = read("folder")
    path = HERE / "recipes" / f"{recipe}.json"
    common = json.loads(path.read_text(encoding="utf-8")) if recipe in RECIPES else {"drafter": {}}
    usual = preset["drafter"][DEFAULT_RECIPE]
    block, own = common.get("block_size", usual["block_size"]), common["drafter"]
    return {
        "code": own.get("arch", recipe),
        "block_size": block,
        "tokens": preset["tokens"],
        "options": {**DRAFTER, **usual["options"]},
        "drafter_options": own.get("drafter-options", "").format(block=block).split(),
    }


def schedule(training: Mapping[str, Any], updates: int) -> dict[str, Any]:
    """Options of fairseq-train for the learning rate: it decays by the inverse square root, or ends at 0."""
    name = training["schedule"]
    return {"lr-scheduler": name} | ({"warmup-init-lr": 1e-7} if name == "inverse_sqrt" else {"total-num-update": updates})


def command_line(*options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line; later ones win."""
    merged = {name: value for part in options for name, value in part.items()}
    return [word for name, value in merged.items() for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]


def shell(variables: Mapping[str, str | int | list[str]]) -> Iterable[str]:
    """An assignment per variable, quoted for a shell; lists become arrays."""
    for name, value in variables.items():
        yield f"{name}=({shlex.join(value)})" if isinstance(value, list) else f"{name}={shlex.quote(str(value))}"
