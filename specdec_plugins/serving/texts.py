"""Texts as other APIs take them: of any number of sentences and lines, plain or marked up."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from specdec_plugins.files import Options, TextFile, Unreadable
from specdec_plugins.files.content import Content
from specdec_plugins.text.placing import Placed, Unit
from specdec_plugins.translations import Translation
from specdec_plugins.translator import Translator
from specdec_plugins.units import translate_units

PART = 1024  # sentences at a time: freeing what those of a large file leave would hold up all requests


def translate_texts(
    translator: Translator,
    texts: Sequence[str],
    form: str = "lines",
    options: Options = Options(),  # noqa: B008
    whole: bool = False,
    **choices: Any,
) -> list[list[str]]:
    """The translations of each text, best first: as many as the settings' ``nbest``.

    ``form`` is a format of `files`, such as its `MARKUP`. A ``whole`` text, or line, is not split into sentences. Raises
    ValueError for texts that cannot be read, and SourceTooLong.
    """
    with readable():
        files = [TextFile(text, form, options) for text in texts]
    units = [replace(unit, whole=whole) for file in files for unit in file.units]
    ranked, outputs = list[list[str]](), Outputs(translator)
    for rank in range(translator.settings.outputs):
        placed = iter(outputs.units(units, rank, choices))
        with readable():
            ranked.append([file.translated(list(islice(placed, len(file.units)))) for file in files])
    return [list(each) for each in zip(*ranked)]


@contextmanager
def readable() -> Iterator[None]:
    """An error of a text, or of one with its translations, names its character."""
    try:
        yield
    except Unreadable as error:
        raise ValueError(f"{error.what}" + ("" if error.at is None else f" (character {error.at + 1})")) from None


def translate_content(translator: Translator, content: Content, **choices: Any) -> bytes:
    """A file with its best translation, each line of it split into sentences. Raises SourceTooLong."""
    units = [replace(unit, whole=False) for unit in content.units]
    return content.translated(Outputs(translator).units(units, 0, choices))


class Outputs:
    """Translates sentences to one output each: of all that a translator decodes, the one of a rank."""

    def __init__(self, translator: Translator):
        self.translator, self.engine, self.max_source = translator, translator.engine, translator.max_source
        self.found: dict[tuple[str, ...], list[Translation]] = {}
        self.rank = 0

    def units(self, units: Sequence[Unit], rank: int, choices: dict[str, Any]) -> list[Placed | None]:
        self.rank = rank
        return translate_units(self, units, **choices)

    def translate(self, sentences: Sequence[str], **choices: Any) -> list[Translation]:
        outputs = self.engine.settings.outputs
        if outputs == 1:
            return [*self.translator.stream(sentences, PART, **choices)]
        key = (*sentences, *map(str, choices.items()))
        if key not in self.found:  # for rank 0; the others take what it found
            self.found[key] = [*self.translator.stream(sentences, PART, **choices)]
        return self.found[key][self.rank :: outputs]
