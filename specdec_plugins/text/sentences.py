"""Where the sentences of a document end, by a rule over its words. Knows nothing about models.

A word ends a sentence if it closes with ``.``, ``!``, ``?`` or ``…``, closing quotes and brackets aside, and the next one does
not begin with a small letter. A single full stop after an abbreviation ends none; those of each language are Moses' (by
sacremoses, which is loaded when it is used). A wrong end tears a sentence, and a missed one joins two, which costs less: a
doubtful full stop ends none.
"""

import html
import re
from collections.abc import Collection, Iterator
from itertools import chain, pairwise

from specdec_plugins.text.bpe import CONTINUED, remove_bpe
from specdec_plugins.text.moses import sacremoses
from specdec_plugins.text.reversible import JOINER

MAX_WORD = 1_000  # characters; a longer "word" is data, and is read in parts, because BPE takes a word's length squared
_WORD = re.compile(rf"\S{{1,{MAX_WORD}}}")
_TOKEN = re.compile(rf"(?:\S+{CONTINUED}\s+)*\S+")  # with all of its subwords
_QUOTES = "\"'“”„‘’«»‹›"  # each opens in one language and closes in another
_OPENING, _CLOSING = _QUOTES + "([{¿¡", _QUOTES + ")]}"
_END = re.compile(rf"([.!?…]+)[{re.escape(_CLOSING)}]*$")
_CLAUSE = re.compile(rf"[,;:–—][{re.escape(_CLOSING)}]*$")
_NUMBERED = " #NUMERIC_ONLY#"  # how Moses marks an abbreviation that is one only before a number


def sentences(line: str, language: str, most: int, bpe: bool = False) -> Iterator[str]:
    """Yield the sentences of a line, their words joined by single spaces.

    One of over ``most`` words is cut where the last clause among these ends, or after them. With ``bpe`` the line is tokens in
    BPE, and a sentence is, too. Only the sentence at hand is held.
    """
    abbreviations = _abbreviations(language)
    words: list[str] = []
    ended = False  # by the word before, but for closing quotes and brackets
    matches = (" ".join(match[0].split()) for match in (_TOKEN if bpe else _WORD).finditer(line))
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


def cut(subwords: list[str], most: int) -> int:
    """After how many of its subwords a sentence of over ``most`` is cut: where the last clause among these ends, else the last
    token, else after ``most``.
    """
    clause = (n for n in range(most, 0, -1) if _CLAUSE.search(_plain(subwords[n - 1])))
    token = (n for n in range(most, 0, -1) if not subwords[n - 1].endswith((CONTINUED, JOINER)))
    return next(chain(clause, token), most)


def _plain(word: str) -> str:
    """A word, or a token in BPE, without what tokenisers add: XML escapes, joiners and marks of subwords."""
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
    """Whether a word is nothing but closing quotes and brackets, which are tokens of their own in tokenised text."""
    plain = _plain(word)
    return bool(plain) and not plain.strip(_CLOSING)


def _open(words: list[str], mark: str) -> bool:
    """Whether a mark closes what these words opened: quotes do by turns, unless a joiner ties them to the word before."""
    quotes = frozenset(_QUOTES)
    if mark.startswith(JOINER) or _plain(mark)[0] not in quotes:
        return True
    return sum(_plain(word) in quotes for word in words) % 2 == 1


def _abbreviations(language: str) -> frozenset[str]:
    """Moses' list for a language; English for one without any."""
    known = sacremoses().NonbreakingPrefixes()
    return frozenset(known.words(language if language in known.available_langs.values() else "en"))
