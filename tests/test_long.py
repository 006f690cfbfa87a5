"""Long documents: the corpus made of captions."""

from collections import Counter
from random import Random
from types import SimpleNamespace

import long_captions as captions
import pytest
import torch
from conftest import ROOT, run_script

from specdec_plugins.formats.folder import load_folder

PAIRS = [(f"en {number}.", f"de {number}.") for number in range(300)]


# ---- documents


def test_every_training_caption_is_once_in_a_document_of_each_size_beside_its_translation():
    documents = list(captions.training(PAIRS, 300, seed=1))
    assert documents == list(captions.training(PAIRS, 300, seed=1)) != list(captions.training(PAIRS, 300, seed=2))
    found = Counter()
    for source, target in documents:
        numbers = source.split()[1::2]
        assert target.split()[1::2] == numbers and set(source.split()[::2]) == {"en"} and set(target.split()[::2]) == {"de"}
        assert len(numbers) <= 1.5 * max(captions.SIZES)
        found.update(numbers)
    assert found == Counter({f"{number}.": len(captions.SIZES) for number in range(300)})


def test_of_more_captions_each_size_has_some():
    found = Counter(number for source, _ in captions.training(PAIRS, 60, seed=1) for number in source.split()[1::2])
    assert sum(found.values()) == 60 * len(captions.SIZES) and len(found) > 170  # of 300


def test_captions_translated_in_loops_or_not_of_one_sentence_are_left_out():
    good = [("a", "Ein blaues Fahrrad mit der Aufschrift der Stadt."), ("b", "blau-blauer"), ("c.", "Hallooo")]
    bad = [("d", "ein Wasser Wasser Wasser"), ("e", "Gumumumume"), ("f", "Er ist auf dem Weg auf dem Weg auf dem Weg.")]
    bad += [("It is 6 p.m. here.", "Hier ist Abend."), ("A dog.", "Ein Hund. Er bellt."), ("Really?", "Wirklich?")]
    assert captions.sound([*bad, *good]) == good


def test_captions_of_a_document_end_with_a_full_stop():
    assert captions.joined([("A dog ", "Ein Hund."), ("A cat!", "Eine Katze")]) == ("A dog. A cat!", "Ein Hund. Eine Katze.")


@pytest.mark.parametrize("size", [2, 12, 75])
def test_documents_have_half_to_one_and_a_half_times_their_size(size):
    lengths = list(map(len, captions.runs(range(20_000), size, Random(1))))
    assert sum(lengths) == 20_000 and min(lengths[:-1]) == size - size // 2 and max(lengths) == size + size // 2
    assert sum(lengths) / len(lengths) == pytest.approx(size, rel=0.05)


def test_test_documents_keep_the_order_and_leave_out_a_broken_last_one():
    assert list(captions.in_order(PAIRS[:7], 3)) == [
        ("en 0. en 1. en 2.", "de 0. de 1. de 2."),
        ("en 3. en 4. en 5.", "de 3. de 4. de 5."),
    ]


def test_translations_are_made_once_for_each_text(tmp_path, monkeypatch):
    """Of another text with as many lines they are made anew."""
    made = []

    class Upper:
        def __init__(self, *_):
            pass

        def stream(self, lines, **_):
            made.append(len(lines))
            return (SimpleNamespace(text=line.upper()) for line in lines)

    monkeypatch.setattr(captions, "Translator", Upper)
    pair = load_folder(captions.PAIR)
    for text in (["a", "b"], ["a", "b"], ["a", "c"], ["a", "c"]):
        assert captions.translated(pair, text, tmp_path / "translated.de") == [line.upper() for line in text]
    assert made == [2, 2]


@pytest.mark.long
def test_a_folder_of_captions_becomes_a_data_set_with_a_model_to_go_on_from(tmp_path):
    local, output = tmp_path / "local", tmp_path / "long"
    local.mkdir()
    for split, lines in (("train", 40), ("val", 70), ("test_2016_flickr", 260)):
        for lang, text in (("en", "A dog runs."), ("de", "Ein Hund rennt.")):
            (local / f"{split}.{lang}").write_text(f"{text}\n" * lines)
    (tmp_path / "mono.en").write_text("A cat sleeps.\n" * 400)
    others = ["--mono", tmp_path / "mono.en", "--output", output]
    assert run_script("long.sh", "--local", local, *others).returncode == 0
    assert len((output / "raw" / "train.en").read_text().split()) == 40 * 3 * len(captions.SIZES)
    text = (output / "raw" / "train.en").read_text()
    assert "A dog runs. A cat sleeps." in text and text.count("cat") > text.count("dog") > 0
    assert len((output / "raw" / "valid.de").read_text().splitlines()) == 1
    assert len((output / "raw" / "test4.de").read_text().splitlines()) == 1
    start = torch.load(output / "start.pt", weights_only=False)
    assert start["optimizer_history"][0]["num_updates"] == 0 and start["args"].encoder_layers == 4
    assert (output / "bin" / "dict.en.txt").read_text() == (ROOT / "data" / "demo.en-de" / "dict.en.txt").read_text()

    missing = run_script("long.sh", "--local", tmp_path / "none", *others)
    assert missing.returncode == 1 and missing.stderr.splitlines() == [
        f"data/long_captions.py: --local {tmp_path / 'none'}: no such folder"
    ]
