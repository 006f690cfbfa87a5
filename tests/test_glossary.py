"""Glossaries: files, finding terms, and translations that use them."""

import json

import pytest
from conftest import ROOT

from specdec_plugins import Translator
from specdec_plugins.commands import translate
from specdec_plugins.text.glossary import Glossary, Term, missing

DEMO = ROOT / "data" / "demo.en-de"
TERMS = Glossary([Term("dog", "Köter"), Term("red shirt", "Rothemd"), Term("shirt", "Leibchen"), Term("IT", "Technik", True)])


def found(text):
    return [(text[first:end], term.target) for (first, end), term in TERMS.find(text)]


def test_terms_are_whole_words_and_the_longest():
    assert found("A Dog in a red shirt, a shirt and dogs") == [("Dog", "Köter"), ("red shirt", "Rothemd"), ("shirt", "Leibchen")]
    assert found("It is IT.") == [("IT", "Technik")] and found("") == []


def test_many_terms_with_one_first_word():
    """A term is looked up, not searched for among them; the exact one comes before another case."""
    terms = Glossary(
        [*(Term(f"a {'b' * n} {m}", "x") for n in range(100) for m in range(50)), Term("IT", "es"), Term("it", "sie")]
    )
    assert [term.source for _, term in terms.find("it " + "A b " * 5_000 + "a bb 7")] == ["it", "a bb 7"]


def test_what_a_translation_lacks():
    """Inflected forms count, words that only begin like a term do not; of a term used too rarely, the last is missing."""
    terms = TERMS.find("A dog sees a dog in a shirt")
    assert [each.target for _, each in missing(terms, "Ein Köter sieht im Leibchen")] == ["Köter"]
    assert missing(terms, "Köter und Köters Leibchen") == [] and len(missing(terms, "Köterhaftes Hundeleibchen")) == 3
    assert missing(terms, "Ein Köter sieht im Leibchen")[0][0] == (13, 16)


@pytest.mark.parametrize(
    "line",
    ["dog", "dog\t", "\tHund", "dog\tHund\tx", "a\tb\tcase\tc", "a" * 201 + "\tb"],
    ids=lambda line: line[:9].strip() or "empty",
)
def test_bad_files(tmp_path, line):
    path = tmp_path / "terms.tsv"
    path.write_text(f"# comment\nIT\tEDV\tcase\n\n{line}\n")
    with pytest.raises(ValueError, match=r"terms.tsv, line 4: "):
        Glossary.read(str(path))
    path.write_text("# comment\nIT\tEDV\tcase\n dog \tHund\n")
    assert Glossary.read(str(path)).terms == [Term("IT", "EDV", True), Term("dog", "Hund")]


def test_translations_use_terms_with_and_without_drafts():
    lines = ["A dog runs through the snow.", "A man in a red shirt is standing near a dog.", "Two women talk.", "IT"]
    outputs = []
    for strategy in ("ar", "specdec"):
        translator = Translator.from_pretrained(DEMO, threads=1, strategy=strategy)
        results, plain = translator.translate(lines, glossary=TERMS), translator.translate(lines)
        outputs.append([(each.text, each.unplaced) for each in results])
        for line, result in zip(lines, results):
            assert result.unplaced == [term.source for _, term in missing(TERMS.find(line), result.text)]
        assert results[2].text == plain[2].text and results[0].alignment is None
    assert outputs[0] == outputs[1]
    assert "Köter" in outputs[0][0][0] and not outputs[0][0][1]
    begun = translator.translate(["A dog runs."], beginnings=["Der Köter"])[0].text
    assert begun.startswith("Der Köter") and len(begun) > len("Der Köter")
    both = translator.translate(["A dog in {x} runs."], glossary=TERMS, protected=[[(9, 12)]])[0]
    assert both.text.count("{x}") == 1


def test_the_command(tmp_path, capsys, monkeypatch):
    text, out, terms = tmp_path / "text", tmp_path / "out", tmp_path / "terms"
    text.write_text("A dog runs through the snow.\n")
    terms.write_text("dog\tKöter\nzebra\tZebra\n")
    known = ["--model", str(DEMO), "-i", str(text), "-o", str(out), "--quiet", "--threads", "1", "--glossary", str(terms)]
    assert translate.main([*known, "--format", "json"]) == 0
    (answer,) = map(json.loads, out.read_text().splitlines())
    assert "Köter" in answer["text"] and answer["unplaced"] == []
    terms.write_text("snow\tZwiebelfisch\nin\tZwiebelfisch\n")
    text.write_text("A dog runs in.\n")
    assert translate.main(known) == 0
    lacks = "Zwiebelfisch" not in out.read_text()
    assert lacks == ("line 1: without the glossary's translation of in\n" in capsys.readouterr().err)
    monkeypatch.setattr("specdec_plugins.terms.WORSE", -1e9)  # no term fits
    cues = tmp_path / "text.srt"
    cues.write_text("1\n00:00:01,000 --> 00:00:02,000\nA dog runs in.\n")
    for more, line in (([text], 1), ([text, "--markup", "html"], 1), ([cues], 3)):
        assert translate.main([*map(str, more), *known[:2], *known[4:]]) == 0
        assert f"{more[0]}, line {line}: without the glossary's translation of in\n" in capsys.readouterr().err
    assert translate.main([*known, "--sampling"]) == 2 and "--glossary" in capsys.readouterr().err
    terms.write_text("dog\n")
    assert translate.main(known) == 1 and "line 1: not a source term" in capsys.readouterr().err


def test_another_glossary_of_the_same_name_is_not_resumed(tmp_path, capsys):
    text, out, terms = tmp_path / "text", tmp_path / "out", tmp_path / "terms"
    text.write_text("A dog.\n" * 3 + "A dog\0.\n")  # ends the run after three lines
    known = ["--model", str(DEMO), "-i", str(text), "-o", str(out), "--quiet", "--threads", "1", "--glossary", str(terms)]
    terms.write_text("dog\tKöter\n")
    assert translate.main(known) == 1
    text.write_text("A dog.\n" * 4)
    terms.write_text("dog\tDackel\n")
    capsys.readouterr()
    assert translate.main([*known, "--resume"]) == 1 and "made with --glossary of content " in capsys.readouterr().err
    terms.write_text("dog\tKöter\n")
    assert translate.main([*known, "--resume"]) == 0 and out.read_text().count("Köter") == 4
