"""Drafts what followed the same tokens earlier, in the output or in the source (where target tokens copy source tokens).

Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA, arXiv 2304.04487). The draft follows the last occurrence of the
longest repeated suffix of the output; the source counts as text before the output.
"""

from collections.abc import Sequence
from itertools import takewhile

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.suffixes import Suffixes
from specdec_plugins.decoding.values import Draft, Plan, Source

START = -2  # precedes source and output, so that an output may begin as its source does; -1 is a token that is not copied


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
