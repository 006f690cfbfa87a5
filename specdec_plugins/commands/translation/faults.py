"""What is wrong with the options of commands that translate, before anything is loaded."""

import argparse
import os
import re
from collections.abc import Iterator

from specdec_plugins.commands.runner import option_name, out_of_range, same_file
from specdec_plugins.commands.translation.answers import settings_of
from specdec_plugins.commands.translation.files import is_folder, output_of
from specdec_plugins.fields import Fault, OptionError
from specdec_plugins.settings import DRAFTING, SCORED, UNTRAINED
from specdec_plugins.text.endings import is_lines
from specdec_plugins.text.patterns import pattern


def decoding_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options of `add_options`."""
    if options.strategy == "AR":  # as the published code spells it
        options.strategy = "ar"
    if options.on_error == "skip" and options.too_long == "error" and options.windows is None:
        options.too_long = "skip"
    try:
        settings_of(options)
    except OptionError as error:
        yield from error.faults
    for faults in (model_faults, answer_faults, rewriting_faults):
        yield from faults(options)
    if options.windows is not None and options.too_long != "error":
        yield "too_long", "cannot be combined with --windows, which splits long sources"
    if options.trace and options.strategy not in DRAFTING:
        yield "trace", f"requires drafts; strategy {options.strategy} makes none"
    if (options.workers or 1) > 1 and re.fullmatch(r"cuda:\d+", options.device):
        yield "device", f"{options.device} is one GPU; use --device cuda with --workers, which gives each its own"
    yield from out_of_range(options, "batch_size", "max_tokens", "buffer_size", "workers")


def answer_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the options of what is written for a line."""
    if options.format == "fairseq" and options.strategy == "drafter":
        yield "format", "fairseq requires scores, which strategy drafter does not produce"
    if options.remove_bpe and not options.tokenized and options.format != "fairseq":
        yield "remove_bpe", "requires --tokenized or --format fairseq"
    if options.alignments and options.strategy not in SCORED:
        yield "alignments", f"is not supported by strategy {options.strategy}; use specdec or ar"
    if options.word_scores and (options.format != "json" or options.strategy == "drafter"):
        yield "word_scores", "requires --format json, and scores, which strategy drafter does not produce"
    if options.windows is not None and (options.alignments or options.word_scores):
        yield "windows", "cannot be combined with --alignments or --word-scores"


def rewriting_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the options that may translate a sentence again."""
    others = ["sampling"] * options.sampling + ["nbest"] * (options.nbest > 1) + ["tokenized"] * options.tokenized
    others += ["windows"] * (options.windows is not None)
    for name in ("protect", "protect_pattern", "glossary"):
        if getattr(options, name) and options.strategy not in SCORED:
            yield name, f"is not supported by strategy {options.strategy}; use specdec or ar"
        elif getattr(options, name) and others:
            yield name, f"cannot be combined with {' and '.join(map(option_name, others))}"
    if options.protect_pattern and options.protect is False:
        yield "protect_pattern", "cannot be combined with --no-protect"
    if options.protect_pattern:
        try:
            pattern(options.protect_pattern)
        except ValueError as error:
            yield "protect_pattern", str(error)


def model_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the options that name models."""
    parts = [name for name in ("verifier", "drafter", "data", "codes") if getattr(options, name)]
    others = [name for name in parts if name != "drafter"]
    if options.model and others:
        yield "model", f"cannot be combined with {', '.join(map(option_name, others))}"
    if not options.model and not (options.verifier and options.data):
        yield "model", "is missing: give --model DIR, or --verifier PT and --data DIR"
    if options.verifier and not (options.drafter or options.draft_with) and options.strategy in DRAFTING:
        yield "strategy", f"{options.strategy} requires --drafter" + " or --draft-with" * (options.strategy == "specdec")
    if options.drafter and options.draft_with:
        yield "drafter", "cannot be combined with --draft-with"
    if options.hint and options.draft_with in (None, *UNTRAINED) and options.draft_with != "previous":
        yield "hint", "requires --draft-with previous"
    if options.draft_with == "previous" and not options.hint:
        yield "hint", "is missing; --draft-with previous requires it"
    if options.hint and options.windows is not None:
        yield "hint", "holds whole lines and cannot be combined with --windows"


def file_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the options that name files."""
    if options.resume and not options.output:
        yield "resume", "requires --output"
    if options.reference and options.format != "fairseq":
        yield "reference", "requires --format fairseq"
    inputs = *options.files, options.reference, options.hint
    outputs = [output_of(options, path) for path in options.files] if is_folder(options.output) else [options.output]
    for mine in outputs:
        if any(same_file(mine, path) for path in inputs):
            yield "output", f"{mine} is also an input"


def has_formats(options: argparse.Namespace) -> bool:
    """Whether files are translated whole, each to one of its own, rather than line by line."""
    return is_folder(options.output) or not all(map(is_lines, options.files))


def format_faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the options that concern files other than lines of text, or marked-up lines."""
    files = has_formats(options)
    lines_only = not options.markup and all(map(is_lines, options.files))
    if files or options.markup:
        what = "files of other formats than lines, -o DIR" if files else "--markup"
        names = ["format", "tokenized", "reference", "hint", "trace", "alignments", "word_scores", "sampling"]
        names += ["resume", "remove_bpe"] * files + ["windows"] * (not lines_only)
        if given := [option_name(name) for name in names if getattr(options, name) not in (None, False, "text")]:
            yield given[0][2:].replace("-", "_"), f"cannot be combined with {what}"
        if max(options.nbest or 1, options.num_samples or 1) > 1:
            yield "nbest", f"cannot be combined with {what}"
    if files and not options.files:
        yield "output", f"{options.output} is a folder; name the input files"
    if files and len(options.files) > 1 and not is_folder(options.output):
        yield "output", "must be a folder (-o DIR/) for several files of other formats than lines"
    names = [os.path.basename(path) for path in options.files]
    if is_folder(options.output) and len(set(names)) < len(names):
        yield "output", "would have two files of one name"
    if options.min_confidence is not None and not files:
        yield "min_confidence", "is for files of other formats than lines, or with -o DIR"
    if options.min_confidence is not None and options.strategy == "drafter":
        yield "min_confidence", "requires scores, which strategy drafter does not produce"
    if options.min_confidence is not None and not 0 <= options.min_confidence <= 1:
        yield "min_confidence", f"{options.min_confidence:g} is not between 0 and 1"
