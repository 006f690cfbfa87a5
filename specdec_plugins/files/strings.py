"""JSON of translatable strings: all values that are strings, at any depth; keys stay. Strings that are ICU messages."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import Token, block_spans
from specdec_plugins.text.lines import surrogate


def spans(source: str, options: Options) -> Iterator[Span]:
    try:
        json.loads(source, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise Unreadable(error.pos, f"not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(None, f"not JSON that can be read ({error})") from None
    at = source.find('"')
    while at >= 0:
        text, end = scanstring(source, at + 1)
        if surrogate(text):
            raise Unreadable(at, "a string with half of a surrogate pair")
        if not source.startswith(":", WHITESPACE.match(source, end).end()):
            yield Span(at + 1, end - 1, text, partial(escape, ascii_only="\\u" in source[at:end]), lines=True)
        at = source.find('"', end)


def no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def escape(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def message(source: str, options: Options) -> Iterator[Span]:
    """The spans of an ICU message."""
    for span in block_spans(source, [Token("text", 0, len(source), source)], {}):
        yield replace(span, lines=True)
