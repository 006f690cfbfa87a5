"""Sentence splitting by a rule over the words of a document.

A word ends a sentence if it ends in ``.``, ``!``, ``?`` or ``…``, ignoring closing quotes and brackets, and the next word does
not begin with a lower-case letter. A single full stop after an abbreviation does not end one; the lists of abbreviations are
Moses'. A wrong split damages a sentence while a missed one only joins two, so a doubtful full stop does not split.
"""

import html
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain, islice, pairwise

from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.moses import sacremoses
from specdec_plugins.text.reversible import JOINER
from specdec_plugins.text.words import CONTINUED, Span

MAX_WORD = 1_000  # characters; a longer "word" is data, and is split, because BPE is quadratic in the length of a word
_WORD = re.compile(rf"\S{{1,{MAX_WORD}}}")
_TOKEN = re.compile(rf"(?:\S+{CONTINUED}\s+)*\S+")  # with all its subwords
_QUOTES = "\"'“”„‘’«»‹›"  # each opens in one language and closes in another
_OPENING, _CLOSING = _QUOTES + "([{¿¡", _QUOTES + ")]}"
_END = re.compile(rf"([.!?…]+)[{re.escape(_CLOSING)}]*$")
_CLAUSE = re.compile(rf"[,;:–—][{re.escape(_CLOSING)}]*$")
_NUMBERED = " #NUMERIC_ONLY#"  # Moses' mark of abbreviations that precede a number


def sentences(line: str, language: str, most: int, tokenized: bool = False) -> Iterator[str]:
    """Yield the sentences of a line, their words joined by single spaces.

    A sentence of over ``most`` words is split after the last clause among the first ``most``, or else after ``most``. With
    ``tokenized``, the line and its sentences consist of subwords. Memory is bounded by one sentence.
    """
    abbreviations = _abbreviations(language)
    words: list[str] = []
    ended = False  # at the previous word, apart from closing quotes and brackets
    matches = (" ".join(match[0].split()) for match in (_TOKEN if tokenized else _WORD).finditer(line))
    for word, following in pairwise(chain(matches, [""])):
        words.append(word)
        ended = (ended and _closes(word)) or _ends(_plain(word), _plain(following), abbreviations)
        inside = _begins_small(_plain(following)) or (_closes(following) and _open(words, following))
        if ended and not inside:
            yield " ".join(words)
            words, ended = [], False
        elif len(words) == most:
            at = next((n for n in range(most, 0, -1) if _CLAUSE.search(_plain(words[n - 1]))), most)
            yield " ".join(words[:at])
            words = words[at:]
    if words:
        yield " ".join(words)


def sentence_spans(text: str, language: str, most: int) -> Iterator[Span]:
    """The characters of each sentence of a text; between them is only white space."""
    words = _WORD.finditer(text)
    for sentence in sentences(text, language, most):
        found = list(islice(words, sentence.count(" ") + 1))
        yield found[0].start(), found[-1].end()


def cut(subwords: list[str], most: int) -> int:
    """Where to split a sentence of over ``most`` subwords: after the last clause among the first ``most``, else the last word."""
    clause = (n for n in range(most, 0, -1) if _CLAUSE.search(_plain(subwords[n - 1])))
    token = (n for n in range(most, 0, -1) if not subwords[n - 1].endswith((CONTINUED, JOINER)))
    return next(chain(clause, token), most)


def _plain(word: str) -> str:
    """A word without XML escapes, joiners and subword marks."""
    word = remove_bpe(word) if CONTINUED in word else word
    return html.unescape(word).replace(JOINER, "") if "&" in word or JOINER in word else word


def _ends(word: str, following: str, abbreviations: Collection[str]) -> bool:
    found = _END.search(word)
    if not found or _begins_small(following):
        return False
    stem = word[: found.start()].lstrip(_OPENING)
    if found[1] != "." or not following:
        return True
    if stem + _NUMBERED in abbreviations and following[0].isdigit():
        return False
    return stem not in abbreviations and not ("." in stem and stem.replace(".", "").isalpha())  # e.g., U.S.


def _begins_small(word: str) -> bool:
    return word.lstrip(_OPENING)[:1].islower()


def _closes(word: str) -> bool:
    """Whether a word consists of closing quotes and brackets, which are separate in tokenised text."""
    plain = _plain(word)
    return bool(plain) and not plain.strip(_CLOSING)


def _open(words: list[str], mark: str) -> bool:
    """Whether a mark closes what these words opened: quotes alternate, unless a joiner ties them to the previous word."""
    quotes = frozenset(_QUOTES)
    if mark.startswith(JOINER) or _plain(mark)[0] not in quotes:
        return True
    return sum(_plain(word) in quotes for word in words) % 2 == 1


@lru_cache
def _abbreviations(language: str) -> frozenset[str]:
    """Moses' list for a language, or else for English."""
    known = sacremoses().NonbreakingPrefixes()
    return frozenset(known.words(language if language in known.available_langs.values() else "en"))
