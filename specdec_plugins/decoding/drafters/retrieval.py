"""Drafts from a datastore of target text: a translation memory first, then REST (He et al. 2023, arXiv 2311.08252).

If the datastore has a source similar to the request's, its target is followed like an earlier translation (``previous.py``) while
the output agrees with it. Otherwise the draft continues the output's longest suffix: several occurrences vote, each drafted token
is their most frequent successor, and the occurrences that agree keep voting.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence

from specdec_plugins.decoding.datastore import CONTEXT, TOKEN_BYTES, Datastore, encoded
from specdec_plugins.decoding.drafters import PairFacts
from specdec_plugins.decoding.drafters.ngram import Suffixes
from specdec_plugins.decoding.drafters.previous import Followed, Hints, Words
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan

VOTES = 8  # most occurrences that vote: lookup time grows with them
CONTEXT_BYTES = CONTEXT * TOKEN_BYTES
NEAR = 0.3  # least similarity of sources at which the target is followed, chosen for tokens per pass (docs/drafters.md)


class Retrieval(Drafter):
    """A row is the similar sentence's target, or None. ``subwords`` and ``continued`` are those of `PairFacts`."""

    traits = Traits(copies_text=True)

    def __init__(self, datastore: Datastore, eos: int, subwords: Sequence[str] = (), continued: Collection[int] = ()):
        self.datastore, self.eos, self.words = datastore, eos, Words(subwords, continued)

    def start(self, rows: int, shared: object) -> Hints:
        return Hints()

    def admit(self, state: Hints, source: Source) -> None:
        state.rows += [self.remembered(tokens[:-1]) for tokens in source.sentences]

    def propose(self, state: Hints, prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for row, output, length in zip(state.rows, prefix.outputs, plan.lengths):
            draft = row.ahead(output, length, self.words, state.hits) if row else []
            if row is None or row.unmatched or not draft:
                draft = self.continuation(output, length) or draft
            drafts.append(draft)
        return Draft(drafts)

    def remembered(self, source: Sequence[int]) -> Followed | None:
        """The target of the sentence whose source is most similar to ``source`` (without eos); None if none is similar."""
        memory = self.datastore.memory
        nearest = memory.nearest(source) if memory else None
        if memory is None or nearest is None or nearest[1] < NEAR:
            return None
        return Followed(Suffixes(self.datastore.after(*memory.target(nearest[0]))))

    def continuation(self, output: list[int], length: int) -> list[int]:
        """Up to ``length`` tokens after the output's longest suffix; none if its last token does not occur."""
        following = [self._following(place, length) for place in self._votes(output)]
        draft: list[int] = []
        while len(draft) < length and len(following) > 1:
            tokens = [text[len(draft)] for text in following]
            token = max(tokens, key=tokens.count)  # the first of equals
            draft.append(token)
            following = [text for text in following if text[len(draft) - 1] == token and len(text) > len(draft)]
        for text in following:  # one at most
            draft += text[len(draft) :]
        return draft

    def _votes(self, output: list[int]) -> list[int]:
        """Positions after the longest suffix, which may reach back to the output's start; never the end of the text."""
        tokens, places = self.datastore.tokens, self.datastore.places
        wanted = encoded([*output[: -CONTEXT - 1 : -1], self.eos][:CONTEXT])

        def before(place: int) -> bytes:
            return tokens[TOKEN_BYTES * place : TOKEN_BYTES * place + CONTEXT_BYTES].tobytes()

        nearest = bisect_left(places, wanted, key=before)
        near = places[max(0, nearest - VOTES // 2) : nearest + VOTES // 2].tolist()
        sizes = [common(before(place), wanted) for place in near]
        longest = max(sizes)
        return [place for place, size in zip(near, sizes) if size == longest and place] if longest else []

    def _following(self, place: int, length: int) -> tuple[int, ...]:
        """Up to ``length`` tokens after a position in the text; none after eos."""
        tokens = self.datastore.after(place, length)
        return tokens[: tokens.index(self.eos) + 1] if self.eos in tokens else tokens


def common(found: bytes, wanted: bytes) -> int:
    """How many leading tokens of ``wanted`` and ``found`` agree."""
    size = len(wanted)
    difference = int.from_bytes(wanted, "big") ^ int.from_bytes(found[:size].ljust(size, b"\xff"), "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES


def for_pair(facts: PairFacts) -> Retrieval:
    """Raises ValueError if the datastore is missing or invalid."""
    if facts.datastore is None:
        raise ValueError("drafter 'retrieval' needs a datastore; specdec-datastore makes one")
    store = Datastore.open(facts.datastore, facts.dictionary, facts.size, facts.source_dictionary, len(facts.copies))
    return Retrieval(store, facts.symbols.eos, facts.subwords, facts.continued)
