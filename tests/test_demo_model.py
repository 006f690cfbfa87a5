"""The pair that ships: real models in float32 say the same by every exact strategy; its demo and its measurements run."""

import hashlib
import json
import re
import runpy
import shutil
import sys

import pytest
from conftest import ROOT, corpus, run_python

from specdec_plugins.commands import demo
from specdec_plugins.decoding.compiled import library
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.measure import hashes
from specdec_plugins.settings import Settings
from specdec_plugins.translator import Translator

FOLDER = ROOT / "data" / "demo.en-de"
# The sha256 of outputs, the same in every data type and on every instruction set.
PLAIN = "c59624d32653d9ce0f2ec551af7c2bd8591bd5781bcb99810c3ad30527409c2b"


@pytest.fixture(scope="module")
def translators():
    pair = load_folder(FOLDER)
    blocks = {"fairseq": None, "ar": None, "specdec": 8}
    return {strategy: Translator(pair, Settings(strategy=strategy, block_size=block)) for strategy, block in blocks.items()}


@pytest.mark.long
def test_real_models_agree(translators):
    lines = (corpus("multi30k") / "test2016.en").read_text(encoding="utf-8").splitlines()[:60]
    expected = [result.tokens for result in translators["fairseq"].translate(lines, batch_size=1)]
    for strategy in ("ar", "specdec"):
        for batch_size in (1, 16):
            found = translators[strategy].translate(lines, batch_size=batch_size)
            assert [result.tokens for result in found] == expected
    assert translators["specdec"].stats.mean_accepted_length > 3.3  # the drafter is of use


@pytest.mark.parametrize("dtype", hashes.DTYPES)
@pytest.mark.parametrize("strategy", ["ar", "specdec"])
def test_outputs_stay_what_they_were(strategy, dtype):
    """Text and tokens of the demo's lines on the kernels, as commit e860a30 gave them."""
    if library() is None:
        pytest.skip("the kernels were not compiled for this machine")
    options = {"strategy": strategy, "dtype": dtype, "threads": 1, "block_size": 6 if strategy == "specdec" else None}
    lines = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()
    found = Translator.from_pretrained(str(FOLDER), **options).translate(lines)
    content = json.dumps([[translation.text, translation.tokens] for translation in found])
    assert hashlib.sha256(content.encode()).hexdigest() == PLAIN


def test_demo_shows_translations_and_compares(monkeypatch, capsys):
    """And names what differs from the committed hashes: here one that is not the second pair's. An installed copy has none."""
    monkeypatch.setattr(demo, "DATA", ROOT / "data")
    monkeypatch.setattr(hashes, "HASHES", ROOT / "data" / "hashes.json")
    known = hashes.known
    wrong = {"int8 ar": {**known("docs.en-fr")["int8 ar"], "scores": "0"}}
    monkeypatch.setattr(hashes, "known", lambda model: known(model) | (wrong if model == "docs.en-fr" else {}))
    monkeypatch.setattr(demo, "ROUNDS", 1)
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    for text, said in (
        (
            "demo.txt",
            "gives the same tokens and scores as every other, to the last bit: float32, bfloat16, int8; ar; ar, beam 4;",
        ),
        ("docs.txt", "differ from hashes.json: int8 ar: scores."),
    ):
        lines = (ROOT / "data" / text).read_text(encoding="utf-8").splitlines()
        part = out[out.index(f"data/{text}\n") :].partition("\n== ")[0]
        assert all(f"source    {line}" in part for line in lines)
        assert part.count("exact     the same") == len(lines)
        assert re.search(rf"specdec, exact .*{len(lines)} of {len(lines)} as ar", part)
        assert said in part


def test_demo_of_another_pair(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "ROUNDS", 1)
    (few := tmp_path / "few").write_text("Ein Hund.\nEine Katze.\n", encoding="utf-8")
    assert demo.main(["--model", str(FOLDER), "--input", str(few), "--batch-size", "8"]) == 0
    assert "== data" not in capsys.readouterr().out
    assert demo.main(["--model", str(ROOT / "data/long.en-de"), "--input", str(few)]) == 0  # no drafter
    out = capsys.readouterr().out
    assert "long.en-de has no drafter" in out and "exact" not in out and "tolerant" not in out
    assert demo.main(["--model", str(FOLDER)]) == 2
    assert "--input is missing" in capsys.readouterr().err


def test_code_in_documentation_survives():
    """One command's work: a page of documentation, names in code, options, a URL and quotes in it."""
    translator = Translator.from_pretrained(str(ROOT / "data" / "docs.en-fr"))
    text = (ROOT / "data" / "docs.txt").read_text(encoding="utf-8")
    found = "\n".join(result.text for result in translator.translate(text.splitlines()))
    for code in (
        "`timeout`",
        "--output",
        "git status",
        *"8080 https://example.org/install $HOME Windows".split(),
        'set_option("verbose", false)',
    ):
        assert code in found


def test_the_benchmark_of_drafters_runs(tmp_path, monkeypatch, capsys):
    """All that need no training, on the demo's first lines, two at a time; a model's own by the name of its folder."""
    options = ["--model", FOLDER, "--output", tmp_path / "rows.jsonl"]
    options += ["--input", ROOT / "data/demo.txt", "--reference", ROOT / "data/demo.txt"]
    options += "--sentences 3 --rounds 1 --batch-sizes 2 --block-sizes 3 auto".split()
    monkeypatch.setattr(sys, "argv", ["drafters.py", *map(str, options)])
    runpy.run_path(str(ROOT / "benchmarks/drafters.py"), run_name="__main__")
    rows = json.loads((tmp_path / "rows.jsonl").read_text())["rows"]
    names = ["ar", FOLDER.name, "ngram", "recycling", "lookahead", "previous live", "previous again", "previous reference"]
    assert [row["drafter"] for row in rows] == names + names[1:]
    assert [row["block_size"] for row in rows] == [0] + 7 * [3] + 7 * ["auto"]
    assert rows[0]["times_ar"] == 1 and rows[0]["tokens_a_pass"] == 1 and rows[1]["tokens_a_pass"] > 1.5
    assert capsys.readouterr().out.count("\n| int8 | 2 | 3 | ") == 7


@pytest.mark.long
def test_the_benchmark_of_long_sources_runs(tmp_path):
    """Sources of consecutive lines, twice: what is measured is not measured again. With random weights, acceptance is drawn."""
    usual = [
        "benchmarks/long.py",
        "--model",
        FOLDER,
        "--input",
        ROOT / "data/demo.txt",
        *"--dtype int8 --threads 1 --output".split(),
        tmp_path / "rows.jsonl",
        *"--batch-sizes 2 --tokens 6 --choices mass recent".split(),
    ]
    run_python(*usual, "--lengths", 40, "--budgets", 8, "--gammas", 2, "auto")
    run_python(*usual, "--lengths", 40, 50, "--budgets", 20, "--gammas", 3, "--random", "1,64,64,2", "--acceptance", 1)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["length"], row["gamma"]) for row in rows] == [
        *((40, gamma) for gamma in (0, 2, "auto", 2, "auto")),
        (50, 0),
        (50, 3),
        (50, 3),
    ]
    assert all(row["identical"] == 2 for row in rows[:5]) and rows[0]["times_ar"] == 1
    assert 5.6 < rows[1]["weights_mb"] < 5.8 and rows[1]["cache_mb"] == round(2 * (40 + 3) * 4 * 2 * 256 * 4 / 1e6, 2)
    assert rows[6]["accepted"] == 1 and rows[6]["draft_cache_mb"] == round(2 * (20 + 3) * 2 * 64 * 4 / 1e6, 2)


def test_a_folder_without_its_weights_is_named(tmp_path):
    for name in ("verifier.safetensors", "drafter.safetensors"):
        folder = tmp_path / name
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(name))
        with pytest.raises(ValueError, match=f"not a model folder .no {name} in it."):
            load_folder(folder)
