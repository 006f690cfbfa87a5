"""What codecs of models from Hugging Face share: special tokens, languages, the frame of a source, incremental decoding.

Ids of special tokens come from the model folder (`TextOptions`), eos from the model's `Symbols`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdec_plugins.formats.strict import parse
from specdec_plugins.text.codec import Codec, CodecConfig, Encoded, NoLanguage, Redecoded
from specdec_plugins.text.languages import language, two_letters
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.text.words import Align, Span, align

if TYPE_CHECKING:
    from specdec_plugins.model.spec import Symbols

SPACE = "▁"  # begins a word
PARTS = ("bos", "eos", "source", "target", "text")  # of a frame: special tokens, language tokens, the text's tokens
UNKNOWN = "und"  # the language of a model that names none
MAX_SIZE = 10_000_000  # of a vocabulary
MAX_PREFIX = 1_000  # characters
CLEANED = " .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"  # what loses its spaces when text is cleaned up
CLEANABLE = "".join(CLEANED)


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
    prefix: str = ""  # begins every source text
    prefixes: Mapping[str, str] = field(default_factory=dict)  # in its place, by "TARGET" or "SOURCE TARGET" language

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
        if long := [text for text in (self.prefix, *self.prefixes.values()) if len(text) > MAX_PREFIX]:
            raise ValueError(f"a prefix of {len(long[0]):,} characters; at most {MAX_PREFIX:,}")
        if len({len(languages.split()) for languages in self.prefixes} | {1, 2}) > 2:
            raise ValueError("prefixes are for a target language, or a source and a target language")


class Verbatim:
    """Splits texts at added tokens, the longest that matches first."""

    def __init__(self, added: Iterable[Added]):
        self.added = {each.content: each for each in added}
        parts = sorted(map(re.escape, self.added), key=len, reverse=True)
        self.pattern = re.compile(f"({'|'.join(parts)})" if parts else "(?!)")

    def split(self, text: str) -> list[str]:
        """Texts at even indices, added tokens at odd ones. Texts lack the white space that a token beside them takes."""
        parts = self.pattern.split(text)
        for index in range(1, len(parts), 2):
            token = self.added[parts[index]]
            parts[index - 1] = parts[index - 1].rstrip() if token.lstrip else parts[index - 1]
            parts[index + 1] = parts[index + 1].lstrip() if token.rstrip else parts[index + 1]
        return parts


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


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
        self.prefixed: dict[str, list[int]] = {}  # the tokens of prefixes
        self.skipped = frozenset(each.id for each in options.added if each.special)
        if self.multilingual:
            self.skipped |= frozenset(options.languages.values())

    def tokenize(self, text: str, side: str) -> tuple[list[int], Align]:
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
        prefix = self.prefix(source_lang, target_lang, text)
        begun = self.tokens_of_prefix(prefix)
        ids, spans = self.tokenize(prefix + text, "source") if text else (begun, list)
        forced = (tokens["target"],) if self.multilingual and not self.options.fixed_target else ()
        own = agreeing(begun, ids)

        def align() -> list[Span]:
            inside = [(max(0, first - len(prefix)), max(0, end - len(prefix))) for first, end in spans()[own:]]
            return [*[(0, 0)] * (len(before) + own), *inside, *[(len(text), len(text))] * len(after)]

        return Encoded([*before, *ids, *after], align, forced, len(before) + own, len(after))

    def prefix(self, source_lang: str | None, target_lang: str | None, text: str = "") -> str:
        """What begins a source ``text`` in these languages. Raises ValueError, or `NoLanguage` if a target is missing."""
        prefixes = self.options.prefixes
        target = target_lang or self.config.target_lang
        if not prefixes or not (source_lang or target):
            if text and prefixes and all(" " not in each for each in prefixes) and not text.startswith((*prefixes.values(),)):
                raise NoLanguage("the model needs a target language (target_lang, --target-lang)")
            return self.options.prefix
        pairs = [languages.split() for languages in prefixes]
        if not target:
            raise NoLanguage("the model needs a target language (target_lang, --target-lang)")
        target = language(target, sorted({pair[-1] for pair in pairs}), "the model's target languages")
        if target in prefixes:
            return prefixes[target]
        sources = [pair[0] for pair in pairs if pair[-1] == target]
        source = source_lang or self.config.source_lang or sources[0]
        return prefixes[f"{language(source, sources, f'the languages that the model translates into {target}')} {target}"]

    def tokens_of_prefix(self, prefix: str) -> list[int]:
        """The first tokens of a prefix, which are the same whatever text follows."""
        if prefix not in self.prefixed:
            alone, longer = (self.tokenize(text, "source")[0] if prefix else [] for text in (prefix, f"{prefix}a"))
            self.prefixed[prefix] = alone[: agreeing(alone, longer)]
        return self.prefixed[prefix]

    def with_prefix(self, prefix: str) -> "Framed":
        """This codec with another prefix, whatever the languages."""
        other = copy(self)
        other.options, other.prefixed = replace(self.options, prefix=prefix, prefixes={}), {}
        return other

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
            for untidy in CLEANED:
                text = text.replace(untidy, untidy.strip())
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
    if not isinstance(codec, Framed):
        return usual
    if pairs := [languages.split() for languages in codec.options.prefixes]:
        sources, targets = (sorted({pair[end] for pair in pairs if len(pair) > least}) for end, least in ((0, 1), (-1, 0)))
        return sources or usual[0], targets
    if not codec.options.languages:
        return usual
    known = sorted(codec.options.languages)
    reads = codec.multilingual
    writes = not codec.options.fixed_target and (reads or "target" in codec.options.frame.split())
    return known if reads else usual[0], known if writes else usual[1]
