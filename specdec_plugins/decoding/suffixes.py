"""Where suffixes of an output occur in a text of tokens. Knows nothing about models."""

from collections.abc import Iterable

RECENT = 64  # latest occurrences of a token that are considered: bounds the time per token


class Suffixes:
    """A text, and the positions in it that follow a suffix of the output so far.

    A position is the number of tokens before it. ``lengths`` maps each position that follows the output's last token to the
    length of its longest suffix. With ``growing``, the output becomes part of the text.
    """

    def __init__(self, text: Iterable[int], growing: bool = False):
        self.text: list[int] = []
        self.growing = growing
        self.said = 0  # tokens of the output
        self.lengths: dict[int, int] = {}
        self._after: dict[int, list[int]] = {}  # positions after each occurrence of a token, ascending
        for token in text:
            self._append(token)

    def say(self, token: int) -> None:
        """Take the output's next token. A suffix that ends in it extends the suffix that ended before it."""
        before = self.lengths
        self.lengths = {place: before.get(place - 1, 0) + 1 for place in self._after.get(token, ())[-RECENT:]}
        self.said += 1
        if self.growing:
            self._append(token)

    def _append(self, token: int) -> None:
        self.text.append(token)
        self._after.setdefault(token, []).append(len(self.text))
