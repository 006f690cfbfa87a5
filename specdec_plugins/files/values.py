"""Tells text from settings in files that hold both: identifiers, paths, URLs, templates and date patterns are not text."""

import re

from specdec_plugins.text.patterns import pattern

CODE = re.compile(
    r"[_/\\@#=$%{}<>|~^*+&\[\]0-9]|[.:]\w|^[.:-]|[a-z][A-Z]|^[a-z]+(?:-[a-z]+)+$|^(?:true|false|null)$"
)  # in one word
DATES = re.compile(r"%[-_^#0]?[A-Za-z]|%[-<{][\w.]+[>}]")  # of strftime, and Ruby's placeholders
LONGEST = 50  # characters of a pattern of dates
DATE_PATTERN = re.compile(  # Java's and Unicode's
    r"(?=.*(?:yy|MM|dd|HH|hh|mm))(?:[^A-Za-z']|'[^']*'|([GyYMLwdDEeaHhkKmsSzZxXQ])\1*+(?![A-Za-z]))++"
)
TEMPLATE = re.compile(r"<%[^%]{1,200}%>|\{%[^%]{1,200}%\}")


def is_prose(text: str) -> bool:
    """Whether a string should be translated."""
    if not any(map(str.isalpha, text)):
        return False
    words = text.split()
    if len(words) == 1 and text.isascii() and CODE.search(words[0]):
        return False
    if len(text) <= LONGEST and DATE_PATTERN.fullmatch(text.strip()):
        return False
    return any(map(str.isalpha, DATES.sub("", pattern().sub("", TEMPLATE.sub("", text)))))
