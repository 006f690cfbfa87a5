"""What codecs of models from Hugging Face share: special tokens, languages, the frame of a source, incremental decoding.

Ids of special tokens come from the model folder (`TextOptions`), eos from the model's `Symbols`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.formats.strict import parse
from specdec_plugins.text.codec import Codec, CodecConfig, Encoded, NoLanguage, Redecoded
from specdec_plugins.text.languages import language, two_letters
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Span, align

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols

SPACE = "▁"  # begins a word
PARTS = ("bos", "eos", "source", "target", "text")  # of a frame: special tokens, language tokens, the text's tokens
UNKNOWN = "und"  # the language of a model that names none
MAX_SIZE = 10_000_000  # of a vocabulary
CLEANED = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
]
CLEANABLE = "".join({character for pair in CLEANED for character in pair[0]})


@dataclass(frozen=True)
class Added:
    """A token that text may contain verbatim. Decoding skips it if ``special``. ``lstrip`` and ``rstrip``: it takes the white
    space beside it. ``normalized``: it is searched for in normalised text."""

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class TextOptions:
    """A codec's options in ``model.json``. ``frame`` is a source, as `PARTS`; a missing target language is left out."""

    source_size: int
    target_size: int
    frame: str
    unknown: int
    eos: int
    bos: int | None = None
    family: str = ""  # of tokenizer-json
    prefix_space: bool = False  # a space begins every text of byte-level BPE
    added: tuple[Added, ...] = ()
    languages: Mapping[str, int] = field(default_factory=dict)
    fixed_target: bool = False  # the model starts with the target's language token, so there is only one
    max_length: int | None = None
    clean_up: bool = False

    def __post_init__(self) -> None:
        parts = self.frame.split()
        if parts.count("text") != 1 or any(part not in PARTS for part in parts) or ("bos" in parts and self.bos is None):
            raise ValueError(f"frame '{self.frame:.80}' does not consist of {', '.join(PARTS)}")
        if not 0 < max(self.source_size, self.target_size) <= MAX_SIZE:
            raise ValueError(f"vocabularies of {self.source_size:,} and {self.target_size:,} tokens")
        named = {"unknown": self.unknown, "eos": self.eos, "bos": self.bos or 0, **self.languages}
        named |= {each.content: each.id for each in self.added}
        size = max(self.source_size, self.target_size)
        if wrong := [f"'{name:.40}' ({token:,})" for name, token in named.items() if not 0 <= token < size]:
            raise ValueError(f"token {wrong[0]} is outside the vocabulary of {size:,} tokens")
        if self.max_length is not None and self.max_length <= len(parts):
            raise ValueError(f"max_length {self.max_length} leaves no room for a text")


class Framed:
    """A `Codec` whose text is tokenised by a library: subclasses tokenise and decode, this class does the rest."""

    concatenates, max_characters = False, None
    source: Vocabulary
    target: Vocabulary

    def __init__(self, config: CodecConfig, symbols: "Symbols", files: Iterable[str]):
        try:
            self.options = options = parse(TextOptions, config.options)
        except ValueError as error:
            raise ValueError(f"{config.folder}: codec {config.name}: {error}") from None
        if missing := set(files) - set(config.files):
            raise ValueError(f"codec {config.name} needs the files: {', '.join(sorted(missing))}")
        if options.eos != symbols.eos:
            raise ValueError(f"{config.folder}: eos is {options.eos:,} in the tokenizer and {symbols.eos:,} in the model")
        self.config, self.max_length = config, options.max_length
        before, _, after = options.frame.partition("text")
        self.before, self.after = before.split(), after.split()
        self.resolved: dict[tuple[str, str | None], str | None] = {}
        self.skipped = frozenset(each.id for each in options.added if each.special)
        if self.multilingual:
            self.skipped |= frozenset(options.languages.values())

    def tokenize(self, text: str, side: str) -> tuple[list[int], Callable[[], list[Span]]]:
        """The ids of a text without special tokens at its ends, and a function that computes the characters they stand for."""
        raise NotImplementedError

    def joined(self, ids: Sequence[int]) -> str:
        """The text of tokens that are not special."""
        raise NotImplementedError

    def encode(self, text: str, source_lang: str | None = None, target_lang: str | None = None) -> Encoded:
        named = {part: self.language(part, asked) for part, asked in (("source", source_lang), ("target", target_lang))}
        tokens = {part: self.options.languages[lang] for part, lang in named.items() if lang is not None}
        tokens |= {"eos": self.options.eos} | ({} if self.options.bos is None else {"bos": self.options.bos})
        before, after = ([tokens[part] for part in parts if part in tokens] for parts in (self.before, self.after))
        ids, spans = self.tokenize(text, "source") if text else ([], list)
        forced = (tokens["target"],) if self.multilingual and not self.options.fixed_target else ()

        def align() -> list[Span]:
            return [*[(0, 0)] * len(before), *spans(), *[(len(text), len(text))] * len(after)]

        return Encoded([*before, *ids, *after], align, forced, len(before), len(after))

    @property
    def multilingual(self) -> bool:
        """Whether sources contain their language, and outputs begin with theirs."""
        return "source" in self.options.frame

    def language(self, side: str, asked: str | None) -> str | None:
        """The code of a side's language token, if it has one. Raises ValueError, or `NoLanguage` if the language is missing."""
        if (side, asked) not in self.resolved:
            self.resolved[side, asked] = self._language(side, asked)
        return self.resolved[side, asked]

    def _language(self, side: str, asked: str | None) -> str | None:
        usual, what = getattr(self.config, f"{side}_lang"), f"the model's {side} languages"
        if self.multilingual and not (side == "target" and self.options.fixed_target):
            if not (asked or usual):
                raise NoLanguage(f"the model needs a {side} language ({side}_lang, --{side}-lang)")
            return language(asked or usual, self.options.languages, what)
        if asked and side in self.options.frame and self.options.languages:  # Marian reads the target's; it has no default
            return language(asked, self.options.languages, what)
        if asked and two_letters(usual):  # others may stand for several languages: ROMANCE, gem
            language(asked, [usual], what)
        return None

    def encode_target(self, text: str, target_lang: str | None = None) -> list[int]:
        if target_lang:  # which no other token depends on
            self.language("target", target_lang)
        return self.tokenize(text, "target")[0] if text else []

    def decode(self, ids: Sequence[int]) -> str:
        text = self.joined([token for token in ids if token not in self.skipped])
        if self.options.clean_up:
            for untidy, clean in CLEANED:
                text = text.replace(untidy, clean)
        return text

    def spans(self, text: str, ids: Sequence[int]) -> list[Span]:
        pieces = zip(ids, self.target.tokens(ids))
        return align(text, ["" if token in self.skipped else self.plain(piece) for token, piece in pieces])

    def plain(self, piece: str) -> str:
        """The characters of a text that a piece stands for, white space at its ends aside."""
        return piece.replace(SPACE, "")

    def decoder(self) -> Redecoded:
        return Redecoded(self.decode, self.settled)

    def settled(self, text: str) -> int:
        """How much of a text later tokens cannot change: they may complete a character, or be cleaned up with what is before."""
        whole = text.rstrip("\ufffd")
        return len(whole.rstrip(CLEANABLE) if self.options.clean_up else whole)

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip()


def languages_of(codec: Codec, config: CodecConfig) -> tuple[list[str], list[str]]:
    """The languages that a codec's model translates from and to, in the model's codes."""
    usual = [config.source_lang or UNKNOWN], [config.target_lang or UNKNOWN]
    if not isinstance(codec, Framed) or not codec.options.languages:
        return usual
    known = sorted(codec.options.languages)
    reads = codec.multilingual
    writes = not codec.options.fixed_target and (reads or "target" in codec.options.frame.split())
    return known if reads else usual[0], known if writes else usual[1]
