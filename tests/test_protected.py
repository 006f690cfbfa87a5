"""Protected text: what is found, edits and their spans, and that translations keep every part exactly once."""

import json
import random
import re
import time
from itertools import pairwise

import pytest
from conftest import ROOT, corpus

from specdec_plugins import Translator
from specdec_plugins.commands import translate
from specdec_plugins.documents import translate_documents
from specdec_plugins.options import CallOptions
from specdec_plugins.protection import translate_protected
from specdec_plugins.rewriters import rewriters_for, with_missing_numbers
from specdec_plugins.settings import Settings
from specdec_plugins.text.alignment import Alignment
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.patterns import pattern
from specdec_plugins.text.protected import Edits, Protected

DEMO, DOCS = ROOT / "data" / "demo.en-de", ROOT / "data" / "docs.en-fr"
ALL = pattern()


@pytest.fixture(scope="module")
def docs():
    return Translator.from_pretrained(DOCS, threads=1, dtype="auto")


def test_a_call_passes_through_the_rewriters_that_it_asks_for():
    plain, kept = CallOptions(), CallOptions(protect=ALL, protected=[None])
    assert rewriters_for(Settings(), plain) == [with_missing_numbers]
    assert rewriters_for(Settings(), CallOptions(tokenized=True)) == []
    assert rewriters_for(Settings(windows=9), kept) == [with_missing_numbers, translate_protected, translate_documents]


# ---- finding


@pytest.mark.parametrize(
    "text, parts",
    [
        ("Copied %d of %1$s files to %(name)s, 100%.", ["%d", "%1$s", "%(name)s"]),
        ("50% off, 50 % discount, %5.2f%% done", ["%5.2f", "%%"]),
        ("Hello {name}, {0} and {}: {x:.2f} {a.b[0]!r}", ["{name}", "{0}", "{}", "{x:.2f}", "{a.b[0]!r}"]),
        (
            "{n, plural, one {# file} other {# files}} in {{ user.name }} and {{{raw}}}",
            ["{n, plural, one {# file} other {# files}}", "{{ user.name }}", "{{{raw}}}"],
        ),
        (
            "See https://example.org/a?b=c#d. Or (http://x.y/z), mail a.b+c@d-e.org.",
            ["https://example.org/a?b=c#d", "http://x.y/z", "a.b+c@d-e.org"],
        ),
        ("Run `git commit` or ``a`b`` in ${HOME}", ["`git commit`", "``a`b``", "${HOME}"]),
        ("A <b>bold</b> <a href='x'>link</a><br/>, <file>", ["<b>", "</b>", "<a href='x'>", "</a>", "<br/>", "<file>"]),
        ("Set $HOME, $PATH_2 or PHP's $this->view->render(); it costs $5", ["$HOME", "$PATH_2", "$this->view->render()"]),
        ("Use --dtype int8, --date=iso-8601, -f, -tz, well-known -- yes", ["--dtype", "int8", "--date=iso-8601", "-f", "-tz"]),
        (
            "See docs/reproduce.md, /etc/hosts.allow, ../a/b/, ~/.ssh and C:\\php\\php.exe.",
            ["docs/reproduce.md", "/etc/hosts.allow", "../a/b/", "~/.ssh", "C:\\php\\php.exe"],
        ),
        ("README.md, node.js, .gitignore, config.inc.php: a file.", ["README.md", "node.js", ".gitignore", "config.inc.php"]),
        (
            "max_len and __init__ of os.environ, asyncio.TaskGroup, Model::load(), yii\\base\\Event, f(), open(2)",
            ["max_len", "__init__", "os.environ", "asyncio.TaskGroup", "Model::load()", "yii\\base\\Event", "f()", "open(2)"],
        ),
        ("IPv4 on x86_64 by innerHTML in python3.11", ["IPv4", "x86_64", "innerHTML", "python3.11"]),
        (
            "commit f1b8411 or 3e5a0c12, 0xFF, #FFCC00, 12345678-1234-5678-1234-567812345678",
            ["f1b8411", "3e5a0c12", "0xFF", "#FFCC00", "12345678-1234-5678-1234-567812345678"],
        ),
        ("since 1.2.3, v2.0, 3.0.0rc1, 5.x and 10.0.0.0/8", ["1.2.3", "v2.0", "3.0.0rc1", "5.x", "10.0.0.0/8"]),
        ("文件README.md在/usr/bin里", ["README.md", "/usr/bin"]),
        ("An e.g., the U.S., a.m., i.e. and/or key/value TCP/IP 24/7 he/she km/h, 3.5 or 1.000.000 on 17.05.2026", []),
        ("It works.Then it ends.This etc. No.7, Fig.3, file(s), _so_ -- and - so, 5 -3, end...And kWh", []),
        ("z.B. Ein- und -ausgabe, d.h. 2.5 kHz, am 1.5.2026 um 12.30 Uhr; l'été, étudiant.e.s, aujourd'hui", []),
        ("Nothing here: a % b, {, }, @home, 3 < 4, `open", []),
    ],
)
def test_what_is_protected(text, parts):
    assert Protected.of(text, ALL).parts == parts


def test_parts_that_count_by_their_order():
    """A swapped ``%s`` and ``%d`` end the program that prints them, and crossed tags are not well formed."""
    for line, same, swapped in (
        ("%s of %d", "%s von %d", "%d von %s"),
        ("{} is {!r}", "{}: {!r}", "{!r}: {}"),
        ("<b>a</b> %s", "%s <b>a</b>", "</b>a<b> %s"),
        ("<b><i>a</i></b>", "<b><i>b</i></b>", "<b><i>b</b></i>"),
    ):
        source = Protected.of(line, ALL)
        assert source.intact(same) and not source.intact(swapped)
    for line in ("%1$s of %2$d", "%(a)s of {b}", "{a}, {b}", "%% {0} %s"):
        source = Protected.of(line, ALL)
        assert source.intact(" ".join(source.parts[::-1]))
    source, text = Protected.of("%s of %d", ALL), "a b"
    links = Alignment([(3, 5), (8, 8)], [(0, 1), (2, 3)], [(0, 0)])
    edits, numbers = source.inserted(text, links)
    assert source.intact(edits(text)) and numbers == [0, 1]


def test_a_run_of_backticks_takes_no_time():
    began = time.process_time()
    assert ALL.search("`" * 50_000) is None
    assert time.process_time() - began < 2


def test_time_is_linear():
    """Of runs that almost match, with an ending that they must not have."""
    rng = random.Random(1)
    signs = (
        r"a a. a- a_ /a / ./ a/ @ --a - 1. 1a a:: a\ a( C:\( $a-> {a, {{ ` http:// A. é 0x #F %1$ v1. .a a.A aA __ a@ 1- f1 ( ="
    )
    pieces = [*signs.split(), "<a "]
    for unit in [*pieces, *("".join(rng.choices(pieces, k=rng.randint(2, 4))) for _ in range(40))]:
        text = unit * (40_000 // len(unit)) + rng.choice(["", "é", "!"])
        began = time.process_time()
        for _ in ALL.finditer(text):
            pass
        assert time.process_time() - began < 2, unit


def test_other_patterns_and_spans():
    assert Protected.of("Press CTRL-C or {x}", pattern(r"[A-Z]{4}-\w")).parts == ["CTRL-C", "{x}"]
    assert Protected.of("abc def", None, [(4, 7), (0, 2), (1, 3), (5, 5)]).parts == ["abc", "def"]
    for wrong, fault in (("(", "is not a regular expression"), ("x*", "also matches an empty text")):
        with pytest.raises(ValueError, match=fault):
            pattern(wrong)


def test_counting_parts():
    source = Protected.of("{a} or {a}, not %s or `%s`", ALL)
    assert source.intact("`%s`, %s: {a} {a}") and not source.intact("`%s`: {a} {a}") and not source.intact("`%s`, %s %s: {a} {a}")
    address = Protected.of("See https://a.b/c.", ALL)
    assert address.intact("(https://a.b/c)") and not address.intact("https://a.b/c/c/") and not address.intact("https://a.b/cd")
    joined = Protected.of("Open file.py now", ALL)
    assert (
        joined.intact("打开file.py文件")
        and joined.intact("file.py를")
        and not joined.intact("ôfile.py")
        and not joined.intact("file.pyc")
    )
    option = Protected.of("Use -f or /a", ALL)
    assert option.intact("-f et /a") and not option.intact("celui-f et /a") and not option.intact("-f et b/a")
    assert Protected("x-f", [(1, 3)]).intact("y-f")  # as in the source
    word = Protected("use to go to", [(4, 6)])
    assert word.intact("aller to to") and not word.intact("aller to tomorrow")


# ---- edits


def test_edits_and_spans():
    """Spans go back and ahead: those outside of edits to the same characters, those in them to the whole part."""
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choices("abc ", k=rng.randrange(1, 20)))
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text) + 1, 2 * rng.randrange(4))))
        parts = [((first, end), rng.choice(["", "X", "long one"])) for first, end in zip(cuts[::2], cuts[1::2])]
        edits = Edits(parts)
        new = edits(text)
        for (_, put), place in zip(parts, edits.places):
            assert new[slice(*place)] == put
        free = set(range(len(text))) - {at for (first, end), _ in parts for at in range(first, end)}
        for at in free:
            moved = edits.ahead((at, at + 1))
            assert new[slice(*moved)] == text[at] and edits.back(moved) == (at, at + 1)
        for ((first, end), put), place in zip(parts, edits.places):
            if put and first < end:
                assert edits.back((place[0], place[0] + 1)) == (first, end) and edits.ahead((first, end)) == place


def test_parts_go_where_the_alignment_says():
    source = Protected.of("Open {a} with {b}, {c} says", ALL)
    text = "Avec dit ouvrez ,"  # Open: ouvrez, with: Avec
    links = [((0, 4), (9, 15)), ((9, 13), (0, 4)), ((17, 18), (16, 17)), ((23, 27), (5, 8))]
    alignment = Alignment([one for one, _ in links], [other for _, other in links], [(n, n) for n in range(4)])
    edits, numbers = source.inserted(text, alignment)
    assert edits(text) == "Avec {b} dit ouvrez {a} , {c}" and numbers == [1, 0, 2]
    assert source.inserted("", Alignment([], [], []))[0]("") == "{a}{b}{c}"
    start = Protected.of("{x} runs", ALL)
    assert start.inserted("rennt", Alignment([(4, 8)], [(0, 5)], [(0, 0)]))[0]("rennt") == "{x} rennt"


def test_parts_joined_to_words():
    """Masks stand apart, or models would not copy them, and parts are joined again; so are those that were cut out."""
    source = Protected.of("See <b>it</b> now", ALL)
    masks = source.masks()
    assert source.masked(masks)(source.text) == "See X1 it X2 now"
    back = source.unmasked("Voir X1 ceci X2 maintenant", masks)
    assert back and back("Voir X1 ceci X2 maintenant") == "Voir <b>ceci</b> maintenant"
    links = Alignment([(0, 3), (7, 9), (14, 17)], [(0, 4), (5, 9), (10, 20)], [(0, 0), (1, 1), (2, 2)])
    assert source.inserted("Voir ceci maintenant", links)[0]("Voir ceci maintenant") == "Voir <b>ceci</b> maintenant"


# ---- translations


PARTS = [
    *"%s %d %1$s %(name)s {name} {0} {}".split(),
    "{{ user }}",
    "{n, plural, one {# file} other {# files}}",
    *"${HOME} `f_g()` ``a`b`` https://example.org/x?y=1 a.b@example.org %5.2f %% {x!r:>10}".split(),
]
TEMPLATES = [
    "Copy {} to {}.",
    "The file {} was not found",
    "{} of {} items are selected ({})",
    "Could not open {}: {}",
    "{}",
    "Hello {}!",
    "Use {} or {} when you need more than {} bytes.",
    "See {} for the documentation of {}.",
    "{}{}",
    '"{}" is no {}',
    "A man in {} is standing near {}",
    "Error: {} ({}, {}, {})",
]


def generated(count, seed=1):
    rng = random.Random(seed)
    for _ in range(count):
        template = rng.choice(TEMPLATES).split("{}")
        yield "".join(f"{text}{rng.choice(PARTS)}" for text in template[:-1]) + template[-1]


MESSAGE = re.compile(r"\{n, plural, one \{[^{}#]*#[^{}#]*\} other \{[^{}#]*#[^{}#]*\}\}")


def kept(lines, results):
    """Every part as often as in the source: matches of the table in both texts, one by one. The message's branches are text."""
    for line, result in zip(lines, results):
        protected, text = Protected.of(line, ALL), MESSAGE.sub(r"{n, plural, one {# file} other {# files}}", result.text)
        assert protected.intact(text), (line, result.text)
        if protected.spans:
            left = text
            for part in sorted(protected.parts, key=len, reverse=True):
                assert part in left, (line, result.text)
                left = left.replace(part, "\0", 1)


@pytest.mark.parametrize(
    "folder, count",
    [(DOCS, 60), (DEMO, 60), pytest.param(DOCS, 2_000, marks=pytest.mark.long)],
    ids=lambda each: getattr(each, "name", each),
)
def test_generated_segments(folder, count):
    """Kept exactly once, on a pair that knows such text and on one that does not; the same with and without drafts.

    Of 2,000 lines 1,284 differ."""
    lines = [*dict.fromkeys(generated(count))]
    found = {}
    for strategy in ("ar", "specdec"):
        translator = Translator.from_pretrained(folder, threads=1, dtype="auto", strategy=strategy)
        results = translator.translate(lines, protect=ALL, alignments=True)
        kept(lines, results)
        found[strategy] = [(each.text, each.alignment) for each in results]
    assert found["ar"] == found["specdec"]
    for line, (text, alignment) in zip(lines, found["ar"]):
        for side, whole in ((alignment.source, line), (alignment.target, text)):
            assert all(0 <= first < end <= len(whole) for first, end in side) and [*side] == sorted(side)
            assert all(one[1] <= other[0] for one, other in pairwise(side)), (line, text, side)


@pytest.mark.long
def test_real_segments(docs):
    """1,000 segments of documentation with parts, and those without: whose text does not change at all."""
    lines = list(read_lines(corpus("docs-en-fr") / "valid.en"))
    plain, results = docs.translate(lines), docs.translate(lines, protect=ALL)
    kept(lines, results)
    assert all(one.text == other.text for line, one, other in zip(lines, plain, results) if not Protected.of(line, ALL).spans)


def test_intact_outputs_do_not_change(docs):
    lines = ["The file %s was not found.", "Use `foo_bar()` to open it.", "A dog runs."]
    plain, results = docs.translate(lines), docs.translate(lines, protect=ALL)
    assert any(Protected.of(line, ALL).intact(each.text) for line, each in zip(lines[:2], plain))
    for line, one, other in zip(lines, plain, results):
        assert one.text == other.text or not Protected.of(line, ALL).intact(one.text)


def test_branches_of_messages(docs):
    """They are translated by themselves, with all that is protected, and links keep pointing at their words."""
    lines = [
        "Open {n, plural, =0 {no files} one {one file} other {# CTRL-C files}} in {a}",
        "{a, select, other {{b, plural, other {# files}}}}",
        "The files",
        "Open {n, plural, one {a file",
        "`{n, plural, other {the files}}` is {n}",
    ]
    protect = pattern("CTRL-.")
    results = docs.translate(lines, protect=protect, alignments=True, source_lang=["en"] * 5)
    texts = [each.text for each in results]
    assert re.fullmatch(r"\w+ {n, plural, =0 {[^{}#]+} one {[^{}#]+} other {# [^{}#]*CTRL-C[^{}#]*}} dans {a}", texts[0])
    assert re.fullmatch("{a, select, other {{b, plural, other {# fichiers}}}}", texts[1])
    assert texts[3] == lines[3] and "`{n, plural, other {the files}}`" in texts[4]
    words = [texts[0][slice(*each)] for each in results[0].alignment.target]
    assert words[0] == texts[0].split()[0] and "dans" in words
    argument = lines[0][5 : lines[0].index(" in {a}")]
    assert argument in docs.translate(lines[:1], protected=[[(5, 5 + len(argument))]], protect=protect)[0].text


def test_text_beside_parts_and_spans_of_the_caller(docs):
    line = "Open the Settings page"
    (result,) = docs.translate([line], protected=[[(9, 17)]], alignments=True)
    assert len(re.findall(r"\bSettings\b", result.text)) == 1
    assert ((9, 17), (result.text.index("Settings"), result.text.index("Settings") + 8)) in result.alignment.links
    assert docs.translate(["", "{}", "{a} {b}"], protect=ALL)[1].text == "{}"
    with pytest.raises(ValueError, match="2 sentences, but 1 lists of protected spans"):
        docs.translate([line, line], protected=[[(9, 17)]])
    for span in ((-1, 2), (9, 23), (30, 40)):
        with pytest.raises(ValueError, match="not all within a text of 22 characters"):
            docs.translate([line], protected=[[(0, 4), span]])


def test_names_and_numbers(docs):
    """Of real segments in which the model alters some."""
    lines = [
        "Thus, the template rendered will be found in application/views/scripts/index/index.phtml.",
        "The network (IPv4Network) this interface belongs to.",
        "The negated form --no-create-reflog only overrides an earlier --create-reflog, but currently does not negate the "
        "setting of core.logAllRefUpdates.",
        "Functional only with InterBase 6.5 and up.",
        "Times plain decoding: this pair in int8 1.0 to 1.2, in float32 1.5 to 2.1 on Zen 4, in int8 1.35 on AMX, in "
        "float16 1.8 on an H200; a transformer-base pair in int8 1.65 on AMX.",
    ]
    plain, results = docs.translate(lines), docs.translate(lines, protect=ALL)
    sources = [Protected.of(line, ALL) for line in lines]
    assert not any(source.intact(each.text) for source, each in zip(sources[:3], plain)) and plain[3].missing_numbers == ["6.5"]
    assert not any(source.lost(each.text) for source, each in zip(sources, results))
    assert [each.text for each in docs.translate(lines, protected=[None] * 5)] == [each.text for each in plain]


def test_files_are_protected_by_default(tmp_path):
    """But not lines of text."""
    line = "The network (IPv4Network) this interface belongs to."
    for name, more, kept in (
        ("a.md", [], True),
        ("a.md", ["--no-protect"], False),
        ("a.txt", [], False),
        ("a.txt", ["--protect"], True),
    ):
        (tmp_path / name).write_text(f"{line}\n")
        (tmp_path / "out").mkdir(exist_ok=True)
        command = [
            "--model",
            str(DOCS),
            str(tmp_path / name),
            "-o",
            f"{tmp_path}/out/",
            *"--quiet --threads 1 --dtype int8".split(),
        ]
        assert translate.main([*command, *more]) == 0
        assert ("IPv4Network" in (tmp_path / "out" / name).read_text()) == kept


def test_not_for_several_outputs():
    for options in ({"windows": "sentence"}, {"sampling": True}, {"strategy": "ar", "beam": 2, "nbest": 2}):
        with pytest.raises(ValueError, match="one output per raw line"):
            Translator.from_pretrained(DEMO, threads=1, **options).translate(["x"], protect=ALL)
    beam = Translator.from_pretrained(DEMO, threads=1, strategy="ar", beam=2)
    kept(["A man in {name} runs"], beam.translate(["A man in {name} runs"], protect=ALL))


def test_the_command(tmp_path, capsys):
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("A man in {name} and CTRL-C.\nTwo dogs run.\n")
    known = ["--model", str(DEMO), "-i", str(text), "-o", str(out), "--quiet", "--threads", "1"]
    assert translate.main([*known, "--protect-pattern", "CTRL-.", "--format", "json"]) == 0
    first, second = (json.loads(line)["text"] for line in out.read_text().splitlines())
    assert first.count("{name}") == first.count("CTRL-C") == 1 and second == "Zwei Hunde laufen."
    for more, message in (
        (["--protect-pattern", "("], "not a regular expression"),
        (["--protect", "--windows", "sentence"], "--protect"),
        (["--no-protect", "--protect-pattern", "x"], "cannot be combined with --no-protect"),
        (["--protect", "--sampling"], "--protect"),
        (["--protect", "--tokenized"], "--protect"),
    ):
        assert translate.main([*known, *more]) == 2
        assert message in capsys.readouterr().err
