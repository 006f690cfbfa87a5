"""A translation memory: which sentences of a datastore have a source that is near another one.

Sources are near by the tokens that both have, whose weights are the larger the fewer sources have them: similarity is twice the
weight of the shared tokens, over the weights of both sources' tokens (Dice), from 0 to 1. Repetitions and order do not count.
M sentences, P pairs of a token and a sentence that has it, V symbols of the source's dictionary:

    begins (M + 1,) int32, each sentence's place in the datastore; in descending order down to 0, as the text is held backwards
    sentences (P,) int32, those that have token 0, then those that have token 1, and so on, of each token in ascending order
    first (V + 1,) int32, where the sentences of each token begin
    totals (M,) float32, the weight of each sentence's tokens

Knows nothing about drafters, nor about files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

# A look-up's time grows with these.
LOOKED_AT = 4096  # sentences of a source's rarest tokens among which near ones are sought
CANDIDATES = 16  # the nearest of them, which are compared by all tokens


@dataclass(frozen=True)
class Memory:
    """The arrays, mapped or not, under their names in a file."""

    begins: np.ndarray
    sentences: np.ndarray
    first: np.ndarray
    totals: np.ndarray

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[int], symbols: int) -> "Memory":
        """Of sources and the lengths of their targets, neither with eos. ``symbols`` are those of the source's dictionary."""
        count = len(sources)
        ends = np.cumsum(np.array(targets, np.int64) + 1)
        tokens = np.fromiter((token for source in sources for token in source), np.int64)
        owners = np.repeat(np.arange(count), list(map(len, sources)))
        pairs = np.unique(tokens * count + owners)
        tokens, sentences = np.divmod(pairs, count)
        first = np.searchsorted(tokens, np.arange(symbols + 1))
        begins = ends[-1] - np.concatenate([[0], ends])
        store = cls(begins.astype(np.int32), sentences.astype(np.int32), first.astype(np.int32), np.zeros(count, np.float32))
        totals = np.bincount(sentences, np.array(store.weights)[tokens], count)
        return replace(store, totals=totals.astype(np.float32))

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, text: int, symbols: int) -> bool:
        """Whether the arrays belong together, and to a datastore of ``text`` tokens and a dictionary of so many symbols."""
        begins, sentences, first, totals = self.begins, self.sentences, self.first, self.totals
        if [array.dtype for array in (begins, sentences, first, totals)] != [np.int32, np.int32, np.int32, np.float32]:
            return False
        if any(array.ndim != 1 for array in (begins, sentences, first, totals)):
            return False
        if len(begins) < 2 or len(totals) != len(begins) - 1 or len(first) != symbols + 1:
            return False
        if begins[0] != text - 1 or begins[-1] != 0 or np.diff(begins).max() >= 0:
            return False
        if first[0] != 0 or first[-1] != len(sentences) or not 0 <= np.diff(first).min() <= np.diff(first).max() <= len(totals):
            return False
        if not (totals >= 0).all() or not np.isfinite(totals).all():
            return False
        return not len(sentences) or bool(0 <= sentences.min() <= sentences.max() < len(totals))

    @cached_property
    def counts(self) -> list[int]:
        """(V) how many sentences have each token."""
        return np.diff(self.first).tolist()

    @cached_property
    def weights(self) -> list[float]:
        """(V) what each token counts."""
        return np.log((len(self.totals) + 1) / np.maximum(1, np.diff(self.first))).tolist()

    def nearest(self, source: Sequence[int]) -> tuple[int, float] | None:
        """The sentence with the source nearest to one without eos, the first of several, and its similarity.

        Only sentences are found that have one of the source's rarest tokens; None if there are none.
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
        """The place of the sentence's target in the datastore, and its length with eos."""
        begin, end = self.begins[sentence : sentence + 2].tolist()
        return begin, begin - end

    def _having(self, token: int) -> np.ndarray:
        """The sentences that have a token, in ascending order."""
        first, end = self.first[token : token + 2]
        return self.sentences[first:end]
