"""Glossaries that clients store on the server, in memory or in a folder. Each key sees its own."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from specdec_plugins.formats import files
from specdec_plugins.serving.refused import Refused
from specdec_plugins.text.glossary import Glossary

MOST = 100  # glossaries with one key, or without keys
ENTRIES = 20_000  # of all these; in memory a glossary takes about 600 bytes per entry
NAME = 1000  # characters
FIELDS = ("id", "owner", "name", "source", "target", "created")


@dataclass(frozen=True)
class Stored:
    """A glossary from one language to another, in two letters. ``owner`` is a digest of the key."""

    id: str
    owner: str
    name: str
    source: str
    target: str
    created: str
    glossary: Glossary

    @property
    def entries(self) -> int:
        return len(self.glossary.terms)


class Glossaries:
    """All glossaries. Those of a ``folder`` are files of it, and outlive the server."""

    def __init__(self, folder: str | None = None):
        self.folder = None if folder is None else Path(folder)
        self.stored: dict[str, Stored] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.folder.glob("*.json")):
                found = read(path)
                self.stored[found.id] = found

    def of(self, account: str) -> list[Stored]:
        return [each for each in self.stored.values() if each.owner == owner(account)]

    def get(self, account: str, number: str) -> Stored:
        """Raises Refused."""
        found = self.stored.get(number)
        if found is None or found.owner != owner(account):
            raise Refused(404, "Glossary not found")
        return found

    def add(self, account: str, name: str, source: str, target: str, pairs: Sequence[tuple[str, str]]) -> Stored:
        """Store a glossary. Raises Refused."""
        others = self.of(account)
        if not name or len(name) > NAME:
            raise Refused(400, f"a glossary has a name of up to {NAME:,} characters")
        if not pairs:
            raise Refused(400, "a glossary has entries")
        if len(others) >= MOST or sum(each.entries for each in others) + len(pairs) > ENTRIES:
            raise Refused(413, f"over {MOST} glossaries, or {ENTRIES:,} entries in them; delete some")
        try:
            glossary = Glossary.of(pairs)
        except ValueError as error:
            raise Refused(400, f"entries: {error}") from None
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        new = Stored(str(uuid.uuid4()), owner(account), name, source, target, created, glossary)
        if self.folder is not None:
            write(self.folder, new)
        self.stored[new.id] = new
        return new

    def delete(self, account: str, number: str) -> None:
        found = self.get(account, number)
        if self.folder is not None:
            (self.folder / f"{found.id}.json").unlink(missing_ok=True)
        del self.stored[number]


def owner(account: str) -> str:
    """What files name a key by."""
    return sha256(account.encode()).hexdigest()


def write(folder: Path, stored: Stored) -> None:
    record = {name: getattr(stored, name) for name in FIELDS}
    pairs = [(term.source, term.target) for term in stored.glossary.terms]
    files.write(folder / f"{stored.id}.json", json.dumps({**record, "pairs": pairs}))


def read(path: Path) -> Stored:
    """Raises ValueError naming the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        named = {name: str(record[name]) for name in FIELDS}
        if named["id"] != path.stem:
            raise ValueError("its name is not its id")
        return Stored(**named, glossary=Glossary.of((str(source), str(target)) for source, target in record["pairs"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a glossary that the server wrote ({error}); remove it") from None
