"""PO files, by polib: the translations of entries that have none. One that needs review is fuzzy."""

from collections.abc import Iterator
from itertools import accumulate

from specdec_plugins.extras import needed
from specdec_plugins.files import Options, Span, Unreadable

MOST_FORMS = 6  # plural forms: what Arabic has


def spans(source: str, options: Options) -> Iterator[Span]:
    with needed("files", "PO"):
        import polib
    try:
        entries = polib.pofile(source + "\n")  # with the line end it cannot be the name of a file, which polib would read
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise Unreadable(None, f"not a PO file ({error})") from None
    lines = source.splitlines(keepends=True)  # as polib counts them
    starts, lines = [0, *accumulate(map(len, lines))], [line.lstrip() for line in lines]
    for entry in entries:
        if entry.obsolete or entry.msgstr or any(entry.msgstr_plural.values()):
            continue
        number = max(0, entry.linenum - 1)
        while not lines[number].startswith("msg"):
            number += 1
        top = begin = starts[number]
        texts = [entry.msgid]
        while number < len(lines) and not lines[number].startswith("msgstr"):
            number += 1
        if len(entry.msgstr_plural) > MOST_FORMS:
            raise Unreadable(top, f"an entry with over {MOST_FORMS} plural forms")
        while number < len(lines) and lines[number].startswith(("msgstr", '"')):
            if lines[number].startswith("msgstr"):
                quotes = source.index('""', starts[number])

                def write(text: str, doubtful: bool, first=begin, last=quotes) -> str:
                    return "#, fuzzy\n" * doubtful + f'{source[first:last]}"{polib.escape(text)}"'

                yield Span(begin, quotes + 2, texts[-1], write=write, always=True, lines=True, marked=top)
                begin, texts = quotes + 2, [entry.msgid_plural]
            number += 1
