"""Drafts an earlier translation of the same text, which the request has as its hint: of a text that was edited since, or of
another model.

After a refusal the draft goes on in the hint behind the longest suffix of the output that occurs there, of several the one
nearest to the place where it was. A token that the hint does not have is taken to stand for the one that was refused.
"""

from dataclasses import dataclass

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.suffixes import Suffixes
from specdec_plugins.decoding.values import Draft, Plan, Source


@dataclass
class Followed:
    """A hint, and the place in it up to which the output corresponds to it."""

    hint: Suffixes
    place: int = 0

    def say(self, token: int) -> None:
        self.hint.say(token)
        self.place += 1
        if lengths := self.hint.lengths:
            self.place = max(lengths, key=lambda place: (lengths[place], -abs(place - self.place)))


class Previous:
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
            for token in output[row.hint.said :]:
                row.say(token)
            drafts.append(row.hint.text[row.place : row.place + length])
        return Draft(drafts)


def for_pair(facts: PairFacts) -> Previous:
    return Previous()
