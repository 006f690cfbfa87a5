"""Word alignments: attention of chosen heads on both backends, words and characters, the command, and hand-made alignments."""

import json
import shutil
from itertools import pairwise

import alignments
import numpy as np
import pytest
import torch
from conftest import ROOT, make_verifier
from support import SHAPES, SYMBOLS, WORDS, load, sentences, standing
from test_codecs import TEXT
from test_window import backends

from specdec_plugins import Translator
from specdec_plugins.commands import translate
from specdec_plugins.decoding.alignment import Aligner
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.values import Want
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import load_folder, save_folder
from specdec_plugins.model.spec import Heads
from specdec_plugins.text.alignment import Alignment, link

DEMO, DOCS = ROOT / "data" / "demo.en-de", ROOT / "data" / "docs.en-fr"
LINES = ["A man in a blue shirt is standing on a ladder cleaning a window.", "", "Two dogs run.", "A girl"]


@pytest.fixture(scope="module")
def demo():
    return Translator.from_pretrained(DEMO, threads=1)


# ---- attention


@torch.inference_mode()
def test_heads_sum_to_the_whole_on_every_backend():
    """Each head's attention is a distribution; those of all heads and layers add up to what a pass returns without a choice. A
    pass without logits returns the same attention, and nothing else. On the kernels in float32 to rounding."""
    sources, tokens, firsts = [[5, 6, 7, 8, 9] * 5 + [2], [6, 7, 8, 2]], [[4, 5, 6], [7, 9]], [1, 0]
    found = []
    for model in backends():
        decoder = model.spec.decoder

        def attention(want, model=model):
            state = standing(ModelVerifier(model), sources, [[], []])[0]
            done = model.read(state, Reading(tokens, [0, 0], firsts, want=want))
            rows = [
                tensor(done.attention())[row, : len(tokens[row]) - firsts[row], : len(source)]
                for row, source in enumerate(sources)
            ]
            return done, [each.double().clone() for each in rows]

        each = [Heads(layer, (head,)) for layer in range(decoder.layers) for head in range(decoder.attention.heads)]
        single = [attention(Want(attention=True, heads=heads))[1] for heads in each]
        for row in range(2):
            for mass in single:
                torch.testing.assert_close(
                    mass[row].sum(1), torch.ones(len(mass[row]), dtype=torch.float64), rtol=1e-4, atol=1e-4
                )
            whole = attention(Want(attention=True))[1][row]
            torch.testing.assert_close(sum(mass[row] for mass in single), whole, rtol=1e-4, atol=1e-4)
        for layer in range(decoder.layers):
            chosen = Heads(layer, (0, decoder.attention.heads - 1))
            done, alone = attention(Want(attention=True, heads=chosen, logits=False))
            with pytest.raises(RuntimeError, match="not asked for that"):
                done.logits()
            for row in range(2):
                parts = [single[layer * decoder.attention.heads + head][row] for head in chosen.heads]
                torch.testing.assert_close(alone[row], sum(parts), rtol=1e-6, atol=1e-6)
                assert not torch.allclose(alone[row], single[layer * decoder.attention.heads][row] * 2)
        found.append(single)
    for one, other in zip(found[0], found[1] if len(found) > 1 else found[0]):  # float64 on PyTorch, float32 on the kernels
        for row in range(2):
            torch.testing.assert_close(one[row], other[row], rtol=0, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("reading", [True, False])
def test_an_alignment_depends_on_its_pair_alone(reading):
    """One forced pass equals the steps of decoding; on the kernels bit for bit, whatever else is in the pass."""
    sources, outputs = sentences(40, 0, longest=20), [each[:-1] for each in sentences(40, 1, longest=12)]
    outputs[3] = []
    for number, model in enumerate(backends()):
        aligner = Aligner(model, Heads(1, (0, 1), reading), SYMBOLS)
        together = aligner(sources, outputs)
        assert together[3].shape == (0, len(sources[3]))
        for n in (0, 7, 39):
            (alone,) = aligner([sources[n]], [outputs[n]])
            assert alone.shape == (len(outputs[n]), len(sources[n]))
            tolerance = {"rtol": 0, "atol": 0 if number else 1e-7}  # alignments are in float32
            np.testing.assert_allclose(together[n], alone, **tolerance)
            state = standing(ModelVerifier(model), [sources[n]], [[]])[0]
            for place, token in enumerate([SYMBOLS.start, *outputs[n]]):
                step = model.read(state, Reading([[token]], [place], want=Want(attention=True, heads=Heads(1, (0, 1)))))
                attention = tensor(step.attention())[0, 0, : len(sources[n])].float()  # also runs the pass
                if 0 <= place - reading < len(outputs[n]):
                    np.testing.assert_allclose(attention, alone[place - reading], **tolerance)


@torch.inference_mode()
def test_other_heads_of_a_model_with_one_layer():
    model = load(make_verifier(words=WORDS, **SHAPES["pre-norm"]), dtype=torch.float64, runner=EAGER)[0]
    decoder = model.spec.decoder
    usual = Heads.usual(decoder)
    assert not [*usual.faults(decoder)] and usual.layer == max(0, decoder.layers - 2)
    for wrong in (
        Heads(decoder.layers, (0,)),
        Heads(-1, (0,)),
        Heads(0, ()),
        Heads(0, (0, 0)),
        Heads(0, (decoder.attention.heads,)),
    ):
        assert [*wrong.faults(decoder)]


# ---- words


def test_words_and_numbers():
    """Subwords become words, and words parts between white space; punctuation that touches a word does not align it."""
    source, text = "The dog's toy, please.", "Bitte das Spiel des Hundes."
    spans = [(0, 3), (4, 7), (7, 9), (10, 12), (12, 13), (13, 14), (15, 21), (21, 22), (22, 22)]
    output = [(0, 5), (6, 9), (10, 13), (13, 15), (16, 19), (20, 24), (24, 26), (26, 27)]
    weights = torch.zeros(8, 9)
    for target, (one, more) in enumerate([(6, 8), (0, 1), (3, 0), (4, 0), (2, 1), (1, 0), (3, 1), (7, 8)]):
        weights[target, one], weights[target, more] = 0.6, 0.4
    weights[6] *= 0.5  # the second subword of Hundes: less sure than the first
    found = link(weights, spans, source, output, text)
    words = [(source[slice(*one)], text[slice(*other)]) for one, other in found.links]
    assert words == [
        ("please", "Bitte"),
        ("The", "das"),
        ("toy", "Spiel"),
        ("'", "des"),
        ("s", "des"),
        ("dog", "Hundes"),
        (".", "."),
    ]
    assert found.numbers(source, text) == [(0, 1), (1, 3), (1, 4), (2, 2), (3, 0)]
    assert Alignment([(0, 1)], [(0, 1)], [(0, 0)]).numbers(". x", ". y") == [(0, 0)]
    assert link(weights[:0], spans, source, [], "").links == []
    assert link(weights[:, :0], [], "", output, text).pairs == []


@pytest.mark.parametrize("folder", [DEMO, DOCS], ids=lambda each: each.name)
def test_characters_of_output_tokens(folder):
    """In order, without overlap, inside the text, and all of it but white space where a codec writes what it read."""
    codec = Translator.from_pretrained(folder, strategy="ar", threads=1).codec
    for line in ["A dog runs, doesn't it?", "`foo_bar(x)` is {name}-like: 100 %", *TEXT]:
        ids = codec.encode_target(line)
        text = codec.decode(ids)
        spans = codec.spans(text, ids)
        assert len(spans) == len(ids) and all(0 <= first <= end <= len(text) for first, end in spans)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        missed = set(range(len(text))) - {at for span in spans for at in range(*span)}
        assert len([at for at in missed if not text[at].isspace()]) <= len(text) // 10, text


# ---- the translator


def test_alignments_do_not_change_translations(demo):
    plain, aligned = demo.translate(LINES), demo.translate(LINES, alignments=True, word_scores=True)
    assert [each.text for each in plain] == [each.text for each in aligned]
    assert [each.alignment for each in plain] == [None] * 4 and not any(each.word_scores for each in plain)
    assert aligned[1].alignment == Alignment([], [], []) and aligned[1].confidence == 1
    assert aligned[2].text == "Zwei Hunde laufen." and aligned[2].alignment.numbers(LINES[2], aligned[2].text) == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    for line, result in zip(LINES, aligned):
        numbers = result.alignment.numbers(line, result.text)
        assert {other for _, other in numbers} <= set(range(len(result.text.split())))
        assert len(result.word_scores) == len(result.text.split()) and all(score <= 0 for score in result.word_scores)
    assert {(0, 0), (1, 1), (12, 13)} & {*aligned[0].alignment.numbers(LINES[0], aligned[0].text)}
    assert 0 < aligned[0].confidence < 1
    alone = demo.translate([LINES[0]], alignments=True)[0]
    assert alone.alignment == aligned[0].alignment


@pytest.mark.parametrize(
    "options", [{"strategy": "ar"}, {"strategy": "ar", "beam": 4, "nbest": 2}, {"sampling": True, "num_samples": 2}]
)
def test_every_strategy_aligns(options):
    translator = Translator.from_pretrained(DEMO, threads=1, **options)
    for result in translator.translate(LINES[:1], alignments=True, word_scores=True):
        assert result.alignment.pairs and len(result.word_scores) == len(result.text.split())
    kept = translator.translate(["a dog@@ s"], alignments=True, tokenized=True, remove_bpe=False)[0]
    assert {other for _, other in kept.alignment.pairs} <= set(range(len(kept.alignment.target)))


def test_what_does_not_align():
    with pytest.raises(ValueError, match="strategy drafter"):
        Translator.from_pretrained(DEMO, strategy="drafter", threads=1).translate(LINES, alignments=True)
    with pytest.raises(ValueError, match="windows"):
        Translator.from_pretrained(DEMO, windows="sentence", threads=1).translate(LINES, alignments=True)


# ---- the command


def test_the_command(tmp_path, capsys):
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("Two dogs run.\n\n")
    known = ["--model", str(DEMO), "-i", str(text), "-o", str(out), "--quiet", "--threads", "1", "--alignments"]
    assert translate.main(known) == 0
    assert out.read_text() == "Zwei Hunde laufen. ||| 0-0 1-1 2-2\n ||| \n"
    assert translate.main([*known, "--format", "json", "--word-scores"]) == 0
    first, second = map(json.loads, out.read_text().splitlines())
    assert first["alignment"] == [[0, 0], [1, 1], [2, 2]] and len(first["word_scores"]) == 3 and 0 < first["confidence"] < 1
    assert second["alignment"] == [] and second["word_scores"] == []
    assert translate.main([*known, "--format", "fairseq"]) == 0
    assert "A-0\t0-0 1-1 2-2" in out.read_text().splitlines()
    for more, message in (
        (["--strategy", "drafter"], "--alignments is not supported"),
        (["--word-scores"], "--format json"),
        (["--windows", "sentence"], "--windows cannot be combined"),
    ):
        assert translate.main([*known, *more]) == 2
        assert message in capsys.readouterr().err


# ---- the folder


def test_a_folder_names_heads(tmp_path):
    pair = load_folder(DOCS)
    shutil.copytree(DOCS, tmp_path / "pair")
    path = tmp_path / "pair" / "model.json"
    described = json.loads(path.read_text())
    for alignment, fault in (
        ({"layer": 4, "heads": [0]}, "layer 4 of a decoder of 4"),
        ({"layer": 0, "heads": [4]}, "heads (4,) of a layer of 4"),
        ({"layer": 0, "heads": list(range(100_000))}, "of a layer of 4"),
        ({"layer": 0}, "no 'alignment.heads'"),
        ({"layer": "0", "heads": [0]}, "not of type int"),
        ({"layer": 0, "heads": [-1]}, "heads (-1,)"),
        ({"layer": 0, "heads": [1, 1]}, "heads (1, 1)"),
        ({"layer": 0, "heads": [True]}, "not of type int"),
    ):
        path.write_text(json.dumps(described | {"alignment": alignment}))
        with pytest.raises(ValueError) as error:
            load_folder(tmp_path / "pair")
        assert fault in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 1000
    path.write_text(json.dumps(described | {"alignment": {"layer": 2, "heads": [3, 1], "reading": True}}))
    loaded = load_folder(tmp_path / "pair")
    assert loaded.alignment == Heads(2, (3, 1), True) != pair.alignment
    save_folder(loaded, tmp_path / "copy")
    assert load_folder(tmp_path / "copy").alignment == loaded.alignment


# ---- hand-made alignments


@pytest.mark.parametrize("folder, lines, most", [(DEMO, 126, 0.14), (DOCS, 77, 0.19)], ids=["en-de", "en-fr"])
def test_error_rate_on_the_gold_set(folder, lines, most):
    gold = alignments.Gold(ROOT / "data" / f"alignments.{folder.name[5:]}.tsv")
    assert len(gold.source) == lines
    for source, target, links in zip(gold.source, gold.target, gold.possible):
        assert all(one < len(source.split()) and other < len(target.split()) for one, other in links)
    reader = alignments.Reader(Translator.from_pretrained(folder, strategy="ar", threads=1), gold)
    recorded = reader.translator.pair.alignment
    assert gold.error(reader.links(recorded), range(lines))[0] < most
    usual = Heads.usual(reader.translator.pair.verifier.spec.decoder)
    assert gold.error(reader.links(usual), range(lines))[0] < most + 0.05
    assert gold.error(reader.links(Heads(2, recorded.heads, True)), range(lines))[0] > 2 * most  # of the neighbours
