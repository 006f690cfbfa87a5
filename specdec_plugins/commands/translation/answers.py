"""Translates the buffers of ``specdec-translate``, in its own process or in a worker. Loads torch when it is built."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from specdec_plugins.commands.trace import TracedSentence, TracedStep
from specdec_plugins.commands.translation.buffers import Buffer
from specdec_plugins.commands.translation.formats import make_format
from specdec_plugins.settings import Settings

if TYPE_CHECKING:  # with --workers, only the workers load torch
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translation


class Answer(NamedTuple):
    """What to write for a line, what ``--trace`` shows of its outputs, and what was done to a source that is too long."""

    text: str
    traced: list[TracedSentence]
    shortened: Literal["", "cut", "skipped"]


@dataclass(frozen=True)
class Answers:
    """The answers to a buffer's lines, up to ``fault`` if there is one; ``stats`` are of these lines alone."""

    lines: list[Answer]
    fault: ValueError | None
    stats: "DecodeStats"


class Answerer:
    """Turns buffers into answers. ``number`` is that of the worker process that has it."""

    def __init__(self, options: argparse.Namespace, number: int = 0):
        from specdec_plugins.translator import Translator

        self.options, self.format = options, make_format(options)
        self.translator = Translator(load(options), settings_of(options).share(number, options.workers))
        self.choices: dict[str, Any] = {
            "batch_size": options.batch_size or (None if options.max_tokens else 32), "max_tokens": options.max_tokens,
            "bpe": options.bpe, "remove_bpe": options.remove_bpe,
            "too_long": "truncate" if options.truncate_source else "skip" if options.skip_long else "error",
        }  # fmt: skip

    def __call__(self, buffer: Buffer) -> Answers:
        """Answer the lines before the first source that is too long, which becomes the fault; else all of them."""
        from specdec_plugins.translator import SourceTooLong

        lines, hints, fault = buffer.lines, buffer.hints or None, buffer.fault
        try:
            results = self.translator.translate(lines, first=buffer.first, hints=hints, **self.choices)
        except SourceTooLong as error:
            where = f"{self.options.input or 'stdin'}, line {buffer.first + error.index + 1}"
            fault = ValueError(f"{where}: {error} (--truncate-source, --skip-long and --windows go on)")
            hints = hints and hints[: error.index]
            results = self.translator.translate(lines[: error.index], first=buffer.first, hints=hints, **self.choices)
        outputs = self.translator.settings.outputs
        groups = (results[start : start + outputs] for start in range(0, len(results), outputs))
        numbered = enumerate(zip(groups, buffer.references), buffer.first)
        answers = [self._answer(number, group, reference) for number, (group, reference) in numbered]
        return Answers(answers, fault, self.translator.take_stats())

    def _answer(self, number: int, outputs: Sequence["Translation"], reference: str | None) -> Answer:
        shown = [] if self.options.trace is None else [traced(output, self.translator.words) for output in outputs]
        shortened: Literal["", "cut", "skipped"] = ""
        if outputs[0].shortened:
            shortened = "cut" if outputs[0].source_tokens else "skipped"
        return Answer(self.format(number, outputs, reference), shown, shortened)


def settings_of(options: argparse.Namespace) -> Settings:
    """The decoding settings among the options. Raises OptionError.

    A trace shows drafts, so it always drafts; the draft length cannot change an exact output.
    """
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    if options.trace is not None and options.block_size is None and options.strategy in ("specdec", "drafter"):
        given["block_size"] = "model"
    return Settings(**given)


def load(options: argparse.Namespace) -> "Pair":
    from specdec_plugins.formats.folder import load_folder, load_parts

    if options.model:
        return load_folder(options.model)
    return load_parts(options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes)


def traced(result: "Translation", words: Callable[[Iterable[int]], list[str]]) -> TracedSentence:
    """What ``--trace`` shows of a translation; ``words`` names tokens."""
    steps = [
        TracedStep(
            words(step.drafted[: step.accepted]),
            words(step.drafted[step.accepted :]),
            None if step.own is None else words([step.own])[0],
        )
        for step in result.steps
    ]
    return TracedSentence(" ".join(result.source_tokens), " ".join(result.tokens), steps)
