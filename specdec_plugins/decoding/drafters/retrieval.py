"""Drafts what follows the longest suffix of the output in a datastore of target text (REST, He et al. 2023, arXiv 2311.08252).

Of the places where that suffix occurs, some vote: each drafted token is the one that follows most often, and those go on that
have it.
"""

from bisect import bisect_left
from struct import unpack

from specdec_plugins.decoding.datastore import CONTEXT, TOKEN_BYTES, Datastore, encoded
from specdec_plugins.decoding.drafters import PairFacts
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Source

VOTES = 8  # places that vote, at most: a look-up's time grows with them
CONTEXT_BYTES = CONTEXT * TOKEN_BYTES


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
        while len(draft) < length and len(following) > 1:
            tokens = [text[len(draft)] for text in following]
            token = max(tokens, key=tokens.count)  # of equals the first
            draft.append(token)
            following = [text for text in following if text[len(draft) - 1] == token and len(text) > len(draft)]
        for text in following:  # one at most
            draft += text[len(draft) :]
        return draft

    def _votes(self, output: list[int]) -> list[int]:
        """Places of the longest suffix, an output's beginning included; never the text's end, which nothing follows."""
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
        """Up to ``length`` tokens after a place of the text, which is held backwards; none after eos."""
        first = max(0, place - length)
        tokens = unpack(f">{place - first}I", self.datastore.tokens[TOKEN_BYTES * first : TOKEN_BYTES * place])[::-1]
        return tokens[: tokens.index(self.eos) + 1] if self.eos in tokens else tokens


def common(found: bytes, wanted: bytes) -> int:
    """The number of tokens that the beginning of ``wanted`` and of ``found`` have in common."""
    size = len(wanted)
    difference = int.from_bytes(wanted, "big") ^ int.from_bytes(found[:size].ljust(size, b"\xff"), "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES


def for_pair(facts: PairFacts) -> Retrieval:
    """Raises ValueError for a datastore that is missing, or is none."""
    if facts.datastore is None:
        raise ValueError("drafter 'retrieval' needs a datastore, which specdec-datastore makes")
    return Retrieval(Datastore.open(facts.datastore, facts.dictionary, facts.size), facts.symbols.eos)
