"""Summarisation: byte-level BPE, lengths and repeats, the corpus's script, BART's models, the whole pipeline on a miniature."""

import json
import random
import re
import sys
from argparse import Namespace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, run_python, run_script
from naive import logits, repeating
from support import engine_model, shaken
from test_prepare import archive
from test_training import run_train_sh
from test_trees import KERNELS

from specdec_plugins.commands import pack, score, translate
from specdec_plugins.commands.initialise import complete_checkpoint
from specdec_plugins.decoding.backends.torch.constraints import repeat_table, repeated
from specdec_plugins.decoding.constraints import Repeats
from specdec_plugins.extras import install_command
from specdec_plugins.formats import checkpoint
from specdec_plugins.model.spec import Embedding
from specdec_plugins.text import byte_level
from specdec_plugins.text.byte_level import ALPHABET, ByteLevel
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.tokenizers import load_codes, load_tokenizer
from specdec_plugins.translator import Translator

TEXT = [
    "A dog runs through the snow.",
    "The dogs ran, and it's 3.50 euros.",
    "São Paulo – “naïve” 日本 ☃",
    "a\ttab  and spaces",
] * 3
TINY = """
    --encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2 --max-tokens 4096 --update-freq 1
""".split()


# ---- byte-level BPE


@pytest.fixture
def codes(tmp_path):
    pytest.importorskip("tokenizers", reason="byte-level BPE needs the package tokenizers")
    path = tmp_path / "codes"
    assert byte_level.learn_codes(TEXT, 60, path) == 60
    return path


def test_numbers_are_gpt2s(tmp_path):
    """Bytes by hand; merges in their order, and a word is split into what was learned first."""
    pytest.importorskip("tokenizers")
    assert len(set(ALPHABET)) == 256 and (ALPHABET.index("!"), ALPHABET.index("Ġ"), ALPHABET.index("Ċ")) == (0, 220, 198)
    codes = tmp_path / "vocab.bpe"
    codes.write_text("#version: 0.2\nĠ t\nĠ a\nh e\ni n\nĠt he\n", encoding="utf-8")
    bpe = ByteLevel(codes)
    assert bpe.apply("the in the") == "<s> 83 258 220 259 260"  # t he, space, in, space-the; 260 is Ġt he
    assert bpe.detokenize("<s> 83 258 220 259 260") == "the in the"


def test_any_text_comes_back(codes):
    bpe, rng = ByteLevel(codes), random.Random(1)
    for line in [*TEXT, "<s> </s> <unk> 12 @@ x@@", "\U0001f600 e\u0301 \ufffd"]:
        assert bpe.detokenize(bpe.apply(bpe.tokenize(line))) == " ".join(line.split())
    for _ in range(200):
        line = "".join(chr(rng.choice([rng.randrange(33, 127), rng.randrange(0xA1, 0xD800)])) for _ in range(rng.randrange(30)))
        assert bpe.detokenize(bpe.apply(bpe.tokenize(line))) == " ".join(line.split())
    assert bpe.apply("") == ""
    # what only a model writes is no error, and one line
    assert bpe.detokenize("<s> 32 999999999999999 <unk> madeupword0001 316 ² 198 32 127") == "A A\ufffd"


def test_codes_are_learned_alike_and_no_more_than_there_are(codes, tmp_path):
    again, all_of_it = tmp_path / "again", tmp_path / "all"
    byte_level.learn_codes(iter(TEXT), 60, again)
    assert again.read_bytes() == codes.read_bytes()
    assert byte_level.learn_codes(TEXT[:1], 10_000, all_of_it) < 100
    assert len(ByteLevel(all_of_it).apply("A dog runs").split()) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#version: 0.2\nĠ t\nx yz\n", "line 3: not a merge of byte-level BPE (two symbols known by then)"),
        ("#version: 0.2\na b c\n", "line 2: not a merge"),
        ("#version: 0.2\nt h\nth e\né é\n日 本\n", "line 5: not a merge"),
        ('{"model": {"merges": []}}', "line 1: not a merge"),
        ("#version: 0.2\n", "not codes of byte-level BPE (two symbols per line)"),
        ("#version: 0.2\n" + "a a\n" * 12, "more than 10 merges"),
        ("".join(f"{'a' * 2**i} {'a' * 2**i}\n" for i in range(10)), "line 10: not a merge"),
    ],
)
def test_codes_that_are_none_are_named(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(byte_level, "MAX_MERGES", 10)
    path = tmp_path / "codes"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        load_codes("byte-level", path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_without_the_library_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    path = tmp_path / "codes"
    path.write_text("Ġ t\n", encoding="utf-8")
    with pytest.raises(ImportError, match=re.escape(install_command("summarisation"))):
        load_codes("byte-level", path)
    assert load_tokenizer("byte-level", "en").tokenize(" a  b ") == "a b"


# ---- lengths and repeats


def test_what_would_repeat():
    """Against the rule in words: several sizes and prefixes at once, drafted tokens included."""
    rng = random.Random(2)
    for _ in range(100):
        rules = [Repeats(rng.randrange(4), rng.choices(range(3, 7), k=rng.randrange(9))) for _ in range(4)]
        drafted = [rng.choices(range(3, 7), k=5) for _ in rules]
        rows, most = repeat_table(rules, 9, len(rules) + 1, lambda size, unit: size + unit)
        found = repeated(torch.tensor(rows), torch.tensor([*drafted, [3] * 5]), 9, most)
        assert found.shape == (5, 6, 9) and not found[-1].any()
        for (size, prefix), tokens, row in zip(rules, drafted, found):
            for place, mask in enumerate(row):
                assert set(mask.nonzero()[:, 0].tolist()) == repeating([*prefix, *tokens[:place]], size)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=KERNELS), pytest.param("int8", marks=KERNELS)])
def test_outputs_are_fairseqs_and_the_same_with_drafts(dtype):
    """fairseq's --min-len and --no-repeat-ngram-size with beam 1; both matter."""
    sentences = list(read_lines(ROOT / "data/demo.txt"))[: 2 if dtype == "float64" else 6]
    limits = {"max_len_b": 40, "min_len": 25, "no_repeat_ngram_size": 2, "dtype": dtype}

    def texts(**settings):
        translator = Translator.from_pretrained(ROOT / "data/demo.en-de", **settings)
        return [each.tokens for each in translator.translate(sentences, batch_size=5)], translator.stats

    plain, _ = texts(strategy="ar", **limits)
    drafted, stats = texts(strategy="specdec", block_size=5, **limits)
    assert drafted == plain and stats.accepted > 10
    assert all(len(tokens) >= 25 and not any_twice(tokens, 2) for tokens in plain)
    assert any(any_twice(tokens, 2) for tokens in texts(strategy="ar", max_len_b=40, min_len=25, dtype=dtype)[0])
    if dtype == "float32":
        assert texts(strategy="fairseq", **limits)[0] == plain


def any_twice(tokens, size):
    ngrams = list(zip(*(tokens[start:] for start in range(size))))
    return len(set(ngrams)) < len(ngrams)


# ---- BART


def tiny_bart(dictionary):
    """fairseq's bart_base of the size of `TINY`, and its settings."""
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from fairseq.models.bart import BARTModel

    args = Namespace(
        arch="bart_base",
        encoder_embed_dim=32,
        encoder_ffn_embed_dim=64,
        encoder_layers=1,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_attention_heads=2,
    )
    ARCH_CONFIG_REGISTRY["bart_base"](args)
    torch.manual_seed(1)
    return BARTModel.build_model(args, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)), args


def masked(path):
    """A dictionary of fairseq's with the symbol that BART's pretraining adds."""
    from fairseq.data import Dictionary

    dictionary = Dictionary.load(str(path))
    dictionary.add_symbol("<mask>")
    return dictionary


def test_barts_models_are_read():
    """fairseq's own bart_base, tiny: the engine's specification computes what it does."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(20):
        dictionary.add_symbol(str(number))
    model, args = tiny_bart(dictionary)
    shaken(model.double().eval())
    ours = engine_model(model, args)
    assert ours.spec.encoder.embedding == Embedding(offset=2, norm=True) and ours.spec.decoder.feed_forward.activation == "gelu"
    source, output = [0, 7, 9, 12, 2], [2, 0, 5, 11]
    with torch.no_grad():
        expected = model(torch.tensor([source]), torch.tensor([5]), torch.tensor([output]))[0][0]
    torch.testing.assert_close(logits(ours, source, output[1:]), expected, rtol=1e-4, atol=1e-5)  # fairseq's gelu is in float32


# ---- the corpus


def articles(folder, **counts):
    options = [part for split, count in counts.items() for part in (f"--{split}", count)]
    run_python("data/articles.py", "--output", folder, *options)
    return folder


cnndm = partial(run_script, "cnndm.sh")


def test_articles_are_generated_alike(tmp_path):
    first, second = (articles(tmp_path / name, train=50, val=5, test=5) for name in "ab")
    for split, count in (("train", 50), ("val", 5), ("test", 5)):
        sides = [(first / f"{split}.{side}").read_text(encoding="utf-8") for side in ("source", "target")]
        assert sides == [(second / f"{split}.{side}").read_text(encoding="utf-8") for side in ("source", "target")]
        pairs = list(zip(*(side.splitlines() for side in sides)))
        assert len(set(pairs)) == count and all(summary.split(" in ")[0].split()[0] in article for article, summary in pairs)


def test_the_script_names_what_is_wrong(tmp_path):
    pytest.importorskip("tokenizers")
    local = articles(tmp_path / "text", train=30, val=3, test=3)
    out = ["--local", local, "--output", tmp_path / "out"]
    for arguments, message in (
        (["--local", tmp_path / "nowhere"], f"--local {tmp_path}/nowhere: no such folder"),
        ([*out, "--bart"], f"{local} contains no bart.base/model.pt and no bart.base.tar.gz"),
    ):
        result = cnndm(*arguments)
        assert result.returncode == 1 and result.stderr == f"data/cnndm.py: {message}\n"
    (local / "val.target").rename(local / "dev.target")
    result = cnndm(*out)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert f"{local}: neither val.target nor val.target.gz nor valid.target" in result.stderr
    (local / "val.target").write_bytes(b"fine\nna\xefve\nfine\n")
    result = cnndm(*out)
    assert result.returncode == 1 and "line 2: not UTF-8 (byte 3 of the line)" in result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out" / "bin").exists()


@pytest.mark.long
def test_the_archive_becomes_a_data_set_in_which_nothing_is_unknown(tmp_path):
    pytest.importorskip("tokenizers")
    text = articles(tmp_path / "text", train=30, val=3, test=3)
    (text / "test.source").write_text("Ω ≠ β\n" * 3, encoding="utf-8")  # characters that the training text has not
    members = {f"cnn_cln/{path.name}": path.read_text(encoding="utf-8") for path in text.iterdir()}
    for path in list(text.iterdir()):
        path.unlink()
    archive(text / "cnn_dm_v2.tgz", members)
    result = cnndm("--local", text, "--output", tmp_path / "out", "--bpe-operations", 100, "--workers", 2)
    assert result.returncode == 0, result.stderr
    lines = list(read_lines(tmp_path / "out/bpe/test.source"))
    known = {line.split()[0] for line in read_lines(tmp_path / "out/bin/dict.source.txt")}
    assert len(known) == 356 and all(line.startswith("<s> ") and set(line.split()[1:]) <= known for line in lines)
    prepared = json.loads((tmp_path / "out/prepare.json").read_text())
    assert prepared["tokenizer"] == "byte-level" and list(prepared["versions"]) == ["tokenizers"]


# ---- the pipeline


@pytest.mark.long
def test_from_raw_text_to_rouge(tmp_path, capsys):
    """A verifier from nothing and one from BART's weights, each with its drafter: outputs are exact, scores are rouge-score's."""
    pytest.importorskip("tokenizers")
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    local, one, two = articles(tmp_path / "text", train=200, val=10, test=10), tmp_path / "cnndm", tmp_path / "bart"
    how = ["--device", "cpu", "--precision", "float32"]
    result = run_train_sh("cnndm", "--local", local, "--output", one, "--updates", 8, *how, "--", *TINY)
    assert "ROUGE-Lsum" in result.stdout and "score valid: accept_len " in result.stdout
    check_pair(one, local, scorer, capsys)

    # BART's own files, in small: a model with a row for <mask>, which its dictionary has not
    model, args = tiny_bart(masked(one / "data/bin/dict.source.txt"))
    (local / "bart.base").mkdir()
    checkpoint.save(complete_checkpoint({"args": args}, args, model.state_dict()), local / "bart.base/model.pt")
    (local / "bart.base/dict.txt").write_bytes((one / "data/bin/dict.source.txt").read_bytes())
    (local / "vocab.bpe").write_bytes((one / "data/codes").read_bytes())
    tiny = [*TINY, "--lr", "1e-9"]  # so that the weights are still BART's afterwards
    run_train_sh("bart_base", "data", "verifier", "--local", local, "--output", two, *how, "--updates", 2, "--", *tiny)
    begun, ended = (checkpoint.load(path)["model"] for path in (local / "bart.base/model.pt", two / "verifier.pt"))
    for name, tensor in ended.items():
        if name.endswith("weight"):
            torch.testing.assert_close(tensor, begun[name][: len(tensor)], rtol=0, atol=1e-6)
    result = run_train_sh(
        "bart_base", "distill", "init", "drafter", "average", "score", "--output", two, *how, "--updates", 2, "--", *TINY
    )
    assert "ROUGE-Lsum" in result.stdout
    check_pair(two, local, scorer, capsys)


def check_pair(folder, local, scorer, capsys):
    """Packs what was trained; decodes the raw test articles by three strategies, and scores them."""
    parts = {
        "verifier": folder / "verifier.pt",
        "drafter": folder / "drafter.pt",
        "data": folder / "data/bin",
        "codes": folder / "data/codes",
        "output": folder / "pair",
    }
    assert pack.main([part for name, path in parts.items() for part in (f"--{name}", str(path))]) == 0
    outputs = {}
    how = ["--input", local / "test.source", "--model", folder / "pair", "--format", "json", "--quiet"]
    how += ["--max-len-b", 40, "--min-len", 10, "--no-repeat-ngram-size", 3]
    for strategy, more in (("ar", []), ("specdec", ["--block-size", "4"]), ("fairseq", [])):
        path = folder / f"test.{strategy}"
        assert translate.main([*map(str, ["--strategy", strategy, "--output", path, *how, *more])]) == 0
        outputs[strategy] = [json.loads(line) for line in read_lines(path)]
    texts = {strategy: [each["text"] for each in lines] for strategy, lines in outputs.items()}
    assert texts["specdec"] == texts["ar"] == texts["fairseq"]
    for each in outputs["specdec"]:
        assert each["tokens"][0] == "<s>" and 10 <= len(each["tokens"]) <= 40 and not any_twice(each["tokens"], 3)
    summaries, reference = str(folder / "test.specdec"), str(local / "test.target")
    capsys.readouterr()
    assert score.main([summaries, "--reference", reference, "--rouge", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["systems"][0]["scores"]
    rouge = scorer.RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    for name, title in (("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeLsum", "ROUGE-Lsum")):
        pairs = [
            [text.replace(". ", ".\n").replace("! ", "!\n").replace("? ", "?\n") for text in pair]
            for pair in zip(read_lines(reference), texts["specdec"])
        ]
        own = [rouge.score(*pair)[name].fmeasure for pair in pairs]
        assert found[title]["score"] == pytest.approx(100 * sum(own) / len(own), abs=1e-9)
