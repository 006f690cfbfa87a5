"""Plain text: each line is translated by itself, as without ``-o DIR``."""

from collections.abc import Iterator

from specdec_plugins.files import Options, Span


def spans(source: str, options: Options) -> Iterator[Span]:
    start = 0
    for line in source.split("\n"):
        text = line.strip()
        if text:
            first = start + line.index(text)
            yield Span(first, first + len(text), text, whole=True)
        start += len(line) + 1
