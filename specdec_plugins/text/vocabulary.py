"""A fairseq dictionary: which token each of a model's token numbers is."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from specdec_plugins.text.lines import read_lines


class Vocabulary:
    """A fairseq dictionary: what each token number of a model stands for. Raises ValueError for a file that is none."""

    SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
    BEGIN, EOS, UNKNOWN = 0, 2, 3

    def __init__(self, path: Path):
        self.path = path
        self.symbols = list(self.SPECIAL)
        for number, line in enumerate(read_lines(path), 1):
            symbol, separator, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not separator or not count.isdecimal():
                raise ValueError(f"{path}, line {number}: not a fairseq dictionary (a symbol and its count a line)")
            self.symbols.append(symbol)
        self.numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, line: str) -> list[int]:
        """The token numbers of a line's subwords, closed by eos."""
        return [*(self.numbers.get(symbol, self.UNKNOWN) for symbol in line.split()), self.EOS]

    def decode(self, tokens: Iterable[int]) -> str:
        """The subwords of token numbers, joined by spaces."""
        return " ".join(self.symbols[token] for token in tokens)

    def fingerprint(self) -> str:
        """See `fingerprint_of`."""
        return fingerprint_of(self.symbols)


def fingerprint_of(symbols: Iterable[str]) -> str:
    """The sha256 of a dictionary's symbols in order: what a model's embedding rows mean. Our checkpoints carry it."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()
