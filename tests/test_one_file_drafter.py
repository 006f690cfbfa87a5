"""A drafter that is one file outside the project: trained by fairseq-train, packed, loaded and decoded, with nothing edited."""

import json
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_fairseq

from specdec_plugins.commands import pack
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.translator import Translator

NAME = "one_file_drafter:Bigram"
SHAPE = """
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2 --share-all-embeddings
""".split()


def train(data, folder, updates, *options):
    return run_fairseq(
        "train",
        data / "bin",
        *"-s xa -t xb --user-dir".split(),
        ROOT / "specdec_plugins",
        *"--cpu --task translation --save-dir".split(),
        folder,
        "--max-update",
        updates,
        *"--max-tokens 1024 --optimizer adam --lr 5e-3 --lr-scheduler fixed --log-format json --log-interval 10".split(),
        *"--num-workers 0 --required-batch-size-multiple 1 --seed 1".split(),
        *options,
        PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}",
    )


@pytest.fixture(scope="module")
def trained(toy_data, tmp_path_factory):
    """A verifier and the drafter's checkpoint, both from fairseq-train."""
    folder = tmp_path_factory.mktemp("one_file")
    train(toy_data, folder / "verifier", 30, "--arch", "transformer", *SHAPE, "--criterion", "cross_entropy")
    verifier = folder / "verifier" / "checkpoint_last.pt"
    options = ["--arch", "drafter", "--criterion", "drafter_loss", "--drafter", NAME, "--verifier", verifier]
    log = train(toy_data, folder / "drafter", 90, *options, "--drafter-options", "width=24", "--drafter-block-size", 3).stdout
    return verifier, folder / "drafter" / "checkpoint_last.pt", log


@pytest.mark.long
def test_training_learns(trained):
    """The loss falls, and accept_len is logged: the tokens that a verification would yield."""
    figures = [json.loads(line[line.index("{") :]) for line in trained[2].splitlines() if "train_inner" in line]
    losses = [float(each["nll_loss"]) for each in figures]
    assert losses[-1] < losses[0] - 0.5
    valid = [json.loads(line[line.index("{") :]) for line in trained[2].splitlines() if "| valid |" in line]
    assert float(valid[-1]["valid_accept_len"]) > 1.1


@pytest.mark.long
def test_the_checkpoint_says_what_decodes_with_it(trained):
    verifier, drafter, _ = trained
    model = fairseq.read(checkpoint.load(drafter), "drafter")
    assert (model.code, model.options, model.block_size, model.spec) == (NAME, {"width": 24, "smoothing": 0.0}, 3, None)
    assert sorted(model.tensors) == ["before.weight", "last.bias", "last.weight", "out.weight"]
    from specdec_plugins.formats.spec import fingerprint

    assert model.verifier == fingerprint(fairseq.read(checkpoint.load(verifier), "verifier"))


@pytest.mark.long
def test_packed_loaded_and_decoded(trained, toy_data, tmp_path):
    """The output is the verifier's; the drafter's tokens are accepted; the folder names its code."""
    verifier, drafter, _ = trained
    folder = tmp_path / "pair"
    parts = ["--verifier", str(verifier), "--drafter", str(drafter), "--data", str(toy_data / "bin")]
    assert pack.main([*parts, "--codes", str(toy_data / "codes"), "--output", str(folder)]) == 0
    assert json.loads((folder / "model.json").read_text())["drafter"]["code"] == NAME
    lines = (toy_data / "raw" / "test.xa").read_text().splitlines()
    for dtype in ("float32", "int8", "float64"):
        plain = Translator.from_pretrained(str(folder), strategy="ar", dtype=dtype)
        expected = [result.text for result in plain.translate(lines, batch_size=4)]
        for block_size in (3, "auto"):
            translator = Translator.from_pretrained(str(folder), strategy="specdec", block_size=block_size, dtype=dtype)
            assert [result.text for result in translator.translate(lines, batch_size=4)] == expected
        assert translator.stats.committed == plain.stats.committed
        fixed = Translator.from_pretrained(str(folder), strategy="specdec", block_size=3, dtype=dtype)
        fixed.translate(lines)
        assert fixed.stats.accepted > 0.05 * fixed.stats.drafted


@pytest.mark.long
def test_another_verifiers_drafter_is_named(trained, toy_data, tmp_path, caplog):
    """It still decodes exactly, so that is a warning."""
    verifier, drafter, _ = trained
    model = checkpoint.load(verifier)
    model["model"]["decoder.layers.0.fc1.bias"] += 0.5
    checkpoint.save(model, tmp_path / "other.pt")
    folder = tmp_path / "pair"
    parts = ["--verifier", str(tmp_path / "other.pt"), "--drafter", str(drafter), "--data", str(toy_data / "bin")]
    assert pack.main([*parts, "--codes", str(toy_data / "codes"), "--output", str(folder)]) == 0
    load_folder(folder)
    assert "the drafter was trained for another verifier" in caplog.text


def test_names_that_name_nothing():
    for name, message in (
        (
            "nothing",
            "no drafter named 'nothing'. Available: block, block_causal, block_state, eagle, glide, hydra, lookahead, ",
        ),
        ("one_file_drafter:Nothing", "drafter 'one_file_drafter:Nothing': module 'one_file_drafter' has no attribute"),
        ("no_such_module:X", "drafter 'no_such_module:X': No module named 'no_such_module'"),
        ("one_file_drafter:Options", "drafter 'one_file_drafter:Options' has neither build nor for_pair"),
    ):
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            drafters.find(name)


def test_options_that_do_not_fit():
    from one_file_drafter import Bigram

    assert options_of(Bigram.Options, ["width=8"]) == Bigram.Options(8, 0.0)
    with pytest.raises(
        ValueError, match="no option 'depth'; available: width, smoothing; option width: 'wide' is not of type int"
    ):
        options_of(Bigram.Options, ["depth=2", "width=wide"])


def test_one_file_is_all_there_is():
    """The package does not know it."""
    for path in Path(ROOT / "specdec_plugins").rglob("*.py"):
        assert "Bigram" not in path.read_text(encoding="utf-8"), path
    assert torch.nn.Module in drafters.find(NAME).Network.__mro__
