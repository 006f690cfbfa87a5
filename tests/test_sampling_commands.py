"""Sampling from text to text: every strategy, formats, resuming, processes, minimum Bayes risk, bad values."""

import itertools
import json
import random
from collections import Counter

import pytest
from sacrebleu.metrics.chrf import CHRF
from test_translate import run, stopped_after

from specdec_plugins.fields import OptionError
from specdec_plugins.settings import Settings
from specdec_plugins.text import agreement
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.translator import Translator

DRAW = ("--sampling", "--temperature", 0.8, "--top-p", 0.95, "--seed", 5, "--max-len-b", 12, "--quiet")


def test_drafts_batches_and_buffers_do_not_change_samples(folder, source, capfd):
    quick = ("--model", folder, "--input", source, *DRAW)
    expected, _ = run(capfd, *quick, "--strategy", "ar")
    for choice in (
        [],
        ["--block-size", 9],
        ["--batch-size", 1],
        ["--buffer-size", 2],
    ):
        assert run(capfd, *quick, *choice)[0] == expected
    assert run(capfd, *quick, "--strategy", "ar", "--seed", 6)[0] != expected
    penalised = [run(capfd, *quick, "--strategy", strategy, "--repetition-penalty", 1.5)[0] for strategy in ("ar", "specdec")]
    assert penalised[0] == penalised[1] != expected
    rejected = [run(capfd, *quick, "--rule", "rejection", "--batch-size", batch)[0] for batch in (1, 7)]
    assert rejected[0] == rejected[1]  # by default blocks have one length, so that a seed has one output
    drafts = run(capfd, *quick, "--strategy", "drafter")[0]
    assert drafts.count("\n") == expected.count("\n")


@pytest.mark.long
def test_processes_do_not_change_samples(folder, source, capfd):
    quick = ("--model", folder, "--input", source, *DRAW)
    assert run(capfd, *quick, "--workers", 2, "--buffer-size", 3)[0] == run(capfd, *quick, "--strategy", "ar")[0]


def test_formats_write_all_samples_of_a_line(folder, source, lines, capfd):
    quick = ("--model", folder, "--input", source, *DRAW, "--num-samples", 3)
    text = run(capfd, *quick)[0].split("\n")[:-1]
    assert len(text) == 3 * len(lines)
    assert text[::3] == run(capfd, *quick[:-2])[0].split("\n")[:-1]  # more samples leave the first one as it is
    records = [json.loads(line) for line in run(capfd, *quick, "--format", "json")[0].split("\n")[:-1]]
    assert [(each["id"], each["sample"]) for each in records] == list(itertools.product(range(len(lines)), range(3)))
    assert [each["text"] for each in records] == text
    printed = run(capfd, *quick, "--format", "fairseq")[0].split("\n")[:-1]
    assert [line[0] for line in printed] == ["S", *"HDP" * 3] * len(lines)
    assert [line.split("\t")[2] for line in printed if line.startswith("D-")] == text
    traced = run(capfd, *quick, "--trace")[1]
    assert traced.count("\noutput  ") == len(text)


@pytest.mark.parametrize("form", ["text", "json", "fairseq"])
def test_resume_goes_on_with_the_same_samples(folder, source, tmp_path, capfd, form):
    output = tmp_path / "out"
    command = (
        "--model",
        folder,
        source,
        "--output",
        output,
        "--format",
        form,
        *DRAW,
        *"--num-samples 2 --block-size 4 --buffer-size 3".split(),
    )
    run(capfd, *command)
    whole = output.read_bytes()
    for calls in (1, 2) if form == "text" else (2,):
        with pytest.MonkeyPatch.context() as monkeypatch:
            stopped_after(monkeypatch, calls)
            run(capfd, *command, status=130)
        assert whole.startswith(output.read_bytes()) and output.read_bytes() != whole
        run(capfd, *command, "--resume")
        assert output.read_bytes() == whole


def test_minimum_bayes_risk_takes_the_sample_most_like_the_others(folder, lines):
    drawing = {"sampling": True, "temperature": 0.7, "seed": 2, "max_len_b": 12}
    several = Translator.from_pretrained(folder, num_samples=5, **drawing).translate(lines, batch_size=4)
    chosen = Translator.from_pretrained(folder, mbr=5, **drawing).translate(lines, batch_size=4)
    assert len(several) == 5 * len(lines) and len(chosen) == len(lines)
    for index, best in enumerate(chosen):
        texts = [each.text for each in several[5 * index : 5 * index + 5]]
        means = [
            sum(CHRF().sentence_score(text, [other]).score for j, other in enumerate(texts) if j != i) / 4
            for i, text in enumerate(texts)
        ]
        assert means[best.sample] == pytest.approx(max(means)) and best.text == texts[best.sample]
    assert most_agreed(["a", "b", "b"]) == 1


def test_the_sample_most_like_the_others_is_sacrebleus():
    """Also where many score the same, texts are empty, or letters are outside the basic plane."""

    def agreed(texts):
        def mean(text):
            others = ((other, times - (other == text)) for other, times in counts.items())
            return sum(times * metric.sentence_score(text, [other]).score for other, times in others if times)

        counts, metric = Counter(texts), CHRF()
        return texts.index(max(counts, key=mean))

    choose = random.Random(0)
    for _ in range(500):
        letters, most = choose.choice(["ab ", "abc", "a \u00a0\U0001f600", "abcdefgh "]), choose.choice([4, 9, 40])
        texts = ["".join(choose.choices(letters, k=choose.randrange(most))) for _ in range(choose.randrange(1, 9))]
        assert most_agreed(texts) == agreed(texts), texts
    words = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"]
    texts = [" ".join(choose.choices(words, k=30)) for _ in range(20)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "ENTRIES", 200)  # in many parts
        assert most_agreed(texts) == agreed(texts)


def test_streams_draw_as_whole_texts_do(folder, lines):
    translator = Translator.from_pretrained(folder, sampling=True, seed=1, num_samples=2, max_len_b=12)
    whole = [each.text for each in translator.translate(lines)]
    assert [each.text for each in translator.stream(lines, buffer_size=3)] == whole
    tokens = translator.encode([line for line in lines if line.strip()])
    first = translator.engine.generate(tokens[:2], first=7)
    assert [each.tokens for each in first] == [each.tokens for each in translator.engine.generate(tokens[:2], 1, first=7)]
    assert [(each.index, each.output) for each in first] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_seed_that_is_no_number(folder, capfd):
    with pytest.raises(SystemExit) as ended:
        run(capfd, "--model", folder, "--sampling", "--seed", "x")
    assert ended.value.code == 2 and "error: --seed: 'x' is not a whole number" in capfd.readouterr().err


def test_options_for_drawing_need_sampling():
    for name, value in {"temperature": 0.5, "top_k": 4, "seed": 1, "num_samples": 3, "mbr": 4, "rule": "rejection"}.items():
        with pytest.raises(OptionError, match=f"{name} requires sampling"):
            Settings(**{name: value})
    assert Settings(sampling=True).adaptive and not Settings(sampling=True, rule="rejection").adaptive
