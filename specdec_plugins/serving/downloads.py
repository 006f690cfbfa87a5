"""Translated files, until clients fetch them: in memory, for some minutes."""

import time
from pathlib import PurePath
from secrets import token_urlsafe
from typing import NamedTuple

from specdec_plugins.serving.refused import Refused

SECONDS = 600  # that a file stays
BYTES = 64 << 20  # of all files


class Download(NamedTuple):
    name: str
    content: bytes
    until: float


class Downloads:
    """Nobody can guess a file's address, so it needs no key."""

    def __init__(self) -> None:
        self.files: dict[str, Download] = {}  # the oldest first

    def add(self, name: str, content: bytes) -> str:
        """Where the file is found. Raises Refused if there is no room."""
        now = time.monotonic()
        for path in [path for path, each in self.files.items() if each.until <= now]:
            del self.files[path]
        if self.files and sum(len(each.content) for each in self.files.values()) + len(content) > BYTES:
            wait = int(next(iter(self.files.values())).until - now) + 1
            raise Refused(503, "too many translated files wait to be fetched", wait)
        path = token_urlsafe(16) + PurePath(name).suffix
        self.files[path] = Download(name, content, now + SECONDS)
        return path

    def get(self, path: str) -> Download:
        """Raises Refused."""
        found = self.files.get(path)
        if found is None or found.until <= time.monotonic():
            raise Refused(404, "File not found; files stay for 10 minutes")
        return found
