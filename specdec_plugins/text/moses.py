"""Moses tokenisation: what fairseq calls ``--tokenizer moses``.

Hyphens inside words are split (`` @-@ ``) and XML characters are escaped (``&apos;``). So prepared data agrees with models
trained elsewhere in the usual way, and both steps can be undone. Before it, punctuation is normalised as Moses does, which cannot
be undone (curly quotes become straight). Preparation and translation share this file, so that a model reads text in the form in
which it was trained. sacremoses is loaded when it is used.
"""

import re
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import Any

# WMT16 Romanian mixes the legacy cedilla letters with the correct comma-below ones.
ROMANIAN = str.maketrans("ŞşŢţ", "ȘșȚț")


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
