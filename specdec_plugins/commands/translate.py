"""The command ``specdec-translate``: lines or files in, translations out, in order."""

import argparse
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import (
    Parser,
    number,
    option_name,
    out_of_range,
    run_command,
    same_file,
    say,
    whole,
    whole_or_word,
)
from specdec_plugins.commands.trace import legend
from specdec_plugins.commands.translation.answers import FORMATS, Answerer, Answers, identity, settings_of
from specdec_plugins.commands.translation.files import Files, is_folder, output_of, unit_answerer
from specdec_plugins.commands.translation.inputs import Buffer, Inputs, read_buffers
from specdec_plugins.commands.translation.output import Output
from specdec_plugins.commands.translation.summary import Missing, summary
from specdec_plugins.files import MARKUP, format_of
from specdec_plugins.formats.errors import printable
from specdec_plugins.settings import SCORED, UNTRAINED, Fault, Option, OptionError, Settings, option_of
from specdec_plugins.text.endings import is_lines
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.text.lines import MAX_DOCUMENT_BYTES, LineReader, count_line_ends
from specdec_plugins.text.patterns import pattern
from specdec_plugins.workers import Workers

if TYPE_CHECKING:  # options are checked before torch is loaded
    from specdec_plugins.decoding.stats import DecodeStats

BUFFER_SIZE = 512  # outputs at a time
COMMON = {
    *"""
    help help_all version files model input output resume format batch_size workers trace quiet
""".split()
}
COMMON |= {each.name for each in fields(Settings) if option_of(each).common}


def parser() -> Parser:
    p = Parser(
        prog="specdec-translate",
        usage="%(prog)s --model DIR [option ...] [FILE ...]",
        description="Translate lines of text or whole files. One line out per line in, in order; with --nbest N, N lines.",
        epilog="Exit status: 0 done; 1 bad input or a file error, after writing everything before it; 2 wrong options.",
    )
    groups = option_groups(p)
    text, report = (groups[name].add_argument for name in ("text", "report"))
    text(
        "files",
        nargs="*",
        metavar="FILE",
        help="lines of UTF-8 text, or by its ending another format, such as .md, .html, .po or .docx; .gz or .zst "
        "may follow (default: stdin)",
    )
    text("-i", "--input", metavar="FILE", help="the same, as an option")
    text("-o", "--output", metavar="FILE|DIR", help="translations, in a folder one file for each; .gz, .zst (default: stdout)")
    text("--resume", action="store_true", help="continue the --output of an interrupted run")
    text(
        "--format",
        choices=FORMATS,
        default="text",
        help="text; json: one object per output, scores in nats; fairseq: S, T, H, D and P lines, scores to base 2",
    )
    add_options(groups)
    text("--reference", metavar="FILE", help="reference translations, for the T lines of --format fairseq")
    text("--markup", choices=sorted(MARKUP), help="lines, or the texts in files, are HTML or XML: keep and place their tags")
    text("--ignore-tags", metavar="NAMES", help="tags whose content is not translated, besides code, pre and the like")
    text("--columns", metavar="NAMES", help="columns of csv and tsv files to translate, by number or header, such as 2,4")
    text(
        "--min-confidence",
        type=number,
        metavar="P",
        help="report texts of files with a confidence below P, and mark them for review in PO and XLIFF",
    )
    groups["drafting"].add_argument(
        "--hint", metavar="FILE", help="earlier translations, one per line; for --draft-with previous"
    )
    report("--trace", action="store_true", help="show each pass's draft and what was accepted, on stderr")
    p.rare = {action.dest for action in p._actions} - COMMON
    return p


def option_groups(p: Parser) -> dict[str, argparse._ArgumentGroup]:
    """The groups of options, which a command that translates lines fills with `add_options` and its own."""
    p.add_argument("--help-all", action="store_true", help="show all options and exit")
    names = ("model", "text", "decoding", "drafting", "sampling", "beam search", "limits", "documents", "machine", "report")
    return {name: p.add_argument_group("output lengths" if name == "limits" else name) for name in names}


def add_options(groups: dict[str, argparse._ArgumentGroup]) -> None:
    """The options that `Answerer` reads, of models, text, decoding and batches. `decoding_faults` checks them."""
    model, text, machine, report = (groups[name].add_argument for name in ("model", "text", "machine", "report"))
    model(
        "--model",
        metavar="DIR",
        help="model folder (see specdec-pack and specdec-import), Hugging Face folder, or ORG/NAME of its Hub",
    )
    model("--verifier", metavar="PT", help="without a folder: fairseq checkpoint of the autoregressive model")
    model(
        "--drafter",
        metavar="PT|DIR",
        help="with --model: the name of one of its drafters, a drafter's folder (see specdec-draft), ORG/NAME of the Hub, or a "
        "smaller model with the same vocabulary; else a fairseq checkpoint",
    )
    model("--data", metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    model("--codes", metavar="FILE", help="BPE codes; not needed with --tokenized")
    model(
        "-s",
        "--source-lang",
        metavar="LANG",
        help="source language, for multilingual models or without a folder: fra_Latn, fra or fr",
    )
    model("-t", "--target-lang", metavar="LANG", help="target language, likewise")

    text("--tokenized", action="store_true", help="input and output are subwords, separated by spaces")
    text("--remove-bpe", action="store_true", help="join the output's subwords; with --tokenized or --format fairseq")
    text(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="unreadable files, lines that are too long or not text: stop, or report and skip them (default: stop)",
    )
    text(
        "--alignments",
        action="store_true",
        help="source-target word numbers, from 0: ' ||| 0-0 1-2' after a text, a field of json, A lines of fairseq",
    )
    text(
        "--protect",
        action=argparse.BooleanOptionalAction,
        help="keep placeholders, tags, URLs, paths, names and options of programs, and code unchanged, and numbers in any "
        "spelling (default: in files of other formats than lines)",
    )
    text("--protect-pattern", metavar="REGEX", help="--protect, also what this expression matches")
    text(
        "--glossary", metavar="FILE", help="terms to use, one per line: source, tab, target, optionally a tab and 'case' (exact)"
    )
    text("--word-scores", action="store_true", help="the mean score of each word's tokens; with --format json")
    text(
        "--too-long",
        choices=("error", "truncate", "skip"),
        default="error",
        help="what to do with sources longer than the model reads: stop, cut them, or write an empty line (default: error)",
    )
    for each in fields(Settings):
        if (how := option_of(each)).shown:
            add_option(groups[how.group], each.name, how, each.default)
    machine(
        "--batch-size",
        type=whole,
        metavar="N",
        help="sentences at a time (default: 32; 1 with --beta on a CPU; unlimited with --max-tokens)",
    )
    machine("--max-tokens", type=whole, metavar="N", help="source tokens at a time, padding included")
    machine("--buffer-size", type=whole, metavar="N", help="lines read ahead (default: 512; 1 from a terminal)")
    machine(
        "--workers",
        type=whole,
        default=1,
        metavar="N",
        help="processes that share the threads, or with --device cuda use one GPU each (default: 1)",
    )

    report("--quiet", action="store_true", help="no progress bar, no summary")


def add_option(group: argparse._ArgumentGroup, name: str, how: Option, default: object) -> None:
    """Add the option of a field of `Settings`; that class checks the value."""
    name_on_line = option_name(name)
    if how.kind is bool:
        group.add_argument(name_on_line, dest=name, action="store_true", help=how.help)
        return
    words = [word for word in how.words if word not in how.hidden]
    kinds: dict[type, Callable[[str], object]] = {int: whole_or_word if words else whole, float: number, str: str}
    letter = how.letter or "{" + ",".join(words) + "}"
    made = group.add_argument(name_on_line, dest=name, type=kinds[how.kind], default=default, metavar=letter, help=how.help)
    if words := list(UNTRAINED) if name == "draft_with" else words:
        made.completer = lambda **_: words  # type: ignore[attr-defined]  # argcomplete's


def main(argv: list[str] | None = None) -> int:
    progress = Progress()
    return run_command(parser(), argv, partial(run, progress=progress), check, ending=progress)


class Progress:
    """When a run ends early: how much was written, and how to continue."""

    output: Output | None = None
    files: Files | None = None

    def __call__(self) -> str:
        if self.files is not None:
            done, total = self.files.written, len(self.files.options.files)
            return f" (files written: {done:,} of {total:,})" if done + self.files.skipped < total > 1 else ""
        if self.output is None or not self.output.lines:
            return ""
        how = "; run it again with --resume to continue" * self.output.recorded
        return f" (lines written: {self.output.lines:,}, to {self.output.path or 'stdout'}){how}"


def check(options: argparse.Namespace) -> list[Fault]:
    """Everything that is wrong with the options. Raises ValueError for a file whose format is not supported."""
    faults: list[Fault] = []
    if options.files and options.input:
        faults.append(("input", "cannot be combined with input files as arguments"))
    options.files = options.files or [options.input] * bool(options.input)
    for path in options.files if options.on_error == "stop" else ():
        format_of(path)
    return [*faults, *decoding_faults(options), *file_faults(options), *format_faults(options)]


def decoding_faults(options: argparse.Namespace) -> list[Fault]:
    """Everything that is wrong with the options of `add_options`."""
    if options.strategy == "AR":  # as the published code spells it
        options.strategy = "ar"
    faults: list[Fault] = []
    if options.on_error == "skip" and options.too_long == "error" and options.windows is None:
        options.too_long = "skip"
    try:
        settings_of(options)
    except OptionError as error:
        faults += error.faults
    faults += model_faults(options)
    if options.format == "fairseq" and options.strategy == "drafter":
        faults.append(("format", "fairseq requires scores, which strategy drafter does not produce"))
    if options.remove_bpe and not options.tokenized and options.format != "fairseq":
        faults.append(("remove_bpe", "requires --tokenized or --format fairseq"))
    if options.alignments and options.strategy not in SCORED:
        faults.append(("alignments", f"is not supported by strategy {options.strategy}; use specdec or ar"))
    if options.word_scores and (options.format != "json" or options.strategy == "drafter"):
        faults.append(("word_scores", "requires --format json, and scores, which strategy drafter does not produce"))
    if options.windows is not None and (options.alignments or options.word_scores):
        faults.append(("windows", "cannot be combined with --alignments or --word-scores"))
    faults += rewriting_faults(options)
    if options.windows is not None and options.too_long != "error":
        faults.append(("too_long", "cannot be combined with --windows, which splits long sources"))
    if options.trace and options.strategy not in ("specdec", "drafter"):
        faults.append(("trace", f"requires drafts; strategy {options.strategy} makes none"))
    if (options.workers or 1) > 1 and re.fullmatch(r"cuda:\d+", options.device):
        faults.append(("device", f"{options.device} is one GPU; use --device cuda with --workers, which gives each its own"))
    return faults + out_of_range(options, "batch_size", "max_tokens", "buffer_size", "workers")


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
    if options.verifier and not (options.drafter or options.draft_with) and options.strategy in ("specdec", "drafter"):
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
    if options.min_confidence is not None and not 0 <= options.min_confidence <= 1:
        yield "min_confidence", f"{options.min_confidence:g} is not between 0 and 1"


def require(options: argparse.Namespace) -> None:
    """Raise ValueError, OSError or ImportError for models and files that are missing, before torch loads. A model of the Hub is
    replaced by its folder."""
    if options.model:
        options.model = ready.model(options.model)
        options.drafter = options.drafter and ready.trained_drafter(options.drafter, options.model)
    else:
        ready.readable(options.verifier, options.drafter, options.codes)
        ready.folder(options.data)
    ready.readable(options.glossary, options.datastore)
    if options.glossary:
        Glossary.read(options.glossary)
    ready.drafter(options.draft_with)
    if not getattr(options, "ray", None):  # which may run it elsewhere
        ready.device(options.device)
        ready.kernels(options.kernels)


def run_files(options: argparse.Namespace, progress: Progress) -> None:
    """Translate files whole. Raises ValueError or OSError."""
    with ExitStack() as stack:
        work: Callable[[Iterable], Iterator]
        if options.workers > 1:
            work = stack.enter_context(Workers(options.workers, partial(unit_answerer, options))).map
        else:
            work = partial(loaded_late, partial(unit_answerer, options))
        files = progress.files = Files(options, report)
        settings, began = settings_of(options), time.perf_counter()
        size = options.buffer_size or BUFFER_SIZE
        stats = files.write(work(files.batches(size)))
        if stats and not options.quiet:
            lines = summary(settings, stats, time.perf_counter() - began, model_name(options), files.missing)
            print("\n".join(lines), file=sys.stderr)


def model_name(options: argparse.Namespace) -> str:
    return options.model or options.verifier


def loaded_late(build: Callable[[], Callable], tasks: Iterable) -> Iterator:
    """What ``build()`` returns, of each task. The first task comes first: a file that cannot be read needs no model."""
    function = None
    for task in tasks:
        function = function or build()
        yield function(task)


def report(what: str) -> None:
    say(f"specdec-translate: {what}")


def run(options: argparse.Namespace, progress: Progress) -> None:
    """Translate, a buffer of lines at a time. Raises ValueError, OSError or ImportError."""
    require(options)
    ready.readable(*options.files, options.reference, options.hint)
    if is_folder(options.output):
        ready.writable_folder(options.output)
    else:
        ready.writable(options.output, parents=has_formats(options))
    if has_formats(options):
        return run_files(options, progress)
    with ExitStack() as stack:
        longest = None if options.windows is None else MAX_DOCUMENT_BYTES
        skipped = None if options.on_error == "stop" else lambda error: report(f"{error}, skipped")
        source = stack.enter_context(Inputs(options.files, longest, skipped))
        terminal = not options.files and sys.stdin.isatty()
        beside = [stack.enter_context(LineReader(path)) if path else None for path in (options.reference, options.hint)]
        work: Callable[[Iterable[Buffer]], Iterator[Answers]]  # loads the model before an existing output is touched
        if options.workers > 1 and not terminal:
            work = stack.enter_context(Workers(options.workers, partial(Answerer, options))).map
        else:
            work = partial(map, Answerer(options))
        output = stack.enter_context(Output(options.output, options.resume, partial(identity, options)))
        done = output.skip(source)
        for reader in beside:
            if reader and reader.skip(done) < done:
                raise ValueError(f"{options.output} has more lines than {reader.name}: it was made from another file")
        progress.output = output
        if options.trace:
            print(legend(sys.stderr.isatty()), file=sys.stderr)
        shown = stack.enter_context(lines_bar(options, done, terminal))
        settings, began = settings_of(options), time.perf_counter()
        size = options.buffer_size or (1 if terminal else max(1, BUFFER_SIZE // settings.drawn))
        missing = Missing()
        stats = write(output, source, work(read_buffers(source, size, *beside)), shown, missing)
        shown.close()
        if not output.lines:
            report(f"{source.name} is empty")
        elif stats and not options.quiet:
            lines = summary(settings, stats, time.perf_counter() - began, model_name(options), missing)
            print("\n".join(lines), file=sys.stderr)


def write(output: Output, source: Inputs, answered: Iterable[Answers], shown, missing: Missing) -> "DecodeStats | None":
    """Write the answers; raises ValueError for the line that has none. Returns the run's statistics."""
    stats = None
    for answers in answered:
        for index, answer in enumerate(answers.lines, output.lines):
            for traced in answer.traced:
                print(traced, file=sys.stderr)
            shown.update()
            if answer.missing:
                missing.add(source.place(index), answer.missing)
            if answer.said:
                shown.write(printable(f"specdec-translate: {source.place(index)}: {answer.said}"), file=sys.stderr)
        output.write([(answer.line, answer.text) for answer in answers.lines])
        if answers.too_long:
            raise ValueError(f"{source.place(output.lines)}: {answers.too_long}")
        if answers.fault:
            raise answers.fault
        stats = answers.stats if stats is None else stats + answers.stats
    return stats


def lines_bar(options: argparse.Namespace, done: int, terminal: bool):
    """A progress bar, hidden where a trace or interactive input shows the progress."""
    hidden = options.quiet or not sys.stderr.isatty() or options.trace or terminal
    total = None
    if not hidden and options.files and all(map(os.path.isfile, options.files)):  # a pipe can be read only once
        with suppress(OSError, EOFError, zlib.error):  # reported when the file is read
            total = sum(map(count_line_ends, options.files))
    return bar(hidden=hidden, total=total, initial=done, unit=" lines")


if __name__ == "__main__":
    sys.exit(main())
