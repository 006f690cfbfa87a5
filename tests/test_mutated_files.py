"""Files with damage, and translations that hold markup: the result is what independent parsers expect, or the file is refused."""

import csv
import html
import io
import json
import random
import re
import subprocess
from collections import Counter
from functools import cache
from shutil import which

import pytest
from conftest import ROOT
from test_files import Fake, translated

from specdec_plugins.files import Unreadable
from specdec_plugins.files.html import ATTRIBUTES, INLINE
from specdec_plugins.text.placing import Unit
from specdec_plugins.units import translate_units

polib = pytest.importorskip("polib")
etree = pytest.importorskip("lxml.etree")
NAMES = ("txt", "md", "html", "po", "xlf", "json", "srt", "vtt", "csv", "tsv")
SIGNS = [
    '"', "'", "\\", "\\n", '\\"', "<", ">", "&", "&amp;", "&lt;b&gt;", "]]>", "-->", "<!--", "<b>", "</b>", "</p>", "<p>",
    "<br/>", "<a title=", ",", ";", "\t", "{", "}", "{n}", "[", "](", "](x)", "`", "``", "*", "**", "_", "~~", "#", "# ",
    " #", "- ", "1. ", "> ", "|", "---", "===", "\\u0041", "\u2028", "\x85", "\u212a", "\u0130", "\x0c", "\xa0", "=",
    "<?", "<![CDATA[", "<script>", "<title>", "$", "%s", "%", "\u200b",
]  # fmt: skip
PIECES = [
    *SIGNS, "\n", "\n\n", "\r\n", "\r", " ", "a", "</code>", "<code>", "<pre>", '=""', "=x", " alt='", "\nmsgid ",
    'msgstr ""\n', "#~ ",
]  # fmt: skip


@cache
def sentences():
    """Of this repository's documentation."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    return [each for each in re.findall(r"[A-Z][a-z]+[^|\n]{20,90}?[.:](?=\s)", text) if each.count(" ") > 2]


@cache
def pages():
    return [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


def part(draw, text, size):
    """Some lines of a text."""
    lines = text.splitlines(keepends=True)
    start = draw.randrange(max(1, len(lines) - size))
    return "".join(lines[start : start + size])


EXTRA = [
    '<img src="a.png" alt="A \'red\' house" title=house>',
    "<!-- a > comment -->",
    "<textarea>Some <b>text</textarea>",
    "<a TITLE=\"Go &quot;there&quot; &copy;\" href='x?a=1&b=2'>Go</a>",
    "<style>p > a { content: '</p>' }</style>",
    "<script>if (a < b) document.write('<p>Hello</p>')</script>",
    '<input placeholder="Your name" disabled value=1>',
    "<svg><title>A line</title><path d='M0 0'/></svg>",
    "<ul><li>One<li>Two <i>or</i> three</ul>",
    "<hr>Text <wbr>without a block",
    '<p translate="no">Stay <b>here</b></p>',
    "<p>Fish &amp; chips &#38; &nbsp;more &copy 2020</p>",
]
PAGE = "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>A page</title></head>\n<body>{}</body></html>\n"


def html_page(draw):
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(part(draw, draw.choice(pages()), 25))
    parts = re.split(r"(?<=>)\n", body)
    for _ in range(4):
        parts.insert(draw.randrange(len(parts) + 1), draw.choice(EXTRA))
    return PAGE.format("\n".join(parts))


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


PO_HEAD = """# Some program.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"
"""


def po_catalogue(draw):
    entries = [PO_HEAD]
    for number, text in enumerate(draw.sample(sentences(), 8)):
        heads = ["", f"#: src/a.c:{number}\n", "#. A label\n#, c-format\n", '#| msgid "Old"\n', "#, fuzzy, c-format\n"]
        end, empty = draw.choice(["", "\n", '\n\tsay "so"\n', "\\"]), 'msgstr ""'
        lines = f"{quoted(text + chr(10))}\n{quoted('And on.' + end)}"
        bodies = [
            f"msgid {quoted(text + end)}\n{empty}",
            f'msgctxt "menu|{number}"\nmsgid ""\n{lines}\n{empty}',
            f"msgid {quoted(text)}\nmsgstr {quoted('Fini: ' + text)}",
            f'msgid {quoted("one " + text)}\nmsgid_plural {quoted(text)}\nmsgstr[0] ""\nmsgstr[1] ""',
        ]
        entries.append(draw.choice(heads) + draw.choice(bodies))
    entries.append('#~ msgid "Gone"\n#~ msgstr "Parti"')
    return "\n\n".join(entries) + "\n"


XLIFF = {  # by version: around all units, and what a unit has
    False: (
        '1.2"><file source-language="en" original="a" datatype="plaintext"><body>{}</body></file>',
        "trans-unit",
        ["", " resname=\"state='new'\" approved='no'", ' translate="no"'],
        [("<g id='1'>", "</g>"), ('<x id="2"/>', ""), ('<bpt id="1">&lt;b&gt;</bpt>', '<ept id="1">&lt;/b&gt;</ept>'), ("", "")],
    ),
    True: (
        '2.0"><file id="f">{}</file>',
        "segment",
        ["", ' state="initial"'],
        [('<pc id="1">', "</pc>"), ('<ph id="1"/>', ""), ("", "")],
    ),
}


def xliff(draw):
    two = draw.random() < 0.4
    around, name, attributes, tags = XLIFF[two]
    units = list[str]()
    for number, text in enumerate(draw.sample(sentences(), 6)):
        words = html.escape(text, quote=False).split(" ")
        first, last = draw.choice(tags)
        words[1], words[-1] = first + words[1], words[-1] + last
        target = draw.choice(["", "<target/>", "\n      <target></target>", "<target>Fini &amp; <![CDATA[<a>]]></target>"])
        note = draw.choice(["", "<note>state='new'</note>", "<alt-trans><target>Other</target></alt-trans>"]) * (not two)
        content = f"\n      <source>{' '.join(words)}</source>{target}{note}\n    "
        unit = f'    <{name} id="{number}"{draw.choice(attributes)}>{content}</{name}>'
        units.append(f'<unit id="u{number}">{unit}</unit>' if two else unit)
    content = around.format("\n" + "\n".join(units) + "\n")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="{content}</xliff>\n'


def json_strings(draw):
    own = iter(draw.sample(sentences(), 8))
    value = {
        "title": next(own),
        "menu": {"file": [next(own), {"a/b": next(own) + '\n"x"\t\\'}], "n": 1.5e3, "on": True, "none": None},
        "plural": "{n, plural, one {# file is open} other {# files are open}}",
        "é": next(own) + " ✓ {name}",
        "": "",
        "html": "<b>Bold</b> &amp; so",
    }
    return json.dumps(value, ensure_ascii=draw.random() < 0.5, indent=draw.choice([None, 2, "\t"]))


def cues(draw, web):
    parts = ["WEBVTT - A film\n\nSTYLE\n::cue { color: red }\n\nNOTE\nA comment"] if web else []
    for number, text in enumerate(draw.sample(sentences(), 6)):
        words = text.replace("<", "").replace("-->", "").split(" ")
        body = " ".join(words[: len(words) // 2]) + "\n" + " ".join(words[len(words) // 2 :])
        own = f"<v Ann>{body}" if web else f"{{\\an8}}{body}"
        body = draw.choice([body, f"<i>{body}</i>", f"- {body}", own, body.replace(" ", " <b>", 1) + "</b>"])
        start, end = (f"00:00:{number:02}{'.' if web else ','}{thousandths}" for thousandths in ("000", "900"))
        parts.append(f"{number + 1}\n{start} --> {end}{' align:start' * web}\n{body}")
    return "\n\n".join(parts) + "\n"


def table(draw, separator):
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator=draw.choice(["\n", "\r\n"]))
    writer.writerow(["id", "key", "text"])
    for number, text in enumerate(draw.sample(sentences(), 6)):
        first = draw.choice([text, text + ' "so", he\nsaid', "12", ""])
        writer.writerow([first, number, draw.choice([text, "", f"a{separator} b", '"quoted"'])])
    return stream.getvalue()


MAKERS = {
    "txt": lambda draw: part(draw, draw.choice(pages()), 12),
    "md": lambda draw: part(draw, draw.choice(pages()), 30),
    "html": html_page,
    "po": po_catalogue,
    "xlf": xliff,
    "json": json_strings,
    "srt": lambda draw: cues(draw, False),
    "vtt": lambda draw: cues(draw, True),
    "csv": lambda draw: table(draw, ","),
    "tsv": lambda draw: table(draw, "\t"),
}


def mutated(draw, source):
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        at = draw.randrange(len(source) + 1)
        to = min(len(source), at + draw.choice([1, 1, 2, 5, 40]))
        kind = draw.choice(["insert", "insert", "delete", "delete", "repeat", "replace", "move", "ends"])
        if draw.random() < 0.5 and (places := [match.start() for match in re.finditer(r"""["'\\<>&=\[\]`|*,-]""", source)]):
            at = draw.choice(places)
            to = at + 1
        piece = {"insert": draw.choice(PIECES), "delete": "", "repeat": source[at:to] * 2, "replace": draw.choice(PIECES)}.get(
            kind, source[at:to]
        )
        to = at if kind == "insert" else to
        source = source[:at] + piece + source[to:]
        if kind == "move":
            other = draw.randrange(len(source) + 1)
            source = source[:other] + piece + source[other:]
        if kind == "ends":
            source = source.replace("\r\n", "\n").replace("\n", "\r\n")
    return source


def hostile(seed):
    """A translation that has markup, or more or fewer words."""

    def turned(text):
        draw = random.Random(f"{seed} {text}")
        words = text.upper().split(" ") if draw.random() < 0.8 else text.split(" ")[::-1]
        for _ in range(draw.choice([0, 0, 1, 2])):
            words.insert(draw.choice([0, len(words), draw.randrange(len(words) + 1)]), draw.choice(SIGNS).strip("\n"))
        joined = draw.choice([" ", " ", " ", ""]).join(words) if len(words) < 5 else " ".join(words)
        return draw.choice([joined] * 12 + ["", draw.choice(SIGNS)])

    return turned


def filled(text, function):
    """What a text with lines of its own becomes."""
    (placed,) = translate_units(Fake(function), [Unit(text, lines=True)])
    found = re.sub(r"[\0-\x08\x0b\x0c\x0e-\x1f]", "", "".join(placed.pieces))
    found = found if found.strip() else ""
    around = re.fullmatch(r"(\n*).*?(\n*)", text, re.DOTALL)
    return around[1] + found.strip("\n") + around[2] if found.strip("\n") else ""


def po_skeleton(source, tmp_path):
    path = tmp_path / "a.po"
    path.write_text(source, encoding="utf-8", newline="")
    found = polib.pofile(str(path))
    names = tuple(
        """
        msgctxt msgid msgid_plural obsolete comment tcomment occurrences previous_msgid previous_msgctxt
    """.split()
    )
    return [tuple(getattr(entry, name) for name in names) for entry in found], [(found.metadata, found.header)], found


def faults(source, tmp_path):
    """The errors of msgfmt. Of translations that begin or end otherwise than their texts, a source may have some."""
    path = tmp_path / "b.po"
    path.write_text(source, encoding="utf-8", newline="")
    run = subprocess.run(["msgfmt", "-o", "/dev/null", path], capture_output=True, text=True, check=False)
    return [line for line in run.stderr.splitlines() if line.startswith(f"{path}:") and "warning" not in line]


def check_po(source, out, function, tmp_path):
    if which("msgfmt"):
        known, lines = faults(source, tmp_path), source.split("\n")
        for fault in known:  # what a message was before, in #| comments, is kept without a look
            number = re.search(r":(\d+):", fault)
            assert "do not both" in fault or (number and lines[int(number[1]) - 1].startswith("#|")), fault
        assert len(faults(out, tmp_path)) == len(known)
    try:
        old, head, before = po_skeleton(source, tmp_path)
    except OSError:  # polib knows fewer kinds of comments
        return
    new, head_now, after = po_skeleton(out, tmp_path)
    assert (old, head) == (new, head_now)
    for one, other in zip(before, after, strict=True):
        forms, now = [one.msgstr, *one.msgstr_plural.values()], [other.msgstr, *other.msgstr_plural.values()]
        if any(forms) or one.obsolete:
            assert forms == now
        elif one.msgstr_plural:
            wanted = [filled(text, function) for text in [one.msgid, *[one.msgid_plural] * (len(now) - 2)]]
            assert now[1:] == (wanted if all(wanted) else [""] * len(wanted))
        else:  # polib drops form feeds that are not escaped
            assert now[0].replace("\f", "") == filled(one.msgid, function).replace("\f", "")


class Events:
    def __init__(self):
        self.tags, self.blocks, self.kept, self.stack = Counter(), [], [], []

    def start(self, tag, attributes):
        shown = [(name, name in ATTRIBUTES or value) for name, value in attributes.items()]
        self.tags[tag, *sorted(shown, key=str)] += 1
        self.blocks += [tag] * (tag not in INLINE)
        self.stack.append(tag)

    def end(self, tag):
        self.blocks += [f"/{tag}"] * (tag not in INLINE)
        self.stack.pop()

    def data(self, data):
        if self.stack and self.stack[-1] in ("script", "style", "pre", "code", "textarea"):
            self.kept.append(data)

    def comment(self, data):
        self.tags["#", data] += 1

    def close(self):
        return self.tags, self.blocks, Counter("".join(self.kept))


def check_html(source, out, function, tmp_path):
    old, new = (etree.HTML(each.encode(), etree.HTMLParser(target=Events(), encoding="utf-8")) for each in (source, out))
    assert old == new


def xliff_skeleton(source):
    root = etree.fromstring(source.encode(), etree.XMLParser(resolve_entities=False))
    found, targets = [], []

    def shown(element, tail=True):
        attributes = sorted(item for item in element.attrib.items() if item[0] not in ("state", "subState"))
        return element.tag, attributes, (element.text or "").strip(), (element.tail or "").strip() * tail

    for element in root.iter():
        if any(each.tag == "target" for each in (element, *element.iterancestors())):
            continue
        found.append(shown(element, element.tag != "source"))  # a new target comes before the text behind the source
        if element.tag in ("trans-unit", "segment"):
            source, target = element.find("source"), element.find("target")
            content = (
                etree.tostring(target, with_tail=False) if target is not None and "".join(target.itertext()).strip() else None
            )
            targets.append((content, source, target))
    return found, targets


def check_xlf(source, out, function, tmp_path):
    (old, before), (new, after) = xliff_skeleton(source), xliff_skeleton(out)
    assert old == new
    for (content, text, _), (now, _, target) in zip(before, after, strict=True):
        if content:
            assert content == now
        elif target is not None and len(target):
            tags = [
                Counter((each.tag, *each.attrib.items()) for each in side.iter() if each is not side) for side in (text, target)
            ]
            assert tags[0] == tags[1]


def markdown_skeleton(source):
    from markdown_it import MarkdownIt

    found = []
    for token in (
        MarkdownIt("commonmark")
        .enable(["table", "strikethrough"])
        .parse(re.sub(r"\A---\n.*?\n---$", "", source, flags=re.S | re.M))
    ):
        content = token.content if token.type in ("fence", "code_block", "html_block") else ""
        found.append((token.type, token.tag, token.info, str(token.attrs), content))
        inner = Counter()
        for each in token.children or ():
            if each.type not in ("text", "softbreak", "text_special"):
                kept = each.content if each.type in ("code_inline", "html_inline") else ""
                inner[each.type, str({**each.attrs, "alt": ""}), kept] += 1
        found.append(inner)
    return found


def check_md(source, out, function, tmp_path):
    assert markdown_skeleton(source) == markdown_skeleton(out)


def check_json(source, out, function, tmp_path):
    def masked(value):
        if isinstance(value, dict):
            return {key: masked(each) for key, each in value.items()}
        return [masked(each) for each in value] if isinstance(value, list) else str if isinstance(value, str) else value

    assert masked(json.loads(source)) == masked(json.loads(out))
    assert re.findall(r'"[^"]*"(?=\s*:)', source) == re.findall(r'"[^"]*"(?=\s*:)', out) or "\\" in source + out or ":" in out


def check_csv(source, out, function, tmp_path, separator=","):
    old, new = (list(csv.reader(io.StringIO(each, newline=""), delimiter=separator, strict=True)) for each in (source, out))
    assert [len(row) for row in old] == [len(row) for row in new]
    for one, other in zip(old, new):
        assert [cell for n, cell in enumerate(one) if n not in (0, 2)] == [
            cell for n, cell in enumerate(other) if n not in (0, 2)
        ]


def check_tsv(source, out, function, tmp_path):
    check_csv(source, out, function, tmp_path, "\t")


def check_srt(source, out, function, tmp_path):
    def skeleton(text):
        blocks = re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n"))
        times = [line.strip() for block in blocks for line in block.split("\n") if "-->" in line]
        return times, Counter(tag for block in blocks for tag in re.findall(r"</?[A-Za-z][^<>\n]*>|\{\\[^{}]*\}", block))

    assert skeleton(source) == skeleton(out)


def check_txt(source, out, function, tmp_path):
    assert source.count("\n") == out.count("\n")


CHECKS = {
    "txt": check_txt,
    "md": check_md,
    "html": check_html,
    "po": check_po,
    "xlf": check_xlf,
    "json": check_json,
    "srt": check_srt,
    "vtt": check_srt,
    "csv": check_csv,
    "tsv": check_tsv,
}


def check_case(name, seed, tmp_path):
    """True unless the file was refused."""
    draw = random.Random(f"{name} {seed}")
    whole = MAKERS[name](draw)
    source, function = mutated(draw, whole), hostile(seed)
    try:
        out = translated(source, name, function)
    except Unreadable as error:
        assert error.what
        return source, error
    if out != source:
        CHECKS[name](source, out, function, tmp_path)
    return source, None


@pytest.mark.parametrize("name", NAMES)
def test_mutated_files(name, tmp_path, count=25):
    for seed in range(count):
        check_case(name, seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_500_mutated_files(name, tmp_path):
    test_mutated_files(name, tmp_path, 500)
