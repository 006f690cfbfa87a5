"""Numbers that translations lack: what counts as the same number, and that nothing takes more than linear time."""

import json
import time

import pytest
from conftest import ROOT, corpus

from specdec_plugins import Translator
from specdec_plugins.commands import translate
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.numbers import missing_numbers, number_spans

DOCS = ROOT / "data" / "docs.en-fr"


@pytest.mark.parametrize(
    "source, text, missing",
    [
        ("Use 1.35 of 1,234.5 and 1,000", "Utilisez 1,35 de 1 234,5 et 1 000", []),
        ("Use 1.35 and 1,000 times", "Utilisez 1,53 et 100 fois", ["1.35", "1,000"]),
        ("1000000 bytes, 50%, 10MB, 5GHz", "1 000 000 octets, 50 %, 10 Mo, 5 GHz", []),
        ("1,5 und 2.000", "1.5 and 2,000", []),
        ("1.234,56 Euro", "1,234.56 euros", []),
        ("Python 3.10", "Python 3.1", ["3.10"]),
        ("PHP 7.4.0 and 192.168.1.1", "PHP 7.4 et 192.168.1.1", ["7.4.0"]),
        ("5, 5 and 5", "5 et 5", ["5"]),
        ("between (5, 15)", "entre (5,15)", []),
        ("sizes 10 100", "tailles 10, 100", []),
        ("IPv4, utf8 and x86_64", "rien", []),  # names
        ("4-byte, 32-bit, 2nd, 42nd", "4 octets, 32 bits, 2e, 42e", []),
        ("٣ و 15", "15", ["3"]),  # reported in ASCII digits
        (".5", "", []),
        ("on 2026-05-17 and 17.05.2026 and 5/17/2026", "le 17 mai 2026, le 17 mai 2026 et le 17 mai 2026", []),
        ("on 2026-05-17", "le 17 mai", ["2026"]),
        ("the 19th century, the 1990s", "le XIXe siècle, les années 90", []),
        ("room 19", "XIX", ["19"]),
    ],
)
def test_same_numbers(source, text, missing):
    assert missing_numbers(source, text, "fr") == missing


def test_small_numbers_may_be_words():
    for number, words in {0: "zéro aucune", 1: "une premier", 2: "deux", 3: "Trois", 9: "neuf", 12: "douze"}.items():
        for word in words.split():
            assert missing_numbers(f"{number} files", f"{word} fichiers", "fr") == []
        assert missing_numbers(f"{number} files", "des fichiers", "fr") == [str(number)]
        assert missing_numbers(f"{number} files", "файлов", "ru") == []  # whose words are not known
    assert missing_numbers("2 files", "Zwei Dateien", "de") == missing_numbers("2 Dateien", "both files", "en") == []
    assert missing_numbers("13 files", "des fichiers", "ru") == ["13"]


def test_numbers_that_are_protected():
    text = "Use 3 of 1.5, 13 or 1,000 on 2026-05-17, IPv6"
    assert [text[first:end] for first, end in number_spans(text)] == ["1.5", "13", "1,000"]


def test_human_translations_lack_few():
    """Of the segments of the validation text with numbers none is reported: all references have them."""
    source, target = (list(read_lines(corpus("docs-en-fr") / f"valid.{side}")) for side in ("en", "fr"))
    assert sum(bool(missing_numbers(*pair, "fr")) for pair in zip(source, target)) == 0


def test_time_is_linear():
    for unit in ("5 ", "1,", "1.", "1 000 ", "13th ", "1990s ", "2026-05-17 ", "12'", "9"):
        text = unit * (200_000 // len(unit))
        began = time.process_time()
        number_spans(text)
        missing_numbers(text, "deux " * 20_000, "fr")
        assert time.process_time() - began < 3, unit


def test_they_are_reported(tmp_path, capsys):
    """By the command in its summary and in JSON, and in Python; by default nothing else changes."""
    line = "Functional only with InterBase 6 and up."
    translator = Translator.from_pretrained(DOCS, threads=1, dtype="int8")
    (result,) = translator.translate([line])
    assert "6" not in result.text and result.missing_numbers == ["6"]
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text(f"{line}\nIt has 3 files.\n" * 7)
    known = ["--model", str(DOCS), "-i", str(text), "-o", str(out), "--threads", "1", "--dtype", "int8"]
    assert translate.main([*known, "--format", "json"]) == 0
    records = [json.loads(each) for each in out.read_text().splitlines()]
    assert [each["missing_numbers"] for each in records] == [["6"], []] * 7 and records[0]["text"] == result.text
    said = capsys.readouterr().err
    shown = "; ".join(f"{text}, line {number} (6)" for number in (1, 3, 5, 7, 9))
    assert f"7 outputs lack numbers or names of the source: {shown}; ...\n" in said
    markdown = tmp_path / "a.md"
    markdown.write_text(f"# Title\n\n{line}\n")
    assert translate.main(["--model", str(DOCS), str(markdown), "-o", str(out), "--threads", "1", "--dtype", "int8"]) == 0
    assert f"1 output lacks numbers or names of the source: {markdown}, line 3 (6)\n" in capsys.readouterr().err
