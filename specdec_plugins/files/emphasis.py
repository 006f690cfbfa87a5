"""Where Markdown's emphasis may be: around text that begins and ends without white space, and apart from other emphasis."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from specdec_plugins.text.placing import Mark, Pieces


class Tag(NamedTuple):
    """A tag: how it is spelled, the number of its ``partner`` if it is emphasis, and whether it opens it."""

    spelled: str
    partner: int | None
    opens: bool

    @classmethod
    def of(cls, number: int, mark: Mark, spelled: str) -> "Tag":
        emphasis = mark.partner is not None and spelled[:1] in ("*", "_", "~")
        return cls(spelled, mark.partner if emphasis else None, emphasis and (mark.partner or 0) > number)


def arranged(pieces: Pieces, tags: Sequence[Tag]) -> Pieces:
    """The pieces of a translation with white space outside of emphasis, a word in each, and space between some tags."""
    pieces = merged(begun(pieces[::-1], {n for n, tag in enumerate(tags) if tag.opens})[::-1])
    pieces = merged(ended(pieces, {n for n, tag in enumerate(tags) if tag.partner is not None and not tag.opens}))
    return apart(filled(pieces, tags), tags)


def merged(pieces: Pieces) -> Pieces:
    """The pieces without two texts in a row."""
    found: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def ended(pieces: Pieces, closing: Collection[int]) -> Pieces:
    """The pieces with the white space before closing tags behind them."""
    found: Pieces = []
    for piece in pieces:
        text = found[-1] if found and piece in closing else None
        if isinstance(text, str):
            bare = text.rstrip()
            found[-1:] = [each for each in (bare, piece, text[len(bare) :]) if each != ""]
        elif piece != "":
            found.append(piece)
    return found


def begun(backwards: Pieces, opening: Collection[int]) -> Pieces:
    """The same for white space after opening tags, of pieces from the last to the first."""
    found: Pieces = []
    for piece in backwards:
        text = found[-1] if found and piece in opening else None
        if isinstance(text, str):
            bare = text.lstrip()
            found[-1:] = [each for each in (bare, piece, text[: len(text) - len(bare)]) if each != ""]
        elif piece != "":
            found.append(piece)
    return found


def filled(pieces: Pieces, tags: Sequence[Tag]) -> Pieces:
    """The pieces in which emphasis of nothing has the word after it, or before it, or the code."""
    found, rest = [], pieces[::-1]
    while rest:
        piece = rest.pop()
        found.append(piece)
        if not isinstance(piece, int) or len(found) < 2 or tags[piece].opens or tags[piece].partner != found[-2]:
            continue
        opening, after, before = found[-2], rest[-1] if rest else None, found[-3] if len(found) > 2 else None
        if isinstance(after, str) and (match := re.match(r"(\s*)(\S+)", after)):
            found[-2:] = [match[1], opening, match[2], piece]
            rest[-1] = after[match.end() :]
        elif isinstance(before, str) and (match := re.search(r"(\S+)(\s*)\Z", before)):
            found[-3:] = [before[: match.start()], opening, match[1], piece, match[2]]
        elif isinstance(after, int) and tags[after].partner is None:
            found[-1:] = [after, piece]
            rest.pop()
    return [piece for piece in found if piece != ""]


def apart(pieces: Pieces, tags: Sequence[Tag]) -> Pieces:
    """The pieces with a space between code and code, and between the end of emphasis and the beginning of another."""
    found: Pieces = []
    for before, piece in pairwise(["", *pieces]):
        if isinstance(before, int) and isinstance(piece, int):
            one, other = tags[before], tags[piece]
            code = one.spelled.endswith("`") and other.spelled.startswith("`")
            if code or (one.partner is not None and not one.opens and other.opens):
                found.append(" ")
        found.append(piece)
    return found
