"""A drafter in a folder of its own: ``drafter.json`` and its weights. Untrusted input; needs no torch.

``drafter.json`` describes the drafter as ``model.json`` does, and has a `Record` of its training, which only its card needs.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from specdec_plugins.formats.description import Description, DrafterEntry, read_description, read_json
from specdec_plugins.formats.errors import UNSAFE
from specdec_plugins.formats.files import write_json
from specdec_plugins.formats.strict import parse

FORMAT = 1
NAME = "drafter.json"
MAX_TEXT, MAX_ENTRIES = 500, 64  # characters of a record's texts; entries of its lists and objects
MAX_NUMBER = 2**63  # a seed
LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Record:
    """What a drafter was trained on, and how it did. Raises ValueError for what no training has."""

    model: str  # ORG/NAME@COMMIT of the Hub, or a folder's name
    source_lang: str  # both empty if the model does not name them
    target_lang: str
    multilingual: bool  # whether requests name the languages
    data: str  # file name, ORG/NAME of a data set of the Hub, or a description
    data_sha256: str
    trained: int  # sentences
    held_out: int
    updates: int
    seed: int
    precision: str
    tokens_per_pass: float  # on the sentences held out
    acceptance: tuple[float, ...]  # by position, where all before it were accepted
    gain: Mapping[str, float]  # in speed over plain decoding, by batch size
    dtype: str  # .. and this is what it was measured with
    threads: int
    machine: Mapping[str, Any]
    command: tuple[str, ...]  # without paths of that machine
    specdec: str  # version
    licence: str | None = None
    name: str | None = None  # ORG/NAME under which it is published

    def __post_init__(self) -> None:
        faults = [name for name, value in vars(self).items() if not _sound(value)]
        if self.licence is not None and not LICENCE.fullmatch(self.licence):
            faults.append("licence")
        if faults:
            raise ValueError(f"{', '.join(faults)}: not what a training records")


def _sound(value: Any) -> bool:
    """Whether it is a short line of text, a number from 0 to `MAX_NUMBER`, or a few of them."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any(ord(each) in UNSAFE or 0xD800 <= ord(each) < 0xE000 for each in value)
    if isinstance(value, Mapping):
        nested = any(isinstance(each, (Mapping, list, tuple)) for each in value.values())
        return len(value) <= MAX_ENTRIES and not nested and all(map(_sound, [*value, *value.values()]))
    if isinstance(value, tuple):
        return len(value) <= MAX_ENTRIES and all(map(_sound, value))
    return value is None or (isinstance(value, (int, float)) and 0 <= value <= MAX_NUMBER)


@dataclass(frozen=True)
class DrafterDescription:
    """``drafter.json``."""

    format: int
    drafter: DrafterEntry
    record: Mapping[str, Any] = field(default_factory=dict)  # unread, see `read_record`


def read(folder: Path) -> DrafterDescription:
    """Read a folder's ``drafter.json``. Raises FileNotFoundError, or ValueError naming the file and every fault."""
    path = folder / NAME
    content = read_json(path)
    version = content.get("format")
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"{path}: format {version!r:.20}; this version reads format {FORMAT}")
    try:
        return parse(DrafterDescription, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_record(folder: Path) -> Record:
    """The record of a folder's drafter. Raises FileNotFoundError, or ValueError naming the file and every fault."""
    described = read(folder)
    try:
        return parse(Record, described.record, "record")
    except ValueError as error:
        raise ValueError(f"{folder / NAME}: {error}") from None


def write_description(folder: Path, entry: DrafterEntry, record: Record | None) -> None:
    """Write ``drafter.json``, whole or not at all."""
    described = DrafterDescription(FORMAT, entry, dataclasses.asdict(record) if record else {})
    write_json(folder / NAME, dataclasses.asdict(described))


def drafters_in(folder: Path) -> tuple[DrafterEntry, ...]:
    """The drafters of a drafter folder or of a model folder; of a model folder of format 1 none. Raises ValueError naming a
    damaged file."""
    if (folder / "model.json").is_file():
        described = read_description(folder / "model.json")
        return described.drafters if isinstance(described, Description) else ()
    return (read(folder).drafter,) if (folder / NAME).is_file() else ()


class OnDevices(Protocol):
    """A drafter, or its entry."""

    @property
    def devices(self) -> tuple[str, ...]: ...


D = TypeVar("D", bound=OnDevices)


def default(drafters: Sequence[D], device: str) -> D:
    """Which of a model's drafters drafts on a device such as ``cuda:1``: one for it, else one for any, else the first."""
    kind = device.partition(":")[0]
    return min(drafters, key=lambda each: 0 if kind in each.devices else 1 + bool(each.devices))
