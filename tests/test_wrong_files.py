"""Never a wrong file: what is malformed is refused by its line, as is a translation that would change anything else."""

import re

import pytest
from conftest import ROOT
from test_files import LINE, TOLD, run, translated

from specdec_plugins import Translator
from specdec_plugins.files import TextFile, Unreadable
from specdec_plugins.files.emphasis import Tag, arranged
from specdec_plugins.serving.texts import translate_texts
from specdec_plugins.text.placing import Placed

HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
PO = {  # a file's entries, and the line that is at fault
    "an open quote": ('msgid "one\nmsgstr ""\n\nmsgid "two"\nmsgstr ""\n', 4),
    "an open msgstr": ('msgid "one"\nmsgstr "\n\nmsgid "two"\nmsgstr ""\n', 5),
    "a quote within": ('msgid "one"two"\nmsgstr ""\n', 4),
    "an escaped end": ('msgid "one\\"\nmsgstr ""\n', 4),
    "no quotes": ('msgid one\nmsgstr ""\n', 4),
    "two strings": ('msgid "one" "two"\nmsgstr ""\n', 4),
    "a comment behind": ('msgid "one" # two\nmsgstr ""\n', 4),
    "no msgstr": ('msgid "one"\n\nmsgid "two"\nmsgstr ""\n', 4),
    "no msgstr at the end": ('msgid "one"\nmsgstr ""\nmsgid "two"\n', 6),
    "no msgid": ('#: a.c\nmsgstr ""\n', 5),
    "two msgstr": ('msgid "one"\nmsgstr ""\nmsgstr ""\n', 6),
    "a comment between": ('msgid "one"\n# two\nmsgstr ""\n', 4),
    "plural without forms": ('msgid "one"\nmsgid_plural "two"\nmsgstr ""\n', 4),
    "forms without plural": ('msgid "one"\nmsgstr[0] ""\n', 4),
    "a form missing": ('msgid "one"\nmsgid_plural "two"\nmsgstr[0] ""\nmsgstr[2] ""\n', 4),
    "another order": ('msgid "one"\nmsgctxt "two"\nmsgstr ""\n', 4),
    "a mistyped keyword": ('msgid "one"\nmsgtsr ""\n', 5),
    "an escape of no one": ('msgid "one \\q"\nmsgstr ""\n', 4),
    "an escape of gettext alone": ('msgid "one\\x41"\nmsgstr ""\n', 4),
    "twice": ('msgid "one"\nmsgstr ""\n\nmsgid "one"\nmsgstr ""\n', 7),
    "half obsolete": ('#~ msgid "one"\nmsgstr ""\n', 4),
    "an obsolete open quote": ('#~ msgid "one\n#~ msgstr ""\n', 4),
    "a previous open quote": ('#| msgid "one\nmsgid "two"\nmsgstr ""\n', 4),
    "a string of nothing": ('# a\n"one"\n', 5),
    "a carriage return": ('msgid "one"\rmsgstr ""\n', 4),
}


@pytest.mark.parametrize("what", PO)
def test_malformed_po_is_refused_by_its_line(what):
    source, line = HEAD + PO[what][0], PO[what][1]
    with pytest.raises(Unreadable) as error:
        translated(source, "po", str.upper)
    assert error.value.where(source) == f", line {line}"


def test_po_entries_that_are_read():
    """By gettext and polib too: contexts, strings of several lines, comments, obsolete entries, forms, CRLF."""
    source = (
        '# c\n#. e\n#: a.c:1 b.c:2\n#, c-format\n#| msgctxt "old"\n#| msgid "old"\n#| "er"\nmsgctxt "x"\nmsgid ""\n'
        '"one "\n\n"two\\n"\nmsgstr ""\n""\n\nmsgctxt "y"\nmsgid "one two\\n"\nmsgstr ""\n'
        '#~ msgid "gone"\n#~ "by"\n#~ msgstr "fort"\n\n#~| msgid "a"\n#~ msgid "b"\n#~ msgid_plural "bs"\n#~ msgstr[0] ""\n'
    )
    wanted = source.replace('msgstr ""\n""\n', 'msgstr "ONE TWO\\n"\n').replace('\nmsgstr ""\n#~', '\nmsgstr "ONE TWO\\n"\n#~')
    for end in ("\n", "\r\n"):
        assert translated((HEAD + source).replace("\n", end), "po", str.upper) == (HEAD + wanted).replace("\n", end)
    fuzzy = translated((HEAD + source).replace("\n", "\r\n"), "po", str.upper, least=0.95)
    # Flags come before previous texts: msgfmt refuses them behind.
    assert fuzzy.count("#, fuzzy\r\n#| msgctxt") == fuzzy.count("#, fuzzy\r\nmsgctxt") == 1
    assert fuzzy.count("\n") == fuzzy.count("\r\n")


def test_po_of_another_encoding():
    for header, good in (("UTF-8", True), ("CHARSET", True), ("ISO-8859-1", False), ("us-ascii", False)):
        source = HEAD.replace("UTF-8", header) + 'msgid "one"\nmsgstr ""\n'
        if good:
            assert 'msgstr "ONE"' in translated(source, "po", str.upper)
        else:
            with pytest.raises(Unreadable, match=f"declares the encoding {header}; convert the file to UTF-8"):
                translated(source, "po", str.upper)


def test_line_ends_on_purpose_stay():
    """gettext's help texts are lines; a translation of a sentence over several is broken again."""
    source = 'msgid "The file is open\\nand the door is\\nnot open.\\n"\nmsgstr ""\n'
    assert translated(source, "po", lambda text: "Une phrase de six mots ici.") == (
        source.replace('msgstr ""', 'msgstr "Une phrase\\nde six\\nmots ici.\\n"')
    )
    assert 'msgstr "Mot\\n"' in translated(source, "po", lambda text: "Mot")
    plural = 'msgid "\\none\\n"\nmsgid_plural "\\ntwo"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    with pytest.raises(Unreadable, match="begins or ends with a line end"):
        translated(plural, "po")


KELVIN, DOTTED = "\u212a", "\u0130"  # of which lower() makes a k, and two characters
HTML = {  # what a page becomes in upper case
    "a Kelvin sign before": (
        f"<p {KELVIN}=1 {DOTTED}{DOTTED}='x' title='one' alt=\"two\">three</p>",
        f"<p {KELVIN}=1 {DOTTED}{DOTTED}='x' title='ONE' alt=\"TWO\">THREE</p>",
    ),
    "no tag": (f"<{KELVIN}bd>one</{KELVIN}bd>", f"&lt;{KELVIN}BD&gt;ONE</{KELVIN}bd>"),
    "a name in a value": ('<img data-x="title=\'one\'" title="two">', '<img data-x="title=\'one\'" title="TWO">'),
    "no space between": ("<img alt='one'title='two'src=a>", "<img alt='ONE'title='TWO'src=a>"),
    "upper case, spaces": ("<IMG ALT = 'one' TITLE\n=\n\"two\" >", "<IMG ALT = 'ONE' TITLE\n=\n\"TWO\" >"),
    "unquoted values": ("<img alt=one title='two'/>", "<img alt=one title='TWO'/>"),
    "a slash in a value": ("<p><a href=a/>one</a> two", "<p><a href=a/>ONE</a> TWO"),
    "the first of two": ("<p translate=no translate=yes>one</p>two", "<p translate=no translate=yes>one</p>TWO"),
    "entities without semicolons": ("<img alt='a &copy b &lt;c &copyd'>x &copy y", "<img alt='A © B &lt;C &amp;COPYD'>X © Y"),
    "quotes in quotes": ("<img alt='say \"it&#39;s\"'>", "<img alt='SAY \"IT&#39;S\"'>"),
    "comments": ("<!-- > -- --!>two<p><!-->three<p><!--->four", "<!-- > -- --!>TWO<p><!-->THREE<p><!--->FOUR"),
    "a comment in a tag": ("<p <!-- title='one' -->two</p>", "<p <!-- title='ONE' -->TWO</p>"),
    "an end tag with attributes": ("<p>one</p title='a>b'>two", "<p>ONE</p title='a>b'>TWO"),
    "markup in a title": ("<title>one <b> &amp; two</title><p>three", "<title>ONE &lt;B&gt; &amp; TWO</title><p>THREE"),
    "markup in a textarea": ("<textarea></p><p>one</textarea>two", "<textarea></p><p>one</textarea>TWO"),
    "scripts": ("<script>'<p>one</p>' </scripts></SCRIPT\n>two", "<script>'<p>one</p>' </scripts></SCRIPT\n>TWO"),
    "CDATA is a comment": ("<p>one<![CDATA[ two > three ]]>", "<p>ONE<![CDATA[ two > THREE ]]&gt;"),
    "CDATA of SVG": ("<svg><style><![CDATA[ > ]]></style></svg>one", "<svg><style><![CDATA[ > ]]></style></svg>ONE"),
    "declarations": ("<?php one ?><!ELEMENT one>two</ three>", "<?php one ?><!ELEMENT one>TWO</ three>"),
}


@pytest.mark.parametrize("what", HTML)
def test_html_is_read_as_browsers_read_it(what):
    source, wanted = HTML[what]
    assert translated(source, "html", str.upper) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "<p>one\n<a title='two>three",
        "<p>one\n<!-- two",
        "<p>one\n<script>two",
        "<p>one\n<textarea>two</text>",
        "<p>one\n<title/>two",
        "<p>one\n<script><!-- <script> </script> --></script>",
        "<p>one\n<meta charset=latin1>",
        "<p>one\n<meta http-equiv=Content-Type content='text/html; charset=iso-8859-1'>",
        "<p>one\n</p",
        "<p>one\n<plaintext>two",
    ],
)
def test_malformed_html_is_refused_by_its_line(source):
    with pytest.raises(Unreadable) as error:
        translated(source, "html", str.upper)
    assert error.value.where(source) == ", line 2"


def placed_as(source, form, *texts):
    """A file with these translations, whatever they are."""
    return TextFile(source, form, TOLD).translated([Placed([text], True) for text in texts])


def test_a_translation_that_is_read_differently_is_refused():
    """By the line of its text. The first would be another paragraph; tags of SubRip cannot be escaped."""
    cases = [
        ("markdown", "One.\n\nTwo.\n", ("Un.", "Deux.\n\nTrois."), 3),
        ("lines", "one\ntwo\n", ("un", "deux\ntrois"), 2),
        ("subtitles", "1\n00:01,000 --> 00:02,000\nOne\n", ("<b>Un",), 3),
        ("subtitles", "1\n00:01,000 --> 00:02,000\nOne\n", ("Un --> deux",), 3),
        ("strings", '{"a":\n"{n, plural, other {# one}}"}', ("5 } un",), 2),
    ]
    for form, source, texts, line in cases:
        with pytest.raises(Unreadable) as error:
            placed_as(source, form, *texts)
        assert error.value.where(source) == f", line {line}", source
    with pytest.raises(Unreadable, match="the translation '<b>Un' cannot be written here, it would be read as 'Un'"):
        placed_as("1\n00:01,000 --> 00:02,000\nOne\n", "subtitles", "<b>Un")


def test_markup_in_a_translation_is_text():
    signs = "< > & \" ' \\ ` * _ [x](y) ]]> --> </p> <!-- &amp; {n} # | , ; ~~ \t ---"
    assert placed_as("<p>One</p>", "html", signs).count("<") == 2
    assert placed_as("<img title='One'>", "html", signs).count("'") == 2
    assert placed_as("<xliff><trans-unit><source>One</source></trans-unit></xliff>", "xliff", signs).count("<") == 8
    for form, source in [
        ("markdown", "One.\n"),
        ("markdown", "# One.\n"),
        ("markdown", "> - One.\n"),
        ("markdown", "[One.](x)\n"),
        ("strings", '["One"]'),
        ("tables.commas", "One,two\n"),
        ("tables.tabs", "One\ttwo\n"),
        ("gettext", 'msgid "One"\nmsgstr ""\n'),
    ]:
        for sign in (signs, *signs.split()):
            placed_as(source, form, sign)


def test_a_file_that_would_be_wrong_is_not_written(tmp_path, capfd, monkeypatch):
    """By the command, and by the server, whose errors are ValueErrors until they have a status."""
    model, out = ROOT / "data" / "demo.en-de", tmp_path / "out"
    good, bad, last = (tmp_path / name for name in ("a.html", "b.json", "c.md"))
    for path, text in ((good, f"<p>{LINE}"), (bad, f'["",\n"{LINE}"]'), (last, LINE)):
        path.write_text(text)
    monkeypatch.setattr("specdec_plugins.files.strings.escape", lambda text, ascii_only: text + '", "')
    said = run(capfd, "--model", model, good, bad, last, "-o", f"{out}/", status=1)
    assert f"error: {bad}, line 2: the translation" in said and "the file is not written" in said and said.count("\n") == 1
    assert [path.name for path in out.iterdir()] == ["a.html"]
    said = run(capfd, "--model", model, good, bad, last, "-o", f"{out}/", "--on-error", "skip", status=1)
    assert f"{bad}, line 2: the translation" in said and said.endswith("1 of 3 files skipped\n")
    assert sorted(path.name for path in out.iterdir()) == ["a.html", "c.md"]
    with pytest.raises(ValueError, match=r"the translation .* \(character 7\)"):
        translate_texts(Translator.from_pretrained(str(model), threads=1), [bad.read_text()], "strings")


@pytest.mark.parametrize("name, source, line, said", [
    ("csv", 'a,b\n"one"two,c\n', 2, "goes on after its quotes"), ("csv", 'a,b\nc,"one\n\n', 2, "not closed"),
    ("csv", "a;b\none;two\n", 1, "separated by semicolons"), ("tsv", "a,b\none,two\n", 1, "separated by commas"),
    ("json", '["a",\n"\\ud800"]', 2, "half of a surrogate pair"), ("json", '{"a": "b",\n"a"}', 2, "not JSON"),
    ("json", '["a",\n"b" "c"]', 2, "not JSON"), ("json", '["a\n"]', 1, "not JSON"), ("json", '["a",\n"b\\x"]', 2, "not JSON"),
    ("srt", "1\n00:01,000 -> 00:02,000\nOne\n\n2\n00:03,000 --> x\nTwo", 6, "not the times of a cue"),
    ("srt", "1\n00:01,000 --> 00:02,000\nOne\n2\n00:03,000 --> 00:04,000\nTwo", 5, "an empty line before it"),
    ("vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\none <i two\n", 4, "a tag is not closed"),
    ("xlf", "<xliff>\n<trans-unit><source>a</trans-unit></xliff>", 2, "mismatched tag"),
    ("xlf", "<xliff><trans-unit><source>a</source>\n<source>b</source></trans-unit></xliff>", 2, "two elements <source>"),
    ("xlf", "<xliff>\n<trans-unit id='1' id='2'><source>a</source></trans-unit></xliff>", 2, "duplicate attribute"),
    ("xlf", "<?xml version='1.0' encoding='us-ascii'?><xliff/>", 1, "declares the encoding us-ascii"),
])  # fmt: skip
def test_other_malformed_files_are_refused_by_their_line(name, source, line, said):
    with pytest.raises(Unreadable, match=said) as error:
        translated(source, name, str.upper)
    assert error.value.where(source) == f", line {line}"


def test_xliff_units_of_unusual_form():
    """An attribute's value may look like a state; a new target follows the segmented source."""
    head = "<segment id='1' x=\"a state='initial' b\" state='initial'><source>one</source>"
    done = "<segment id='1' x=\"a state='initial' b\" state=\"translated\"><source>one</source><target>ONE</target></segment>"
    assert translated(f"<xliff>{head}</segment></xliff>", "xlf", str.upper) == f"<xliff>{done}</xliff>"
    unit = "<xliff><trans-unit><source>one</source><seg-source><mrk mtype='seg'>one</mrk></seg-source>{}</trans-unit></xliff>"
    assert translated(unit.format(""), "xlf", str.upper) == unit.format("<target>ONE</target>")


def test_subtitles_have_codes_and_line_ends_of_their_own():
    cue = "1\r\n00:01,000 --> 00:02,000\r\n{}\r\n\r\n"
    source = cue.format("{\\an8}one < three\r\n2 > 1 <b>two\u2028</b>")
    assert translated(source, "srt", str.upper) == cue.format("{\\an8}ONE < THREE 2 >\r\n1 <b>TWO</b>")
    apart = cue.format("one <three\r\n2 > 1 two")
    assert len(TextFile(apart, "subtitles", TOLD).spans[0].marks) == 0
    assert translated(cue.format("one\r\ntwo"), "srt", lambda text: " # x").endswith("00:02,000\r\n#\r\nx\r\n\r\n")


def test_markdown_of_unusual_form():
    for source, wanted in [
        ("+++\ntitle = 'one'\n+++\n\ntwo\n", "+++\ntitle = 'one'\n+++\n\nTWO\n"),
        ("# one \\#\n", "# ONE \\#\n"),
        ("|a|\n|-|\n|one \\| two|\n", "|A|\n|-|\n|ONE \\| TWO|\n"),
        ("one &amp; &lt;b&gt; two\n", "ONE &amp; &lt;B&gt; TWO\n"),
        ("one&lt;2 &copy; two\n", "ONE&lt;2 &copy; TWO\n"),
        ("<K title='one'>two</K>\n", "<K title='one'>TWO</K>\n"),
        ("one `a` `b` *two*\n", "ONE `a` `b` *TWO*\n"),
    ]:
        assert translated(source, "md", str.upper) == wanted


def test_emphasis_is_where_markdown_can_have_it():
    """Numbers stand for tags: ** and **, * and *, code and code."""
    spelled = [("**", 1, True), ("**", 0, False), ("*", 3, True), ("*", 2, False), ("`a`", None, False), ("`b`", None, False)]
    tags = [Tag(*each) for each in spelled]
    for pieces, wanted in [
        ("x0 one 1y", "x 0one1 y"), ("x 01 one two", "x  0one1 two"), ("one two01", "one 0two1"), ("014", "041"), ("x45", "x4 5"),
        ("0one12two3", "0one1 2two3"), ("02 one 31.", " 02one31 ."), ("0 4 1", " 041 "), ("a4b", "a4b"),
        ('0the "1int', '0the1 "int'), ("un0(two)1", "un(0two)1"), ("un0(two)1s", "un(0two1)s"), ('0the "14', '0the "14'),
    ]:  # fmt: skip
        found = arranged([int(each) if each.isdecimal() else each for each in re.split(r"(\d)", pieces)], tags)
        assert "".join(map(str, found)) == wanted
