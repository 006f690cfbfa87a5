"""Show how a sentence was decoded: each iteration's draft, the accepted part, the verifier's own token.

Works on strings, for the terminal or as a single HTML page (``templates/trace.html``).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

ACCEPTED, OWN, REFUSED = "\033[32m", "\033[1;34m", "\033[9;31m"  # green, bold blue, red struck through
RESET = "\033[0m"

# Characters that steer a terminal or reorder a line: controls, line separators, direction overrides. Joiners (U+200C, U+200D)
# and no-break spaces stay: Persian, Hindi and French need them.
UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
REPLACEMENTS = dict.fromkeys(UNSAFE, "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True)
class TracedStep:
    """One iteration in subwords: the two parts of the draft, and the verifier's token after the accepted part."""

    accepted: Sequence[str]
    refused: Sequence[str]
    correction: str | None


@dataclass(frozen=True)
class TracedSentence:
    source: str
    output: str
    steps: Sequence[TracedStep]

    @property
    def committed(self) -> int:
        """Committed tokens, including ``</s>``."""
        return sum(len(step.accepted) + (step.correction is not None) for step in self.steps)

    @property
    def figures(self) -> str:
        return figures(self.committed, len(self.steps)) if self.steps else "nothing to translate"


def figures(committed: int, passes: int) -> str:
    """Tokens, passes and mean accepted length; 1.0 is plain autoregressive decoding."""
    counts = f"{committed:,} token{'s' * (committed != 1)} in {passes:,} pass{'es' * (passes != 1)}"
    return f"{counts}, mean accepted length {committed / max(1, passes):.2f}"


def legend(colour: bool) -> str:
    """One line that explains `terminal`."""
    parts = (("accepted", ACCEPTED, ""), ("refused", REFUSED, "~"), ("the verifier’s own", OWN, "["))
    return "drafted and {}, {}; {} token after them".format(*(_mark(*part, colour) for part in parts))


def terminal(sentence: TracedSentence, colour: bool) -> str:
    """Lines for a terminal, or without colour for a log: one per iteration."""
    lines = [f"source  {_printable(sentence.source)}", f"output  {_printable(sentence.output)}", f"        {sentence.figures}"]
    for number, step in enumerate(sentence.steps, 1):
        parts = [_mark(token, ACCEPTED, "", colour) for token in step.accepted]
        if step.correction is not None:
            parts.append(_mark(step.correction, OWN, "[", colour))
        parts += [_mark(token, REFUSED, "~", colour) for token in step.refused]
        lines.append(f"{number:6}  {' '.join(parts)}")
    return "\n".join(lines) + "\n"


def _mark(text: str, code: str, sign: str, colour: bool) -> str:
    text = _printable(text)
    return f"{code}{text}{RESET}" if colour else f"{sign}{text}{']' if sign == '[' else sign}"


def _printable(text: str) -> str:
    """The text without `UNSAFE` characters."""
    return text.translate(REPLACEMENTS)


@contextmanager
def open_trace(path: str | None, title: str) -> Iterator[Callable[[TracedSentence], None]]:
    """Yield a function that shows a sentence: on stderr if ``path`` is empty, otherwise on an HTML page."""
    if not path:
        if path is not None:
            print(legend(sys.stderr.isatty()), file=sys.stderr)
        yield lambda sentence: print(terminal(sentence, sys.stderr.isatty()), file=sys.stderr)
        return
    try:
        with open(path, "w", encoding="utf-8") as stream:
            page = HtmlTrace(stream, title)
            try:
                yield page.write
            finally:
                page.close()
    except OSError as error:
        error.filename = error.filename or path  # write errors lack the name
        raise


class HtmlTrace:
    """A page written sentence by sentence to an open text stream; `close` adds the totals."""

    def __init__(self, stream: TextIO, title: str):
        from jinja2 import Environment, FileSystemLoader

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
            autoescape=True, finalize=_printable, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        )  # fmt: skip
        self.parts = cast(Any, environment.get_template("trace.html").module)  # macros
        self.stream = stream
        self.sentences = self.committed = self.passes = 0
        self.stream.write(self.parts.begin(title))

    def write(self, sentence: TracedSentence) -> None:
        self.sentences += 1
        self.committed += sentence.committed
        self.passes += len(sentence.steps)
        self.stream.write(self.parts.section(sentence))

    def close(self) -> None:
        count = f"{self.sentences:,} sentence{'s' * (self.sentences != 1)}"
        self.stream.write(self.parts.end(f"{count}: {figures(self.committed, self.passes)}"))
