"""Models made of parts: each part, and mixtures of them, on both backends, against `naive.py`."""

import random
from dataclasses import replace

import numpy as np
import one_file_architecture
import pytest
import torch
from naive import altered, logits, random_model, side_of, untrained_glide
from support import Knowing, long_but
from test_formats import SIZE, cases, dictionary, read_twice
from test_kernels import variant  # noqa: F401 - a fixture

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import model as kernels
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.loading import checked
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.options import Beam, Tree
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats.folder import Pair, load_folder, save_folder
from specdec_plugins.formats.positions import buckets
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import Embedding, FeedForward, Local, ModelSpec, Norm, Output, OutputRules, Relative, Rotary
from specdec_plugins.text.codec import CodecConfig

SIDE = side_of(layers=2, heads=4, width=64, inner_width=96, max_positions=40, embedding_scale=4.0, position_offset=2)
PLAIN = ModelSpec(SIDE, SIDE)
RMS = Norm(rms=True, eps=1e-6, bias=False)
SPECS = {
    "RMS norms": {"norm": RMS},
    "RMS norms with biases": {"norm": replace(RMS, bias=True)},
    "layer norms without biases": {"norm": Norm(eps=1e-3, bias=False)},
    "norms on both sides": {"norms": "both", "final_norm": True},
    "no biases": {"attention": {"bias": False}, "feed_forward": {"bias": False}},
    "wide heads": {"attention": {"head_width": 48}},
    "narrow heads": {"attention": {"head_width": 8}},
    "no scale": {"attention": {"scale": 1.0}},
    "another scale": {"attention": {"scale": 0.07}},
    "relative positions": {"attention": {"relative": Relative(8, 12)}, "embedding": {"offset": None}},
    "T5's buckets": {"attention": {"relative": Relative()}, "embedding": {"offset": None}},
    "rotary positions": {"attention": {"rotary": Rotary()}, "embedding": {"offset": None}},
    "rotary positions of wide heads": {"attention": {"rotary": Rotary(500.0), "head_width": 40}},
    "key-value groups": {"attention": {"key_heads": 2}},
    "one head of keys": {"attention": {"key_heads": 1, "head_width": 32}},
    "caps": {"attention": {"cap": 1.5}},
    "head norms": {"attention": {"head_norm": RMS}},
    "head norms with biases, rotary": {"attention": {"head_norm": Norm(), "rotary": Rotary()}},
    "windows": {"local": Local((1,), 4, 3)},
    "windows, rotary": {
        "attention": {"rotary": Rotary(500.0, factor=2.0)},
        "local": Local((0,), 3, 2, Rotary(90.0)),
        "embedding": {"offset": None},
    },
    "merged attention": {"attention": {"merged": True}},
    "gates": {"feed_forward": {"gated": True, "activation": "gelu_tanh"}},
    "T5": {
        "attention": {"bias": False, "scale": 1.0, "head_width": 32, "relative": Relative(16, 24)},
        "norm": RMS,
        "norms": "before",
        "final_norm": True,
        "embedding": {"offset": None, "scale": 1.0},
        "feed_forward": {"gated": True, "activation": "gelu_tanh", "bias": False},
    },
    "T5Gemma": {
        "attention": {
            "bias": False,
            "key_heads": 2,
            "head_width": 32,
            "scale": 0.21,
            "cap": 5.0,
            "rotary": Rotary(),
            "head_norm": RMS,
        },
        "norm": RMS,
        "norms": "both",
        "final_norm": True,
        "embedding": {"offset": None, "scale": 8.0},
        "feed_forward": {"gated": True, "activation": "gelu_tanh", "bias": False},
    },
    "T5Gemma 2": {
        "attention": {
            "bias": False,
            "key_heads": 2,
            "head_width": 32,
            "scale": 0.21,
            "rotary": Rotary(300.0, factor=8.0),
            "head_norm": RMS,
            "merged": True,
        },
        "local": Local((0,), 5, 4, Rotary()),
        "norm": RMS,
        "norms": "both",
        "final_norm": True,
        "embedding": {"offset": None, "scale": 8.0},
        "feed_forward": {"gated": True, "activation": "gelu_tanh", "bias": False},
    },
}


def side_with(case, side=SIDE):
    parts = {
        name: replace(getattr(side, name), **value) if isinstance(value, dict) else value for name, value in SPECS[case].items()
    }
    return replace(side, **parts)


def sides_with(case, wider=0):
    """Encoder and decoder with the case's parts. The encoder is ``wider``, where attention is not merged."""
    decoder = side_with(case)
    encoder = side_with(case, altered(SIDE, width=64 + wider, inner_width=64)) if wider else decoder
    if decoder.attention.merged:
        encoder = replace(decoder, attention=replace(decoder.attention, merged=False))
    if decoder.local:
        decoder = replace(decoder, local=replace(decoder.local, after=0))
    return encoder, decoder


def model_with(case):
    """The decoder has the case's parts, and the encoder has them in another size, if it can."""
    encoder, decoder = sides_with(case, 0 if "wide" in case else 64)
    output = Output(scale=0.6, cap=2.5) if SPECS[case].get("final_norm") else Output(bias=True, cap=4.0)
    made = random_model(ModelSpec(encoder, decoder, output), SIZE, SIZE + 3, seed=len(case))
    return Model(made.spec, made.tensors)


@pytest.mark.parametrize("case", SPECS)
@torch.inference_mode()
def test_forward_is_the_specs(case):
    model = model_with(case)
    pairs = cases(case, model.spec.symbols)
    found = read_twice(TorchModel(load_pair(model, None, dtype=torch.float64)[0]), pairs, model.spec.symbols.start)
    for (source, target), each in zip(pairs, found):
        # rotary tables are float32's, as the families compute them
        torch.testing.assert_close(each, logits(model, source, target), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", SPECS)
@torch.inference_mode()
def test_kernels_compute_the_spec(case, variant):  # noqa: F811
    model = model_with(case)
    assert not kernels.obstacles(model)
    pairs = cases(case, model.spec.symbols)
    found = read_twice(kernels.load(*checked(model, None), "float32", 2)[0], pairs, model.spec.symbols.start)
    for (source, target), each in zip(pairs, found):
        torch.testing.assert_close(each.double(), logits(model, source, target), rtol=3e-4, atol=3e-4)


@torch.inference_mode()
def test_distances_beyond_the_last_bucket(variant):  # noqa: F811
    """Of T5's buckets, in both directions. `test_huggingface.py` compares PyTorch's with transformers."""
    side, rng = side_with("T5's buckets", altered(SIDE, max_positions=400)), random.Random(1)
    model = random_model(ModelSpec(side, side, Output(bias=True)), SIZE, SIZE)
    pair = [rng.choices(range(4, SIZE), k=length) for length in (190, 170)]
    engines = (
        kernels.load(*checked(model, None), "float32", 2)[0],
        TorchModel(load_pair(model, None, dtype=torch.float64)[0]),
    )
    found, wanted = (read_twice(engine, [pair], model.spec.symbols.start)[0] for engine in engines)
    torch.testing.assert_close(found.double(), wanted, rtol=3e-4, atol=3e-4)


def requests_of(rng, **more):
    return [
        Request(
            number, [*(rng.randrange(4, SIZE) for _ in range(rng.randrange(1, 30))), 2], rng.randrange(3, 34), scores=True, **more
        )
        for number in range(4)
    ]


def outputs_of(pair, dtype, length, requests, drafter=None, tree=None):
    """Tokens and scores of each request, and statistics; ``drafter`` replaces the pair's."""
    threads = 1 if dtype == "float64" else 2
    own, verifier = assemble(pair[0], pair[1] if drafter is None and length else None, dtype=dtype, threads=threads)
    constraints, stats = Constraints.of(pair[0].spec), DecodeStats()
    made = speculative_decode(
        Roles(drafter or own, verifier, TopBetaTau(), FixedLength(length, tree)), requests, 8, stats, constraints
    )
    found = sorted(made, key=lambda each: (each.index, each.output))
    return [(each.tokens, each.token_scores) for each in found], stats


def pair_with(case):
    """A model, and the drafter `glide` on its cache."""
    model = model_with(case)
    model = Model(replace(model.spec, output=replace(model.spec.output, cap=None)), model.tensors)
    return model, untrained_glide(model)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
@pytest.mark.parametrize("case", long_but(SPECS, "T5", "T5Gemma", "T5Gemma 2"))
def test_drafts_change_nothing(case, dtype):
    """Those of a drafter on the verifier's cache, and of one that errs now and then; beams and trees, too."""
    pair, rng = pair_with(case), random.Random(case)
    requests = requests_of(rng)
    plain, _ = outputs_of(pair, dtype, 0, requests)
    drafted, _ = outputs_of(pair, dtype, 4, requests)
    guessed, stats = outputs_of(pair, dtype, 5, requests, Knowing([tokens for tokens, _ in plain], 0.2))
    assert stats.mean_accepted_length > 1.2
    same(plain, drafted, dtype)
    same(plain, guessed, dtype)
    branching, _ = outputs_of(pair, dtype, 3, requests, Knowing([tokens for tokens, _ in plain], 0.4), Tree(nodes=6))
    same(plain, branching, dtype)
    searches = [replace(request, beam=Beam(3)) for request in requests]
    same(*(outputs_of(pair, dtype, length, searches)[0] for length in (0, 3)), dtype)


def same(one, other, dtype):
    """The kernels' scores are equal to the last bit, PyTorch's nearly."""
    assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
    for (_, mine), (_, theirs) in zip(one, other):
        assert mine == (pytest.approx(theirs, rel=1e-9) if dtype == "float64" else theirs)


def test_shared_biases_are_one_tensor(tmp_path):
    """T5 has one table for all layers of a side, UMT5 one for each: aliases say which, and a folder keeps them."""
    made = random_model(ModelSpec(side_with("T5"), side_with("T5")), SIZE, SIZE)
    tensors = {name: tensor.float() for name, tensor in made.tensors.items()}
    for side in ("encoder", "decoder"):
        tensors[f"{side}.layers.1.self_attn.relative.weight"] = tensors[f"{side}.layers.0.self_attn.relative.weight"]
    files = {"source": dictionary(tmp_path, "dict.xa.txt"), "target": dictionary(tmp_path, "dict.xb.txt")}
    config = CodecConfig("fairseq-bpe", "xa", files, "xa", "xb", {"tokenizer": "moses"})
    save_folder(Pair.open(Model(made.spec, tensors), None, config), tmp_path / "folder")
    found = load_folder(tmp_path / "folder").verifier
    assert found.spec == made.spec
    assert found.tensors.keys() == tensors.keys()
    assert all(np.array_equal(found.tensors[name], tensor) for name, tensor in tensors.items())
    names = [f"decoder.layers.{number}.self_attn.relative.weight" for number in (0, 1)]
    assert found.tensors[names[0]] is found.tensors[names[1]]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_an_architecture_outside_the_package(dtype):
    """In one file (`one_file_architecture.py`), from its own names of weights; exact on both backends."""
    config = {"width": 64, "inner": 96, "layers": 2, "heads": 4, "head": 32, "longest": 40}
    drawn = random_model(one_file_architecture.spec_of(config), SIZE, SIZE, seed=3)
    weights = dict(drawn.tensors)
    for theirs, ours in one_file_architecture.RENAMED.items():
        weights = {name.replace(f".{ours}", f".{theirs}"): tensor for name, tensor in weights.items()}
    assert not set(weights) & set(drawn.tensors)
    model = one_file_architecture.model_of(config, weights)
    assert model.tensors.keys() == drawn.tensors.keys()
    requests = requests_of(random.Random(dtype))
    plain, _ = outputs_of((model, None), dtype, 0, requests)
    guessed, stats = outputs_of((model, None), dtype, 5, requests, Knowing([tokens for tokens, _ in plain], 0.2))
    same(plain, guessed, dtype)
    assert stats.mean_accepted_length > 1.5


def test_buckets():
    """T5's own numbers: single distances to 8, then wider ones, of which the last begins before 128."""
    both, one = buckets(32, 128, True), buckets(32, 128, False)
    assert both[128 - 9 : 128 + 10] == (8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23, 24, 24)
    assert one[128 - 17 : 128] == (16, 16, *range(15, 0, -1)) and set(one[128:]) == {0}
    assert (both[0], both[-1], one[0]) == (15, 31, 31)


def test_what_no_model_has_is_refused():
    for change, message in (
        ({"attention": replace(SIDE.attention, key_heads=3)}, "3 key-value heads do not divide 4 heads"),
        ({"attention": replace(SIDE.attention, head_width=31, rotary=Rotary())}, "rotary positions of heads of width 31"),
        ({"attention": replace(SIDE.attention, scale=0.0)}, "scores: a factor of 0.0"),
        ({"attention": replace(SIDE.attention, cap=-1.0)}, "the cap of scores: a factor of -1.0"),
        ({"attention": replace(SIDE.attention, relative=Relative(6, 20))}, "a relative bias of 6 buckets up to a distance of 20"),
        ({"attention": replace(SIDE.attention, rotary=Rotary(1.0))}, "rotary positions with a theta of 1.0"),
        ({"attention": replace(SIDE.attention, rotary=Rotary(factor=0.0))}, "rotary positions with a factor of 0.0"),
        ({"local": Local((2,), 4)}, r"windows of layers \(2,\), of 2"),
        ({"local": Local((1, 0), 4)}, r"windows of layers \(1, 0\), of 2"),
        ({"local": Local((0,), 0)}, "windows of 0 positions"),
        ({"local": Local((0,), 4, rotary=Rotary(0.5))}, "rotary positions with a theta of 0.5"),
        ({"norm": Norm(eps=0.0)}, "a norm's eps is 0.0"),
        ({"norms": "within"}, "norms 'within'; available: before, after, both"),
        ({"feed_forward": FeedForward(64, "tanh")}, "activation function 'tanh'"),
        ({"embedding": Embedding(offset=-1)}, "the offset of positions"),
    ):
        with pytest.raises(ValueError, match=f"decoder: .*{message}"):
            ModelSpec(SIDE, replace(SIDE, **change))
    merged = replace(SIDE, attention=replace(SIDE.attention, merged=True))
    biased = replace(merged, attention=replace(merged.attention, relative=Relative()))
    for sides, message in (
        ((merged, SIDE), "encoder: merged attention, which needs a source"),
        ((altered(SIDE, width=32), merged), "merged attention of width 64 to a source of width 32"),
        ((SIDE, biased), "decoder: merged attention with a relative bias"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelSpec(*sides)
    with pytest.raises(ValueError, match=r"outputs scaled by 1\.0 and capped at 0\.0"):
        ModelSpec(SIDE, SIDE, Output(cap=0.0))
    with pytest.raises(ValueError, match="outputs are scaled after the decoder's final norm, which it lacks"):
        ModelSpec(SIDE, SIDE, Output(scale=0.5))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8"])
def test_several_tokens_end_outputs(dtype, variant):  # noqa: F811
    """The best of them ends an output, whichever it is; before the minimum length none does."""
    made, drafter = pair_with("T5")
    made = Model(replace(made.spec, outputs=OutputRules("huggingface", ends=False)), made.tensors)
    requests = [replace(each, min_length=2, limit=12) for each in requests_of(random.Random(7))]
    longer = [tokens for tokens, _ in outputs_of((made, drafter), dtype, 0, requests)[0] if len(tokens) > 5]
    ends = tuple({*(tokens[4] for tokens in longer), *(tokens[0] for tokens in longer[:2])})
    model = Model(replace(made.spec, ends=ends), made.tensors)
    plain, _ = outputs_of((model, drafter), dtype, 0, requests)
    drafted, _ = outputs_of((model, drafter), dtype, 4, requests)
    same(plain, drafted, dtype)
    assert sum(2 <= len(tokens) <= 4 for tokens, _ in plain) >= 2
    assert not {*ends} & {token for tokens, _ in plain for token in tokens}
    for request, (tokens, scores) in zip(requests if dtype in ("float64", "float32") else (), plain):
        best = logits(made, request.tokens, tokens).log_softmax(1)
        best[:2, [2, *ends]] = -torch.inf
        if len(tokens) < request.limit:
            assert int(best[-1].argmax()) in (2, *ends)
        assert [*best.argmax(1)[: len(tokens)]] == tokens
        assert scores[: len(best)] == pytest.approx(best.max(1).values[: len(scores)].tolist(), abs=1e-3)
