"""The tokenisers that text can be prepared with, by the name that a data set and a model folder record."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specdec_plugins.text.codec import Decoder
    from specdec_plugins.text.words import Span

BYTE_LEVEL = "byte-level"
TOKENIZERS = ("moses", "reversible", BYTE_LEVEL)


class Tokenizer(Protocol):
    """Turns a raw sentence into tokens joined by single spaces, and back."""

    def tokenize(self, line: str) -> str: ...

    def detokenize(self, line: str) -> str: ...

    def decoder(self, symbols: Sequence[str]) -> "Decoder":
        """Incremental detokenisation of one sentence, from indices into ``symbols``."""
        ...

    def align(self, text: str, subwords: Sequence[str]) -> list["Span"]:
        """The characters that the subwords of a raw sentence stand for."""
        ...


class Codes(Protocol):
    """Splits the tokens of a line into subwords."""

    def apply(self, line: str) -> str: ...


def load_tokenizer(name: str, lang: str, codes: Path | None = None) -> Tokenizer:
    """The tokeniser ``name`` for a language, a two-letter code. Raises ValueError for an unknown name.

    Byte-level BPE needs its ``codes`` to detokenise; the others leave that to `remove_bpe`.
    """
    if name == BYTE_LEVEL:
        from specdec_plugins.text.byte_level import ByteLevel

        return ByteLevel(codes)
    if name == "moses":
        from specdec_plugins.text.moses import Moses

        return Moses(lang)
    if name == "reversible":
        from specdec_plugins.text.reversible import Reversible

        return Reversible()
    raise ValueError(f"no tokenizer named {name!r}. Available: {', '.join(TOKENIZERS)}")


def load_codes(name: str, codes: Path, symbols: Collection[str] | None = None) -> Codes:
    """The BPE that splits the tokens of the tokeniser ``name``. Raises ValueError for a file without codes.

    With a dictionary's ``symbols``, the reversible tokeniser's tokens are spelled in these alone.
    """
    if name == BYTE_LEVEL:
        from specdec_plugins.text.byte_level import ByteLevel

        return ByteLevel(codes)
    from specdec_plugins.text.bpe import Bpe

    return Bpe(codes, symbols if name == "reversible" else None)
