"""``--trace`` in a terminal or a log: how a sentence was decoded, pass by pass."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_plugins.formats.errors import UNSAFE

if TYPE_CHECKING:  # options are checked before the engine is loaded
    from specdec_plugins.translations import Pass

ACCEPTED, OWN, REFUSED = "\033[32m", "\033[1;34m", "\033[9;31m"  # green, bold blue, red struck through
RESET = "\033[0m"

REPLACEMENTS = dict.fromkeys(UNSAFE, "\N{REPLACEMENT CHARACTER}")


def legend(colour: bool) -> str:
    """One line that explains `traced`."""
    parts = (("accepted", ACCEPTED, ""), ("refused", REFUSED, "~"), ("the verifier’s own", OWN, "["))
    return "drafted and {}, {}; {} token after them".format(*(_mark(*part, colour) for part in parts))


def traced(source: str, output: str, passes: Sequence["Pass"], colour: bool) -> str:
    """A sentence: its figures, and a line per pass with the accepted tokens, the verifier's own and the refused ones."""
    committed = sum(len(accepted) + (own is not None) for accepted, _, own in passes)
    figures = (
        f"{committed:,} token{'s' * (committed != 1)} in {len(passes):,} pass{'es' * (len(passes) != 1)}, "
        f"mean accepted length {committed / len(passes):.2f}"
        if passes
        else "nothing to translate"
    )
    lines = [f"source  {_printable(source)}", f"output  {_printable(output)}", f"        {figures}"]
    for number, (accepted, refused, own) in enumerate(passes, 1):
        parts = [_mark(token, ACCEPTED, "", colour) for token in accepted]
        parts += [] if own is None else [_mark(own, OWN, "[", colour)]
        parts += [_mark(token, REFUSED, "~", colour) for token in refused]
        lines.append(f"{number:6}  {' '.join(parts)}")
    return "\n".join(lines) + "\n"


def _mark(text: str, code: str, sign: str, colour: bool) -> str:
    text = _printable(text)
    return f"{code}{text}{RESET}" if colour else f"{sign}{text}{']' if sign == '[' else sign}"


def _printable(text: str) -> str:
    """The text without `UNSAFE` characters."""
    return text.translate(REPLACEMENTS)
