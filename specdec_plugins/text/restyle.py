"""Data augmentation for plain text: backticks around code, and typographic apostrophes.

Both sides of a pair change alike, so a model learns to copy the marks. Text that contains backticks stays as it is.
"""

import hashlib
import re
from collections import Counter

_WORD = re.compile(r"(?<![\w$\\/.-])(?:--?[A-Za-z][\w-]*|\$?\w+(?:(?:\.|::|->|\\|/|-)\w+)*(?:\(\))?)(?![\w\\/]|\.\w|\()")
# A name with an underscore, a path, a call, a variable, an option, a file name or attribute, or one in camel case.
_CODE = re.compile(r"_|\w/\w|\\|\(\)|^\$|^-|[A-Za-z]\.[A-Za-z]|::|->|[a-z][A-Z]")
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])")


def restyle(source: str, target: str, share: float) -> tuple[str, str]:
    """Return the pair: a fraction ``share`` of all pairs with code in backticks, as many with typographic apostrophes.

    The choice depends only on the pair. Code is put in backticks if both sides contain it equally often.
    """
    drawn = int.from_bytes(hashlib.sha256(f"{source}\n{target}".encode()).digest()[:8], "big") / 2**64
    if drawn < share and "`" not in source + target:
        common = _code_words(source) & _code_words(target)
        equal = {word for word, count in common.items() if count == _code_words(source)[word] == _code_words(target)[word]}
        return _quote(source, equal), _quote(target, equal)
    if share <= drawn < 2 * share:
        return _APOSTROPHE.sub("’", source), _APOSTROPHE.sub("’", target)
    return source, target


def _code_words(line: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(line) if _CODE.search(word))


def _quote(line: str, words: set[str]) -> str:
    return _WORD.sub(lambda match: f"`{match[0]}`" if match[0] in words else match[0], line)
