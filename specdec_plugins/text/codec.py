"""Text to token ids and back: the only way text enters and leaves.

A codec knows subwords, tokenisers, vocabulary files and language tokens; nothing outside this package does. All it knows about
models is the ids of their special symbols.

A model folder names its codec: a built-in one (`BUILT_IN`), an installed entry point of the group ``specdec.codecs``, or
``module:object``. The object is called with a `CodecConfig` and the model's `Symbols`, and returns a `Codec`. A codec that cannot
decode incrementally returns `Buffered`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specdec_plugins.formats.code import find
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Align, Span

if TYPE_CHECKING:  # preparation shares files of this package, and does without torch
    from specdec_plugins.model.spec import Symbols

GROUP = "specdec.codecs"
BUILT_IN = {
    "fairseq-bpe": "specdec_plugins.text.dictionary:FairseqBpe",
    "byte-level": "specdec_plugins.text.dictionary:ByteLevelCodec",
    "sentencepiece": "specdec_plugins.text.sentencepiece:SentencePiece",
    "tokenizer-json": "specdec_plugins.text.tokenizer_json:TokenizerJson",
    "byt5": "specdec_plugins.text.byt5:ByT5",
}


@dataclass(frozen=True)
class CodecConfig:
    """A model's codec: its name, its files by role, its options, and the default languages (may be empty)."""

    name: str
    folder: str  # the model, for errors
    files: Mapping[str, Path]
    source_lang: str
    target_lang: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """A text as token ids, between ``before`` and ``after`` special tokens, such as a language token and eos.

    ``forced`` tokens, such as the target's language token, begin the output. A ``shortened`` text lacks its end; if skipped,
    it has no tokens.
    """

    ids: list[int]
    align: Align  # `offsets`
    forced: tuple[int, ...] = ()
    before: int = 0
    after: int = 1
    shortened: bool = False

    @cached_property
    def offsets(self) -> list[Span]:
        """The characters of the original text that each token stands for; empty for special tokens at its ends."""
        return self.align()

    @property
    def text(self) -> list[int]:
        """The tokens without the special ones at the ends."""
        return self.ids[self.before : len(self.ids) - self.after]

    def framed(self, text: Sequence[int]) -> list[int]:
        """Other tokens between the same special ones."""
        return [*self.ids[: self.before], *text, *self.ids[len(self.ids) - self.after :]]


class Decoder(Protocol):
    """Decodes one output as its tokens arrive. The deltas concatenate to what `Codec.decode` returns for all tokens."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens settle. Text that later tokens may change is held back."""
        ...

    def finish(self) -> str: ...


class Codec(Protocol):
    """Text to token ids and back, for one model."""

    source: Vocabulary
    target: Vocabulary
    max_characters: int | None  # per source token; longer texts are rejected before they are encoded. None: encoding is fast
    max_length: int | None  # source tokens at most, special ones included; None: as many as the model reads
    concatenates: bool  # whether encoding commutes with concatenation, eos aside

    def encode(self, text: str, source_lang: str | None = None, target_lang: str | None = None) -> Encoded:
        """Encode a source text. Raises ValueError for an unknown language, `NoLanguage` for a missing one."""
        ...

    def encode_target(self, text: str, target_lang: str | None = None) -> list[int]:
        """Encode a text of the target language, without eos: a hint or a forced beginning."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an output without eos."""
        ...

    def decoder(self) -> Decoder: ...

    def spans(self, text: str, ids: Sequence[int]) -> list[Span]:
        """The characters of ``text``, the output that ``ids`` decode to, that each token stands for; perhaps none."""
        ...

    def join(self, tokens: Sequence[str]) -> str:
        """Join subwords into whole words, separated by spaces."""
        ...


class NoLanguage(ValueError):
    """A multilingual model was given no language, and has no default."""


class Buffered:
    """The decoder of a codec that only decodes whole outputs: all text comes at the end."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode, self.ids = decode, list[int]()

    def push(self, ids: Iterable[int]) -> str:
        self.ids += ids
        return ""

    def finish(self) -> str:
        return self.decode(self.ids)


class Redecoded:
    """Decodes all tokens so far at every push. ``settled`` returns how much of a text later tokens cannot change."""

    def __init__(self, decode: Callable[[list[int]], str], settled: Callable[[str], int]):
        self.decode, self.settled = decode, settled
        self.ids, self.told = list[int](), 0

    def push(self, ids: Iterable[int]) -> str:
        self.ids += ids
        text = self.decode(self.ids)
        return self._tell(text[: self.settled(text)])

    def finish(self) -> str:
        return self._tell(self.decode(self.ids))

    def _tell(self, text: str) -> str:
        delta, self.told = text[self.told :], max(self.told, len(text))
        return delta


def open_codec(config: CodecConfig, symbols: "Symbols") -> Codec:
    """Open the codec that a configuration names. Raises ValueError if it is unknown or its files are damaged."""
    code = find(config.name, "codec", BUILT_IN, GROUP)
    if not all(
        hasattr(code, name) for name in ("encode", "encode_target", "decode", "decoder", "spans")
    ):  # folders name any object
        raise ValueError(f"codec '{config.name:.200}' is not a codec: it cannot encode or decode")
    return code(config, symbols)


def check_language(kind: str, asked: str | None, known: str) -> None:
    """Raise ValueError if a model of one language pair is asked for another language."""
    if asked not in (None, known):
        raise ValueError(f"the model's {kind} language is {known}; it does not know {asked}")
