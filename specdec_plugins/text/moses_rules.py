"""What Moses does to a sentence of one language: normalise its punctuation, split it into tokens, join tokens to text.

The results are sacremoses', whose import takes 0.2 s: it compiles thirty classes of 11,000 characters each, and loads joblib.
`tests/test_moses.py` compares both on corpora and on any Unicode.

A rule is a pattern and what replaces it. The order of rules matters: most read what the ones before have written.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, cached_property

from specdec_plugins.text.abbreviations import NUMBERED, nonbreaking_prefixes
from specdec_plugins.text.characters import ALNUM, ALPHA, CURRENCY, INDIC_SIGNS, LOWER, MORE_LETTERS, NUMBERS

Rule = tuple[re.Pattern[str], str]


def rules(*pairs: tuple[str, str]) -> list[Rule]:
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


def rewritten(text: str, rules: Sequence[Rule]) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


PARENTHESES = rules((r"\(", " ("), (r"\)", ") "), (" +", " "), (r"\) ([.!:?;,])", r")\1"), (r"\( ", "("), (r" \)", ")"))
SPACES_AND_QUOTES = rules((r"(\d) %", r"\1%"), (" ([:;])", r"\1"), ("`", "'"), ("''", ' " '), (" +", " "))
TYPOGRAPHY = rules(
    ("[„“”]", '"'), ("–", "-"), ("—", " - "), (" +", " "), ("[´‘‚’]", "'"), ("''", '"'), ("…", "..."), ("[«»]", '"')
)
QUOTES_AND_COMMAS = {
    "en": rules(('"([,.]+)', r'\1"')),
    **dict.fromkeys(("de", "es", "fr"), rules((',"', '",'), (r'(\.+)"(\s*[^<])', r'"\1\2'))),
}
# A comma between digits stays: 5,300.
COMMAS = rules((f"([^{NUMBERS}]),", r"\1 , "), (f",([^{NUMBERS}])", r" , \1"), (f"([{NUMBERS}]),$", r"\1 , "))
DOTS = re.compile(r"\.{2,}")
HIDDEN_DOTS = re.compile("((?:DOT)+)MULTI")  # what several dots are until full stops are split off
ESCAPES = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;", "]": "&#93;"}
ESCAPED = str.maketrans(ESCAPES)
UNESCAPED = {code: sign for sign, code in ESCAPES.items()} | {"&bar;": "|", "&bra;": "[", "&ket;": "]"}
ESCAPE = re.compile("|".join(UNESCAPED))

SIGNS_BEFORE_WORDS = re.compile(rf"[{CURRENCY}(\[{{¿¡]+")
SIGNS_AFTER_WORDS = re.compile(r"[,.?!:;\\%}\])]+")
SPACED_IN_FRENCH = {*"?!:;\\%"}
DECIMAL_POINT = re.compile("[0-9]+ [.,] [0-9]+")  # sacremoses looks for the first two at the end of the sentence
OPEN_QUOTE = re.compile("['\"„“`]+")
IDEOGRAPH = re.compile(
    "[\u1100-\u11ff\u2e80-\ua4cf\ua840-\ua87f\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc\U00017000-\U00018aff"
    "\U0001b000-\U0001b12f\U0001b170-\U0001b2ff\U00020000-\U0002ffff]"
)


class MosesRules:
    """The rules of one language, given as a two-letter code; languages without their own have the common ones."""

    def __init__(self, lang: str):
        self.lang = lang
        listed = nonbreaking_prefixes(lang)
        self.before_numbers = {each.rpartition(" ")[0] for each in listed if NUMBERED in each}
        self.abbreviations = {*listed} - self.before_numbers

    # Patterns that not every sentence needs: some take 10 ms to compile.

    @cached_property
    def _letters(self) -> re.Pattern[str]:
        return re.compile(f"[{ALPHA}{INDIC_SIGNS}{MORE_LETTERS.get(self.lang, '')}]")

    @cached_property
    def _lower(self) -> re.Pattern[str]:
        return re.compile(f"[{LOWER}]")

    @cached_property
    def _signs(self) -> re.Pattern[str]:
        return re.compile(rf"([^{ALNUM}{MORE_LETTERS.get(self.lang, '')}\s.'`,-])")

    @cached_property
    def _hyphens(self) -> re.Pattern[str]:
        letters = f"[{ALNUM}{MORE_LETTERS.get(self.lang, '')}]"
        return re.compile(f"(?<={letters})-(?={letters})")

    @cached_property
    def _apostrophes(self) -> list[Rule]:
        """``it's`` is two tokens in English, ``it 's``, as ``l'été`` is in French, ``l' été``."""
        letters = ALPHA + INDIC_SIGNS
        if self.lang not in ("en", "fr", "it"):
            return rules(("'", " ' "))
        english = self.lang == "en"
        apart = rules(
            (f"([^{letters}])'([^{letters}])", r"\1 ' \2"),
            (f"([^{letters}{NUMBERS * english}])'([{letters}])", r"\1 ' \2"),
            (f"([{letters}])'([^{letters}])", r"\1 ' \2"),
        )
        if english:
            return apart + rules((f"([{letters}])'([{letters}])", r"\1 '\2"), (f"([{NUMBERS}])'(s)", r"\1 '\2"))
        return apart + rules((f"([{letters}])'([{letters}])", r"\1' \2"))

    def normalize(self, line: str) -> str:
        """A sentence, its words separated by single spaces, in plain punctuation and without control characters."""
        line = rewritten(rewritten(line, PARENTHESES), SPACES_AND_QUOTES)
        if not line.isascii():
            line = rewritten(line, TYPOGRAPHY)
        return without_controls(rewritten(line, QUOTES_AND_COMMAS.get(self.lang, []))).strip()

    def tokenize(self, line: str, hyphens: bool = True) -> str:
        """The tokens of a normalised sentence, separated by spaces; ``hyphens``: those inside words are tokens ``@-@``."""
        line = re.sub("[\0-\x1f]", "", re.sub(r"\s+", " ", line)).strip()
        line = self._signs.sub(r" \1 ", line)
        if hyphens and "-" in line:
            line = self._hyphens.sub(" @-@ ", line)
        line = DOTS.sub(lambda dots: f" {'DOT' * len(dots[0])}MULTI{' ' * (dots.end() < len(line))}", line)
        if "," in line:
            line = rewritten(line, COMMAS)
        if "'" in line:
            line = rewritten(line, self._apostrophes)
        line = re.sub(r"\.' ?$", " . ' ", self._split_full_stops(line.split()))
        return HIDDEN_DOTS.sub(lambda dots: "." * (len(dots[1]) // 3), line).translate(ESCAPED)

    def _split_full_stops(self, words: list[str]) -> str:
        """The words, separated by spaces; a full stop is a word unless it belongs to an abbreviation or precedes lower case."""
        apart = []
        for word, following in zip(words, [*words[1:], ""]):
            stem = word[:-1]
            if word[-1] == "." and stem and not self._keeps_full_stop(stem, following):
                word = f"{stem} ."
            apart.append(word)
        return " ".join(apart)

    def _keeps_full_stop(self, stem: str, following: str) -> bool:
        if ("." in stem and self._letters.search(stem)) or stem in self.abbreviations:
            return True
        number = stem in self.before_numbers and re.match("[0-9]", following)
        return bool(number or self._lower.match(following))

    def unescape(self, text: str) -> str:
        return ESCAPE.sub(lambda match: UNESCAPED[match[0]], text)

    def detokenize(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""
        line = self.unescape(f" {' '.join(tokens)} ".replace(" @-@ ", "-"))
        words = (joined_czech(line) if self.lang == "cs" else line).split()
        text, space, quotes = "", " ", Counter[str]()
        for at, word in enumerate(words):
            to_left, to_right = self._joins(at, words, quotes)
            if self.lang == "fr" and word in SPACED_IN_FRENCH:
                text += " "
            text += word if to_left else space + word
            space = "" if to_right else " "
        return text.strip()

    def _joins(self, at: int, words: Sequence[str], quotes: Counter[str]) -> tuple[bool, bool]:
        """Whether a word joins the one before it, and the one after it. ``quotes`` counts those so far, by kind."""
        word, before, following = words[at], words[at - 1] if at else "", "".join(words[at + 1 : at + 2])
        if IDEOGRAPH.match(word) and self.lang != "ko":
            return IDEOGRAPH.match(before[-1:]) is not None, False
        if SIGNS_BEFORE_WORDS.fullmatch(word):
            return False, True
        if SIGNS_AFTER_WORDS.fullmatch(word):
            return True, False
        if self.lang == "en" and before and word[0] == "'" and letter().match(word, 1):
            return True, False
        if self.lang == "cs" and at > 1 and word.isdigit() and DECIMAL_POINT.fullmatch(" ".join([*words[-2:], word])):
            return True, False
        if self.lang in ("fr", "it", "ga") and word[-1] == "'" and all(letter().match(each) for each in (word[-2:], following)):
            return False, True
        if OPEN_QUOTE.fullmatch(word):
            return self._joins_as_quote(word, before, quotes)
        return False, False

    def _joins_as_quote(self, quote: str, before: str, quotes: Counter[str]) -> tuple[bool, bool]:
        """Quotes of a kind open and close by turns."""
        kind = '"' if quote.strip("„“") == "" else quote
        if self.lang == "cs" and quote in ("„", "“"):
            quotes[kind] = quote == "“"
        opens = quotes[kind] % 2 == 0
        if opens and self.lang == "en" and quote == "'" and before.endswith("s"):
            return True, False  # a possessive: the Jones' house
        quotes[kind] += 1
        return not opens, opens


def without_controls(line: str) -> str:
    """The line without characters of the category C, such as zero-width spaces.

    Of characters that this Python's Unicode does not know, such as new emoji, the package regex knows more.
    """
    if line.isprintable():
        return line
    kinds = {each: unicodedata.category(each) for each in {*line}}
    if "Cn" in kinds.values():
        import regex

        kinds |= {each: "assigned" for each, kind in kinds.items() if kind == "Cn" and not regex.match(r"\p{C}", each)}
    return "".join(each for each in line if kinds[each][0] != "C")


@cache
def letter() -> re.Pattern[str]:
    return re.compile(f"[{ALPHA}]")


def joined_czech(line: str) -> str:
    """``e' - mail`` and ``je' - li`` as one word."""
    return re.sub(rf"(?<=[{ALPHA}]') ([-–]) (?=(?i:li |mail))", r"\1", line) if "' " in line else line
