"""The codec of fairseq models: dictionaries, subword-nmt BPE, and Moses or reversible tokenisation."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from specdec_plugins.text.alignment import Span, align
from specdec_plugins.text.bpe import CONTINUED
from specdec_plugins.text.codec import CodecConfig, Decoder
from specdec_plugins.text.dictionary import Codes, DictionaryCodec, WordStream, WordTokenizer
from specdec_plugins.text.tokenizers import load_codes, load_word_tokenizer
from specdec_plugins.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from specdec_plugins.formats.spec import Symbols


class FairseqBpe(DictionaryCodec[WordTokenizer]):
    """Subwords with ``@@``, by subword-nmt. Option ``tokenizer``: moses (default) or reversible."""

    def __init__(self, config: CodecConfig, symbols: "Symbols"):
        if unknown := set(config.options) - {"tokenizer"}:
            raise ValueError(f"codec {config.name}: unknown options: {', '.join(sorted(unknown)):.200}")
        self.tokenizer = config.options.get("tokenizer", "moses")
        if self.tokenizer not in ("moses", "reversible"):
            raise ValueError(f"codec {config.name}: unknown tokenizer '{self.tokenizer!s:.200}'; use moses or reversible")
        super().__init__(config, symbols)

    def _load_codes(self, vocabulary: Vocabulary) -> Codes:
        return load_codes(self.tokenizer, self.config.files["codes"], vocabulary.symbols)

    def _load_tokenizer(self, lang: str) -> WordTokenizer:
        return load_word_tokenizer(self.tokenizer, lang)

    def _decoder(self, language: WordTokenizer) -> Decoder:
        return Words(self.target.symbols, language.stream())

    def _align(self, text: str, subwords: list[str]) -> list[Span]:
        return align(text, self._tokenizer("source").surface([each.removesuffix(CONTINUED) for each in subwords]))


class Words:
    """Hands the subwords of an output to an incremental detokeniser."""

    def __init__(self, symbols: Sequence[str], stream: WordStream):
        self.symbols, self.stream = symbols, stream

    def push(self, ids: Iterable[int]) -> str:
        symbols = (self.symbols[token] for token in ids)
        return "".join(self.stream.push(each.removesuffix(CONTINUED), not each.endswith(CONTINUED)) for each in symbols)

    def finish(self) -> str:
        return self.stream.finish()
