"""``model.json``: what a model folder says about itself, in the present format and in format 1. Untrusted input."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.formats.spec import ModelSpec
from specdec_plugins.formats.strict import parse
from specdec_plugins.text.tokenizers import TOKENIZERS

FORMAT = 2
MAX_JSON_BYTES = 1_000_000


@dataclass(frozen=True)
class VerifierEntry:
    """The verifier in ``model.json``."""

    weights: str  # the name of its file
    spec: ModelSpec
    aliases: Mapping[str, str] = field(default_factory=dict)
    sinusoidal: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrafterEntry:
    """The drafter in ``model.json``; see `DrafterModel`."""

    weights: str
    spec: ModelSpec | None
    code: str
    block_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    sinusoidal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """``model.json``."""

    format: int
    source_lang: str
    target_lang: str
    source_dict: str
    target_dict: str
    codes: str | None
    verifier: VerifierEntry
    drafter: DrafterEntry | None
    tokenizer: str = TOKENIZERS[0]

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"tokenizer '{self.tokenizer}'; available: {', '.join(TOKENIZERS)}")


@dataclass(frozen=True)
class EntryOfFormat1:
    weights: str
    settings: Mapping[str, Any]
    aliases: Mapping[str, str]
    shared: tuple[str, ...]


@dataclass(frozen=True)
class DescriptionOfFormat1:
    format: int
    source_lang: str
    target_lang: str
    source_dict: str
    target_dict: str
    codes: str | None
    block_size: int
    verifier: EntryOfFormat1
    drafter: EntryOfFormat1 | None


def read_description(path: Path) -> Description | DescriptionOfFormat1:
    """What ``model.json`` says. Raises ValueError naming the file and everything that is wrong with it."""
    content = read_json(path)
    version = content.get("format")
    if version not in (1, FORMAT):
        raise ValueError(f"{path}: format {version}; this version reads formats 1 and {FORMAT}")
    try:
        return parse(Description, content) if version == FORMAT else parse(DescriptionOfFormat1, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Raises ValueError naming the file if it is no JSON object of a reasonable size."""
    path.stat()  # raises FileNotFoundError
    if not path.is_file():
        raise ValueError(f"{path}: not a file")
    with open(path, "rb") as stream:
        data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{path}: larger than {MAX_JSON_BYTES:,} bytes")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError also of a number of thousands of digits
        raise ValueError(f"{path}: damaged or not ours ({type(error).__name__}: {error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged or not ours (no object)")
    return content
