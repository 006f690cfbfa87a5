"""The command ``specdec-translate``: lines or files in, translations out, in order."""

import argparse
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from specdec_plugins.commands import ready
from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import Parser, number, run_command, say
from specdec_plugins.commands.trace import legend
from specdec_plugins.commands.translation.answers import FORMATS, Answerer, Answers, identity, settings_of
from specdec_plugins.commands.translation.faults import decoding_faults, file_faults, format_faults, has_formats
from specdec_plugins.commands.translation.files import Files, is_folder, unit_answerer
from specdec_plugins.commands.translation.inputs import Buffer, Inputs, read_buffers
from specdec_plugins.commands.translation.options import COMMON, add_options, option_groups
from specdec_plugins.commands.translation.output import Output
from specdec_plugins.commands.translation.summary import Missing, summary
from specdec_plugins.fields import Fault
from specdec_plugins.files import MARKUP, format_of
from specdec_plugins.formats.errors import printable
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.text.lines import MAX_DOCUMENT_BYTES, LineReader, count_line_ends
from specdec_plugins.workers import Workers

if TYPE_CHECKING:  # options are checked before the engine is loaded
    from specdec_plugins.decoding.stats import DecodeStats

BUFFER_SIZE = 512  # outputs at a time


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


def check(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options. Raises ValueError for a file whose format is not supported."""
    if options.files and options.input:
        yield "input", "cannot be combined with input files as arguments"
    options.files = options.files or [options.input] * bool(options.input)
    for path in options.files if options.on_error == "stop" else ():
        format_of(path)
    for faults in (decoding_faults, file_faults, format_faults):
        yield from faults(options)


def require(options: argparse.Namespace) -> None:
    """Raise ValueError, OSError or ImportError for models and files that are missing, before the engine loads. A model of the Hub
    is replaced by its folder."""
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
        began = time.perf_counter()
        stats = files.write(work(files.batches(options.buffer_size or BUFFER_SIZE)))
        conclude(options, stats, began, files.missing)


def conclude(options: argparse.Namespace, stats: "DecodeStats | None", began: float, missing: Missing) -> None:
    """Print the summary."""
    if stats and not options.quiet:
        lines = summary(settings_of(options), stats, time.perf_counter() - began, model_name(options), missing)
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
        began = time.perf_counter()
        size = options.buffer_size or (1 if terminal else max(1, BUFFER_SIZE // settings_of(options).drawn))
        missing = Missing()
        stats = write(output, source, work(read_buffers(source, size, *beside)), shown, missing)
        shown.close()
        if not output.lines:
            report(f"{source.name} is empty")
        else:
            conclude(options, stats, began, missing)


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
