"""specdec-draft: a drafter from source text, without fairseq; resumed, refused, estimated."""

import itertools
import json
import random
import resource
import runpy
import shutil
import statistics
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import hf_text
import numpy as np
import pytest
import torch
from conftest import ROOT, corpus
from random_pair import Shape, random_pair
from support import batch_of_fairseq
from test_hf_translator import saved
from test_one_file_codec import CHARACTERS, LANGUAGES, SYMBOLS

from specdec_plugins.commands import draft, drafting, estimating
from specdec_plugins.commands.draft_text import requests_of
from specdec_plugins.decoding.compiled import library
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier
from specdec_plugins.formats import drafter_folder
from specdec_plugins.formats.folder import Pair, load_folder, save_folder, with_drafter
from specdec_plugins.formats.spec import fingerprint
from specdec_plugins.measure import costs
from specdec_plugins.measure.expectation import COMPARED, GROWTH, REACHED, Costs, acceptance, expected_gain, passes, pays
from specdec_plugins.model.spec import Output
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.training import presets
from specdec_plugins.training.drafting import Plan, Training, learning_rate, load
from specdec_plugins.training.pairs import Pair as IdPair
from specdec_plugins.training.pairs import batch_of, batches, line_of, read_pairs
from specdec_plugins.translator import Translator


def letters(folder, ending):
    """A verifier with random weights, its drafter, and the config of their codec, as an import makes them: special tokens of its
    own, a language token. A larger bias ``ending`` ends outputs sooner."""
    (folder / "letters.txt").write_text(CHARACTERS, encoding="utf-8")
    size = len(CHARACTERS) + 4 + len(LANGUAGES)
    verifier, drafter = random_pair(Shape(2, 1, 32, 64, 2, size, positions=64), seed=3)
    bias = torch.zeros(size)
    bias[SYMBOLS.eos] = ending
    tensors = {**verifier.tensors, "decoder.output_projection.bias": bias}
    verifier = replace(verifier, spec=replace(verifier.spec, symbols=SYMBOLS, output=Output(bias=True)), tensors=tensors)
    files = {"characters": folder / "letters.txt"}
    return verifier, drafter, CodecConfig("one_file_codec:Characters", "it", files, "xa", "xb", {"languages": LANGUAGES})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A verifier whose outputs end."""
    folder = tmp_path_factory.mktemp("model")
    verifier, _, config = letters(folder, 1.0)
    save_folder(Pair.open(verifier, None, config), folder / "verifier")
    return folder / "verifier"


def sentences(count):
    rng = random.Random(0)
    return ["".join(rng.choices("abcdefgh ", k=rng.randrange(3, 20))) for _ in range(count)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("\n".join(["", *sentences(200)]) + "\n")
    return path


COMMON = ["--precision", "float32", "--threads", "1"]


def arguments(model, text, output, *more):
    return [*map(str, (model, "--sources", text, "--output", output)), *COMMON, *more]


@pytest.fixture(scope="module")
def made(folder, text, tmp_path_factory):
    """The folder of a whole run of 40 updates."""
    output = tmp_path_factory.mktemp("made") / "out"
    assert draft.main(arguments(folder, text, output, "--updates", "40")) == 0
    return output


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_from_text_to_a_folder_whose_outputs_are_the_models(folder, made, dtype):
    lines = sentences(230)[200 : 208 if dtype == "float64" else 230]
    plain = Translator.from_pretrained(folder, strategy="ar", dtype=dtype).translate(lines)
    drafting_ = Translator.from_pretrained(made, strategy="specdec", dtype=dtype, block_size=4)
    found = drafting_.translate(lines, batch_size=3)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert drafting_.stats.mean_accepted_length > 1.2
    allowed = set(load_folder(made).drafter.tensors["decoder.draft_vocabulary"].tolist())
    assert {token for each in found for step in each.steps for token in step.drafted} <= allowed and SYMBOLS.eos in allowed


def test_the_folder_says_what_was_trained_on_what(folder, made):
    record, pair = drafter_folder.read_record(made / "drafter"), load_folder(made)
    assert pair.drafter.verifier == fingerprint(pair.verifier) and pair.drafter.block_size == 8
    assert (record.model, record.source_lang, record.target_lang, record.data) == ("verifier", "xa", "xb", "text")
    assert (record.updates, record.seed, record.held_out, record.licence) == (40, 1, 10, None) and 0 < record.trained <= 190
    assert record.tokens_per_pass > 1 and {*record.gain} == {"1", "8"} and record.machine["date"] and record.threads == 1
    assert record.dtype == ("int8" if library() else "float32")
    command = "specdec-draft verifier --sources TEXT --output FOLDER --recipe glide --seed 1 --updates 40 --precision float32"
    assert " ".join(record.command) == command
    before, after = (load_folder(each).verifier.tensors for each in (folder, made))
    assert {*before} == {*after} and all(np.array_equal(before[name], after[name]) for name in before)
    assert all(each.dtype == torch.float16 for name, each in load_tensors(made).items() if "vocabulary" not in name)


@pytest.mark.parametrize(
    "recipe, more",
    [
        *((name, []) for name in presets.RECIPES if name != "glide"),
        ("glide", ["layers=1", "length=5"]),
        ("one_file_drafter:Bigram", ["width=8"]),
    ],
)
def test_every_recipe(folder, text, tmp_path, monkeypatch, recipe, more):
    monkeypatch.setattr(costs, "ROUNDS", 1)
    options = ["--recipe", recipe, "--updates", "2", *(["--drafter-options", *more] if more else [])]
    monkeypatch.setattr(drafting, "EVALUATIONS", 1)
    assert draft.main(arguments(folder, text, tmp_path / "out", *options)) == 0
    drafter = load_folder(tmp_path / "out").drafter
    assert drafter.code == {"published": "block"}.get(recipe, recipe) and all(
        str(drafter.options[name]) == value for name, value in (each.split("=") for each in more)
    )
    assert "length" not in drafter.options or drafter.block_size == drafter.options["length"]


def test_the_drafter_alone_is_what_the_model_has(folder, made, text, tmp_path):
    """A second run writes it anew, with what the card is told."""
    assert sorted(each.name for each in (made / "drafter").iterdir()) == ["README.md", "drafter.json", "drafter.safetensors"]
    assert not any(
        str(each) in (made / "drafter" / name).read_text() for each in (made, text) for name in ("README.md", "drafter.json")
    )
    alone, whole = with_drafter(load_folder(folder), made / "drafter").drafter, load_folder(made).drafter
    assert alone.tensors.keys() == whole.tensors.keys() and replace(alone, tensors={}) == replace(whole, tensors={})
    assert all(np.array_equal(alone.tensors[name], tensor) for name, tensor in whole.tensors.items())
    shutil.copytree(made, tmp_path / "again")
    shutil.rmtree(tmp_path / "again/drafter")
    odd = shutil.copy(text, tmp_path / "a\nb\udcff")
    assert draft.main(arguments(folder, odd, tmp_path / "again", "--updates", "40", "--licence", "mit", "--name", "me/mine")) == 0
    record = drafter_folder.read_record(tmp_path / "again/drafter")
    assert (record.licence, record.data, record.name) == ("mit", r"a b\udcff", "me/mine")
    assert draft.main(["--card", str(tmp_path / "again"), "--data", "letters"]) == 0
    assert draft.main(arguments(folder, odd, tmp_path / "again", "--updates", "40")) == 0  # keeps what the card was told
    record = drafter_folder.read_record(tmp_path / "again/drafter")
    assert (record.licence, record.data, record.name) == ("mit", "letters", "me/mine")
    assert "--model verifier --drafter me/mine" in (tmp_path / "again/drafter/README.md").read_text()


def test_the_models_other_drafters_stay(folder, made, text, tmp_path, monkeypatch):
    """The new one drafts; another of the same kind is replaced."""
    monkeypatch.setattr(costs, "ROUNDS", 1)
    monkeypatch.setattr(drafting, "EVALUATIONS", 1)
    for model, recipe, codes in (
        (made, "block_causal", ["block_causal", "glide"]),
        (tmp_path / "block_causal", "glide", ["glide", "block_causal"]),
    ):
        assert draft.main(arguments(model, text, tmp_path / recipe, "--updates", "2", "--recipe", recipe)) == 0
        assert [each.code for each in load_folder(tmp_path / recipe).drafters] == codes
        assert drafter_folder.read(tmp_path / recipe / "drafter").drafter.code == recipe


def load_tensors(made):
    from safetensors.torch import load_file

    return load_file(made / "drafter.safetensors")


def test_training_reads_what_fairseqs_criterion_reads(folder):
    """The same batch from ids as `DrafterLoss` makes of fairseq's."""
    verifier = FrozenVerifier(load_folder(folder).verifier)
    theirs = batch_of_fairseq(verifier)
    ours = batch_of([IdPair([5, 6, SYMBOLS.eos], [16, 17]), IdPair([1, 2, 3, 4, SYMBOLS.eos], [18])], verifier)
    width = ours.source.size(1)
    assert torch.equal(theirs.source[:, :width], ours.source) and (theirs.source[:, width:] == SYMBOLS.pad).all()
    assert torch.equal(theirs.prefix, ours.prefix) and torch.equal(theirs.target, ours.target)


def test_a_hugging_face_folder_with_languages(text, tmp_path, capsys, monkeypatch):
    """Read as published, its outputs begin with the target's language token, and the folder made is ours."""
    monkeypatch.setattr(drafting, "EVALUATIONS", 1)
    folder = tmp_path / "m2m100"
    model = saved(folder, hf_text.m2m100, "m2m_100", "M2M100")[1].float()
    with torch.no_grad():
        end = model.get_input_embeddings().weight[model.config.eos_token_id]
        model.model.decoder.layer_norm.bias += 11 * end / end.square().sum()  # 11 more for eos: outputs end
    model.save_pretrained(folder)
    options = arguments(folder, text, tmp_path / "out", "--updates", "2")
    assert "needs a source language" in refused(capsys, 1, *options)
    assert not (tmp_path / "out/training/run.json").exists()
    assert draft.main([*options, "-s", "en", "-t", "de"]) == 0
    pair = load_folder(tmp_path / "out")
    assert (tmp_path / "out/model.json").exists() and pair.drafter.code == "glide"
    languages, lines = {"source_lang": "fr", "target_lang": "en"}, sentences(9)
    plain, drafts = (
        Translator.from_pretrained(each, strategy=how).translate(lines, **languages)
        for each, how in ((folder, "ar"), (tmp_path / "out", "specdec"))
    )
    assert [each.tokens for each in plain] == [each.tokens for each in drafts]
    lines = (tmp_path / "out/training/pairs.jsonl").read_text().splitlines()
    first = next(pair for pair in map(json.loads, lines) if pair)
    assert pair.target.symbols[first[1][0]] == "__de__"


def refused(capsys, status, *options):
    capsys.readouterr()
    assert draft.main([*map(str, options)]) == status
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("specdec-draft: error: ")]
    assert len(errors) == 1 and not any("Traceback" in line for line in lines), lines
    return errors[0].removeprefix("specdec-draft: error: ")


def test_refusals_are_one_line(folder, text, made, tmp_path, capsys):
    def file(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    good, out = [folder, "--sources", text], ["--output", tmp_path / "out"]
    verifier, _, config = letters(tmp_path, 1.0)
    sides = {name: getattr(verifier.spec, name) for name in ("encoder", "decoder")}
    sides = {name: replace(side, embedding=replace(side.embedding, offset=None)) for name, side in sides.items()}
    tensors = {name: each for name, each in verifier.tensors.items() if "embed_positions" not in name}
    no_positions = tmp_path / "no positions"
    save_folder(Pair.open(replace(verifier, spec=replace(verifier.spec, **sides), tensors=tensors), None, config), no_positions)
    long = "".join(f"{line}\n" for line in [*sentences(150), "a" * 70, "b", "c" * 64, *["d" * each for each in range(80, 86)]])
    for status, options, message in (
        (2, [folder, *out], "--sources is missing"),
        (2, good, "--output is missing"),
        (2, [*good, *out, "--minutes", "0"], "--minutes 0 is not a time"),
        (2, [*good, *out, "--minutes", "nan"], "--minutes nan is not a time"),
        (2, [*good, *out, "--threads", "0"], "--threads 0"),
        (2, [*good, *out, "--updates", "-1"], "--updates -1"),
        (2, [*good, "--output", folder], f"--output {folder} is the model's own folder"),
        (1, [folder, "--sources", tmp_path / "none", *out], f"{tmp_path / 'none'}: No such file"),
        (1, [folder, "--sources", tmp_path, *out], f"{tmp_path}: Is a directory"),
        (1, [tmp_path / "none", "--sources", text, *out], f"{tmp_path / 'none'}: no such folder"),
        (1, [*good, "--output", tmp_path], f"{tmp_path} already exists"),
        (1, [*good, "--output", text / "out"], "Not a directory"),
        (1, [no_positions, *good[1:], *out, "--recipe", "published"], "'block' tells mask symbols apart by position embeddings"),
        (1, [*good, *out, "--recipe", "nothing"], "nothing"),
        (1, [*good, *out, "--recipe", "ngram"], "has no Options and no Network, so it cannot be trained"),
        (1, [*good, *out, "--drafter-options", "width=3"], "--drafter-options: no option 'width'"),
        (1, [*good, *out, "--drafter-options", "layers=3"], "--drafter-options layers=3: the verifier has 2"),
        (1, [folder, "--sources", file("empty", b""), *out], "empty: 0 different sentences are too few"),
        (1, [folder, "--sources", file("few", b"one\n\ntwo\ntwo\n"), *out], "few: 2 different sentences are too few"),
        (1, [folder, "--sources", file("latin", b"one\nna\xefve\n"), *out], "latin, line 2: not UTF-8"),
        (1, [folder, "--sources", file("nul", b"one\n\0\n"), *out], "nul, line 2: contains a NUL byte"),
        (1, [folder, "--sources", file("long", long.encode()), *out], "long: lines 151, 153, 154 and 5 more are longer than"),
        (1, [*good, "--output", made, "--recipe", "block_causal"], f"{made} was begun with another recipe; name another"),
        (1, [*good, "--output", made, "--seed", "2"], f"{made} was begun with another seed; name another"),
        (1, [folder, "--estimate", "--recipe", "medusa"], "--estimate: no acceptance by position is on record for medusa"),
        (1, [folder, "--estimate", "--sources", tmp_path / "empty"], "empty: no sentence that the model reads"),
    ):
        assert message in refused(capsys, status, *COMMON, "--updates", "1", *options), message
        assert not (tmp_path / "out" / "training" / "state.pt").exists()
    (tmp_path / "out" / "training").mkdir(parents=True, exist_ok=True)
    for name, data in (("run.json", b"{"), ("pairs.jsonl", b"[[1],[99]]\n"), ("state.pt", b"PK\3\4")):
        path = tmp_path / "out" / "training" / name
        path.write_bytes(data)
        assert f"{path}" in (said := refused(capsys, 1, *good, *out, *COMMON, "--updates", "1")) and "damaged" in said
        path.unlink()


def test_a_full_disk_is_one_line_and_loses_nothing(folder, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drafting, "CHECKPOINT", 0.0)
    options = arguments(folder, text, tmp_path / "out", "--updates", "3")
    assert draft.main(options) == 0
    before = load(tmp_path / "out/training/state.pt")["updates"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        said = refused(capsys, 1, *options[:-1], "6")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in said and str(tmp_path / "out") in said
    assert load(tmp_path / "out/training/state.pt")["updates"] == before == 3
    assert not [*(tmp_path / "out").rglob("*.tmp")] and load_folder(tmp_path / "out").drafter is not None
    assert draft.main([*options[:-1], "6"]) == 0
    assert load(tmp_path / "out/training/state.pt")["updates"] == 6


def test_two_runs_in_one_folder(folder, text, made, capsys):
    import fcntl

    with open(made / "training/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another specdec-draft is at work in it" in refused(capsys, 1, *arguments(folder, text, made, "--updates", "40"))


def test_a_run_that_is_over_is_not_repeated(folder, text, made, capsys):
    capsys.readouterr()
    assert draft.main(arguments(folder, text, made, "--updates", "40")) == 0
    said = capsys.readouterr().err
    assert "continuing after update 40" in said and "the training is over; more --minutes or --updates continue it" in said


def test_a_plateau_ends_it_and_more_time_continues(folder, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drafting, "pays", lambda history: len(history) < 2)
    monkeypatch.setattr(drafting, "EVALUATIONS", 1000)
    monkeypatch.setattr(drafting, "EVALUATING", 10.0)
    options = arguments(folder, text, tmp_path / "out", "--minutes")
    ends = []
    for minutes in ("2", "2", "2.5"):
        capsys.readouterr()
        assert draft.main([*options, minutes]) == 0
        ends.append((capsys.readouterr().err, load(tmp_path / "out/training/state.pt")))
    (first, one), (second, two), (_, three) = ends
    assert "more training no longer pays: tokens a pass grew by under 1 %" in first and one["extra"]["spent"] < 60
    assert "the training is over" in second and two["updates"] == one["updates"]
    assert three["updates"] > two["updates"] and one["extra"]["end"] < 60 and three["extra"]["budget"] == 150
    assert "begun with another kind of limit" in refused(capsys, 1, *options[:-1], "--updates", "9")


def test_an_estimate(folder, text, capsys, monkeypatch):
    monkeypatch.setattr(costs, "ROUNDS", 1)
    assert draft.main([str(folder), "--estimate", "--sources", str(text), "--threads", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "tokens a pass with drafts of 8; gain " in first and "at batch size 1, " in first and first.endswith("at batch size 8")
    assert second.startswith(("worth it at batch size ", "not worth training a drafter"))
    gains = {1: SimpleNamespace(row={0: 1.0, 2: 9.0}, sentence=0.0), 8: SimpleNamespace(row={0: 1.0, 2: 3.0}, sentence=0.0)}
    monkeypatch.setattr(estimating, "pass_costs", lambda *_: gains)
    assert draft.main([str(folder), "--estimate", "--threads", "1"]) == 0
    assert "built-in sentences" in (said := capsys.readouterr().out) and "not worth training" in said


def test_measured_costs_are_of_passes(folder, text, monkeypatch):
    """Each length is measured at each batch size, and a longer draft never costs half of a shorter one."""
    pair = load_folder(folder)
    plan = Plan.of("glide", [], 2, [0, 1, 2])
    drafted = replace(pair, drafter=Training(plan, pair.verifier, []).drafter())
    translator = Translator(drafted, Settings(strategy="specdec", block_size=8, threads=1))
    requests = requests_of(translator, sentences(16), (None, None))
    before = translator.engine.roles
    found = costs.pass_costs(translator.engine, requests, 0.5)
    assert translator.engine.roles is before and {*found} == {1, 8}
    for each in found.values():
        assert {*each.row} == {0, 2, 3, 4, 6, 8} and all(value > 0 for value in each.row.values())
        assert each.row[8] > each.row[0] / 2


# ---- pure functions, and naive oracles


def simulated(rates, length, rng):
    """Passes of one output, drawn."""
    count = 0
    while length > 0:
        count, accepted = count + 1, 0
        while accepted < len(rates) and rng.random() < rates[accepted]:
            accepted += 1
        length -= accepted + 1
    return count


@pytest.mark.parametrize("rates", [[0.9], [0.5, 0.7, 0.9], [0.83, 0.87, 0.89, 0.89], [0.0, 1.0], [1.0, 1.0], []])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17])
def test_expected_passes(rates, length):
    rng = random.Random(f"{rates} {length}")
    drawn = [simulated(rates, length, rng) for _ in range(4000)]
    error = statistics.stdev(drawn) / 4000**0.5
    assert abs(passes(rates, length) - statistics.fmean(drawn)) <= 4 * error + 1e-9
    assert passes([], length) == length


def test_expected_tokens_are_those_on_record():
    """Tokens a pass of the shipped drafter follow from its acceptance by position and its outputs' lengths, within 4 %."""
    rates, lengths = REACHED["glide"], [26] * 10  # documentation: 26 tokens an output
    for length, measured in ((4, 3.59), (8, 4.88)):
        assert len(lengths) * 26 / sum(passes(rates[:length], each) for each in lengths) == pytest.approx(measured, rel=0.04)


def test_expected_gain():
    rng = random.Random(1)
    for _ in range(200):
        rates = [rng.random() for _ in range(rng.randrange(6))]
        lengths = [rng.randrange(1, 30) for _ in range(rng.randrange(1, 5))]
        known = Costs(rng.random(), {0: 1.0, **{each: rng.uniform(0.8, 3) for each in rng.sample(range(1, 9), 4)}})
        times = {0: sum(known.sentence + each for each in lengths)}
        for length, cost in known.row.items():
            if 0 < length <= len(rates):
                times[length] = sum(known.sentence + passes(rates[:length], each) * cost for each in lengths)
        best = min(times, key=lambda length: (times[length], length))
        found = expected_gain(rates, lengths, known)
        assert found.length == best and found.gain == pytest.approx(times[0] / times[best])


def test_acceptance_by_position():
    steps = [(3, 3), (3, 0), (3, 1), (2, 2), (1, 0), (0, 0)]
    reached = Counter(place for drafted, accepted in steps for place in range(drafted) if accepted >= place)
    passed = Counter(place for drafted, accepted in steps for place in range(drafted) if accepted > place)
    assert acceptance(steps, 8) == [passed[place] / reached[place] for place in range(3)] == [3 / 5, 2 / 3, 1.0]
    assert acceptance(steps, 2) == [3 / 5, 2 / 3] and acceptance([], 4) == []


def test_the_plateau_rule():
    """Training ends once three evaluations are on average at most 1 % above the three before them."""

    def naive(history):
        blocks = [history[n : n + COMPARED] for n in range(len(history) - COMPARED + 1)]
        return len(history) < 2 * COMPARED or sum(blocks[-1]) / sum(blocks[-1 - COMPARED]) > 1 + GROWTH

    rng = random.Random(2)
    for _ in range(300):
        history = [*itertools.accumulate((rng.uniform(-0.02, 0.06) for _ in range(rng.randrange(12))), initial=2.0)]
        assert pays(history) == naive(history), history
    assert pays([2, 3, 4, 4.3, 4.5, 4.6]) and not pays([4.6, 4.7, 4.65, 4.68, 4.62, 4.7]) and pays([4.7] * 5)


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(1.0, 100, update, update / 1000) for update in range(1001)]
    assert rates[0] == 0.01 and rates[99] == 1.0 and rates[1000] == 0.0
    assert rates[:100] == sorted(rates[:100]) and rates[600] == 1.0 and rates[800] == pytest.approx(0.5)
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert learning_rate(1.0, 100, 2, 0.1) == 1.0  # a short training


def test_a_batch_has_each_pair_once_and_no_more_tokens_than_allowed():
    rng = random.Random(3)
    pairs = [IdPair([0] * rng.randrange(1, 60), [0] * rng.randrange(1, 60)) for _ in range(300)]
    seen = set()
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        made = batches(pairs, 100, seed, epoch)
        assert made == batches(pairs, 100, seed, epoch)
        assert sorted(number for batch in made for number in batch) == [*range(300)]
        sizes = [[max(len(pairs[number].source), len(pairs[number].target) + 1) for number in batch] for batch in made]
        assert all(len(batch) == 1 or len(batch) * max(batch) <= 100 for batch in sizes)
        assert sum(len(batch) * max(batch) for batch in sizes) < 1.05 * sum(map(sum, sizes))  # little padding
        seen.add(str(made))
    assert len(seen) == 3


def test_pairs_on_disk(tmp_path):
    path, pairs = tmp_path / "pairs.jsonl", [IdPair([1, 2], [3]), None, IdPair([0], [])]
    assert read_pairs(path, (4, 4)) == []
    path.write_text("".join(map(line_of, pairs)) + "[[1,2],[3")
    for _ in range(2):  # the first cuts off what was interrupted
        assert [each and ([*each.source], [*each.target]) for each in read_pairs(path, (4, 4))] == [
            ([1, 2], [3]),
            None,
            ([0], []),
        ]
    assert path.read_text() == "".join(map(line_of, pairs))
    for line in (
        "[[4],[1]]",
        "[[1],[4]]",
        "[[-1],[1]]",
        "[[1]]",
        "[1,2]",
        '[["1"],[1]]',
        "[[1.5],[1]]",
        "7",
        "{}",
        "[" * 9999,
        "[[99999999999],[1]]",
        "\xff",
    ):
        path.write_text(f"null\n{line}\n")
        with pytest.raises(ValueError, match="line 2: damaged; remove the file"):
            read_pairs(path, (4, 4))


@pytest.mark.long
def test_documentation(tmp_path, capsys):
    """Some updates on the shipped verifier: exact outputs, more tokens a pass than plain decoding."""
    lines = (corpus("docs-en-fr") / "valid.en").read_text(encoding="utf-8").split("\n")[:400]
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    command = [str(ROOT / "data/docs.en-fr"), "--sources", str(tmp_path / "text"), "--output", str(tmp_path / "out")]
    assert draft.main([*command, "--updates", "16", "--threads", "2"]) == 0
    said = capsys.readouterr().err
    assert "outputs identical to plain decoding's" in said
    assert drafter_folder.read_record(tmp_path / "out/drafter").tokens_per_pass > 1.3


@pytest.mark.long
def test_the_benchmark_of_estimates_runs(monkeypatch, capsys):
    monkeypatch.setattr(costs, "ROUNDS", 1)
    options = [ROOT / "data/demo.en-de", "--sources", ROOT / "data/demo.txt", "--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["estimates.py", *map(str, options)])
    runpy.run_path(str(ROOT / "benchmarks/estimates.py"), run_name="__main__")
    found, *table = capsys.readouterr().out.splitlines()
    row = json.loads(found)
    assert min(row["tokens"]) > 1.5 and len(table) == 3
    for size in (1, 8):
        expected, measured, ratio = row[f"gain at {size}"]
        assert (
            expected >= 1 and ratio == pytest.approx(expected / measured, rel=0.01) and row[f"range at {size}"] == [measured] * 2
        )
