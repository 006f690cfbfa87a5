"""Presets as data, and the variables that train.sh gets."""

import json
import shlex
import subprocess

import pytest
from conftest import ROOT

from specdec_plugins.commands.prepare import parser
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.decoding.networks.drafter_code import network_of
from specdec_plugins.training import presets
from specdec_plugins.training.presets.__main__ import main

NAMES = [name.replace("SRC-TGT", "en-fr") for name in presets.names()]


def options(words: list[str]) -> dict[str, str]:
    """Words of a command line as options with their values, empty for flags."""
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            name = word
        found[name] = "" if word.startswith("--") else word
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", presets.RECIPES)
def test_every_preset_has_every_recipe(name, recipe):
    settings = presets.settings(name, recipe)
    drafter, init = options(settings["drafter_options"]), options(settings["init_options"])
    if settings["initialised"]:
        assert recipe == "published" and drafter["--arch"] == "block"
        assert "--src-embedding-copy" in init and "--src-embedding-copy" in drafter
    else:
        code = drafters.find(recipe)
        assert not init and options_of(code.Options, drafter["--drafter-options"].split()) and network_of(code)
        assert "--dropout" not in drafter and "--encoder-layers" not in drafter  # options of another architecture
        verifier = options(settings["verifier_options"])
        for shared in ("--truncate-source", "--max-source-positions", "--skip-invalid-size-inputs-valid-test"):  # of the task
            assert drafter.get(shared) == verifier.get(shared), shared
    assert settings["drafter_updates"] >= settings["save_every"] > 0 and settings["tokens"] >= settings["device_tokens"]
    assert presets.settings(name)["recipe"] == "glide"
    usage = (ROOT / "train.sh").read_text()
    assert name.replace("en-fr", "SRC-TGT") in usage or name in usage
    languages = ["--source-lang", settings["src"], "--target-lang", settings["tgt"], "--train", "x", "--output", "y"]
    known, others = parser().parse_known_args([*languages, *settings["prepare_options"]])
    assert known.tokenizer == settings["tokenizer"]
    assert not others or settings["corpus"] != "prepare"  # a corpus's script may have options of its own


def test_updates_apply_to_both_trainings_and_to_a_linear_schedule():
    settings = presets.settings("small.en-fr", updates=77)
    assert settings["verifier_updates"] == settings["drafter_updates"] == settings["save_every"] == 77
    assert options(settings["drafter_options"])["--total-num-update"] == "77"
    assert "--total-num-update" not in presets.settings("toy")["verifier_options"]


def test_the_languages_of_small_are_in_its_name():
    assert [presets.settings("small.cs-ro")[key] for key in ("src", "tgt")] == ["cs", "ro"]
    for name in ("small", "small.en", "small.SRC-TGT", "recipes", "../small.en-de"):
        with pytest.raises(ValueError, match="no preset named"):
            presets.settings(name)


def test_a_shell_can_evaluate_the_assignments():
    values = {"plain": "en", "number": 7, "list": ["--adam-betas", "(0.9, 0.98)", "it's $HOME; `ls`", ""], "none": []}
    script = "\n".join(presets.shell(values)) + '\nprintf "%s\\n" "$plain" $number "${list[@]}" "${#none[@]}"'
    result = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["en", "7", *values["list"], "0"]


def test_wmt_is_as_published_on_request():
    """The published drafter's learning rate, dropout, warm-up, updates and block size (Xia et al. 2023)."""
    for name, *published in (("wmt14.en-de", 5e-4, 0.1, 10_000, 300_000, 25), ("wmt16.ro-en", 1e-3, 0.2, 4_000, 50_000, 25)):
        settings = presets.settings(name, "published")
        drafter = options(settings["drafter_options"])
        found = [float(drafter[option]) for option in ("--lr", "--dropout", "--warmup-updates")]
        assert [*found, settings["drafter_updates"], settings["block"]] == published


def test_the_command_prints_assignments_or_one_line_of_error(capsys):
    assert main(["toy", "--recipe", "published", "--updates", "5"]) == 0
    lines = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["verifier_updates"] == "5" and "--arch block" in shlex.join(shlex.split(lines["drafter_options"][1:-1]))
    assert main(["toys"]) == 1
    assert capsys.readouterr().err.startswith("no preset named 'toys'. Available: ")


def test_files_have_no_unknown_keys():
    known = {"about", "languages", "corpus", "prepare", "model", "verifier", "drafter"}
    known |= {"tokens", "device_tokens", "save_every", "keep", "pretrained", "decoding", "rouge"}
    training = {"updates", "schedule", "options"}
    for path in presets.HERE.glob("*.json"):
        preset = json.loads(path.read_text())
        assert set(preset) <= known, path
        if "verifier" in preset:
            assert set(preset["verifier"]) == training and preset["verifier"]["schedule"] in ("polynomial_decay", "inverse_sqrt")
        assert set(preset["drafter"]) == {"glide", "published"} - ({"published"} if "verifier" not in preset else set())
        for drafter in preset["drafter"].values():
            assert set(drafter) == training | {"block_size"}, path
