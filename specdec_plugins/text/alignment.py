"""Which characters of a text its tokens stand for."""

import re
from collections.abc import Callable, Sequence

Span = tuple[int, int]  # the first character, and the one after the last


def align(text: str, pieces: Sequence[str]) -> list[Span]:
    """Where the pieces of a tokenised text come from, in order and without overlap.

    Exact for pieces that the text contains as they are. A piece that normalisation changed gets the characters between its
    neighbours as far as its own length goes, because the next unchanged piece is searched for a few characters ahead.
    """
    spans, at = [], 0
    for piece in pieces:
        while at < len(text) and text[at].isspace():
            at += 1
        start = text.find(piece, at, at + 2 * len(piece) + 8)
        if start < 0:
            start, end = at, min(at + len(piece), len(text))
            end = next((each for each in range(start, end) if text[each].isspace()), end)
        else:
            end = start + len(piece)
        spans.append((start, end))
        at = end
    return spans


def undo(pieces: Sequence[str], escape: re.Pattern[str], character: Callable[[re.Match[str]], str]) -> list[str]:
    """Pieces of a text without its escapes. An escape in several pieces becomes a character of the first of them."""
    text, owners = "".join(pieces), [number for number, piece in enumerate(pieces) for _ in piece]
    plain, at = [""] * len(pieces), 0
    for match in [*escape.finditer(text), None]:
        for index in range(at, match.start() if match else len(text)):
            plain[owners[index]] += text[index]
        if match:
            plain[owners[match.start()]] += character(match)
            at = match.end()
    return plain
