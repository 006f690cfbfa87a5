"""Byte-pair encoding (BPE) by subword-nmt, which is imported on first use."""

import io
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Lock

from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.reversible import code_point
from specdec_plugins.text.words import CONTINUED

VERSIONS = ("0.1", "0.2")  # of codes
LOCK = Lock()  # a server encodes on two threads, and subword-nmt is not made for that


class Bpe:
    """Apply the BPE codes of a file written by subword-nmt. Raises ValueError if the file holds no codes.

    With a dictionary's ``symbols``, output contains only these: subwords outside the dictionary are split, and unknown characters
    spelled as their code points, as by the reversible tokeniser.
    """

    CACHED = 50_000  # words

    def __init__(self, codes: Path, symbols: Collection[str] | None = None):
        from subword_nmt.apply_bpe import BPE

        lines = list(read_lines(codes))
        versioned = bool(lines) and lines[0].startswith("#version:")
        if versioned and lines[0].removeprefix("#version:").strip() not in VERSIONS:
            raise ValueError(f"{codes}: BPE codes of {lines[0][1:80]!r}; this program reads versions {' and '.join(VERSIONS)}")
        merges = lines[versioned:]
        if not merges or any(len(merge.strip("\r\n ").split(" ")) != 2 for merge in merges):  # subword-nmt would end the process
            raise ValueError(f"{codes}: not a BPE codes file (two symbols per line)")
        self.symbols = None if symbols is None else frozenset(symbols)
        try:
            self.bpe = BPE(io.StringIO("\n".join(lines)), vocab=self.symbols)
        except ValueError as error:  # from the version number
            raise ValueError(f"{codes}: not a BPE codes file ({error})") from None
        self._split: dict[str, str] = {}

    def apply(self, line: str) -> str:
        """Split the tokens of a line into subwords, all but the last of a word ending in ``@@``."""
        if len(self._split) > self.CACHED:
            self._split.clear()
        words = line.strip("\r\n ").split(" ")
        return " ".join(self._split.get(word) or self._apply(word) for word in words if word)

    def _apply(self, word: str) -> str:
        with LOCK:
            self.bpe.cache.clear()  # subword-nmt's own never evicts
            subwords = " ".join(self.bpe.segment_tokens([word]))
        self._split[word] = subwords if self.symbols is None else " ".join(spelled(subwords, self.symbols))
        return self._split[word]


def spelled(subwords: str, symbols: Collection[str]) -> Iterator[str]:
    """Yield the subwords. Any that is not in ``symbols`` is a single character, and becomes the characters of its code point."""
    for subword in subwords.split():
        if subword in symbols:
            yield subword
            continue
        character, end = subword[0], subword[1:]
        spelling = code_point(character)
        yield from (mark + CONTINUED for mark in spelling[:-1])
        yield spelling[-1] + end


def has_subwords(line: str) -> bool:
    """Whether a line contains subwords that are not joined."""
    return f"{CONTINUED} " in f"{line} "


def remove_bpe(line: str) -> str:
    """Join the subwords of a line into tokens."""
    return f"{line} ".replace(f"{CONTINUED} ", "").rstrip()
