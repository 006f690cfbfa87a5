"""File formats: a translation equal to its source changes no byte; another stands where the source was, and the rest stays."""

import csv
import gzip
import html
import io
import json
import random
import re
import time
from contextlib import suppress
from itertools import chain
from types import SimpleNamespace

import pytest
from conftest import ROOT

from specdec_plugins import Translator
from specdec_plugins.commands import translate
from specdec_plugins.files import FORMATS, LONGEST, Options, TextFile, Unreadable, all_spans, format_of, readable, translatable
from specdec_plugins.files.content import read_content
from specdec_plugins.text.compressed import compress, open_read
from specdec_plugins.text.endings import STRUCTURED, is_lines
from specdec_plugins.text.languages import _CODES, _PARTS
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.numbers import missing_numbers
from specdec_plugins.text.patterns import pattern
from specdec_plugins.text.placing import Placed, Unit
from specdec_plugins.translations import SourceTooLong, Translation
from specdec_plugins.units import translate_units

NAMES = ("txt", "md", "html", "po", "xlf", "json", "srt", "vtt", "csv", "tsv")
WORDS = ["the", "red", "house", "of", "Mr.", "Smith", "isn't", "far", "away;", "go", "there", "naïve", "東京", "e.g.", "now"]
TOLD = Options(columns=["1", "3"])


class Fake:
    """A translator of sentences by a function."""

    engine = SimpleNamespace(
        pair=SimpleNamespace(config=SimpleNamespace(source_lang="en")),
        settings=SimpleNamespace(windows=None, strategy="fairseq"),
        give_way=lambda: None,
    )
    max_source = 1000

    def __init__(self, function):
        self.function, self.seen = function, []

    def translate(self, texts, **choices):
        self.seen += texts
        texts = [" ".join(text.split()) for text in texts]
        outputs = [(text, self.function(text)) for text in texts]
        return [
            Translation(output, text.split(), token_scores=[-0.1], missing_numbers=missing_numbers(text, output, "fr"))
            for text, output in outputs
        ]


def translated(source, name, function=str, told=TOLD, markup=None, least=0.0):
    document = TextFile(source, format_of(f"a.{name}"), told, markup)
    return document.translated(translate_units(Fake(function), document.units), least)


def translated_content(source, name, function=str.swapcase):
    data = source if isinstance(source, bytes) else source.encode()
    content = read_content(data, name, format_of(name), Options())
    found = content.translated(translate_units(Fake(function), content.units))
    return found if isinstance(source, bytes) else found.decode()


def sentence(draw):
    words = draw.choices(WORDS, k=draw.randint(1, 8))
    return " ".join([words[0].capitalize(), *words[1:]]) + draw.choice([".", "!", "", "…", "?"])


def text(draw, between=" "):
    return between.join(sentence(draw) for _ in range(draw.randint(1, 3)))


def html_inline(draw, depth=2):
    parts = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["text", "text", "element", "code", "alone", "entity"])
        if kind == "element" and depth:
            name = draw.choice(["b", "i", "a", "span"])
            space = draw.choice(["", ' class="x"', " title='Read it &amp; weep'", " data-x=a>"])[: draw.choice([0, 99])]
            parts.append(f"<{name}{space.rstrip('>')}>{html_inline(draw, depth - 1)}</{name}>")
        elif kind == "code":
            parts.append("<code>x &lt; y</code>")
        elif kind == "alone":
            parts.append(
                draw.choice(["<img src=a.png alt='A red house'>", "<!-- a comment -->", "<wbr>", '<img src="a" alt="">'])
            )
        elif kind == "entity":
            parts.append(draw.choice(["&nbsp;", "&copy; Smith", "&#233;tat", "R&amp;D", "AT&T", "a < b"]))
        else:
            parts.append(html.escape(text(draw), quote=False))
    return draw.choice([" ", "", "\n  "]).join(parts)


def html_file(draw):
    blocks = []
    for _ in range(draw.randint(1, 6)):
        name = draw.choice(["p", "li", "h1", "td", "div"])
        end = "" if name in ("p", "li") and draw.random() < 0.3 else f"</{name}>"
        blocks.append(f"<{name.upper() if draw.random() < 0.1 else name}>{html_inline(draw)}{end}")
        blocks.append(
            draw.choice(["<script>if (a < b) alert('Hello')</script>", "<br/>", "<hr>", "\r\n", "<pre>Some code</pre>"])
        )
    return "<!DOCTYPE html>\n<html><head><title>A page</title></head><body>" + "\n".join(blocks) + "</body></html>\n"


def markdown_inline(draw):
    parts = []
    for _ in range(draw.randint(1, 4)):
        parts.append(
            draw.choice(
                [
                    text(draw),
                    text(draw, "\n"),
                    f"**{sentence(draw)}**",
                    "*go*",
                    "`x = [1]`",
                    "``a ` b``",
                    "[the house](a.md 'it')",
                    "![A red house](a.png)",
                    "<https://a.b/c>",
                    "a \\* b",
                    "R&amp;D",
                    "[ref][]",
                    "~~old~~",
                    "<b>go</b>",
                    "snake_case",
                    "one  \ntwo",
                ]
            )
        )
    return " ".join(parts)


def markdown_file(draw):
    blocks = ["---\ntitle: A page\n---"] * draw.randint(0, 1)
    for _ in range(draw.randint(1, 7)):
        inner = markdown_inline(draw)
        flat = inner.replace("\n", " ")
        blocks.append(
            draw.choice(
                [
                    inner,
                    f"# {flat}",
                    f"## {flat} ##",
                    "> " + inner.replace("\n", "\n> "),
                    "- " + inner.replace("\n", "\n  "),
                    f"1. {flat}\n2. {flat}\n   - {flat}",
                    "```\nSome code.\n```",
                    "    Some code.",
                    f"{flat}\n====",
                    f"| {sentence(draw)} | b |\n|---|---|\n| *c* | {sentence(draw)} |",
                    "<div>\nSome HTML.\n</div>",
                    "[ref]: http://a.b",
                    "***",
                ]
            )
        )
    return draw.choice(["\n\n", "\n\n\n"]).join(blocks) + "\n" * draw.randint(0, 2)


def json_file(draw):
    def value(depth):
        kind = draw.choice(["text", "text", "number", "list", "object"] if depth else ["text"])
        if kind == "list":
            return [value(depth - 1) for _ in range(draw.randint(0, 3))]
        if kind == "object":
            return {f"{sentence(draw)}{n}": value(depth - 1) for n in range(draw.randint(0, 3))}
        return {"text": draw.choice([text(draw), text(draw, "\n"), 'say "x: y"', "a\\b\t", "", "123"]), "number": 1.5}[kind]

    return json.dumps({"a": value(3), "b": value(2)}, ensure_ascii=draw.random() < 0.5, indent=draw.choice([None, 2]))


def table(draw, separator):
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator=draw.choice(["\n", "\r\n"]))
    choices = [text(draw), "a, b", 'He said "go".', "two\nlines", "", "12", "a\tb"]
    writer.writerows([[draw.choice(choices) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 6))])
    return stream.getvalue()


def subtitles(draw, web):
    cues = ["WEBVTT\n\nNOTE a comment"] if web else []
    for n in range(draw.randint(1, 5)):
        lines = [
            draw.choice([sentence(draw), f"<i>{sentence(draw)}</i>", f"- {sentence(draw)}"]) for _ in range(draw.randint(1, 3))
        ]
        cues.append(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n" + "\n".join(lines))
    return "\n\n".join(cues) + "\n"


def po_file(draw):
    def quoted(value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    entries = ['msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"']
    for n in range(draw.randint(1, 6)):
        body = f"{quoted(f'{n} ' + text(draw))}"
        entries.append(
            draw.choice(
                [
                    f'#: a.c:{n}\n#, c-format\nmsgid {body}\nmsgstr ""',
                    f'msgctxt "x"\nmsgid ""\n{body}\n"\\n"\nmsgstr ""',
                    f'msgid {body}\nmsgstr "fini"',
                    f'#~ msgid {body}\n#~ msgstr ""',
                    f'msgid {body}\nmsgid_plural {body}\nmsgstr[0] ""\nmsgstr[1] ""',
                ]
            )
        )
    return "\n\n".join(entries) + "\n"


def xliff_file(draw):
    units = []
    for n in range(draw.randint(1, 5)):
        inner = draw.choice(
            ['{} <g id="1">{}</g> {}', '{}<x id="2"/> {} {}', '<bpt id="1">&lt;b&gt;</bpt>{}<ept id="1">&lt;/b&gt;</ept> {} {}']
        )
        source = inner.format(*(html.escape(sentence(draw), quote=False) for _ in range(3)))
        target = draw.choice(["", "<target/>", '\n    <target state="new"></target>', "\n    <target>fini</target>"])
        units.append(f'  <trans-unit id="{n}">\n    <source>{source}</source>{target}\n    <note>A note</note>\n  </trans-unit>')
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="1.2"><file source-language="en"><body>\n'
        + "\n".join(units)
        + "\n</body></file></xliff>\n"
    )


MAKERS = {
    "txt": lambda draw: "\n".join(draw.choice([text(draw), "", "  indented\t", "12"]) for _ in range(5)),
    "md": markdown_file,
    "html": html_file,
    "po": po_file,
    "xlf": xliff_file,
    "json": json_file,
    "srt": lambda draw: subtitles(draw, False),
    "vtt": lambda draw: subtitles(draw, True),
    "csv": lambda draw: table(draw, ","),
    "tsv": lambda draw: table(draw, "\t"),
}


def cases(name, count=60):
    for seed in range(count):
        draw = random.Random(f"{name} {seed}")
        source = MAKERS[name](draw)
        yield source.replace("\n", "\r\n") if draw.random() < 0.15 and name not in ("json", "csv", "tsv") else source


@pytest.mark.parametrize("name", NAMES)
def test_an_identical_translation_changes_nothing(name):
    for source in cases(name):
        found = translated(source, name)
        if name in ("po", "xlf"):  # what had no translation has one now, and then no other
            assert translated(found, name, str.upper) == found
            filled = r'(?<=msgstr )".*?"\n|(?<=\] )".*?"\n' if name == "po" else r"\s*(<target[^>]*/>|<target.*?</target>)"
            review = (
                "#, fuzzy" + ("\r\n" if "\r" in source else "\n")
                if name == "po"
                else ' state="initial" subState="specdec:needs-review"'
            )
            left = [re.sub(filled, "", each.replace("\r", ""), flags=re.S) for each in (source, found.replace(review, ""))]
            assert left[0] == left[1]
        else:
            assert found == source


def swapped(line):
    return line.swapcase()


def outside(source, spans):
    """The words around the outer spans, and the tags in them, which may move to the end of a span and then out of it."""
    parts, at = [], 0
    for span in spans:
        if span.start >= at:
            parts += [source[at : span.start], *(source[start:end].lower() for start, end in span.places)]
            at = span.end
    return sorted("".join([*parts, source[at:]]).lower().replace("<", " <").split())


def expected(span):
    """The span's text after `swapped`, except in tags."""
    parts, at = [], 0
    for mark in span.marks:
        parts += [span.text[at : mark.start].swapcase(), span.text[mark.start : mark.end]]
        at = mark.end
    return "".join([*parts, span.text[at:].swapcase()]).split()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("po", "xlf")])
def test_a_translation_is_where_the_source_was(name):
    """The texts of the new file are the translations, between them both files are the same, and no tag is lost."""
    for source in cases(name):
        found = translated(source, name, swapped)
        old, new = (translatable(all_spans(each, format_of(f"a.{name}"), TOLD)) for each in (source, found))
        assert outside(source, old) == outside(found, new), source
        if name in ("txt", "json", "csv", "tsv"):  # without tags, words keep their order
            assert list(map(expected, old)) == [span.text.split() for span in new], source


def test_xliff_targets_are_well_formed():
    from xml.etree import ElementTree

    for source in cases("xlf"):
        for unit in ElementTree.fromstring(translated(source, "xlf", lambda line: line[::-1])).iter("trans-unit"):
            texts = [
                sorted((each.tag, *each.attrib.values()) for each in unit.find(side).iter() if each.tag != side)
                for side in ("source", "target")
            ]
            assert unit.find("target").text == "fini" or texts[0] == texts[1]


def test_models_add_no_control_characters():
    """Which a vocabulary's first symbols may be, and which XML cannot hold; a source's own stay."""
    unit = "<xliff><trans-unit><source>Ab</source>{}</trans-unit></xliff>"
    assert translated(unit.format(""), "xlf", lambda text: "a\x1bB\0") == unit.format("<target>aB</target>")
    assert translated(r'["\u001b[1mAb"]', "json", swapped) == r'["\u001b[1MaB"]'


def test_cdata_is_text_that_stays():
    unit = "<xliff><trans-unit><source>{}</source><target>{}</target></trans-unit></xliff>"
    done = unit.format("Open it", "<![CDATA[Ouvrez]]>")
    assert translated(done, "xlf", str.upper) == done
    mixed = "Open <![CDATA[a <b> ]]> now"
    assert translated(unit.format(mixed, ""), "xlf", str.upper) == unit.format(mixed, "OPEN <![CDATA[a <b> ]]> NOW")


def test_targets_say_what_state_they_are_in():
    """In version 2 the segment does. Text copied from the source is no translation while the state says so."""

    def done(unit, source, target, least=0.0):
        whole = f"<xliff>{unit}<source>{source}</source>{target}</{unit[1:].split()[0].rstrip('>')}></xliff>"
        return translated(whole, "xlf", swapped, least=least)[len("<xliff>") : -len("</xliff>")]

    copied = "A <g id='1'>b</g>"
    assert done("<trans-unit>", copied, f"<target state='new' id='x'>{copied}</target>") == (
        f"<trans-unit><source>{copied}</source><target id=\"x\">a <g id='1'>B</g></target></trans-unit>"
    )
    for state, target in (("translated", copied), ("new", "Fini")):
        old = f"<target state='{state}'>{target}</target>"
        assert done("<trans-unit>", copied, old) == f"<trans-unit><source>{copied}</source>{old}</trans-unit>"
    assert done("<segment id='1'>", "Ab", "") == "<segment id='1'><source>Ab</source><target>aB</target></segment>"
    assert done("<segment state = 'initial' id='1'>", "Ab", "<target>Ab</target>") == (
        "<segment id='1' state=\"translated\"><source>Ab</source><target>aB</target></segment>"
    )
    for unit in ("<segment id='1'>", "<segment subState='a:b' id='1' state=\"initial\">"):
        assert done(unit, "Ab", "<target/>", 0.95) == (
            '<segment id=\'1\' state="initial" subState="specdec:needs-review"><source>Ab</source><target>aB</target></segment>'
        )


@pytest.mark.parametrize(
    "text, translation, doubtful",
    [
        ("Open the file", "Open the file", True),
        ("Open 1.35 files", "Ouvrez 1,35 fichiers", False),
        ("Open 1.35 files", "Ouvrez des fichiers", True),
        ("Open 3 files", "Ouvrez trois fichiers", False),
        ("Open {name} now", "Ouvrez {name}", False),
        ("Open {name} now", "Ouvrez {nom}", True),
        ("Open docs/a.md in $HOME", "Ouvrez docs/a.md dans $HOME", False),
        ("Open docs/a.md in $HOME", "Ouvrez docs/a.md dans HOME", True),
        ("%s: README.md", "%s: README.md", False),  # nothing to translate
    ],
)
def test_what_is_unchanged_or_lost_needs_review(text, translation, doubtful):
    """In PO and XLIFF, whatever the confidence."""
    new = translated(f'msgid "{text}"\nmsgstr ""\n', "po", lambda each: translation)
    assert new.startswith("#, fuzzy\n") == doubtful and f'msgstr "{translation}"' in new
    unit = f"<xliff><trans-unit><source>{text}</source></trans-unit></xliff>"
    assert ("needs-review-translation" in translated(unit, "xlf", lambda each: translation)) == doubtful
    segment = f'<xliff><unit><segment state="initial"><source>{text}</source></segment></unit></xliff>'
    assert ("needs-review" in translated(segment, "xlf", lambda each: translation)) == doubtful


def test_po_entries_are_filled_and_doubtful_ones_are_fuzzy():
    polib = pytest.importorskip("polib")
    for source in cases("po"):
        old, new, fuzzy = (
            polib.pofile(each) for each in (source, translated(source, "po", swapped), translated(source, "po", least=0.95))
        )
        for entry, filled, marked in zip(old, new, fuzzy, strict=True):
            if entry.obsolete or entry.msgstr:
                assert (filled, marked) == (entry, entry)
            else:
                assert (filled.msgstr or filled.msgstr_plural[0]).split() == entry.msgid.swapcase().split()
                assert marked.fuzzy and set(entry.flags) | {"fuzzy"} == set(marked.flags)
                damaged = any(map(pattern().search, (entry.msgid, entry.msgid_plural)))  # they are in another case
                assert filled.fuzzy == (damaged or entry.msgid.swapcase() == entry.msgid)


def test_po_entries_of_unusual_form():
    pytest.importorskip("polib")
    plural = 'msgid "one file"\nmsgid_plural "files"\n'
    source, new = (plural + f'msgstr[0] "{one}"\nmsgstr[1] "{many}"\n' for one, many in (("", ""), ("ONE FILE", "FILES")))
    assert translated(source, "po", str.upper, least=0.95) == "#, fuzzy\n" + new

    def doubt(second):
        return TextFile(source, "gettext", TOLD).translated([Placed(["un"], True, 0.9), Placed(["des"], True, second)], 0.5)

    assert doubt(0.1) == "#, fuzzy\n" + doubt(0.6)  # above the entry, whichever form is doubtful
    indented = '  msgid "one"\n\tmsgstr ""\nmsgid "two"\n msgstr ""'
    assert translated(indented, "po", str.upper) == '  msgid "one"\n\tmsgstr "ONE"\nmsgid "two"\n msgstr "TWO"'


def test_markup_is_translated_around_its_tags():
    def page(source, **rest):
        return translated(source, "html", lambda line: line.upper(), **rest)

    assert page("<p>A <b>red</b> house</p>") == "<p>A <b>RED</b> HOUSE</p>"
    assert page("<p><b>One.</b> Two &amp; <i>three</i>.</p>") == "<p><b>ONE.</b> TWO &amp; <i>THREE</i>.</p>"
    assert page("<p><b>One. Two</b> three</p>") == "<p><b>ONE. TWO</b> THREE</p>"
    assert page("<img alt=\"a &quot;b&quot;\" src=a.png><input placeholder=name title='it&#39;s'>") == (
        "<img alt=\"A &quot;B&quot;\" src=a.png><input placeholder=name title='IT&#39;S'>"
    )
    assert page('<p>Go <a title="there" href="a">home</a>!</p>') == '<p>GO <a title="THERE" href="a">HOME</a>!</p>'
    assert (
        page('<div translate=no>No <b translate="yes">yes</b> no</div>')
        == '<div translate=no>No <b translate="yes">YES</b> no</div>'
    )
    assert page('<p>Go <span class="notranslate">no</span> on</p>') == '<p>GO <span class="notranslate">no</span> ON</p>'
    assert page("<p>Go <kbd>Tab</kbd> on</p>", told=Options(ignored=["p"])) == "<p>Go <kbd>Tab</kbd> on</p>"
    assert page("<p>One. <img> Two. <!-- c --> <b>Three</b> four</p>") == "<p>ONE. <img> TWO. <!-- c --> <b>THREE</b> FOUR</p>"
    assert page("<p>Fish &#38; chips &copy;</p>") == "<p>FISH &#38; CHIPS &copy;</p>"
    assert page("a </b> b <i>c") == "A </b> B <i>C"
    assert (
        translated('{"a": "A <b>red</b> &amp; house"}', "json", str.upper, markup="html") == '{"a": "A <b>RED</b> &amp; HOUSE"}'
    )
    assert translated("A <x a='b'>red</x> house<y/>\n", "txt", str.upper, markup="xml") == "A <x a='b'>RED</x> HOUSE<y/>\n"
    for name, own in (
        ("html", "<p>A <b>red</b> &lt;house</p>"),
        ("md", "A **red** house"),
        ("srt", "1\n00:01,000 --> 00:02,000\nA <i>red</i> house\n"),
    ):
        assert translated(own, name, str.upper, markup="html") == translated(own, name, str.upper)  # texts with tags of their own
    unit = "<xliff><trans-unit><source>A &lt;b&gt;red&lt;/b&gt; <g>house</g></source>{}</trans-unit></xliff>"
    both = translated(unit.format(""), "xlf", str.lower, markup="html")
    assert both == unit.format("<target>a &lt;b&gt;red&lt;/b&gt; <g>house</g></target>")


def test_lines_of_messages_stay_lines():
    """A sentence that goes on in the next one is translated as one, and has as many lines again."""
    message = "Usage:\\n\\t-x\\tOpen a file\\n   b: go\\nThis sentence\\ngoes on. " + "x" * 50 + "\\nHere too\\nBut not here\\n"
    for name, source in (("json", f'{{"a": "{message}"}}'), ("po", f'msgid "{message}"\nmsgstr ""\n')):
        fake, document = Fake(swapped), TextFile(source, format_of(f"a.{name}"), TOLD)
        found = document.translated(translate_units(fake, document.units))
        # The option -x is missing, so a person has to look.
        wanted = (
            f'#, fuzzy\nmsgid "{message}"\nmsgstr "{message.swapcase()}"\n'
            if name == "po"
            else f'{{"a": "{message.swapcase()}"}}'
        )
        same = [text.replace("\\N", " ").replace("\\n", " ").replace("\\T", "\\t") for text in (found, wanted)]
        assert same[0] == same[1] and found.count("\\n") == wanted.lower().count("\\n") and "\\nbUT NOT HERE\\n" in found
        joined = f"This sentence goes on. {'x' * 50} Here too"
        assert fake.seen == ["Usage:", "-x", "Open a file", "b: go", joined, "But not here"]


def test_sentences_are_translated_one_at_a_time():
    fake = Fake(str.upper)
    document = TextFile("One. Two\nthree!  Four.\n\n> Five. Six\n> seven. Eight\n", "markdown", TOLD)
    assert document.translated(translate_units(fake, document.units)) == "ONE. TWO THREE!  FOUR.\n\n> FIVE. SIX SEVEN. EIGHT\n"
    assert fake.seen == ["One.", "Two three!", "Four.", "Five.", "Six seven.", "Eight"]
    assert translated("<p>Use <code>a. B</code> now. Go.", "html", swapped) == "<p>uSE <code>a. B</code> NOW. gO."


def test_hard_breaks_and_sentences_of_a_line_each_stay():
    """Other line ends within a paragraph mean a space, in Markdown as in HTML."""
    source = "Half of\na sentence.\nAnother one.  \nGo\\\non and<br>\non.\n\n> Half of\n> it. Two.\n> Go  \n> on.\n"
    wanted = "hALF OF A SENTENCE.\naNOTHER ONE.  \ngO\\\nON AND<br> ON.\n\n> hALF OF IT. tWO.\n> gO  \n> ON.\n"
    assert translated(source, "md", swapped) == wanted
    page = "<p>Half of\na sentence.\nAnother<br>\none.<br/>Go</p>"
    assert translated(page, "html", swapped) == "<p>hALF OF A SENTENCE.\naNOTHER<br>\nONE.<br/>gO</p>"


def test_a_translated_paragraph_begins_no_other_block():
    def turned(source, text):
        return translated(source, "md", lambda line: text)

    for sign in ("-", "+", "1.", "12)", "##", ">", "~~~"):
        escaped = sign[:-1] + "\\" + sign[-1] if sign[0].isdigit() else "\\" + sign
        assert turned("One.\n", f"{sign} a") == f"{escaped} a\n"
    assert turned("- One.\n", "---") == "- \\---\n" and turned("One.\n", "1.5 a -b") == "1.5 a -b\n"
    assert turned("# One.\n", "1. a") == "# 1. a\n"
    for sign in ("-", "+", "1.", "12)", "##", ">", "~~~"):  # on a later line, in a list and in a quotation
        escaped = sign[:-1] + "\\" + sign[-1] if sign[0].isdigit() else "\\" + sign
        assert (
            turned("One.\nTwo.\n\n* One.\n  Two.\n", f"{sign} a") == f"{escaped} a\n{escaped} a\n\n* {escaped} a\n  {escaped} a\n"
        )
        assert sign == ">" or turned("> One.\n> Two.  \n> Three.\n", f"{sign} a").count(f"> {escaped} a") == 3
    assert turned("One.\nTwo.\n", "===") == "\\===\n\\===\n" and turned("One.\r\nTwo.\r\n", "--") == "\\--\r\n\\--\r\n"
    assert turned("> One.  \n> Two.\n", "a") == "> a  \n> a\n"
    assert turned("|-|\n|-|\n|One.|\n", "a | b") == "|-|\n|-|\n|a \\| b|\n"


def test_cues_keep_their_number_of_lines():
    cue = "1\n00:01,000 --> 00:02,000\n<v Ann>This function\nreturns a <i>list of</i> strings\n\n2\n00:03,000 --> 00:04,000\n"
    new = cue.replace("This function\nreturns a <i>list of</i> strings", "THIS FUNCTION RETURNS A\n<i>LIST OF</i> STRINGS")
    assert translated(cue + "- Go.\n- No.\n", "srt", str.upper) == new + "- GO.\n- NO.\n"


def test_times_and_classes_in_cues():
    head, cue = "WEBVTT\n\n00:03.000 --> 00:04.000\n", "<00:03.500>Save the <00:03.700>red <c.red.big>file</c> &lt;1>\n"
    assert translated(head + cue, "vtt", swapped) == head + "<00:03.500>sAVE THE <00:03.700>RED <c.red.big>FILE</c> &lt;1&gt;\n"
    turned = translated(head + "Take <c.red>it</c> <c.blue>away</c>\n", "vtt", lambda line: " ".join(line.split()[::-1]))
    assert re.findall("<.*?>", turned)[::2] == ["<c.red>", "<c.blue>"] and "</c> <c.blue>" in turned
    with pytest.raises(Unreadable) as error:
        translated(head + "Go\n\n00:05.000 --> 00:06.000\nI <love\n", "vtt")
    assert error.value.at == len(head) + len("Go\n\n00:05.000 --> 00:06.000\nI ")


def test_tables_are_told_their_columns():
    source = "id,title\n1,go there\n"
    assert translated(source, "csv", str.upper, Options(columns=["title"])) == "id,title\n1,GO THERE\n"
    assert translated(source, "csv", str.upper, Options(columns=["2"])) == "id,TITLE\n1,GO THERE\n"
    for columns, said in (([], "--columns"), (["text"], "no column is named 'text'"), (["2", "0"], "from 1, not from 0")):
        with pytest.raises(Unreadable, match=said):
            translated(source, "csv", told=Options(columns=columns))
    for name, separator in (("csv", ","), ("tsv", "\t")):
        for source in cases(name):
            rows = readable(source, format_of(f"a.{name}"), Options(columns=[str(n) for n in range(1, 9)]))
            assert [span.text for span in rows] == [
                each for row in csv.reader(io.StringIO(source, newline=""), delimiter=separator) for each in row or [""]
            ]


DEEP = "<xliff><trans-unit><source>" + "<g>" * 9999 + "x" + "</g>" * 9999 + "</source></trans-unit></xliff>"
LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><xliff>&b;</xliff>'
HOSTILE = {
    "entities": ("xlf", LAUGHS, "declares an entity"),
    "a file as entity": ("xlf", '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>', "declares an entity"),
    "a tag not closed": ("xlf", "<xliff>\n<source>", "no element found"),
    "tags that cross": ("xlf", "<xliff><a></xliff></a>", "mismatched tag"),
    "another root": ("xlf", "<html/>", "not an XLIFF file"),
    "latin-1": ("xlf", '<?xml version="1.0" encoding="latin-1"?><xliff/>', "convert the file to UTF-8"),
    "no XML": ("xlf", "Hello", "syntax error"),
    "deep XML": ("xlf", DEEP, "within one another"),
    "half a tag": ("html", "<p>Hello <a href='", "not closed"),
    "half a comment": ("html", "<p>Hello <!-- ", "not closed"),
    "a declaration": ("html", "<p><![foo[ x", ""),
    "deep HTML": ("html", "<p>a" + "<b>x" * 9999 + "</b>" * 9999, "within one another"),
    "another charset": ("html", "<meta charset=latin1><p>Hello", "convert the file to UTF-8"),
    "no JSON": ("json", '{"a": "b"', "not JSON"),
    "deep JSON": ("json", "[" * 99999, "not JSON"),
    "a huge number": ("json", "[" + "1" * 9999 + "]", "not JSON"),
    "a long line": ("txt", "x" * (LONGEST + 1), "a text of over"),
    "a long paragraph": ("md", "[" * 60000, "a paragraph of over"),
    "an open quote": ("csv", 'a,"b\n', "not closed"),
    "PO of many forms": ("po", 'msgid "a"\nmsgid_plural "b"\n' + "".join(f'msgstr[{n}] ""\n' for n in range(99)), "plural forms"),
    "no PO": ("po", 'msgid "a"\nmsgstr "b"c"\n', "not a PO file"),
    "a path as PO": ("po", "/etc/passwd", "not a PO file"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files(what):
    name, source, said = HOSTILE[what]
    with pytest.raises(Unreadable, match=said):
        translated(source, name)


@pytest.mark.parametrize("name, source", [("html", "<wbr>a" * 51), ("xlf", "<xliff>" + "<x/>" * 101 + "</xliff>")])
def test_tags_are_bounded(name, source, monkeypatch):
    monkeypatch.setattr("specdec_plugins.files.markup.MOST_TOKENS", 100)
    with pytest.raises(Unreadable, match="over 100 tags"):
        translated(source, name)


SLOW = [
    ("html", "<div>" * 20_000 + "Hello" + "</p>" * 20_000), ("html", "<" * 50_000), ("html", "&" * 50_000),
    ("html", "<a " * 20_000 + ">"), ("html", "<p " + "a=b " * 20_000 + ">Hello"), ("html", "<!" * 20_000 + ">"),
    ("html", "<p>a " + "</b>" * 20_000), ("md", "> " * 10_000 + "Hello"), ("md", "*" * 40_000), ("md", "[" * 40_000),
    ("md", "`" * 40_000), ("md", "- " * 20_000 + "Hello"), ("csv", "," * 50_000), ("csv", "\n" * 50_000),
    ("json", "[" + '"a",' * 20_000 + "1]"), ("po", "#" * 50_000), ("srt", "00:01,000 --> 00:02,000\n\n" * 20_000),
]  # fmt: skip


@pytest.mark.parametrize("name, source", SLOW, ids=lambda each: each[:6])
def test_files_made_to_take_long(name, source):
    began = time.process_time()
    with suppress(Unreadable):
        TextFile(source, format_of(f"a.{name}"), TOLD)
    assert time.process_time() - began < 10


LINE = "Two children are playing football in the park."


@pytest.fixture(scope="module")
def demo():
    return str(ROOT / "data" / "demo.en-de")


def run(capfd, *arguments, status=0):
    assert translate.main([str(each) for each in ("--quiet", *arguments)]) == status
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return out if not status else err


def test_files_to_a_folder(demo, tmp_path, capfd):
    """Lines give what they give without a folder; batches reach across files; compressed files stay compressed."""
    one, two, three, four = (tmp_path / name for name in ("a.txt", "b.html", "c.json.gz", "d.po.zst"))
    one.write_text(f"{LINE}\n\nA dog.\n")
    two.write_text(f"<p>{LINE} <b>A dog.</b></p>")
    three.write_bytes(gzip.compress(json.dumps({"a": [LINE]}).encode()))
    four.write_bytes(compress(f'msgid "{LINE}"\nmsgstr ""\n'.encode(), four))
    plain = run(capfd, "--model", demo, one)
    german, _, dog = plain.splitlines()
    out = tmp_path / "out"
    run(capfd, "--model", demo, one, two, three, four, "-o", f"{out}/")
    assert (out / "a.txt").read_text() == plain
    assert (out / "b.html").read_text() == f"<p>{german} <b>{dog}</b></p>"
    assert json.loads(gzip.decompress((out / "c.json.gz").read_bytes())) == {"a": [german]}
    assert open_read(out / "d.po.zst").read().decode() == f'msgid "{LINE}"\nmsgstr "{german}"\n'
    assert run(capfd, "--model", demo, two) == (out / "b.html").read_text()
    run(capfd, "--model", demo, one, "-o", tmp_path / "e.zst")
    assert open_read(tmp_path / "e.zst").read().decode() == plain
    assert run(capfd, "--model", demo, tmp_path / "e.zst").count("\n") == 3
    assert {path.name for path in out.iterdir()} == {"a.txt", "b.html", "c.json.gz", "d.po.zst"}


def test_a_bad_file_stops_the_run_or_is_skipped(demo, tmp_path, capfd):
    good, bad, last = (tmp_path / name for name in ("a.html", "b.json", "c.md"))
    good.write_text(f"<p>{LINE}")
    bad.write_text('{"a": "b",')
    last.write_text(LINE)
    said = run(capfd, "--model", demo, good, bad, last, "-o", f"{tmp_path}/out/", status=1)
    assert said.startswith(f"specdec-translate: error: {bad}, line 1: not JSON") and said.count("\n") == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.html"]
    said = run(capfd, "--model", demo, good, bad, last, "-o", f"{tmp_path}/out/", "--on-error", "skip", status=1)
    assert "file skipped" in said and said.endswith("1 of 3 files skipped\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.html", "c.md"]


def test_a_structured_file_of_no_format_is_refused(demo, tmp_path, capfd):
    """As lines, its keys would be translated. The model is not loaded first: here, there is none."""
    good, bad = tmp_path / "a.md", tmp_path / "b.Toml.gz"
    good.write_text(LINE)
    bad.write_bytes(gzip.compress(b"greeting = 'Good morning'\n"))
    said = run(capfd, "--model", tmp_path / "none", good, bad, "-o", f"{tmp_path}/out/", status=1)
    assert f"{bad}: .toml files are not supported; formats are txt, md," in said and "standard input" in said
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()
    assert ".toml files" in run(capfd, "--model", tmp_path / "none", "-i", bad, status=1)
    said = run(capfd, "--model", demo, good, bad, "-o", f"{tmp_path}/out/", "--on-error", "skip", status=1)
    assert f"{bad}: .toml" in said and "file skipped" in said and [path.name for path in (tmp_path / "out").iterdir()] == ["a.md"]


def test_endings():
    codes = {*_CODES.split(), *_PARTS, *chain(*_PARTS.values())}
    assert codes & STRUCTURED == {"arb", "ts"} and set(FORMATS) - STRUCTURED == {"txt", "strings.xml"}
    for name in ("news", "news.en", "news.cs", "train.pt.gz", "part.0001", "a.tok", ".profile", "a.b/c", "a.log"):
        assert is_lines(name) and format_of(name) is None
    assert format_of("a.TXT.zst") == "lines" and is_lines("a.txt") and format_of("A.PO") == "gettext" and not is_lines("A.PO")
    assert format_of("res/values-en/strings.xml") == format_of("Strings.xml.gz") == "android" and format_of("docx") is None
    for ending in STRUCTURED - {*FORMATS}:
        with pytest.raises(ValueError, match=rf"a\.{ending}: \.{ending} files are not supported"):
            format_of(f"a.{ending}")


def test_lines_that_are_not_text_are_skipped(demo, tmp_path, capfd):
    path = tmp_path / "a.txt"
    path.write_bytes(f"{LINE}\n".encode() + b"\xff\n" + b"x" * 1_500_000 + f"\n{LINE}\n".encode())
    assert "line 2: not UTF-8" in run(capfd, "--model", demo, path, status=1)
    assert translate.main(["--quiet", "--model", demo, "--on-error", "skip", str(path)]) == 0
    out, err = capfd.readouterr()
    first, *empty, last = out.splitlines()
    assert first == last and empty == ["", ""] and err.count("skipped") == 2


def test_lines_of_markup(demo, tmp_path, capfd):
    path = tmp_path / "lines"
    path.write_text(f"<i>{LINE}</i>\n<b>A dog.\nA cat.\n")
    german, open_tag, cat = run(capfd, "--model", demo, "--markup", "html", path).splitlines()
    assert re.fullmatch("<i>[^<>]+</i>", german) and open_tag.startswith("<b>")
    said = run(capfd, "--model", demo, "--markup", "xml", path, status=1)
    assert f"{path}, line 2: mismatched tag" in said and said.count("\n") == 1
    assert translate.main(["--quiet", "--model", demo, "--markup", "xml", "--on-error", "skip", str(path)]) == 0
    assert capfd.readouterr().out == f"{german}\n\n{cat}\n"


@pytest.mark.parametrize(
    "options, said",
    [
        (["a.po", "b.po", "-o", "c"], "--output must be a folder"),
        (["a.po", "x/a.po", "-o", "c/"], "two files of one name"),
        (["a.po", "--format", "json"], "--format cannot be combined"),
        (["a.txt", "--min-confidence", "0.5"], "--min-confidence is for"),
        (["a.po", "--min-confidence", "2"], "not between 0 and 1"),
        (["a.po", "--beam", "2", "--nbest", "2"], "cannot be combined"),
        (["a.po", "--num-samples", "2", "--sampling"], "--sampling cannot be combined with files of other formats"),
        (["a", "--markup", "html", "--sampling"], "--sampling cannot be combined with --markup"),
        (["-o", "/tmp/"], "name the input files"),
        (["a.po", "--resume", "-o", "b.po"], "--resume cannot be combined"),
        (["a.txt", "a.po", "--windows", "sentence", "-o", "c/"], "--windows cannot be combined with files of other formats"),
        (["a.txt", "--windows", "sentence", "--markup", "xml"], "--windows cannot be combined with --markup"),
    ],
)
def test_options_that_files_do_not_have(options, said, capfd):
    assert translate.main(["--model", "data/demo.en-de", *options]) == 2
    assert said in capfd.readouterr().err


def test_windows_are_for_plain_lines(demo, tmp_path, capfd):
    """Nothing of a window is protected or aligned, so other units are refused."""
    path = tmp_path / "a.txt"
    path.write_text(f"{LINE} A dog.\n")
    whole = run(capfd, "--model", demo, path, "--windows", "sentence")
    run(capfd, "--model", demo, path, "--windows", "sentence", "-o", f"{tmp_path}/out/")
    assert (tmp_path / "out" / "a.txt").read_text() == whole
    with pytest.raises(ValueError, match="windows are for lines of plain text"):
        translate_units(Translator.from_pretrained(demo, windows="sentence", threads=1), [Unit("A dog in {x}.")])


def test_an_incomplete_frame_is_an_error(tmp_path):
    path = tmp_path / "a.zst"
    data = compress(b"one\n" * 1000, path)
    path.write_bytes(data + data)
    assert len(list(read_lines(path))) == 2000
    for damaged in (data[:-3], b"no frame"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.zst"):
            list(read_lines(path))


def test_code_and_placeholders_come_through_once(tmp_path, capfd):
    """By a model that knows neither: it has learned captions."""
    page, table = tmp_path / "a.html", tmp_path / "b.po"
    code = ["list.sort()", "--draft-with x_y", "f(a, b)"]
    page.write_text(
        "".join(f"<p>A dog runs to <code>{part}</code> and <b>the <i>red</i> {{name}}</b> %d.</p>\n" for part in code)
    )
    table.write_text('msgid "Two %(count)d dogs of {name} run to https://a.b/c?d=e."\nmsgstr ""\n')
    run(capfd, "--model", ROOT / "data" / "demo.en-de", page, table, "-o", f"{tmp_path}/out/")
    found = (tmp_path / "out" / "a.html").read_text().splitlines()
    for line, part in zip(found, code, strict=True):
        assert line.count(f"<code>{part}</code>") == line.count("{name}") == line.count("%d") == 1
        assert re.findall("<.*?>", line)[0] == "<p>" and sorted(re.findall("</?[bi]>", line)) == ["</b>", "</i>", "<b>", "<i>"]
        assert re.sub("<[^<>]*>", "", line).count(part) == 1
    german = (tmp_path / "out" / "b.po").read_text().splitlines()[1]
    assert all(german.count(part) == 1 for part in ("%(count)d", "{name}", "https://a.b/c?d=e"))


def test_a_text_that_is_too_long_stays_or_ends_the_run():
    document = TextFile('msgid "One. Two."\nmsgstr ""\n\nmsgid "Three."\nmsgstr ""\n', "gettext", TOLD)
    fake = Fake(str.upper)
    skipping = fake.translate

    def skipped(texts, **choices):
        return [Translation("", shortened=True) if text == "Two." else each for text, each in zip(texts, skipping(texts))]

    def refused(texts, **choices):
        raise SourceTooLong(texts.index("Three."), "600", 500)

    fake.translate = skipped
    assert document.translated(translate_units(fake, document.units)).count('msgstr ""') == 1
    fake.translate = refused
    with pytest.raises(SourceTooLong) as error:
        translate_units(fake, document.units)
    assert error.value.index == 1 and document.lines() == [1, 4]
