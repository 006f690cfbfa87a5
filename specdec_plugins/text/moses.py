"""Moses tokenisation: fairseq's ``--tokenizer moses``.

Hyphens inside words are split (`` @-@ ``) and XML characters are escaped (``&apos;``), as in published data; output reverses
both. Punctuation is normalised first, irreversibly (curly quotes become straight). Preparation and translation share this file,
so a model reads text as it was trained on.
"""

import re

from specdec_plugins.text.moses_rules import OPEN_QUOTE, MosesRules
from specdec_plugins.text.words import WordTokenizer

# WMT16 Romanian mixes the legacy cedilla letters with the correct comma-below ones.
ROMANIAN = str.maketrans("ŞşŢţ", "ȘșȚț")
HYPHEN = "@-@"
# Sentences in which Moses' rules only split words at hyphens, commas and the last full stop, and outputs in which they only
# join these; MULTI is the mark of an ellipsis.
PLAIN = re.compile(r"(?!.*MULTI)[A-Za-z0-9]+(?:(?:-|,? )[A-Za-z0-9]+)*\.?")
LETTERS = "[A-Za-zÀ-ÖØ-öø-ɏ]+"
WORD = f"{LETTERS}(?: {HYPHEN} {LETTERS})*"
PLAIN_TOKENS = re.compile(f"{WORD}(?: {WORD}| [,.])*")


class Moses(WordTokenizer):
    """Normalise, tokenise and detokenise the sentences of one language, given as a two-letter code."""

    escape = re.compile(f"&#?[a-z0-9]{{2,4}};|{HYPHEN}")

    def __init__(self, lang: str):
        self.lang = lang
        self.rules = MosesRules(lang)

    def tokenize(self, line: str) -> str:
        """Return the tokens of a raw sentence, normalised and joined by single spaces."""
        line = " ".join(line.split())  # first, or tabs would vanish as control characters and glue their words together
        if PLAIN.fullmatch(line):
            words = line.removesuffix(".").replace(",", " ,").replace("-", f" {HYPHEN} ")
            dot = " ." if words.rpartition(" ")[2] not in self.rules.abbreviations else "."
            return words + dot if line[-1] == "." else words
        if self.lang == "ro":
            line = line.translate(ROMANIAN)
        return self.rules.tokenize(self.rules.normalize(line))

    def detokenize(self, line: str) -> str:
        if PLAIN_TOKENS.fullmatch(line):
            return line.replace(f" {HYPHEN} ", "-").replace(" ,", ",").replace(" .", ".")
        return self.rules.detokenize(line.split())

    def unescape(self, match: re.Match[str]) -> str:
        return "-" if match[0] == HYPHEN else self.rules.unescape(match[0])

    def stream(self) -> "MosesStream":
        return MosesStream(self.rules)


class MosesStream:
    """Incremental detokenisation, a `WordStream`.

    Moses spaces each word (``a @-@ b`` is one) by itself and the words before it, so later words change nothing. Czech is
    the exception: numbers depend on the last two words of the sentence, so nothing is settled before the end.

    A word that may still grow is settled once it has a letter or digit: only words without any can be currency signs, punctuation
    or quotes. A possible XML escape is held back.
    """

    WINDOW = 16  # words that are detokenised again with each push, at most

    def __init__(self, rules: MosesRules):
        self.rules = rules
        self.words: list[str] = []  # complete ones, with hyphens joined
        self.word = ""  # the last one, which a hyphen may still continue
        self.joined = False  # the last token was a hyphen
        self.token = ""  # an incomplete token
        self.settled = 0  # characters of the text of these words that were returned

    def push(self, piece: str, complete: bool) -> str:
        self.token += piece
        if complete:
            self._end_token()
        if self.rules.lang == "cs":
            return ""
        begins = not self.joined and not HYPHEN.startswith(self.token)  # the incomplete token starts a new word
        if begins and self.word:
            self._end_word()
        token, escape = self.token, self.token.rpartition("&")
        if escape[1] and ";" not in escape[2]:
            token = escape[0]
        delta = self._settle(self.word + token if begins or self.joined else self.word)
        if len(self.words) >= self.WINDOW:
            self._forget()
        return delta

    def finish(self) -> str:
        if self.token:
            self._end_token()
        self._end_word()
        return self._settle("")

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

    def _settle(self, growing: str) -> str:
        settled = any(map(str.isalnum, self.rules.unescape(growing)))
        text = self.rules.detokenize([*self.words, growing] if settled else self.words)
        delta, self.settled = text[self.settled :], len(text)
        return delta

    def _forget(self) -> None:
        """Keep the last word and one quote of each kind that is open, so that long outputs take linear time."""
        text, last = self.rules.detokenize, self.words[-1]
        # Moses counts quotes by kind. After a word, it puts a space before an opening quote and none before a closing one.
        kinds = {*map(self._quote, self.words)} - {""}
        opened = {kind for kind in kinds if not text([*self.words, "x", kind]).endswith(f" {kind}")}
        kept = [kind for kind in opened if kind != self._quote(last)]
        kept += [last] if self._quote(last) in {"", *opened} else [last, last]
        self.settled -= len(text(self.words)) - len(text(kept))
        self.words = kept

    def _quote(self, word: str) -> str:
        """The kind of quote that a word is; empty for other words."""
        plain = self.rules.unescape(word)
        if not OPEN_QUOTE.fullmatch(plain):
            return ""
        return plain if plain.strip("„“") else '"'
