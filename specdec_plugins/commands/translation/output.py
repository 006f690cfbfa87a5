"""The output of ``specdec-translate``: stdout, or a file that one run at a time owns and a later run can resume.

An unfinished file has a record beside it, ``FILE.resume``: model and options, the number of input lines done, and hashes of those
lines and of the file. The record is written before the first line. Nothing is modified until all of it is verified.
"""

import errno
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.commands.translation.inputs import Inputs
from specdec_plugins.formats import files
from specdec_plugins.formats.errors import difference
from specdec_plugins.text.compressed import compress

INTERVAL = 1.0  # seconds between records, which is what a killed run has to repeat
CHUNK = 1 << 20  # bytes per read
Identity = dict[str, Any]


class Output:
    """Writes the text of each input line; ``lines`` counts those written. A context manager.

    ``identity()`` names what determines the text; it is called once, for the first record, because it reads the model. A path
    ending in ``.gz`` or ``.zst`` is compressed, one member or frame per `write`.
    """

    def __init__(self, path: str | None, resume: bool, identity: Callable[[], Identity]):
        self.path, self.resume, self.identity = path, resume, cache(identity)
        self.lines = self.size = 0
        self.recorded = False  # whether a later run can resume this one
        self._read, self._written = hashlib.sha256(), hashlib.sha256()
        self._recorded_at = time.monotonic()
        self._claimed: dict[str, Any] | None = None  # the record to resume, until `skip` verifies the input
        self.file = self._open()
        try:
            self.regular = path is not None and stat.S_ISREG(os.fstat(self.file).st_mode)
            if self.regular:
                self._claim()
        except BaseException:
            os.close(self.file)
            raise

    def _open(self) -> int:
        if self.path is None:
            if sys.stdout is None:
                raise OSError(errno.EBADF, "closed", "stdout")
            return os.dup(sys.stdout.fileno())
        plain = not os.path.exists(self.path) or os.path.isfile(self.path)
        return os.open(self.path, os.O_CREAT | (os.O_RDWR if plain else os.O_WRONLY), 0o666)

    @property
    def _record(self) -> Path:
        return Path(f"{self.path}.resume")

    def _claim(self) -> None:
        """Lock the file; truncate it, or verify that it can be resumed."""
        files.lock(self.file, f"{self.path}: another run is writing this file")
        if self.resume and os.fstat(self.file).st_size:
            self._claimed = self._verified()
        else:
            os.ftruncate(self.file, 0)
            self._record.unlink(missing_ok=True)

    def _verified(self) -> dict[str, Any]:
        """The record, if it matches this file and this run; otherwise raises ValueError."""
        advice = "; delete it, or name another --output"
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            lines, size, made_by = int(record["lines"]), int(record["size"]), dict(record["made_by"])
            hashes = str(record["input"]), str(record["output"])
        except FileNotFoundError:
            raise ValueError(f"{self.path}: cannot be resumed, as {self._record} is missing{advice}") from None
        except (OSError, ValueError, TypeError, KeyError):
            raise ValueError(f"{self._record}: not a record of a run{advice}") from None
        if what := difference(made_by, json.loads(json.dumps(self.identity()))):
            raise ValueError(f"{self.path}: cannot be resumed, as it was made with {what}{advice}")
        os.lseek(self.file, 0, os.SEEK_SET)
        left = size
        while left > 0 and (data := os.read(self.file, min(left, CHUNK))):
            self._written.update(data)
            left -= len(data)
        if self._written.hexdigest() != hashes[1]:
            raise ValueError(f"{self.path}: cannot be resumed, as it was changed since{advice}")
        return {"lines": lines, "size": size, "input": hashes[0]}

    def skip(self, source: Inputs) -> int:
        """Skip the input lines that are done and return their number. Raises ValueError if the input differs."""
        if self._claimed is None:
            return 0
        lines, size = self._claimed["lines"], self._claimed["size"]
        for line in islice(source, lines):
            self._read.update(line.encode() + b"\n")
        if self._read.hexdigest() != self._claimed["input"]:
            raise ValueError(f"{self.path}: cannot be resumed, as it was made from another input than {source.name}")
        os.ftruncate(self.file, size)
        os.lseek(self.file, size, os.SEEK_SET)
        self.lines, self.size, self.recorded, self._claimed = lines, size, True, None
        return lines

    def write(self, answers: Sequence[tuple[str, str]]) -> None:
        """Write (input line, text) pairs. If that fails or is interrupted, a regular file ends, once closed, before them."""
        if self.regular and not self.lines and answers:
            self._save_record()
        data = "".join(f"{text}\n" for _, text in answers).encode()
        if data and self.path:
            data = compress(data, self.path)
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self.file, left) :]
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.path or "stdout") from None
        read, written = self._read.copy(), self._written.copy()
        read.update("".join(f"{line}\n" for line, _ in answers).encode())
        written.update(data)
        lines, size = self.lines + len(answers), self.size + len(data)
        self.lines, self.size, self._read, self._written = lines, size, read, written  # no call: a signal changes all or nothing
        if self.regular and self.lines and time.monotonic() - self._recorded_at >= INTERVAL:
            self._save_record()

    def _save_record(self) -> None:
        """Save what a later run needs. If that fails, the run cannot be resumed."""
        try:
            record = {
                "lines": self.lines,
                "size": self.size,
                "input": self._read.hexdigest(),
                "output": self._written.hexdigest(),
                "made_by": self.identity(),
            }
            os.fsync(self.file)
            files.write(self._record, json.dumps(record))
            self.recorded = True
        except OSError:
            self.recorded = False
        self._recorded_at = time.monotonic()

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: type | None, *error) -> None:
        try:
            if self.regular and self._claimed is None:
                with suppress(OSError):
                    os.ftruncate(self.file, self.size)
                if kind is None and not self.resume:
                    self._record.unlink(missing_ok=True)
                elif self.lines:
                    self._save_record()
                else:
                    self._record.unlink(missing_ok=True)
        finally:
            os.close(self.file)
