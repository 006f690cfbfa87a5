"""What is protected in translations: one table of expressions. Imports nothing heavy, so that commands check options at once.

Each expression takes linear time: a lookbehind keeps matches from starting within a word, and neighbouring repetitions share no
character. Names of code are ASCII; letters of other alphabets, accented ones included, belong to words.
"""

import re
from functools import lru_cache

LETTERS = r"A-Za-z0-9_\u00C0-\u024F"  # extend a name
BEGIN, END = f"(?<![{LETTERS}])", f"(?![{LETTERS}])"
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
CHAIN = rf"{NAME}(?:(?:\.|::|->|\\){NAME}){{0,20}}"
FOLDER = r"[A-Za-z0-9_.@%+-]"
GROUPED = r"[0-9]{1,3}(?:\.[0-9]{2,3})*\.[0-9]{3}(?![0-9]|\.[0-9])"  # 1.000.000
DATED = r"[0-9]{1,2}\.(?:[0-9]{1,2}\.(?:1[5-9]|20)|0[0-9]\.)[0-9]{2}(?![0-9]|\.[0-9])"  # 17.5.2026

PATTERNS = {
    "code": r"(?<!`)(?P<ticks>`+)(?!`).{1,1000}?(?<!`)(?P=ticks)(?!`)",  # between backticks
    "tag": r"</?[A-Za-z][\w:.-]*(?:\s[^<>]{0,1000})?/?>",
    "url": r"\b(?:https?|ftps?|file|mailto|ssh|git)://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]",
    "e-mail": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "mustache": r"\{\{\{?[^{}]*\}?\}\}",
    "shell": r"\$\{[^{}\s]+\}|\$[A-Za-z_][A-Za-z0-9_]*(?:(?:::|->)[A-Za-z_][A-Za-z0-9_]*(?:\(\))?){0,20}",  # $HOME, PHP's $a->b()
    "ruby": r"%[{<]\w+[}>]|<%[^%]{1,200}%>",  # also ERB
    "icu": r"\{\s*\w+\s*,[^{}]*(?:\{[^{}]*\}[^{}]*)*\}",  # {n, plural, one {# file} other {# files}}
    "python": r"\{[\w.\[\]-]*(?:![rsa])?(?::[^{}\s]*)?\}",  # also ICU's plain {name} and {0}
    "printf": r"%(?:\d+\$|\(\w+\))?[-+#0]{0,5}(?:\d{1,9}|\*)?(?:\.(?:\d{1,9}|\*))?(?:hh?|ll?|[Lqjzt])?"
    r"(?:[diouxXeEfFgGaAcrspn@](?![^\W\d_])|%)",
    "option": rf"(?<![{LETTERS}-])(?:--[a-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?:=[A-Za-z0-9_.:/-]*[A-Za-z0-9])?"  # --date=iso
    rf"|-[A-Za-z]|-[a-z]{{2}})(?![{LETTERS}-])",  # -f, -tz
    "absolute path": rf"(?<![{LETTERS}/.~<>)\]}}*:-])(?:~|\.\.?)?(?=/[A-Za-z_.@])(?!/[A-Z][a-z]+(?![{LETTERS}/.@%+-]))"
    rf"(?:/{FOLDER}*[A-Za-z0-9_])+/?{END}",
    "relative path": rf"(?<![{LETTERS}/.~@%+-])(?:{FOLDER}{{1,100}}/){{1,20}}[A-Za-z0-9_-]{{1,100}}"  # with an ending
    rf"(?:\.[A-Za-z0-9_-]{{1,50}}){{0,9}}\.(?:[a-z][a-z0-9]{{0,9}}|[A-Z]{{2,4}}){END}",
    "drive": r"\b[A-Za-z]:\\[^\s\"'<>|,;]*[A-Za-z0-9_]",
    "call": rf"{BEGIN}{CHAIN}\(\)|(?<![{LETTERS}.-])[a-z_][a-z0-9_.-]*\([1-9][a-z]?\)",  # f(), and a page of the manual: open(2)
    "member": rf"{BEGIN}{NAME}(?:\.{NAME}){{0,20}}(?:(?:::|->|\\){NAME})+{END}",
    "underscores": rf"{BEGIN}(?:{NAME}\.){{0,20}}(?:__)?[A-Za-z0-9]+(?:_+[A-Za-z0-9]+)+(?:__)?(?:\.{NAME})*{END}"
    rf"|{BEGIN}__[A-Za-z0-9]+(?:__)?{END}",
    "dots": rf"(?<![{LETTERS}.-])[A-Za-z_][A-Za-z0-9_-]+(?:\.[A-Za-z0-9_]+)*"  # not e.g., U.S., No.7 or the end.Of a sentence
    rf"\.(?:[a-z_][A-Za-z0-9_]*|[A-Z]{{2,}}|[A-Z][a-z]+[A-Z0-9_][A-Za-z0-9_]*){END}",
    "hidden file": rf"(?<![^\s(\[\"'«„“,;])\.(?:[a-z][A-Za-z0-9_]+|[A-Z]{{2,}})(?:[.-][a-z0-9_]+)*{END}",
    "digits": rf"{BEGIN}[A-Za-z]+[0-9][A-Za-z0-9]*(?:\.[0-9]+)*{END}",  # IPv4, f1b8411, python3.11
    "capitals": rf"{BEGIN}(?=[A-Za-z0-9]{{4}})[a-z]+[A-Z][A-Za-z0-9]*{END}",
    "hexadecimal": rf"{BEGIN}(?:0x[0-9A-Fa-f]+|(?=[0-9]{{1,63}}[a-f])[0-9a-f]{{7,64}}"
    rf"|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}){END}|#(?:[0-9A-Fa-f]{{6}}|[0-9A-Fa-f]{{8}}){END}",
    "version": rf"(?<![{LETTERS}.,-])(?!{GROUPED}|{DATED})"
    rf"(?:v?[0-9]+(?:\.[0-9]+){{2,}}|v[0-9]+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)*\.x)"
    rf"(?:-?(?:rc|alpha|beta|dev|[ab])[0-9]*|/[0-9]+)?{END}",  # 3.0.0rc1, 2.x, 10.0.0.0/8
}

# Parts that count by their order: printf's and Python's without a number or name, and tags
ORDERED = re.compile(r"%(?!\d+\$|[(%])|\{(?:![rsa])?(?::[^{}]*)?\}$|</?[A-Za-z]")


@lru_cache(8)
def pattern(more: str = "") -> re.Pattern[str]:
    """Everything that is protected. ``more`` is a further expression. Raises ValueError if it is not one."""
    try:
        if more and re.compile(more).search("") is not None:
            raise ValueError(f"'{more:.80}' also matches an empty text")
        return re.compile("|".join([*([f"(?:{more})"] if more else []), *PATTERNS.values()]))
    except re.error as error:
        raise ValueError(f"'{more:.80}' is not a regular expression ({error})") from None
