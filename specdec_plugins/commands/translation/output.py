"""Where ``specdec-translate`` writes: translations, the trace, and the summary of a run."""

import argparse
import errno
import os
import sys
from typing import TYPE_CHECKING, BinaryIO

from specdec_plugins.commands.trace import HtmlTrace, TracedSentence, legend, terminal
from specdec_plugins.commands.translation.formats import LAST_LINE
from specdec_plugins.settings import Settings

if TYPE_CHECKING:
    from specdec_plugins.decoding.stats import DecodeStats


class Output:
    """Where lines go. With ``--resume`` a file's complete lines stay, and ``done`` is the number of inputs that they answer."""

    def __init__(self, options: argparse.Namespace):
        self.path, self.done = options.output, 0
        if not self.path:
            if sys.stdout is None:
                raise OSError(errno.EBADF, "closed", "stdout")
            self.stream: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        elif options.resume and os.path.exists(self.path):
            self.stream = open(self.path, "r+b")  # noqa: SIM115
            self._keep_complete(LAST_LINE[options.format], options.samples)
        else:
            self.stream = open(self.path, "wb")  # noqa: SIM115

    def _keep_complete(self, last: bytes, samples: int) -> None:
        """Go to the end of the last complete sentence, and cut off what follows. A sentence has so many samples, the closing line
        of each of which starts with ``last``."""
        end = keep = outputs = 0
        for line in self.stream:
            end += len(line)
            if line.startswith(last) and line.endswith(b"\n"):
                outputs += 1
                if outputs % samples == 0:
                    self.done, keep = self.done + 1, end
        self.stream.seek(keep)
        self.stream.truncate()

    def write(self, line: str) -> None:
        self.stream.write(line.encode("utf-8") + b"\n")

    def flush(self) -> None:
        self.stream.flush()

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *error) -> None:
        self.stream.close()


class Written:
    """How many lines have reached the output; called, it says so for a run that ends early."""

    def __init__(self) -> None:
        self.lines, self.path = 0, ""

    def __call__(self) -> str:
        if not self.lines:
            return ""
        place = f"{self.path}, --resume goes on" if self.path else "stdout"
        return f" (lines written: {self.lines:,}, to {place})"


class Trace:
    """Where ``--trace`` is shown: nowhere, on stderr, or in an HTML file. A context manager."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.page: HtmlTrace | None = None

    def __enter__(self) -> "Trace":
        if self.options.trace:
            self.stream = open(self.options.trace, "w", encoding="utf-8")
            self.page = HtmlTrace(self.stream, f"{self.options.model or self.options.verifier}: drafts and verdicts")
        elif self.options.trace is not None:
            print(legend(sys.stderr.isatty()), file=sys.stderr)
        return self

    def write(self, sentence: TracedSentence) -> None:
        if self.page:
            self.page.write(sentence)
        else:
            print(terminal(sentence, sys.stderr.isatty()), file=sys.stderr)

    def __exit__(self, *error) -> None:
        if self.page:
            self.page.close()
            self.stream.close()


def summary(settings: Settings, stats: "DecodeStats", seconds: float) -> list[str]:
    """The lines that tell a person what a run came to."""
    units = "samples" if settings.drawn > 1 else "sentences" if settings.windows is None else "windows"
    lines = [
        f"{stats.sentences:,} {units}, {stats.committed:,} tokens in {seconds:.1f} s: "
        f"{stats.sentences / seconds:,.1f} {units}/s, {stats.committed / seconds:,.0f} tokens/s"
    ]
    if settings.strategy == "specdec" and stats.passes:
        rule = "exact" if settings.beta == 1 else f"beta {settings.beta}, tau {settings.tau}"
        if settings.sampling:
            rule = f"sampling, {settings.rule}"
        lines.append(f"specdec, {rule}, block size {drafting(settings, stats)}")
    total = sum(stats.seconds.values()) or 1.0
    shares = {name: stats.seconds[name] / total for name in ("drafting", "verifying", "encoding", "text", "elsewhere")}
    lines.append("time: " + ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005))
    if stats.cut:
        lines.append(f"{stats.cut:,} outputs were cut by the length limit (--max-len-a, --max-len-b)")
    return lines


def drafting(settings: Settings, stats: "DecodeStats") -> str:
    """How much was drafted, and what came of it."""
    if not settings.adaptive:
        lengths = str(settings.block_size if isinstance(settings.block_size, int) else max(stats.lengths))
    else:
        if not stats.drafted:
            return "auto: no draft, as where plain passes make more tokens a second (--block-size model drafts all the same)"
        kinds = [(f"{length} tokens" if length else "no draft", times) for length, times in stats.lengths.most_common(3)]
        lengths = f"auto ({', '.join(f'{kind} in {times / stats.passes:.0%}' for kind, times in kinds)} of the passes)"
    return (
        f"{lengths}: {stats.mean_accepted_length:.2f} tokens per verifier pass (1.0 is plain autoregressive decoding), "
        f"{stats.acceptance_rate:.0%} of the drafted tokens accepted"
    )
