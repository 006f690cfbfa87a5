"""The built-in codecs, both with fairseq dictionaries: fairseq's own with ``@@`` subwords, and byte-level BPE."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.byte_level import ByteLevel
from specdec_plugins.text.codec import Buffered, CodecConfig, Decoder, Encoded, check_language
from specdec_plugins.text.lines import MAX_LINE_BYTES
from specdec_plugins.text.tokenizers import Codes, Tokenizer, load_codes, load_tokenizer
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import CONTINUED, Span, align

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols


class FairseqBpe:
    """A line becomes tokens, tokens become subwords, and subwords ids. Option ``tokenizer``: moses (default) or reversible.

    Files: ``source`` and ``target`` dictionaries, and BPE ``codes``; without codes, input must be subwords already.
    """

    concatenates, max_length = True, None
    tokenizers: tuple[str, ...] = ("moses", "reversible")

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        if unknown := set(config.options) - {"tokenizer"}:
            raise ValueError(f"codec {config.name}: unknown options: {', '.join(sorted(unknown)):.200}")
        self.tokenizer = config.options.get("tokenizer", self.tokenizers[0])
        if self.tokenizer not in self.tokenizers:
            available = " or ".join(self.tokenizers)
            raise ValueError(f"codec {config.name}: unknown tokenizer '{self.tokenizer!s:.200}'; use {available}")
        if missing := {"source", "target"} - set(config.files):
            raise ValueError(f"codec {config.name} needs the files: {', '.join(sorted(missing))}")
        self.config, self.eos = config, symbols.eos
        self.source, self.target = (Vocabulary.read(config.files[side]) for side in ("source", "target"))
        self.max_characters = max(map(len, self.source.symbols))
        # A symbol that contains white space would be several words, or none: such an output is decoded as a whole.
        self.streams = all(symbol.split() == [symbol] for symbol in self.target.symbols)
        self._codes: dict[str, Codes] = {}
        self._tokenizers: dict[str, Tokenizer] = {}

    def encode(self, text: str, source_lang: str | None = None, target_lang: str | None = None) -> Encoded:
        check_language("source", source_lang, self.config.source_lang)
        check_language("target", target_lang, self.config.target_lang)
        subwords, end = self._subwords(text, "source"), (len(text), len(text))
        ids = [*self.source.ids(subwords), self.eos]
        return Encoded(ids, lambda: [*(self._tokenizer("source").align(text, subwords) if subwords else ()), end])

    def encode_target(self, text: str, target_lang: str | None = None) -> list[int]:
        check_language("target", target_lang, self.config.target_lang)
        return self.target.ids(self._subwords(text, "target"))

    def join(self, tokens: Sequence[str]) -> str:
        return remove_bpe(" ".join(tokens))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer("target").detokenize(self.join(self.target.tokens(ids)))

    def spans(self, text: str, ids: Sequence[int]) -> list[Span]:
        return self._tokenizer("target").align(text, self.target.tokens(ids))

    def decoder(self) -> Decoder:
        return self._tokenizer("target").decoder(self.target.symbols) if self.streams else Buffered(self.decode)

    def _subwords(self, text: str, side: str) -> list[str]:
        line = " ".join(text.split())
        if "codes" not in self.config.files:
            if line:
                raise ValueError(f"{self.config.folder} has no BPE codes, so it accepts only subwords (tokenized)")
            return []
        if side not in self._codes:
            try:
                self._codes[side] = load_codes(self.tokenizer, self.config.files["codes"], getattr(self, side).symbols)
            except ImportError:  # input in subwords needs no BPE library
                if line:
                    raise
        return self._codes[side].apply(self._tokenizer(side).tokenize(line)).split() if line else []

    def _tokenizer(self, side: str) -> Tokenizer:
        """The tokeniser of a side's language, loaded on first use."""
        if side not in self._tokenizers:
            self._tokenizers[side] = load_tokenizer(self.tokenizer, getattr(self.config, f"{side}_lang"))
        return self._tokenizers[side]


class ByteLevelCodec(FairseqBpe):
    """The same files, with codes in GPT-2's form. Encoded texts cannot be concatenated, as each begins with ``<s>``."""

    concatenates = False
    tokenizers = ("byte-level",)

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        super().__init__(config, symbols)
        self.bytes = ByteLevel(config.files.get("codes"))
        self._codes, self._tokenizers = (
            dict.fromkeys(("source", "target"), self.bytes),
            dict.fromkeys(("source", "target"), self.bytes),
        )
        self.max_characters = MAX_LINE_BYTES
        self.streams = self.streams and not any(symbol.endswith(CONTINUED) for symbol in self.target.symbols)

    def spans(self, text: str, ids: Sequence[int]) -> list[Span]:
        """An output may have other subwords than the codec gives its text."""
        return align(text, [self.bytes.bytes_of(symbol).decode("utf-8", "ignore").strip() for symbol in self.target.tokens(ids)])
