"""Translates one shard: the same function in every process and on every machine."""

import errno
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specdec_plugins.corpora import manifest
from specdec_plugins.corpora.inputs import BLOCK, records
from specdec_plugins.corpora.stores import temporary, within
from specdec_plugins.corpora.values import COUNTED, Job, Shard, ShardReport, Translate
from specdec_plugins.formats.errors import brief
from specdec_plugins.text.compressed import compress, decompressed

FULL = 1 << 20  # characters that end a batch, as in specdec-translate


def translate_shard(translate: Translate, shard: Shard, job: Job) -> ShardReport:
    """Translate a shard, check what was written, put it in its place and report it there.

    Whenever this ends early, the file is complete or has no report, and running it again gives the same bytes. Raises ValueError
    naming file and line, OSError or ImportError.
    """
    began, digest, written = time.perf_counter(), hashlib.sha256(), 0
    work, path = Work(translate, shard, job), within(job.folder, shard.output)
    try:
        with temporary(path) as local:
            with local.open("wb") as file:
                for texts in work:
                    data = "".join(f"{text}\n" for text in texts).encode()
                    file.write(compress(data, shard.output))
                    digest.update(data)
                    written += len(texts) * job.outputs
            check(local, path, written, digest.hexdigest())
            size = local.stat().st_size
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None
    counts: dict[str, Any] = {name: sum(getattr(stats, name) for stats in work.stats) for name in COUNTED}
    counts["drafter"] = next((stats.drafter for stats in work.stats if stats.drafter), None)
    counts["beam"] = max((stats.beam for stats in work.stats), default=1)
    tokens, seconds = sum(stats.committed for stats in work.stats), time.perf_counter() - began
    report = ShardReport(
        shard.number,
        shard.output,
        shard.count,
        written,
        size,
        digest.hexdigest(),
        tokens,
        **counts,
        seconds=seconds,
        errors=work.errors,
    )
    manifest.record(job.folder, report)
    return report


def check(local: Path, path: str, lines: int, sha256: str) -> None:
    """Read a file again. Raises OSError if it does not hold what was written."""
    digest, count = hashlib.sha256(), 0
    with decompressed(local.open("rb"), path) as stream:
        while data := stream.read(BLOCK):
            digest.update(data)
            count += data.count(b"\n")
    if (count, digest.hexdigest()) != (lines, sha256):
        raise OSError(errno.EIO, f"reads as {count:,} lines after {lines:,} were written, or as others", path)


class Work:
    """Iterates over the outputs of a shard, a batch of records at a time."""

    def __init__(self, translate: Translate, shard: Shard, job: Job):
        self.translate, self.shard, self.job = translate, shard, job
        self.errors, self.stats, self.known = list[str](), list[Any](), dict[str, str]()

    def __iter__(self) -> Iterator[Sequence[str]]:
        at = 0
        for batch in self._batches():
            if self.job.dedup:
                new = {line: at + index for index, line in reversed([*enumerate(batch)]) if line not in self.known}
                lines = sorted(new, key=new.__getitem__)
                self.known |= zip(lines, self._translated([new[line] for line in lines], lines))
                yield [self.known[line] for line in batch]
            else:
                yield self._translated(range(at, at + len(batch)), batch)
            at += len(batch)

    def _batches(self) -> Iterator[list[str]]:
        batch, characters, job = list[str](), 0, self.job
        skipped = (lambda error: self.errors.append(str(error))) if job.skips else None
        for piece in self.shard.pieces:
            for text in records(piece, job.column, job.longest, skipped):
                batch.append(text)
                characters += len(text)
                if len(batch) == job.batch or characters >= FULL:
                    yield batch
                    batch, characters = [], 0
        if batch:
            yield batch

    def _translated(self, places: Sequence[int], lines: Sequence[str]) -> list[str]:
        """The outputs of lines, given their places in the shard. Where one raises, each is translated by itself to find it."""
        if not lines:
            return []
        with suppress(Exception):
            return self._attempt(places, lines)
        texts, faults = list[str](), list[str]()
        for place, line in zip(places, lines):
            try:
                texts += self._attempt([place], [line])
            except Exception as error:
                faults.append(f"{self.shard.place(place)}: {brief(error)}")
                texts.append("\n" * (self.job.outputs - 1))
                if not self.job.skips:
                    raise ValueError(faults[0]) from None
        if len(faults) == len(lines) and not self._works():
            raise ValueError(faults[0])
        self.errors += faults
        return texts

    def _works(self) -> bool:
        """Whether a harmless line is translated, so that a fault is that of the lines."""
        with suppress(Exception):
            return len(self.translate(self.shard.first, ["."]).lines) == 1
        return False

    def _attempt(self, places: Sequence[int], lines: Sequence[str]) -> list[str]:
        answers = self.translate(self.shard.first + places[0], lines)
        if answers.too_long:
            raise ValueError(answers.too_long)
        texts = [answer.text for answer in answers.lines]
        if any(text.count("\n") != self.job.outputs - 1 for text in texts):
            raise ValueError("its translation has a line end")
        self.stats.append(answers.stats)
        self.errors += (f"{self.shard.place(place)}: {each.said}" for place, each in zip(places, answers.lines) if each.said)
        return texts
