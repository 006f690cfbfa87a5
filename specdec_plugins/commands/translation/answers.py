"""Translates the buffers of ``specdec-translate``, in its own process or in a worker. Loads torch when it is built."""

import argparse
import gc
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from specdec_plugins.commands.trace import TracedSentence, TracedStep
from specdec_plugins.commands.translation.formats import make_format
from specdec_plugins.commands.translation.inputs import Buffer
from specdec_plugins.settings import Settings, option_of

if TYPE_CHECKING:  # with --workers, only the workers load torch
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translation

RESOURCES = ("device", "threads", "tensor_parallel", "drafter_ranks")  # settings that do not decide what is written


class Answer(NamedTuple):
    """What to write for a line, what ``--trace`` shows of its outputs, and what was done to a source that is too long."""

    text: str
    traced: list[TracedSentence]
    shortened: Literal["", "cut", "skipped"]


@dataclass(frozen=True)
class Answers:
    """The answers to a buffer's lines. ``too_long`` is what is wrong with the line after the last one that was answered, and
    ``fault`` what ended the reading of the input; ``stats`` are of these lines alone."""

    lines: list[Answer]
    too_long: str
    fault: ValueError | None
    stats: "DecodeStats"


class Answerer:
    """Turns buffers into answers. ``number`` is that of its worker process."""

    def __init__(self, options: argparse.Namespace, number: int = 0):
        import torch  # noqa: F401 - loaded now, for what comes next

        gc.freeze()  # torch's 170,000 objects stay: collecting garbage among them took 0.1 s of the start
        from specdec_plugins.translator import Translator

        self.options, settings = options, settings_of(options)
        self.translator = Translator(load(options), settings.for_worker(number, options.workers))
        self.format = make_format(options, self.translator.codec.join)
        self.choices: dict[str, Any] = {
            "batch_size": options.batch_size or (None if options.max_tokens else settings.usual_batch_size),
            "max_tokens": options.max_tokens, "bpe": options.tokenized,
            "remove_bpe": options.remove_bpe, "too_long": options.too_long,
        }  # fmt: skip

    def __call__(self, buffer: Buffer) -> Answers:
        """Answer the lines before the first source that is too long, or all of them."""
        from specdec_plugins.translator import SourceTooLong

        lines, hints, too_long = buffer.lines, buffer.hints or None, ""
        try:
            results = self.translator.translate(lines, first=buffer.first, hints=hints, **self.choices)
        except SourceTooLong as error:
            too_long = f"{error} (--too-long truncate, --too-long skip and --windows go on)"
            hints = hints and hints[: error.index]
            results = self.translator.translate(lines[: error.index], first=buffer.first, hints=hints, **self.choices)
        outputs = self.translator.settings.outputs
        groups = (results[start : start + outputs] for start in range(0, len(results), outputs))
        numbered = enumerate(zip(groups, buffer.references), buffer.first)
        answers = [self._answer(number, group, reference) for number, (group, reference) in numbered]
        return Answers(answers, too_long, buffer.fault, self.translator.engine.take_stats())

    def _answer(self, number: int, outputs: Sequence["Translation"], reference: str | None) -> Answer:
        shown = [] if self.options.trace is None else [self._traced(output) for output in outputs]
        shortened: Literal["", "cut", "skipped"] = ""
        if outputs[0].shortened:
            shortened = "cut" if outputs[0].source_tokens else "skipped"
        return Answer(self.format(number, outputs, reference), shown, shortened)

    def _traced(self, result: "Translation") -> TracedSentence:
        words = self.translator.codec.target.tokens
        steps = [
            TracedStep(
                words(step.drafted[: step.accepted]),
                words(step.drafted[step.accepted :]),
                None if step.own is None else words([step.own])[0],
            )
            for step in result.steps
        ]
        return TracedSentence(" ".join(result.source_tokens), " ".join(result.tokens), steps)


def settings_of(options: argparse.Namespace) -> Settings:
    """The decoding settings among the options. Raises OptionError.

    A trace drafts even where that does not pay: showing drafts is its purpose, and they cannot change an exact output.
    """
    given = {field.name: getattr(options, field.name) for field in fields(Settings) if option_of(field).help}
    if options.trace is not None and options.block_size is None and options.strategy in ("specdec", "drafter"):
        given["block_size"] = "model"
    return Settings(**given)


def load(options: argparse.Namespace) -> "Pair":
    from specdec_plugins.formats.folder import load_folder, load_parts

    if options.model:
        return load_folder(options.model)
    return load_parts(options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes)


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """What determines the text that is written, by name: the options that matter, and a hash of the model's files."""
    settings = vars(settings_of(options))
    named = {f"--{name.replace('_', '-')}": value for name, value in settings.items() if name not in RESOURCES}
    named |= {f"--{name.replace('_', '-')}": getattr(options, name) for name in ("format", "tokenized", "remove_bpe", "too_long")}
    if options.model:
        paths = [path for path in sorted(Path(options.model).iterdir()) if path.is_file() and path.suffix != ".md"]
    else:
        given = [Path(path) for path in (options.verifier, options.drafter, options.codes) if path]
        paths = [*given, *sorted(Path(options.data).glob("dict.*.txt"))]
    model = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            model.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return {**named, "model": model.hexdigest()}
