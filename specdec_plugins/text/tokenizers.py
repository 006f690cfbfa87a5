"""The tokenisers that text can be prepared with, by the name that a data set and a model folder record."""

from typing import Protocol

TOKENIZERS = ("moses", "reversible")


class Tokenizer(Protocol):
    """Turns a raw sentence into tokens joined by single spaces, and back."""

    def tokenize(self, line: str) -> str: ...

    def detokenize(self, line: str) -> str: ...


def load_tokenizer(name: str, lang: str) -> Tokenizer:
    """Return the tokeniser of that name for a language, a two-letter code. Raises ValueError for an unknown name."""
    if name == "moses":
        from specdec_plugins.text.moses import Moses

        return Moses(lang)
    if name == "reversible":
        from specdec_plugins.text.reversible import Reversible

        return Reversible()
    raise ValueError(f"no tokenizer named {name!r}. Available: {', '.join(TOKENIZERS)}")
