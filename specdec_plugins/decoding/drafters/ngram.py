"""Drafts what followed the same tokens earlier, in the output or in the source (whose tokens are mapped to target tokens).

Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA, arXiv 2304.04487). The draft follows the last occurrence of the
longest repeated suffix of the output; the source counts as text before the output.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan

START = -2  # precedes source and output, so that an output may begin as its source does; -1 is a token that is not copied
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


class NGram(Drafter):
    """``copies[s]`` is source token s in the target's vocabulary, or -1."""

    traits = Traits(copies_text=True)

    def __init__(self, copies: Sequence[int]):
        self.copies = copies

    def start(self, rows: int, shared: object) -> Rows[Suffixes]:
        return Rows()

    def admit(self, state: Rows[Suffixes], source: Source) -> None:
        for tokens in source.sentences:
            row = Suffixes([START, *(self.copies[token] for token in tokens)], growing=True)
            row.say(START)
            state.rows.append(row)

    def propose(self, state: Rows[Suffixes], prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for row, output, length in zip(state.rows, prefix.outputs, plan.lengths):
            for token in output[row.said - 1 :]:
                row.say(token)
            lengths = row.lengths
            place = max(lengths, key=lambda place: (lengths[place], place)) if lengths else len(row.text)
            drafts.append(list(takewhile(lambda token: token >= 0, row.text[place : place + length])))
        return Draft(drafts)


def for_pair(facts: PairFacts) -> NGram:
    return NGram(facts.copies)
