"""specdec-benchmark --report: tables and figures agree with the JSON."""

import json
from collections import Counter

import pytest
from conftest import ROOT
from test_benchmark import cells

from specdec_plugins.commands import benchmark
from specdec_plugins.measure import figures, machine, runs
from specdec_plugins.measure.scores import difference
from specdec_plugins.measure.systems import Run

PAIR = str(ROOT / "data" / "demo.en-de")
OUTPUTS = [["Ein", "Hund", "rennt", "durch", "den", "Schnee", "."], ["Zwei", "Kinder", "spielen", "im", "Park", "."]]
SPEEDS = figures.speeds


class Fake:
    """Answers at once in place of a system's process."""

    def __init__(self, system, model, sources, mix):
        self.system = system

    def decode(self, kind, batch_size, count=None):
        drafts = self.system.strategy.startswith("specdec")
        outputs = [OUTPUTS[0], OUTPUTS[1][:: -1 if self.system.tau == 2.0 else 1]]
        seconds = (0.5 if drafts else 1.0) / batch_size
        phases = {"encoding": 0.1, "drafting": 0.3 * drafts, "verifying": 0.5, "elsewhere": 0.1}
        counts = ({0: 4, 1: 4}, {0: 3, 1: 2}, {2: 4}, {1: 1, 3: 3}) if drafts else ({}, {}, {2: 4}, {1: 10})
        return Run(seconds, [seconds / 2] * 2, outputs, *map(Counter, (phases, *counts)), (299 + batch_size) * 2**20)

    def stop(self):
        pass


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "set.en").write_text("A dog runs through the snow.\nTwo children play in the park.\n", encoding="utf-8")
    (tmp_path / "set.de").write_text("Ein Hund rennt durch den Schnee.\nZwei Kinder spielen im Park.\n", encoding="utf-8")
    monkeypatch.setattr(runs, "RunningSystem", Fake)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    monkeypatch.setattr(benchmark, "find_spec", lambda name: True)  # of matplotlib, which only draws
    monkeypatch.setattr(figures, "speeds", lambda rows, path: None)
    return [
        "--model",
        PAIR,
        "--input",
        str(tmp_path / "set.en"),
        "--reference",
        str(tmp_path / "set.de"),
        "--report",
        str(tmp_path / "out"),
        *"--systems ar specdec specdec-tolerant --dtypes float32 --batch-sizes 1 4 --block-sizes 2 --beta 2 3".split(),
        *"--tau 1 2 --rounds 1 --threads 1".split(),
    ]


def test_what_it_says(command, tmp_path, capsys):
    assert benchmark.main(command) == 0
    folder = tmp_path / "out"
    result = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert len(result["rows"]) == 18 and text.endswith("](speeds.png)\n")
    lines = cells(text)
    for line in (
        ["`ar` float32", "500.0 ms", "500.0 ms", "500.0 ms", "15", "± 0%", "1", "1.00"],
        ["`ar` float32", "15 (2 x 1)", "60 (2 x 1)"],  # 15 tokens with eos in a second
        ["exact `specdec` float32, always 2 tokens", "2.00", "2.00"],
        ["exact `specdec` float32, always 2 tokens", "100.00", "same output", "2 of 2 (100.0%)"],
        ["tolerant `specdec` float32, beta 3, tau 1", "2.50", "75%", "50%"],
        ["`ar` float32", "300", "303"],
    ):
        assert line in lines
    (row,) = (row for row in result["rows"] if row["kind"] == "latency" and row["beta"] == 3 and row["tau"] == 2)
    found = row["bleu_difference"]
    assert found["low"] <= found["mean"] <= found["high"] <= 0
    assert found["difference"] == pytest.approx(row["bleu"] - 100, abs=0.01)
    assert row["identical"] == 1 and f"{found['difference']:+.2f} (" in text


def test_a_report_needs_no_references(command, tmp_path):
    at = command.index("--reference")
    assert benchmark.main(command[:at] + command[at + 2 :]) == 0
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "BLEU:" not in text and ["exact `specdec` float32, always 2 tokens", "", "", "2 of 2 (100.0%)"] in cells(text)


def test_what_it_draws(command, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, of the extra bench")
    monkeypatch.setattr(figures, "speeds", SPEEDS)
    assert benchmark.main(command) == 0
    assert (tmp_path / "out" / "speeds.png").read_bytes().startswith(b"\x89PNG")


def test_the_interval_is_of_sacrebleu_s_own_samples():
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    reference = [
        f"the {word} dog runs through the deep snow today"
        for word in ["big", "small", "old", "young", "red", "black", "white", "brown"]
    ]
    ours = [line.replace("deep", "cold") if number % 3 else line for number, line in enumerate(reference)]
    theirs = [line.replace("runs", "walks") if number % 2 else line for number, line in enumerate(reference)]
    _, found = PairedTest([("theirs", theirs), ("ours", ours)], {"BLEU": BLEU()}, [reference], "bs")()
    result = difference(BLEU(), ours, theirs, reference)
    assert result["mean"] == pytest.approx(found["BLEU"][1].mean - found["BLEU"][0].mean, abs=1e-6)
    assert result["difference"] == pytest.approx(found["BLEU"][1].score - found["BLEU"][0].score, abs=1e-4)
    assert result["low"] < result["difference"] < result["high"]


def test_matplotlib_is_asked_for(command, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    assert benchmark.main(command) == 2
    error = capsys.readouterr().err
    assert "--report requires matplotlib, which is not installed; run: " in error and error.count("\n") == 1
