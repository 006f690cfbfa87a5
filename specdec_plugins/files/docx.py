"""DOCX: the paragraphs of the body, headers, footers, notes and comments, and the descriptions of pictures.

A paragraph is translated in markup of our own (`docx_runs.py`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

from specdec_plugins.files import Options, Span, Unreadable
from specdec_plugins.files.docx_runs import Item, in_runs, joined, marked_up, run, seen, with_fields
from specdec_plugins.files.markup import SPACE, Token, attribute_spans, span_of
from specdec_plugins.files.packages import Package, related
from specdec_plugins.files.xml import ROOT, closings, namespace, tokens

NAMESPACES = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
TEXTS = ("header", "footer", "footnotes", "endnotes", "comments")  # parts beside the body
INLINE = "docx.inline"
AROUND = frozenset("w:hyperlink w:ins w:moveTo w:smartTag w:customXml w:sdt w:sdtContent w:dir w:bdo".split())
ABOUT = frozenset("w:sdtPr w:sdtEndPr w:smartTagPr w:customXmlPr".split())  # what such an element begins with
UNSEEN = frozenset("w:proofErr w:lastRenderedPageBreak w:softHyphen".split())  # which a translation does without
BREAKS = frozenset("w:tab w:br w:cr w:ptab".split())
LANGUAGE = frozenset(["w:lang", "w:noProof", "w:rPrChange"])  # formats of text that say nothing of a translation's looks
SYMBOLS = re.compile(r'="(?:Symbol|Wingdings|Webdings)[ 23]*"|<w:vanish(?:/>| w:val="(?:1|true|on)")')  # glyphs, hidden text
PICTURE = "wp:docPr"
BOXES = 8  # paragraphs within one another


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
