"""``tuning.json`` and ``specdec-tune``: tables of several machines side by side, none used elsewhere, damage named."""

import json
import shutil
from dataclasses import replace

import pytest
from conftest import ROOT

from specdec_plugins import Translator
from specdec_plugins.commands.tune import main
from specdec_plugins.decoding.control.learned import Learned, LearnedCost, LearnedGate
from specdec_plugins.decoding.control.thompson import Thompson
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.control.ucb import Ucb
from specdec_plugins.decoding.options import OPEN
from specdec_plugins.measure.machine import Place, place
from specdec_plugins.measure.tuned import NAME, read_tuning, write_tuning
from specdec_plugins.measure.tuning import best_arms
from specdec_plugins.settings import OptionError, Settings

HERE = Place("a processor", 2, "int8", "kernels 1")
LEARNED = Learned((LearnedGate(0.0, 0.0, (0.9, 0.5), (LearnedCost(1, 0, 1e-4), LearnedCost(1, 2, 1.5e-4))),))


def test_what_was_written_is_read(tmp_path):
    assert read_tuning(tmp_path, HERE) is None
    assert write_tuning(tmp_path, HERE, LEARNED, "2026-01-01") == tmp_path / NAME
    assert read_tuning(tmp_path, HERE) == LEARNED
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("change", [{"processor": "b"}, {"threads": 1}, {"dtype": "float32"}, {"build": "kernels 2"}])
def test_a_table_is_not_used_elsewhere(tmp_path, change):
    write_tuning(tmp_path, HERE, LEARNED, "2026-01-01")
    assert read_tuning(tmp_path, replace(HERE, **change)) is None


def test_tables_live_side_by_side_and_a_new_build_replaces_the_old_one(tmp_path):
    for change in ({}, {"threads": 1}, {"dtype": "float32"}, {"processor": "b"}, {"build": "kernels 2"}):
        write_tuning(tmp_path, replace(HERE, **change), LEARNED, "2026-01-01")
    places = [table["place"] for table in json.loads((tmp_path / NAME).read_text())["tables"]]
    assert len(places) == 4 and read_tuning(tmp_path, HERE) is None
    assert read_tuning(tmp_path, replace(HERE, build="kernels 2")) == read_tuning(tmp_path, replace(HERE, threads=1)) == LEARNED


def broken(change):
    """A file with one number or key changed."""
    content = {
        "format": 1,
        "tables": [{"place": vars(HERE), "date": "", "learned": {"gates": [
            {"verifier_gate": 0.0, "drafter_gate": 0.0, "rates": [0.5], "costs": [{"rows": 1, "length": 0, "seconds": 1.0}]}
        ]}}],
    }  # fmt: skip
    gate = content["tables"][0]["learned"]["gates"][0]
    change(content, gate)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged or not ours"),
        ("[]", "damaged or not ours (no object)"),
        ('{"format": 9}', "format 9; this version reads format 1"),
        ('{"format": 1}', "no 'tables'"),
        (broken(lambda all, gate: gate.update(rates=[1.5])), "not a probability"),
        (broken(lambda all, gate: gate.update(rates="x")), "rates"),
        (broken(lambda all, gate: gate["costs"][0].update(seconds=-1.0)), "-1.0 seconds for 1 rows and 0 tokens cannot be"),
        (broken(lambda all, gate: gate["costs"][0].update(seconds=float("nan"))), "nan seconds"),
        (broken(lambda all, gate: gate["costs"][0].update(rows=0)), "for 0 rows"),
        (broken(lambda all, gate: all["tables"][0].pop("place")), "no 'tables[0].place'"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, text, message, capsys):
    (tmp_path / NAME).write_text(text)
    for use in (lambda: read_tuning(tmp_path, HERE), lambda: write_tuning(tmp_path, HERE, LEARNED, "")):
        with pytest.raises(ValueError, match=r"tuning.json: ") as caught:
            use()
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / NAME).read_text() == text
    assert main(["--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_sound_file_is_read(tmp_path):
    (tmp_path / NAME).write_text(broken(lambda all, gate: None))
    assert read_tuning(tmp_path, HERE).gates[0].rates == (0.5,)


def test_the_place_is_that_of_the_computation():
    here = place("int8", 1)
    assert here == place("auto", 1) and here != place("float32", 1) and here != place("int8", 2)
    assert here.build.startswith("kernels ") and here.threads == 1
    assert place("int8", 1, "cpu:0") == here
    assert place("float32", 1, "meta").processor == "meta"  # and no GPU is asked


def test_the_best_arm_is_shown():
    (line,) = best_arms(LEARNED)
    assert line["rows"] == 1 and line["best length"] == 2 and line["plain iteration, microseconds"] == 100
    assert line["times plain"] == pytest.approx((1 + 0.9 + 0.45) / 1.5)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A model folder that was tuned with float32 on one thread."""
    folder = tmp_path_factory.mktemp("tuned") / "model"
    shutil.copytree(ROOT / "data" / "demo.en-de", folder)
    arguments = ["--lines", "2", "--batch-sizes", "1", "2", "--rounds", "1", "--threads", "1"]
    assert main(["--model", str(folder), *arguments]) == 0
    return folder


def test_what_was_measured_is_plausible(tuned):
    learned = read_tuning(tuned, place("float32", 1))
    open_gate = learned.gates[0]
    assert {(cost.rows, cost.length) for cost in open_gate.costs} >= {
        (rows, length) for rows in (1, 2) for length in (0, 1, 8, 16)
    }
    assert {cost.length for cost in learned.gates[1].costs} == {1, 2, 4, 6, 8, 12, 16}
    assert all(1e-6 < cost.seconds < 1 for gate in learned.gates for cost in gate.costs)
    assert open_gate.rates[0] > 0.5 and len(open_gate.rates) == 16


@pytest.mark.parametrize("controller", ["throughput", "thompson", "ucb"])
def test_controllers_start_from_the_table_and_change_no_output(tuned, controller):
    lines = (ROOT / "data" / "demo.txt").read_text().splitlines()[:3]
    plain = Translator.from_pretrained(str(tuned), strategy="ar", threads=1).translate(lines)
    for threads, known in ((1, True), (2, False)):
        translator = Translator.from_pretrained(str(tuned), controller=controller, threads=threads)
        assert bool(translator.roles.controller.classes) == known
        assert [each.tokens for each in translator.translate(lines)] == [each.tokens for each in plain]


def test_a_damaged_table_is_a_fault_of_the_model(tuned, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tuned, folder)
    (folder / NAME).write_text("{}")
    with pytest.raises(ValueError, match=r"tuning\.json: format None"):
        Translator.from_pretrained(str(folder))
    Translator.from_pretrained(str(folder), block_size=4)  # has no use for it


@pytest.mark.parametrize(
    ("options", "kind", "gated"),
    [
        ({}, Throughput, False),
        ({"controller": "thompson"}, Thompson, True),
        ({"controller": "ucb"}, Ucb, True),
        ({"controller": "ucb", "sampling": True}, Ucb, True),
        ({"controller": "ucb", "sampling": True, "rule": "rejection", "block_size": "auto"}, Ucb, False),
        ({"controller": "ucb", "beta": 2, "block_size": "auto"}, Ucb, False),
        ({"controller": "thompson", "drafter_gate": 0.2}, Thompson, False),
    ],
)
def test_gates_are_chosen_only_where_they_cannot_change_the_output(options, kind, gated):
    controller = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), threads=1, **options).roles.controller
    assert type(controller) is kind
    assert (len(getattr(controller, "gates", [OPEN])) > 1) == gated
    if "drafter_gate" in options:
        assert controller.gates[0].drafter == 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"controller": "x"}, "controller 'x' is unknown; available: throughput, thompson, ucb"),
        ({"controller": "ucb", "block_size": 4}, "controller has a use only with block size auto"),
        ({"controller": "ucb", "beta": 2}, "controller has a use only with block size auto"),
        ({"controller": "ucb", "strategy": "ar"}, "controller has a use only with block size auto"),
    ],
)
def test_a_controller_that_is_not_used_is_refused(options, message):
    with pytest.raises(OptionError) as caught:
        Settings(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds 0 is less than 1"),
        (["--batch-sizes", "4", "0"], "--batch-sizes 0 is less than 1"),
    ],
)
def test_wrong_options_are_refused(arguments, message, capsys):
    assert main(["--model", "nowhere", *arguments]) == 2
    assert capsys.readouterr().err == f"specdec-tune: error: {message}\n"


def test_a_model_that_is_missing_or_has_no_sentences_is_named(tmp_path, capsys):
    assert main(["--model", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"specdec-tune: error: {tmp_path / 'nowhere'}: not a model folder (no model.json in it)\n"
    (tmp_path / "empty").write_text("\n")
    assert main(["--model", str(tmp_path), "--input", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == f"specdec-tune: error: {tmp_path / 'empty'}: no sentences\n"


def test_a_line_that_is_too_long_is_named_by_its_number_in_the_file(tmp_path, capsys):
    """Empty lines are not measured, and count."""
    (tmp_path / "in").write_text(f"A dog.\n\n{'word ' * 2000}\n")
    assert main(["--model", str(ROOT / "data" / "demo.en-de"), "--input", str(tmp_path / "in"), "--lines", "9"]) == 1
    assert capsys.readouterr().err.startswith(f"specdec-tune: error: {tmp_path / 'in'}, line 3: over ")
