"""A translation memory: finds the sentence of a datastore whose source is most similar to a given one.

Similarity is the IDF-weighted Dice coefficient of the token sets, from 0 to 1; repetitions and order do not count. M sentences,
P pairs of a token and a sentence that has it, V symbols of the source dictionary:

    begins (M + 1,) int32, each sentence's position in the datastore; descending to 0, as the text is stored backwards
    sentences (P,) int32, those that have token 0, then those that have token 1, and so on; ascending for each token
    first (V + 1,) int32, where each token's sentences begin
    totals (M,) float32, the weight of each sentence's tokens

Knows nothing about drafters or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

# Both bound the time of a lookup.
LOOKED_AT = 4096  # sentences searched, those of a source's rarest tokens
CANDIDATES = 16  # the most similar of these, which are compared by all tokens


@dataclass(frozen=True)
class Memory:
    """The arrays, mapped or not, under their names in a file."""

    begins: np.ndarray
    sentences: np.ndarray
    first: np.ndarray
    totals: np.ndarray

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[int], symbols: int) -> "Memory":
        """From sources and the lengths of their targets, without eos. ``symbols`` is the size of the source dictionary."""
        count = len(sources)
        ends = np.cumsum(np.array(targets, np.int64) + 1)
        tokens = np.fromiter((token for source in sources for token in source), np.int64)
        owners = np.repeat(np.arange(count), list(map(len, sources)))
        tokens, sentences = np.divmod(np.unique(tokens * count + owners), count)
        first = np.searchsorted(tokens, np.arange(symbols + 1))
        begins = ends[-1] - np.concatenate([[0], ends])
        store = cls(begins.astype(np.int32), sentences.astype(np.int32), first.astype(np.int32), np.zeros(count, np.float32))
        totals = np.bincount(sentences, np.array(store.weights)[tokens], count)
        return replace(store, totals=totals.astype(np.float32))

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, text: int, symbols: int) -> bool:
        """Whether the arrays fit each other, a datastore of ``text`` tokens and a dictionary of ``symbols`` symbols."""
        begins, sentences, first, totals = arrays = [*self.tensors().values()]
        if [(array.dtype, array.ndim) for array in arrays] != [
            (np.dtype(each), 1) for each in (np.int32, np.int32, np.int32, np.float32)
        ]:
            return False
        if len(begins) < 2 or len(totals) != len(begins) - 1 or len(first) != symbols + 1:
            return False
        if begins[0] != text - 1 or begins[-1] != 0 or np.diff(begins).max() >= 0:
            return False
        if first[0] != 0 or first[-1] != len(sentences) or not 0 <= np.diff(first).min() <= np.diff(first).max() <= len(totals):
            return False
        if not ((totals >= 0) & np.isfinite(totals)).all():
            return False
        return not len(sentences) or bool(0 <= sentences.min() <= sentences.max() < len(totals))

    @cached_property
    def counts(self) -> list[int]:
        """(V) the number of sentences that have each token."""
        counts: list[int] = np.diff(self.first).tolist()
        return counts

    @cached_property
    def weights(self) -> list[float]:
        """(V) IDF of each token."""
        weights: list[float] = np.log((len(self.totals) + 1) / np.maximum(1, np.diff(self.first))).tolist()
        return weights

    def nearest(self, source: Sequence[int]) -> tuple[int, float] | None:
        """The sentence whose source is most similar to ``source`` (without eos), the first of equals, and its similarity.

        Searches only sentences that have one of the source's rarest tokens; otherwise None.
        """
        counts, weights = self.counts, self.weights
        tokens = sorted(set(source), key=lambda token: (counts[token], token))
        total, looked = sum(weights[token] for token in tokens), 0
        rare: list[int] = []
        for token in tokens:
            looked += counts[token]
            if looked > LOOKED_AT:
                break
            rare.append(token)
        having = [self._having(token) for token in rare]
        if not sum(map(len, having)):
            return None
        found, where = np.unique(np.concatenate(having), return_inverse=True)
        shared = np.bincount(where, np.repeat([weights[token] for token in rare], list(map(len, having))))
        best = np.argsort(-shared / (total + self.totals[found]), kind="stable")[:CANDIDATES]
        near, shared = found[best], shared[best]
        for token in tokens[len(rare) :]:
            sentences = self._having(token)
            places = np.minimum(np.searchsorted(sentences, near), len(sentences) - 1)
            shared += weights[token] * (sentences[places] == near)
        similarity = 2 * shared / (total + self.totals[near])
        highest = similarity.max()
        return int(near[similarity == highest].min()), float(highest)

    def target(self, sentence: int) -> tuple[int, int]:
        """The position of the sentence's target in the datastore, and its length with eos."""
        begin, end = self.begins[sentence : sentence + 2].tolist()
        return begin, begin - end

    def _having(self, token: int) -> np.ndarray:
        """The sentences that have a token, ascending."""
        first, end = self.first[token : token + 2]
        return self.sentences[first:end]
