"""Byte-level BPE as in GPT-2 and BART, by Hugging Face's ``tokenizers``, which is imported on first use.

Codes merge UTF-8 bytes, so no character is unknown, and a space belongs to the word after it. They come in GPT-2's form
(``vocab.bpe``): a line ``#version``, then one merge per line, two symbols in GPT-2's byte alphabet. A subword is written as its
number, as in fairseq's dictionaries for BART: the 256 bytes in the order of that alphabet, then the results of the merges. As in
BART, a text begins with ``<s>``, which models of such text are forced to produce.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.words import Span

BEGIN = "<s>"
MAX_MERGES = 1_000_000  # twenty times GPT-2's
MAX_SYMBOL = 1_000  # characters
# Printable bytes stand for themselves, in this order; the others follow as the characters from U+0100 on.
PRINTED = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
ALPHABET = [chr(byte) for byte in PRINTED] + [chr(0x100 + number) for number in range(256 - len(PRINTED))]
BYTES = dict(zip(ALPHABET, [*PRINTED, *(byte for byte in range(256) if byte not in PRINTED)]))


class ByteLevel:
    """A `Tokenizer` and its `Codes` in one: text to numbers of subwords and back. Raises ValueError naming an invalid merge.

    Without codes it only normalises white space.
    """

    def __init__(self, codes: Path | None = None):
        self.subwords: list[bytes] = []
        self._tokenizer = None
        if codes is not None:
            numbers, merges = read_codes(codes)
            self.subwords = [bytes(map(BYTES.__getitem__, subword)) for subword in numbers]
            self._tokenizer = library_tokenizer(numbers, merges)

    def tokenize(self, line: str) -> str:
        return " ".join(line.split())

    def apply(self, line: str) -> str:
        """``<s>`` and the numbers of the line's subwords; nothing for an empty line."""
        return " ".join([BEGIN, *map(str, self._loaded().encode(line, add_special_tokens=False).ids)]) if line else ""

    def detokenize(self, line: str) -> str:
        """The text of a line of numbers. Other symbols are skipped; invalid UTF-8 becomes U+FFFD."""
        return self.tokenize(b"".join(map(self.bytes_of, line.split())).decode("utf-8", "replace"))

    def bytes_of(self, symbol: str) -> bytes:
        """The bytes of a subword's number; empty for other symbols."""
        self._loaded()
        number = int(symbol) if symbol.isdecimal() and len(symbol) < 8 else len(self.subwords)
        return self.subwords[number] if number < len(self.subwords) else b""

    def decoder(self, symbols: Sequence[str]) -> "ByteStream":
        return ByteStream([self.bytes_of(symbol) for symbol in symbols])

    def align(self, text: str, subwords: Sequence[str]) -> list[Span]:
        """See `Tokenizer`. ``subwords`` are those of the whole text."""
        line = " ".join(text.split())
        origins = (index for index, character in enumerate(text) if not character.isspace())
        starts = [-1 if character == " " else next(origins) for character in line]  # -1: white space belongs to no token
        spans: list[Span] = [(0, 0)]
        for first, end in self._loaded().encode(line, add_special_tokens=False).offsets:
            inside = [start for start in starts[first:end] if start >= 0]
            before = spans[-1][1]
            spans.append((inside[0], inside[-1] + 1) if inside else (before, before))
        return spans

    def _loaded(self) -> Any:
        if self._tokenizer is None:
            raise ValueError("byte-level BPE needs its codes (--codes)")
        return self._tokenizer


class ByteStream:
    """Decodes bytes as they arrive. Incomplete characters and white space are held back; runs of white space become one space."""

    def __init__(self, subwords: Sequence[bytes]):
        self.subwords, self.decoder = subwords, getincrementaldecoder("utf-8")("replace")
        self.begun, self.space = False, False

    def push(self, ids: Iterable[int]) -> str:
        return self._settled(self.decoder.decode(b"".join(self.subwords[token] for token in ids)))

    def finish(self) -> str:
        return self._settled(self.decoder.decode(b"", final=True))

    def _settled(self, text: str) -> str:
        words = text.split()
        if not words:
            self.space = self.space or bool(text)
            return ""
        space = " " if self.begun and (self.space or text[0].isspace()) else ""
        self.begun, self.space = True, text[-1].isspace()
        return space + " ".join(words)


def read_codes(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The number of each subword, and the merges in order. Raises ValueError naming the file and the first invalid line."""
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
        what = f"more than {MAX_MERGES:,} merges" if merges else "not codes of byte-level BPE (two symbols per line)"
        raise ValueError(f"{path}: {what}")
    return numbers, merges


def learn_codes(lines: Iterable[str], merges: int, path: Path) -> int:
    """Learn codes from text and write them to a file. Returns their number, which a small text keeps below ``merges``."""
    library = load_library()
    tokenizer = library_tokenizer({symbol: number for number, symbol in enumerate(ALPHABET)}, [])
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


def library_tokenizer(numbers: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    library = load_library()
    tokenizer = library.Tokenizer(library.models.BPE(numbers, merges))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def load_library() -> Any:
    with needed("summarisation", "byte-level BPE"):
        import tokenizers
    return tokenizers
