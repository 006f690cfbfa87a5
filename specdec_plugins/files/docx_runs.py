"""A paragraph of DOCX as a text in markup of our own, and back.

Word splits text into many runs; neighbours that look alike are one text here:

    The <g n="1">red</g> house<k t=""><w:r>...</w:r></k> is <h n="0">far away</h>.

``g`` is text in another format than most of the paragraph's, ``h`` an element around runs, such as a link, ``k`` XML that stays,
and ``b`` such XML where a text ends: a tab. A translated paragraph gets a run for each text in a format.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from specdec_plugins.files.xml import ROOT, closings, tokens

TEXT_FIELDS = re.compile(r"\s*(?:HYPERLINK|TOC)\b", re.IGNORECASE)  # fields whose result is text
FIELD_PARTS = ("begin", "instruction", "separate", "end")
FIELDS = 20  # fields within one another, which is Word's own limit


class Item(NamedTuple):
    """Part of a paragraph. ``raw`` is its XML, and ``text`` what it shows; ``look`` is the format of a text.

    Those of fields begin, ``separate`` and ``end`` them; ``instruction`` is what a field shows.
    """

    kind: Literal["text", "kept", "break", "open", "close", "begin", "instruction", "separate", "end"]
    raw: str
    text: str = ""
    look: str = ""


def run(look: str, inner: str) -> str:
    return f"<w:r>{f'<w:rPr>{look}</w:rPr>' if look else ''}{inner}</w:r>"


def with_fields(items: Sequence[Item]) -> list[Item]:
    """The items, with each field that ends in the paragraph as an element around text, or as one that is kept."""
    done, begun = list[Item](), list[int]()
    for item in items:
        if item.kind == "begin" and len(begun) < FIELDS:
            begun.append(len(done))
        done.append(item)
        if item.kind != "end" or not begun:
            continue
        first = begun.pop()
        whole = done[first:]
        kinds = [each.kind for each in whole]
        middle = kinds.index("separate") + 1 if "separate" in kinds else len(whole) - 1
        head, result = whole[:middle], whole[middle:-1]
        if not is_balanced(head) or not is_balanced(result):  # it ends in another element than it begins in
            continue
        if TEXT_FIELDS.match("".join(each.text for each in head if each.kind == "instruction")):
            done[first:] = [Item("open", "".join(each.raw for each in head)), *result, Item("close", item.raw)]
        else:
            shown = "".join(each.text for each in result if each.kind in ("text", "kept"))
            done[first:] = [Item("kept", "".join(each.raw for each in whole), shown)]
    return [Item("kept", item.raw) if item.kind in FIELD_PARTS else item for item in done]


def is_balanced(items: Sequence[Item]) -> bool:
    """Whether each element among the items is whole."""
    depths = list(accumulate((item.kind == "open") - (item.kind == "close") for item in items))
    return not depths or (min(depths) >= 0 and not depths[-1])


def joined(items: Sequence[Item]) -> list[Item]:
    """The items, with adjacent texts in one format as one. White space has the format of what it follows."""
    done, texts = list[Item](), list[str]()  # the texts of what becomes the next item

    def end() -> None:
        if done and done[-1].kind == "text":
            done[-1] = done[-1]._replace(text="".join(texts))

    for item in items:
        after_text = bool(done) and done[-1].kind == "text" == item.kind
        if after_text and (item.look == done[-1].look or not item.text.strip()):
            texts.append(item.text)
        elif item.kind != "text" or item.text:
            end()
            done.append(item)
            texts = [item.text]
    end()
    return done


@dataclass
class Level:
    """A paragraph, or an element in it, with the format of most of its letters."""

    letters: Counter[str] = field(default_factory=Counter)  # by format
    opening: str = ""
    closing: str = ""
    look: str = ""


def levels_of(items: Sequence[Item]) -> tuple[list[Level], list[Level]]:
    """The elements of a paragraph, the first of which is itself, and the one that each item is in."""
    levels, stack, owners = [Level()], [0], list[Level]()
    for item in items:
        owners.append(levels[stack[-1]])
        if item.kind == "text":
            levels[stack[-1]].letters[item.look] += len(item.text)
        elif item.kind == "open":
            stack.append(len(levels))
            levels.append(Level(opening=item.raw))
        elif item.kind == "close":
            levels[stack.pop()].closing = item.raw
    for level in levels:
        level.look = level.letters.most_common(1)[0][0] if level.letters else ""
    return levels, owners


def marked_up(items: Sequence[Item]) -> tuple[str, list[str], list[Level]]:
    """A paragraph in our markup, its formats and its elements."""
    levels, owners = levels_of(items)
    numbers = {look: n for n, look in enumerate(dict.fromkeys(item.look for item in items if item.kind == "text"))}
    pieces, current, opened = list[str](), "", 0
    for item, owner in zip(items, owners):
        wanted = current if item.kind == "kept" else ""
        if item.kind == "text" and item.look != owner.look:
            wanted = f'<g n="{numbers[item.look]}">'
        if wanted != current:
            pieces += ["</g>" * bool(current), wanted]
            current = wanted
        if item.kind == "text":
            pieces.append(escape(item.text))
        elif item.kind == "open":
            opened += 1
            pieces.append(f'<h n="{opened}">')
        elif item.kind == "close":
            pieces.append("</h>")
        else:
            pieces.append(f"<k t={quoteattr(item.text)}>{item.raw}</k>" if item.kind == "kept" else f"<b>{item.raw}</b>")
    return "".join([*pieces, "</g>" * bool(current)]), list(numbers), levels


def in_runs(text: str, doubtful: bool, looks: Sequence[str], around: Sequence[Level]) -> str:
    """A paragraph's XML from our markup."""
    return "".join(
        run(look, f'<w:t xml:space="preserve">{escape(inner)}</w:t>') if is_text else inner
        for inner, look, is_text in pieces(text, looks, around)
    )


def seen(text: str, looks: Sequence[str], around: Sequence[Level]) -> str:
    """What a paragraph shows: its words with their formats, whatever runs they are in, and its elements."""
    found, last = list[str](), ""
    for inner, look, is_text in pieces(text, looks, around):
        if not is_text or inner.strip():
            found += [f"<{look}>" * (is_text and look != last), "".join(inner.split()) if is_text else inner]
            last = look if is_text else last
    return "".join(found)


def pieces(text: str, looks: Sequence[str], around: Sequence[Level]) -> Iterator[tuple[str, str, bool]]:
    """The texts of a paragraph in our markup with their formats, and the XML between them, which are not text."""
    found = tokens(text, ROOT)[1:-1]
    ends, words = closings(found), list[str]()
    stack = [around[0].look]  # formats
    closing = list[str]()  # of open elements
    index = 0
    while index < len(found):
        token = found[index]
        if token.kind == "text":
            words.append(token.text)
        elif words:
            yield "".join(words), stack[-1], True
            words = []
        if token.kind == "close":
            stack.pop()
            yield closing.pop(), "", False
        elif token.kind == "open" and token.name in ("k", "b"):
            yield text[token.end : found[ends[index]].start], "", False
            index = ends[index]
        elif token.kind == "open":
            number = int(dict(token.attributes)["n"] or 0)
            stack.append(looks[number] if token.name == "g" else around[number].look)
            closing.append("" if token.name == "g" else around[number].closing)
            yield "" if token.name == "g" else around[number].opening, "", False
        index += 1
    if words:
        yield "".join(words), stack[-1], True
