"""A datastore: target text as tokens with a suffix array. ``specdec-datastore`` makes it, `Datastore.open` maps it.

The text is stored backwards: the tokens before a position are read forwards from it, and sorting puts equal suffixes side by
side. Eos precedes each sentence and follows the last. In safetensors, N tokens:

    tokens (N, 4) uint8, big-endian numbers, so that bytes compare as tokens do
    places (N,) int32, the positions in ``tokens``, sorted by the `CONTEXT` tokens from there on

A datastore with sources also has the arrays of a translation memory (``memory.py``). Knows nothing about drafters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from struct import unpack
from typing import Any

import numpy as np

from specdec_plugins.decoding.memory import Memory
from specdec_plugins.formats import files
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.tensors import read

FORMAT = "specdec-datastore 1"
CONTEXT = 16  # tokens that positions are sorted by, as in REST; longer suffixes are no better
TOKEN_BYTES = 4
MOST_TOKENS = 2**31 - 1


class Datastore:
    """``tokens`` (bytes) and ``places`` (int32) are native buffers, mapped or not; without sources ``memory`` is None."""

    def __init__(self, tokens: np.ndarray, places: np.ndarray, memory: Memory | None = None):
        self.arrays, self.memory = (tokens, places), memory
        self.tokens, self.places = tokens.reshape(-1).data, places.data

    def __len__(self) -> int:
        """Tokens, eos included."""
        return len(self.places)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], eos: int) -> "Datastore":
        """From sentences without eos. Raises ValueError for no token, or more than the format can number."""
        text = [eos]
        for sentence in sentences:
            text += sentence
            text.append(eos)
        if not 1 < len(text) <= MOST_TOKENS:
            raise ValueError(f"a datastore has 2 to {MOST_TOKENS:,} tokens, and this would have {len(text):,}")
        tokens = np.array(text[::-1], np.int64)
        return cls(tokens.astype(">u4").view(np.uint8).reshape(-1, TOKEN_BYTES), sorted_places(tokens).astype(np.int32))

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], eos: int, symbols: int) -> "Datastore":
        """From sources and targets, with a memory; ``symbols`` is the source dictionary's size. Raises ValueError as `of`."""
        pairs = list(pairs)
        store = cls.of((target for _, target in pairs), eos)
        store.memory = Memory.of([source for source, _ in pairs], [len(target) for _, target in pairs], symbols)
        return store

    def save(self, path: str, dictionary: str, source_dictionary: str = "") -> None:
        """Write a file with the fingerprints of its dictionaries. Raises ValueError or OSError if that fails."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        about = {"format": FORMAT, "dictionary": dictionary}
        tensors = dict(zip(("tokens", "places"), self.arrays))
        if self.memory is not None:
            about["source_dictionary"] = source_dictionary
            tensors |= self.memory.tensors()
        try:
            with files.whole(path) as temporary:  # a translator may have the old one mapped
                save_file(tensors, temporary, about)
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def open(cls, path: str, dictionary: str, symbols: int, source_dictionary: str = "", source_symbols: int = 0) -> "Datastore":
        """Map a file. Dictionaries are given by fingerprint and size. Raises ValueError naming the file if it is no datastore,
        damaged, or made with other dictionaries."""
        from safetensors import SafetensorError, safe_open

        memory = None
        try:
            with safe_open(path, framework="np") as file:
                about: dict[str, Any] = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise ValueError(f"{path}: not a datastore of specdec-datastore ({FORMAT})")
                if about.get("dictionary") != dictionary:
                    raise ValueError(f"{path}: made with another target dictionary than the model's")
                arrays = read(Path(path))
                tokens, places = arrays["tokens"], arrays["places"]
                if "source_dictionary" in about:
                    if about["source_dictionary"] != source_dictionary:
                        raise ValueError(f"{path}: made with another source dictionary than the model's")
                    memory = Memory(*(arrays[field.name] for field in fields(Memory)))
        except (SafetensorError, OSError, KeyError) as error:
            missing = isinstance(error, FileNotFoundError) or not Path(path).exists()
            raise ValueError(f"{path}: {'there is no such file' if missing else f'not a datastore ({brief(error)})'}") from None
        count = len(places) if places.ndim == 1 else 0
        if tokens.shape != (count, TOKEN_BYTES) or tokens.dtype != np.uint8 or places.dtype != np.int32 or not count:
            raise ValueError(f"{path}: damaged, its tensors do not fit each other")
        if not 0 <= places.min() <= places.max() < count or tokens.view(">u4").max() >= symbols:
            raise ValueError(f"{path}: damaged, it has positions or tokens out of range")
        if memory is not None and not memory.fits(count, source_symbols):
            raise ValueError(f"{path}: damaged, its translation memory does not fit its text")
        return cls(tokens, places, memory)

    def after(self, place: int, length: int) -> tuple[int, ...]:
        """Up to ``length`` tokens after a position; fewer at the end of the text."""
        first = max(0, place - length)
        return unpack(f">{place - first}I", self.tokens[TOKEN_BYTES * first : TOKEN_BYTES * place])[::-1]


def sorted_places(tokens: np.ndarray) -> np.ndarray:
    """(N,) the positions in tokens (N,), sorted by the `CONTEXT` tokens from there on, then by position.

    Prefix doubling (Manber and Myers 1990): a position's rank by 2n tokens follows from its own rank by n tokens and that of the
    position n further on. The end sorts first.
    """
    ranks = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    length = 1
    while length < CONTEXT:
        further = np.zeros_like(ranks)
        further[:-length] = ranks[length:]
        keys = ranks * (len(ranks) + 1) + further
        ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64) + 1
        length *= 2
    return np.argsort(ranks, kind="stable")


def encoded(tokens: Iterable[int]) -> bytes:
    """Tokens as bytes of `Datastore.tokens`."""
    return np.fromiter(tokens, ">u4").tobytes()
