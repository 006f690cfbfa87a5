"""Moses' rules equal sacremoses, on corpora and on any Unicode, for every language."""

import os
import random
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from specdec_plugins.text import characters
from specdec_plugins.text.abbreviations import moses_lists
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.moses import PLAIN, PLAIN_TOKENS, ROMANIAN, Moses, MosesRules

CORPORA = Path(os.environ.get("SPECDEC_CORPORA", "none"))
LANGUAGES = ["en", "de", "fr", "it", "es", "cs", "fi", "ro", "sv", "ga", "el", "ru", "hi", "yue", "zh", "ja", "ko", "cjk", "xx"]
# What the rules look for, and what is near it
LOOKED_FOR = """
    A dog Mr no No well Art DOTMULTI xDOTDOTMULTI 2018 1 20 5,300 5,a x,y été Straße İx ı ń Ａ z.B it's a. (b) "so" § l'été
    Jones' 80's '90s rock'n'roll e' je' li mail Mail-x U.S. i.e. pp. 10. ... .. . , ? ! : ; \\ % ) ] } ( [ { ¿ ¡ $ € £ ' " `` ` ''
    &apos; &amp; &amp;lt; &lt; &#124; &bar; | < > & „ “ ” ‘ ’ ‚ ´ « » … – — - -- @-@ @ 日本 本a ア 한국 क्ष ǘ ﬁ ① ½ Ⅷ ٣ 𝟘 🙂
    ..." ." .' ,," ‘a’b d'eau EU: ssa
"""
WORDS = [*LOOKED_FOR.split(), "\u200b", "\xad", "\x01", "\x1f", "\u2028", "\ue000", "\U000e0001", "\U0001fae8"]


class Sacremoses:
    """What the package makes of a language's text, with the options that `Moses` means."""

    def __init__(self, lang):
        import sacremoses

        self.lang = lang
        self.normalizer = sacremoses.MosesPunctNormalizer(lang, post_remove_control_chars=True)
        self.tokenizer, self.detokenizer = sacremoses.MosesTokenizer(lang), sacremoses.MosesDetokenizer(lang)

    def tokenize(self, line):
        line = " ".join(line.split())
        line = line.translate(ROMANIAN) if self.lang == "ro" else line
        return self.tokenizer.tokenize(self.normalizer.normalize(line), aggressive_dash_splits=True, return_str=True)

    def detokenize(self, line):
        try:
            return self.detokenizer.detokenize(line.split())
        except TypeError:  # it fails at Czech "e' - mail"
            return None


sacremoses, moses = cache(Sacremoses), cache(Moses)


def assert_equal(lang, line):
    """For a raw line, also without normalisation; and for its tokens and the line as tokens."""
    tokens, raw = sacremoses(lang).tokenize(line), sacremoses(lang).tokenizer.tokenize(line, return_str=True)
    assert moses(lang).tokenize(line) == tokens, line
    assert moses(lang).rules.tokenize(line, hyphens=False) == raw, line
    for output in {tokens, raw, line}:
        text = sacremoses(lang).detokenize(output)
        assert text is None or moses(lang).detokenize(output) == text, output


COUNTS = [60, pytest.param(600, marks=pytest.mark.long)]  # sacremoses takes milliseconds for a line


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_near_the_rules(lang, count):
    rng = random.Random(f"{lang} {count}")
    for _ in range(count):
        between = rng.choice([[" ", " ", ", ", "-"], [" ", ",", "--", " - ", ". ", ""], [" "], [""], ["'", '"', " '", "' "]])
        line = "".join(rng.choice(WORDS) + rng.choice(between) for _ in range(rng.randrange(12)))
        assert_equal(lang, line)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_any_unicode(lang, count):
    """Half the characters are in any plane; the others are what rules look for, beside letters and digits."""
    rng = random.Random(f"{lang} {count}")
    signs = "".join(WORDS) + "abc ABC 012 '', .- " * 5
    for _ in range(count):
        ends = rng.choice([0x250, 0x3100, 0xD7FF, 0x1FFFF, 0x110000])
        some = [chr(rng.randrange(ends)) if rng.random() < 0.5 else rng.choice(signs) for _ in range(rng.randrange(40))]
        assert_equal(lang, "".join(each for each in some if not 0xD800 <= ord(each) < 0xE000))


@pytest.mark.parametrize(
    "name", ["docs-en-fr/train.en.gz", "docs-en-fr/train.fr.gz", "wmt-news/train.de.gz", "multi30k/train.de.gz"]
)
def test_corpora(name):
    """Some 500 of their lines; as a script, ``python tests/test_moses.py``, this compares all lines of all corpora."""
    if not (CORPORA / name).exists():
        pytest.skip("SPECDEC_CORPORA names no folder with this file")
    lines, lang = list(read_lines(CORPORA / name)), name.split(".")[1]
    for line in lines[:: len(lines) // 500]:
        assert_equal(lang, line)


def test_plain_text_takes_a_short_cut():
    """Which near_the_rules reaches: lines and outputs that no rule but the shortest reads."""
    for line in ("A dog, 20 well-known dogs.", "No. Mr.", "Mr", "It is in Art."):
        assert_equal("en", line)
    assert PLAIN.fullmatch("A dog, 20 well-known dogs.") and PLAIN_TOKENS.fullmatch("A well @-@ known dog , été .")


def test_classes_of_characters():
    from sacremoses.corpus import Perluniprops

    chars = {
        name: {*Perluniprops().chars(name)} - {"\n"} for name in ("IsN", "IsAlpha", "IsAlnum", "IsLower", "IsSc", "Han", "Hangul")
    }
    spelt = {"IsN": "NUMBERS", "IsAlpha": "ALPHA", "IsLower": "LOWER", "IsSc": "CURRENCY", "Han": "HAN", "Hangul": "HANGUL"}
    for name, ours in spelt.items():
        assert members(getattr(characters, ours)) == chars[name], name
    assert members(characters.ALPHA + characters.DIGITS) == chars["IsAlnum"]


def members(body):
    match = re.compile(f"[{body}]").match
    return {each for each in map(chr, range(sys.maxunicode + 1)) if match(each)}


def test_lists_of_abbreviations():
    import sacremoses

    prefixes = sacremoses.NonbreakingPrefixes()
    assert {*moses_lists()} == {*prefixes.available_langs.values()}
    for lang in [*moses_lists(), "xx"]:
        tokenizer = sacremoses.MosesTokenizer(lang)
        assert MosesRules(lang).abbreviations == {*tokenizer.NONBREAKING_PREFIXES} - {*tokenizer.NUMERIC_ONLY_PREFIXES}
        assert MosesRules(lang).before_numbers == {*tokenizer.NUMERIC_ONLY_PREFIXES}


def test_a_czech_dash_that_sacremoses_fails_at():
    assert Moses("cs").detokenize("poslat e&apos; - mail , je&apos; - li .") == "poslat e'-mail, je'-li."


if __name__ == "__main__":
    for path in sorted(CORPORA.glob("*/*.*")):
        if path.suffix != ".md":
            lines = list(read_lines(path))
            for line in lines:
                assert_equal(path.name.split(".")[1], line)
            print(path, len(lines), "lines", flush=True)
