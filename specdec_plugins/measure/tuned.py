"""``tuning.json`` beside a model: what `specdec-tune` learned of it, a table for each machine, number of threads and data type.

A table holds for the processor, threads, data type and build that it was measured with, and is not used elsewhere. Untrusted
input.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.decoding.control.learned import Learned
from specdec_plugins.formats import files
from specdec_plugins.formats.description import read_json
from specdec_plugins.formats.strict import parse
from specdec_plugins.measure.machine import Place

NAME = "tuning.json"
FORMAT = 1


@dataclass(frozen=True)
class Table:
    place: Place
    date: str
    learned: Learned


@dataclass(frozen=True)
class Tuning:
    """The file."""

    format: int
    tables: tuple[Table, ...]


def read_tuning(folder: Path, place: Place) -> Learned | None:
    """The table that was measured at the place; None without one. Raises ValueError naming the file if it is damaged."""
    return next((table.learned for table in _tables(folder / NAME) if table.place == place), None)


def write_tuning(folder: Path, place: Place, learned: Learned, date: str) -> Path:
    """Add a table, in place of an older one of that processor, threads and data type; the file is the old or the whole new one.

    Raises ValueError if the file is there and damaged.
    """
    path = folder / NAME
    kept = [table for table in _tables(path) if dataclasses.replace(table.place, build=place.build) != place]
    tuning = Tuning(FORMAT, (*kept, Table(place, date, learned)))
    with files.whole(path) as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(tuning), indent=1) + "\n", encoding="utf-8")
    return path


def _tables(path: Path) -> tuple[Table, ...]:
    """The tables of a file; none if there is no such file."""
    if not path.is_file():
        return ()
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"{path}: format {content.get('format')!r:.80}; this version reads format {FORMAT}")
    try:
        return parse(Tuning, content).tables
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
