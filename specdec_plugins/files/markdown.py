"""Markdown: CommonMark with tables and strikethrough, by markdown-it-py. Code, HTML blocks and front matter stay."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.files import Options, Span, Unreadable, html
from specdec_plugins.files.emphasis import Tag, arranged
from specdec_plugins.files.markup import Token, span_of, spelled

LONGEST = 50_000  # characters of a paragraph: a hostile one takes the parser time quadratic in its length
SPACED_BREAK = re.compile(r"(?<! ) (?= *(?:  |\\)\r?\n)")  # the space that a hard break is for the model
ENTITY = re.compile(r"&(?=#?[0-9A-Za-z]+;)")
SPECIAL = "\\`*_[]<|"
BLOCK = r"((?:\A|\n)[ \t{}]*)(?:(\d+)(?=[.)]\s|[.)]\Z)|(?=(?:[-+]|#{{1,6}})(?:\s|\Z)|~~~{}|(?:-+|=+)[ \t\r]*(?:\n|\Z)))"
FENCES = ("---", "+++")  # around front matter in YAML or TOML
CLOSING = re.compile(r"(?:(?<=\s)|\A)(#+\s*)\Z")
OUTSIDE, IN_QUOTE = re.compile(BLOCK.format("", "|>")), re.compile(BLOCK.format(">", ""))  # lines that would begin a block


def spans(source: str, options: Options) -> Iterator[Span]:
    parser, lines, opened = make_parser(), Lines(source), ""
    environment: dict[str, Any] = {}  # link definitions
    for block in parser.parse(lines.body, environment):
        if block.type == "inline" and block.content:
            if len(block.content) > LONGEST:
                raise Unreadable(lines.bounds[block.map[0]][0], f"a paragraph of over {LONGEST:,} characters")
            children = parser.inline.parse(block.content, parser, environment, [])
            if places := lines.places(block.content, block.map, opened in ("th_open", "td_open")):
                yield from paragraph(source, block.content, places, children, opened == "paragraph_open")
        opened = block.type


def make_parser() -> Any:
    with needed("files", "Markdown"):
        from markdown_it import MarkdownIt, rules_inline
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.disable(["inline", "text_join"])  # `spans` parses paragraphs itself
    for name in ("link", "image"):
        parser.inline.ruler.at(name, with_end(getattr(rules_inline, name)))
    return parser


def with_end(rule: Callable[[Any, bool], bool]) -> Callable[[Any, bool], bool]:
    """A rule that notes where its last token ends, which the token does not tell."""

    def run(state: Any, silent: bool) -> bool:
        found = rule(state, silent)
        if found and not silent:
            state.tokens[-1].meta["end"] = state.pos
        return found

    return run


class Lines:
    """The lines of a file as the parser counts them, each as its first character and the one after its last."""

    def __init__(self, source: str):
        ends = [match.span() for match in re.finditer(r"\r\n?|\n", source)]
        self.source, self.reached = source, 0  # the end of the last table cell
        self.bounds = [(start, end) for (_, start), (end, _) in pairwise([(0, 0), *ends, (len(source), len(source))])]
        texts, self.body = [source[start:end] for start, end in self.bounds], source
        if texts[0] in FENCES and texts[0] in texts[1:]:  # front matter, blanked
            count = texts.index(texts[0], 1) + 1
            texts[:count] = [""] * count
            self.body = "\n".join(texts)

    def places(self, content: str, rows: Sequence[int], cell: bool) -> list[int]:
        """The character of the file that each of a block's text is, and the one after it; empty if not all are found."""
        places: list[int] = []
        for text, (start, stop) in zip(content.split("\n"), self.bounds[slice(*rows)]):
            line, words = self.source[start:stop].rstrip(), text.rstrip()
            if cell:
                spelled = words.replace("|", "\\|")
                found = self.source.find(spelled, max(start, self.reached), stop)
                self.reached = found + len(spelled)
            elif line.endswith(words):
                found = start + len(line) - len(words)
            else:  # a heading's closing signs follow
                found = self.source.find(words, start, stop)
            if found < 0:
                return []
            widths = [1 + (cell and character == "|") for character in text]
            places += accumulate(widths, initial=found)
        return places if len(places) == len(content) + 1 else []


def text_of_paragraph(text: str, doubtful: bool, block: re.Pattern[str]) -> str:
    """A translation without lines that begin another block, such as a list, or make it a heading."""
    return block.sub(r"\1\2\\", SPACED_BREAK.sub("", text.lstrip()))


def text_of_heading(text: str, doubtful: bool) -> str:
    """A translation without the signs that close a heading."""
    return CLOSING.sub(r"\\\1", text.strip())


def paragraph(source: str, content: str, places: Sequence[int], children: Sequence[Any], lines: bool) -> Iterator[Span]:
    """The span of a paragraph, heading or cell, after those of the descriptions of its images; none if it is not understood.

    Only a paragraph has ``lines`` that could begin another block.
    """
    found = list(walk(content, children))
    if not found or found[-1].end != len(content):
        return
    tokens = [token._replace(start=places[token.start], end=places[token.end]) for token in found]
    texts = [(token.text, source[token.start : token.end]) for token in tokens if token.kind == "text"]
    literal = "".join(text for text, raw in texts if text == raw)
    escapes = {character: "\\" + character for character in SPECIAL if character not in literal}
    escapes |= {text: raw for text, raw in reversed(texts) if raw and text != raw and len(text) == 1}
    table = str.maketrans(escapes)
    for token in tokens:
        for _, text in token.attributes:
            start = token.start + len("![")
            if text and source.startswith(text, start):
                yield Span(start, start + len(text), text, partial(spelled, table=table))
    if span := span_of(source, whole_links(source, tokens), escapes):
        quoted = any(re.search(r"\n[ \t]*>", source[token.start : token.end]) for token in tokens)
        write = partial(text_of_paragraph, block=IN_QUOTE if quoted else OUTSIDE)
        escape = partial(escaped, escape=span.escape, entities="&" in escapes)
        tags = [Tag.of(n, mark, source[slice(*place)]) for n, (mark, place) in enumerate(zip(span.marks, span.places))]
        arrange = partial(arranged, tags=tags)
        span = replace(span, escape=escape, arrange=arrange)
        yield replace(span, write=write if lines else text_of_heading)


def escaped(text: str, escape: Callable[[str], str], entities: bool) -> str:
    """The text without entities, unless it has them for ``&``."""
    return escape(text) if entities else "\\&".join(map(escape, ENTITY.split(text)))


def whole_links(source: str, tokens: Sequence[Token]) -> list[Token]:
    """The tokens, with a link whose text also names its reference as one that is kept, such as ``[text]``."""
    found: list[Token] = []
    for token in tokens:
        found.append(token)
        if token.kind == "close" and token.name == "link" and source[token.start : token.end] in ("]", "][]"):
            first = next(n for n in reversed(range(len(found))) if found[n].kind == "open" and found[n].name == "link")
            text = "".join(each.text for each in found[first:])
            found[first:] = [Token("kept", found[first].start, token.end, text)]
    return found


def walk(content: str, children: Sequence[Any]) -> Iterator[Token]:
    """The tokens of a paragraph with their places, which the parser does not tell. Ends early where it loses its way."""
    at = 0
    for child in (child for child in children if child.markup != "autolink" and (child.type, child.content) != ("text", "")):
        token = token_at(content, at, child)
        if token is None or token.end < token.start:
            return
        if child.type == "hardbreak":
            yield Token("text", at, at, " ")
        yield token
        at = token.end


def token_at(content: str, at: int, child: Any) -> Token | None:
    """A token of the parser as one of ours, if it is at this place."""
    found = content.startswith(child.content, at)
    if child.type == "text" and content[at : at + 1] == "<" and not found:
        end = content.find(">", at) + 1  # an autolink, whose text may be spelled otherwise
        return Token("kept", at, end, content[at + 1 : end - 1])
    if child.type == "text":
        return Token("text", at, at + len(child.content), child.content) if found else None
    if child.type == "text_special":
        return Token("text", at, at + len(child.markup), child.content)
    if child.type in ("softbreak", "hardbreak"):
        end = content.find("\n", at) + 1
        end += len(content[end:]) - len(content[end:].lstrip(" \t"))
        return Token("text", at, end, "\n") if child.type == "softbreak" else Token("alone", at, end)
    if child.type == "code_inline":
        return Token("kept", at, closing(content, at, len(child.markup)), child.content)
    if child.type == "image":
        plain = all(each.type == "text" for each in child.children or ())
        return Token("alone", at, child.meta["end"], attributes=[("alt", child.content)] * plain)
    if child.type == "html_inline":
        return html.markup(child.content, 0)._replace(start=at, end=at + len(child.content), attributes=())
    if child.type == "link_close":
        return Token("close", at, child.meta["end"], name="link")
    if not child.nesting:
        return None
    name = "link" if child.type == "link_open" else child.tag
    return Token("open" if child.nesting > 0 else "close", at, at + (len(child.markup) or len("[")), name=name)


def closing(content: str, at: int, size: int) -> int:
    """The end of code that begins with ``size`` backticks: after as many."""
    runs = re.compile("`+").finditer(content, at + size)
    return next((run.end() for run in runs if run.end() - run.start() == size), -1)
