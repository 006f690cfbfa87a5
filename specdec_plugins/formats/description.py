"""``model.json``: what a model folder says about itself, in formats 1 to 3. Untrusted input.

Format 1 holds fairseq's settings, format 2 a spec and fairseq's dictionaries, format 3 a spec and a codec with its files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.formats.spec import ModelSpec
from specdec_plugins.formats.strict import parse
from specdec_plugins.text.tokenizers import BYTE_LEVEL, TOKENIZERS

FORMAT = 3
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
class CodecEntry:
    """The codec in ``model.json``; see `CodecConfig`."""

    name: str
    files: Mapping[str, str]  # their names by role
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """``model.json`` in the present format."""

    format: int
    source_lang: str
    target_lang: str
    codec: CodecEntry
    verifier: VerifierEntry
    drafter: DrafterEntry | None


@dataclass(frozen=True)
class DescriptionOfFormat2:
    format: int
    source_lang: str
    target_lang: str
    source_dict: str
    target_dict: str
    codes: str | None
    verifier: VerifierEntry
    drafter: DrafterEntry | None
    tokenizer: str = TOKENIZERS[0]


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

    @property
    def codec(self) -> CodecEntry:
        return codec_entry(TOKENIZERS[0], self.source_dict, self.target_dict, self.codes)


VERSIONS = {1: DescriptionOfFormat1, 2: DescriptionOfFormat2, FORMAT: Description}


def read_description(path: Path) -> Description | DescriptionOfFormat1:
    """What ``model.json`` says; format 2 as format 3. Raises ValueError naming the file and everything that is wrong with it."""
    content = read_json(path)
    version = content.get("format")
    if type(version) is not int or version not in VERSIONS:
        raise ValueError(f"{path}: format {version}; this version reads formats {', '.join(map(str, VERSIONS))}")
    try:
        described: Any = parse(VERSIONS[version], content)
        return described if version != 2 else _of_format_2(described)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _of_format_2(old: DescriptionOfFormat2) -> Description:
    codec = codec_entry(old.tokenizer, old.source_dict, old.target_dict, old.codes)
    return Description(FORMAT, old.source_lang, old.target_lang, codec, old.verifier, old.drafter)


def codec_entry(tokenizer: str, source: str, target: str, codes: str | None) -> CodecEntry:
    """The codec of data prepared with a tokeniser. Raises ValueError for one that is unknown."""
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer '{tokenizer}'; available: {', '.join(TOKENIZERS)}")
    files = {"source": source, "target": target} | ({"codes": codes} if codes else {})
    if tokenizer == BYTE_LEVEL:
        return CodecEntry(BYTE_LEVEL, files)
    return CodecEntry("fairseq-bpe", files, {"tokenizer": tokenizer})


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
        raise ValueError(f"{path}: damaged or not ours (not an object)")
    return content
