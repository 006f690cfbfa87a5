"""The line that says whether drafting paid, from statistics and from runs of the shipped pairs."""

import math
import re
from dataclasses import replace

import pytest
from conftest import ROOT
from test_translate import run

from specdec_plugins import Translator
from specdec_plugins.commands.translation.summary import summary
from specdec_plugins.commands.translation.verdict import verdict
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Expected, Outcome
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import Settings

PAIR, TEXT = ROOT / "data" / "demo.en-de", ROOT / "data" / "demo.txt"
DRAFT, PLAIN = Step([7, 8, 9, 9], 3, 5), Step([], 0, 5)
SAVES = "; --strategy ar saves the drafter's memory"


def stats(*parts, drafter="glide", **rest):
    """Of iterations (step, rows, passes, planned length, expectation)."""
    found = DecodeStats(drafter=drafter, sentences=1, **rest)
    for step, rows, passes, length, expected in parts:
        found.record([step] * rows * passes, passes, length, expected)
    return found


CASES = [
    ({"strategy": "ar"}, stats((PLAIN, 4, 5, 0, None), drafter=None), "greedy; plain decoding, as --strategy ar asks"),
    ({"strategy": "ar"}, stats((PLAIN, 4, 5, 0, None), drafter=None, beam=6), "beam 6; plain decoding, as --strategy ar asks"),
    ({"strategy": "fairseq"}, stats((PLAIN, 4, 5, 0, None), drafter=None, beam=5), "beam 5; fairseq's generator, without drafts"),
    (
        {},
        stats((PLAIN, 4, 5, 0, None), drafter=None),
        "greedy; no drafter in DIR: plain decoding; train one: docs/train.md; --draft-with names drafters without training",
    ),
    (
        {},
        stats((PLAIN, 4, 5, 0, None), drafter=None, beam=4),
        "beam 4; no drafter in DIR: plain decoding; train one: docs/train.md; a drafter speeds up --beam 1",
    ),
    ({"sampling": True}, stats((PLAIN, 4, 1, 0, None)), "sampling; no glide drafts in 1 pass: too few to try any"),
    (
        {"sampling": True, "rule": "rejection"},
        stats((DRAFT, 1, 5, 4, None)),
        "sampling by the rejection rule; glide drafts of 4 tokens: 4.00 tokens per verifier pass (plain decoding: 1), 75% of the "
        "drafted tokens accepted; --strategy ar tells whether they pay",
    ),
    ({"beta": 3, "tau": 1.0}, stats((DRAFT, 1, 5, 4, None)), "tolerant (beta 3, tau 1); glide drafts of 4 tokens: 4.00 tokens"),
    ({"tree": 9}, stats((DRAFT, 1, 5, 4, None), drafter="recycling"), "greedy; recycling trees of up to 9 tokens: 4.00 tokens"),
    ({"strategy": "drafter"}, stats((Step([7] * 8, 8, None), 2, 5, 8, None), drafter="block"),
     "greedy; unverified block drafts: 8.00 tokens per draft"),
    ({}, stats((PLAIN, 2, 3, 0, None), (DRAFT, 2, 6, 4, None)),
     "greedy; glide drafts: 3.00 tokens per verifier pass (plain decoding: 1), 75% of the drafted tokens accepted; 9 passes: too "
     "few to compare their speed with plain decoding's"),
    ({}, stats((DRAFT, 1, 100, 4, Expected(1.6, 2.0)), (PLAIN, 1, 2, 0, Expected(1.0, 2.0))),
     "greedy; glide drafts paid, at 2.50 times the speed of plain iterations: 3.94 tokens per verifier pass (plain decoding: 1), "
     "75% of the drafted tokens accepted"),
    ({"windows": 40}, stats((PLAIN, 16, 10, 0, Expected(1.0, 0.5)), (DRAFT, 4, 10, 4, Expected(2.0, 1.8))),
     "greedy; glide drafts paid in 20% of the iterations, at 2.00 times the speed of plain iterations: 1.60 tokens"),
    ({}, stats((DRAFT, 2, 50, 4, Expected(5.0, 0.9))),
     "greedy; glide drafts did not pay, at 0.80 times the speed of plain iterations: 4.00 tokens per verifier pass (plain "
     "decoding: 1), 75% of the drafted tokens accepted; --strategy ar does without them"),
    ({}, stats((PLAIN, 32, 50, 0, Expected(1.0, 0.5)), (PLAIN, 32, 50, 0, Expected(1.0, 0.98)), (DRAFT, 32, 1, 4, None)),
     "greedy; glide drafts did not pay on this text at 32 rows per pass: plain passes were chosen in 99% of the iterations, as "
     "drafts promised only 0.66 times their speed" + SAVES),
    ({"beam": 4}, stats((PLAIN, 1, 99, 0, Expected(1.0, 0.25)), (DRAFT, 1, 1, 4, Expected(8.0, 0.25)), beam=4),
     "beam 4; glide drafts did not pay on this text at 1 row per pass: plain passes were chosen in 99% of the iterations, as "
     "drafts promised only 0.25 times their speed" + SAVES),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "found", "line"), CASES)
def test_a_verdict_is_read_from_statistics(settings, found, line):
    said = verdict(Settings(**settings), found, "DIR")
    assert said.startswith(line) and "\n" not in said
    assert summary(Settings(**settings), found, 1.0, "DIR")[1] == said


def test_sums_of_statistics_have_the_verdict_of_the_whole():
    """Each buffer, and each worker, has its own."""
    parts = [
        (PLAIN, 32, 50, 0, Expected(1.0, 0.5)),
        (DRAFT, 2, 50, 4, Expected(1.5, 1.2)),
        (DRAFT, 4, 9, 4, Expected(math.inf, 1.2)),
    ]
    whole = stats(*parts)
    added = stats(parts[0]) + stats(parts[1]) + stats(parts[2], drafter=None)
    assert (added.gain, added.missed_gain, added.drafting, added.drafter) == (whole.gain, whole.missed_gain, 136, "glide")
    assert whole.gain == pytest.approx(4 / 1.5) and whole.missed_gain == pytest.approx(0.5)
    assert verdict(Settings(), added, "DIR") == verdict(Settings(), whole, "DIR")


@pytest.mark.parametrize(("draft", "chosen"), [(0.25, True), (9.0, False)])
def test_the_controller_says_what_it_knows_and_nothing_before(draft, chosen):
    """On a machine where a draft of any length costs so many plain passes more, and three of its tokens pass."""
    controller, found = Throughput(4), DecodeStats(drafter="glide")
    for _ in range(400):
        plan = controller.plan(range(2))
        length = plan.lengths[0]
        steps = [Step([7] * length, min(3, length), 5)] * 2
        seconds = 0.001 * (1 + draft * bool(length))
        if not controller.decided:
            assert plan.expects is None
        found.record(steps, 1, length, plan.expects)
        controller.update(Outcome(plan, steps, seconds))
    if chosen:
        assert found.gain == pytest.approx(4 / 1.25, rel=0.15) and found.drafting > 700
    else:
        assert 2 / 10 < found.missed_gain < 4 / 10 and found.drafting < 80  # it tried short ones


def slow(translator, plain, draft):
    """Replaces the clock: passes take so long."""
    controller = translator.engine.roles.controller
    update = controller.update

    def told(outcome):
        seconds = (draft if any(outcome.plan.lengths) else plain) * outcome.times
        update(outcome._replace(seconds=seconds, first=seconds / outcome.times if outcome.first else 0.0))

    controller.update = told


@pytest.mark.parametrize(("draft", "said"), [(0.001, "paid"), (0.1, "did not pay on this text")])
def test_whether_drafts_of_a_shipped_pair_pay_depends_on_their_cost(draft, said):
    translator = Translator.from_pretrained(str(PAIR), threads=1)
    slow(translator, 0.001, draft)
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    for _ in range(3):
        translator.translate(lines, batch_size=1)
    line = verdict(translator.settings, translator.engine.take_stats(), str(PAIR))
    assert line.startswith("greedy; glide drafts ") and f"drafts {said}" in line
    if said == "paid":
        assert 2 < float(re.search(r"at ([\d.]+) times the speed", line)[1]) < 10
    else:
        assert float(re.search(r"promised only ([\d.]+) times", line)[1]) < 0.5 and line.endswith(SAVES)


RUNS = [
    (["--strategy", "ar"], r"greedy; plain decoding, as --strategy ar asks"),
    (["--strategy", "ar", "--beam", 3], r"beam 3; plain decoding, as --strategy ar asks"),
    (["--block-size", 6], r"greedy; glide drafts of 6 tokens: 5\.\d\d tokens per verifier pass .*; --strategy ar tells .*"),
    (["--beta", 3, "--tau", 1], r"tolerant \(beta 3, tau 1\); glide drafts of 8 tokens: 6\.\d\d tokens per verifier pass .*"),
    (["--sampling", "--block-size", 4], r"sampling; glide drafts of 4 tokens: \d\.\d\d tokens per verifier pass .*"),
    (["--draft-with", "recycling", "--tree", 6], r"greedy; recycling trees of up to 6 tokens: \d\.\d\d tokens per .*"),
    (["--batch-size", 1], r"greedy; glide drafts (paid|did not pay|: ).*tokens per verifier pass .*"),
    (["--batch-size", 16], r"greedy; no glide drafts in \d+ passes: too few to try any"),
    pytest.param(["--batch-size", 1, "--workers", 2], r"greedy; glide drafts.* tokens per verifier .*", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("options", "line"), RUNS)
def test_a_run_ends_with_its_verdict(options, line, capfd):
    err = run(capfd, "--model", PAIR, "-i", TEXT, "--threads", 1, *options)[1]
    second = err.splitlines()[1]
    assert re.fullmatch(line, second), second


def test_a_model_without_a_drafter_is_named(tmp_path, capfd):
    pair = load_folder(str(PAIR))
    for beam in (1, 4):
        engine = Engine(replace(pair, drafter=None), Settings(beam=beam, threads=1))
        engine.generate([[5, 6, 7, pair.verifier.spec.symbols.eos]])
        said = verdict(Settings(beam=beam, threads=1), engine.take_stats(), "my-pair")
        assert said.startswith(
            f"{'greedy' if beam == 1 else 'beam 4'}; no drafter in my-pair: plain decoding; train one: docs/train.md"
        )
