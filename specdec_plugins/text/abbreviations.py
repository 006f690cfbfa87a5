"""Abbreviations that end in a full stop, by language: Moses' lists, and for some languages more of technical text."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import PathFinder

NUMBERED = " #NUMERIC_ONLY#"  # Moses' mark of abbreviations that precede a number
INITIALS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, a.m
WORD = re.compile(r"(?:[^\W\d_]+-)*[^\W\d_]{4,}")
NEVER = {  # end a sentence
    "de": "al abzgl allg bspw ca d.h einschl engl entspr evtl exkl ggfs inkl insb insbes jew lat lt resp sinngem vergl vgl vs "
    "z.B zzgl",
    "en": "al approx attn cf dept e.g eg encl esp est excl govt i.e ie incl intl misc resp univ viz vs",
    "fr": "al c.-à-d cf p.ex resp",
}
NUMERIC = {  # do not end one before a number
    "de": "Abb Abs Anm Art Aufl Bd Gl Kap max min mind Nr S Tab Ver Vol str",
    "en": "app art ch chap eq eqs fig figs max min pp sec sect tab ver vol vols",
    "fr": "art chap env fig max min no pp sect tab vol éq",
}
FINAL = {*"etc Inc Ltd Co Corp Jr Sr usf usw".split()}  # and initials: end one before what mostly begins one
STARTERS = {
    "de": "Das Dem Den Der Des Die Diese Dieser Dieses Ein Eine Er Es Im In Wenn Wir",
    "en": "A An And As At But By For He However If In It Its On See She So That The Then There These They This To We When You",
    "fr": "Ce Ces Cet Cette Elle Elles En Il Ils Je La Le Les Lorsque Nous On Pour Si Un Une Vous",
}


@dataclass(frozen=True)
class Abbreviations:
    """Those that ``never`` end a sentence, those that do not before a number, and words that begin one (`FINAL`).

    ``known``: the lists are good enough to tell that a word is no abbreviation.
    """

    never: frozenset[str]
    numeric: frozenset[str]
    starters: frozenset[str]
    known: bool

    def end(self, stem: str, following: str) -> bool:
        """Whether a word with a full stop ends a sentence if ``following``, which is not in lower case, comes next."""
        if following[:1].isdigit() and not self.numeric.isdisjoint((stem, stem.lower())):
            return False
        initials = INITIALS.fullmatch(stem) is not None
        if following in self.starters and (stem in FINAL or re.fullmatch("[A-Z]", stem)):
            return True
        return stem not in self.never and (not initials or following in self.starters)

    def is_word(self, stem: str) -> bool:
        """Whether what precedes a full stop is a word in lower case, not an abbreviation."""
        return self.known and stem.islower() and WORD.fullmatch(stem) is not None and stem not in self.never | self.numeric


@lru_cache
def abbreviations(language: str) -> Abbreviations:
    """Those of a language, or else of English."""
    code = language if language in moses_lists() else "en"
    listed = nonbreaking_prefixes(code)
    numeric = {each.removesuffix(NUMBERED) for each in listed if each.endswith(NUMBERED)} | {*NUMERIC.get(code, "").split()}
    never = {each for each in listed if not each.endswith(NUMBERED)} | {*NEVER.get(code, "").split()} | FINAL
    return Abbreviations(frozenset(never), frozenset(numeric), frozenset(STARTERS.get(code, "").split()), code in STARTERS)


def nonbreaking_prefixes(language: str) -> list[str]:
    """Moses' list of a language, or else of English; what precedes a number alone ends with `NUMBERED`."""
    lists = moses_lists()
    lines = map(str.strip, lists.get(language, lists["en"]).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@cache
def moses_lists() -> Mapping[str, str]:
    """sacremoses' files of abbreviations by language, from its module of data alone: importing all of it takes 0.2 s."""
    package, prefix = importlib.util.find_spec("sacremoses"), "nonbreaking_prefix."
    data = package and PathFinder.find_spec("_data_nonbreaking_prefixes", package.submodule_search_locations)
    if not (data and data.loader):  # another version of sacremoses
        import sacremoses

        lists = sacremoses.NonbreakingPrefixes()
        return {code: "\n".join(lists.words(code)) for code in lists.available_langs.values()}
    module = importlib.util.module_from_spec(data)
    data.loader.exec_module(module)
    return {name.removeprefix(prefix): text for name, text in module.NONBREAKING_PREFIXES.items() if name.startswith(prefix)}
