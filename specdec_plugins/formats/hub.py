"""Models of the Hugging Face Hub by name, ``ORG/NAME`` or ``ORG/NAME@REVISION``, through huggingface_hub and its cache.

Only the files that a model needs are fetched; pickled weights only where a repository has no others. Needs no torch.
"""

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from specdec_plugins.extras import install_command
from specdec_plugins.formats.errors import brief

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)  # a repository, and its revision if given
MAX_JSON_BYTES = 1_000_000
DESCRIPTIONS = tuple(
    """
    model.json config.json generation_config.json tokenizer_config.json special_tokens_map.json added_tokens.json tokenizer.json
    vocab.json target_vocab.json merges.txt source.spm target.spm sentencepiece.bpe.model spiece.model
""".split()
)
# The safe format first; either whole or in shards with an index.
WEIGHTS = (
    ["model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"],
    ["pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"],
)


def find(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: ``name`` itself, or the fetched files of a model of the Hub. Raises ValueError or ImportError."""
    path, match = Path(name), NAME.fullmatch(os.fspath(name))
    if path.exists():
        return path
    if match and not Path(path.parts[0]).exists():
        return fetch(match[1], match[2])
    raise ValueError(f"{path}: no such folder; a model of the Hugging Face Hub is named ORG/NAME")


def short(name: str) -> str:
    """The name of a model's folder, or of its repository without its organisation and revision."""
    match = None if Path(name).exists() else NAME.fullmatch(name)
    return match[1].rpartition("/")[2] if match else Path(name).resolve().name


def pinned(name: str, folder: str | os.PathLike[str]) -> str:
    """What means the same model on every machine: the folder's commit of a model of the Hub, or the folder's own name."""
    match = None if Path(name).exists() else NAME.fullmatch(name)
    return f"{match[1]}@{Path(folder).name}" if match else name


def title(folder: str) -> str:
    """What messages call a folder: by the name of its model if it is in huggingface_hub's cache."""
    *_, repository, kind, _ = ("", "", "", *Path(folder).parts)
    if kind == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return folder


def fetch(repository: str, revision: str | None) -> Path:
    """The folder in huggingface_hub's cache with the files of a model. Raises ValueError or ImportError."""
    folder = _snapshot(repository, revision, DESCRIPTIONS)
    if not any((folder / name).is_file() for name in DESCRIPTIONS[:2]):
        raise ValueError(f"{repository}: the repository has neither config.json nor model.json, so it is no model")
    choices = [_named_in(folder / "model.json")] if (folder / "model.json").is_file() else WEIGHTS
    for patterns in choices:
        _snapshot(repository, folder.name, [*DESCRIPTIONS[:2], *patterns])  # of the same commit, whatever is published meanwhile
        if any(file.match(pattern) for file in folder.iterdir() for pattern in patterns):
            break
    return folder


def _snapshot(repository: str, revision: str | None, patterns: Iterable[str]) -> Path:
    """The folder of a revision, with its files of these names."""
    try:
        from huggingface_hub import constants, errors, snapshot_download
        from huggingface_hub.utils import tqdm
    except ImportError:
        folder = repository.rpartition("/")[2]
        raise ImportError(
            f"{repository} is no folder here, and huggingface_hub, which fetches models, is not installed; run: "
            f"{install_command('hf')}; or, where it is: hf download {repository} --local-dir {folder}; then here: "
            f"specdec-import {folder} --output {folder}.specdec"
        ) from None
    named = f"{repository}@{revision}" if revision else repository

    class Bar(tqdm):  # type: ignore[misc,valid-type]
        """Only in a terminal, and gone at the end: most runs find all files in the cache."""

        def __init__(self, *args, **options):
            super().__init__(*args, **{**options, "leave": False, "disable": options.get("disable") or not sys.stderr.isatty()})

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns), tqdm_class=Bar))
    except errors.GatedRepoError:
        raise ValueError(f"{named}: ask for access on the model's page, then run: hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise ValueError(f"{named}: no such folder, and no such model on the Hugging Face Hub, or a private one") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{named}: the model has no such revision on the Hugging Face Hub") from None
    except errors.LocalEntryNotFoundError as error:
        why = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else f"the Hub cannot be reached: {brief(error.__cause__ or error)}"
        )
        raise ValueError(f"{named}: not in the cache of huggingface_hub, or not whole, and {why}") from None
    except Exception as error:  # of whichever HTTP library it uses
        raise ValueError(
            f"{named}: cannot be fetched from the Hugging Face Hub: {type(error).__name__}: {brief(error)}"
        ) from None


def _named_in(path: Path) -> list[str]:
    """The files that a model folder's description names, as patterns; loading the folder reports a damaged one."""
    with open(path, "rb") as stream:
        data = stream.read(MAX_JSON_BYTES)
    try:
        described = json.loads(data)
        names = [described.get(name) for name in ("source_dict", "target_dict", "codes")]  # before format 3
        for entry in (described.get(name) or {} for name in ("verifier", "drafter", "codec")):
            names += [entry.get("weights"), *entry.get("files", {}).values()]
    except (ValueError, RecursionError, AttributeError):
        return []
    return [re.sub(r"([*?[])", r"[\1]", name) for name in names if isinstance(name, str)]
