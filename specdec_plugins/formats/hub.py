"""Models and drafters of the Hugging Face Hub by name, ``ORG/NAME`` or ``ORG/NAME@REVISION``, through huggingface_hub and its
cache.

Only the files that one needs are fetched; pickled weights only where a repository has no others. Needs no torch.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specdec_plugins.extras import install_command
from specdec_plugins.formats.description import read_json
from specdec_plugins.formats.drafter_folder import NAME as DRAFTER
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import AnyPath

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)  # a repository, and its revision if given
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


def find(name: AnyPath) -> Path:
    """The folder of a model: ``name`` itself, or the fetched files of a model of the Hub. Raises ValueError or ImportError."""
    return _found(name, "model", fetch)


def find_drafter(name: AnyPath) -> Path:
    """As `find`, the folder of a drafter, or of a model that drafts; only the drafter of a model that has one is fetched."""
    return _found(name, "drafter", fetch_drafter)


def _found(name: AnyPath, what: str, fetched: Callable[[str, str | None], Path]) -> Path:
    path, match = Path(name), NAME.fullmatch(os.fspath(name))
    if path.exists():
        return path
    if match and not Path(path.parts[0]).exists():
        return fetched(match[1], match[2])
    raise ValueError(f"{path}: no such folder; a {what} of the Hugging Face Hub is named ORG/NAME")


def short(name: str) -> str:
    """The name of a model's folder, or of its repository without its organisation and revision."""
    match = None if Path(name).exists() else NAME.fullmatch(name)
    return match[1].rpartition("/")[2] if match else Path(name).resolve().name


def pinned(name: str, folder: AnyPath) -> str:
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
        if (_snapshot(repository, folder.name, [DRAFTER]) / DRAFTER).is_file():
            raise ValueError(f"{repository}: a drafter; name its model with --model, and this with --drafter")
        raise ValueError(f"{repository}: the repository has neither config.json nor model.json, so it is no model")
    choices = [_named_in(folder / "model.json")] if (folder / "model.json").is_file() else WEIGHTS
    for patterns in choices:
        _snapshot(repository, folder.name, [*DESCRIPTIONS[:2], *patterns])  # of the same commit, whatever is published meanwhile
        if any(file.match(pattern) for file in folder.iterdir() for pattern in patterns):
            break
    return folder


def fetch_drafter(repository: str, revision: str | None) -> Path:
    """The folder in huggingface_hub's cache with a drafter's files. A repository without a drafter is fetched as a model. Raises
    ValueError or ImportError."""
    kinds = *DESCRIPTIONS[:2], DRAFTER
    folder = _snapshot(repository, revision, kinds)
    path = next((folder / name for name in kinds if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"{repository}: the repository has none of {', '.join(kinds)}, so it is no drafter")
    described = {} if path.name == "config.json" else _object(path)
    drafters = _drafters(described)
    if not drafters or (path.name == "model.json" and described.get("format") == 1):
        return folder if path.name == DRAFTER else fetch(repository, folder.name)  # reading a damaged drafter.json says so
    _snapshot(repository, folder.name, [*kinds, *_patterns(each.get("weights") for each in drafters)])
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
    logging.getLogger(snapshot_download.__module__).addFilter(_unsaid)

    class Bar(tqdm):
        """Only in a terminal, and gone at the end: most runs find all files in the cache."""

        def __init__(self, *args: Any, **options: Any):
            options |= {"leave": False, "disable": options.get("disable") or not sys.stderr.isatty()}
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

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


def _unsaid(record: logging.LogRecord) -> bool:
    """Leaves out of huggingface_hub's log what errors here say."""
    return not record.getMessage().startswith("No files matched")


def _named_in(path: Path) -> list[str]:
    """The files that a model folder's description names, as patterns; loading the folder reports a damaged one."""
    described = _object(path)
    names = [described.get(name) for name in ("source_dict", "target_dict", "codes")]  # before format 3
    for entry in [*(described.get(name) or {} for name in ("verifier", "codec")), *_drafters(described)]:
        try:
            names += [entry.get("weights"), *entry.get("files", {}).values()]
        except AttributeError:
            return []
    return _patterns(names)


def _drafters(described: dict[str, Any]) -> list[dict[str, Any]]:
    """The drafters of a description, as far as it is sound."""
    others = described.get("other_drafters")
    entries = [described.get("drafter"), *(others if isinstance(others, list) else [])]
    return [each for each in entries if isinstance(each, dict)]


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty for a damaged one."""
    try:
        return read_json(path)
    except ValueError:
        return {}


def _patterns(names: Iterable[Any]) -> list[str]:
    return [re.sub(r"([*?[])", r"[\1]", name) for name in names if isinstance(name, str)]
