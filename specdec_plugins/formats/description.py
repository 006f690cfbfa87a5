"""``model.json``, the description of a model folder, in formats 1 to 4. Untrusted input.

Format 1 contains fairseq's settings, format 2 a spec and fairseq's dictionaries, format 3 a spec and a codec with its files,
format 4 a spec of parts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.strict import parse
from specdec_plugins.model.spec import Heads, ModelSpec
from specdec_plugins.text.tokenizers import BYTE_LEVEL, TOKENIZERS

FORMAT = 4
MAX_JSON_BYTES = 1_000_000
MAX_DRAFTERS = 8  # of a model folder


@dataclass(frozen=True)
class VerifierEntry:
    """The verifier in ``model.json``."""

    weights: str  # file name
    spec: ModelSpec
    aliases: Mapping[str, str] = field(default_factory=dict)
    sinusoidal: tuple[str, ...] = ()
    fingerprint: str | None = None  # spares hashing the weights at every load
    packed: Mapping[str, str] = field(default_factory=dict)  # file names by data type: packed.py


@dataclass(frozen=True)
class DrafterEntry:
    """A drafter in ``model.json``; see `DrafterModel`. It is the default on its ``devices``, such as ``cuda``."""

    weights: str
    spec: ModelSpec | None
    code: str
    block_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    sinusoidal: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CodecEntry:
    """The codec in ``model.json``; see `CodecConfig`."""

    name: str
    files: Mapping[str, str]  # names by role
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Languages:
    format: int
    source_lang: str
    target_lang: str
    alignment: Heads | None = field(default=None, kw_only=True)  # the verifier's heads that align best


@dataclass(frozen=True)
class Description(Languages):
    """``model.json`` in the current format."""

    codec: CodecEntry
    verifier: VerifierEntry
    drafter: DrafterEntry | None
    other_drafters: tuple[DrafterEntry, ...] = ()

    def __post_init__(self) -> None:
        codes = [each.code for each in self.drafters]
        if self.other_drafters and (self.drafter is None or len({*codes}) < len(codes) or len(codes) > MAX_DRAFTERS):
            raise ValueError(f"other_drafters: at most {MAX_DRAFTERS - 1} beside drafter, each of another code")

    @property
    def drafters(self) -> tuple[DrafterEntry, ...]:
        return (() if self.drafter is None else (self.drafter,)) + self.other_drafters


@dataclass(frozen=True)
class Dictionaries(Languages):
    source_dict: str
    target_dict: str
    codes: str | None


@dataclass(frozen=True)
class DescriptionOfFormat2(Dictionaries):
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
class DescriptionOfFormat1(Dictionaries):
    block_size: int
    verifier: EntryOfFormat1
    drafter: EntryOfFormat1 | None

    @property
    def codec(self) -> CodecEntry:
        return codec_entry(TOKENIZERS[0], self.source_dict, self.target_dict, self.codes)


VERSIONS = {1: DescriptionOfFormat1, 2: DescriptionOfFormat2, 3: Description, FORMAT: Description}
# Where formats 2 and 3 had what is now a part's
MOVED = {
    "heads": ("attention", "heads"),
    "inner_width": ("feed_forward", "width"),
    "activation": ("feed_forward", "activation"),
    "embedding_norm": ("embedding", "norm"),
    "embedding_scale": ("embedding", "scale"),
    "position_offset": ("embedding", "offset"),
}


def read_description(path: Path) -> Description | DescriptionOfFormat1:
    """Read ``model.json``; formats 2 and 3 become format 4. Raises ValueError naming the file and every fault."""
    content = read_json(path)
    version = content.get("format")
    if type(version) is not int or version not in VERSIONS:
        raise ValueError(f"{path}: format {brief(version)}; this version reads formats {', '.join(map(str, VERSIONS))}")
    try:
        if version in (2, 3):
            content = {name: in_parts(value) if name in ("verifier", "drafter") else value for name, value in content.items()}
        old: Any = parse(VERSIONS[version], content)
        if isinstance(old, DescriptionOfFormat1):
            return old
        codec = codec_entry(old.tokenizer, old.source_dict, old.target_dict, old.codes) if version == 2 else old.codec
        others = old.other_drafters if version == FORMAT else ()
        named = old.source_lang, old.target_lang
        return Description(FORMAT, *named, codec, old.verifier, old.drafter, others, alignment=old.alignment)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def in_parts(entry: Any) -> Any:
    """A model of format 2 or 3, untrusted JSON, with a spec of parts."""
    spec = entry.get("spec") if isinstance(entry, dict) else None
    if not isinstance(spec, dict):
        return entry
    spec = dict(spec)
    activation = {"activation": spec.pop("activation")} if "activation" in spec else {}
    if "output_bias" in spec:
        spec["output"] = {"bias": spec.pop("output_bias")}
    for name in ("encoder", "decoder"):
        if isinstance(spec.get(name), dict):
            spec[name] = side_in_parts({**spec[name], **activation})
    return {**entry, "spec": spec}


def side_in_parts(old: dict[str, Any]) -> dict[str, Any]:
    side: dict[str, Any] = {name: value for name, value in old.items() if name not in MOVED}
    parts: dict[str, dict[str, Any]] = {}
    for name, (part, field_name) in MOVED.items():
        if name in old:
            parts.setdefault(part, {})[field_name] = old[name]
    if isinstance(old.get("prenorm"), bool):
        side["norms"] = "before" if side.pop("prenorm") else "after"
    return {**parts, **side}  # what these formats do not have stays, to be refused


def codec_entry(tokenizer: str, source: str, target: str, codes: str | None) -> CodecEntry:
    """The codec for data prepared with a tokeniser. Raises ValueError if it is unknown."""
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"unknown tokenizer '{tokenizer}'; use one of {', '.join(TOKENIZERS)}")
    files = {"source": source, "target": target} | ({"codes": codes} if codes else {})
    if tokenizer == BYTE_LEVEL:
        return CodecEntry(BYTE_LEVEL, files)
    return CodecEntry("fairseq-bpe", files, {"tokenizer": tokenizer})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of limited size. Raises FileNotFoundError, or ValueError naming the file."""
    path.stat()
    if not path.is_file():
        raise ValueError(f"{path}: not a file")
    with open(path, "rb") as stream:
        data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{path}: larger than {MAX_JSON_BYTES:,} bytes")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: also for a number with thousands of digits
        raise ValueError(f"{path}: damaged or not ours ({type(error).__name__}: {error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged or not ours (not an object)")
    return content


def recorded_tokenizer(data: Path) -> str:
    """The tokeniser named in ``prepare.json``, which lies in the binarised data or above it; Moses by default.

    Raises ValueError naming the file if it cannot be read.
    """
    paths = (folder / "prepare.json" for folder in (data, data.parent))
    path = next((path for path in paths if path.is_file()), None)
    name = read_json(path).get("tokenizer", TOKENIZERS[0]) if path else TOKENIZERS[0]
    if name not in TOKENIZERS:
        raise ValueError(f"{path}: unknown tokenizer '{name}'; use one of {', '.join(TOKENIZERS)}")
    return name
