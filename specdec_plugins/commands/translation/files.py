"""Translates files of other formats than lines: read whole, translated in batches that reach from one file to the next, each
written whole or not at all."""

import argparse
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from specdec_plugins.commands.translation.answers import Answerer, lacking
from specdec_plugins.commands.translation.summary import Missing
from specdec_plugins.files import Options, format_of, split
from specdec_plugins.files.content import Content, is_package, most_bytes, read_content
from specdec_plugins.formats.files import whole
from specdec_plugins.text.compressed import compress
from specdec_plugins.text.lines import read_bytes
from specdec_plugins.text.placing import Placed, Unit

if TYPE_CHECKING:
    from specdec_plugins.decoding.stats import DecodeStats

FULL = 1 << 18  # characters that end a batch


@dataclass
class File:
    """A file under way: what it holds, and the translations of its first units."""

    name: str
    output: str | None
    content: Content
    units: list[Unit]
    placed: list[Placed | None] = field(default_factory=list)

    @classmethod
    def read(cls, path: str, output: str | None, form: str, options: Options, markup: str | None) -> "File":
        """Raises ValueError naming the file and the line."""
        if output is None and is_package(form) and sys.stdout.isatty():
            raise ValueError(f"{path}: its translation is no text for a terminal; name a file or folder with -o")
        content = read_content(read_bytes(path, most_bytes(form)), path, form, options, markup)
        return cls(path, output, content, content.units)

    def write(self, least: float, missing: Missing) -> list[str]:
        """Write the file, whole. Returns what a person should know about its texts. Raises ValueError, as `read` does."""
        data = self.content.translated(self.placed, least)
        if self.output is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            with whole(self.output) as temporary:
                temporary.write_bytes(compress(data, self.output))
        said = []
        for place, each in zip(self.content.places(), self.placed):
            if each is None:
                said.append(f"{self.name}, {place}: too long for the model, not translated")
            elif each.confidence < least:
                said.append(f"{self.name}, {place}: confidence {each.confidence:.2f}")
            if each is not None and each.missing:
                missing.add(f"{self.name}, {place}", each.missing)
            if each is not None and each.unplaced:
                said.append(f"{self.name}, {place}: {lacking(each.unplaced)}")
        return said


class Translated(NamedTuple):
    """The translations of a batch, up to the first text that is too long, and what is said about that."""

    placed: list[Placed | None]
    too_long: str
    stats: "DecodeStats"


def answer_units(answerer: Answerer, batch: tuple[int, list[Unit]]) -> Translated:
    """Translate a batch of units, numbered from its first."""
    from specdec_plugins.units import translate_first_units

    placed, error = translate_first_units(answerer.translator, batch[1], first=batch[0], **answerer.of_units)
    too_long = f"{error} (--on-error skip continues)" if error else ""
    return Translated(placed, too_long, answerer.translator.engine.take_stats())


def unit_answerer(options: argparse.Namespace, number: int = 0) -> Callable[[tuple[int, list[Unit]]], Translated]:
    """The function of worker process ``number``."""
    return partial(answer_units, Answerer(options, number))


class Files:
    """Reads files one after the other as batches are taken, and writes each when it has all its translations."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]):
        self.options, self.say = options, say
        self.under_way: deque[File] = deque()
        self.missing = Missing()
        self.fault: ValueError | None = None  # of a file that is not read, after which no other is
        self.skipped = self.written = 0

    def batches(self, size: int) -> Iterator[tuple[int, list[Unit]]]:
        """Up to ``size`` units at a time, with the number of the first."""
        first, batch, characters = 0, list[Unit](), 0
        for file in self._read():
            self.under_way.append(file)
            for unit in file.units:
                batch.append(unit)
                characters += len(unit.text)
                if len(batch) == size or characters > FULL:
                    yield first, batch
                    first, batch, characters = first + len(batch), [], 0
        if batch:
            yield first, batch

    def write(self, answered: Iterable[Translated]) -> "DecodeStats | None":
        """Write the files. Raises ValueError for the first that cannot be translated, after those before it."""
        stats = None
        for placed, too_long, more in answered:
            for each in placed:
                self._finish()  # those without units
                self.under_way[0].placed.append(each)
            self._finish()
            if too_long:
                file = self.under_way[0]
                raise ValueError(f"{file.name}, {file.content.places()[len(file.placed)]}: {too_long}")
            stats = more if stats is None else stats + more
        self._finish()
        if self.fault:
            raise self.fault
        if self.skipped:
            raise ValueError(f"{self.skipped:,} of {len(self.options.files):,} files skipped")
        return stats

    def _finish(self) -> None:
        while self.under_way and len(self.under_way[0].placed) == len(self.under_way[0].units):
            try:
                for said in self.under_way.popleft().write(self.options.min_confidence or 0.0, self.missing):
                    self.say(said)
                self.written += 1
            except ValueError as error:
                if self.options.on_error == "stop":
                    raise
                self._skip(error)

    def _read(self) -> Iterator[File]:
        options = self.options
        told = Options(split(options.columns), split(options.ignore_tags))
        for path in options.files:
            try:
                yield File.read(path, output_of(options, path), format_of(path) or "lines", told, options.markup)
            except ValueError as error:
                if options.on_error == "stop":
                    self.fault = error
                    return
                self._skip(error)

    def _skip(self, error: ValueError) -> None:
        self.skipped += 1
        self.say(f"{error}; file skipped")


def output_of(options: argparse.Namespace, path: str) -> str | None:
    """The output of an input file: of the same name if ``--output`` is a folder."""
    return os.path.join(options.output, os.path.basename(path)) if is_folder(options.output) else options.output


def is_folder(path: str | None) -> bool:
    return path is not None and (path.endswith(os.sep) or os.path.isdir(path))
