"""SubRip and WebVTT: the lines below each ``-->``, up to an empty line, with their tags."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Token, span_of

LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
TIME = r"\s*(?:\d+:)?\d{1,2}:\d\d[.,]\d{1,3}\s*"
TIMES = re.compile(rf"{TIME}-->{TIME}(?:\s.*)?", re.DOTALL)
TAG = {  # of SubRip, where players know some of HTML's tags and {\an8}; of WebVTT
    False: re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)[^<>\r\n]*>|\{\\[^{}]*\}"),
    True: re.compile(r"<(/?)([^\s.<>]*)[^<>]*>"),
}
ALONE = re.compile(r"\d.*|br|", re.DOTALL)  # names of tags without an end; in WebVTT, times


def spans(source: str, options: Options) -> Iterator[Span]:
    web = source.lstrip("\ufeff").startswith("WEBVTT")
    start, cue = 0, -1
    for line in [*LINE.findall(source), ""]:
        if "-->" in line:
            if cue >= 0:
                raise Unreadable(start, "a time within a cue; write an empty line before it")
            if not TIMES.fullmatch(line):
                raise Unreadable(start, "not the times of a cue, such as 00:01:02,500 --> 00:01:04,000")
            cue = start + len(line)
        elif cue >= 0 and not line.strip():
            yield from cue_spans(source, cue, start, web)
            cue = -1
        start += len(line)


def cue_spans(source: str, start: int, end: int, web: bool) -> Iterator[Span]:
    tokens, at = list[Token](), start
    for match in [*TAG[web].finditer(source, start, end), None]:
        following = match.start() if match else end
        if following > at:
            text = source[at:following]
            if web and "<" in text:
                raise Unreadable(at + text.index("<"), "a tag is not closed")
            tokens.append(Token("text", at, following, unescape(text) if web else text))
        if match:
            name = match[2] or ""
            kind = "alone" if ALONE.fullmatch(name) else "close" if match[1] else "open"
            tokens.append(Token(kind, following, match.end(), name=name if web else name.lower()))  # type: ignore[arg-type]
            at = match.end()
    if span := span_of(source, tokens, None if web else {}):
        ends = re.findall(r"\r\n?|\n", source[span.start : span.end])
        yield replace(span, write=lambda text, doubtful: broken(text.strip(), len(ends) + 1, ends[0] if ends else "\n"))


def broken(text: str, lines: int, end: str) -> str:
    """The text in so many lines of about equal length, unless it has several already; tags are not broken."""
    spaces, inside = list[int](), False
    for index, character in enumerate(text):
        inside = character == "<" or (inside and character != ">")
        spaces += [index] * (character == " " and not inside)
    if "\n" in text or not spaces:
        return text
    chosen = {min(spaces, key=lambda at: abs(at * lines - len(text) * number)) for number in range(1, lines)}
    return "".join(end if index in chosen else character for index, character in enumerate(text))
