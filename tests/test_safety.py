"""What an attacker's model folder could do to the engine's memory: each is an error of one line. Threads and forks do nothing.

Structured cases; `fuzz_folders.py` mutates the same folders at random, many times under AddressSanitizer.
"""

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import fuzz_folders
import pytest
import torch
from conftest import run_python
from fuzz_folders import SIZE
from safetensors.torch import load_file, save_file

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.loading import DRAFT_VOCABULARY
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Distribution, Draft
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.arrays import address
from specdec_plugins.formats.folder import load_folder, load_parts
from specdec_plugins.settings import Settings
from specdec_plugins.text.bpe import Bpe
from specdec_plugins.translator import Translator

WITH_KERNELS = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    fuzz_folders.build(folder)
    return folder


@pytest.fixture
def copied(folders, tmp_path):
    """Copies one of the folders, with changes to model.json and to tensors by file and name."""

    def make(kind, change=None, tensors=()):
        folder = Path(shutil.copytree(folders / kind, tmp_path / kind))
        if change:
            content = json.loads((folder / "model.json").read_text())
            change(content)
            (folder / "model.json").write_text(json.dumps(content))
        for file, name, make_tensor in tensors:
            held = load_file(folder / f"{file}.safetensors")
            save_file({**held, name: make_tensor(held[name])}, folder / f"{file}.safetensors")
        return folder

    return make


def outputs(folder, block_size=None, **settings):
    """Tokens by plain decoding, and with drafts by what a folder has; they are the same."""
    how = [{"strategy": "ar"}, {"strategy": "specdec", "block_size": block_size}]
    pair, usual = load_folder(folder), Settings(max_len_b=12, threads=1, **settings)
    both = [Translator(pair, replace(usual, **each)).engine.generate([[5, 6, 7, 8], [9, 8]]) for each in how]
    plain, drafted = ([hypothesis.tokens for hypothesis in each] for each in both)
    assert plain == drafted and all(0 <= token < SIZE for output in plain for token in output)
    return plain


# ---- special tokens and draft vocabularies


@pytest.mark.parametrize(
    "symbols", [{"pad": SIZE - 2}, {"pad": 20, "eos": 30}, {"pad": SIZE - 1, "eos": 0, "mask": SIZE - 2}, {}]
)
@pytest.mark.parametrize("sampling", [False, True])
def test_special_tokens_outside_the_draft_vocabulary(copied, symbols, sampling):
    """They have no logit, whatever their numbers among the 12 drafted tokens would be; some are among these."""

    def change(content):
        for role in ("verifier", "drafter"):
            content[role]["spec"]["symbols"].update(symbols)

    folder = copied("causal", change)
    exact = outputs(folder, dtype="float64", sampling=sampling)
    for dtype in ("float32", "int8"):
        for block in (3, "auto"):
            assert outputs(folder, block, dtype=dtype, sampling=sampling) == exact or dtype == "int8"
        if not sampling:
            tree = Translator(load_folder(folder), Settings(tree=5, block_size=3, dtype=dtype, threads=1, max_len_b=12))
            assert len(tree.translate(["w1 w2", "w3"], tokenized=True)) == 2


def test_pad_may_be_the_last_token(folders):
    translator = Translator(load_folder(folders / "marian"), Settings(strategy="ar", max_len_b=12, threads=1))
    assert translator.pair.verifier.spec.symbols.pad == SIZE - 1
    assert all(SIZE - 1 not in each.tokens for each in translator.engine.generate([[5, 6, 0], [9, 0]]))


VOCABULARIES = {
    "uint8": lambda names: names.to(torch.uint8),
    "int32": lambda names: names.to(torch.int32),
    "floats": lambda names: names.float(),
    "descending": lambda names: names.flip(0),
    "a token twice": lambda names: torch.cat([names[:1], names]),
    "beyond the vocabulary": lambda names: names + SIZE,
    "negative": lambda names: names - 1,
    "none": lambda names: names[:0],
    "a table": lambda names: names[None],
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_a_draft_vocabulary_lists_tokens(copied, case):
    folder = copied("causal", tensors=[("drafter", DRAFT_VOCABULARY, VOCABULARIES[case])])
    with pytest.raises(ValueError, match=r"decoder\.draft_vocabulary must list tokens below 40 in ascending order, as int64"):
        Translator(load_folder(folder), Settings())


# ---- weights


def spoiled(number):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[-1] = number
        return tensor

    return change


@pytest.mark.parametrize(
    "kind, file, name",
    [
        ("causal", "drafter", "decoder.successor.out.weight"),
        ("causal", "drafter", "decoder.successor.from_token.weight"),
        ("causal", "drafter", "decoder.embed_tokens.weight"),
        ("block", "drafter", "decoder.copy_attn.weight"),
        ("hydra", "drafter", "heads.weight"),
        ("hydra", "drafter", "beginning.query"),
        ("eagle", "drafter", "unknown"),
        ("marian", "verifier", "encoder.layers.0.fc1.bias"),
        ("marian", "verifier", "decoder.output_projection.bias"),
    ],
)
@pytest.mark.parametrize(
    "change, fault",
    [
        (lambda tensor: tensor.to(torch.int8), "is int8, not float16, bfloat16, float32 or float64"),
        (lambda tensor: tensor.to(torch.int64), "is int64"),
        (spoiled(float("nan")), "has values that are not finite"),
        (spoiled(float("-inf")), "has values that are not finite"),
    ],
)
def test_weights_are_finite_floating_point_numbers(copied, kind, file, name, change, fault):
    folder = copied(kind, tensors=[(file, name, change)])
    with pytest.raises(ValueError, match=rf"{name}.*{fault}"):
        Translator(load_folder(folder), Settings(strategy="ar" if kind == "marian" else "specdec"))


@WITH_KERNELS
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_weights_that_overflow_draw_tokens_of_the_vocabulary(copied, rule, top_p):
    """Finite weights can make infinite logits; the padding behind the vocabulary is never drawn."""
    for number in (3e38, -3e38):
        tensors = [("verifier", "decoder.output_projection.weight", lambda w, n=number: torch.full_like(w, n))]
        folder = copied("causal", tensors=tensors)
        how = Settings(sampling=True, rule=rule, top_p=top_p, max_len_b=12, threads=1, num_samples=8)
        for hypothesis in Translator(load_folder(folder), how).engine.generate([[5, 6, 2], [9, 2]]):
            assert all(0 <= token < SIZE for token in hypothesis.tokens)
        shutil.rmtree(folder)


def test_a_drafter_has_the_verifiers_vocabulary(folders):
    pair = load_folder(folders / "eagle")
    wrong = dict.fromkeys(("decoder.embed_tokens.weight", "decoder.output_projection.weight"), torch.ones(5, 32))
    tensors = {**pair.drafter.tensors, **wrong}
    with pytest.raises(ValueError, match=r"decoder\.embed_tokens\.weight has 40 tokens in the verifier, 5 in the drafter"):
        Translator(replace(pair, drafter=replace(pair.drafter, tensors=tensors)), Settings())


class Returning(Drafter):
    """A drafter from outside, which returns what it was made with."""

    traits = Traits()

    def __init__(self, draft):
        self.draft = draft

    def start(self, rows, shared):
        return None

    def admit(self, state, source):
        return None

    def propose(self, state, prefix, plan):
        return self.draft


def drawn_from(*tokens):
    return Distribution(torch.tensor([[tokens]] * 2), torch.full((2, 1, len(tokens)), 1 / len(tokens)))


@pytest.mark.parametrize(
    "draft, fault",
    [
        (Draft([[7]]), "returned 1 drafts for 2 rows"),
        (Draft([[7], [SIZE]]), "outside the verifier's vocabulary"),
        (Draft([[7], [-1]]), "outside the verifier's vocabulary"),
        (Draft([[7], [8]], drawn_from(7, 1 << 40)), "distribution has token ids outside"),
        (Draft([[7, 8], [8]], drawn_from(7, 8)), r"distribution \(2, 1, 2\) does not fit 2 drafts of 2 tokens"),
    ],
)
def test_drafts_fit_the_batch_and_the_vocabulary(folders, draft, fault):
    how = Settings(block_size=2, sampling=True, rule="rejection", threads=1)
    translator = Translator(load_folder(folders / "eagle"), how, Returning(draft))
    with pytest.raises(ValueError, match=fault):
        translator.engine.generate([[5, 6, 2], [9, 2]])


TENSORS = {
    "is quantised": lambda old: torch.quantize_per_tensor(old, 0.1, 0, torch.qint8),
    "is sparse": lambda old: old.to_sparse(),
    "is without data": lambda old: old.to("meta"),
    "has more elements than memory": lambda old: torch.zeros(1, 1).expand(1 << 20, 1 << 20),
    "is not a tensor but list": lambda old: [1],
}


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_of_checkpoints_are_dense(folders, tmp_path, fault):
    content = checkpoint.load(folders / "parts" / "verifier.pt")
    name = "encoder.layers.0.fc1.weight"
    content["model"][name] = TENSORS[fault](content["model"][name])
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match=rf"odd\.pt: the weight '{name}' {fault}"):
        load_parts(str(tmp_path / "odd.pt"), None, str(folders / "parts"), None, None, None)


# ---- other files


@pytest.mark.parametrize("padding", range(8))
def test_unaligned_files_are_read(folders, tmp_path, padding):
    """safetensors files may hold numbers at any byte."""

    def shifted(path, to):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        to.write_bytes((size + padding).to_bytes(8, "little") + data[8 : 8 + size] + b" " * padding + data[8 + size :])

    parts, folder = folders / "parts", tmp_path / "causal"
    folder.mkdir()
    for path in (folders / "causal").iterdir():
        (shifted if path.suffix == ".safetensors" else shutil.copy)(path, folder / path.name)
    assert outputs(folder) == outputs(folders / "causal")
    assert all(address(tensor) % 4 == 0 for tensor in load_folder(folder).verifier.tensors.values())
    shifted(parts / "datastore", tmp_path / "datastore")
    pair = load_parts(str(parts / "verifier.pt"), None, str(parts), None, None, None)
    retrieval = Translator(pair, Settings(draft_with="retrieval", datastore=str(tmp_path / "datastore"), threads=1, max_len_b=12))
    assert len(retrieval.translate(["w1 w2"], tokenized=True)) == 1


@pytest.mark.parametrize("version", ["9.9", "", "x", "0.2.1"])
def test_codes_of_an_unknown_version(tmp_path, version):
    (tmp_path / "codes").write_text(f"#version: {version}\na b\n")
    with pytest.raises(ValueError, match=r"codes: BPE codes of 'version:.*'; this program reads versions 0\.1 and 0\.2"):
        Bpe(tmp_path / "codes")


@pytest.mark.parametrize("value", [10**20, 10**400, -(10**20), 1e308, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "path",
    """
        layers width max_positions attention.heads attention.key_heads attention.head_width attention.scale attention.cap
        feed_forward.width embedding.offset embedding.scale norm.eps
    """.split(),
)
def test_absurd_numbers_in_a_description(copied, path, value):
    *parts, name = path.split(".")

    def damage(content):
        part = content["verifier"]["spec"]["decoder"]
        for each in parts:
            part = part[each]
        part[name] = value

    folder = copied("causal", damage)
    with pytest.raises(ValueError, match=r"^[^\n]{20,1000}$"):
        Translator(load_folder(folder), Settings())


# ---- threads and processes


@WITH_KERNELS
def test_threads_decode_with_one_loaded_model_at_the_same_time(folders):
    """Each has a team, scratch memory and results of its own; their steps alternate, and some overlap."""
    translator = Translator(load_folder(folders / "causal"), Settings(threads=2, max_len_b=12))
    sources = [[5 + n, 6, 2] for n in range(3)]
    usual = [each.tokens for each in translator.engine.generate(sources)]
    found, turn = dict[int, list[int]](), threading.Barrier(len(sources), timeout=600)

    def decode(number):
        session = translator.engine.session(1)
        session.submit(translator.engine.request(number, sources[number]))
        for _ in range(20):
            turn.wait()  # all have rows in flight
            commits = [] if session.idle else session.step()
            found.update((commit.request, commit.finished.tokens) for commit in commits if commit.finished)

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(len(sources))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [found[number] for number in range(len(sources))] == usual


@WITH_KERNELS
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_decodes(folders):
    """Also one that ends as Python usually does, and one that forks in turn."""
    result = run_python(
        "-c",
        f"""
import os, sys
from specdec_plugins import Translator
translator = Translator.from_pretrained({str(folders / "causal")!r}, threads=2, max_len_b=12)
usual = [each.text for each in translator.translate(["w1 w2"], tokenized=True)]
for child in range(2):
    if process := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    assert [each.text for each in translator.translate(["w1 w2"], tokenized=True)] == usual
print("decoded")
""",
        timeout=600,
    )
    assert result.stdout == "decoded\n"


@pytest.mark.parametrize("number", range(0, 120, 10))
def test_mutated_files_load_or_are_refused(folders, tmp_path, number):
    for case in range(number, number + 10):
        fuzz_folders.run(folders, case, 1, tmp_path / "case")
