"""What code that works with translations knows of a translator: `translator.py` implements it, and applies the rewriters."""

from collections.abc import Callable, Sequence
from typing import Protocol, Unpack

from specdec_plugins.decoding.requests import Hypothesis
from specdec_plugins.engine import Engine
from specdec_plugins.options import CallOptions, Languages, TranslateOptions
from specdec_plugins.text.codec import Codec
from specdec_plugins.translations import Source, Translation

Translate = Callable[[Sequence[str], CallOptions], list[Translation]]  # all outputs of all sentences


class Translates(Protocol):
    """Translates sentences. Its settings are the ``engine``'s."""

    engine: Engine
    max_source: int  # tokens, eos included

    def translate(self, sentences: Sequence[str], **options: Unpack[TranslateOptions]) -> list[Translation]:
        """As `Translator.translate`."""


class Texts(Translates, Protocol):
    """Also reads sources and writes outputs."""

    codec: Codec

    def source(
        self,
        index: int,
        line: str,
        tokenized: bool,
        too_long: str,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> Source:
        """A sentence as the models read it; errors give its ``index``."""

    def encode_target(self, sentences: Sequence[str], tokenized: bool = False, target_lang: Languages = None) -> list[list[int]]:
        """The token ids of translations, without eos."""

    def finish(self, source: Source, hypothesis: Hypothesis | None, sample: int, options: CallOptions) -> Translation:
        """An output with its text; without a hypothesis, an empty one."""


# Returns all outputs of all sentences as the options ask, by calling the function, which applies the rewriters that follow: for
# these sentences, or for others in their place. One for which nothing asks returns what the function does.
Rewriter = Callable[[Texts, Sequence[str], CallOptions, Translate], list[Translation]]
