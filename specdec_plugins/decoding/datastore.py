"""A datastore: target text as tokens, and where in it what comes before. Made by ``specdec-datastore``, read by mapping it.

The text is held backwards, so that the tokens before a place are read forwards from it, and sorting the places by these puts
equal suffixes side by side. Before each sentence, and after the last one, stands eos. In safetensors, N tokens:

    tokens (N, 4) uint8, each token as a big-endian number, so that bytes compare as tokens do
    places (N,) int32, the places in ``tokens``, sorted by the `CONTEXT` tokens from there on

With sources there are the arrays of a translation memory, too (``memory.py``).

Knows nothing about drafters, nor which texts these are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from struct import unpack
from typing import Any

import numpy as np
import torch

from specdec_plugins.decoding.memory import Memory
from specdec_plugins.formats import files
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.spec import aligned

FORMAT = "specdec-datastore 1"
CONTEXT = 16  # tokens by which places are sorted: longer suffixes are no better (REST looks at 16)
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
        """Of sentences without eos. Raises ValueError if there is no token, or more than the format has numbers for."""
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
        """Of sources and targets, with a memory; ``symbols`` are those of the source's dictionary. Raises ValueError as `of`."""
        sources: list[Sequence[int]] = []
        lengths: list[int] = []

        def targets() -> Iterator[Sequence[int]]:
            for source, target in pairs:
                sources.append(source)
                lengths.append(len(target))
                yield target

        store = cls.of(targets(), eos)
        store.memory = Memory.of(sources, lengths, symbols)
        return store

    def save(self, path: str, dictionary: str, source_dictionary: str = "") -> None:
        """The fingerprints are those of the target's dictionary, and with a memory the source's. Raises ValueError or OSError if
        the file cannot be written."""
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
        """Map a file; each dictionary is its fingerprint and how many symbols it has. Raises ValueError naming the file if it is
        none, damaged, or of other dictionaries."""
        from safetensors import SafetensorError, safe_open

        memory = None
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise ValueError(f"{path}: not a datastore of specdec-datastore ({FORMAT})")
                if about.get("dictionary") != dictionary:
                    raise ValueError(f"{path}: made with another target dictionary than the model's")
                tokens, places = file.get_tensor("tokens"), aligned(file.get_tensor("places"))
                if "source_dictionary" in about:
                    if about["source_dictionary"] != source_dictionary:
                        raise ValueError(f"{path}: made with another source dictionary than the model's")
                    memory = Memory(*(aligned(file.get_tensor(field.name)).numpy() for field in fields(Memory)))
        except (SafetensorError, OSError) as error:
            missing = isinstance(error, FileNotFoundError) or not Path(path).exists()
            raise ValueError(f"{path}: {'there is no such file' if missing else f'not a datastore ({brief(error)})'}") from None
        count = len(places) if places.dim() == 1 else 0
        if tokens.shape != (count, TOKEN_BYTES) or tokens.dtype != torch.uint8 or places.dtype != torch.int32 or not count:
            raise ValueError(f"{path}: damaged, its tensors do not belong together")
        if not 0 <= places.min() <= places.max() < count or tokens.numpy().view(">u4").max() >= symbols:
            raise ValueError(f"{path}: damaged, it has places or tokens that cannot be")
        if memory is not None and not memory.fits(count, source_symbols):
            raise ValueError(f"{path}: damaged, its translation memory does not belong to its text")
        return cls(tokens.numpy(), places.numpy(), memory)

    def after(self, place: int, length: int) -> tuple[int, ...]:
        """The ``length`` tokens after a place, fewer where the text ends."""
        first = max(0, place - length)
        return unpack(f">{place - first}I", self.tokens[TOKEN_BYTES * first : TOKEN_BYTES * place])[::-1]


def sorted_places(tokens: np.ndarray) -> np.ndarray:
    """(N,) the places of tokens (N,), sorted by the `CONTEXT` tokens from there on; where these are equal, by place.

    Doubles the sorted length in each round (Manber and Myers 1990): a place's rank by 2n tokens follows from its own rank by n
    tokens and that of the place n further on. The end is before every token.
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
    """Tokens as `Datastore.tokens` has them."""
    return np.fromiter(tokens, ">u4").tobytes()
