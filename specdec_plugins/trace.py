"""Show how a sentence came about: what each iteration drafted, what was accepted, where the verifier put its own token.

Knows strings only; in the terminal, or as an HTML page that needs nothing but itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

ACCEPTED, OWN, REFUSED = "\033[32m", "\033[1;34m", "\033[9;31m"  # green, bold blue, red struck through
RESET = "\033[0m"


@dataclass(frozen=True)
class TracedStep:
    """One iteration in subwords: the draft in two parts, and the verifier's token after the accepted one."""

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
        """Tokens that the iterations committed, the closing ``</s>`` included."""
        return sum(len(step.accepted) + (step.correction is not None) for step in self.steps)

    @property
    def figures(self) -> str:
        if not self.steps:
            return "nothing to translate"
        return f"{self.committed} tokens in {len(self.steps)} passes: {self.committed / len(self.steps):.2f} tokens a pass"


def legend(colour: bool) -> str:
    """One line that explains `terminal`."""
    return f"drafted and {_mark('accepted', ACCEPTED, '', colour)}, {_mark('refused', REFUSED, '~', colour)}; " + (
        f"{_mark('the verifier’s own', OWN, '[', colour)} token after them"
    )


def terminal(sentence: TracedSentence, colour: bool) -> str:
    """Some lines for a terminal, or without colour for a log: one an iteration."""
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
    """The text without control characters: a source must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1d2430; --soft: #5a6472; --page: #fbfbf9; --card: #fff; --line: #dfe2e6;
  --yes: #0f5b2c; --yes-bg: #def3e3; --own: #123f8c; --own-bg: #dfe9fb; --no: #8f2424; --no-bg: #fbe9e7; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e9ee; --soft: #a3adba; --page: #14171c; --card: #1c2129;
  --line: #333b46; --yes: #a6e3b6; --yes-bg: #17391f; --own: #b3cdff; --own-bg: #1b3159; --no: #f2b5ae; --no-bg: #432220; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; max-width: 62rem;
  padding: 1.5rem 1rem 4rem; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
p {{ margin: .4rem 0; max-width: 46rem; }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; margin: 1rem 0; }}
.source {{ color: var(--soft); }} .output {{ font-weight: 600; }} .figures {{ color: var(--soft); font-size: .9rem; }}
ol {{ margin: .6rem 0 0; padding-left: 2rem; }} li {{ margin: .25rem 0; }} li::marker {{ color: var(--soft); font-size: .85rem; }}
.t {{ display: inline-block; padding: 0 .4rem; margin: .08rem .1rem; border-radius: .3rem; border: 1px solid transparent;
  font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }}
.yes {{ color: var(--yes); background: var(--yes-bg); }}
.own {{ color: var(--own); background: var(--own-bg); border-color: currentColor; font-weight: 700; }}
.no {{ color: var(--no); background: var(--no-bg); text-decoration: line-through; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>Each numbered row is one pass of the verifier over a draft. It keeps the drafted tokens that it agrees with, up to the first
that it does not, and goes on with a token of its own: so a pass yields at least one token, and plain decoding, which yields
exactly one, would need as many rows as there are tokens.</p>
<p><span class="t yes">drafted, accepted</span> <span class="t own">the verifier’s own</span>
<span class="t no">drafted, refused</span></p>
"""


class HtmlTrace:
    """A page that grows sentence by sentence in an open text stream; `close` ends it."""

    def __init__(self, stream: TextIO, title: str):
        self.stream = stream
        self.stream.write(HEAD.format(title=escape(title)))

    def write(self, sentence: TracedSentence) -> None:
        rows = "".join(f"<li>{self._row(step)}</li>\n" for step in sentence.steps)
        self.stream.write(
            f'<section>\n<p class="source">{escape(sentence.source)}</p>\n<p class="output">{escape(sentence.output)}</p>\n'
            f'<p class="figures">{sentence.figures}</p>\n<ol>\n{rows}</ol>\n</section>\n'
        )

    def close(self) -> None:
        self.stream.write("</body>\n</html>\n")

    @staticmethod
    def _row(step: TracedStep) -> str:
        chips = [("yes", "accepted", token) for token in step.accepted]
        chips += [("own", "the verifier's own", step.correction)] if step.correction is not None else []
        chips += [("no", "refused", token) for token in step.refused]
        return "".join(f'<span class="t {kind}" title="{escape(name)}">{escape(token)}</span>' for kind, name, token in chips)
