"""Moves Markdown's emphasis to where it is valid: around text without white space at its ends, apart from other emphasis."""

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
    emphasis = {n for n, tag in enumerate(tags) if tag.partner is not None}
    opening = {n for n in emphasis if tags[n].opens}
    pieces = ended(merged(pieces), emphasis - opening)
    pieces = mirrored(ended(mirrored(merged(pieces)), opening))
    return apart(filled(merged(pieces), tags), tags)


def mirrored(pieces: Pieces) -> Pieces:
    """The pieces read backwards."""
    return [piece[::-1] if isinstance(piece, str) else piece for piece in reversed(pieces)]


def merged(pieces: Pieces) -> Pieces:
    """The pieces without two texts in a row, and without empty ones."""
    found: Pieces = []
    for piece in (each for each in pieces if each != ""):
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def ended(pieces: Pieces, closing: Collection[int]) -> Pieces:
    """Moves white space at the end of an element behind its closing tag; punctuation too, if a word follows the tag."""
    found: Pieces = []
    for piece, following in zip(pieces, [*pieces[1:], ""]):
        text = found[-1] if found and piece in closing else None
        if isinstance(text, str):
            end = len(text.rstrip())
            word = isinstance(following, str) and end == len(text) and following[:1].isalnum()
            while word and end and not text[end - 1].isalnum():
                end -= 1
            found[-1:] = [each for each in (text[:end], piece, text[end:]) if each != ""]
        else:
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
        elif isinstance(before, str) and before.strip():
            word = before.rsplit(maxsplit=1)[-1].rstrip()
            start = before.rindex(word)
            found[-3:] = [before[:start], opening, word, piece, before[start + len(word) :]]
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
