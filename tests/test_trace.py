"""The trace tells what happened, in a terminal or a log, and trusts no text."""

import pytest
from conftest import ROOT

from specdec_plugins.commands import translate
from specdec_plugins.commands.trace import legend, traced
from specdec_plugins.commands.translation.answers import settings_of
from specdec_plugins.commands.translation.summary import summary
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.settings import Settings

SENTENCE = "a dog", "ein Hund", [(["ein"], ["Kat@@", "ze"], "Hund"), (["</s>"], [], None)]
EMPTY = "", "", []


def test_figures_count_what_was_committed():
    assert "3 tokens in 2 passes, mean accepted length 1.50" in traced(*SENTENCE, colour=False)
    assert "1 token in 1 pass, mean accepted length 1.00" in traced("a", "", [([], ["x"], "</s>")], colour=False)
    assert traced(*EMPTY, colour=False).split() == ["source", "output", "nothing", "to", "translate"]


def test_without_colour_the_marks_tell():
    lines = traced(*SENTENCE, colour=False).splitlines()
    assert lines[3].split() == ["1", "ein", "[Hund]", "~Kat@@~", "~ze~"] and lines[4].split() == ["2", "</s>"]
    assert "\033" not in legend(False) + "\n".join(lines)


def test_colours_are_ended_and_text_cannot_bring_its_own():
    text = traced("\033[31ms", "\033[31mo", [(["\033[31mred"], [], "x")], colour=True)
    assert text.count("\033[0m") == 2 and text.count("\033") == 4
    assert "\033[31m" not in text


def test_only_what_steers_is_replaced():
    kept = "می\u200cروم l\u00a0an 日本\u3000"
    assert kept in traced(kept, "", [], colour=False)
    assert "a\ufffdb\ufffdc\ufffdd\ufffde" in traced("a\u202eb\x9bc\u2028d\ne", "", [], colour=True)


def test_a_trace_has_drafts_and_changes_no_output(capfd):
    """Also where ``auto`` drafts nothing: in a batch of many sentences on a CPU."""
    command = ["--model", str(ROOT / "data/demo.en-de"), "--input", str(ROOT / "data/demo.txt"), "--quiet"]
    assert translate.main(command) == 0
    plain = capfd.readouterr()
    assert translate.main([*command, "--trace"]) == 0
    traced = capfd.readouterr()
    assert traced.out == plain.out and plain.err == ""
    assert traced.err.count("mean accepted length") == 16 and "mean accepted length 1.00" not in traced.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--trace"], "model"),
        (["--trace", "--block-size", "auto"], "auto"),
        (["--trace", "--block-size", "3"], 3),
        (["--trace", "--beta", "2", "--tau", "1"], "model"),
    ],
)
def test_block_size_of_a_trace(options, expected):
    assert settings_of(translate.parser().parse_args(["--model", "x", *options])).block_size == expected


def test_a_summary_counts_windows_where_documents_are_cut():
    stats = DecodeStats(sentences=4, own_tokens=9)
    assert summary(Settings(), stats, 2.0, "DIR")[0] == "4 sentences, 9 tokens in 2.0 s: 2.0 sentences/s, 4 tokens/s"
    assert summary(Settings(windows=50), stats, 2.0, "DIR")[0] == "4 windows, 9 tokens in 2.0 s: 2.0 windows/s, 4 tokens/s"
    first, *_, last = summary(Settings(), DecodeStats(sentences=1, own_tokens=9, cut=1), 2.0, "DIR")
    assert first.startswith("1 sentence, 9 tokens in 2.0 s") and last.startswith("1 output was cut by the length limit")


def test_a_summary_says_what_tolerance_cost():
    stats = DecodeStats(sentences=2, passes=4, iterations=4, drafted=8, accepted=5, own_tokens=4, drafter="glide")
    stats.lengths[2] = 4
    stats.seconds.update(drafting=0.002, verifying=0.01)
    settings = Settings(beta=3, tau=0.5)
    lines = summary(settings, stats, 1.0, "DIR")
    assert lines[1].startswith("tolerant (beta 3, tau 0.5); glide drafts of 2 tokens: 2.25 tokens per verifier pass")
    cost = "tolerance: a pass took 3.00 ms, 0.50 of them for a draft of fixed length; compare with --strategy ar"
    assert lines[2] == cost
    stats.iterations += 1
    assert summary(settings, stats, 1.0, "DIR")[2] == f"{cost}, and with --batch-size 1"
    assert [each.usual_batch_size for each in (settings, Settings(), Settings(beta=3, tau=0.5, device="cuda"))] == [1, 32, 32]
