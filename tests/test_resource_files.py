"""YAML, properties, Android's strings.xml and strings files: what independent parsers read before and after a translation."""

import io
import random
import re
import time
from contextlib import suppress
from functools import partial

import pytest
from test_files import translated_content as translated

from specdec_plugins.files import Options, Unreadable, format_of
from specdec_plugins.files.content import read_content

javaproperties = pytest.importorskip("javaproperties")
openstep_plist = pytest.importorskip("openstep_plist")
ruamel = pytest.importorskip("ruamel.yaml")
etree = pytest.importorskip("lxml.etree")

NAMES = {"yaml": "en.yml", "properties": "Messages.properties", "android": "res/values/strings.xml", "apple": "en.strings"}


# What independent parsers read: the skeleton, and the texts by their places in it.


def read_yaml(data):
    """Every document as events, by a parser that shares no code with libyaml's, and strings apart from all else."""
    yaml = ruamel.YAML(typ="rt", pure=True)
    skeleton, texts, opened = [], [], []
    resolver = yaml.resolver
    for event in yaml.parse(io.BytesIO(data)):
        name = type(event).__name__
        waiting = None
        if (
            opened
            and opened[-1][0] == "MappingStartEvent"
            and name in ("ScalarEvent", "AliasEvent", "MappingStartEvent", "SequenceStartEvent")
        ):
            waiting, opened[-1][1] = opened[-1][1], not opened[-1][1]
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        own = [name, anchor, str(tag or "")]
        if name in ("MappingStartEvent", "SequenceStartEvent"):
            opened.append([name, True])
            own.append(event.flow_style)
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            opened.pop()
        elif name == "ScalarEvent":
            kind = str(resolver.resolve(ruamel.nodes.ScalarNode, event.value, (True, False))) if not event.style else "str"
            if waiting or not kind.endswith("str"):
                own.append(event.value)
            else:
                texts.append(event.value)
        skeleton.append(own)
    return (skeleton, re.findall(rb"# Files of Rails|# comment", data)), texts


def read_properties(data):
    for encoding in ("utf-8-sig", "latin-1"):
        with suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            break
    items = list(javaproperties.parse(io.StringIO(text)))
    skeleton = [
        (type(item).__name__, getattr(item, "key", None) if hasattr(item, "key") else item.source.strip()) for item in items
    ]
    return skeleton, [item.value for item in items if hasattr(item, "key") and item.key is not None]


def read_android(data):
    root = etree.fromstring(data, etree.XMLParser(resolve_entities=False, strip_cdata=False))
    skeleton, texts = [], []
    for each in root.iter():
        kept = each.tag.endswith("}g") if isinstance(each.tag, str) else True
        inside = [parent.tag for parent in each.iterancestors()]
        skeleton.append((str(each.tag), sorted(each.attrib.items()), len(inside), each.text if kept else None))
        texts.append(each.text or "")
    return sorted(skeleton, key=repr), texts


def read_apple(data):
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    found = openstep_plist.loads("{" + text + "\n}")
    return list(found), list(found.values())


READERS = {"yaml": read_yaml, "properties": read_properties, "android": read_android, "apple": read_apple}

SAMPLES = {
    "yaml": [
        """\
# Files of Rails
en:
  hello: "Hello, %{name}! It's \\u00e9t\\u00e9."
  simple: Sign in to continue   # comment
  'quoted': 'It''s here: look'
  number: 12
  flag: no
  symbol: :year
  formats:
    default: "%Y-%m-%d"
    order:
      - :year
      - :month
    flow: [ some words, {and: "more, words"} ]
  body: &body |
    First line of text.
    Second line: more.

    Last one.
  folded: >-
    A long sentence which goes on and on
    over two lines.

    And a second paragraph.
  again: *body
  list:
    - One thing
    - {title: Some title, url: https://example.com/a}
    - "two\\nlines"
  link_html: Read <a href="x">the manual</a> first
  multi: words that are
    continued here
  empty:
  tagged: !ruby/sym some words
---
other: A second document
"""
    ],
    "properties": [
        """\
# A comment: of the file
! Another = one
greeting=Hello there
farewell : Good bye, and thanks
name with\\ space = A value \\
    that continues \\
    on lines
title\\:key\tThe title of it
count={0} files in {1}
quoted=It''s {0} and '{'braces'}'
choice={0,choice,0#no files|1#one file|1<{0} files}
path=/usr/share/doc
unicode=Caf\\u00e9 is open
empty=
tabbed=One\\tTwo\\nThree
spaces=\\  leading and trailing\\u0020
"""
    ],
    "android": [
        """\
<?xml version="1.0" encoding="utf-8"?>
<!-- A comment -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2" xmlns:tools="http://schemas.android.com/tools">
    <string name="app" translatable="false">The App</string>
    <string name="a">It\\'s <b>bold</b> and \\"quoted\\"\\n\\nhere</string>
    <string name="b">"  It's quoted  "</string>
    <string name="c">Hello <xliff:g id="name" example="Bob">%1$s</xliff:g>, you &amp; me</string>
    <string name="d"><![CDATA[Some <b>text</b> and a <a href=\\"x\\">link</a>]]></string>
    <string name="e">@string/app</string>
    <string name="f">Wrapped
        over lines \\u2026</string>
    <string-array name="g">
        <item>One thing</item>
        <item>@null</item>
    </string-array>
    <plurals name="h">
        <item quantity="one">%d file</item>
        <item quantity="other">%d files</item>
    </plurals>
    <color name="i">#fff</color>
    <string name="j">\\@someone wrote &lt;i&gt;this&lt;/i&gt;</string>
</resources>
"""
    ],
    "apple": [
        """\
/* Title of the window; "quoted" */
"title" = "The window's title";
// A line of comment = "x";
"count" = "%1$@ has %2$d files";
key = "Some \\"quoted\\" words\\nand a second line";
"wrapped" = "One line
Two lines";
"a = b;" = "Tab\\there \\U00e9 and \\\\ too";
"""
    ],
}
PIECES = {
    "yaml": [
        "\n",
        ": ",
        "- ",
        "'",
        '"',
        "#",
        " #",
        "&a ",
        *"*a ! | > [ ] { } ,".split(),
        "  ",
        "\t",
        "? ",
        "---\n",
        "\\",
        "é",
        "%",
        "@",
        "`",
        "\r\n",
        "|2\n",
        ">+\n",
    ],
    "properties": [
        "\\",
        "\n",
        "=",
        ":",
        "#",
        "!",
        " ",
        "\t",
        "\\u00e9",
        "\\u",
        "\r\n",
        "{",
        "}",
        "'",
        "''",
        "é",
        "\f",
        "\\\n   ",
    ],
    "android": [
        "<",
        ">",
        "</b>",
        "<b>",
        "&",
        "&lt;",
        '"',
        "'",
        "\\",
        "\\'",
        "\\n",
        "\\u0041",
        *"<![CDATA[ ]]> <!-- -->".split(),
        "\n",
        "@",
        "<item>",
        "é",
        'translatable="false"',
        "&#39;",
    ],
    "apple": ['"', ";", "=", "\\", "/*", "*/", "//", "\n", "'", "é", "\\n", "{", "}", "\\U0041", "%@", "\r\n"],
}


def mutated(draw, source, pieces):
    """The source with up to three changes, most of them small."""
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(len(source) + 1)
        match draw.randrange(5):
            case 0:
                source = source[:at] + draw.choice(pieces) + source[at:]
            case 1:
                source = source[:at] + source[at + draw.randint(1, 3) :]
            case 2:
                lines = source.splitlines(keepends=True)
                draw.shuffle(lines) if draw.random() < 0.1 else lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
                source = "".join(lines)
            case 3:
                source = source[:at] + draw.choice(pieces) + source[at + draw.randint(1, 4) :]
            case 4:
                until = at + draw.randint(1, 60)
                source = source[:until] + source[at:]
    return source


def hostile(draw, text):
    """A translation that needs care: what formats use as syntax, words that are something else, other scripts."""
    return draw.choice(
        [
            text.swapcase,
            lambda: (
                text
                + draw.choice(
                    [
                        " 'x'",
                        ' "y"',
                        ": z",
                        " #w",
                        " €😀",
                        "\\",
                        " l'é",
                        " <&>",
                        " ;",
                        " =",
                        "{",
                        "%",
                        " -",
                        "]",
                        ",",
                    ]
                )
            ),
            lambda: draw.choice(
                ["- " + text, "no", "12", "@a", "? a", "'", '"', "[a", "l'eau", "a: b", "#c", " é", "*", "&a", "!", "null"]
            ),
        ]
    )()


def encodings(form, draw, text):
    if form == "apple" and draw.random() < 0.4:
        return text.encode("utf-16") if draw.random() < 0.7 else b"\xfe\xff" + text.encode("utf-16-be")
    if form == "properties" and draw.random() < 0.3:
        with suppress(UnicodeEncodeError):
            return text.encode("latin-1")
    return draw.choice([b"", b"", b"\xef\xbb\xbf"]) * (form in ("apple", "properties")) + text.encode()


def check(form, seed):
    """True if the file was translated; False if it was refused, by its name and mostly by a line."""
    draw = random.Random(f"{form} {seed}")
    data = encodings(form, draw, mutated(draw, draw.choice(SAMPLES[form]), PIECES[form]))
    name = NAMES[form]
    try:
        assert translated(data, name, str) == data, (form, seed)
        found = translated(data, name, partial(hostile, draw))
    except ValueError as error:
        assert not isinstance(error, Unreadable | UnicodeError) and str(error).startswith(name) and "\n" not in str(error), error
        return False
    try:
        before, texts = READERS[form](data)
    except Exception:  # the parser is stricter than ours: then nothing is compared but that our own reads the output
        read_content(found, name, form, Options())
        return True
    after, new = READERS[form](found)
    assert before == after and len(texts) == len(new), (form, seed)
    return True


@pytest.mark.parametrize("form", NAMES)
def test_mutated_files(form):
    results = [check(form, seed) for seed in range(60)]
    assert 10 < sum(results) < 60


@pytest.mark.long
@pytest.mark.parametrize("form", NAMES)
def test_500_mutated_files(form):
    results = [check(form, seed) for seed in range(60, 560)]
    assert 100 < sum(results) < 500


def upper(text):
    """In capitals, except placeholders, as a translation has them."""
    return "".join(part if part[:1] in "%{" else part.upper() for part in re.split(r"(%\{\w+\}|%[\d$]*[@ds]|\{.*?\})", text))


KEPT = [
    # YAML: settings, types and templates are no text; style, anchors and comments stay
    ("a.yml", "a: Hello  # there\n", "a: HELLO  # there\n"),
    ("a.yml", "a: &b Hello you\nc: *b\n", "a: &b HELLO YOU\nc: *b\n"),
    ("a.yml", "a: !!str Hello you\nb: !x Hello you\n", "a: !!str HELLO YOU\nb: !x Hello you\n"),
    ("a.yml", "a: [Hello you, 'It''s', {b: \"c d\"}]\n", "a: [HELLO YOU, 'IT''S', {b: \"C D\"}]\n"),
    ("a.yml", "? Hello you\n: Good bye\n", "? Hello you\n: GOOD BYE\n"),
    ("a.yml", "a: |-\n    One line\n\n    Two lines\n# c\n", "a: |-\n    ONE LINE\n\n    TWO LINES\n# c\n"),
    ("a.yml", "a: |2\n   One line\nb: 1\n", 'a: " ONE LINE\\n"\nb: 1\n'),  # a level that the text has none of
    ("a.yml", "- >\n  Go on\n  to there\n\n  Now\n", "- >\n  GO ON TO THERE\n\n  NOW\n"),
    ("a.yml", "a: Go on\n  to there\n", "a: GO ON TO THERE\n"),
    ("a.yml", 'a: "\\u00e9t\\u00e9 is"\n', 'a: "\\u00c9T\\u00c9 IS"\n'),
    ("a.yml", "a:\r\n  b: |\r\n    Hello you\r\n", "a:\r\n  b: |\r\n    HELLO YOU\r\n"),
    ("a.yml", "a_html: Go <b>on</b> &amp; out\n", "a_html: GO <b>ON</b> &amp; OUT\n"),
    ("a.yml", "a: '%{count} dogs'\n", "a: '%{count} DOGS'\n"),
    *[
        ("a.yml", same, same)
        for same in (
            "a: no\nb: 12\nc: 1.5e3\nd: 2024-01-02\ne: ~\nf: Null\n",
            "a: :sym\nb: user_name\nc: userName\nd: a/b\ne: fa-icon\n",
            "a: https://a.b/c\nb: me@example.org\nc: '%Y-%m-%d'\nd: dd.MM.yyyy\n",
            "a: '{{ x }}'\nb: '%{count}'\nc: <%= x %>\n",
            "",
            "# c\n",
            "a: 'EEE, d MMM yyyy'\nb: '%a, %d %b %Y'\nc: v1.2.3\nd: \"#fff\"\n",
        )
    ],
    # properties
    ("a.properties", "a=Hello\n b : Good \\\n  bye\nc you too\n", "a=HELLO\n b : GOOD BYE\nc YOU TOO\n"),
    ("a.properties", "a=Caf\\u00e9 is\n", "a=CAF\\u00c9 IS\n"),
    ("a.properties", "# é\na=Café is\n", "# é\na=CAFÉ IS\n"),
    ("a.properties", b"a=Caf\xe9 is \\u0151\n", b"a=CAF\xc9 IS \\u0150\n"),
    ("a.properties", "a=It''s {0}\n", "a=IT''S {0}\n"),
    ("a.properties", "a=It's {0}\n", "a=IT'S {0}\n"),
    ("a.properties", "a=The '{0}' of {1}\n", "a=THE '{0}' OF {1}\n"),
    ("a.properties", "a=x\\\n\n#b\n!c", "a=X\n#b\n!c"),
    *[
        ("a.properties", same, same)
        for same in ("port=8080\npath=/a/b\nlevel=true\nname=a.b.c\n", "a\n", "=\n", "a=\\\n b=c_d\n")
    ],
    # Android
    (
        "strings.xml",
        "<resources><string name='a'>It\\'s \\@me</string></resources>",
        "<resources><string name='a'>IT\\'S @ME</string></resources>",
    ),
    (
        "strings.xml",
        "<resources><string name='a'>\\@me too</string></resources>",
        "<resources><string name='a'>\\@ME TOO</string></resources>",
    ),
    (
        "strings.xml",
        "<resources><string name='a'>\" It\\'s  \"</string></resources>",
        "<resources><string name='a'>\" IT\\'S  \"</string></resources>",
    ),
    (
        "strings.xml",
        "<resources><string name='a'>A <b>dog</b>\\n\\nNow &#8230; &lt;</string></resources>",
        "<resources><string name='a'>A <b>DOG</b>\\n\\nNOW &#8230; &lt;</string></resources>",
    ),
    (
        "strings.xml",
        "<resources><string name='a'><![CDATA[A <b>dog</b> isn\\'t<br/>Two]]></string></resources>",
        "<resources><string name='a'><![CDATA[A <b>DOG</b> ISN\\'T<br/>TWO]]></string></resources>",
    ),
    (
        "strings.xml",
        "<resources><plurals name='a'><item quantity='one'>%d dog</item></plurals></resources>",
        "<resources><plurals name='a'><item quantity='one'>%d DOG</item></plurals></resources>",
    ),
    *[
        ("strings.xml", f"<resources>{same}</resources>", f"<resources>{same}</resources>")
        for same in (
            "<string name='a' translatable='false'>A dog</string>",
            "<string name='a'>@string/b</string><string name='c'>?attr/d</string>",
            "<string-array name='a' translatable='false'><item>A dog</item></string-array>",
            "<item type='id' name='a'>A dog</item>",
            "<integer-array name='a'><item>A dog</item></integer-array><string name='b'/>",
        )
    ],
    # iOS
    (
        "a.strings",
        '/* A "c" = "d"; */\n"a b" = "It\'s \\"%1$@\\"\\nNow";',
        '/* A "c" = "d"; */\n"a b" = "IT\'S \\"%1$@\\"\\nNOW";',
    ),
    ("a.strings", 'a = "A dog"; // "b"\nb = c;\n"d";', 'a = "A DOG"; // "b"\nb = c;\n"d";'),
    ("a.strings", '"a" = "One\n\nTwo";', '"a" = "ONE\n\nTWO";'),
    ("a.strings", '"a" = "\\U00e9 is";'.encode("utf-16"), '"a" = "É IS";'.encode("utf-16")),
]


@pytest.mark.parametrize("name, source, wanted", KEPT, ids=lambda each: None)
def test_what_is_translated_and_what_stays(name, source, wanted):
    assert translated(source, name, upper) == wanted
    assert translated(source, name, str) == source


REFUSED = {
    "an open quote": ("a.strings", '"a" = "b;\n', "line 1: "),
    "no semicolon": ("a.strings", '"a" = "b"\n"c" = "d";', "line 1: .*no ;"),
    "compiled": ("a.strings", b"bplist00", "compiled; convert it with plutil"),
    "an open comment": ("a.strings", "\n/* a", "line 2: a comment"),
    "cut UTF-16": ("a.strings", b"\xff\xfea", "not UTF-16"),
    "half a character": ("a.strings", '"a" = "\\Ud800 b";', "of half a character"),
    "a dictionary": ("a.strings", '{"a" = "b";}', "line 1: not a strings file"),
    "a list": ("a.strings", '"a" = (b);', "has no value"),
    "an escape": ("a.properties", "a=b\nc=\\u12 d", "line 2: .u without four"),
    "a surrogate": ("a.properties", "a=\\ud800 b", "of half a character"),
    "NUL": ("a.properties", b"a=\xff\n\0", "line 2: contains a NUL"),
    "another file": ("strings.xml", "<a/>", "not Android's resources"),
    "a tag": ("strings.xml", "<resources>\n<string></resources>", "line 2: mismatched tag"),
    "CDATA": ("strings.xml", "<resources><string><![CDATA[a <b]]></string></resources>", "is not closed"),
    "an entity": ("strings.xml", "<!DOCTYPE r [<!ENTITY a 'b'>]><resources/>", "declares an entity"),
    "indents": ("a.yml", "a:\n  b: c\n d: e\n", "line 3: not YAML"),
    "braces": ("a.yml", "[" * 200, "line 1: more than 100 collections"),
    "a list in one": ("a.yml", "- " * 200 + "a", "more than 100 collections"),
    "a control character": ("a.yml", "a: b\x01", "not YAML"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    name, source, said = REFUSED[what]
    with pytest.raises(ValueError, match=f"^{re.escape(name)}.*{said}"):
        translated(source, name)


SLOW = [
    ("a.yml", "[" * 100_000),
    ("a.yml", "[a," * 60_000),
    ("a.yml", "a: >\n" + " b\n" * 100_000),
    ("a.yml", "a: &b c\n" * 30_000),
    ("a.yml", "'" * 400_000),
    ("a.properties", "\\\n" * 200_000),
    ("a.properties", "a=" + "\\" * 400_000),
    ("a.properties", "\n" * 400_000),
    ("a.properties", "a" * 400_000),
    ("a.properties", "a={0}" + "'{" * 100_000),
    ("a.strings", "/*" * 200_000),
    ("a.strings", '"' * 400_000),
    ("a.strings", "//\n" * 200_000),
    ("a.strings", '"' + "\\" * 400_000),
    ("strings.xml", "<resources>" + "<string>" * 50_000),
    ("strings.xml", "<resources><string>" + '"\\' * 100_000 + "</string></resources>"),
    ("strings.xml", "<resources><string>" + "&lt;" * 100_000 + "</string></resources>"),
    ("a.yml", "a: " + "{" * 400_000),
    ("a.yml", "a: '" + "<%" * 200_000 + "'"),
    ("a.properties", "a=b " + "{%" * 200_000),
]


@pytest.mark.parametrize("name, source", SLOW, ids=lambda each: each[:16])
def test_files_made_to_take_long(name, source):
    began = time.process_time()
    with suppress(ValueError):
        read_content(source.encode(), name, format_of(name), Options())
    assert time.process_time() - began < 10
