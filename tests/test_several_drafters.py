"""Several drafters in a model folder: chosen by name and by device, kept, added, and exact, on the pairs that ship."""

import json
import logging
import shutil
from dataclasses import replace
from itertools import product

import pytest
from conftest import ROOT
from test_sharing import RECORD

from specdec_plugins.commands import pack, ready, translate
from specdec_plugins.commands.translation import answers
from specdec_plugins.commands.translation.answers import identity
from specdec_plugins.commands.translation.faults import decoding_faults
from specdec_plugins.decoding.backends.cpu.binding import DTYPES
from specdec_plugins.formats.drafter_folder import default
from specdec_plugins.formats.folder import load_folder, save_drafter, save_folder, with_drafter
from specdec_plugins.formats.spec import DrafterModel, fingerprint
from specdec_plugins.settings import Settings
from specdec_plugins.translator import Translator

pytestmark = pytest.mark.usefixtures("loaded_once")
DATA, SHIPPED = ROOT / "data", {"demo.en-de": "demo.txt", "docs.en-fr": "docs.txt"}
PAIR, NAMES = DATA / "docs.en-fr", ["glide", "block_causal"]


def codes(pair):
    return [each.code for each in pair.drafters]


def lines_of(model, count=None):
    return (DATA / SHIPPED[model]).read_text(encoding="utf-8").splitlines()[:count]


# ---- the shipped pairs


@pytest.mark.parametrize("model", SHIPPED)
@pytest.mark.parametrize("dtype", [*DTYPES, pytest.param("float64", marks=pytest.mark.long)])
def test_outputs_with_each_drafter_are_plain_ones(model, dtype):
    lines = lines_of(model, 2 if dtype == "float64" else 8)
    pair = load_folder(DATA / model)
    plain = Translator(pair, Settings(strategy="ar", dtype=dtype, threads=1))
    expected, found_by_beams = ([each.tokens for each in plain.translate(lines, beam=beam)] for beam in (1, 3))
    for name, (length, rows) in product(NAMES, ((4, 1), (8, 5))):
        drafting = Translator(with_drafter(pair, name), Settings(dtype=dtype, threads=1, block_size=length))
        assert [each.tokens for each in drafting.translate(lines, batch_size=rows)] == expected, (name, length, rows)
        assert drafting.engine.drafter_name == name and drafting.stats.mean_accepted_length > 2.5
        if length == 8:
            assert [each.tokens for each in drafting.translate(lines, beam=3)] == found_by_beams


@pytest.mark.parametrize("model", SHIPPED)
def test_the_shipped_pairs_have_both(model):
    """For their own verifier, at most 40 MB; the block drafts on GPUs."""
    pair = load_folder(DATA / model)
    mark = fingerprint(pair.verifier)
    assert codes(pair) == NAMES and [each.verifier for each in pair.drafters] == [mark, mark]
    assert sum(each.stat().st_size for each in (DATA / model).iterdir()) < 40_000_000
    for device, name in (("cpu", "glide"), ("cuda", "block_causal"), ("cuda:1", "block_causal")):
        assert load_folder(DATA / model, device).drafter.code == name
    assert load_folder(DATA / model, "cuda").others[0].code == "glide"


def test_python_takes_the_default_of_the_device(monkeypatch):
    """With a GPU's name, as far as loading goes without one."""
    taken = []
    monkeypatch.setattr(Translator, "__init__", lambda self, pair, settings, drafter=None: taken.append(pair.drafter.code))
    Translator.from_pretrained(str(PAIR), device="cuda")
    Translator.from_pretrained(str(PAIR))
    Translator.from_pretrained(str(PAIR), device="cuda", drafter="glide")
    Translator.from_pretrained(str(PAIR), drafter="block_causal")
    assert taken == ["block_causal", "glide", "glide", "block_causal"]


def test_which_is_the_default():
    one, gpu, cpu = (DrafterModel(name, {}, devices=devices) for name, devices in (("a", ()), ("b", ("cuda",)), ("c", ("cpu",))))
    for drafters, device, chosen in (
        ([one], "cuda", one),
        ([gpu], "cpu", gpu),
        ([one, gpu], "cuda:0", gpu),
        ([gpu, one], "cpu", one),
        ([gpu, cpu], "cpu", cpu),
        ([one, cpu], "cpu", cpu),
        ([gpu, cpu, one], "xpu", one),
        ([gpu, cpu], "xpu", gpu),
    ):
        assert default(drafters, device) is chosen


# ---- folders


def test_a_folder_keeps_them_and_older_ones_open(tmp_path, caplog):
    pair = load_folder(PAIR)
    save_folder(pair, tmp_path / "both")
    found = load_folder(tmp_path / "both")
    assert codes(found) == NAMES and found.others[0].devices == ("cuda",)
    assert all(replace(a, tensors={}) == replace(b, tensors={}) for a, b in zip(found.drafters, pair.drafters))
    save_folder(pair.drafting(pair.others[0]), tmp_path / "turned")
    assert codes(load_folder(tmp_path / "turned")) == NAMES  # the first is not the default if it is a GPU's
    save_folder(replace(pair, drafter=None), tmp_path / "none")
    assert load_folder(tmp_path / "none").drafters == ()
    path = tmp_path / "both" / "model.json"
    content = json.loads(path.read_text())
    for entry in (content["drafter"], *content.pop("other_drafters")):
        del entry["devices"]
    path.write_text(json.dumps(content))  # as format 4 was before
    assert codes(load_folder(tmp_path / "both")) == NAMES[:1]


def test_a_drafter_of_another_verifier_is_named(tmp_path, caplog):
    pair = load_folder(PAIR)
    save_folder(replace(pair, others=(replace(pair.others[0], verifier="0" * 64),)), tmp_path / "other")
    with caplog.at_level(logging.WARNING):
        load_folder(tmp_path / "other")
    said = (
        f"{tmp_path / 'other'}: the drafter block_causal was trained for another verifier: fewer of its tokens will be accepted"
    )
    assert [each.getMessage() for each in caplog.records] == [said]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda all: all.update(drafter=None), "other_drafters: at most 7 beside drafter, each of another code"),
        (lambda all: all["other_drafters"][0].update(code="glide"), "other_drafters: at most 7 beside drafter, each of another"),
        (lambda all: all["other_drafters"].extend({**all["other_drafters"][0], "code": f"x{n}"} for n in range(7)), "at most 7"),
        (lambda all: all["other_drafters"][0].update(alien=1), "unknown key 'other_drafters[0].alien'"),
        (lambda all: all["other_drafters"][0].update(devices="cuda"), "'other_drafters[0].devices' is 'cuda', not of type list"),
        (lambda all: all["other_drafters"][0].update(weights="none.safetensors"), "no none.safetensors in it"),
        (lambda all: all["other_drafters"][0].update(weights="/etc/passwd"), "is not the name of a file in the folder"),
        (lambda all: all["other_drafters"][0]["spec"]["decoder"].update(width=64), "drafter: "),
    ],
)
def test_damaged_ones_are_refused_in_one_line(tmp_path, capsys, change, said):
    folder = shutil.copytree(PAIR, tmp_path / "pair")
    content = json.loads((folder / "model.json").read_text())
    change(content)
    (folder / "model.json").write_text(json.dumps(content))
    assert translate.main(["--model", str(folder), "-i", str(DATA / "docs.txt"), "-o", str(tmp_path / "out"), "--quiet"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0], lines


# ---- commands


def test_the_command_takes_a_name(tmp_path, capsys):
    """Of the model's drafters before any folder; a record of --resume is for one of them."""
    text, output = DATA / "docs.txt", tmp_path / "out"
    command = ["--model", str(PAIR), "-i", str(text), "-o", str(output), "--threads", "1", "--block-size", "5"]
    outputs, summaries = [], []
    for more in ([], ["--drafter", "glide"], ["--drafter", "block_causal"]):
        assert translate.main([*command, *more]) == 0
        outputs.append(output.read_text())
        summaries.append(capsys.readouterr().err)
    assert len({*outputs}) == 1
    assert ["glide drafts of 5" in each for each in summaries] == [True, True, False] and "block_causal drafts" in summaries[2]
    made = [identity(translate.parser().parse_args([*command, *more])) for more in ([], ["--drafter", "block_causal"])]
    assert made[1].pop("--drafter") == "block_causal" and made[0] == made[1]
    assert translate.main([*command, "--drafter", "medusa"]) == 1
    said = "medusa: no such folder; a drafter of the Hugging Face Hub is named ORG/NAME; drafters of"
    assert said in capsys.readouterr().err


def test_the_name_of_one_of_the_models_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glide").mkdir()
    assert ready.trained_drafter("glide", str(PAIR)) == "glide"
    assert with_drafter(load_folder(PAIR, "cuda"), "glide").drafter.code == "glide"
    pair = load_folder(PAIR)
    save_drafter(pair.others[0], pair.verifier, RECORD, tmp_path / "glide")
    for name in ("./glide", "glide/"):
        folder = ready.trained_drafter(name, str(PAIR))
        assert with_drafter(pair, folder).drafter.code == "block_causal", name


def test_plain_decoding_loads_no_drafter(monkeypatch):
    for module in ("formats.folder", "translator"):
        monkeypatch.setattr(f"specdec_plugins.{module}.with_drafter", lambda *_: pytest.fail("loaded"))
    options = translate.parser().parse_args(["--model", str(PAIR), "--drafter", "glide", "--strategy", "ar"])
    assert codes(answers.load(options)) == NAMES
    assert Translator.from_pretrained(PAIR, "glide", strategy="ar").engine.drafter_name is None


def test_what_is_resumed_names_the_drafter(tmp_path, monkeypatch):
    """Whatever folders lie here."""
    monkeypatch.chdir(tmp_path)
    found = []
    for name in ("glide", "block_causal"):
        (tmp_path / name).mkdir()
        options = translate.parser().parse_args(["--model", str(PAIR), "--drafter", name])
        assert not list(decoding_faults(options))
        translate.require(options)
        found.append(identity(options))
    assert found[0] != found[1]


def packed(tmp_path, capsys, *options, status=0):
    output = tmp_path / f"packed{len([*tmp_path.iterdir()])}"
    assert pack.main([*map(str, options), "--output", str(output)]) == status
    return load_folder(output) if status == 0 else capsys.readouterr().err


def test_packing_adds_and_replaces(tmp_path, capsys):
    pair, alone = load_folder(PAIR), tmp_path / "alone"
    save_drafter(replace(pair.others[0], devices=()), pair.verifier, RECORD, alone)
    save_folder(replace(pair, others=()), tmp_path / "one")
    added = packed(tmp_path, capsys, "--verifier", tmp_path / "one", "--drafter", alone, "--add", "--devices", "cuda")
    assert codes(added) == NAMES and added.others[0].devices == ("cuda",)
    assert codes(packed(tmp_path, capsys, "--verifier", PAIR)) == NAMES
    replaced = packed(tmp_path, capsys, "--verifier", tmp_path / "one", "--drafter", alone)
    assert codes(replaced) == ["block_causal"] and replaced.drafter.devices == ()
    again = packed(
        tmp_path, capsys, "--verifier", PAIR, "--drafter", alone, "--add", "--block-size", 5, "--devices", "cpu", "cuda"
    )
    assert codes(again) == ["block_causal", "glide"] and again.block_size == 5 and again.drafter.devices == ("cpu", "cuda")
    for options, status, said in (
        (["--verifier", PAIR, "--add"], 2, "--add requires --drafter"),
        (["--verifier", PAIR, "--devices", "cuda"], 2, "--devices requires --drafter"),
        (["--verifier", "x.pt", "--drafter", "y.pt", "--data", "d", "--add"], 2, "--add requires a model folder"),
        (["--verifier", PAIR, "--drafter", tmp_path, "--add"], 1, f"{tmp_path}: not a model folder"),
    ):
        assert said in packed(tmp_path, capsys, *options, status=status)


def test_coupled_samples_are_the_same():
    pair = load_folder(PAIR)
    pair = pair.drafting(pair.others[0])
    translator = Translator(pair, Settings(strategy="specdec", block_size=4, dtype="int8", threads=1))
    lines = lines_of("docs.en-fr", 3)
    sampled = [each.tokens for each in translator.translate(lines, sampling=True, seed=4)]
    plain = Translator(pair, Settings(strategy="ar", dtype="int8", threads=1))
    assert sampled == [each.tokens for each in plain.translate(lines, sampling=True, seed=4)]
