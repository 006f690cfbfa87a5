"""The command ``specdec-translate``: text in, translations out, one line each, in order.

Arguments are parsed before torch is loaded, so that ``--help`` and mistakes are answered at once.
"""

import argparse
import gzip
import json
import math
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

from specdec_plugins.commands.trace import HtmlTrace, TracedSentence, TracedStep, legend
from specdec_plugins.commands.trace import terminal as terminal_lines
from specdec_plugins.commands.workers import Workers
from specdec_plugins.settings import DTYPES, STRATEGIES, Settings

if TYPE_CHECKING:  # torch is loaded when the options are found right, and with workers only there
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translation

MAX_LINE_BYTES = 1_000_000  # a longer "line" is no sentence


class Stopped(Exception):
    """SIGTERM arrived."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-translate",
        usage="%(prog)s (--model DIR | --verifier PT --drafter PT --data DIR) [option ...]",
        description="Translate lines of text. One line out for each line in, in order.",
        epilog="Exit status: 0 done; 1 stopped by bad input or a file, while what was written stays; 2 wrong options.",
        allow_abbrev=False,
    )
    model = p.add_argument_group("model: a folder made by specdec-pack, or its parts")
    model.add_argument("--model", metavar="DIR", help="model folder")
    model.add_argument("--verifier", metavar="PT", help="fairseq checkpoint of the autoregressive model")
    model.add_argument("--drafter", metavar="PT", help="fairseq checkpoint of the block drafter")
    model.add_argument("--data", metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    model.add_argument("--codes", metavar="FILE", help="BPE codes; without them, give --bpe")
    model.add_argument("-s", "--source-lang", metavar="LANG")
    model.add_argument("-t", "--target-lang", metavar="LANG")

    text = p.add_argument_group("text")
    text.add_argument("--input", metavar="FILE", help="UTF-8 text, .gz allowed (default: stdin)")
    text.add_argument("--output", metavar="FILE", help="(default: stdout)")
    text.add_argument("--resume", action="store_true", help="keep the complete lines of --output, and go on after them")
    text.add_argument("--bpe", action="store_true", help="the input is tokens in BPE already, and so is the output")
    text.add_argument("--remove-bpe", action="store_true", help="join the subwords of --bpe's output, and of S and H lines")
    text.add_argument(
        "--format",
        choices=("text", "fairseq", "json"),
        default="text",
        help="fairseq: S, T, H, D and P lines, scores to base 2; json: scores in nats",
    )
    text.add_argument("--reference", metavar="FILE", help="reference translations, for the T lines of --format fairseq")
    long = text.add_mutually_exclusive_group()
    long.add_argument("--truncate-source", action="store_true", help="cut sources that are too long for the models, and say so")
    long.add_argument("--skip-long", action="store_true", help="write an empty line for such sources, and say so")

    how = p.add_argument_group("decoding")
    how.add_argument("--strategy", choices=STRATEGIES, default="specdec",
                     help="specdec: draft and verify (default); ar: the verifier alone; drafter: drafts, unverified; "
                     "fairseq: its own generator")  # fmt: skip
    how.add_argument("--block-size", type=block_size, metavar="K",
                     help="drafted tokens an iteration; auto: as many as pay, down to none (default: auto with the exact rule, "
                     "else the model's, as the length can change a tolerant output)")  # fmt: skip
    how.add_argument("--beta", type=int, default=1, metavar="N",
                     help="accept a token among the verifier's N best (default: 1: exact)")  # fmt: skip
    how.add_argument("--tau", type=float, default=math.inf, metavar="X", help="and within X nats of its best (default: no limit)")
    how.add_argument("--beam", type=int, default=1, metavar="N", help="beam size of --strategy fairseq (default: 1)")
    how.add_argument("--max-len-a", type=float, default=0.0, metavar="A", help="at most A * source tokens + B output tokens")
    how.add_argument("--max-len-b", type=int, default=200, metavar="B", help="(default: 0 and 200, as in fairseq)")
    how.add_argument("--batch-size", type=int, metavar="N", help="sentences at a time (default: 32; with --max-tokens, any)")
    how.add_argument("--max-tokens", type=int, metavar="N", help="source tokens at a time, padding included")
    how.add_argument("--buffer-size", type=int, metavar="N",
                     help="lines read before they are translated (default: 512; 1 from a terminal)")  # fmt: skip
    how.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    how.add_argument("--dtype", choices=DTYPES, default="float32",
                     help="of the weights (default: float32; auto: the fastest, int8 on a CPU, float16 on a GPU)")  # fmt: skip
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    how.add_argument("--workers", type=int, default=1, metavar="N",
                     help="processes that share the threads; with --device cuda, each has a GPU of its own")  # fmt: skip

    show = p.add_argument_group("what is shown")
    show.add_argument("--trace", nargs="?", const="", metavar="FILE.html",
                      help="show what each iteration drafted and accepted: on stderr, or as a page")  # fmt: skip
    show.add_argument("--quiet", action="store_true", help="no progress bar, no summary; warnings and errors only")
    return p


def block_size(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    written = Written(options)
    try:
        settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
        check(options)
    except ValueError as error:
        names = "|".join(field.name for field in fields(Settings))
        message = re.sub(rf"\b(?<!-)({names})\b", lambda found: _option(found[1]), str(error))
        print(f"specdec-translate: error: {message}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    try:
        run(options, settings, written)
    except (KeyboardInterrupt, Stopped) as stop:
        print(f"\nspecdec-translate: stopped{written}", file=sys.stderr)
        return 130 if isinstance(stop, KeyboardInterrupt) else 143
    except BrokenPipeError:  # the reader of stdout has left, as `head` does: nobody wants the rest, nor a message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = error.filename or options.output or "stdout"
        print(f"specdec-translate: error: {where}: {error.strerror or error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"specdec-translate: error: {error}{written}", file=sys.stderr)
        return 1
    return 0


class Written:
    """How many lines have reached the output, and what to say of them when the run ends early."""

    def __init__(self, options: argparse.Namespace):
        self.lines, self.options = 0, options

    def __str__(self) -> str:
        if not self.lines:
            return ""
        place = f"{self.options.output}, --resume goes on" if self.options.output else "stdout"
        return f" (lines written: {self.lines:,}, to {place})"


def check(options: argparse.Namespace) -> None:
    """Raise ValueError with every way in which the options do not go together; `Settings` has checked those of decoding."""
    faults = []
    parts = [name for name in ("verifier", "drafter", "data", "codes", "source_lang", "target_lang") if getattr(options, name)]
    if options.model and parts:
        faults.append(f"--model stands alone, without {', '.join(_option(name) for name in parts)}")
    if not options.model and not (options.verifier and options.data):
        faults.append("give --model DIR, or --verifier PT and --data DIR")
    if options.verifier and not options.drafter and options.strategy in ("specdec", "drafter"):
        faults.append(f"--strategy {options.strategy} needs --drafter")
    if options.resume and not options.output:
        faults.append("--resume needs --output")
    if options.reference and options.format != "fairseq":
        faults.append("--reference has a use only with --format fairseq")
    if options.remove_bpe and not options.bpe and options.format != "fairseq":
        faults.append("--remove-bpe has a use only with --bpe or --format fairseq")
    if options.trace is not None and options.strategy not in ("specdec", "drafter"):
        faults.append(f"--strategy {options.strategy} drafts nothing that --trace could show")
    files = [path for path in (options.input, options.reference) if path and os.path.exists(path)]
    if options.output and any(os.path.exists(options.output) and os.path.samefile(path, options.output) for path in files):
        faults.append(f"--output {options.output} is also an input")
    if options.workers > 1 and re.fullmatch(r"cuda:\d+", options.device):
        faults.append(f"--device {options.device} is one GPU: with --workers say --device cuda, for the first ones")
    for name in ("batch_size", "max_tokens", "buffer_size", "workers"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            faults.append(f"{_option(name)} {getattr(options, name)} is less than 1")
    if faults:
        raise ValueError("; ".join(faults))


def run(options: argparse.Namespace, settings: Settings, written: Written) -> None:
    """Translate, a buffer of lines at a time. Raises ValueError or OSError with one line that names what is wrong."""
    with ExitStack() as stack:
        name = options.input or "stdin"
        stream = stack.enter_context(open_input(options.input))
        terminal = not options.input and sys.stdin.isatty()
        references = stack.enter_context(open_input(options.reference)) if options.reference else None
        work: Callable[[Iterable[Buffer]], Iterator[Answers]]  # loads the model before an output that may exist is touched
        if options.workers > 1 and not terminal:
            work = stack.enter_context(Workers(options.workers, partial(Desk, options, settings))).map
        else:
            work = partial(map, Desk(options, settings))
        output = stack.enter_context(Output(options))
        written.lines = done = output.done
        for skipped, where in ((stream, name), (references, options.reference)):
            if skipped and sum(bool(skipped.readline()) for _ in range(done)) < done:
                raise ValueError(f"{options.output} has more lines than {where}: it was made from something else")

        trace = stack.enter_context(Trace(options))
        bar = stack.enter_context(progress(options, done))
        began, stats = time.perf_counter(), None
        size = options.buffer_size or (1 if terminal else 512)
        for answers in work(buffers(stream, name, references, options.reference, done, size)):
            for answer in answers.lines:
                output.write(answer.text)
                trace.write(answer.traced)
                written.lines += 1
                bar.update()
                if answer.shortened:
                    what = f"{name}, line {written.lines}: too long for the models, {answer.shortened}"
                    bar.write(f"specdec-translate: {what}", file=sys.stderr)
            output.flush()
            if answers.fault:
                raise answers.fault
            stats = answers.stats if stats is None else stats + answers.stats
        bar.close()
        if not written.lines:
            print(f"specdec-translate: {name} is empty", file=sys.stderr)
        elif stats and not options.quiet:
            print("\n".join(summary(settings, stats, time.perf_counter() - began)), file=sys.stderr)


@dataclass(frozen=True)
class Buffer:
    """Some lines of the input, the first of which is number ``first``, counted from 0, and what ended the reading behind them."""

    first: int
    lines: list[str]
    references: list[str | None]
    fault: ValueError | None = None


class Answer(NamedTuple):
    """What to write for a line, what ``--trace`` shows of it, and what was done to a source that is too long."""

    text: str
    traced: TracedSentence | None
    shortened: Literal["", "cut", "skipped"]


@dataclass(frozen=True)
class Answers:
    """To a buffer: a line each, up to the ``fault`` if there is one; ``stats`` are of these lines alone."""

    lines: list[Answer]
    fault: ValueError | None
    stats: "DecodeStats"


class Desk:
    """Where buffers are answered: a loaded translator, and the form of its answers. Worker ``number`` has one of its own."""

    def __init__(self, options: argparse.Namespace, settings: Settings, number: int = 0):
        from specdec_plugins.translator import Translator

        self.options, self.form = options, Form(options, settings)
        self.translator = Translator(load(options), settings.share(number, options.workers))
        self.choices: dict[str, Any] = {
            "batch_size": options.batch_size or (None if options.max_tokens else 32), "max_tokens": options.max_tokens,
            "bpe": options.bpe, "remove_bpe": options.remove_bpe,
            "too_long": "truncate" if options.truncate_source else "skip" if options.skip_long else "error",
        }  # fmt: skip

    def __call__(self, buffer: Buffer) -> Answers:
        """The answers up to the first source that is too long, and that as a fault; else the buffer's own fault."""
        from specdec_plugins.translator import SourceTooLong

        lines, fault = buffer.lines, buffer.fault
        try:
            results = self.translator.translate(lines, **self.choices)
        except SourceTooLong as error:
            where = f"{self.options.input or 'stdin'}, line {buffer.first + error.index + 1}"
            fault = ValueError(f"{where}: {error} (--truncate-source and --skip-long go on)")
            results = self.translator.translate(lines[: error.index], **self.choices)
        answers = [
            Answer(
                self.form(number, result, reference),
                None if self.options.trace is None else traced(result, self.translator.words),
                ("cut" if result.source_tokens else "skipped") if result.shortened else "",
            )
            for number, (result, reference) in enumerate(zip(results, buffer.references), buffer.first)
        ]
        return Answers(answers, fault, self.translator.take_stats())


def load(options: argparse.Namespace) -> "Pair":
    from specdec_plugins.formats.folder import load_folder, load_parts

    if options.model:
        return load_folder(options.model)
    return load_parts(options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes)


# ---- in


def open_input(path: str | None) -> BinaryIO:
    if path is None:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    return cast(BinaryIO, gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb"))


def read_lines(stream: BinaryIO, name: str, number: int) -> Iterator[str]:
    """Yield the lines of a stream, which starts after line ``number`` of ``name``.

    Raises ValueError naming the line when it is not UTF-8, holds a NUL byte or is longer than `MAX_LINE_BYTES`, or naming the
    file when it cannot be read.
    """
    try:
        while data := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                raise ValueError(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes")
            if b"\0" in data:
                raise ValueError(f"{name}, line {number}: holds a NUL byte, so this is no text")
            yield data.decode("utf-8").removesuffix("\n").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line)") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def reference_lines(stream: BinaryIO | None, name: str, done: int) -> Iterator[str | None]:
    """Yield the reference of each line; None for ever where there are none. Raises ValueError if they end too soon."""
    while stream is None:
        yield None
    for line in read_lines(stream, name, done):
        yield line
        done += 1
    raise ValueError(f"{name} has only {done:,} lines")


def buffers(
    stream: BinaryIO, name: str, references: BinaryIO | None, references_name: str, done: int, size: int
) -> Iterator[Buffer]:
    """Yield up to ``size`` lines at a time with their references, and the last ones with the fault that ended the reading."""
    lines, expected = read_lines(stream, name, done), reference_lines(references, references_name, done)
    while True:
        buffer = Buffer(done, [], [])
        try:
            for line in islice(lines, size):
                buffer.references.append(next(expected))
                buffer.lines.append(line)
        except ValueError as error:
            yield replace(buffer, fault=error)
            return
        if not buffer.lines:
            return
        yield buffer
        done += len(buffer.lines)


# ---- out


class Output:
    """Where lines go. With ``--resume`` a file's complete lines stay, and ``done`` is the number of inputs that they answer."""

    def __init__(self, options: argparse.Namespace):
        self.path, self.done = options.output, 0
        if not self.path:
            self.stream: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        elif options.resume and os.path.exists(self.path):
            self.stream = open(self.path, "r+b")  # noqa: SIM115
            self._skip(b"P-" if options.format == "fairseq" else b"")
        else:
            self.stream = open(self.path, "wb")  # noqa: SIM115

    def _skip(self, last: bytes) -> None:
        """Go to the end of the last complete sentence, whose closing line starts with ``last``, and cut off what follows."""
        end = 0
        for line in self.stream:
            end += len(line)
            if line.startswith(last) and line.endswith(b"\n"):
                self.done, keep = self.done + 1, end
        self.stream.seek(keep if self.done else 0)
        self.stream.truncate()

    def write(self, line: str) -> None:
        self.stream.write(line.encode("utf-8") + b"\n")

    def flush(self) -> None:
        self.stream.flush()

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *error) -> None:
        self.stream.close()


class Form:
    """Puts a translation in the form of ``--format``."""

    def __init__(self, options: argparse.Namespace, settings: Settings):
        self.form, self.remove_bpe = options.format, options.remove_bpe
        self.verified = settings.strategy != "drafter"

    def __call__(self, number: int, result: "Translation", reference: str | None) -> str:
        """Result ``number``, counted from 0 as fairseq does, as a line or more, without the end of the last."""
        if self.form == "text":
            return result.text
        if self.form == "json":
            scored = bool(result.token_scores) and self.verified
            record = {
                "id": number, "text": result.text, "tokens": result.tokens, "score": result.score if scored else None,
                "iterations": result.iterations, "accepted_lengths": result.accepted_lengths,
            }  # fmt: skip
            return json.dumps(record, ensure_ascii=False)
        score = result.score / math.log(2)  # fairseq prints base 2
        lines = [
            f"S-{number}\t{self._join(result.source_tokens)}",
            *([] if reference is None else [f"T-{number}\t{reference}"]),
            f"H-{number}\t{score}\t{self._join(result.tokens)}",
            f"D-{number}\t{score}\t{result.text}",
            f"P-{number}\t{' '.join(f'{token / math.log(2):.4f}' for token in result.token_scores)}",
        ]
        return "\n".join(lines)

    def _join(self, tokens: Sequence[str]) -> str:
        line = " ".join(tokens)
        return line.replace("@@ ", "") if self.remove_bpe else line


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


class Trace:
    """Where ``--trace`` is shown: on stderr, or in an HTML file."""

    def __init__(self, options: argparse.Namespace):
        self.options = options

    def __enter__(self) -> "Trace":
        if self.options.trace:
            self.stream = open(self.options.trace, "w", encoding="utf-8")
            self.page = HtmlTrace(self.stream, f"{self.options.model or self.options.verifier}: drafts and verdicts")
        elif self.options.trace is not None:
            print(legend(sys.stderr.isatty()), file=sys.stderr)
        return self

    def write(self, sentence: TracedSentence | None) -> None:
        if sentence is None:
            return
        if self.options.trace:
            self.page.write(sentence)
        else:
            print(terminal_lines(sentence, sys.stderr.isatty()), file=sys.stderr)

    def __exit__(self, *error) -> None:
        if self.options.trace:
            self.page.close()
            self.stream.close()


def progress(options: argparse.Namespace, done: int):
    """A bar on stderr, if that is a terminal."""
    from tqdm import tqdm

    hidden = options.quiet or not sys.stderr.isatty() or options.trace == "" or (not options.input and sys.stdin.isatty())
    total = None
    if not hidden and options.input and os.path.isfile(options.input):  # what a pipe holds can be read only once
        with open_input(options.input) as stream:
            total = sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
    return tqdm(total=total, initial=done, unit=" lines", disable=hidden, file=sys.stderr, dynamic_ncols=True)


def summary(settings: Settings, stats: "DecodeStats", seconds: float) -> list[str]:
    """What a run came to, for people."""
    lines = [
        f"{stats.sentences:,} sentences, {stats.committed:,} tokens in {seconds:.1f} s: "
        f"{stats.sentences / seconds:,.1f} sentences/s, {stats.committed / seconds:,.0f} tokens/s"
    ]
    if settings.strategy == "specdec" and stats.passes:
        lengths = str(settings.block_size or max(stats.lengths, default="the model's"))
        if settings.adaptive:
            kinds = [(f"{length} tokens" if length else "no draft", times) for length, times in stats.lengths.most_common(3)]
            lengths = f"auto ({', '.join(f'{kind} in {times / stats.passes:.0%}' for kind, times in kinds)} of the passes)"
        rule = "exact" if settings.beta == 1 else f"beta {settings.beta}, tau {settings.tau}"
        lines.append(
            f"specdec, {rule}, block size {lengths}: {stats.mean_accepted_length:.2f} tokens per verifier pass "
            f"(1.0 is plain autoregressive decoding), {stats.acceptance_rate:.0%} of the drafted tokens accepted"
        )
    total = sum(stats.seconds.values()) or 1.0
    shares = {name: stats.seconds[name] / total for name in ("drafting", "verifying", "encoding", "text", "elsewhere")}
    lines.append("time: " + ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005))
    if stats.cut:
        lines.append(f"{stats.cut:,} outputs were cut by the length limit (--max-len-a, --max-len-b)")
    return lines


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _stop(signum, frame):
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
