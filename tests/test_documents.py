"""Documents: cut into sentences and windows, translated with and without context, put together; positions beyond training."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from operator import attrgetter

import numpy as np
import pytest
import torch
from conftest import ROOT, make_verifier
from reference import greedy
from support import SHAPES, WORDS, Lengths, engine_model, make_tilt, tilted_verifier
from test_translate import run, stopped_after

from specdec_plugins import Translator
from specdec_plugins.assignment import beyond_training
from specdec_plugins.commands.translation import inputs
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.loop import Session, speculative_decode
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.documents import Documents, windows, windows_of
from specdec_plugins.fields import OptionError
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import Model, extended
from specdec_plugins.text import lines as text_lines
from specdec_plugins.text.sentences import cut, sentences

DEMO = ROOT / "data" / "demo.en-de"
SENTENCES = [line for line in (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
WAYS = [  # of cutting the demonstration's documents
    {"windows": "sentence"},
    {"windows": 40},
    {"windows": 7},  # fewer tokens than most sentences have
    {"windows": "sentence", "context": 2},
    {"windows": 25, "context": 1},
]


pytestmark = pytest.mark.usefixtures("loaded_once")


def demo(**options):
    return Translator.from_pretrained(str(DEMO), **options)


def flat(lists):
    return list(chain.from_iterable(lists))


def documents(seed=0, sizes=(3, 0, 1, 7, 5)):
    rng = random.Random(seed)
    return [" ".join(rng.choices(SENTENCES, k=size)) for size in sizes]


# ---- text

CASES = {
    "en": [
        ["Mr. Smith lives at No. 5.", "He left.", "“Stop!” he said.", "(Nobody knew.)", "“Why?”", "12 men came …", "Yes!"],
        ["It was 3 p.m. and e.g. this.", "Yahoo! is big, J. R. R. Tolkien wrote.", 'She said "Go away!"', '"No."', "Go"],
        ["Version 2.0 of U.S. Steel came."],
    ],
    "de": [["Am 3. Oktober kam Dr. Meier.", "„Halt!“ rief er.", "»Nein.«", "Dann ging z.B. Hans."]],
    "fr": [["M. Dupont est là.", "« Bonjour. »", "Il part… puis revient.", "Où ?"]],
    "xx": [["A language without a list.", "Mr. Smith takes English."]],
}


@pytest.mark.parametrize("language", CASES)
def test_sentences_end_where_they_end(language):
    for expected in CASES[language]:
        assert list(sentences(" ".join(expected), language, 100)) == expected


def test_sentences_of_tokens():
    expected = [
        "He said &quot; Stop ! &quot; he le@@ ft .",
        "&quot; Go ! &quot;",
        "M@@ r. Sm@@ i@@ th ca@@ me ( at last . )",
        "Yes",
    ]
    assert list(sentences(" ".join(expected), "en", 100, tokenized=True)) == expected
    assert list(sentences("Go ￭! ￭” Now ￭. ￭) A", "en", 100, tokenized=True)) == ["Go ￭! ￭”", "Now ￭. ￭)", "A"]


@pytest.mark.parametrize("bpe", [False, True])
def test_sentences_joined_are_the_document(bpe):
    """Of any words; none has more words than asked, and each of another one ends with a clause where there is one."""
    rng, cutting = random.Random(int(bpe)), 0
    words = ["a", "B", "c.", "D!", "e,", '"', "“F", "g?”", ")", ".", "Mr.", "…", "»", "h:", "3", "x￭", "&quot;"] + ["s@@"] * bpe
    for _ in range(300):
        line = [rng.choice(words) for _ in range(rng.randrange(60))] + ["end"] * bpe
        most = rng.randrange(1, 12)
        found = list(sentences("  ".join(line), "en", most, bpe))
        assert " ".join(found) == " ".join(line) and all(found)
        counts = [len(re.findall(r"(?<!@@) ", sentence)) + 1 for sentence in found]
        assert max(counts, default=0) <= most
        cutting += most in counts
    assert cutting > 20
    assert list(sentences(" ", "en", 5)) == []


def test_a_word_without_an_end_is_read_in_parts():
    found = list(sentences("x" * 2_500, "en", 2))
    assert "".join(found).replace(" ", "") == "x" * 2_500 and [len(each) for each in found] == [2_001, 500]


def test_where_a_sentence_is_cut():
    assert cut(["a", "b", ",", "c", "d", "e", "f"], 5) == 3
    assert cut(["a", "b@@", "c", "d@@", "e@@", "f"], 5) == 3
    assert cut(["a@@", "b@@", "c@@", "d"], 3) == 3
    assert cut(["a", "￭,", "b", "￭(", "c"], 4) == 2


def test_windows_hold_as_many_sentences_as_fit():
    """Against the definition: joined they are the document, none is too long, and none could have taken what follows it."""
    rng = random.Random(0)
    for _ in range(300):
        source = [[rng.randrange(100) for _ in range(rng.randrange(1, 9))] for _ in range(rng.randrange(12))]
        most = rng.randrange(1, 14)

        def halve(tokens, most=most):
            return max(1, most // 2)

        found = list(windows(source, most, False, halve))
        assert flat(found) == flat(source)
        assert all(1 <= len(window) <= most for window in found)
        starts = {sum(map(len, source[:n])) for n in range(len(source))}
        at = 0
        for window in found[:-1]:
            at += len(window)
            if at in starts:  # else within a sentence that is longer than a window
                after = min((start for start in starts if start > at), default=sum(map(len, source)))
                assert len(window) + after - at > most
        alone = list(windows(source, 9, True, halve))
        assert alone == source


# ---- which windows are decoded when


def test_windows_wait_for_their_context():
    """And are read with what was said to it, sample by sample, as far as it fits; other documents go on meanwhile."""
    rng = random.Random(1)
    sources = [[[rng.randrange(9) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(5))] for _ in range(7)]
    said, flying, order = {}, [], []
    work = Documents(
        map(iter, sources), 2, 2, lambda source, output: source <= 12 and output <= 14, 3, lambda _, text: [*text, -1]
    )
    while True:
        while tasks := work.take():
            assert [task.sample for task in tasks] == [0, 1] and len({task.document for task in flying}) < 3
            flying += tasks
        if not flying:
            break
        task = flying.pop(rng.randrange(len(flying)))
        order.append(task.document)
        before, own = sources[task.document][: task.window], sources[task.document][task.window]
        outputs = [said[task.document, number, task.sample] for number in range(task.window)]
        kept = min(2, task.window)
        while kept and (len(flat(before[-kept:])) + len(own) >= 12 or len(flat(outputs[-kept:])) + int(1.5 * len(own)) > 14):
            kept -= 1
        assert task.tokens == [*flat(before[task.window - kept :]), *own, -1] and task.text == own
        assert task.forced == flat(outputs[task.window - kept :])
        said[task.document, task.window, task.sample] = [rng.randrange(9) for _ in range(rng.randrange(1, 6))]
        work.finish(task, said[task.document, task.window, task.sample])
    assert set(said) == {(n, w, s) for n, source in enumerate(sources) for w in range(len(source)) for s in range(2)}
    assert order != sorted(order)  # documents were under way side by side


def test_windows_are_cut_as_they_are_wanted(monkeypatch):
    """A document of any length is never encoded as a whole, with context or without."""
    for options in ({"windows": "sentence"}, {"windows": "sentence", "context": 1}):
        translator, waiting, made = demo(strategy="ar", **options), [], [0]

        def counting(*line, made=made):
            for window in windows_of(*line):
                made[0] += 1
                yield window

        def step(self, times=1, plain=Session.step, waiting=waiting, made=made):
            waiting.append(made[0] - self.stats.sentences)
            return plain(self, times)

        monkeypatch.setattr("specdec_plugins.documents.windows_of", counting)
        monkeypatch.setattr(Session, "step", step)
        translator.translate(documents(1, (20, 15)), batch_size=3)
        monkeypatch.undo()
        assert made == [35] and max(waiting) <= 2 * 3  # in flight, and as many waiting


# ---- outputs


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_documents_by_hand(way):
    """Each window by itself, in the order of the document, one token a pass, and the texts joined."""
    translator, plain = demo(strategy="ar", **way), demo(strategy="ar")
    texts, found = documents(), []
    context, kinds = way.get("context", 0), set()
    for text in texts:
        done, outputs, scores, source = [], [], [], []
        for window in windows_of(translator, text, False):
            first = max(0, len(done) - context)
            forced = flat(outputs[first:])
            read = [*flat(done[first:]), *window]
            session = plain.engine.session(1)
            limit = len(forced) + plain.engine.limit(len(window) + 1)
            how = {"min_length": len(forced) + 1, "limit": limit, "scores": True}
            request = plain.engine.request(0, [*read, 2], forced=forced, **how)
            (hypothesis,) = session.run([request])
            outputs.append(hypothesis.tokens[len(forced) :])
            scores += hypothesis.token_scores[len(forced) :]
            done.append(window)
            source += plain.pair.source.tokens(window)
            kinds.add(len(forced) > 8)
        said = [plain.codec.decode(output) for output in outputs]
        found.append((" ".join(said), flat(outputs), scores, source))
    assert kinds == ({True, False} if context else {False})
    results = translator.translate(texts, batch_size=3, scores=True)
    for result, (text, tokens, scores, source) in zip(results, found):
        assert result.text == text and result.tokens == plain.codec.target.tokens(tokens) and result.source_tokens == source
        assert result.token_scores == scores and not result.shortened


def test_sentences_as_windows_are_sentences_as_lines():
    """Of what the project is shown with, where a sentence ends is plain."""
    texts = [" ".join(SENTENCES[:9]), " ".join(SENTENCES[9:])]
    expected = [result.text for result in demo(strategy="ar").translate(SENTENCES)]
    found = demo(strategy="ar", windows="sentence").translate(texts)
    assert [result.text for result in found] == [" ".join(expected[:9]), " ".join(expected[9:])]


def test_a_line_that_is_one_window_is_a_line():
    for options in ({}, {"sampling": True, "seed": 4, "num_samples": 3}, {"sampling": True, "mbr": 3}):
        lines = ["", *SENTENCES[:5]]
        expected = demo(block_size=4, **options).translate(lines)
        found = demo(block_size=4, windows=100, context=1, **options).translate(lines)
        of = attrgetter("text", "tokens", "sample")
        assert list(map(of, found)) == list(map(of, expected))


@pytest.mark.parametrize(
    ("way", "dtype"), [*zip(WAYS, ("float32", "int8") * 2), (WAYS[4], "float32"), (WAYS[4], "int8")], ids=str
)
def test_drafts_leave_documents_as_they_are(way, dtype):
    """Whatever drafts, in any batch; statistics are those of the outputs."""
    texts = documents(2, (3, 0, 4))
    expected = [result.text for result in demo(strategy="ar", dtype=dtype, **way).translate(texts, batch_size=1)]
    for options in ({}, {"block_size": 5}, {"draft_with": "window", "kv_budget": 8, "sinks": 1, "block_size": 3}):
        translator, done = demo(dtype=dtype, **way, **options), []
        for batch in (4,) if options else (1, 4):
            results = translator.translate(texts, batch_size=batch, scores=True)
            assert [result.text for result in results] == expected
            balanced(translator.stats, done := done + results)


def balanced(stats, results):
    assert stats.committed == sum(len(result.token_scores) for result in results)
    assert stats.committed == sum(sum(result.accepted_lengths) for result in results)
    assert stats.iterations == sum(result.iterations for result in results)
    assert stats.accepted == sum(result.accepted for result in results) <= stats.drafted
    assert stats.drafted == sum(result.drafted for result in results)


def test_samples_of_documents(tmp_path):
    """Each with a context of its own; every window of a document draws other numbers."""
    texts = [documents(3)[3], " ".join(SENTENCES[:1] * 6)]
    how = {"sampling": True, "seed": 7, "num_samples": 3, "temperature": 0.8, "windows": "sentence"}
    for context in (0, 1):
        expected = demo(strategy="ar", context=context, **how).translate(texts, batch_size=1)
        found = demo(block_size=4, context=context, **how).translate(texts, batch_size=5)
        assert [each.text for each in found] == [each.text for each in expected]
        assert [each.sample for each in found] == [0, 1, 2] * 2 and len({each.text for each in found}) == 6
    same = demo(strategy="ar", **how).translate(texts)[3].text
    assert len(set(re.findall(r"[^.]+\.", same))) > 1
    assert mixed(7, 1, 0) != mixed(7, 1, 0, 1)


# ---- positions beyond training


def test_sinusoidal_positions_go_on():
    """As in the same model built for more positions; what was there before stays, bit for bit."""
    short, args = make_verifier(words=WORDS, max_source_positions=20, max_target_positions=16)
    long, more = make_verifier(words=WORDS, max_source_positions=90, max_target_positions=90)
    long.load_state_dict(short.state_dict(), strict=False)
    model = engine_model(short, args)
    further = extended(model, 90)
    assert further.spec == engine_model(long, more).spec
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        before, after = model.tensors[name], further.tensors[name]
        assert np.array_equal(after[: len(before)], before)
        torch.testing.assert_close(tensor(after), tensor(engine_model(long, more).tensors[name]))
        assert np.array_equal(extended(further, 50).tensors[name], after)  # never fewer
    tilt, source = make_tilt(1, -9.0, 90), [*range(4, 24)] * 3 + [2]
    verifier = tilted_verifier(TorchModel(load_pair(further, None, dtype=torch.float64)[0]), tilt)
    (found,) = speculative_decode(
        Roles(NoDrafter(), verifier, TopBetaTau(), Lengths([0])), [Request(0, source, 80)], 1, DecodeStats()
    )
    assert found.tokens == greedy(long.double(), source, 80, tilt) and len(found.tokens) == 80


def test_learned_positions_do_not():
    learned = engine_model(*make_verifier(words=WORDS, **SHAPES["learned"]))
    with pytest.raises(ValueError, match="the encoder's 64 are learned; the decoder's 64 are learned"):
        extended(learned, 65)
    assert extended(learned, 64) == learned
    pair = replace(load_folder(DEMO), verifier=learned)
    with pytest.raises(OptionError, match=r"max_positions 2000 requires sinusoidal positions \(verifier: the encoder's 64 are "):
        beyond_training(pair, 2000)
    with pytest.raises(ValueError, match="encoder: 2,000,002 positions"):
        extended(engine_model(*make_verifier(words=WORDS)), 2_000_000)
    assert isinstance(extended(engine_model(*make_verifier(words=WORDS)), 99), Model)


# ---- the command


def test_the_command_reads_sources_beyond_training(folder, tmp_path, capfd):
    path = tmp_path / "long"
    path.write_text(" ".join("word" for _ in range(300)) + "\nword\n")
    options = ("--model", folder, "--input", path, "--strategy", "ar", "--max-len-b", 150, "--quiet")
    _, err = run(capfd, *options, status=1)
    assert f"{path}, line 1: over 99 tokens" in err and "--windows" in err
    records = run(capfd, *options, "--format", "json", "--max-positions", 2000)[0].splitlines()
    assert len(records) == 2
    assert len(json.loads(records[0])["tokens"]) > 99  # of the output, too


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "documents"
    path.write_text("\n".join(documents(5, (4, 0, 2, 1, 3))) + "\n", encoding="utf-8")
    return path


@pytest.mark.long
def test_the_command_writes_a_line_for_each_document(source, tmp_path, capfd):
    """In every format, with workers, after an interruption."""
    options = ("--model", DEMO, "--input", source, "--windows", "sentence", "--context", 1, "--quiet", "--strategy", "ar")
    plain = run(capfd, *options)[0].splitlines()
    assert [bool(line) for line in plain] == [True, False, True, True, True]
    records = [json.loads(line) for line in run(capfd, *options, "--format", "json")[0].splitlines()]
    assert [record["text"] for record in records] == plain and [record["id"] for record in records] == [*range(5)]
    rows = [line.split("\t") for line in run(capfd, *options, "--format", "fairseq")[0].splitlines()]
    assert [row[0] for row in rows] == [f"{kind}-{number}" for number in range(5) for kind in "SHDP"]
    assert [row[2] for row in rows if row[0][0] == "D"] == plain
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        stopped_after(monkeypatch, 1)
        run(capfd, *options, "--output", output, "--buffer-size", 2, status=130)
    assert output.read_text(encoding="utf-8").splitlines() == plain[:2]
    run(capfd, *options, "--output", output, "--resume", "--workers", 2, "--buffer-size", 1)
    assert output.read_text(encoding="utf-8").splitlines() == plain


def test_documents_in_bpe(source, tmp_path, capfd):
    translator = demo(strategy="ar")
    path = tmp_path / "bpe"
    codec = translator.pair.codec
    lines = (codec.source.tokens(codec.encode(line).ids[:-1]) for line in source.read_text().splitlines())
    path.write_text("".join(f"{' '.join(line)}\n" for line in lines))
    options = ("--model", DEMO, "--strategy", "ar", "--windows", "sentence", "--quiet")
    records = [json.loads(line) for line in run(capfd, *options, "--input", source, "--format", "json")[0].splitlines()]
    found = run(capfd, *options, "--input", path, "--tokenized")[0].splitlines()
    assert found == [" ".join(record["tokens"]) for record in records]


def test_a_document_beyond_all_limits_is_named(folder, tmp_path, capfd, monkeypatch):
    path = tmp_path / "huge"
    path.write_text("word\n" + "word. " * 300_000 + "\nword\n")
    options = ("--model", folder, "--input", path, "--strategy", "ar", "--quiet")
    _, err = run(capfd, *options, status=1)
    assert f"{path}, line 2: longer than 1,000,000 bytes" in err
    monkeypatch.setattr("specdec_plugins.commands.translate.MAX_DOCUMENT_BYTES", 1_500_000)
    out, err = run(capfd, *options, "--windows", 9, status=1)
    assert f"{path}, line 2: longer than 1,500,000 bytes (lines written: 1, to stdout)" in err and out.count("\n") == 1
    assert text_lines.MAX_DOCUMENT_BYTES == 16_000_000


def test_buffers_hold_so_many_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "FULL", 20)
    path = tmp_path / "text"
    path.write_text("".join(f"{'x' * size}\n" for size in (3, 30, 5, 5, 12, 1, 1)))
    found = list(inputs.read_buffers(inputs.Inputs([str(path)]), 3))
    assert [(each.first, list(map(len, each.lines))) for each in found] == [(0, [3, 30]), (2, [5, 5, 12]), (5, [1, 1])]


@pytest.mark.long
def test_a_document_of_100000_words_takes_no_more_memory(folder, tmp_path):
    """But for its text and the record of what was said to it: a hundred times as many windows are not in memory at once."""
    code = (
        "import resource, sys\nfrom specdec_plugins.commands import translate\nstatus = translate.main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\nsys.exit(status)"
    )
    peaks = {}
    for words in (1_000, 100_000):
        path = tmp_path / str(words)
        path.write_text(" ".join(["one two three four five."] * (words // 5)) + "\n")
        command = [sys.executable, "-c", code, "--model", folder, "--input", path, "--output", tmp_path / "out"]
        options = ["--strategy", "ar", "--windows", "60", "--max-len-a", "1", "--max-len-b", "0", "--quiet", "--threads", "1"]
        done = subprocess.run([*map(str, command), *options], cwd=ROOT, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        peaks[words] = int(done.stdout)
        assert (tmp_path / "out").read_text().count("\n") == 1
    assert peaks[100_000] - peaks[1_000] < 150_000, peaks  # kB
