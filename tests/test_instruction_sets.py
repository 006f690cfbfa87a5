"""Equality to the last bit across the instruction sets that this machine can run: tokens, scores, drafts and alignments.

Random models and requests on small vocabularies, and the shipped pairs on the test files of the corpora; also the committed
hashes, and which kernels a run names.
"""

import random
import struct

import pytest
import torch
from conftest import ROOT, corpus, run_python
from naive import altered, random_model, side_of
from support import WORDS, Knowing, engine_model, long_but, sentences
from test_beam import Planned
from test_kernels import wide_drafter

from specdec_plugins.commands import translate
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.alignment import Aligner
from specdec_plugins.decoding.backends.cpu import binding, model
from specdec_plugins.decoding.backends.torch.arrays import tensors
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters.block import BlockDrafter
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.loading import checked
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.options import Beam, Sampling, Tolerance, Tree
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.fields import OptionError
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import Model, sinusoidal_tables
from specdec_plugins.measure import hashes
from specdec_plugins.measure.machine import machine
from specdec_plugins.measure.runs import check_kernels
from specdec_plugins.model.spec import Heads, ModelSpec, Output, Symbols
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
DTYPES = list(binding.DTYPES)
SIZE = WORDS + 4
FAST = [name for name in compiled.available() if name != "generic"]


def sets():
    """Those that this machine can run; generic, which is slow, takes long."""
    return [pytest.param(name, marks=pytest.mark.long) if name == "generic" else name for name in compiled.available()]


def bits(*numbers):
    """Of float64, so that zeros with signs and numbers that are not finite count."""
    return struct.pack(f"<{len(numbers)}d", *numbers)


def said(results):
    """The tokens, scores and alignments of translations."""
    return [
        (each.tokens, bits(*each.token_scores, each.score, each.confidence), each.alignment and each.alignment.pairs)
        for each in results
    ]


# ---- random models


def random_side(rng, width, heads, activation="relu"):
    prenorm, inner = rng.random() < 0.5, rng.choice([32, 96, 160])
    return side_of(
        layers=rng.randint(1, 2),
        heads=heads,
        width=width,
        inner_width=inner,
        prenorm=prenorm,
        final_norm=rng.random() < 0.5,
        embedding_norm=rng.random() < 0.5,
        embedding_scale=rng.choice([1.0, width**0.5, 0.7]),
        max_positions=80,
        position_offset=rng.choice([0, 2, 5]),
        activation=activation,
    )


def model_of(rng):
    """A model of any shape that the kernels compute; head widths from 4 to 96."""
    width, heads = rng.choice([(32, 8), (64, 2), (64, 8), (96, 1), (96, 4), (96, 12), (160, 8)])
    sizes, activation = rng.choice([(width, heads), (32, 2), (96, 4)]), rng.choice(["relu", "gelu", "gelu_tanh", "swish"])
    spec = ModelSpec(
        random_side(rng, *sizes, activation),
        random_side(rng, width, heads, activation),
        Output(rng.random() < 0.5),
        zero_start=rng.random() < 0.3,
        symbols=Symbols(start=rng.choice([2, 9])),
    )
    made = random_model(spec, SIZE, SIZE, seed=rng.randrange(10**6), spare=0)
    computed = sinusoidal_tables(spec) if rng.random() < 0.5 else {}
    return Model(spec, {name: each.float() for name, each in tensors(made.tensors | computed).items()})


def sampling_of(rng):
    return Sampling(
        rng.choice([1.0, 0.3, 2.5]),
        rng.choice([0, 0, 1, 7]),
        rng.choice([1.0, 0.9, 0.5]),
        rng.choice([1.0, 1.3]),
        rng.choice(["coupled", "rejection"]),
    )


def beam_of(rng):
    rules, size = rng.choice(["fairseq", "huggingface"]), rng.choice([2, 4, 5])
    more = {"unk_penalty": rng.choice([0.0, 0.5])}
    if rules == "huggingface":
        more = {"early_stopping": rng.choice(["false", "true", "never"]), "renormalize": rng.random() < 0.5}
    return Beam(size, rules, rng.choice([0.0, 1.0, 0.6, 1.4, -0.3]), rng.randint(1, size), **more)


def requests_of(rng, kind):
    """Of one kind: greedy and tolerant, sampled, or searching; with constraints."""
    requests = []
    for index, source in enumerate(sentences(4, rng.randrange(1000))):
        options = {
            "greedy": {"tolerance": rng.choice([None, Tolerance(3, 2.0), Tolerance(WORDS, 0.7)])},
            "sampling": {"sampling": sampling_of(rng), "seeds": [rng.randrange(-(2**63), 2**63) for _ in range(2)]},
            "search": {"beam": beam_of(rng)},
        }[kind]
        forced = [rng.randrange(4, SIZE) for _ in range(rng.choice([0, 0, 1, 5]))]
        limit, repeat = rng.randint(6, 20), rng.choice([0, 0, 2])
        requests.append(Request(index, source, limit, len(forced) + 1, forced, no_repeat=repeat, scores=index > 0, **options))
    return requests


def case(seed):
    """A function of an instruction set: what a random model says to random requests with random drafts."""
    rng = random.Random(seed)
    verifier, dtype, threads, kind = (
        model_of(rng),
        rng.choice(DTYPES),
        rng.choice([1, 2]),
        rng.choice(["greedy", "sampling", "search"]),
    )
    requests, how = requests_of(rng, kind), rng.choice(["none", "known", "block", "causal", "successor", "tree"])
    drafter, drafting = None, rng.choice(["int8", "int4", "float32", "bfloat16"])
    if how in ("block", "causal", "successor", "tree"):
        successor = {"successor_width": 32} if how == "successor" else {}
        arch = {} if how == "block" else {"arch": "block_causal", **successor}
        drafter = engine_model(*wide_drafter(seed, **arch))
    tree = Tree(rng.randint(2, 9)) if how == "tree" else None
    lengths, ragged, knowing = [rng.randint(1, 6), rng.randint(0, 6)], rng.random() < 0.5, rng.randrange(1000)
    if how == "none":
        lengths = [0]
    heads = Heads(verifier.spec.decoder.layers - 1, (0,), rng.random() < 0.5)

    def results(kernels):
        models = checked(verifier, drafter)
        assert not any(model.obstacles(each) for each in models if each and each.spec)
        first, second = model.load(*models, dtype, threads, drafting, compiled.library(kernels))
        role = NoDrafter()
        if second is not None:
            role = BlockDrafter(second) if how == "block" else CausalBlockDrafter(second)
        elif how == "known":
            role = Knowing([[5] * 30] * 4, 0.5, knowing)
        roles = Roles(role, ModelVerifier(first), TopBetaTau(), Planned(lengths, ragged, tree=tree))
        found = speculative_decode(roles, requests, 6, DecodeStats(), Constraints(verifier.spec.symbols))
        found = sorted(found, key=lambda each: (each.index, each.output))
        with torch.inference_mode():
            aligned = Aligner(first, heads, verifier.spec.symbols)(
                [each.tokens for each in requests], [each.tokens for each in found[:4]]
            )
        return (
            [(each.tokens, bits(*(each.token_scores or ()), each.score or 0.0), each.steps) for each in found],
            [table.tobytes() for table in aligned],
        )

    return results


@pytest.mark.parametrize(
    "seeds", [range(10), *(pytest.param(range(n, n + 40), marks=pytest.mark.long) for n in range(10, 250, 40))]
)
@torch.inference_mode()
def test_random_models_say_the_same(seeds):
    """Outputs that vary, and drafts that are accepted and refused, or equality would mean little."""
    names, tokens, passes = FAST or compiled.available() if seeds[0] == 0 else compiled.available(), set(), []
    for seed in seeds:
        results = case(seed)
        first = results(names[0])
        for name in names[1:]:
            assert results(name) == first, f"seed {seed}: {name} differs from {names[0]}"
        for output, _, steps in first[0]:
            tokens.add(tuple(output))
            passes += steps
    assert len(tokens) > 20
    assert any(step.accepted for step in passes) and any(step.accepted < len(step.drafted) for step in passes)


# ---- shipped pairs

TESTS = {"demo.en-de": ("multi30k", "test2016.en"), "docs.en-fr": ("docs-en-fr", "test.en")}
DRAWN = {"sampling": True, "temperature": 0.8}
LOADED = {"ar": {"strategy": "ar"}, "specdec": {}, "tree": {"draft_with": "recycling", "tree": 12}}
WAYS = {  # how a pair is loaded, and the options of a call
    "ar": ("ar", {}),
    "specdec": ("specdec", {}),
    "beam": ("ar", {"beam": 4, "lenpen": 0.6}),
    "beam, drafts": ("specdec", {"beam": 4, "lenpen": 1.4}),
    "tree": ("tree", {}),
    "coupled": ("specdec", DRAWN),
    "rejection": ("specdec", {**DRAWN, "rule": "rejection"}),
    "tolerant": ("specdec", {"beta": 3, "tau": 1.0}),
}


@pytest.mark.parametrize("dtype", ["float32", "int8", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("folder", TESTS)
def test_shipped_pairs_say_the_same(folder, dtype):
    """Some lines in every way to decode; the committed hashes have plain decoding."""
    pair, lines = load_folder(ROOT / "data" / folder), list(read_lines(ROOT / "data" / hashes.SHIPPED[folder]))[:2]
    first = None
    for kernels in FAST:
        translators = {
            name: Translator(pair, Settings(dtype=dtype, kernels=kernels, **how)) for name, how in LOADED.items() if name != "ar"
        }
        found = {
            way: said(translators[name].translate(lines, alignments=True, scores=True, **how))
            for way, (name, how) in WAYS.items()
            if name != "ar"
        }
        first = first or found
        assert found == first, f"{kernels} differs from {FAST[0]}"


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("folder", TESTS)
def test_many_outputs_are_the_same(folder, dtype, way):
    name, file = TESTS[folder]
    pair, lines = load_folder(ROOT / "data" / folder), list(read_lines(corpus(name) / file))[: 60 if way == "ar" else 16]
    loaded, how = WAYS[way]
    first = None
    for kernels in compiled.available():
        few = lines if kernels != "generic" else lines[:2]  # it takes seconds for each; the hashes have more
        found = said(
            Translator(pair, Settings(dtype=dtype, kernels=kernels, **LOADED[loaded])).translate(few, scores=True, **how)
        )
        first = first or found
        assert found == first[: len(found)], f"{kernels} differs from {compiled.available()[0]}"


@pytest.mark.parametrize("kernels", sets())
@pytest.mark.parametrize("dtype", long_but(hashes.DTYPES, "float32", "int8"))
@pytest.mark.parametrize("folder", hashes.SHIPPED)
def test_hashes_are_the_committed_ones(folder, dtype, kernels):
    lines = list(read_lines(ROOT / "data" / hashes.SHIPPED[folder]))
    found = hashes.hashes(load_folder(ROOT / "data" / folder), lines, kernels, [dtype])
    assert not list(hashes.differences(found, hashes.known(folder)))


def test_a_difference_is_named():
    known = hashes.known("demo.en-de")
    changed = known | {"int8 ar": known["int8 ar"] | {"scores": "0"}, "float32 specdec": {"tokens": "1", "scores": "2"}}
    assert list(hashes.differences(changed, known)) == ["float32 specdec: tokens and scores", "int8 ar: scores"]


# ---- kernels by name


def test_models_on_different_kernels_in_one_process(request):
    """Each runs on its own, in turns."""
    names = [*FAST, *FAST]
    if len(FAST) < 2:
        pytest.skip("this machine runs one instruction set")
    pair, lines = load_folder(ROOT / "data/demo.en-de"), list(read_lines(ROOT / "data/demo.txt"))[:2]
    translators = [Translator(pair, Settings(dtype="int8", kernels=name)) for name in names]
    assert [each.engine.kernels.library.name for each in translators] == names
    found = [said(each.translate(lines, scores=True)) for each in translators]
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("there", [True, False])
def test_kernels_that_cannot_run_are_refused_in_a_line(there, monkeypatch, capsys, tmp_path):
    found = {name: compiled.library(name) for name in compiled.VARIANTS}  # now: of an empty folder there would be none
    monkeypatch.setattr(compiled, "library", (found | {"avx512": None}).get)
    if not there:
        monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    model_and_text = ["--model", str(ROOT / "data/demo.en-de"), str(ROOT / "data/demo.txt")]
    assert translate.main(["--kernels", "avx512", *model_and_text]) == 1
    reason = "this CPU lacks these instructions" if there else "they were not compiled"
    err = capsys.readouterr().err
    assert err.startswith(f"specdec-translate: error: kernels for avx512 cannot run here: {reason}; available: ")
    assert err.count("\n") == 1 and "generic" in err


def test_kernels_that_do_not_exist_or_do_not_run_are_wrong_options(capsys):
    for options, message in (
        ({"kernels": "sse2"}, "'sse2' is unknown; available: amx, avx512, avxvnni, avx2, generic"),
        ({"kernels": "avx2", "device": "cuda"}, "requires device cpu"),
        ({"kernels": "avx2", "dtype": "float16"}, "requires device cpu and a dtype of float32, bfloat16, int8 or int4"),
        ({"kernels": "avx2", "strategy": "fairseq"}, "is not supported by strategy fairseq"),
    ):
        with pytest.raises(OptionError, match=f"kernels {message}"):
            Settings(**options)


def test_a_model_that_the_kernels_cannot_run_is_refused(request):
    rng = random.Random(0)
    side = altered(random_side(rng, 48, 4), inner_width=40)
    made = random_model(ModelSpec(side, side), SIZE, SIZE)
    from specdec_plugins.decoding.assembly import assemble

    with pytest.raises(ValueError, match=r"kernels for generic cannot run this model: widths 40, 48"):
        assemble(made, None, kernels="generic")


def test_the_version_and_reports_name_the_kernels(capsys):
    names = compiled.available()
    with pytest.raises(SystemExit) as stopped:
        translate.main(["--version"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0 and f", kernels {names[0]}" in out and all(name in out for name in names)
    assert machine()["kernels"] == names[0] and machine(kernels="generic")["kernels"] == "generic"


def test_different_kernels_are_not_compared(monkeypatch):
    check_kernels({"fairseq": None, "ar int8": "avx2", "specdec int8": "avx2"})
    with pytest.raises(ValueError, match=r"\(ar int8 on avx2, specdec int8 on amx\); name one by --kernels"):
        check_kernels({"fairseq": None, "ar int8": "avx2", "specdec int8": "amx"})


def test_checkouts_on_different_kernels_are_not_compared():
    program = "import sys; sys.path.insert(0, 'benchmarks'); import compare; compare.check_kernels({})"
    assert run_python("-c", program.format(["avx2", "avx2"])).returncode == 0
    found = run_python("-c", program.format(["avx2", None]), check=False)
    assert found.returncode == 1 and "the base runs on avx2, this checkout on no kernels" in found.stderr
