"""Sentence splitting by a rule over the words of a document.

A word ends a sentence if it ends in ``.``, ``!``, ``?`` or ``…``, ignoring closing quotes and brackets, and the next word does
not begin with a lower-case letter. A single full stop after an abbreviation does not end one. Names of code may begin a sentence,
and so may words in lower case after a full stop and a word that is no abbreviation, in languages whose lists are good. A wrong
split damages a sentence while a missed one only joins two, so a doubtful full stop does not split.
"""

import html
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise

from specdec_plugins.text.abbreviations import Abbreviations, abbreviations
from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.patterns import pattern
from specdec_plugins.text.reversible import JOINER
from specdec_plugins.text.words import CONTINUED, Span

MAX_WORD = 1_000  # characters; a longer "word" is data, and is split, because BPE is quadratic in the length of a word
_WORD = re.compile(rf"\S{{1,{MAX_WORD}}}")
_TOKEN = re.compile(rf"(?:\S+{CONTINUED}\s+)*\S+")  # with all its subwords
_QUOTES = "\"'“”„‘’«»‹›"  # each opens in one language and closes in another
_OPENING, _CLOSING = _QUOTES + "([{¿¡", _QUOTES + ")]}"
_MARKS = ".!?…"
_END = re.compile(rf"([.!?…]+)[{re.escape(_CLOSING)}]*$")
_CLAUSE = re.compile(rf"[,;:–—][{re.escape(_CLOSING)}]*$")
_SIGNS = re.compile(r"[=+*/|&<>:;,?!]+")  # as a word: begin no sentence
_ITEM = re.compile(r"\([a-z0-9]{1,3}\)|[\"“«][^\s\"”»]+[\"”»]")  # (a), or a single word in quotes
_ELIDED = re.compile("(?<=[^\\W\\d_])['’]")  # ends an article: l'art.


def sentences(line: str, language: str, most: int, tokenized: bool = False) -> Iterator[str]:
    """Yield the sentences of a line, their words joined by single spaces.

    A sentence of over ``most`` words is split after the last clause among the first ``most``, or else after ``most``. With
    ``tokenized``, the line and its sentences consist of subwords. Memory is bounded by one sentence.
    """
    known = abbreviations(language)
    words: list[str] = []
    ended = False  # at the previous word, apart from closing quotes and brackets
    matches = (" ".join(match[0].split()) for match in (_TOKEN if tokenized else _WORD).finditer(line))
    for word, following in pairwise(chain(matches, [""])):
        words.append(word)
        ends = _ends(_plain(word), _plain(following), known)
        ended = ends or (ended and _closes(word))
        if ended and (ends or not _begins_small(_plain(following))) and not (_closes(following) and _open(words, following)):
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


def outlined(text: str, code: Iterable[Span], links: Iterable[Span]) -> str:
    """A text of the same length in which no sentence ends within ``code`` or ``links``, and any may begin with code."""
    letters = list(text)
    for spans, hidden in ((links, _MARKS), (code, _MARKS + " ")):
        for start, end in spans:
            for at in range(start, start + len(text[start:end].rstrip(_MARKS))):
                letters[at] = "x" if letters[at] in hidden else letters[at]
            letters[start] = "X" if " " in hidden else letters[start]
    return "".join(letters)


def cut(subwords: list[str], most: int) -> int:
    """Where to split a sentence of over ``most`` subwords: after the last clause among the first ``most``, else the last word."""
    clause = (n for n in range(most, 0, -1) if _CLAUSE.search(_plain(subwords[n - 1])))
    token = (n for n in range(most, 0, -1) if not subwords[n - 1].endswith((CONTINUED, JOINER)))
    return next(chain(clause, token), most)


def _plain(word: str) -> str:
    """A word without XML escapes, joiners and subword marks."""
    word = remove_bpe(word) if CONTINUED in word else word
    return html.unescape(word).replace(JOINER, "") if "&" in word or JOINER in word else word


def _ends(word: str, following: str, known: Abbreviations) -> bool:
    found = _END.search(word)
    if not found or _SIGNS.fullmatch(following):
        return False
    stem = word[: found.start()].strip(_OPENING + _CLOSING)
    if not stem and word[0] in _OPENING:  # a mark that is quoted
        return False
    if word in ("?", "!") and pattern().match(following):  # an operator
        return False
    stem = _ELIDED.split(stem)[-1]
    if _begins_small(following):
        return found[0] == "." and known.is_word(stem)
    return found[1] != "." or not following or known.end(stem, following)


def _begins_small(word: str) -> bool:
    """Whether a word begins in lower case, and is neither code nor quoted nor the number of an item."""
    bare = word.lstrip(_OPENING)
    return bare[:1].islower() and not (_ITEM.match(word) or pattern().match(bare))


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
