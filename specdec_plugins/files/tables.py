"""CSV and TSV (RFC 4180, separated by commas or tabs): the text in the columns that are named."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from specdec_plugins.files import Options, Span, Unreadable

OTHERS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
Field = tuple[int, int, str]  # the first character, the one after the last, and the text


def spans(source: str, options: Options, separator: str) -> Iterator[Span]:
    if not options.columns:
        raise Unreadable(None, "a table: name its columns with --columns, such as --columns 2 or --columns title,text")
    columns: list[int] | None = None
    single = Single()
    for row in rows(source, separator):
        single.note(row)
        if columns is None:
            columns, header = chosen(options.columns, [text for _, _, text in row])
            if header:
                continue
        for column in columns:
            if column < len(row):
                start, end, text = row[column]
                how = partial(write, separator=separator, quoted=source[start : start + 1] == '"')
                yield Span(start, end, text, write=how, lines=True)
    single.check()


commas, tabs = (partial(spans, separator=separator) for separator in ",\t")


class Single:
    """Detects a wrong separator: every row has one field, and in each another separator occurs equally often."""

    def __init__(self) -> None:
        self.rows, self.counts = 0, {other: set[int]() for other in OTHERS}

    def note(self, row: Sequence[Field]) -> None:
        self.rows += 1
        for other, counts in self.counts.items():
            if len(counts) < 2:
                text = row[0][2]
                counts.add(text.count(other) - text.count(other + " ") if len(row) == 1 else -self.rows)

    def check(self) -> None:
        """Raises Unreadable."""
        for other, name in OTHERS.items():
            if self.rows > 1 and len(self.counts[other]) == 1 and max(self.counts[other]) > 0:
                raise Unreadable(0, f"seems to be separated by {name}; .csv has commas, .tsv tabs")


def chosen(columns: Sequence[str], first: Sequence[str]) -> tuple[list[int], bool]:
    """The columns from 0, and whether the first row is a header, because it has their names."""
    if all(column.isdecimal() for column in columns) and not set(columns) <= set(first):
        if 0 in map(int, columns):
            raise Unreadable(None, "columns are numbered from 1, not from 0")
        return [int(column) - 1 for column in columns], False
    if missing := [column for column in columns if column not in first]:
        raise Unreadable(0, f"no column is named {missing[0]!r}; there are {', '.join(first)[:200]}")
    return [first.index(column) for column in columns], True


def rows(source: str, separator: str) -> Iterator[list[Field]]:
    """The fields of each row."""
    ending = re.compile(rf"{separator}|\r\n?|\n|\Z")
    at, row = 0, list[Field]()
    while at < len(source) or row:
        start, text = at, ""
        if source.startswith('"', at):
            while at == start or source.startswith('"', at):
                at = source.find('"', at + 1) + 1
                if not at:
                    raise Unreadable(start, "a quoted field is not closed")
            text = source[start + 1 : at - 1].replace('""', '"')
        match = ending.search(source, at)
        assert match is not None
        if match.start() > at > start:
            raise Unreadable(start, "a quoted field goes on after its quotes")
        row.append((start, match.start(), text or source[at : match.start()]))
        at = match.end()
        if match[0] != separator:
            yield row
            row = []


def write(text: str, doubtful: bool, separator: str, quoted: bool) -> str:
    if quoted or text.startswith('"') or any(each in text for each in (separator, "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text
