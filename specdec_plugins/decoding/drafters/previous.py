"""Drafts an earlier translation of the same text, which the request has as its hint: of a text that was edited since, or of
another model. The hint may also be the source: of a text to be corrected, most of which stays.

After a refusal the draft goes on in the hint where the output meets it again: at one of the next few tokens, or after two that
occur anywhere. Until they meet, a word that the hint does not have is taken to stand for the hint's word at that place,
whatever pieces either consists of; but to be inserted before it, if they begin with different letters and the hint has that word
elsewhere. Where subwords are not known as text, each token counts as a word, and none as inserted.

Whether that is worth a draft depends on the text: to be corrected, it goes on right after an error; an edited translation often
ends in other words. So nothing is drafted after a refusal until they meet, where the hint was seldom right there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.suffixes import Suffixes
from specdec_plugins.decoding.values import Draft, Plan, Source

# Chosen for tokens a pass where the hint is a text to be corrected (data/correction.sh, valid) or another translation.
AHEAD = 3  # tokens of the hint that a token of the output may stand for: they meet again no farther ahead than that for each
JUMP = 2  # length of a suffix after which they meet anywhere, if the token before had no counterpart
SURE = 0.25  # share of its tokens that were right so many tokens after they last met, for which the hint is drafted there
SINCE = 4  # tokens since then that are told apart; later ones count together
PRIOR, PRIOR_WEIGHT = 0.2, 4  # the share before any was seen, and the tokens that it weighs: one that is right is enough
DECAY = 0.98  # weight of a token relative to the next one: the last 50 count
CONTINUED = "@@"  # ends a subword that is not its word's last


class Words:
    """What subwords, in BPE, tell of words: which are not their word's last, and how they begin."""

    def __init__(self, subwords: Sequence[str]):
        self.continued = {token for token, subword in enumerate(subwords) if subword.endswith(CONTINUED)}
        self.initials = {token: subword[:1].lower() for token, subword in enumerate(subwords)}

    def alike(self, one: int, other: int) -> bool:
        """Whether two tokens begin with the same letter; true where that is not known."""
        return self.initials.get(one) == self.initials.get(other)


class Hits:
    """How often hints were right about the next token before they met the output again, by the tokens since they last met."""

    def __init__(self) -> None:
        self.seen, self.right = [0.0] * (SINCE + 1), [0.0] * (SINCE + 1)

    def __deepcopy__(self, memo: object) -> "Hits":
        return self  # rows that part go on learning together

    def learn(self, unmatched: int, right: bool) -> None:
        since = min(unmatched, SINCE)
        self.seen[since] = DECAY * self.seen[since] + 1
        self.right[since] = DECAY * self.right[since] + right

    def likely(self, unmatched: int) -> bool:
        since = min(unmatched, SINCE)
        return self.right[since] + PRIOR_WEIGHT * PRIOR >= SURE * (self.seen[since] + PRIOR_WEIGHT)


@dataclass
class Followed:
    """A hint, and the place in it at which the output is expected to go on. A place is the number of tokens before it."""

    hint: Suffixes
    hits: Hits  # of all rows
    place: int = 0
    met: int = 0  # the place after the last token at which they met
    unmatched: int = 0  # tokens of the output since then
    inside: bool = False  # whether the last of them is not its word's last

    def ahead(self, output: Sequence[int], length: int, words: Words) -> list[int]:
        """Up to ``length`` tokens of the hint that are expected to follow an output, which has grown since the last time."""
        for token in output[self.hint.said :]:
            self.say(token, words)
        if self.unmatched and not self.hits.likely(self.unmatched):
            return []
        return self.hint.text[self.place : self.place + length]

    def say(self, token: int, words: Words) -> None:
        """The output's next token."""
        self.hint.say(token)
        if self.unmatched and self.place < len(self.hint.text):
            self.hits.learn(self.unmatched, self.hint.text[self.place] == token)
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


@dataclass
class Hints(Rows[Followed | None]):
    """What the rows follow; None where there is nothing, or was no draft yet."""

    hits: Hits = field(default_factory=Hits)


class Previous(Drafter):
    """``subwords`` are the target's, by token; empty where they are not known."""

    traits = Traits(copies_text=True)

    def __init__(self, subwords: Sequence[str] = ()):
        self.words = Words(subwords)

    def start(self, rows: int, shared: object) -> Hints:
        return Hints()

    def admit(self, state: Hints, source: Source) -> None:
        """The hints are the requests', so that rows begin with their first draft."""
        state.rows += [None] * len(source.sentences)

    def propose(self, state: Hints, prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for number, (request, output, length) in enumerate(zip(prefix.requests, prefix.outputs, plan.lengths)):
            row = state.rows[number]
            if row is None:
                hint = Suffixes([*request.hint, prefix.symbols.eos] if request.hint else ())
                row = state.rows[number] = Followed(hint, state.hits)
            drafts.append(row.ahead(output, length, self.words))
        return Draft(drafts)


def for_pair(facts: PairFacts) -> Previous:
    return Previous(facts.subwords)
