"""Moses tokenisation: what fairseq calls ``--tokenizer moses``.

Hyphens inside words are split (`` @-@ ``) and XML characters are escaped (``&apos;``), as in data that others prepared; both are
undone on output. Punctuation is normalised first, which cannot be undone (curly quotes become straight). Preparation and
translation share this file, so a model reads text in the form in which it was trained. sacremoses is loaded on first use.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import Any

from specdec_plugins.text.alignment import undo

# WMT16 Romanian mixes the legacy cedilla letters with the correct comma-below ones.
ROMANIAN = str.maketrans("ŞşŢţ", "ȘșȚț")
HYPHEN = "@-@"
ESCAPE = re.compile(f"&#?[a-z0-9]{{2,4}};|{HYPHEN}")


class Moses:
    """Normalise, tokenise and detokenise the sentences of one language, given as a two-letter code."""

    def __init__(self, lang: str):
        moses = sacremoses()
        self.lang = lang
        self.normalizer = moses.MosesPunctNormalizer(lang, post_remove_control_chars=True)
        self.tokenizer = moses.MosesTokenizer(lang)
        self.detokenizer = moses.MosesDetokenizer(lang)

    def tokenize(self, line: str) -> str:
        """Return the normalised tokens of a raw sentence, joined by single spaces."""
        line = " ".join(line.split())  # first, or tabs would vanish as control characters and glue their words together
        if self.lang == "ro":
            line = line.translate(ROMANIAN)
        return self.tokenizer.tokenize(self.normalizer.normalize(line), aggressive_dash_splits=True, return_str=True)

    def detokenize(self, line: str) -> str:
        """Return the raw sentence for a line of tokens."""
        return self.detokenizer.detokenize(line.split())

    def surface(self, pieces: Sequence[str]) -> list[str]:
        """See `WordTokenizer`."""
        return undo(pieces, ESCAPE, lambda match: "-" if match[0] == HYPHEN else self.detokenizer.unescape_xml(match[0]))

    def stream(self) -> "MosesStream":
        """See `WordTokenizer`."""
        return MosesStream(self.detokenizer)


class MosesStream:
    """Incremental detokenisation, a `WordStream`.

    sacremoses goes from word to word (``a @-@ b`` is one) and spaces each by itself and the words before it, so that the words
    after it change nothing. Czech is the exception: there the sentence's last two words decide about numbers, and nothing is
    settled before the end.

    A word that may still grow is settled once it has a letter or digit, because growth can then no longer change what it is: only
    words without any are taken for currency signs, punctuation or quotes. What may be part of an XML escape is held back.
    """

    WINDOW = 16  # words that are detokenised again and again, at least

    def __init__(self, detokenizer: Any):
        self.detokenizer = detokenizer
        self.words: list[str] = []  # complete ones, with hyphens joined
        self.word = ""  # the last one, which a hyphen may still continue
        self.joined = False  # the last token was a hyphen
        self.token = ""  # an incomplete token
        self.told = ""  # of these words

    def push(self, piece: str, complete: bool) -> str:
        """See `WordStream`."""
        self.token += piece
        if complete:
            self._end_token()
        if self.detokenizer.lang == "cs":
            return ""
        begins = not self.joined and not HYPHEN.startswith(self.token)  # the incomplete token is of a new word
        if begins and self.word:
            self._end_word()
        token, escape = self.token, self.token.rpartition("&")
        if escape[1] and ";" not in escape[2]:
            token = escape[0]
        delta = self._tell(self.word + token if begins or self.joined else self.word)
        self._forget()
        return delta

    def finish(self) -> str:
        """See `WordStream`."""
        if self.token:
            self._end_token()
        self._end_word()
        return self._tell("")

    def _end_token(self) -> None:
        token, self.token = self.token, ""
        if token == HYPHEN and not self.joined:
            self.word, self.joined = f"{self.word}-", True
        elif self.joined:
            self.word, self.joined = self.word + token, False
        else:
            self._end_word()
            self.word = token

    def _end_word(self) -> None:
        self.words += [self.word] if self.word else []
        self.word = ""

    def _tell(self, growing: str) -> str:
        settled = any(map(str.isalnum, self.detokenizer.unescape_xml(growing)))
        text = self.detokenizer.detokenize([*self.words, growing] if settled else self.words)
        delta, self.told = text[len(self.told) :], text
        return delta

    def _forget(self) -> None:
        """Keep the last word alone, so that a long sentence takes linear time. Quotes need the ones before them."""
        quote = self.detokenizer.IS_OPEN_QUOTE
        if len(self.words) < self.WINDOW or any(quote.search(self.detokenizer.unescape_xml(word)) for word in self.words):
            return
        forgotten = len(self.detokenizer.detokenize(self.words)) - len(self.detokenizer.detokenize(self.words[-1:]))
        self.words, self.told = self.words[-1:], self.told[forgotten:]


@cache
def sacremoses() -> ModuleType:
    """The library. Its import compiles some thirty character classes that list 11,000 letters each, which takes 0.3 s; the same
    classes as ranges take 0.07 s and match the same characters."""
    original = re.compile

    def compile_shorter(pattern: Any, flags: int = 0) -> re.Pattern:
        if isinstance(pattern, str) and len(pattern) > 500:
            parts = re.split(r"([^\x00-\x7f]{500,})", pattern)  # every second one is a list of letters
            pattern = "".join(as_ranges(part) if number % 2 else part for number, part in enumerate(parts))
        return original(pattern, flags)

    re.compile = compile_shorter  # type: ignore[assignment]
    try:
        import sacremoses
    finally:
        re.compile = original
    return sacremoses


@cache
def as_ranges(characters: str) -> str:
    """What stands for these characters in a character class."""
    codes = enumerate(sorted(set(map(ord, characters))))
    runs = ([code for _, code in run] for _, run in groupby(codes, lambda each: each[1] - each[0]))
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)
