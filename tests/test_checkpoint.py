"""Reading untrusted checkpoints, writing whole ones, averaging."""

import argparse
import os

import pytest
import torch
from conftest import run_python

from specdec_plugins.commands import average
from specdec_plugins.formats import checkpoint


def make_checkpoint(seed=0, **extra):
    generator = torch.Generator().manual_seed(seed)
    weights = {"a": torch.randn(3, 2, generator=generator), "half": torch.randn(4, generator=generator).half()}
    weights["block_format"] = torch.tensor([2])
    settings = {"args": None, "cfg": {"model": argparse.Namespace(arch="block")}}
    return {**settings, "model": weights, "last_optimizer_state": {"x": 1}, **extra}


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_malicious_pickle_is_refused_and_not_run(tmp_path):
    trace = tmp_path / "executed"
    torch.save(make_checkpoint(extra_state=Malicious(trace)), tmp_path / "evil.pt")
    with pytest.raises(checkpoint.CheckpointError, match=r"evil\.pt: refused.*system"):
        checkpoint.load(tmp_path / "evil.pt")
    assert not trace.exists()
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert trace.exists(), "the trap does not work"


def test_damaged_missing_and_foreign_files(tmp_path):
    whole = tmp_path / "whole.pt"
    torch.save(make_checkpoint(), whole)
    data = whole.read_bytes()
    for size in (0, 10, len(data) // 2, len(data) - 30):
        cut = tmp_path / "cut.pt"
        cut.write_bytes(data[:size])
        with pytest.raises(checkpoint.CheckpointError, match=r"cut\.pt: ") as caught:
            checkpoint.load(cut)
        assert "\n" not in str(caught.value)
    legacy = tmp_path / "legacy.pt"
    torch.save(make_checkpoint(), legacy, _use_new_zipfile_serialization=False)
    data = legacy.read_bytes()
    for size in range(0, len(data), 7):
        cut.write_bytes(data[:size])
        with pytest.raises(checkpoint.CheckpointError, match=r"cut\.pt: "):
            checkpoint.load(cut)
    (tmp_path / "text.pt").write_text("hello\n" * 100)
    with pytest.raises(checkpoint.CheckpointError, match=r"text\.pt: "):
        checkpoint.load(tmp_path / "text.pt")
    with pytest.raises(checkpoint.CheckpointError, match="no such checkpoint"):
        checkpoint.load(tmp_path / "absent.pt")
    with pytest.raises(checkpoint.CheckpointError, match="not a readable checkpoint"):
        checkpoint.load(tmp_path)
    torch.save({"weights": 1}, tmp_path / "foreign.pt")
    with pytest.raises(checkpoint.CheckpointError, match="not a fairseq checkpoint"):
        checkpoint.load(tmp_path / "foreign.pt")


def test_settings_of_every_fairseq_version_load(tmp_path):
    from omegaconf import OmegaConf

    namespace = argparse.Namespace(arch="block", encoder_layers=4)
    nested = OmegaConf.create({"model": {"arch": "block", "encoder_layers": 4}, "task": {"data": "x", "list": [1, 2.5, "a"]}})
    for settings in ({"args": namespace}, {"args": None, "cfg": {"model": namespace}}, {"args": None, "cfg": nested}):
        torch.save({"model": {}, **settings}, tmp_path / "c.pt")
        args = checkpoint.model_args(checkpoint.load(tmp_path / "c.pt"))
        assert (args.arch, args.encoder_layers) == ("block", 4)
    for task in ({"data": "x"}, argparse.Namespace(data="x")):  # fairseq 0.12 writes a namespace for its older tasks
        assert checkpoint.task_settings({"cfg": {"task": task}}) == checkpoint.task_settings({"args": task}) == {"data": "x"}
    code = f"""import sys; sys.modules |= dict.fromkeys(("omegaconf", "fairseq"))
from specdec_plugins.formats import checkpoint
read = checkpoint.load({str(tmp_path / "c.pt")!r})
print(vars(checkpoint.model_args(read)), checkpoint.task_settings(read))"""
    assert run_python("-c", code).stdout == "{'arch': 'block', 'encoder_layers': 4} {'data': 'x', 'list': [1, 2.5, 'a']}\n"


def test_average_is_the_mean_of_the_weights(tmp_path):
    paths = [tmp_path / f"{seed}.pt" for seed in range(3)]
    checkpoints = [make_checkpoint(seed) for seed in range(3)]
    for path, content in zip(paths, checkpoints):
        torch.save(content, path)
    mean = checkpoint.average(paths)
    for name in ("a", "half"):
        expected = torch.stack([c["model"][name].double() for c in checkpoints]).mean(0)
        torch.testing.assert_close(mean["model"][name].double(), expected, rtol=1e-3, atol=1e-4 if name == "half" else 1e-7)
        assert mean["model"][name].dtype == checkpoints[0]["model"][name].dtype
    assert mean["model"]["block_format"].equal(torch.tensor([2]))
    assert mean["last_optimizer_state"] is None
    assert checkpoint.average(paths[:1])["model"]["a"].equal(checkpoints[0]["model"]["a"])


def test_average_keeps_tied_weights_tied(tmp_path):
    tied = torch.randn(5, 4)
    for number in range(2):
        torch.save(make_checkpoint(model={"embed": tied, "output": tied}), tmp_path / f"{number}.pt")
    checkpoint.save(checkpoint.average([tmp_path / "0.pt", tmp_path / "1.pt"]), tmp_path / "mean.pt")
    mean = checkpoint.load(tmp_path / "mean.pt")["model"]
    assert mean["embed"].data_ptr() == mean["output"].data_ptr()


def test_average_refuses_other_models(tmp_path, capsys):
    torch.save(make_checkpoint(), tmp_path / "a.pt")
    torch.save(make_checkpoint(model={"a": torch.zeros(3, 3)}), tmp_path / "b.pt")
    inputs = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]
    assert average.main(["--inputs", *inputs, "--output", str(tmp_path / "mean.pt")]) == 1
    assert "b.pt: not the same model as" in capsys.readouterr().err
    assert not (tmp_path / "mean.pt").exists()


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "c.pt"
    checkpoint.save(make_checkpoint(1), path)
    before = path.read_bytes()
    with pytest.raises(Exception):  # noqa: B017 - whatever pickling raises
        checkpoint.save({"model": lambda: None}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c.pt"]
