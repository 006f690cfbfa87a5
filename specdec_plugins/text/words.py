"""What tokenisers into words share: incremental decoding of their subwords, and the characters that subwords stand for."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

CONTINUED = "@@"  # ends every subword of a token but the last
Span = tuple[int, int]  # the first character, and the one after the last
Align = Callable[[], list[Span]]  # computes the characters that tokens stand for


class WordStream(Protocol):
    """Detokenises a sentence as its tokens arrive; the deltas concatenate to what ``detokenize`` returns for all tokens."""

    def push(self, piece: str, complete: bool) -> str:
        """A token, or the next part of one; ``complete`` with the last part. Returns the text that is settled now."""
        ...

    def finish(self) -> str: ...


class WordTokenizer:
    """A tokeniser whose tokens are words and signs, which BPE splits into subwords; its tokens contain ``escape`` sequences."""

    escape: re.Pattern[str]

    def unescape(self, match: re.Match[str]) -> str:
        raise NotImplementedError

    def stream(self) -> WordStream:
        raise NotImplementedError

    def decoder(self, symbols: Sequence[str]) -> "SubwordStream":
        return SubwordStream(symbols, self.stream())

    def align(self, text: str, subwords: Sequence[str]) -> list[Span]:
        """The characters that subwords of a raw sentence stand for."""
        return align(text, self._unescaped([subword.removesuffix(CONTINUED) for subword in subwords]))

    def _unescaped(self, pieces: Sequence[str]) -> list[str]:
        """The pieces without escapes. An escape split over several pieces becomes a character of the first of them."""
        text, owners = "".join(pieces), [number for number, piece in enumerate(pieces) for _ in piece]
        plain, at = [""] * len(pieces), 0
        for match in [*self.escape.finditer(text), None]:
            for index in range(at, match.start() if match else len(text)):
                plain[owners[index]] += text[index]
            if match:
                plain[owners[match.start()]] += self.unescape(match)
                at = match.end()
        return plain


class SubwordStream:
    """A codec's `Decoder` over a `WordStream`."""

    def __init__(self, symbols: Sequence[str], words: WordStream):
        self.symbols, self.words = symbols, words

    def push(self, ids: Iterable[int]) -> str:
        symbols = (self.symbols[token] for token in ids)
        return "".join(self.words.push(each.removesuffix(CONTINUED), not each.endswith(CONTINUED)) for each in symbols)

    def finish(self) -> str:
        return self.words.finish()


def align(text: str, pieces: Sequence[str]) -> list[Span]:
    """Where the pieces of a tokenised text come from, in order and without overlap.

    Exact for pieces that the text contains verbatim. A piece that normalisation changed gets its own number of characters at
    most: the next unchanged piece is searched for only a few characters ahead.
    """
    spans, at = [], 0
    for piece in pieces:
        while at < len(text) and text[at].isspace():
            at += 1
        start = text.find(piece, at, at + 2 * len(piece) + 8)
        if start < 0:
            start, end = at, min(at + len(piece), len(text))
            end = next((each for each in range(start, end) if text[each].isspace()), end)
        else:
            end = start + len(piece)
        spans.append((start, end))
        at = end
    return spans
