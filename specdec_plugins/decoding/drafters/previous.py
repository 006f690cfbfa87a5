"""Drafts from a request's hint, an earlier translation of a text that was edited since, or another model's translation. For text
correction the hint is the source itself.

After a refusal the draft resumes where the output meets the hint again: at one of the next few tokens, or anywhere after two
matching tokens. Until then, an output word that the hint lacks is assumed to replace the hint's next word, however many subwords
either has; or to be inserted before it, if the two begin with different letters and the hint has the output's word elsewhere.
Without the subwords' text each token counts as a word, and none as inserted.

Whether to draft before they meet again depends on the text: a corrected text resumes right after an error, an edited translation
often ends differently. So nothing is drafted there unless hints have often been right at that distance from the last match.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.control.acceptance import Survival
from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.drafters.ngram import Suffixes
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan

# Chosen for tokens per pass where the hint is a text to be corrected (data/correction.sh, valid) or another translation.
AHEAD = 3  # hint tokens that one output token may replace: how far ahead they can meet again
JUMP = 2  # matching tokens after which they meet anywhere, if the previous token had no counterpart
SURE = 0.25  # hit rate from which unmatched tokens are drafted
PRIOR = 0.2  # initial hit rate: one hit is enough to draft
DISTANCES = 4  # unmatched tokens with a hit rate of their own; later ones share the last


class Words:
    """Word boundaries and initials of subwords, by token. ``continued`` tokens do not end their word."""

    def __init__(self, subwords: Sequence[str], continued: Collection[int]):
        self.continued = continued
        self.initials = {token: subword[:1].lower() for token, subword in enumerate(subwords)}

    def alike(self, one: int, other: int) -> bool:
        """Whether two tokens begin with the same letter; True if unknown."""
        return self.initials.get(one) == self.initials.get(other)


@dataclass
class Followed:
    """A hint, and the position in it where the output is expected to continue. A position is the number of tokens before it."""

    hint: Suffixes
    position: int = 0
    met: int = 0  # the position after the last match
    unmatched: int = 0  # output tokens since then
    inside: bool = False  # whether the last of them continues its word

    def ahead(self, output: Sequence[int], length: int, words: Words, hits: Survival) -> list[int]:
        """Up to ``length`` tokens of the hint that are expected to follow the output.

        ``hits`` are the session's hit rates, by unmatched tokens.
        """
        for token in output[self.hint.said :]:
            self.say(token, words, hits)
        if self.unmatched and hits.rate(self.distance, PRIOR) < SURE:
            return []
        return self.hint.text[self.position : self.position + length]

    @property
    def distance(self) -> int:
        return min(self.unmatched, DISTANCES) - 1

    def say(self, token: int, words: Words, hits: Survival) -> None:
        """Take the output's next token."""
        self.hint.say(token)
        if self.unmatched and self.position < len(self.hint.text):
            hits.count(self.distance, self.hint.text[self.position] == token)
        if meeting := self.meeting(token):
            self.position = self.met = meeting
            self.unmatched, self.inside = 0, False
            return
        self.unmatched += 1
        continues = self.inside
        self.inside = token in words.continued
        if not self.inside:
            self.position = self.after_word(token, continues, words)

    def meeting(self, token: int) -> int | None:
        """The position after the hint token that this output token matches, if any."""
        text, lengths = self.hint.text, self.hint.lengths
        if text[self.position : self.position + 1] == [token]:
            return self.position + 1
        longer = [position for position, length in lengths.items() if length >= JUMP]
        near = text[self.met : self.met + AHEAD * (self.unmatched + 1)]
        behind = [position for position in longer if self.met - AHEAD <= position <= self.met]  # the same token repeated
        if not behind and token in near:
            return self.met + near.index(token) + 1
        found = behind or (longer if self.unmatched else [])
        return max(found, key=lambda position: (lengths[position], -abs(position - self.met)), default=None)

    def after_word(self, token: int, continues: bool, words: Words) -> int:
        """The position after an unmatched output word that ends in ``token``."""
        text, position = self.hint.text, self.position
        last = len(text) - 1
        if position >= last or (not continues and not words.alike(token, text[position]) and token in text):
            return position
        while position < last and text[position] in words.continued:
            position += 1
        return min(position + 1, last)


@dataclass
class Hints(Rows[Followed | None]):
    """Each row's hint; None if it has none, or before its first draft."""

    hits: Survival = field(default_factory=lambda: Survival(DISTANCES))


class Previous(Drafter):
    """``subwords`` and ``continued`` are those of `PairFacts`."""

    traits = Traits(copies_text=True)

    def __init__(self, subwords: Sequence[str] = (), continued: Collection[int] = ()):
        self.words = Words(subwords, continued)

    def start(self, rows: int, shared: object) -> Hints:
        return Hints()

    def admit(self, state: Hints, source: Source) -> None:
        """Requests carry the hints, so rows begin with their first draft."""
        state.rows += [None] * len(source.sentences)

    def propose(self, state: Hints, prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for number, (request, output, length) in enumerate(zip(prefix.requests, prefix.outputs, plan.lengths)):
            row = state.rows[number]
            if row is None:
                hint = Suffixes([*request.hint, prefix.symbols.eos] if request.hint else ())
                row = state.rows[number] = Followed(hint)
            drafts.append(row.ahead(output, length, self.words, state.hits))
        return Draft(drafts)


def for_pair(facts: PairFacts) -> Previous:
    return Previous(facts.subwords, facts.continued)
