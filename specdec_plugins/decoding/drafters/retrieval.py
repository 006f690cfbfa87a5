"""Drafts what follows the longest suffix of the output in a datastore of target text (REST, He et al. 2023, arXiv 2311.08252).

Of the places where that suffix occurs, some vote, evenly spread over the text's further suffixes: each drafted token is the one
that follows most often, and those go on that have it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from struct import unpack

from specdec_plugins.decoding.drafters import PairFacts
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Source
from specdec_plugins.formats.datastore import CONTEXT, TOKEN_BYTES, Datastore, encoded

VOTES = 16  # places that vote, at most


class Retrieval:
    """It keeps nothing of a row: a look-up takes less than what would be kept."""

    def __init__(self, datastore: Datastore, eos: int):
        self.datastore, self.eos = datastore, eos

    def start(self, rows: int, shared: object) -> None:
        return None

    def admit(self, state: None, source: Source) -> None:
        return None

    def propose(self, state: None, prefix: Prefix, plan: Plan) -> Draft:
        return Draft([self.continuation(output, length) for output, length in zip(prefix.outputs, plan.lengths)])

    def continuation(self, output: list[int], length: int) -> list[int]:
        """At most ``length`` tokens that follow the output's longest suffix; none where its last token does not occur."""
        following = [self._following(place, length) for place in self._votes(output)]
        draft: list[int] = []
        while len(draft) < length and (further := [tokens for tokens in following if len(tokens) > len(draft)]):
            # Most common: of equals the first, so that a draft does not depend on what was looked up before.
            token = Counter(tokens[len(draft)] for tokens in further).most_common(1)[0][0]
            following = [tokens for tokens in further if tokens[len(draft)] == token]
            draft.append(token)
            if token == self.eos:
                break
        return draft

    def _votes(self, output: list[int]) -> list[int]:
        """Places of the longest suffix, an output's beginning included; never the text's end, which nothing follows."""
        tokens, places = self.datastore.tokens, self.datastore.places
        suffix = [*output[: -CONTEXT - 1 : -1], self.eos][:CONTEXT]
        wanted = encoded(suffix)

        def key(place: int, size: int = len(wanted)) -> bytes:
            return tokens[TOKEN_BYTES * place : TOKEN_BYTES * place + size].tobytes()

        nearest = bisect_left(places, wanted, key=key)
        neighbours = [key(place) for place in places[max(0, nearest - 1) : nearest + 1]]
        longest = max(map(lambda found: common(found, wanted), neighbours), default=0)
        if not longest:
            return []
        found = wanted[: TOKEN_BYTES * longest]

        def begins(place: int) -> bytes:
            return key(place, len(found))

        first, end = bisect_left(places, found, key=begins), bisect_right(places, found, key=begins)
        step = max(1, (end - first) // VOTES)
        return [place for place in places[first:end:step] if place][:VOTES]

    def _following(self, place: int, length: int) -> list[int]:
        """Up to ``length`` tokens after a place of the text, which is held backwards."""
        first = max(0, place - length)
        return list(unpack(f">{place - first}I", self.datastore.tokens[TOKEN_BYTES * first : TOKEN_BYTES * place]))[::-1]


def common(one: bytes, other: bytes) -> int:
    """The number of tokens that two have in common at their beginnings."""
    pairs = zip(range(0, len(one), TOKEN_BYTES), range(0, len(other), TOKEN_BYTES))
    count = 0
    for at, _ in pairs:
        if one[at : at + TOKEN_BYTES] != other[at : at + TOKEN_BYTES]:
            break
        count += 1
    return count


def for_pair(facts: PairFacts) -> Retrieval:
    """Raises ValueError for a datastore that is missing, or is none."""
    if facts.datastore is None:
        raise ValueError("drafter 'retrieval' needs a datastore, which specdec-datastore makes")
    return Retrieval(Datastore.open(facts.datastore, facts.dictionary), facts.symbols.eos)
