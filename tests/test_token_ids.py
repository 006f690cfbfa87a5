"""A model's token ids as fairseq's data, and a drafter that trains on them for a model that fairseq does not know."""

import json
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import ROOT
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from naive import altered
from random_pair import Shape, random_pair
from support import batch_of_fairseq
from test_one_file_codec import CHARACTERS, LANGUAGES, SYMBOLS
from test_training import run_train_sh

from specdec_plugins.commands import pack
from specdec_plugins.decoding.loading import frequent
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier, without
from specdec_plugins.formats.folder import Pair, load_folder, save_folder
from specdec_plugins.model.spec import Output, Symbols
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.training.token_ids import binarise, counts_of, dictionary, token_ids
from specdec_plugins.translator import Translator

SIZE = 40
MODELS = {  # special tokens, and what sources end with
    "marian": (Symbols(pad=SIZE - 1, eos=0, start=SIZE - 1, mask=1), [0]),
    "nllb": (Symbols(pad=1, eos=2, start=2, mask=3), [2, 37]),
    "bart": (Symbols(pad=1, eos=2, start=2, mask=3), [2]),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_id_returns(name, tmp_path):
    """Through fairseq's files, batches and padding, on either side; targets gain the model's own start and end."""
    symbols, ends = MODELS[name]
    rng, tokens = random.Random(name), [token for token in range(SIZE) if token not in (symbols.pad, symbols.eos)]
    pairs = [([*tokens, *ends], tokens[::-1])]
    pairs += [([*rng.sample(tokens, rng.randrange(1, 9)), *ends], rng.sample(tokens, rng.randrange(9))) for _ in range(120)]
    assert binarise(pairs, (SIZE, SIZE), tmp_path) == {"train": 119, "valid": 2}
    names = {"data": str(tmp_path), "source_lang": "source", "target_lang": "target"}
    task = TranslationTask.setup_task(TranslationConfig(**names, dataset_impl="mmap", required_seq_len_multiple=1))
    found = {}
    for split in ("train", "valid"):
        task.load_dataset(split)
        data: LanguagePairDataset = task.dataset(split)
        for first in range(0, len(data), 50):
            sample = data.collater([data[number] for number in range(first, min(first + 50, len(data)))])
            inputs = sample["net_input"]
            source, prefix, target = (
                token_ids(each, symbols, end)
                for each, end in (
                    (inputs["src_tokens"], symbols.pad),
                    (inputs["prev_output_tokens"], symbols.start),
                    (sample["target"], symbols.eos),
                )
            )
            for number, read, begun, due in zip(
                sample["id"].tolist(), source.tolist(), without(prefix, symbols.pad), without(target, symbols.pad)
            ):
                assert begun == [symbols.start, *due[:-1]] and due[-1] == symbols.eos
                found[split, number] = [token for token in read if token != symbols.pad], due[:-1]
    valid = [pair for number, pair in enumerate(pairs) if number % 100 == 0]
    assert [found["valid", number] for number in range(2)] == [(list(one), list(other)) for one, other in valid]
    train = [pair for number, pair in enumerate(pairs) if number % 100]
    assert [found["train", number] for number in range(119)] == [(list(one), list(other)) for one, other in train]
    counted = counts_of(Dictionary.load(str(tmp_path / "dict.target.txt")), SIZE)
    assert counted == Counter(token for _, target in pairs for token in target)
    assert data_utils.infer_language_pair(str(tmp_path)) == ["source", "target"]


def test_other_dictionaries_are_not_token_ids():
    made, other = dictionary(5, Counter({3: 2})), Dictionary()
    for symbol in ("0", "1", "2", "3", "word"):
        other.add_symbol(symbol)
    assert counts_of(made, 5) == Counter({3: 2}) and counts_of(made, 6) is None and counts_of(other, 5) is None
    assert frequent(Counter({3: 98, 1: 2, 2: 1}), [0]) == [0, 1, 3]


def test_the_loss_of_imported_verifiers():
    """With an output bias and a cap, and restricted to some tokens: others have no loss, and count as wrong."""
    verifier, _ = random_pair(Shape(2, 1, 32, 64, 2, SIZE, positions=64), seed=1)
    bias = torch.randn(SIZE)
    tensors = {**verifier.tensors, "decoder.output_projection.bias": bias}
    spec = replace(verifier.spec, output=Output(bias=True, cap=2.0))
    verifier = replace(verifier, spec=spec, tensors=tensors)
    features, weights = torch.randn(9, 32, dtype=torch.float64, requires_grad=True), torch.rand(9, dtype=torch.float64)
    drafted = torch.tensor([2, 3, 5, 8, 13, 21, 34])
    targets = torch.tensor([2, 3, 4, 34, 5, 21, 7, 8, 8])
    for given in (None, drafted):
        frozen = FrozenVerifier(verifier, dtype=torch.float64, drafted=given)
        allowed = drafted if given is not None else torch.arange(SIZE)
        logits = features @ verifier.tensors["decoder.output_projection.weight"].double().T + bias
        scores = (2 * torch.tanh(logits / 2))[:, allowed].log_softmax(-1)
        known = torch.isin(targets, allowed)
        numbers = torch.searchsorted(allowed, targets.clamp(max=int(allowed.max())))
        expected = -(weights * scores[torch.arange(9), numbers])[known].sum()
        losses, right = frozen.cross_entropy(features, targets)
        total = (weights * losses).sum()
        torch.testing.assert_close(total, expected)
        assert right.tolist() == [
            bool(one) and int(allowed[row.argmax()]) == int(token) for one, row, token in zip(known, scores, targets)
        ]
        gradient, wanted = (torch.autograd.grad(each, features, retain_graph=True)[0] for each in (total, expected))
        torch.testing.assert_close(gradient, wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A verifier as an import makes it: special tokens of its own, a forced language token, swish, a zero start, a bias."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "letters.txt").write_text(CHARACTERS, encoding="utf-8")
    size = len(CHARACTERS) + 4 + len(LANGUAGES)
    verifier, _ = random_pair(Shape(2, 1, 32, 64, 2, size, positions=64), seed=3)
    torch.manual_seed(5)
    spec = altered(verifier.spec, symbols=SYMBOLS, activation="swish", zero_start=True, output_bias=True)
    tensors = {**verifier.tensors, "decoder.output_projection.bias": torch.randn(size)}
    config = CodecConfig(
        "one_file_codec:Characters", "it", {"characters": folder / "letters.txt"}, "xa", "xb", {"languages": LANGUAGES}
    )
    save_folder(Pair.open(replace(verifier, spec=spec, tensors=tensors), None, config), folder / "verifier")
    return folder / "verifier"


train_sh = partial(run_train_sh, check=False, PYTHONPATH=str(ROOT / "tests"))


@pytest.mark.long
def test_from_source_text_to_a_folder_with_a_drafter(folder, tmp_path):
    """It trains, resumes, drafts only frequent tokens, and the output remains the verifier's."""
    rng, lines = random.Random(0), ["", "a" * 200]
    lines += ["".join(rng.choices("abcdefgh ", k=rng.randrange(1, 20))) for _ in range(250)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    common = ["--verifier", folder, "--sources", tmp_path / "text", "--output", tmp_path / "run", "--device", "cpu"]
    first = train_sh(*common, "distill", "drafter", "--updates", 2)
    assert first.returncode == 0, first.stderr
    result = train_sh(*common, "--updates", 6)
    assert result.returncode == 0, result.stderr
    assert "distilled/text/train.json: done" in result.stdout and "drafter valid: update 6 of 6" in result.stdout
    assert "score valid: accept_len " in result.stdout
    pair = load_folder(tmp_path / "run/model")
    assert pair.drafter.code == "glide" and pair.drafter.options["length"] == pair.block_size == 8
    allowed = set(pair.drafter.tensors["decoder.draft_vocabulary"].tolist())
    distilled = [json.loads(line)["tokens"] for line in (tmp_path / "run/distilled/text/train.json").read_text().splitlines()]
    assert len(distilled) == len(lines) and distilled[:2] == [[], []]  # an empty line, and one that is too long
    assert SYMBOLS.eos in allowed and allowed <= {SYMBOLS.eos, *(token for line in distilled for token in pair.target.ids(line))}
    sources = [line for line in lines[2:40] if line.strip()]
    for dtype in ("float64", "float32"):
        plain = Translator.from_pretrained(folder, strategy="ar", dtype=dtype).translate(sources)
        drafting = Translator.from_pretrained(tmp_path / "run/model", strategy="specdec", dtype=dtype, block_size=4)
        found = drafting.translate(sources, batch_size=3)
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert {token for each in found for step in each.steps for token in step.drafted} <= allowed
        assert sum(each.accepted for each in found) > 0
    for arguments, message in (
        (["--verifier", tmp_path, "--sources", tmp_path / "text"], f"--verifier {tmp_path}: not a model folder\n"),
        (["--verifier", folder], "--sources is missing"),
        ([*common[:4], "init"], "no stage named 'init'. Available: distill, drafter, average, score, pack"),
        (
            [*common[:4], "--recipe", "published"],
            "--recipe published trains from a fairseq checkpoint, not from a model folder; specdec-draft",
        ),
        ([*common[:4], "--beam", "4"], "--local, --mono and --beam cannot be combined with --verifier"),
    ):
        refused = train_sh(*arguments)
        assert refused.returncode == 1 and refused.stderr.startswith(f"train.sh: {message}"), refused.stderr


def test_training_reads_what_decoding_reads(folder):
    """The loss hands the model's own ids to the drafter, right-padded, from fairseq's, which pads sources on the left."""
    seen = batch_of_fairseq(FrozenVerifier(load_folder(folder).verifier))
    pad, eos, start = SYMBOLS.pad, SYMBOLS.eos, SYMBOLS.start
    assert seen.source.tolist() == [[5, 6, eos, pad, pad, pad], [1, 2, 3, 4, eos, pad]]
    assert seen.prefix.tolist() == [[start, 16, 17], [start, 18, pad]]
    assert seen.target.tolist() == [[16, 17, eos], [18, eos, pad]]
    assert seen.symbols == SYMBOLS


def test_packing_a_drafter_into_a_folder(folder, tmp_path, capsys):
    assert pack.main(["--verifier", str(folder), "--output", str(tmp_path / "copy")]) == 0
    assert load_folder(tmp_path / "copy").verifier.spec == load_folder(folder).verifier.spec
    capsys.readouterr()
    assert pack.main(["--verifier", str(folder), "--data", "x", "--output", str(tmp_path / "other")]) == 2
    assert "--data cannot be combined with a model folder, which has its own" in capsys.readouterr().err
    assert pack.main(["--verifier", "a.pt", "--output", str(tmp_path / "other")]) == 2
    assert "--data is required with a checkpoint" in capsys.readouterr().err
