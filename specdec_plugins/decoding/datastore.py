"""A datastore: target text as tokens, and where in it what comes before. Made by ``specdec-datastore``, read by mapping it.

The text is held backwards, so that the tokens before a place are read forwards from it, and sorting the places by these puts
equal suffixes side by side. Before each sentence, and after the last one, stands eos. In safetensors, N tokens:

    tokens (N, 4) uint8, each token as a big-endian number, so that bytes compare as tokens do
    places (N,) int32, the places in ``tokens``, sorted by the `CONTEXT` tokens from there on

Knows nothing about drafters, nor which texts these are.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

FORMAT = "specdec-datastore 1"
CONTEXT = 16  # tokens by which places are sorted: longer suffixes are no better (REST looks at 16)
TOKEN_BYTES = 4
MOST_TOKENS = 2**31 - 1


class Datastore:
    """``tokens`` (bytes) and ``places`` (int32) are buffers of native memory, mapped or not."""

    def __init__(self, tokens: np.ndarray, places: np.ndarray):
        self.arrays = tokens, places
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

    def save(self, path: str, dictionary: str) -> None:
        """``dictionary`` is the fingerprint of the target's. Raises ValueError if the file cannot be written."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(dict(zip(("tokens", "places"), self.arrays)), path, {"format": FORMAT, "dictionary": dictionary})
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def open(cls, path: str, dictionary: str, symbols: int) -> "Datastore":
        """Map a file. Raises ValueError naming it if it is none, damaged, or of another dictionary than this with its symbols."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise ValueError(f"{path}: not a datastore of specdec-datastore ({FORMAT})")
                if about.get("dictionary") != dictionary:
                    raise ValueError(f"{path}: made with another target dictionary than the model's")
                tokens, places = file.get_tensor("tokens"), file.get_tensor("places")
        except (SafetensorError, OSError) as error:
            missing = isinstance(error, FileNotFoundError) or not Path(path).exists()
            raise ValueError(f"{path}: {'there is no such file' if missing else f'not a datastore ({error})'}") from None
        count = len(places)
        if tokens.shape != (count, TOKEN_BYTES) or tokens.dtype != torch.uint8 or places.dtype != torch.int32 or not count:
            raise ValueError(f"{path}: damaged, its tensors do not belong together")
        if not 0 <= places.min() <= places.max() < count or tokens.numpy().view(">u4").max() >= symbols:
            raise ValueError(f"{path}: damaged, it has places or tokens that cannot be")
        return cls(tokens.numpy(), places.numpy())


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
