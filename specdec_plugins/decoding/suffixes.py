"""Where the suffixes of an output occur in a text of tokens. Knows nothing about models."""

from collections.abc import Iterable

RECENT = 64  # occurrences of a token that are looked at, the last ones: bounds the time that a token takes


class Suffixes:
    """A text, and the places in it at which the output so far might go on: those that follow a suffix of the output.

    A place is the number of tokens before it. ``lengths`` has the length of the longest suffix by place, for the places that
    follow the output's last token. With ``growing`` the output becomes part of the text, and its earlier parts are found, too.
    """

    def __init__(self, text: Iterable[int], growing: bool = False):
        self.text: list[int] = []
        self.growing = growing
        self.said = 0  # tokens of the output
        self.lengths: dict[int, int] = {}
        self._places: dict[int, list[int]] = {}  # after each occurrence of a token, in the order of the text
        for token in text:
            self._append(token)

    def say(self, token: int) -> None:
        """The output's next token. A suffix that ends in it is one longer than the suffix that ended before it."""
        before = self.lengths
        self.lengths = {place: before.get(place - 1, 0) + 1 for place in self._places.get(token, ())[-RECENT:]}
        self.said += 1
        if self.growing:
            self._append(token)

    def _append(self, token: int) -> None:
        self.text.append(token)
        self._places.setdefault(token, []).append(len(self.text))
