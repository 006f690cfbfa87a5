"""The protocols of a translator, for the modules that `translator.py` itself imports."""

from collections.abc import Callable, Sequence
from typing import Protocol, Unpack

from specdec_plugins.engine import Engine
from specdec_plugins.options import CallOptions, TranslateOptions
from specdec_plugins.text.codec import Codec, Encoded
from specdec_plugins.translations import Translation

Translate = Callable[[Sequence[str], CallOptions], list[Translation]]  # all outputs of all sentences


class Translates(Protocol):
    """Translates sentences. Its settings are the ``engine``'s."""

    engine: Engine
    max_source: int  # tokens, eos included

    def translate(self, sentences: Sequence[str], **options: Unpack[TranslateOptions]) -> list[Translation]:
        """As `Translator.translate`."""


class Texts(Translates, Protocol):
    """Also encodes and decodes text."""

    codec: Codec

    def frame(self, source_lang: str | None, target_lang: str | None) -> Encoded:
        """The empty text in these languages: special tokens alone."""


# Returns all outputs of all sentences as the options ask. Calls the function, which applies the rewriters that follow, for these
# sentences or for others in their place.
Rewriter = Callable[[Texts, Translate, Sequence[str], CallOptions], list[Translation]]
