"""YAML: the values that are text. Keys, comments, anchors and the style of each value stay.

PyYAML tells where the values are, quickly where it has libyaml. No document is constructed: no alias is expanded, and no tag
looked up.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.values import is_prose

LONGEST = 4_000_000  # characters of a file, which take libyaml a second, and PyYAML without it fifteen
NESTED = 100  # collections within one another: libyaml takes time quadratic in their number
STRING = "tag:yaml.org,2002:str"
OTHER = re.compile(  # a plain scalar that YAML 1.1 or 1.2 does not read as a string
    r"""(?i:y|n|yes|no|true|false|on|off|null|~|<<|=|[-+]?\.(?:inf|nan)|)|[-+]?\.?\d[\d_,.:]*(?:[eE][-+]?\d+)?|"""
    r"""[-+]?0[xob][\da-fA-F_]+|\d{4}-\d\d?-\d\d?(?:[Tt\s].*)?""",
    re.DOTALL,
)
UNPRINTABLE = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")  # and line breaks
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
HEADER = re.compile(r"([|>][-+\d]*)([^\r\n]*)")
HTML_KEY = re.compile(r"(?:.*_)?html")  # of Rails, whose values are HTML


def spans(source: str, options: Options) -> Iterator[Span]:
    return (span for span in written(source, options) if is_prose(span.text))


def written(source: str, options: Options) -> Iterator[Span]:
    """All values that are strings."""
    if len(source) > LONGEST:
        raise Unreadable(None, f"longer than {LONGEST:,} characters; split it")
    try:
        starts = {each.end_mark.index: each.start_mark.index for each in scalars(source)}
        for event, key, flow in values(source):
            start, end = starts.get(event.end_mark.index, event.end_mark.index), event.end_mark.index
            if event.tag not in (None, "!", STRING) or start == end:
                continue
            if not event.style and not event.tag and OTHER.fullmatch(event.value):
                continue
            raw, form = source[start:end], "html" if HTML_KEY.fullmatch(key) else None
            if event.style in ("|", ">") and event.value.strip():
                yield block(event.value, start, raw, form)
            else:
                write = partial(scalar, style=event.style or "", flow=flow, ascii_only="\\" in raw and raw.isascii())
                yield Span(start, end, event.value, write=write, lines=True, form=form)
    except library().YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = mark.index if mark else getattr(error, "position", None)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "damaged"
        raise Unreadable(None if at is None else min(at, len(source)), f"not YAML ({what})") from None


def library() -> Any:
    with needed("files", "YAML"):
        import yaml
    return yaml


def loader() -> Any:
    return getattr(library(), "CSafeLoader", library().SafeLoader)


def scalars(source: str) -> Iterator[Any]:
    """The tokens of all scalars, without what stands before them, such as anchors."""
    depth = 0
    for token in library().scan(source, Loader=loader()):
        name = type(token).__name__
        depth += name.endswith("StartToken") - name.endswith("EndToken")
        if depth > NESTED:
            raise Unreadable(token.start_mark.index, f"more than {NESTED} collections within one another")
        if name == "ScalarToken":
            yield token


def values(source: str) -> Iterator[tuple[Any, str, bool]]:
    """The events of scalars that are not keys, with their key, which is empty in a list, and whether they are in braces."""
    opened = list[tuple[Any, str | None]]()  # collections, and the key that waits for its value
    for event in library().parse(source, Loader=loader()):
        name = type(event).__name__
        if name.endswith("EndEvent"):
            if name in ("MappingEndEvent", "SequenceEndEvent"):
                opened.pop()
            continue
        if name not in ("ScalarEvent", "AliasEvent", "MappingStartEvent", "SequenceStartEvent"):
            continue
        key: str | None = ""
        if opened and type(opened[-1][0]).__name__ == "MappingStartEvent":
            key = opened[-1][1]
            waiting = (event.value if name == "ScalarEvent" else "") if key is None else None
            opened[-1] = opened[-1][0], waiting
        if name == "ScalarEvent" and key is not None:
            yield event, key, any(each.flow_style for each, _ in opened)
        elif name.endswith("StartEvent"):
            opened.append((event, None))


def scalar(text: str, doubtful: bool, style: str, flow: bool, ascii_only: bool) -> str:
    """A text in a style if it can be, otherwise in quotes."""
    if style == '"' or UNPRINTABLE.search(text):
        return doubly(text, ascii_only)
    if not style and not OTHER.fullmatch(text) and reads_as(f"[{text}, a]" if flow else f"a: {text}\n", text):
        return text
    return doubly(text, False) if not style and "'" in text else "'" + text.replace("'", "''") + "'"


def doubly(text: str, ascii_only: bool) -> str:
    def spelled(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    escaped = "".join(ESCAPES.get(each, each) for each in text)
    return '"' + re.sub("[^ -~]" if ascii_only else UNPRINTABLE, spelled, escaped) + '"'


def reads_as(source: str, text: str) -> bool:
    """Whether YAML reads ``text`` in a document of two scalars: as the first item of a list, or as the value of a key."""
    try:
        events = [event for event in library().parse(source, Loader=loader()) if type(event).__name__ != "StreamEndEvent"]
    except library().YAMLError:
        return False
    found = [event for event in events if type(event).__name__ == "ScalarEvent"]
    own = found[0 if source.startswith("[") else -1] if len(found) == 2 else None
    return own is not None and own.value.rstrip("\n") == text and own.anchor is None and own.tag is None


def block(value: str, start: int, raw: str, form: str | None) -> Span:
    """The span of a block scalar from its header to its last line that is not blank."""
    header = HEADER.match(raw)
    assert header is not None
    kept, folded = raw.rstrip(), raw[0] == ">"
    before = len(value) - len(value.lstrip("\n"))
    text = value.strip("\n")
    after = value[before + len(text) :]
    lines = [line for line in kept[header.end() :].splitlines() if line.strip()]
    indent = len(lines[0]) - len(lines[0].lstrip(" "))
    width, end = max(map(len, lines)) - indent, "\r\n" if "\r\n" in kept else "\n"

    def write(text: str, doubtful: bool) -> str:
        style, text = re.sub(r"\d", "", header[1]), "\n" * before + (unfolded(text) if folded else text)
        wrapped = folded and not re.search(r"^[ \t]", text, re.MULTILINE)  # lines that begin with a space are not folded
        body = laid(text, width) if wrapped else text.split("\n")
        style = style if wrapped else "|" + style[1:]
        found = end.join([style + header[2], *(" " * indent * bool(line) + line for line in body)])
        return found if reads_as(f"a: {found}\n", text) else doubly(text + after, False)

    shown, reads = (refolded(text), unfolded) if folded else (text, str)
    return Span(start, start + len(kept), shown, write=write, reads=reads, lines=True, form=form)


def refolded(text: str) -> str:
    """A folded text with its line ends as the file has them, an empty line between paragraphs."""
    return re.sub(r"\n+", r"\g<0>\n", text)


def unfolded(text: str) -> str:
    return re.sub(r"\n\n*", lambda match: match[0][1:] or " ", text)


def laid(text: str, width: int) -> Iterator[str]:
    """The lines of a folded text; those with several spaces in a row are not wrapped."""
    for line in refolded(text).split("\n"):
        narrow = "  " not in line and "\t" not in line
        yield from (
            textwrap.wrap(line, max(width, 20), break_long_words=False, break_on_hyphens=False) if narrow and line else [line]
        )
