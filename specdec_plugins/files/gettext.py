"""PO files: the translations of entries that have none. One that needs review is fuzzy.

Only what gettext and polib parse alike is read: one string per line, a keyword before the first. Everything else is refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_plugins.files import Options, Span, Unreadable

MOST_FORMS = 6  # plural forms: what Arabic has
LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
MARK = re.compile(r"[ \t]*(#~\||#\||#~|#|)[ \t]*")  # previous texts of an obsolete entry and of another, obsolete, a comment
KEYWORD = r"msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d{1,3}\]"
STRING = r'"((?:[^"\\]|\\(?:[\\"abfnrtv]|[0-7]{1,3}|x[0-9a-fA-F]{1,2}))*+)"'
STATEMENT = re.compile(rf"(?:({KEYWORD})[ \t]+)?{STRING}[ \t]*")
CODES = {"msgctxt": "c", "msgid": "i", "msgid_plural": "p", "msgstr": "s"} | {f"msgstr[{n}]": str(n) for n in range(MOST_FORMS)}
COMMENT, PREVIOUS = "#", "|"
ENTRY = re.compile(rf"[{COMMENT}{PREVIOUS}]|(c?i(?:s|p\d+))|C?I(?:S|P\d+)")  # of `CODES`, of an obsolete one in upper case
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
TABLE, MEANINGS = str.maketrans(ESCAPES), {escape: character for character, escape in ESCAPES.items()}
ENCODING = re.compile(r"^content-type:.*charset=([^\s;]+)", re.IGNORECASE | re.MULTILINE)


@dataclass
class Text:
    """A keyword, whose line begins at ``line``, and its strings from ``start`` to ``end``: ``raw``, without their quotes."""

    code: str
    line: int
    start: int = 0
    end: int = 0
    raw: str = ""

    @property
    def text(self) -> str:
        """What the strings mean. Raises Unreadable."""
        return re.sub(r"\\(?:[0-7]{1,3}|x..?|.)", self._meaning, self.raw)

    def _meaning(self, escape: re.Match[str]) -> str:
        if escape[0] not in MEANINGS:
            raise Unreadable(self.line, f"the escape {escape[0]} is not supported; write the character itself")
        return MEANINGS[escape[0]]


def spans(source: str, options: Options) -> Iterator[Span]:
    ending = "\r\n" if "\r\n" in source else "\n"
    for entry in entries(source):
        texts, forms = [each for each in entry if each.code in "ip"], entry[-forms_of(entry) :]
        if any(each.raw for each in forms):
            continue
        begin = top = entry[0].line
        if len({line_ends(text.text) for text in texts}) > 1:
            raise Unreadable(texts[1].line, "only one of msgid and msgid_plural begins or ends with a line end, as both must")
        first, last = line_ends(texts[0].text)
        for form, text in zip(forms, [*texts, *texts[-1:] * len(forms)]):

            def write(text: str, doubtful: bool, before=source[begin : form.start], first=first, last=last) -> str:
                text = "\n" * first + text.strip("\n") + "\n" * last if text.strip("\n") else ""
                return f"#, fuzzy{ending}" * doubtful + f'{before}"{text.translate(TABLE)}"'

            yield Span(begin, form.end, text.text, write=write, always=True, lines=True, marked=top)
            begin = form.end


def line_ends(text: str) -> tuple[int, int]:
    """How many line ends a text begins and ends with; gettext wants a translation to have some where its text has."""
    return len(text) - len(text.lstrip("\n")), len(text) - len(text.rstrip("\n"))


def written(source: str, options: Options) -> Iterator[Span]:
    """The translations that a file has."""
    for entry in entries(source):
        yield from (Span(each.start, each.end, each.text) for each in entry[-forms_of(entry) :])


def forms_of(entry: Sequence[Text]) -> int:
    return sum(each.code not in "cip" for each in entry)


def entries(source: str) -> Iterator[Sequence[Text]]:
    """The texts of each entry that is not obsolete. Raises Unreadable."""
    texts, at, seen = statements(source), 0, set[tuple[str, ...]]()
    codes = "".join(each.code for each in texts)
    while at < len(texts):
        match = ENTRY.match(codes, at)
        digits = re.sub(r"\D", "", match[0]) if match else ""
        if not match or not "0123456789".startswith(digits):
            raise Unreadable(texts[at].line, "not an entry of msgctxt, msgid, msgid_plural and msgstr, in this order")
        entry, first, at = texts[at : match.end()], at, match.end()
        if match[1]:
            check(entry, seen)
            while first and texts[first - 1].code == PREVIOUS:
                first -= 1
            entry[0].line = texts[first].line  # flags come before previous texts
            yield entry


def check(entry: Sequence[Text], seen: set[tuple[str, ...]]) -> None:
    """Raises Unreadable for an entry that is there twice, and for a header that declares another encoding than UTF-8."""
    key = tuple(each.code + each.raw for each in entry if each.code in "ci")
    if key in seen:
        raise Unreadable(entry[0].line, "the file has this entry twice")
    seen.add(key)
    charset = ENCODING.search(entry[-1].raw.replace("\\n", "\n")) if key == ("i",) else None
    if charset and charset[1].lower() not in ("utf-8", "utf8", "charset"):  # the last is a template's
        raise Unreadable(entry[-1].line, f"declares the encoding {charset[1][:40]}; convert the file to UTF-8")


def statements(source: str) -> list[Text]:
    """The texts of a file, previous ones (``#|``) too, and, as texts without strings, its comments."""
    found, last, open_string = list[Text](), "", False
    for line in LINE.finditer(source):
        start, content = line.start(), line[0].removesuffix("\n").removesuffix("\r")
        mark = MARK.match(content)
        assert mark is not None
        if mark[1] == "#":
            found.append(Text(COMMENT, start))
            open_string = False
            continue
        if mark.end() == len(content):
            continue
        statement = STATEMENT.fullmatch(content, mark.end())
        if not statement or "\r" in content or (not statement[1] and not (open_string and mark[1] == last)):
            raise Unreadable(start, "not a PO file: this line is neither a comment nor a keyword and one string in closed quotes")
        last, open_string = mark[1], True
        first, end = start + statement.start(2) - 1, start + statement.end(2) + 1
        if statement[1]:
            if statement[1] not in CODES:
                raise Unreadable(start, f"{statement[1]}: an entry has up to {MOST_FORMS} plural forms")
            code = CODES[statement[1]]
            if last:  # of an obsolete entry, or previous
                code = PREVIOUS if last == "#|" else COMMENT if last == "#~|" else code.upper()
            found.append(Text(code, start, first))
        found[-1].end, found[-1].raw = end, found[-1].raw + statement[2]
    return found
