"""The corpus of corrections: which errors are put into captions, and the script from a folder of captions to a data set."""

import json
from collections import Counter
from functools import partial
from random import Random

import correction
import pytest
from conftest import run_script

from specdec_plugins.training import presets

CAPTIONS = [
    "A man in an orange hat is staring at something.",
    "A Boston Terrier has been running on lush green grass in front of a white fence.",
    "Five people wearing winter jackets and helmets stand in the snow, with snowmobiles in the background.",
    "The dogs were sleeping; a dog's owner wasn't, and an owl does what owls do.",
    "Some well-known people do what the man was doing with 2 t-shirts",
]
KNOWN = {
    word
    for caption in [*CAPTIONS, "hats dog owner owl grasses fences jacket helmet"]
    for word in correction.WORD.findall(caption)
}


def explained(caption, corrupted, kinds):
    """Whether the corrupted caption is the caption with one error of each of these kinds, and nothing else."""
    if not kinds:
        return caption == corrupted
    for word in correction.WORD.finditer(caption):
        if not corrupted.startswith(caption[: word.start()]):
            break
        for other in variants(word[0], kinds[0]):
            rest = caption[word.end() :]
            rest = rest.removeprefix(" ") if not other else rest
            before = caption[: word.start()] + other
            if corrupted.startswith(before) and explained(rest, corrupted[len(before) :], kinds[1:]):
                return True
    return False


def variants(word, kind):
    """What a word may become, written down apart from what makes it."""
    lower, places = word.lower(), range(1, len(word))
    return {
        "article dropped": [""] if lower in ("a", "an", "the") else [],
        "article changed": {"a": ["an"], "A": ["An"], "an": ["a"], "An": ["A"]}.get(word, []),
        "verb form": [
            other if word == lower else other.title()
            for pair in ("is are", "was were", "has have", "does do")
            for verb, other in (pair.split(), pair.split()[::-1])
            if lower == verb
        ],
        "final s": [word[:-1]] if word[-1] == "s" else [word + "s"],
        "letters swapped": [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in places[:-1]],
        "letter doubled": [word[:i] + word[i] + word[i:] for i in places],
        "letter dropped": [word[:i] + word[i + 1 :] for i in places],
    }[kind]


def test_every_kind_of_error_occurs_and_nothing_else_changes():
    made = Counter()
    for seed in range(200):
        for caption in CAPTIONS:
            corrupted, kinds = correction.corrupt(caption, 0.15, seed, KNOWN)
            assert explained(caption, corrupted, kinds), (caption, corrupted, kinds)
            assert (corrupted != caption) == bool(kinds)
            assert (corrupted, kinds) == correction.corrupt(caption, 0.15, seed, KNOWN)
            made.update(kinds)
    assert set(made) == set(correction.KINDS)
    assert min(made.values()) > 50


def test_the_rate_is_reached_and_seeds_differ():
    words = errors = clean = 0
    for seed in range(300):
        for caption in CAPTIONS:
            _, kinds = correction.corrupt(caption, 0.1, seed, KNOWN)
            words, errors, clean = words + len(correction.WORD.findall(caption)), errors + len(kinds), clean + (not kinds)
    assert errors / words == pytest.approx(0.1, abs=0.01)
    assert 0.15 < clean / (300 * len(CAPTIONS)) < 0.4  # sentences without errors
    assert len({correction.corrupt(CAPTIONS[1], 0.3, seed, KNOWN)[0] for seed in range(20)}) > 15
    assert correction.corrupt(CAPTIONS[1], 0, 1, KNOWN) == (CAPTIONS[1], [])


@pytest.mark.parametrize("word", ["oooo", "Aaaa", "abbb", "is", "The", "seen", "x"])
def test_no_error_leaves_a_word_as_it_was(word):
    for kind in correction.kinds_for(word, {"seens"}):
        for seed in range(20):
            assert correction.with_error(word, kind, Random(seed)) != word


def test_passages_keep_all_captions_in_order():
    made = Counter()
    captions = CAPTIONS * 40
    pairs = list(correction.passages(captions, 0.1, 1, KNOWN, made))
    assert " ".join(target for _, target in pairs) == " ".join(captions)
    assert made["passages"] == len(pairs) and made["captions"] == len(captions)
    sizes = Counter(sum(target.count(caption) for caption in CAPTIONS) for _, target in pairs)
    assert set(sizes) == {1, 2, 3, 4} and sizes[1] == made["single captions"]
    assert all(target.find(CAPTIONS[-1]) in (-1, len(target) - len(CAPTIONS[-1])) for _, target in pairs)  # no full stop
    assert sum(source == target for source, target in pairs) == made["passages without"] > 0


script = partial(run_script, "correction.sh")


def captions(folder, **lines):
    folder.mkdir()
    for name, count in lines.items():
        text = "".join(f"{caption}\n" for caption in (CAPTIONS * count)[:count])
        (folder / f"{name}.en").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.long
def test_script_from_captions_to_a_data_set(tmp_path):
    """Only English files are needed; the same seed gives the same bytes, and another one other errors."""
    local = captions(tmp_path / "local", train=60, val=12, test2016=9)
    options = "--local", local, "--workers", 1, "--bpe-operations", 100
    result = script(*options, "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "errors per 100 words" in result.stdout and "bin: " in result.stdout
    raw = {
        split: [(tmp_path / "out/raw" / f"{split}.{lang}").read_text() for lang in ("xe", "en")] for split in ("valid", "test")
    }
    assert raw["valid"][1].split() == (local / "val.en").read_text().split()  # the captions, in other lines
    assert raw["test"][1].split() == (local / "test2016.en").read_text().split() and raw["test"][0] != raw["test"][1]
    train = (tmp_path / "out/raw/train.en").read_text().split()
    assert train == (local / "train.en").read_text().split() * 3
    dictionaries = [(tmp_path / "out/bin" / f"dict.{lang}.txt").read_bytes() for lang in ("xe", "en")]
    assert dictionaries[0] == dictionaries[1]
    recorded = json.loads((tmp_path / "out/errors.json").read_text())
    assert (recorded["rate"], recorded["seed"]) == (0.1, 1) and recorded["counts"]["train"]["captions"] == 180
    prepared = json.loads((tmp_path / "out/prepare.json").read_text())
    assert prepared["tokenizer"] == presets.settings("correction")["tokenizer"] == "reversible"
    assert prepared["languages"] == [presets.settings("correction")[side] for side in ("src", "tgt")]

    again = script(*options, "--output", tmp_path / "out")
    assert again.returncode == 0 and "bin: done" in again.stdout
    other = script(*options, "--output", tmp_path / "other", "--seed", 2, "--rate", 0.2)
    assert other.returncode == 0, other.stderr
    assert (tmp_path / "other/raw/test.xe").read_text() != raw["test"][0]
    assert json.loads((tmp_path / "other/errors.json").read_text())["rate"] == 0.2


def test_script_names_what_is_wrong(tmp_path):
    local = captions(tmp_path / "local", train=3, val=3)
    for arguments, message in (
        (["--local", tmp_path / "none"], f"data/correction.py: --local {tmp_path}/none: no such folder\n"),
        (["--local", local], f"data/correction.py: {local}: neither test_2016_flickr.en"),
        (["--rate", "2"], "'2' is not a number from 0 to 0.5\n"),
    ):
        result = script(*arguments, "--output", tmp_path / "out")
        assert result.returncode and message in result.stderr and "Traceback" not in result.stderr, result.stderr
