"""specdec-draft killed at any moment: it continues, and ends with what a run without interruption makes."""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from test_draft import arguments, folder, load_tensors, sentences, text  # noqa: F401

from specdec_plugins.commands import draft, drafting
from specdec_plugins.formats import drafter_folder
from specdec_plugins.formats.folder import load_folder, with_drafter
from specdec_plugins.measure import costs
from specdec_plugins.training.drafting import Training, load
from specdec_plugins.translator import Translator

UPDATES = "40"
MOMENTS = [("distil", 2), ("distil", 4), ("update", 1), ("save", 3), ("evaluate", 1), ("update", 6), ("save", 1)]
MOMENTS += [("evaluate", 2), ("measure", 1), ("write", 1), ("publish", 1)]


@pytest.mark.long
def test_killed_at_any_moment_it_loses_nothing(folder, text, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(costs, "ROUNDS", 1)
    monkeypatch.setattr(drafting, "EVALUATIONS", 1)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert draft.main(arguments(folder, text, whole, "--updates", UPDATES)) == 0
    command = [sys.executable, f"{ROOT}/tests/killed_draft.py", json.dumps(MOMENTS)]
    command += arguments(folder, text, out, "--updates", UPDATES)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr[-2000:]}"
    ends = found.stdout.splitlines()
    assert ends[-1] == f"the end 0 190 {UPDATES}" and sum(" killed " in line for line in ends) == len(MOMENTS), found.stdout

    lines, other = ((each / "training/pairs.jsonl").read_bytes() for each in (whole, out))
    assert lines == other
    tensors, others = load_tensors(whole), load_tensors(out)
    assert {*tensors} == {*others} and all(torch.equal(tensors[name], others[name]) for name in tensors)
    records = [dataclasses.asdict(drafter_folder.read_record(each / "drafter")) for each in (whole, out)]
    timed = {"gain", "machine"}
    assert len({json.dumps({k: v for k, v in each.items() if k not in timed}) for each in records}) == 1
    names = [sorted(str(path.relative_to(each)) for path in each.rglob("*")) for each in (whole, out)]
    assert names[0] == names[1]
    plain = Translator.from_pretrained(folder, strategy="ar").translate(sentences(230)[200:])
    for pair in (load_folder(out), with_drafter(load_folder(folder), out / "drafter")):
        drafts = Translator(pair, Translator.from_pretrained(out).settings).translate(sentences(230)[200:])
        assert [each.tokens for each in drafts] == [each.tokens for each in plain]


def test_a_resumed_run_keeps_to_its_time(folder, text, tmp_path, monkeypatch):  # noqa: F811
    """A third of it is for distilling, whenever that was interrupted. 60 lines take a minute, an update half of one."""
    outputs, update, clock, calls = drafting.Work.outputs, Training.update, [0.0], []

    def translated(work, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        clock[0] += 60
        return outputs(work, *arguments)

    def updated(training, progress):
        clock[0] += 30
        return update(training, progress)

    monkeypatch.setattr(drafting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(drafting, "CHUNK", 60)
    monkeypatch.setattr(drafting, "EVALUATIONS", 1)
    monkeypatch.setattr(costs, "ROUNDS", 1)
    monkeypatch.setattr(drafting.Work, "outputs", translated)
    monkeypatch.setattr(Training, "update", updated)
    command = arguments(folder, text, tmp_path / "out", "--minutes", "8")
    assert draft.main(command) == 130
    assert json.loads((tmp_path / "out/training/run.json").read_text())[drafting.DISTILLED] == 120
    assert draft.main(command) == 0 and len(calls) == 4  # of five that the text would take
    state = load(tmp_path / "out/training/state.pt")
    assert state["extra"]["spent"] == 480 and state["updates"] == 10
