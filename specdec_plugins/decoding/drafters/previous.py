"""Drafts an earlier translation of the same text, which the request has as its hint: of a text that was edited since, or of
another model. The hint may also be the source: of a text to be corrected, most of which stays.

After a refusal the draft goes on in the hint where the output meets it again: at one of the next few tokens, or after two that
occur anywhere. Until they meet, a word that the hint does not have is taken to stand for the hint's word at that place,
whatever pieces either consists of; but to be inserted before it, if they begin with different letters and the hint has that word
elsewhere. Where subwords are not known as text, each token counts as a word, and none as inserted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.suffixes import Suffixes
from specdec_plugins.decoding.values import Draft, Plan, Source

# Chosen for tokens a pass where the hint is a text to be corrected (data/correction.sh, valid) or another translation.
AHEAD = 3  # tokens of the hint that a token of the output may stand for: they meet again no farther ahead than that for each
JUMP = 2  # length of a suffix after which they meet anywhere, if the token before had no counterpart
CONTINUED = "@@"  # ends a subword that is not its word's last


class Words:
    """What subwords, in BPE, tell of words: which are not their word's last, and how they begin."""

    def __init__(self, subwords: Sequence[str]):
        self.continued = {token for token, subword in enumerate(subwords) if subword.endswith(CONTINUED)}
        self.initials = {token: subword[:1].lower() for token, subword in enumerate(subwords)}

    def alike(self, one: int, other: int) -> bool:
        """Whether two tokens begin with the same letter; true where that is not known."""
        return self.initials.get(one) == self.initials.get(other)


@dataclass
class Followed:
    """A hint, and the place in it at which the output is expected to go on. A place is the number of tokens before it."""

    hint: Suffixes
    place: int = 0
    met: int = 0  # the place after the last token at which they met
    unmatched: int = 0  # tokens of the output since then
    inside: bool = False  # whether the last of them is not its word's last

    def ahead(self, output: Sequence[int], length: int, words: Words) -> list[int]:
        """Up to ``length`` tokens of the hint that are expected to follow an output, which has grown since the last time."""
        for token in output[self.hint.said :]:
            self.say(token, words)
        return self.hint.text[self.place : self.place + length]

    def say(self, token: int, words: Words) -> None:
        """The output's next token."""
        self.hint.say(token)
        if meeting := self.meeting(token):
            self.place = self.met = meeting
            self.unmatched, self.inside = 0, False
            return
        self.unmatched += 1
        continues = self.inside
        self.inside = token in words.continued
        if not self.inside:
            self.place = self.after_word(token, continues, words)

    def meeting(self, token: int) -> int | None:
        """The place after the hint's token that is this one of the output, if there is one where it would be."""
        text, lengths = self.hint.text, self.hint.lengths
        if text[self.place : self.place + 1] == [token]:
            return self.place + 1
        longer = [place for place, length in lengths.items() if length >= JUMP]
        near = text[self.met : self.met + AHEAD * (self.unmatched + 1)]
        behind = [place for place in longer if self.met - AHEAD <= place <= self.met]  # of the same token several times
        if not behind and token in near:
            return self.met + near.index(token) + 1
        places = behind or (longer if self.unmatched else [])
        return max(places, key=lambda place: (lengths[place], -abs(place - self.met)), default=None)

    def after_word(self, token: int, continues: bool, words: Words) -> int:
        """Where the hint goes on after a word of the output that it does not have there and that ends in ``token``."""
        text, place = self.hint.text, self.place
        last = len(text) - 1
        if place >= last or (not continues and not words.alike(token, text[place]) and token in text):
            return place
        while place < last and text[place] in words.continued:
            place += 1
        return min(place + 1, last)


class Previous:
    """``subwords`` are the target's, by token; empty where they are not known."""

    copies_text = True

    def __init__(self, subwords: Sequence[str] = ()):
        self.words = Words(subwords)

    def start(self, rows: int, shared: object) -> Rows[Followed | None]:
        return Rows()

    def admit(self, state: Rows[Followed | None], source: Source) -> None:
        """The hints are the requests', so that rows begin with their first draft."""
        state.rows += [None] * len(source.sentences)

    def propose(self, state: Rows[Followed | None], prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for number, (request, output, length) in enumerate(zip(prefix.requests, prefix.outputs, plan.lengths)):
            row = state.rows[number]
            if row is None:
                row = state.rows[number] = Followed(Suffixes([*request.hint, prefix.symbols.eos] if request.hint else ()))
            drafts.append(row.ahead(output, length, self.words))
        return Draft(drafts)


def for_pair(facts: PairFacts) -> Previous:
    return Previous(facts.subwords)
