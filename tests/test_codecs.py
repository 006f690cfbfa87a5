"""Codecs: text comes back, offsets point at it, and incremental decoding says the same byte for byte, for any tokens."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT

from specdec_plugins.decoding.loop import Session
from specdec_plugins.model.spec import Symbols
from specdec_plugins.text import byte_level
from specdec_plugins.text.codec import CodecConfig, open_codec
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.moses import Moses
from specdec_plugins.text.reversible import Reversible
from specdec_plugins.text.words import align
from specdec_plugins.translator import Translator

CORPORA = Path(os.environ.get("SPECDEC_CORPORA", "none"))
TEXT = ["Die Straße – „schön“ – führt zum Café.", "naïve 日本語 text, 🙂🙃 twice", "l'été : 100 % d'essence !", "x\u00a0y  z"] * 3
# Everything that Moses' rules look at, and what is near it.
SIGNS = [
    "'", '"', "``", "`", "''", "&apos;", "&quot;", "&amp;", "&amp;lt;", "&lt;", "&", ";", "&am", "p;", "„", "“", "”", ".",
    ",", "?", "!", ":", ";", "\\", "%", ")", "]", "}", "(", "[", "{", "¿", "¡", "$", "€", "£", "@-@", "@", "@-", "-@", "-",
    "–", "'s", "'t", "&apos;s", "l'", "l&apos;", "d'", "s", "x's", "Jones", "5", "10", "100", ".", "3", "été", "a", "b",
    "Hund", "EU:", "ssa", "n", "日", "本", "한", "ǘ", "￭", "￭￭", "a￭", "￭b", "％41％", "％41", "41％", "％",
    "％％", "％d800％", "％a％", "％110000％", "％20％", "<unk>",
]  # fmt: skip


def pushed(stream, parts):
    """The deltas of (piece, complete) parts."""
    return [*(stream.push(*part) for part in parts), stream.finish()]


def parts_of(rng, tokens):
    """Random parts of tokens, like subwords; the last part of each token is complete."""
    for token in tokens:
        cuts = sorted(rng.choices(range(len(token) + 1), k=rng.choice([0, 0, 1, 3])))
        for number, (first, end) in enumerate(pairwise([0, *cuts, len(token)])):
            yield token[first:end], number == len(cuts)


@pytest.mark.parametrize("lang", ["en", "de", "fr", "it", "cs", "fi", "ro", "zh"])
def test_moses_detokenisation_in_steps(lang):
    moses, rng = Moses(lang), random.Random(lang)
    for _ in range(150):
        tokens = rng.choices(SIGNS, k=rng.randrange(40)) if rng.random() < 0.5 else rng.choices(SIGNS[:30], k=rng.randrange(8))
        expected = moses.detokenize(" ".join(tokens))
        deltas = pushed(moses.stream(), parts_of(rng, tokens))
        assert "".join(deltas) == expected, tokens


def test_reversible_detokenisation_in_steps():
    reversible, rng = Reversible(), random.Random(1)
    for _ in range(2000):
        tokens = rng.choices(SIGNS[-16:], k=rng.randrange(12))
        expected = reversible.detokenize(" ".join(tokens))
        assert "".join(pushed(reversible.stream(), parts_of(rng, tokens))) == expected, tokens


def test_what_is_held_back():
    """A letter settles a word, also before the word is complete; signs wait for the next token, and quotes and hyphens, too."""
    words = ["Ein", "Hund", "&quot;", "so", "@-@", "so", "&quot;", "rennt", "."]
    deltas = pushed(Moses("de").stream(), [(word, True) for word in words])
    assert deltas == ["Ein", " Hund", "", ' "so', "-", "so", "", '" rennt', "", "."]
    assert pushed(Moses("en").stream(), [("hap", False), ("py", False), ("&am", False), ("p;", True)]) == [
        "hap",
        "py",
        "",
        "&",
        "",
    ]
    assert pushed(Reversible().stream(), [("a￭", True), ("％4", False), ("1％", True), ("b", True)]) == ["a", "", "A", " b", ""]


@pytest.mark.parametrize("start", ["word", '"', "&quot; ` ' “"])
@pytest.mark.parametrize("repeated", ["word", '"', "s '"])
def test_long_outputs_take_linear_time(start, repeated):
    """Words that can no longer change anything are dropped, also inside quotes."""
    tokens = [*start.split(), *repeated.split() * 500]
    stream, text = Moses("en").stream(), ""
    for token in tokens:
        text += stream.push(token, True)
        assert len(stream.words) < stream.WINDOW
    assert text + stream.finish() == Moses("en").detokenize(" ".join(tokens))


@pytest.fixture(scope="module")
def byte_codec(tmp_path_factory):
    pytest.importorskip("tokenizers", reason="byte-level BPE needs the package tokenizers")
    folder = tmp_path_factory.mktemp("bytes")
    count = 256 + byte_level.learn_codes(TEXT, 60, folder / "codes")
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(count)) + "madeupword0000 0\n")
    files = {"source": folder / "dict.txt", "target": folder / "dict.txt", "codes": folder / "codes"}
    return open_codec(CodecConfig("byte-level", "it", files, "en", "en"), Symbols())


def shipped(name, source, target, tokenizer):
    folder = ROOT / "data" / name
    files = {"source": folder / f"dict.{source}.txt", "target": folder / f"dict.{target}.txt", "codes": folder / "codes"}
    return open_codec(CodecConfig("fairseq-bpe", name, files, source, target, {"tokenizer": tokenizer}), Symbols())


@pytest.fixture(scope="module")
def codecs(byte_codec):
    return {
        "moses": shipped("demo.en-de", "en", "de", "moses"),
        "reversible": shipped("docs.en-fr", "en", "fr", "reversible"),
        "bytes": byte_codec,
    }


@pytest.mark.parametrize("name", ["moses", "reversible", "bytes"])
def test_deltas_concatenate_to_the_text(codecs, name):
    """Random tokens, a few at a time; where the text holds signs and unfinished bytes at every turn."""
    codec, rng = codecs[name], random.Random(name)
    for _ in range(100):
        ids = rng.choices(range(len(codec.target)), k=rng.randrange(60))
        assert in_steps(codec, ids, rng) == codec.decode(ids)
    for line in TEXT:
        ids = codec.encode_target(line)
        assert in_steps(codec, ids, rng) == codec.decode(ids)


def in_steps(codec, ids, rng):
    decoder, text, at = codec.decoder(), "", 0
    while at < len(ids):
        size = rng.choice([0, 1, 1, 2, 5])
        text += decoder.push(ids[at : at + size])
        at += size
    return text + decoder.finish()


@pytest.mark.skipif(not CORPORA.is_dir(), reason="SPECDEC_CORPORA names no folder of corpora")
@pytest.mark.parametrize("name", ["moses", "reversible"])
def test_real_text_in_steps(codecs, name):
    codec, rng = codecs[name], random.Random(name)
    folder = CORPORA / {"moses": "multi30k", "reversible": "docs-en-fr"}[name]
    paths = sorted(folder.glob(f"*.{codec.config.target_lang}*"))
    for path in [path for path in paths if "train" not in path.name][:2]:
        for line in list(read_lines(path))[:300]:
            ids = codec.encode_target(line)
            assert in_steps(codec, ids, rng) == codec.decode(ids)


@pytest.mark.parametrize("name", ["moses", "reversible", "bytes"])
def test_offsets_point_at_the_text(codecs, name):
    codec = codecs[name]
    for line in TEXT:
        encoded = codec.encode(line)
        assert len(encoded.offsets) == len(encoded.ids) and encoded.offsets[-1] == (len(line), len(line))
        ends = [0]
        for first, end in encoded.offsets:
            assert 0 <= first <= end <= len(line) and (first >= ends[-1] or name == "bytes")
            ends.append(end)
        covered = {at for span in encoded.offsets for at in range(*span)}
        assert name == "moses" or covered == {at for at, character in enumerate(line) if not character.isspace()}
    line = "A dog's  bowl & a cat"
    words = {line[first:end] for first, end in codec.encode(line).offsets}
    assert name == "bytes" or {"A", "&", "a"} <= words


def test_alignment_survives_what_normalisation_changed():
    assert align("a … bcd", ["a", "...", "b", "cd"]) == [(0, 1), (2, 3), (4, 5), (5, 7)]
    assert align("", ["x"]) == [(0, 0)]


def test_byte_level_text_is_the_librarys(byte_codec):
    rng, language = random.Random(3), byte_codec._tokenizer("target")
    for _ in range(2000):
        ids = rng.choices(range(len(language.subwords)), k=rng.randrange(30))
        theirs = language._loaded().decode(ids, skip_special_tokens=False)
        assert byte_codec.decode([token + 4 for token in ids]) == " ".join(theirs.split())


def test_another_language_is_refused(codecs):
    with pytest.raises(ValueError, match="the model's target language is de; it does not know fr"):
        codecs["moses"].encode("a", target_lang="fr")


def test_a_vocabulary_with_white_space_in_symbols_is_told_at_the_end(tmp_path):
    (tmp_path / "dict.txt").write_text("a@@ b 1\nc 1\n\u00a0 1\nd\u3000e 1\n", encoding="utf-8")
    files = dict.fromkeys(("source", "target"), Path(tmp_path / "dict.txt"))
    codec, rng = open_codec(CodecConfig("fairseq-bpe", "it", files, "en", "en"), Symbols()), random.Random(4)
    for _ in range(200):
        ids = rng.choices(range(8), k=6)
        assert in_steps(codec, ids, rng) == codec.decode(ids)


# ---- a translation as passes commit it

PAIRS = {"demo.en-de": "demo.txt", "docs.en-fr": "docs.txt"}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 5}, {"strategy": "ar"}, {"beta": 3, "tau": 1.0, "block_size": 4}, {"sampling": True, "seed": 3}],
    ids=str,
)
def test_streamed_text_is_the_translation(pair, options):
    translator = Translator.from_pretrained(ROOT / "data" / pair, threads=1, **options)
    for number, line in enumerate(list(read_lines(ROOT / "data" / PAIRS[pair]))[:4]):
        deltas = list(translator.stream_text(line, first=number))
        assert "".join(deltas) == translator.translate([line], first=number)[0].text and all(deltas)


def test_the_first_words_come_after_the_first_pass(monkeypatch):
    """And what a sentence that is given up leaves behind does not reach the next one."""
    translator = Translator.from_pretrained(ROOT / "data" / "demo.en-de", strategy="ar", threads=1)
    passes, step = [], Session.step
    monkeypatch.setattr(Session, "step", lambda self, *times: passes.append(1) or step(self, *times))
    line = "A man in a blue shirt is standing on a ladder cleaning a window."
    stream = translator.stream_text(line)
    assert next(stream) and len(passes) == 1
    stream.close()
    monkeypatch.undo()
    assert "".join(translator.stream_text(line)) == translator.translate([line])[0].text
    assert list(translator.stream_text(" ")) == []
    for options in ({"sampling": True, "num_samples": 2}, {"windows": "sentence"}):
        with pytest.raises(ValueError, match="single sentence and output"):
            next(Translator.from_pretrained(ROOT / "data" / "demo.en-de", strategy="ar", **options).stream_text(line))
