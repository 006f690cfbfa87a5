"""Text to token ids and back: the one way by which text enters and leaves.

A codec knows subwords, tokenisers, vocabulary files and language tokens; nothing outside this package does. It knows nothing
about models but the ids of their special symbols, which it is given.

A model folder names its codec: a built-in one (`BUILT_IN`), an installed entry point of the group ``specdec.codecs``, or
``module:object``. The object is a class: it is called with a `CodecConfig` and the model's `Symbols`, and gives a `Codec`. One
that cannot decode incrementally returns `Buffered`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specdec_plugins.formats.code import find
from specdec_plugins.text.alignment import Span
from specdec_plugins.text.vocabulary import Vocabulary

if TYPE_CHECKING:  # preparation shares files of this package, and does without torch
    from specdec_plugins.formats.spec import Symbols

GROUP = "specdec.codecs"
BUILT_IN = {
    "fairseq-bpe": "specdec_plugins.text.fairseq_bpe:FairseqBpe",
    "byte-level": "specdec_plugins.text.byte_level:ByteLevelCodec",
}


@dataclass(frozen=True)
class CodecConfig:
    """Which codec the model in ``folder`` uses, its files by role, and the languages of requests that name none."""

    name: str
    folder: str  # what errors call the model
    files: Mapping[str, Path]
    source_lang: str
    target_lang: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """A text as token ids, closed by eos. ``forced`` tokens, such as a language token, begin the output."""

    ids: list[int]
    align: Callable[[], list[Span]]  # computed only when asked for
    forced: tuple[int, ...] = ()

    @cached_property
    def offsets(self) -> list[Span]:
        """The characters of the original text that each token stands for; those of eos are empty."""
        return self.align()


class Decoder(Protocol):
    """Decodes one output as its tokens arrive. The deltas concatenate to what `Codec.decode` returns for all tokens."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens settle. What later tokens may still change is held back."""
        ...

    def finish(self) -> str:
        """The rest of the text."""
        ...


class Codec(Protocol):
    """Text to token ids and back, for one model."""

    source: Vocabulary
    target: Vocabulary
    max_characters: int  # that a token of the source stands for at most; longer texts are rejected before they are encoded
    concatenates: bool  # whether the ids of two texts, without eos, are those of the texts one after the other

    def encode(self, text: str, source_lang: str | None = None, target_lang: str | None = None) -> Encoded:
        """A source text. Raises ValueError for a language that the model does not have."""
        ...

    def encode_target(self, text: str, target_lang: str | None = None) -> list[int]:
        """A text of the target language, without eos: a hint or a forced beginning."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an output, without its eos."""
        ...

    def decoder(self) -> Decoder:
        """An incremental decoder for one output."""
        ...

    def join(self, tokens: Sequence[str]) -> str:
        """Tokens of either vocabulary as whole words, separated by spaces, as far as tokenisation can tell."""
        ...


class Buffered:
    """The incremental decoder of a codec that can decode whole outputs only: nothing is settled before the end."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode, self.ids = decode, list[int]()

    def push(self, ids: Iterable[int]) -> str:
        self.ids += ids
        return ""

    def finish(self) -> str:
        return self.decode(self.ids)


def open_codec(config: CodecConfig, symbols: "Symbols") -> Codec:
    """The codec that a configuration names. Raises ValueError if there is none, or for what is wrong with its files."""
    code = find(config.name, "codec", BUILT_IN, GROUP)
    if not all(hasattr(code, name) for name in ("encode", "encode_target", "decode", "decoder")):  # folders name any object
        raise ValueError(f"codec '{config.name:.200}' is not a codec: it cannot encode or decode")
    return code(config, symbols)


def check_language(kind: str, asked: str | None, known: str) -> None:
    """Raise ValueError where a model of one language pair is asked for another language."""
    if asked not in (None, known):
        raise ValueError(f"the model's {kind} language is {known}; it does not know {asked}")
