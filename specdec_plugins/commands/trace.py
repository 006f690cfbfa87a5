"""Show how a sentence came about: what each iteration drafted, what was accepted, where the verifier put its own token.

Knows strings only; in the terminal, or as an HTML page that needs nothing but itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

ACCEPTED, OWN, REFUSED = "\033[32m", "\033[1;34m", "\033[9;31m"  # green, bold blue, red struck through
RESET = "\033[0m"

# What could steer a terminal or reorder a line: control characters, line separators, overrides of the writing direction.
# Joiners (U+200C, U+200D) and no-break spaces stay: Persian, Hindi and French need them.
UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
REPLACEMENTS = dict.fromkeys(UNSAFE, "\N{REPLACEMENT CHARACTER}")


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
    def passes(self) -> int:
        return len(self.steps)

    @property
    def figures(self) -> str:
        return figures(self.committed, self.passes) if self.steps else "nothing to translate"


def figures(committed: int, passes: int) -> str:
    """Tokens, passes, and tokens a pass with the verifier's own included: 1.0 is plain autoregressive decoding."""
    counts = f"{committed:,} token{'s' * (committed != 1)} in {passes:,} pass{'es' * (passes != 1)}"
    return f"{counts}, mean accepted length {committed / max(1, passes):.2f}"


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
    """The text without `UNSAFE` characters: a source must not steer the terminal."""
    return text.translate(REPLACEMENTS)


def _html(text: str) -> str:
    return escape(_printable(text))


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
section {{ background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; margin: 1rem 0;
  content-visibility: auto; contain-intrinsic-size: auto 14rem; }}
dl {{ display: grid; grid-template-columns: auto 1fr; gap: .2rem .8rem; margin: 0; }}
dt {{ color: var(--soft); font-size: .85rem; line-height: 1.76; }} dd {{ margin: 0; min-width: 0; overflow-wrap: anywhere; }}
.output {{ font-weight: 600; }} .figures {{ color: var(--soft); font-size: .9rem; }}
ol {{ margin: .6rem 0 0; padding-left: 2rem; }} li {{ margin: .25rem 0; }} li::marker {{ color: var(--soft); font-size: .85rem; }}
.t {{ display: inline-block; padding: 0 .4rem; margin: .08rem 0; border-radius: .3rem; border: 1px solid transparent;
  font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }}
.yes {{ color: var(--yes); background: var(--yes-bg); }}
.own {{ color: var(--own); background: var(--own-bg); border-color: currentColor; font-weight: 700; }}
.no {{ color: var(--no); background: var(--no-bg); border: 1px dashed; text-decoration: line-through; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>Each numbered row is one pass of the verifier over a draft. It keeps the drafted tokens that it agrees with, up to the first
that it does not, and goes on with a token of its own: so a pass yields at least one token, and plain decoding, which yields
exactly one, would need as many rows as there are tokens. The mean accepted length is the tokens kept per pass, the verifier’s own
included: 1.0 is plain decoding.</p>
<p><span class="t yes">drafted, accepted</span> <strong class="t own">the verifier’s own</strong>
<del class="t no">drafted, refused</del></p>
"""


class HtmlTrace:
    """A page that grows sentence by sentence in an open text stream; `close` ends it with the totals."""

    def __init__(self, stream: TextIO, title: str):
        self.stream = stream
        self.sentences = self.committed = self.passes = 0
        self.stream.write(HEAD.format(title=_html(title)))

    def write(self, sentence: TracedSentence) -> None:
        self.sentences += 1
        self.committed += sentence.committed
        self.passes += sentence.passes
        rows = "".join(f"<li>{self._row(step)}</li>\n" for step in sentence.steps)
        self.stream.write(
            f'<section>\n<dl><dt>source</dt><dd class="source" dir="auto">{_html(sentence.source)}</dd>\n'
            f'<dt>output</dt><dd class="output" dir="auto">{_html(sentence.output)}</dd></dl>\n'
            f'<p class="figures">{sentence.figures}</p>\n' + (f"<ol>\n{rows}</ol>\n" if rows else "") + "</section>\n"
        )

    def close(self) -> None:
        count = f"{self.sentences:,} sentence{'s' * (self.sentences != 1)}"
        self.stream.write(f'<p class="totals">{count}: {figures(self.committed, self.passes)}</p>\n</body>\n</html>\n')

    @staticmethod
    def _row(step: TracedStep) -> str:
        chips = [("span", "yes", "accepted", token) for token in step.accepted]
        chips += [("strong", "own", "the verifier’s own", step.correction)] if step.correction is not None else []
        chips += [("del", "no", "refused", token) for token in step.refused]
        return " ".join(
            f'<{tag} class="t {kind}" title="{name}" dir="auto">{_html(token)}</{tag}>' for tag, kind, name, token in chips
        )
