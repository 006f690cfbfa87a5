"""ICU messages: the text of each branch is translated, all else stays byte for byte, in every file format that has messages."""

import html
import json
import random
import re

import pytest
from test_files import Fake, translated

from specdec_plugins.files import MESSAGE, Options, TextFile
from specdec_plugins.text.icu import DEEPEST, is_message, messages
from specdec_plugins.units import translate_units

WORDS = ["files", "A user", "it''s", "go on", "Stop. Go", "naïve"]


PARTS = re.compile(r"`[^`]*`|'\{a\}'|'\{''b'|\{+[^{}]*\}+|(.)", re.DOTALL)


def swapped(text):
    return PARTS.sub(lambda match: match[0].swapcase() if match[1] else match[0], text)


def generated(draw, depth=3, number=False):
    """A message and what it is with all its text in the other case."""
    parts = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(["text", "text", "plain", "quoted", "branches", "branches", "number"])
        if kind == "branches" and depth:
            name = draw.choice(["plural", "selectordinal", "select"])
            head = draw.choice(["{%s, %s,", "{ %s ,\n%s , "]) % (draw.choice(["n", "0", "Größe"]), name)
            branches = [generated(draw, depth - 1, number or name != "select") for _ in range(draw.randint(1, 3))]
            spaces = [
                draw.choice([" ", "\n  "]) + draw.choice(["=1", "one", "other"]) + draw.choice([" {", "{"]) for _ in branches
            ]
            tail = draw.choice(["}", "\n}"])
            sides = zip(*branches)
            parts.append([head + "".join(space + each + "}" for space, each in zip(spaces, side)) + tail for side in sides])
        elif kind == "plain":
            parts.append([draw.choice(["{name}", "{0}", "{d, date, long}", "{{user}}"])] * 2)
        elif kind == "quoted":
            parts.append([draw.choice(["'{a}'", "'{''b'"])] * 2)
        elif kind == "number" and number:
            parts.append(["#"] * 2)
        else:
            text = draw.choice(WORDS)
            parts.append([text, text.swapcase()])
    return [" ".join(side) for side in zip(*parts)]


def cases(count=150):
    for seed in range(count):
        case = generated(random.Random(seed))
        if is_message(case[0]):
            yield case


def test_only_the_text_of_branches_changes():
    found = list(cases())
    assert len(found) > 50
    for source, wanted in found:
        document = TextFile(source, MESSAGE, Options())
        assert document.translated(translate_units(Fake(str), document.units)) == source
        assert document.translated(translate_units(Fake(swapped), document.units)) == wanted, source


def test_messages_in_files():
    for source, wanted in cases(40):
        assert json.loads(translated(json.dumps({"a": source}), "json", swapped)) == {"a": wanted}
        lines = [f"msgid {json.dumps(each, ensure_ascii=False)}" for each in (source, wanted)]
        assert translated(f'{lines[0]}\nmsgstr ""\n', "po", swapped) == f"{lines[0]}\n{lines[1].replace('msgid', 'msgstr')}\n"
        one, other = (html.escape(each, quote=False) for each in (source, wanted))
        assert translated(f"<p>{one}</p>", "html", swapped) == f"<p>{other}</p>"
        unit = "<xliff><trans-unit><source>{}</source>{}</trans-unit></xliff>"
        assert translated(unit.format(one, ""), "xlf", swapped) == unit.format(one, f"<target>{other}</target>")


def test_tags_in_branches():
    source = "{n, plural, one {a <x id='a'/> &lt;b} other {<g>go {m, select, other {on &amp; <x/>}}</g> now}} &#38; <g>then</g>"
    wanted = "{n, plural, one {A <x id='a'/> &lt;B} other {<g>GO {m, select, other {ON &amp; <x/>}}</g> NOW}} &#38; <g>THEN</g>"
    unit = "<xliff><segment><source>{}</source>{}</segment></xliff>"
    assert translated(unit.format(source, ""), "xlf", swapped) == unit.format(source, f"<target>{wanted}</target>")
    source, wanted = (each.replace("<x", "<img").replace("g>", "b>") for each in (source, wanted))
    assert translated(f"<td>{source}</td>", "html", swapped) == f"<td>{wanted}</td>"
    assert json.loads(translated(json.dumps([source]), "json", swapped, markup="html")) == [wanted]
    same = "{n} {n, plural, one {file} other {files}}"
    assert json.loads(translated(json.dumps([same]), "json", swapped)) == ["{n} {n, plural, one {FILE} other {FILES}}"]


def test_numbers_and_apostrophes():
    """A plural's # is shown as a number; no apostrophe of a translation begins a quotation."""
    fake, source = (
        Fake(lambda text: text.replace("the ", "l'")),
        "See the {a} of {n, plural, =0{the # of the } one{#} few{go # # on}}",
    )
    document = TextFile(source, MESSAGE, Options())
    found = document.translated(translate_units(fake, document.units))
    assert found == "See l’{a} of {n, plural, =0{l’# of the } one{#} few{go # # on}}"
    assert sorted(fake.seen) == ["See the {a} of {n}", "go 5 5 on", "the 0 of the"]
    document = TextFile("It''s the {n, select, a{the #}}", MESSAGE, Options())
    assert document.translated(translate_units(fake, document.units)) == "It''s l''{n, select, a{l''#}}"


MALFORMED = [
    "{n, plural, one {a file} other {files}",
    "{n, plural, one {a file",
    "{n, plural, }",
    "{n, select, a b {c}}",
    "{n, plural, one {a {b}}",
    "{n, plural, one {<p>a</p>}",
    "{n, plural, one " * 3_000,
    "{n, select, a {b}}" * 3_000,
    "{n, select, a {" * (DEEPEST + 2) + "b" + "}}" * (DEEPEST + 2),
]


@pytest.mark.parametrize("source", MALFORMED, ids=lambda each: each[-20:])
def test_malformed_messages_stay(source):
    assert is_message(source)
    for name, text in (("json", json.dumps([source])), ("po", f'msgid "{source}"\nmsgstr ""\n'), ("html", f"<p>{source}</p>")):
        assert translated(text, name, str.upper).lower() == text.lower() and (name == "html" or "FILE" not in text)


def test_what_is_no_message():
    for text in (
        "{name} has {n, number, integer} {files}",
        "'{n, plural, one {a}}'",
        "`{n, plural, one {a}}`",
        "{n, choice, 0#no|1#{a}}",
    ):
        assert not messages(text)
    assert translated("[\"Go {n, number}. `{n, plural, one {a}}` '{b, select, c {d}}'\"]", "json", str.swapcase).count("GO") == 0


def test_templates_beside_messages():
    """Mustache is no argument; a paragraph that only names a message in code is translated as any other."""
    source = "{m, plural, =1 {one minute} other {{{m}} minutes}} {{user}}"
    assert translated(json.dumps([source]), "json", swapped) == json.dumps(
        ["{m, plural, =1 {ONE MINUTE} other {{{m}} MINUTES}} {{user}}"]
    )
    assert translated("Use `{n, plural, one {a}` here\n", "md", swapped) == "uSE `{n, plural, one {a}` HERE\n"
