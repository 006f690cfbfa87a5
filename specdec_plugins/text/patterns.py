"""What is protected in translations: one table of expressions. Imports nothing heavy, so that commands check options at once."""

import re

PATTERNS = {
    "code": r"(?<!`)(?P<ticks>`+)(?!`).{1,1000}?(?<!`)(?P=ticks)(?!`)",  # between backticks
    "tag": r"</?[A-Za-z][\w:.-]*(?:\s[^<>]{0,1000})?/?>",
    "url": r"\b(?:https?|ftps?|file|mailto|ssh|git)://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]",
    "e-mail": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "mustache": r"\{\{\{?[^{}]*\}?\}\}",
    "shell": r"\$\{[^{}\s]+\}",
    "ruby": r"%[{<]\w+[}>]|<%[^%]{1,200}%>",  # also ERB
    "icu": r"\{\s*\w+\s*,[^{}]*(?:\{[^{}]*\}[^{}]*)*\}",  # {n, plural, one {# file} other {# files}}
    "python": r"\{[\w.\[\]-]*(?:![rsa])?(?::[^{}\s]*)?\}",  # also ICU's plain {name} and {0}
    "printf": r"%(?:\d+\$|\(\w+\))?[-+#0]{0,5}(?:\d{1,9}|\*)?(?:\.(?:\d{1,9}|\*))?(?:hh?|ll?|[Lqjzt])?"
              r"(?:[diouxXeEfFgGaAcrspn@](?![^\W\d_])|%)",
}  # fmt: skip

# Parts that count by their order: printf's and Python's without a number or name, and tags
ORDERED = re.compile(r"%(?!\d+\$|[(%])|\{(?:![rsa])?(?::[^{}]*)?\}$|</?[A-Za-z]")


def pattern(more: str = "") -> re.Pattern[str]:
    """Everything that is protected. ``more`` is a further expression. Raises ValueError if it is not one."""
    try:
        if more and re.compile(more).search("") is not None:
            raise ValueError(f"'{more:.80}' also matches an empty text")
        return re.compile("|".join([*([f"(?:{more})"] if more else []), *PATTERNS.values()]))
    except re.error as error:
        raise ValueError(f"'{more:.80}' is not a regular expression ({error})") from None
