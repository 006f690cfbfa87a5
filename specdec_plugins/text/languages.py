"""Language codes: which of a model's languages a code of another standard means.

Models name languages as ISO 639-1 (``fr``), ISO 639-3 (``fra``), with a script (``fra_Latn``) or with a region (``fr_XX``). A
code of any of these kinds means a model's language if that is the only one it can mean.
"""

from collections.abc import Collection
from difflib import get_close_matches
from functools import lru_cache

# ISO 639-1 and the ISO 639-3 code of the same language.
_CODES = """
aa aar ab abk af afr ak aka am amh an arg ar ara as asm av ava ay aym az aze ba bak be bel bg bul bi bis bm bam bn ben bo bod
br bre bs bos ca cat ce che ch cha co cos cr cre cs ces cv chv cy cym da dan de deu dv div dz dzo ee ewe el ell en eng eo epo
es spa et est eu eus fa fas ff ful fi fin fj fij fo fao fr fra fy fry ga gle gd gla gl glg gn grn gu guj gv glv ha hau he heb
hi hin hr hrv ht hat hu hun hy hye hz her ia ina id ind ie ile ig ibo ii iii ik ipk io ido is isl it ita iu iku iw heb ja jpn
jv jav jw jav ka kat kg kon ki kik kj kua kk kaz kl kal km khm kn kan ko kor kr kau ks kas ku kur kv kom kw cor ky kir la lat
lb ltz lg lug li lim ln lin lo lao lt lit lu lub lv lav mg mlg mh mah mi mri mk mkd ml mal mn mon mr mar ms msa mt mlt my mya
na nau nb nob nd nde ne nep ng ndo nl nld nn nno no nor nr nbl ns nso nv nav ny nya oc oci oj oji om orm or ori os oss pa pan
pi pli pl pol ps pus pt por qu que rm roh rn run ro ron ru rus rw kin sa san sc srd sd snd se sme sg sag sh hbs si sin sk slk
sl slv sm smo sn sna so som sq sqi sr srp ss ssw st sot su sun sv swe sw swa ta tam te tel tg tgk th tha ti tir tk tuk tl tgl
tn tsn to ton tr tur ts tso tt tat tw twi ty tah ug uig uk ukr ur urd uz uzb ve ven vi vie vo vol wa wln wo wol xh xho yi yid
yo yor za zha zh zho zu zul
"""
_THREE = dict(zip(_CODES.split()[::2], _CODES.split()[1::2]))
# Macrolanguages of ISO 639-3, each before those of its languages that models name.
_MACRO = """
aka aka twi; ara arb acm acq aeb ajp apc ars ary arz; aym ayr; aze azj azb; din dik; est ekk; fas pes prs; ful fuv; hbs bos hrv
srp; kau knc; kon kng; kur kmr ckb; lav lvs ltg; mlg plt; mon khk; msa zsm zlm; nep npi; nor nob nno; ori ory; orm gaz; pus pbt;
que quy; sqi als; swa swh; uzb uzn; yid ydd; zho cmn yue
"""
_PARTS = {lang: parts for lang, *parts in map(str.split, _MACRO.split(";"))}
LISTED = 12  # languages in an error


def language(asked: str, known: Collection[str], what: str) -> str:
    """The code among ``known`` that ``asked`` means. Raises ValueError naming the nearest codes if it is unknown or ambiguous.

    ``what`` names the languages in errors, such as ``the model's target languages``.
    """
    if asked in known:
        return asked
    lang, script = _parts(asked)
    exact = [code for code in known if _parts(code) in ((lang, script), (lang, "")) or (not script and _parts(code)[0] == lang)]
    same = [
        code for code in exact if _parts(code) == (lang, script)
    ]  # of a language and the same in another script, the language
    exact = same if len(same) == 1 else exact
    found = exact or [code for code in known if _parts(code)[0] in _PARTS.get(lang, ())]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{what}: '{asked:.40}' may be {' or '.join(sorted(found)[:LISTED])}; name one of them")
    near = get_close_matches(asked, known, 4, 0.5)
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    rest = "" if len(known) <= LISTED else f" and {len(known) - LISTED} more"
    raise ValueError(f"{what} are {', '.join(sorted(known)[:LISTED])}{rest}; '{asked:.40}' is none of them{hint}")


@lru_cache(1000)
def two_letters(code: str) -> str | None:
    """The ISO 639-1 code of a language; None if it has none, such as a group of languages."""
    lang = _parts(code)[0]
    return next((short for short, long in _THREE.items() if long == lang), None)


def _parts(code: str) -> tuple[str, str]:
    """ISO 639-3 and the script, if the code has one; a region is dropped."""
    lang, *rest = code.replace("-", "_").split("_")
    lang = lang.lower()
    return _THREE.get(lang, lang), next((each.title() for each in rest if len(each) == 4), "")
