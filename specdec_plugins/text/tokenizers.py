"""The tokenisers that text can be prepared with, by the name that a data set and a model folder record."""

from collections.abc import Collection
from pathlib import Path

from specdec_plugins.text.dictionary import Codes, Tokenizer, WordTokenizer

BYTE_LEVEL = "byte-level"
TOKENIZERS = ("moses", "reversible", BYTE_LEVEL)


def load_tokenizer(name: str, lang: str, codes: Path | None = None) -> Tokenizer:
    """The tokeniser ``name`` for a language, a two-letter code. Raises ValueError for an unknown name.

    Byte-level BPE needs its ``codes`` to detokenise; the others leave that to `remove_bpe`.
    """
    if name == BYTE_LEVEL:
        from specdec_plugins.text.byte_level import ByteLevel

        return ByteLevel(codes)
    return load_word_tokenizer(name, lang)


def load_word_tokenizer(name: str, lang: str) -> WordTokenizer:
    """The same, for tokenisers into words."""
    if name == "moses":
        from specdec_plugins.text.moses import Moses

        return Moses(lang)
    if name == "reversible":
        from specdec_plugins.text.reversible import Reversible

        return Reversible()
    raise ValueError(f"no tokenizer named {name!r}. Available: {', '.join(TOKENIZERS)}")


def load_codes(name: str, codes: Path, symbols: Collection[str] | None = None) -> Codes:
    """The BPE that splits the tokens of the tokeniser ``name``. Raises ValueError for a file without codes.

    With ``symbols``, those of a model's dictionary, every token of the reversible tokeniser can be written in them.
    """
    if name == BYTE_LEVEL:
        from specdec_plugins.text.byte_level import ByteLevel

        return ByteLevel(codes)
    from specdec_plugins.text.bpe import Bpe

    return Bpe(codes, symbols if name == "reversible" else None)
