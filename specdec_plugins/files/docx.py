"""DOCX: the paragraphs of the body, headers, footers, notes and comments, and the descriptions of pictures.

A paragraph is translated in markup of our own. Word splits text into many runs; neighbours that look alike are one text here:

    The <g n="1">red</g> house<k t=""><w:r>...</w:r></k> is <h n="0">far away</h>.

``g`` is text in another format than most of the paragraph's, ``h`` an element around runs, such as a link, ``k`` XML that stays,
and ``b`` such XML where a text ends: a tab. A translated paragraph gets a run for each text in a format.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.markup import SPACE, Token, attribute_spans, span_of
from specdec_plugins.files.packages import Package, related
from specdec_plugins.files.xml import ROOT, closings, namespace, tokens

NAMESPACES = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
TEXTS = ("header", "footer", "footnotes", "endnotes", "comments")  # parts beside the body
INLINE = "docx.inline"
AROUND = frozenset(["w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:sdt", "w:sdtContent", "w:dir", "w:bdo"])
ABOUT = frozenset(["w:sdtPr", "w:sdtEndPr", "w:smartTagPr", "w:customXmlPr"])  # what such an element begins with
UNSEEN = frozenset(["w:proofErr", "w:lastRenderedPageBreak", "w:softHyphen"])  # which a translation does without
BREAKS = frozenset(["w:tab", "w:br", "w:cr", "w:ptab"])
LANGUAGE = frozenset(["w:lang", "w:noProof", "w:rPrChange"])  # formats of text that say nothing of a translation's looks
TEXT_FIELDS = re.compile(r"\s*(?:HYPERLINK|TOC)\b", re.IGNORECASE)  # fields whose result is text
SYMBOLS = re.compile(r'="(?:Symbol|Wingdings|Webdings)[ 23]*"|<w:vanish(?:/>| w:val="(?:1|true|on)")')  # glyphs, hidden text
PICTURE = "wp:docPr"
BOXES = 8  # paragraphs within one another
FIELD_PARTS = ("begin", "instruction", "separate", "end")
FIELDS = 20  # fields within one another, which is Word's own limit


def parts(package: Package) -> list[str]:
    """The members that have text, from the package's relationships."""
    main = next((target for kind, target in related(package, "") if kind == "officeDocument"), None)
    if main is None:
        raise Unreadable(None, "not a DOCX file: no part of it is the document")
    others = [target for kind, target in related(package, main) if kind in TEXTS and target in package.members]
    return list(dict.fromkeys([main, *others]))


def spans(source: str, options: Options) -> Iterator[Span]:
    found = tokens(source)
    if namespace(found, "w") not in NAMESPACES:
        raise Unreadable(0, "not WordprocessingML with its usual prefix, w; save the file again with a word processor")
    ends, inside = closings(found), list[int]()  # the ends of open paragraphs
    for index, token in enumerate(found):
        while inside and index > inside[-1]:
            inside.pop()
        if token.kind == "open" and token.name == "w:p":
            inside.append(ends[index])
            if len(inside) > BOXES:
                raise Unreadable(token.start, f"more than {BOXES} paragraphs within one another")
    yield from paragraphs(source, found, ends, 0, len(found))


def paragraphs(source: str, found: Sequence[Token], ends: Sequence[int], first: int, last: int) -> Iterator[Span]:
    """The spans of the paragraphs among some tokens, which may be within one another: a text box is in a paragraph."""
    index = first
    while index < last:
        token = found[index]
        if token.name == PICTURE:
            yield from attribute_spans(source, token, ("descr", "title"))
        if token.kind == "open" and token.name == "w:p":
            begin = index + 1
            while found[begin].name == "w:pPr" or found[begin].kind == "text":
                begin = ends[begin] + 1
            paragraph = Paragraph(source, found, ends)
            paragraph.read(begin, ends[index])
            if span := paragraph.span(found[begin].start, found[ends[index]].start):
                yield span
                index = ends[index]
        index += 1


class Item(NamedTuple):
    """Part of a paragraph. ``raw`` is its XML, and ``text`` what it shows; ``look`` is the format of a text.

    Those of fields begin, ``separate`` and ``end`` them; ``instruction`` is what a field shows.
    """

    kind: Literal["text", "kept", "break", "open", "close", "begin", "instruction", "separate", "end"]
    raw: str
    text: str = ""
    look: str = ""


@dataclass
class Paragraph:
    source: str
    found: Sequence[Token]
    ends: Sequence[int]
    items: list[Item] = field(default_factory=list)

    def raw(self, index: int) -> str:
        """The XML of an element."""
        return self.source[self.found[index].start : self.found[self.ends[index]].end]

    def read(self, first: int, last: int) -> None:
        """Read what an element holds."""
        index = first
        while index < last:
            token, end = self.found[index], self.ends[index]
            if token.name == "w:r":
                self._run(index + 1, end)
            elif token.name in AROUND and token.kind == "open":
                inner = index + 1
                while self.found[inner].name in ABOUT or not self.found[inner].name:
                    inner = self.ends[inner] + 1
                opening = self.source[token.start : self.found[inner].start]
                self.items.append(Item("open", opening))
                self.read(inner, end)
                self.items.append(Item("close", self.source[self.found[end].start : self.found[end].end]))
            elif token.name and token.name not in UNSEEN:
                shown = self._shown(index, end) if token.name == "w:fldSimple" else ""
                self.items.append(Item("kept", self.raw(index), shown))
            index = end + 1

    def _shown(self, first: int, last: int) -> str:
        """The text of all runs in an element."""
        within = self.found[first:last]
        return "".join(token.text for before, token in pairwise(within) if before.name == "w:t")

    def _run(self, first: int, last: int) -> None:
        look, index = "", first
        if first < last and self.found[first].name == "w:rPr":
            look, index = self._look(first), self.ends[first] + 1
        hidden = SYMBOLS.search(look) is not None
        while index < last:
            token, end = self.found[index], self.ends[index]
            text = "-" if token.name == "w:noBreakHyphen" else "".join(each.text for each in self.found[index + 1 : end])
            if token.name == "w:t" and dict(token.attributes).get("xml:space") != "preserve":
                text = text.strip(SPACE)
            kind = self._kind(token)
            raw = run(look, self.raw(index))
            if kind == "text" and hidden:
                self.items.append(Item("kept", raw, "" if "w:vanish" in look else text))
            elif kind == "text":
                self.items.append(Item("text", raw, text, look))
            elif token.name and token.name not in UNSEEN:
                self.items.append(Item(kind, raw, text * (kind == "instruction")))
            index = end + 1

    def _kind(self, token: Token) -> Literal["text", "kept", "break", "begin", "instruction", "separate", "end"]:
        if token.name == "w:fldChar":
            kind = dict(token.attributes).get("w:fldCharType")
            return kind if kind in ("begin", "separate", "end") else "kept"  # type: ignore[return-value]
        if token.name in BREAKS:
            return "break"
        return {"w:t": "text", "w:noBreakHyphen": "text", "w:instrText": "instruction"}.get(token.name, "kept")  # type: ignore[return-value]

    def _look(self, first: int) -> str:
        """The format that a run's properties give, without what says nothing of a translation's looks."""
        kept, index = list[str](), first + 1
        while index < self.ends[first]:
            if self.found[index].name and self.found[index].name not in LANGUAGE:
                kept.append(self.raw(index))
            index = self.ends[index] + 1
        return "".join(kept)

    def span(self, start: int, end: int) -> Span | None:
        """The span of what was read, if it has text."""
        items = joined(with_fields(self.items))
        if not any(item.kind == "text" and item.text.strip() for item in items):
            return None
        text, looks, around = marked_up(items)
        write, reads = (partial(function, looks=looks, around=around) for function in (in_runs, seen))
        return Span(start, end, text, write=write, reads=reads, form=INLINE)


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


def inline(source: str, options: Options) -> Iterator[Span]:
    """The spans of a paragraph in our markup, and those of paragraphs in what it keeps."""
    found = tokens(source, ROOT)[1:-1]
    ends, own, index = closings(found), list[Token](), 0
    while index < len(found):
        token = found[index]
        if token.kind == "open" and token.name in ("k", "b"):
            last = ends[index]
            yield from paragraphs(source, found, ends, index + 1, last)
            shown = dict(token.attributes).get("t") or ""
            if token.name == "b":
                if span := span_of(source, own):
                    yield span
                own = []
            else:
                own.append(Token("kept" if shown else "alone", token.start, found[last].end, shown))
            index = last
        else:
            own.append(token)
        index += 1
    if span := span_of(source, own):
        yield span
