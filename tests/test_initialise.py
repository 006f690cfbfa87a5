"""The drafter's initial checkpoint: it has the verifier's encoder, restores strictly, and misfits are refused."""

import argparse
from types import SimpleNamespace

import pytest
import torch
from conftest import make_batch, make_dictionary, make_verifier, run_python

from specdec_plugins.commands import initialise
from specdec_plugins.formats import checkpoint
from specdec_plugins.models.block import BlockDrafterModel

SOURCE = make_batch([7, 4, 5], left=True, seed=1)


def save_verifier(folder, data="-", **changes):
    """A tiny verifier and its checkpoint, as fairseq writes it."""
    model, args = make_verifier(**changes)
    with torch.no_grad():  # fresh norms are ones and zeros, which would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.05)
    task = {"_name": "translation", "data": str(data), "source_lang": "a", "target_lang": "b"}
    state = {"args": None, "cfg": {"model": args, "task": task, "criterion": {}}, "model": model.state_dict()}
    path = folder / "verifier.pt"
    checkpoint.save(state, path)
    return model, path


def load_drafter(path):
    state = checkpoint.load(path)
    dictionary = make_dictionary()
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = BlockDrafterModel.build_model(checkpoint.model_args(state), task)
    model.load_state_dict(state["model"], strict=True)
    return model.eval()


def initial(verifier, output, *options):
    """Exit status of encoder_initial.py."""
    return initialise.main(["--verifier", str(verifier), "--output", str(output), *map(str, options)])


@pytest.mark.parametrize(
    ("verifier", "options"),
    [
        ({}, []),
        ({}, ["--encoder-learned-pos", "--decoder-learned-pos"]),
        ({"encoder_learned_pos": True, "decoder_learned_pos": True}, ["--max-source-positions", "32"]),
        ({"encoder_normalize_before": True, "decoder_normalize_before": True, "activation_fn": "gelu"}, ["--apply-bert-init"]),
        ({"layernorm_embedding": True, "no_scale_embedding": True}, ["--decoder-layers", "1"]),
        ({"share_all_embeddings": False}, ["--src-embedding-copy"]),
        ({"share_all_embeddings": False, "share_decoder_input_output_embed": True}, []),
    ],
)
def test_encoder_is_the_verifiers(tmp_path, verifier, options, capsys):
    model, path = save_verifier(tmp_path, src_embedding_copy=False, **verifier)
    output = tmp_path / "init.pt"
    assert initial(path, output, *options) == 0
    drafter = load_drafter(output)
    ours, theirs = (m.double().encoder(SOURCE)["encoder_out"][0] for m in (drafter, model))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if options[:1] == ["--encoder-learned-pos"] else 1e-12)
    assert "copied" in capsys.readouterr().out


def test_same_seed_same_checkpoint(tmp_path):
    _, path = save_verifier(tmp_path)
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        output = tmp_path / f"{number}.pt"
        assert initial(path, output, "--seed", seed) == 0
        weights.append(checkpoint.load(output)["model"]["decoder.copy_attn.weight"])
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])


def test_misfits_are_refused_together(tmp_path, capsys):
    _, path = save_verifier(tmp_path, encoder_learned_pos=True)
    options = ["--activation-fn", "gelu", "--encoder-normalize-before", "--encoder-layers", "3", "--encoder-ffn-embed-dim", "8"]
    options += ["--encoder-embed-dim", "32", "--max-source-positions", "100"]
    assert initial(path, tmp_path / "init.pt", *options) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for reason in (
        "activation-fn is relu in the verifier, gelu in the drafter",
        "encoder-normalize-before is False in the verifier, True",
        "encoder-layers is 2 in the verifier, 3",
        "encoder-ffn-embed-dim is 24 in the verifier, 8",
        "encoder-embed-dim is 16 in the verifier, 32",
        "max-source-positions is 64 in the verifier, 100",
        "--encoder-embed-dim and --decoder-embed-dim differ",
    ):
        assert reason in message
    assert not (tmp_path / "init.pt").exists()


def test_learned_positions_cannot_become_sinusoidal():
    _, args = make_verifier(encoder_learned_pos=True)
    drafter = argparse.Namespace(**{**vars(args), "encoder_learned_pos": False})
    message = "encoder-learned-pos is True in the verifier, False in the drafter"
    assert message in initialise.misfits(args, drafter)


@pytest.mark.parametrize("learned", [False, True])
def test_only_learned_positions_of_the_encoder_are_limited(tmp_path, capsys, learned):
    """The decoder is fresh, and sinusoidal positions continue."""
    _, path = save_verifier(tmp_path, encoder_learned_pos=learned, decoder_learned_pos=True)
    assert initial(path, tmp_path / "init.pt", "--max-target-positions", 100) == 0
    assert initial(path, tmp_path / "init.pt", "--max-source-positions", 100) == learned
    assert ("max-source-positions is 64 in the verifier, 100" in capsys.readouterr().err) == learned


def test_what_cannot_start_a_drafter_is_named(tmp_path, capsys):
    _, path = save_verifier(tmp_path)
    state = checkpoint.load(path)
    state["model"] = {name: tensor for name, tensor in state["model"].items() if name.startswith("decoder.")}
    checkpoint.save(state, tmp_path / "decoder.pt")
    assert initial(tmp_path / "decoder.pt", tmp_path / "init.pt") == 1
    assert f"{tmp_path / 'decoder.pt'} is not a fairseq Transformer with an encoder" in capsys.readouterr().err


def test_other_dictionaries_are_refused(tmp_path, capsys):
    own, other, larger = (tmp_path / name for name in ("own", "other", "larger"))
    for folder, words in ((own, 20), (other, 20), (larger, 21)):
        folder.mkdir()
        dictionary = make_dictionary(words)
        if folder is other:
            dictionary.symbols[10], dictionary.symbols[11] = dictionary.symbols[11], dictionary.symbols[10]
        for language in "ab":
            dictionary.save(str(folder / f"dict.{language}.txt"))
    _, path = save_verifier(tmp_path, data=own)
    for data, status, message in (
        (own, 0, ""),
        (other, 1, "dict.a.txt and the verifier's"),
        (larger, 1, "dict.b.txt has 25 symbols, the verifier 24"),
        (tmp_path / "absent", 1, "absent"),
    ):
        assert initial(path, tmp_path / "init.pt", "--data", data) == status
        assert message in capsys.readouterr().err


def test_languages_are_inferred_from_the_data(tmp_path):
    """Checkpoints of other tools may lack the task's settings."""
    _, path = save_verifier(tmp_path)
    state = checkpoint.load(path)
    state["cfg"]["task"] = {"_name": "translation"}
    checkpoint.save(state, path)
    for language in "ab":
        make_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    assert initial(path, tmp_path / "init.pt") == 0
    assert initial(path, tmp_path / "init.pt", "--data", tmp_path) == 1  # the folder does not reveal its languages
    (tmp_path / "train.a-b.a.idx").touch()
    assert initial(path, tmp_path / "init.pt", "--data", tmp_path) == 0


@pytest.mark.long
def test_bad_input_is_one_line(tmp_path):
    path = tmp_path / "text.pt"
    path.write_text("hello")
    result = run_python("encoder_initial.py", "--verifier", path, "--output", tmp_path / "init.pt", check=False)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"encoder_initial.py: error: {path}")


def test_wrong_options_and_weights_are_one_line(tmp_path, capsys):
    _, path = save_verifier(tmp_path)
    state = checkpoint.load(path)
    checkpoint.save({**state, "model": {**state["model"], "encoder.layers.0.fc1.bias": torch.zeros(9)}}, tmp_path / "odd.pt")
    for verifier, options, status, message in (
        (path, ["--seed", -1], 2, "--seed -1 is not from 0 to"),
        (path, ["--blok"], 2, "unrecognized arguments: --blok"),
        (path, ["--decoder-layers", "x"], 2, "--decoder-layers: invalid int value"),
        (path, ["--decoder-attention-heads", 3], 1, "fairseq cannot build this drafter: "),
        (tmp_path / "odd.pt", [], 1, "the verifier's encoder.layers.0.fc1.bias is (9,), not (24,)"),
        (tmp_path / "absent.pt", [], 1, f"{tmp_path / 'absent.pt'}"),
    ):
        try:
            ended = initial(verifier, tmp_path / "init.pt", *options)
        except SystemExit as end:
            ended = end.code
        error = capsys.readouterr().err
        assert ended == status and error.startswith("encoder_initial.py: error: ") and error.count("\n") == 1
        assert message in error
