"""Numbers that a translation must keep, however it spells them: 1,234.5 may become 1 234,5, and 3 a word.

Of dates only the year and a day over 12 count, as the month may become a word. Digits may be of any script.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from unicodedata import decimal

from specdec_plugins.text.words import Span

SMALL = 12  # up to here a number is often a word
SPACES = " \u00a0\u2009\u202f"
LETTER = r"A-Za-z0-9_\u00C0-\u024F"  # before a digit: part of a name
NUMBER = re.compile(rf"(?<![{LETTER}.,])(?:[0-9]{{1,3}}(?:['’{SPACES}][0-9]{{3}}(?![0-9]))+|[0-9]+)(?:[.,][0-9]+)*")
DATE = re.compile(
    r"(?<![0-9.,/-])(?:[0-9]{4}([-./])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([./-])[0-9]{1,2}\2[0-9]{4})"
    r"(?![0-9]|[./-][0-9])"
)
SEPARATOR, LISTED = re.compile(rf"([.,'’{SPACES}])"), re.compile(rf"[,{SPACES}]")
FOREIGN = re.compile(r"[^\D0-9]")  # decimal digits of other scripts
SUFFIX = re.compile("[a-zè]{1,3}")
CENTURY = re.compile(r"\b[IVX]+(?:e|ème)?\b")
# Expressions for 0 to 12 as words
WORDS = {
    "de": r"null|kein\w* ein\w*|erst\w* zwei\w*|zwo|beid\w*|doppel\w* drei\w*|dritt\w* vier(?:t\w*)? fünf(?:t\w*)? "
    r"sechs(?:t\w*)? sieben|siebt\w* acht(?:e[nrsm]?)? neun(?:t\w*)? zehn(?:t\w*)? elf(?:t\w*)? zwölf(?:t\w*)?",
    "en": r"zero|no|none one|an?|once|first|single two|twice|second|both|double three|third|triple four(?:th)? five|fifth "
    r"six(?:th)? seven(?:th)? eighth? nine|ninth ten(?:th)? eleven(?:th)? twelve|twelfth",
    "fr": r"zéro|nul\w*|aucun\w* une?|seul\w*|premi\w* deux\w*|second\w*|double\w* trois\w*|tripl\w* quatr\w* cinq\w* six\w* "
    r"sept\w* huit\w* neuf|neuvi\w* dix\w* onz\w* douz\w*",
}


def number_spans(text: str) -> list[Span]:
    """The numbers of a text that are hardly ever words: over `SMALL`, or with a fraction. No dates."""
    if not NUMBER.search(text):
        return []
    undated = DATE.sub(lambda date: " " * len(date[0]), text)
    return [match.span() for match in NUMBER.finditer(undated) if not is_small(match[0])]


def missing_numbers(source: str, text: str, language: str | None = None) -> list[str]:
    """The numbers of a source, as it spells them, that a translation into a language (two letters) has too few times.

    Small whole numbers count only for languages whose words for them are known.
    """
    source = ascii_digits(source)
    if not NUMBER.search(source):
        return []
    text, words = ascii_digits(text), small_words(language)
    left, missing = Counter[str](), list[str]()
    written = {number for number in range(SMALL + 1) if words and words[number].search(text)}
    century = CENTURY.search(text)
    for match in NUMBER.finditer(text):
        for reading in {*readings(match[0]), *LISTED.split(match[0])}:  # (5,15) for (5, 15)
            left[reading] += 1
    for token, suffix in numbers(source):
        parts = token.split()
        if key := next((each for each in readings(token) if left[each]), None):
            left[key] -= 1
        elif len(parts) > 1 and all(left[part] for part in parts):
            left.subtract(parts)
        elif is_small(token):
            missing += [token] * bool(words and int(token) not in written)
        elif not (suffix == "th" and century) and not (suffix == "s" and left[token[-2:]]):
            missing.append(token)
    return missing


def is_small(number: str) -> bool:
    return len(number) <= 2 and int(number) <= SMALL


def numbers(text: str) -> Iterator[tuple[str, str]]:
    """The numbers of a text, each with the letters that follow it."""
    undated = DATE.sub(lambda date: " ".join(part for part in re.split("[-./]", date[0]) if not is_small(part)), text)
    for match in NUMBER.finditer(undated):
        suffix = SUFFIX.match(undated, match.end())
        yield match[0], suffix[0] if suffix else ""


def readings(number: str) -> list[str]:
    """What a spelling may mean, each as digits with at most one full stop: 1,234 is 1234 or 1.234. A version is itself."""
    if number.isdecimal():
        return [plain(number)]
    split = SEPARATOR.split(number)
    parts, marks = split[::2], split[1::2]
    *whole, last = parts
    thousands = len(parts[0]) <= 3 and parts[0][0] != "0" and all(len(part) == 3 for part in parts[1:])
    found = [plain("".join(parts))] if thousands else []
    if marks[-1] in ".," and marks[-1] not in marks[:-1] and all(len(part) == 3 for part in whole[1:]):
        found.append(f"{plain(''.join(whole))}.{last}")
    return found or [number]


def plain(digits: str) -> str:
    return digits.lstrip("0") or "0"


def ascii_digits(text: str) -> str:
    return text if text.isascii() else FOREIGN.sub(lambda digit: str(decimal(digit[0])), text)


@cache
def small_words(language: str | None) -> list[re.Pattern[str]]:
    """Expressions for the words of 0 to `SMALL`; none for a language without any."""
    return [re.compile(rf"\b(?:{each})\b", re.IGNORECASE) for each in WORDS.get(language or "", "").split()]
