"""Byte-level BPE, GPT-2's and BART's, by Hugging Face's ``tokenizers``, which is loaded when it is used.

A text's UTF-8 bytes are merged by codes, so no character is unknown, and spaces belong to the words after them. Codes are a file
of GPT-2's form (``vocab.bpe``): a line ``#version``, then a merge a line, two symbols in GPT-2's alphabet of bytes. A subword is
written as its number, as fairseq's dictionaries for BART have it: first the 256 bytes in the order of that alphabet, then what
each merge makes. A text begins with ``<s>``, as BART's texts do, and models of such text are forced to begin with it.
"""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.text.lines import read_lines

BEGIN = "<s>"
MAX_MERGES = 1_000_000  # twenty times GPT-2's
MAX_SYMBOL = 1_000  # characters
# Bytes that print as themselves, in this order; the others follow, as the characters from U+0100 on.
PRINTED = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
ALPHABET = [chr(byte) for byte in PRINTED] + [chr(0x100 + number) for number in range(256 - len(PRINTED))]


class ByteLevel:
    """Turns text into numbers of subwords and back, by the codes of a file. Raises ValueError naming the line that is none.

    Without codes, as before there are any, it only normalises white space.
    """

    def __init__(self, codes: Path | None = None):
        self.codes, self.count, self._tokenizer = codes, 0, None
        if codes is not None:
            numbers, merges = read_codes(codes)
            self.count, self._tokenizer = len(numbers), tokenizer_of(numbers, merges)

    def tokenize(self, line: str) -> str:
        """The line with single spaces: subwords need no tokens."""
        return " ".join(line.split())

    def apply(self, line: str) -> str:
        """``<s>`` and the numbers of the line's subwords; nothing for an empty line."""
        return " ".join([BEGIN, *map(str, self._loaded().encode(line, add_special_tokens=False).ids)]) if line else ""

    def detokenize(self, line: str) -> str:
        """The text of a line of numbers. What is no subword's number is left out; bytes that are no UTF-8 become U+FFFD."""
        numbers = [int(symbol) for symbol in line.split() if symbol.isdecimal() and len(symbol) < 8]
        text = self._loaded().decode([number for number in numbers if number < self.count], skip_special_tokens=False)
        return self.tokenize(text)

    def _loaded(self) -> Any:
        if self._tokenizer is None:
            raise ValueError("byte-level BPE needs its codes (--codes)")
        return self._tokenizer


def read_codes(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The number of each subword, and the merges in order. Raises ValueError naming the file and the line that is no merge."""
    numbers = {symbol: number for number, symbol in enumerate(ALPHABET)}
    merges: list[tuple[str, str]] = []
    for line_number, line in enumerate(islice(read_lines(path), MAX_MERGES + 2), 1):
        if line.startswith("#version") or not line:
            continue
        parts = line.split(" ")
        if len(parts) != 2 or any(part not in numbers for part in parts) or len(line) > MAX_SYMBOL:
            raise ValueError(f"{path}, line {line_number}: not a merge of byte-level BPE (two symbols known by then)")
        merges.append((parts[0], parts[1]))
        numbers.setdefault("".join(parts), len(numbers))
    if not 0 < len(merges) <= MAX_MERGES:
        what = f"more than {MAX_MERGES:,} merges" if merges else "not codes of byte-level BPE (two symbols a line)"
        raise ValueError(f"{path}: {what}")
    return numbers, merges


def learn_codes(lines: Iterable[str], merges: int, path: Path) -> int:
    """Learn codes from text, and write them to a file. Returns how many there are: fewer than asked for of a small text."""
    library = load_library()
    tokenizer = tokenizer_of({symbol: number for number, symbol in enumerate(ALPHABET)}, [])
    trainer = library.trainers.BpeTrainer(
        vocab_size=len(ALPHABET) + merges, initial_alphabet=ALPHABET, show_progress=False, max_token_length=MAX_SYMBOL // 4
    )
    tokenizer.train_from_iterator(lines, trainer)
    found = json.loads(tokenizer.to_str())["model"]["merges"]
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write("#version: 0.2\n")
        for merge in found:
            stream.write(f"{merge if isinstance(merge, str) else ' '.join(merge)}\n")
    return len(found)


def tokenizer_of(numbers: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """A tokeniser of the library's with these subwords."""
    library = load_library()
    tokenizer = library.Tokenizer(library.models.BPE(numbers, merges))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def load_library() -> Any:
    """The package ``tokenizers``. Raises ImportError in one line."""
    with needed("summarisation", "byte-level BPE"):
        import tokenizers
    return tokenizers
