"""SubRip and WebVTT: the lines below each ``-->``, up to an empty line, with their tags."""

import re
from collections.abc import Iterator
from dataclasses import replace

from specdec_plugins.files import Options, Span, Unreadable, html
from specdec_plugins.files.markup import span_of

TIME = re.compile(r"<\d(?=[\d:.]*>)")  # begins a tag for WebVTT, text for HTML


def spans(source: str, options: Options) -> Iterator[Span]:
    entities = source.lstrip("\ufeff").startswith("WEBVTT")  # SubRip has none
    start, cue = 0, -1
    for line in [*source.splitlines(keepends=True), ""]:
        if cue >= 0 and not line.strip():
            yield from cue_spans(source, cue, start, entities)
            cue = -1
        elif cue < 0 and "-->" in line:
            cue = start + len(line)
        start += len(line)


def cue_spans(source: str, start: int, end: int, entities: bool) -> Iterator[Span]:
    cue = source[start:end]
    try:
        found = html.tokens(TIME.sub("<t", cue) if entities else cue)
    except Unreadable as error:
        raise Unreadable(start + (error.at or 0), error.what) from None
    names = (token.name.partition(".")[0] for token in found)  # <c.red> ends in </c>
    tokens = [each._replace(start=start + each.start, end=start + each.end, name=name) for each, name in zip(found, names)]
    if not entities:
        tokens = [each._replace(text=source[each.start : each.end]) if each.kind == "text" else each for each in tokens]
    if span := span_of(source, tokens, None if entities else {}):
        ends = source[span.start : span.end].splitlines(keepends=True)
        yield replace(span, write=lambda text, doubtful: broken(text, len(ends), ends[0][len(ends[0].rstrip()) :]))


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
