"""specdec-report: what is measured is kept and found again, and its tables and figures say what the JSON says."""

import json

import pytest
from conftest import ROOT

from specdec_plugins.commands import report
from specdec_plugins.measure import figures, machine, runs
from specdec_plugins.measure.report import render
from specdec_plugins.measure.scores import difference
from specdec_plugins.measure.systems import Run

PAIR = str(ROOT / "data" / "demo.en-de")
OUTPUTS = [["Ein", "Hund", "rennt", "durch", "den", "Schnee", "."], ["Zwei", "Kinder", "spielen", "im", "Park", "."]]
DRAW = figures.draw


class Fake:
    """Says at once what a system's process would; ``asked`` counts the groups' systems, ``broken`` ends a run as Ctrl-C does."""

    asked: list[str]
    broken: int | None

    def __init__(self, system, model, sources, mix):
        self.system = system
        self.asked.append(system.name)

    def decode(self, kind, batch_size, count=None):
        if batch_size == self.broken:
            raise KeyboardInterrupt
        drafts = self.system.strategy.startswith("specdec")
        outputs = [OUTPUTS[0], OUTPUTS[1][:: -1 if self.system.tau == 2.0 else 1]]
        seconds = (0.5 if drafts else 1.0) / batch_size
        shares = {"encoding": 0.1, "drafting": 0.3 * drafts, "verifying": 0.5, "elsewhere": 0.1}
        drafted, lengths = ({0: (4, 3), 1: (4, 2)}, {1: 1, 3: 3}) if drafts else ({}, {1: 10})
        return Run(seconds, [seconds / 2] * 2, outputs, shares, drafted, {2: 4}, lengths)

    def memory(self, kind, batch_size):
        return {"weights": 40 * 2**20, "caches": batch_size * 2**20, "peak": 300 * 2**20}

    def stop(self):
        pass


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "set.en").write_text("A dog runs through the snow.\nTwo children play in the park.\n", encoding="utf-8")
    (tmp_path / "set.de").write_text("Ein Hund rennt durch den Schnee.\nZwei Kinder spielen im Park.\n", encoding="utf-8")
    monkeypatch.setattr(runs, "RunningSystem", Fake)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(report, "find_spec", lambda name: True)  # of matplotlib, which only draws
    monkeypatch.setattr(figures, "draw", lambda rows, folder, name: [(f"{name}.png", f"a figure of {len(rows)} rows")])
    monkeypatch.setattr(Fake, "asked", [], raising=False)
    monkeypatch.setattr(Fake, "broken", None, raising=False)
    return [
        "--model", PAIR, "--test-set", str(tmp_path / "set.en"), str(tmp_path / "set.de"), "--output", str(tmp_path / "out"),
        "--systems", "ar", "specdec", "--dtypes", "float32", "--batch-sizes", "1", "4", "--block-sizes", "2", "--betas", "2", "3",
        "--taus", "1", "2", "--rounds", "1", "--threads", "1",
    ]  # fmt: skip


def test_goes_on_where_it_was(command, tmp_path, capsys):
    systems = ["ar float32", "specdec float32 K=2"]
    systems += [f"specdec-tolerant float32 beta={beta} tau={tau}" for beta in (2, 3) for tau in (1, 2)]
    cells = tmp_path / "out" / "cells"
    Fake.broken = 4
    assert report.main(command) == 130 and "goes on after the last group" in capsys.readouterr().err
    assert (
        sorted(path.name for path in cells.iterdir()) == ["set.batch1.json", "set.latency.json"]
        and not (tmp_path / "out" / "report.json").exists()
    )

    Fake.broken = None
    for disturb, expected in (
        (lambda: None, 1),  # the group that was broken off
        (lambda: None, 0),
        (lambda: (cells / "set.batch1.json").write_text('{"group": ', encoding="utf-8"), 1),
        (lambda: (tmp_path / "set.de").write_text("Ein Hund.\nZwei Kinder.\n", encoding="utf-8"), 3),
        (lambda: command.extend(["--sentences", "1"]), 3),
    ):
        disturb()
        Fake.asked.clear()
        assert report.main(command) == 0
        assert Fake.asked == systems * expected
        assert f"18 cells in 3 groups, {expected} groups to measure" in capsys.readouterr().err
    assert sorted(path.name for path in cells.iterdir()) == ["set.batch1.json", "set.batch4.json", "set.latency.json"]


def test_what_it_says(command, tmp_path):
    assert report.main(command) == 0
    folder = tmp_path / "out"
    result = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text == render(result)
    assert len(result["rows"]) == 18 and result["test_sets"] == {"set": 2}
    assert "| `ar` float32 | 500.0 ms | 500.0 ms | 500.0 ms | 15 | 1 |  | 1.00 | 100.00 |" in text
    assert "| `ar` float32 | 15 (2 x 1) | 60 (2 x 1) |" in text  # 15 tokens with eos in a second
    assert "| exact `specdec` float32, always 2 tokens | 2.00 | 2.00 |" in text
    assert "| exact `specdec` float32, always 2 tokens | 100.00 | same output | 2 of 2 (100.0%) |" in text
    assert "| tolerant `specdec` float32, beta 3, tau 1 | 2.50 | 75% | 50% |" in text
    assert "| `ar` float32 | 41 / 300 | 44 / 300 |" in text
    (row,) = (row for row in result["rows"] if row["kind"] == "latency" and row["beta"] == 3 and row["tau"] == 2)
    found = row["bleu_difference"]
    assert found["low"] <= found["mean"] <= found["high"] <= 0 and found["difference"] == pytest.approx(
        row["bleu"] - 100, abs=0.01
    )
    assert row["identical"] == 1 and f"| {row['bleu']:.2f} | {found['difference']:+.2f} (" in text
    assert result["figures"] == {"set": [["set.png", "a figure of 18 rows"]]} and "![a figure of 18 rows](set.png)" in text


def test_what_it_draws(command, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib (extra: bench)")
    assert report.main(command) == 0
    rows = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["rows"]
    drawn = DRAW(rows, tmp_path, "set")
    names = [
        "frontier.batch1",
        "frontier.batch4",
        "speedup",
        "accepted",
        "positions",
        "grid_bleu",
        "grid_speed",
        "time",
        "memory",
    ]
    assert [file for file, _ in drawn] == [f"set.{name}.png" for name in names]
    assert {path.name for path in tmp_path.glob("*.png")} == {file for file, _ in drawn}
    figures.plot_speeds(rows, tmp_path / "speeds.png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


def test_frontier():
    rows = [
        {"tokens_per_second": speed, "bleu": bleu} for speed, bleu in ((1, 40), (2, 38), (2, 37), (3, 38.5), (4, 36), (3.5, 36))
    ]
    assert [(row["tokens_per_second"], row["bleu"]) for row in figures.best(rows)] == [(4, 36), (3, 38.5), (1, 40)]


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


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--betas", "1"], "--betas 1 is less than 2", 2),
        (["--taus", "inf"], "--taus inf is not a number of nats", 2),
        (["--rounds", "0"], "--rounds 0 is less than 1", 2),
        (["--test-set", "elsewhere/set.en", "set.de"], "--test-set has two of the name 'set'", 2),
        (["--test-set", "nowhere.en", "nowhere.de"], "nowhere.en", 1),
        (["--model", "nowhere"], "nowhere: not a model folder", 1),
    ],
)
def test_bad_options(options, message, status, command, capsys):
    assert report.main([*command, *options]) == status
    error = capsys.readouterr().err
    assert error.startswith("specdec-report: error: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize("package", ["matplotlib", "ctranslate2"])
def test_a_package_that_is_not_there(package, command, monkeypatch, capsys):
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == package else True)
    assert report.main([*command, "--systems", "ar", "ctranslate2"]) == 2
    error = capsys.readouterr().err
    assert (
        package in error
        and "is not installed: pip install" in error
        and "specdec-seq2seq[bench]" in error
        and error.count("\n") == 1
    )
