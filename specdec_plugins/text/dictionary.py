"""Codecs with fairseq dictionaries: what they have in common, and what their tokenisers offer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from specdec_plugins.text.alignment import Span
from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.codec import Buffered, CodecConfig, Decoder, Encoded, check_language
from specdec_plugins.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specdec_plugins.formats.spec import Symbols


class Tokenizer(Protocol):
    """Turns a raw sentence into tokens joined by single spaces, and back."""

    def tokenize(self, line: str) -> str: ...

    def detokenize(self, line: str) -> str: ...


class WordTokenizer(Tokenizer, Protocol):
    """A tokeniser whose tokens are words and signs, which BPE splits further."""

    def surface(self, pieces: Sequence[str]) -> list[str]:
        """Parts of tokens as the raw sentence has them."""
        ...

    def stream(self) -> "WordStream":
        """Incremental detokenisation of one sentence."""
        ...


class WordStream(Protocol):
    """Detokenises a sentence as its tokens arrive; the deltas concatenate to what ``detokenize`` returns for all tokens."""

    def push(self, piece: str, complete: bool) -> str:
        """A token, or the next part of one; ``complete`` with the last part. Returns the text that is settled now."""
        ...

    def finish(self) -> str:
        """The rest of the text."""
        ...


class Codes(Protocol):
    """Splits the tokens of a line into subwords."""

    def apply(self, line: str) -> str: ...


AnyTokenizer = TypeVar("AnyTokenizer", bound=Tokenizer)


class DictionaryCodec(Generic[AnyTokenizer]):
    """What codecs with fairseq dictionaries have in common: a line becomes tokens, tokens become subwords, and these ids.

    Files: ``source`` and ``target`` dictionaries, and BPE ``codes``; without codes, input must be subwords already.
    """

    concatenates = True

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        missing = {"source", "target"} - set(config.files)
        if missing:
            raise ValueError(f"codec {config.name} needs the files: {', '.join(sorted(missing))}")
        self.config, self.eos = config, symbols.eos
        self.source, self.target = (Vocabulary.read(config.files[side]) for side in ("source", "target"))
        self.max_characters = max(map(len, self.source.symbols))
        # A symbol with white space in it would be several words, or none: then nothing is settled before the end.
        self.streams = all(symbol.split() == [symbol] for symbol in self.target.symbols)
        self._codes: dict[str, Codes] = {}
        self._tokenizers: dict[str, AnyTokenizer] = {}

    def encode(self, text: str, source_lang: str | None = None, target_lang: str | None = None) -> Encoded:
        check_language("source", source_lang, self.config.source_lang)
        check_language("target", target_lang, self.config.target_lang)
        subwords = self._subwords(text, "source", self.source)
        return Encoded([*self.source.ids(subwords), self.eos], lambda: [*self._align(text, subwords), (len(text), len(text))])

    def encode_target(self, text: str, target_lang: str | None = None) -> list[int]:
        check_language("target", target_lang, self.config.target_lang)
        return self.target.ids(self._subwords(text, "target", self.target))

    def join(self, tokens: Sequence[str]) -> str:
        return remove_bpe(" ".join(tokens))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer("target").detokenize(self.join(self.target.tokens(ids)))

    def decoder(self) -> Decoder:
        return self._decoder(self._tokenizer("target")) if self.streams else Buffered(self.decode)

    def _subwords(self, text: str, side: str, vocabulary: Vocabulary) -> list[str]:
        line = " ".join(text.split())
        if "codes" not in self.config.files:
            if line:
                raise ValueError(f"{self.config.folder} has no BPE codes, so its input must be tokens in BPE already (bpe)")
            return []
        if side not in self._codes:
            self._codes[side] = self._load_codes(vocabulary)
        return self._codes[side].apply(self._tokenizer(side).tokenize(line)).split() if line else []

    def _tokenizer(self, side: str) -> AnyTokenizer:
        """The tokeniser of a side's language, loaded when it is first used."""
        if side not in self._tokenizers:
            self._tokenizers[side] = self._load_tokenizer(
                self.config.source_lang if side == "source" else self.config.target_lang
            )
        return self._tokenizers[side]

    def _load_codes(self, vocabulary: Vocabulary) -> Codes:
        raise NotImplementedError

    def _load_tokenizer(self, lang: str) -> AnyTokenizer:
        raise NotImplementedError

    def _decoder(self, language: AnyTokenizer) -> Decoder:
        raise NotImplementedError

    def _align(self, text: str, subwords: list[str]) -> list[Span]:
        raise NotImplementedError
