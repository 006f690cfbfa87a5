"""The tokens of one side of a model as strings, and fairseq's dictionary file."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.words import CONTINUED

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first symbols of every fairseq dictionary, which its file leaves out


class Vocabulary:
    """Token ids and their strings. Strings outside the vocabulary have the id ``unknown``.

    ``continued`` tokens never end a word, as far as the codec can tell: drafters that copy align words by them.
    """

    def __init__(self, symbols: Sequence[str], unknown: int, path: Path | None = None, continued: Collection[int] = ()):
        self.symbols, self.unknown, self.path, self.continued = symbols, unknown, path, continued

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read a fairseq dictionary. Raises ValueError if the file is not one."""
        symbols = list(SPECIAL)
        for number, line in enumerate(read_lines(path), 1):
            symbol, separator, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not separator or not count.isdecimal():
                raise ValueError(f"{path}, line {number}: not a fairseq dictionary (a symbol and its count per line)")
            symbols.append(symbol)
        continued = frozenset(token for token, symbol in enumerate(symbols) if symbol.endswith(CONTINUED))
        return cls(symbols, SPECIAL.index("<unk>"), path, continued)

    def __len__(self) -> int:
        return len(self.symbols)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        return [self.numbers.get(token, self.unknown) for token in tokens]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.symbols[token] for token in ids]

    def fingerprint(self) -> str:
        return fingerprint_of(self.symbols)


def fingerprint_of(symbols: Iterable[str]) -> str:
    """The sha256 of a vocabulary's strings in order, which our checkpoints record."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()
