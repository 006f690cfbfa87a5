"""Translates the buffers of ``specdec-translate`` and formats the outputs, in the main process or in a worker.

Building an `Answerer` loads the model.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_plugins.commands.runner import option_name
from specdec_plugins.commands.trace import traced
from specdec_plugins.commands.translation.inputs import Buffer
from specdec_plugins.fields import option_of
from specdec_plugins.files import MARKUP, Options, TextFile, Unreadable, split
from specdec_plugins.settings import DRAFTING, Settings
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.text.patterns import pattern

if TYPE_CHECKING:  # with --workers, only the workers load the engine
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translation

RESOURCES = ("device", "threads")  # settings that do not change the text
TEXT = tuple(
    """
    format tokenized remove_bpe too_long source_lang target_lang markup ignore_tags on_error alignments word_scores protect
    protect_pattern glossary
""".split()
)  # options that do
# Options of `Translator.translate`, which takes them as they are
CHOICES = "max_tokens", "tokenized", "remove_bpe", "too_long", "source_lang", "target_lang", "alignments", "word_scores"
FORMATS = ("text", "fairseq", "json")
SKIPPED = "too long for the model, skipped"
Format = Callable[[int, str, Sequence["Translation"], str | None], str]  # line number from 0, line, its outputs, reference


class Answer(NamedTuple):
    """An input line, the text to write for it (without the last line end), its trace, what there is to say about the line, and
    the numbers that the text lacks."""

    line: str
    text: str
    traced: list[str]
    said: str = ""
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class Answers:
    """The answers to a buffer's lines, up to the first fault: a line that is not translated (``too_long``, such as an overlong
    one) or unreadable input (``fault``)."""

    lines: list[Answer]
    too_long: str
    fault: ValueError | None
    stats: "DecodeStats"


class Answerer:
    """Turns buffers into answers. ``number`` counts worker processes."""

    def __init__(self, options: argparse.Namespace, number: int = 0):
        from specdec_plugins.translator import Translator

        self.options, settings = options, settings_of(options)
        self.translator = Translator(load(options), settings.for_worker(number, options.workers))
        self.format = make_format(options, self.translator.codec.join)
        self.choices: dict[str, Any] = {name: getattr(options, name) for name in CHOICES} | {
            "batch_size": options.batch_size or (None if options.max_tokens else settings.usual_batch_size),
            "scores": options.strategy != "drafter" and (options.format != "text" or options.min_confidence is not None),
            "protect": pattern(options.protect_pattern or "") if options.protect or options.protect_pattern else None,
            "glossary": Glossary.read(options.glossary) if options.glossary else None,
        }
        self.of_units = self.choices | {"placeholders": options.protect is not False}

    def __call__(self, buffer: Buffer) -> Answers:
        """Answer all lines, or those before the first overlong source."""
        from specdec_plugins.translator import SourceTooLong

        if self.options.markup:
            return self._marked_up(buffer)
        lines, hints, too_long = buffer.lines, buffer.hints or None, ""
        try:
            results = self.translator.translate(lines, first=buffer.first, hints=hints, **self.choices)
        except SourceTooLong as error:
            too_long = f"{error} (--too-long truncate, --too-long skip and --windows continue)"
            hints = hints and hints[: error.index]
            results = self.translator.translate(lines[: error.index], first=buffer.first, hints=hints, **self.choices)
        outputs = self.translator.settings.outputs
        groups = (results[start : start + outputs] for start in range(0, len(results), outputs))
        numbered = enumerate(zip(lines, groups, buffer.references), buffer.first)
        answers = [self._answer(number, *each) for number, each in numbered]
        return Answers(answers, too_long, buffer.fault, self.translator.engine.take_stats())

    def _marked_up(self, buffer: Buffer) -> Answers:
        """Answer lines of markup."""
        from specdec_plugins.units import translate_first_units

        form, told = MARKUP[self.options.markup], Options(ignored=split(self.options.ignore_tags))
        contents, fault = list[TextFile | Unreadable](), ""
        for line in buffer.lines:
            try:
                contents.append(TextFile(line, form, told))
            except Unreadable as error:
                if self.options.on_error == "stop":
                    fault = error.what
                    break
                contents.append(error)
        units = [content.units if isinstance(content, TextFile) else [] for content in contents]
        placed, too_long = translate_first_units(self.translator, list(chain(*units)), first=buffer.first, **self.of_units)
        fault, rest, answers = str(too_long or fault), iter(placed), list[Answer]()
        for line, content, wanted in zip(buffer.lines, contents, units):
            own = list(islice(rest, len(wanted)))
            if len(own) < len(wanted):
                break
            if isinstance(content, Unreadable):
                answers.append(Answer(line, "", [], f"{content.what}, skipped"))
            else:
                skipped = None in own
                unplaced = [term for each in own if each for term in each.unplaced]
                said = SKIPPED if skipped else lacking(unplaced) if unplaced else ""
                try:
                    missing = [part for each in own if each for part in each.missing]
                    answers.append(Answer(line, "" if skipped else content.translated(own), [], said, missing))
                except Unreadable as error:
                    if self.options.on_error == "stop":
                        fault = error.what
                        break
                    answers.append(Answer(line, "", [], f"{error.what}, skipped"))
        return Answers(answers, fault, buffer.fault, self.translator.engine.take_stats())

    def _answer(self, number: int, line: str, outputs: Sequence["Translation"], reference: str | None) -> Answer:
        shown = [self._traced(output) for output in outputs] if self.options.trace else []
        said = ""
        if outputs[0].shortened:
            said = "too long for the model, cut" if outputs[0].source_tokens else SKIPPED
        elif outputs[0].unplaced:
            said = lacking(outputs[0].unplaced)
        return Answer(line, self.format(number, line, outputs, reference), shown, said, outputs[0].missing_numbers)

    def _traced(self, result: "Translation") -> str:
        passes = result.passes(self.translator.codec.target.tokens)
        return traced(" ".join(result.source_tokens), " ".join(result.tokens), passes, sys.stderr.isatty())


def lacking(terms: Sequence[str]) -> str:
    return f"without the glossary's translation of {', '.join(terms)}"


def make_format(options: argparse.Namespace, join: Callable[[Sequence[str]], str]) -> Format:
    """The function of ``--format``; ``join`` joins subwords, for ``--remove-bpe``."""
    if options.format == "json":
        return partial(as_json, options=options)
    if options.format == "fairseq":
        return partial(as_fairseq, join=join if options.remove_bpe else " ".join)
    return as_text


def as_text(number: int, line: str, outputs: Sequence["Translation"], reference: str | None) -> str:
    """A line per output; with alignments as Marian writes them, after bars."""
    return "\n".join(
        output.text if output.alignment is None else f"{output.text} ||| {moses(line, output)}" for output in outputs
    )


def moses(line: str, output: "Translation") -> str:
    """The alignment of an output in Moses's format."""
    assert output.alignment is not None
    return " ".join(f"{one}-{other}" for one, other in output.alignment.numbers(line, output.text))


def as_json(number: int, line: str, outputs: Sequence["Translation"], reference: str | None, options: argparse.Namespace) -> str:
    """A JSON object per output, with its own figures. ``score`` (nats) is null for unverified drafts, ``drafter`` without one."""
    records = [
        {
            "id": number,
            **({"sample": output.sample} if len(outputs) > 1 else {}),
            "text": output.text,
            "tokens": output.tokens,
            "score": output.score if output.token_scores else None,
            "drafter": output.drafter,
            "iterations": output.iterations,
            "drafted": output.drafted,
            "accepted": output.accepted,
            "accepted_lengths": output.accepted_lengths,
            **({} if output.alignment is None else {"alignment": output.alignment.numbers(line, output.text)}),
            **({"word_scores": output.word_scores, "confidence": output.confidence} if options.word_scores else {}),
            **({"unplaced": output.unplaced} if options.glossary else {}),
            **({} if options.tokenized else {"missing_numbers": output.missing_numbers}),
        }
        for output in outputs
    ]
    return "\n".join(json.dumps(record, ensure_ascii=False) for record in records)


def as_fairseq(
    number: int, line: str, outputs: Sequence["Translation"], reference: str | None, join: Callable[[Sequence[str]], str]
) -> str:
    """The lines of fairseq-generate: S, T with a reference, then H, D, P and with alignments A per output; scores to base 2."""
    lines = [f"S-{number}\t{join(outputs[0].source_tokens)}"]
    if reference is not None:
        lines.append(f"T-{number}\t{reference}")
    for output in outputs:
        assert output.score is not None and output.token_scores is not None
        score = output.score / math.log(2)
        lines += [
            f"H-{number}\t{score}\t{join(output.tokens)}",
            f"D-{number}\t{score}\t{output.text}",
            f"P-{number}\t{' '.join(f'{token / math.log(2):.4f}' for token in output.token_scores)}",
        ]
        lines += [] if output.alignment is None else [f"A-{number}\t{moses(line, output)}"]
    return "\n".join(lines)


def settings_of(options: argparse.Namespace) -> Settings:
    """The decoding settings among the options. Raises OptionError.

    ``--trace`` drafts even where that is slower: it exists to show drafts, and they cannot change an exact output.
    """
    given = {field.name: getattr(options, field.name) for field in fields(Settings) if option_of(field).shown}
    if options.trace and options.block_size is None and options.strategy in DRAFTING:
        given["block_size"] = "model"
    return Settings(**given)


def load(options: argparse.Namespace) -> "Pair":
    from specdec_plugins.formats.folder import load_folder, load_parts, with_drafter

    drafter = options.drafter if options.strategy in DRAFTING else None  # others have no use for it
    if options.model:
        pair = load_folder(options.model, options.device)
        return with_drafter(pair, drafter, options.device) if drafter else pair
    return load_parts(options.verifier, drafter, options.data, options.source_lang, options.target_lang, options.codes)


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that determines the output text, by name: the options that matter, and a hash of the model's files."""
    settings = {name: value for name, value in vars(settings_of(options)).items() if name not in RESOURCES}
    settings |= {name: getattr(options, name) for name in TEXT}
    if options.glossary:
        settings["glossary"] = f"of content {hashlib.sha256(Path(options.glossary).read_bytes()).hexdigest()[:12]}"
    if options.model:
        folders = [Path(options.model)]
        if options.drafter and os.path.isabs(options.drafter):
            folders.append(Path(options.drafter))
        elif options.drafter:  # one of the model's
            settings["drafter"] = options.drafter
        paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".md"]
    else:
        given = [Path(path) for path in (options.verifier, options.drafter, options.codes) if path]
        paths = [*given, *sorted(Path(options.data).glob("dict.*.txt"))]
    model = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            model.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return {**{option_name(name): value for name, value in settings.items()}, "model": model.hexdigest()}
