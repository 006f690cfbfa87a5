"""Byte-pair encoding (BPE) by subword-nmt, which is loaded when it is used."""

import io
from pathlib import Path

from specdec_plugins.text.lines import read_lines


class Bpe:
    """Apply the BPE codes of a file written by subword-nmt. Raises ValueError when the file holds no codes."""

    CACHED = 50_000  # words

    def __init__(self, codes: Path):
        from subword_nmt.apply_bpe import BPE

        lines = list(read_lines(codes))
        merges = [line for line in lines if not line.startswith("#version:")]
        if not merges or any(len(merge.split(" ")) != 2 for merge in merges):  # subword-nmt would end the process
            raise ValueError(f"{codes}: not a BPE codes file (two symbols a line)")
        self.bpe = BPE(io.StringIO("\n".join(lines)))

    def apply(self, line: str) -> str:
        """Split the tokens of a line into subwords, all but the last of a word ending in ``@@``."""
        if len(self.bpe.cache) > self.CACHED:  # it never forgets by itself, and a large file has no end of words
            self.bpe.cache.clear()
        return self.bpe.segment(line)


def remove_bpe(line: str) -> str:
    """Join the subwords of a line into tokens again."""
    return f"{line} ".replace("@@ ", "").rstrip()
