"""The CPU kernels against PyTorch's forward, and against themselves: no result may depend on what is computed beside it."""

import itertools
import random
import time
from types import SimpleNamespace

import pytest
import torch
from conftest import make_drafter, make_verifier, model_settings
from reference import greedy_all
from support import (
    EOS,
    SHAPES,
    SYMBOLS,
    WORDS,
    Knowing,
    commit,
    compiled_for,
    decode,
    engine_model,
    load,
    long_but,
    make_tilt,
    sentences,
    shaken,
    standing,
    tilted_verifier,
)
from test_transformer import placed

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.cpu import model as cpu
from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.cpu.model import CpuModel
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.torch import transformer, weights
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.drafters.block import BlockDrafter
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.loading import DRAFT_VOCABULARY, checked
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter
from specdec_plugins.decoding.values import Draft, Plan, Want, uniform
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.packed import GROUP, TILE
from specdec_plugins.model.spec import MAX_WIDTH

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
WIDE = {
    "encoder_embed_dim": 64,
    "decoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 96,
    "decoder_ffn_embed_dim": 128,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 8,
}
KERNEL_SHAPES = {
    **SHAPES,
    "untied": {**SHAPES["untied"], "decoder_ffn_embed_dim": 160},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "narrow encoder": {"share_all_embeddings": False, "encoder_embed_dim": 32, "decoder_layers": 3},
    "gelu_fast": {"activation_fn": "gelu_fast"},
}
DTYPES = list(binding.DTYPES)
ROLES = {"block": BlockDrafter, "block_causal": CausalBlockDrafter}


def by_speed():
    """The sets of instructions that kernels are compiled for; of those that this CPU has, all but the best take long."""
    best = getattr(compiled.library(), "_name", None)
    return [pytest.param(each, marks=[pytest.mark.long] if best and each not in best else []) for each in compiled.VARIANTS]


@pytest.fixture(params=by_speed())
def variant(request, monkeypatch):
    """The kernels as compiled for each set of instructions that this CPU has."""
    request.addfinalizer(compiled.library.cache_clear)
    return compiled_for(request.param, monkeypatch) or pytest.skip(f"not compiled for {request.param}, or not for this CPU")


@pytest.fixture
def variants(request, monkeypatch):
    """Makes the kernels of each set of instructions that this CPU has the current ones, in turn."""
    request.addfinalizer(compiled.library.cache_clear)
    names = compiled.VARIANTS
    return lambda: (name for name in names if compiled_for(name, monkeypatch))


def rounded(weight, dtype):
    """(O, I) float64: a weight as the kernels hold it."""
    if dtype == "bfloat16":
        return weight.bfloat16().double()
    if dtype == "int8":
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        return (weight / scale).round().double() * scale.double()
    if dtype == binding.GROUPS:
        groups = weight.unflatten(1, (-1, GROUP))  # (O, N, G)
        largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
        parts = [1 - torch.tensor(0.05) * (each // 2) for each in range(16)]
        scales = torch.stack([(largest * part / (7 if each % 2 else -8)).bfloat16().float() for each, part in enumerate(parts)])
        tried = (groups / scales).round().clamp(-8, 7) * scales  # (16, O, N, G)
        best = (tried - groups).square().sum(3, keepdim=True).argmin(0, keepdim=True)
        return tried.gather(0, best.expand(1, *groups.shape))[0].flatten(1).double()
    if dtype == "int4":
        scales = [weight.abs().amax(1, keepdim=True) * part / 70 for part in range(10, 4, -1)]
        tried = torch.stack([(weight / scale).round().clamp(-7, 7) * scale for scale in scales])  # (6, O, I)
        errors = (tried - weight).square().sum(2)
        return tried[errors.argmin(0), torch.arange(len(weight))].double()
    return weight.double()


@pytest.mark.parametrize("dtype", binding.KINDS)
def test_product(variant, dtype):
    """(N, I) x (I, O) for shapes around the sizes of tiles, on any number of threads."""
    generator = torch.Generator().manual_seed(0)
    quantised = dtype not in ("float32", "bfloat16")
    engines = [binding.Engine(threads) for threads in (1, 2, 3)]
    for rows, inputs, outputs in itertools.product((1, 2, 3, 5, 11, 12, 13, 25, 40), (32, 96, 128), (1, 31, 32, 33, 100)):
        weight, bias = torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)
        x = torch.randn(rows, inputs, generator=generator)
        expected = x.double()
        if quantised:
            scale = expected.abs().amax(1, keepdim=True) / 127
            expected = (expected / scale).round() * scale
        expected = expected @ rounded(weight, dtype).T + bias
        linear = binding.NativeLinear(weight, bias, dtype)
        results = [torch.from_numpy(linear(engine, x)) for engine in (engines if rows > 12 else engines[:1])]
        assert all(torch.equal(result, results[0]) for result in results)
        # Quantising halves one way or the other, in the last bit of float32, moves a result by a step.
        torch.testing.assert_close(results[0].double(), expected, rtol=1e-5, atol=0.1 if quantised else 1e-4)
        if quantised:
            assert (results[0] - expected).abs().mean() < 1e-3


@pytest.mark.parametrize("dtype", binding.MOST_INPUTS)
def test_no_product_of_integers_wraps(variant, dtype):
    """The largest inputs times the largest weights of either sign; layers that could wrap are refused."""
    most = binding.MOST_INPUTS[dtype] // TILE * TILE
    signs = torch.tensor([1.0, -1.0]).repeat(TILE // 2)
    weight, x = signs[:, None].repeat(1, most), torch.tensor([[1.0], [-1.0]]).repeat(1, most)
    linear, engine = binding.NativeLinear(weight, None, dtype), binding.Engine(1)
    expected = most * torch.stack([signs, -signs])
    for rows in slice(None), slice(1), slice(1, 2):
        torch.testing.assert_close(
            torch.from_numpy(linear(engine, x[rows])), expected[rows], rtol=1e-3, atol=0
        )  # sums of floats round
    with pytest.raises(ValueError, match=f"{most + TILE:,} inputs; {dtype} weights have at most {most // 1000}"):
        binding.NativeLinear(torch.ones(32, most + TILE), None, dtype)
    assert binding.MOST_INPUTS["int4"] > MAX_WIDTH and binding.MOST_INPUTS["int8"] > 2 * MAX_WIDTH  # heads read a token, too


@pytest.mark.parametrize("dtype", binding.KINDS)
def test_products_are_the_same_on_all_instruction_sets(dtype, variants):
    """Bit for bit, for any number of rows on any number of threads; of hostile numbers, too."""

    def products():
        generator, results = torch.Generator().manual_seed(0), []
        for inputs, outputs in itertools.product((32, 64, 192, 1024), (32, 45)):
            weight, bias, x = (
                torch.randn(*shape, generator=generator) for shape in ((outputs, inputs), (outputs,), (80, inputs))
            )
            x[0] = 1  # each input is 127, so that sums of pairs are as large as they can be
            x[1], weight[1], x[2], weight[2] = -1, 1, 0, -1
            x[3, ::2], x[4, 5] = 1e-38, float("nan")
            linear = binding.NativeLinear(weight, bias, dtype)
            for rows, threads in itertools.product((1, 2, 3, *range(5, 50, 3), 63, 64, 65, 80), (1, 2)):
                results.append(torch.from_numpy(linear(binding.Engine(threads), x[:rows])))
        return results

    first, *others = [products() for _ in variants()]
    assert all(
        torch.equal(mine.view(torch.int32), theirs.view(torch.int32)) for own in others for mine, theirs in zip(own, first)
    )


def wide_verifier(seed=0, **changes):
    """A random verifier in float32 that the kernels can compute, and its settings."""
    model, args = make_verifier(seed=seed, words=WORDS, **{**WIDE, **changes})
    return shaken(model, seed).float(), args


def wide_drafter(seed=1, **changes):
    changes = {**WIDE, **changes}
    model = shaken(make_drafter(seed=seed, words=WORDS, **changes)).float()
    return model, model_settings(**{"activation_fn": "relu", **changes})


def on_kernels(verifier, drafter=None, dtype="float32", threads=2):
    models = checked(engine_model(*verifier), drafter and engine_model(*drafter))
    assert not any(cpu.obstacles(model) for model in models if model)
    return cpu.load(*models, dtype, threads)


def with_rounded_weights(verifier, dtype):
    """The same model in float64, its matrices rounded as the kernels hold them, its embeddings not."""
    model = load(verifier, dtype=torch.float64)[0].transformer

    def linear(each):
        return weights.Linear(rounded(each.weight.float(), dtype), each.bias)

    for side in (model.encoder, model.decoder):
        for layer in side.layers:
            for name, value in vars(layer).items():
                if isinstance(value, weights.Linear):
                    setattr(layer, name, linear(value))
    model.decoder.memory = linear(model.decoder.memory)
    model.decoder.projection = rounded(model.decoder.projection.float(), dtype)
    return TorchModel(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", KERNEL_SHAPES)
@torch.inference_mode()
def test_logits_are_pytorchs(shape, dtype, variant):
    """Ragged drafts after prefixes of any length, against the forward that is tested against fairseq's."""
    pair = wide_verifier(**KERNEL_SHAPES[shape])
    rng = random.Random(shape)
    sources = sentences(6, seed=3)
    committed = [[rng.randrange(4, WORDS) for _ in range(length)] for length in (3, 0, 7, 1, 12, 3)]
    draft = Draft([[rng.randrange(4, WORDS) for _ in range(length)] for length in (0, 5, 2, 11, 5, 1)])
    expected = []
    for model in (with_rounded_weights(pair, dtype), on_kernels(pair, dtype=dtype)[0]):
        role = ModelVerifier(model)
        state, prefix = standing(role, sources, [[] for _ in sources])
        role.score(state, prefix, Draft(committed)).logits()  # the cache holds nothing of the prefix yet
        commit(prefix, committed)
        expected.append(tensor(role.score(state, prefix, draft).logits()))
    for row, tokens in enumerate(draft.tokens):
        width = len(tokens) + 1
        torch.testing.assert_close(expected[1][row, :width].double(), expected[0][row, :width], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("shape", ["post-norm", "pre-norm", "learned", "unscaled"])
@torch.inference_mode()
def test_block_drafts_are_pytorchs(shape, copy, variant):
    """Blocks of one width, and of another for each row."""
    given = engine_model(*wide_drafter(src_embedding_copy=copy, **KERNEL_SHAPES[shape]))
    models = TorchModel(placed(given, torch.float64)), CpuModel(given, binding.Engine(2), "float32")
    rng, sources = random.Random(5), sentences(6, seed=4)
    targets = [[rng.randrange(4, WORDS + 4) for _ in range(length)] for length in (3, 0, 7, 1, 12, 3)]
    for lengths in ([1] * 6, [5] * 6, [16] * 6, [3, 0, 1, 7, 2, 5]):
        found = []
        for model in models:
            state, prefix = standing(BlockDrafter(model), sources, targets)
            done = model.read_block(state, prefix, lengths)
            found.append((tensor(done.logits()).double().clone(), done.choose(prefix, Plan(lengths)).tokens))
        assert found[1][1] == found[0][1]
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[1][0][row, :length], found[0][0][row, :length], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("vocabulary", [None, [*range(7), 12, 19]])
@pytest.mark.parametrize("shape", ["post-norm", "pre-norm", "learned", "unscaled"])
@torch.inference_mode()
def test_causal_drafts_are_pytorchs(shape, vocabulary, variant):
    """Pass after pass, with pauses, rows at different lengths and with drafts of their own length."""
    given = engine_model(*wide_drafter(arch="block_causal", successor_width=32, **KERNEL_SHAPES[shape]))
    if vocabulary is not None:
        given.tensors[DRAFT_VOCABULARY] = torch.tensor(vocabulary)
    models = TorchModel(placed(given, torch.float64)), CpuModel(given, binding.Engine(2), "float32")
    found = []
    for model in models:
        rng, sources = random.Random(7), sentences(6, seed=4)
        role = CausalBlockDrafter(model)
        state, prefix = standing(role, sources, [[] for _ in sources])
        found.append([])
        for _ in range(8):
            plan = uniform(6, rng.randrange(1, 9))._replace(lengths=[rng.randrange(1, 9) * rng.randrange(2) for _ in range(6)])
            if any(plan.lengths):
                found[-1].append(role.propose(state, prefix, plan).tokens)
            for _ in range(rng.randrange(1, 3)):
                commit(prefix, [[rng.randrange(4, WORDS + 4) for _ in range(rng.randrange(1, 4))] for _ in sources])
    assert found[0] == found[1] and sum(map(len, itertools.chain(*found[0]))) > 40


@pytest.mark.parametrize("vocabulary", [10, 300, 1000, 4001])
def test_choice_is_pytorchs(vocabulary, variant):
    """With a successor network whose say is large, and without; sizes around those of the parts that are skipped together."""

    generator = torch.Generator().manual_seed(vocabulary)
    successor = SimpleNamespace(**{name: torch.randn(vocabulary, 32, generator=generator) for name in ("tokens", "out")})
    decoder = SimpleNamespace(successor=successor, vocabulary=None, embedding=SimpleNamespace(tokens=successor.tokens))
    eager = TorchModel(SimpleNamespace(decoder=decoder, spec=None), EAGER)
    native = SimpleNamespace(
        engine=binding.Engine(2),
        successor=SimpleNamespace(**{name: each.numpy() for name, each in vars(successor).items()}),
        vocabulary=None,
        token_ids=None,
        stack=SimpleNamespace(vocabulary=vocabulary),
    )
    prefix = Prefix()
    prefix.admit([Request(index, [EOS], 9) for index in range(3)])
    commit(prefix, [[], [5], [6, 7]])
    changed = 0
    for seed in range(20):
        generator.manual_seed(seed)
        logits, gates = (torch.randn(3, 6, size, generator=generator) for size in (vocabulary, 32))
        logits[0, 0, SYMBOLS.eos] = logits[1, 1, SYMBOLS.pad] = 99.0
        chosen = []
        for gate in (gates, None):
            done = CpuPass.of(native, logits.clone(), gates=gate)
            lengths = [6, 6, 6] if seed % 2 else [6, 0, 3]
            plan = Plan(lengths)
            expected = eager.choosing.choose(logits.clone(), gate, prefix, plan).tokens
            chosen.append(done.choose(prefix, plan).tokens)
            assert chosen[-1] == expected and list(map(len, expected)) == lengths
        changed += chosen[0] != chosen[1]
    assert changed == 20


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_nothing_depends_on_what_is_beside_it(dtype, variant):
    """Bit for bit: encoder output and logits of a sentence alone, token by token, and of blocks of it in a batch."""
    for shape, threads in (("post-norm", 1), ("pre-norm", 2), ("learned", 3)):
        model, _ = on_kernels(wide_verifier(**KERNEL_SHAPES[shape]), dtype=dtype, threads=threads)
        role, rng = ModelVerifier(model), random.Random(shape)
        sources = sentences(7, seed=2)
        targets = [[rng.randrange(3, WORDS + 4) for _ in range(rng.randrange(14))] for _ in sources]
        batch = tensor(model.encoder(Source(sources, SYMBOLS)))
        state, prefix = standing(role, sources, [[] for _ in sources])
        together = tensor(role.score(state, prefix, Draft(targets)).logits()).clone()
        for row, (source, target) in enumerate(zip(sources, targets)):
            alone = tensor(model.encoder(Source([source], SYMBOLS)))
            assert torch.equal(batch[row, : len(source)], alone[0])
            state, prefix = standing(role, [source], [[]])
            for place, token in enumerate([*target, None]):
                assert torch.equal(tensor(role.score(state, prefix, Draft([[]])).logits())[0, 0], together[row, place])
                if token is not None:
                    commit(prefix, [[token]])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_pass_and_its_judgement_are_the_same_in_one_call_and_in_two(dtype, variant):
    """Bit for bit, with all constraints and tolerances; also what is kept of a pass: logits, and hidden states if wanted."""
    rng, sources, counts = random.Random(2), sentences(5, seed=2), set()
    for threads in (1, 2, 2, 2):
        role = ModelVerifier(on_kernels(wide_verifier(), dtype=dtype, threads=threads)[0])
        requests = [
            Request(
                row,
                source,
                rng.choice([2, 9]),
                rng.choice([0, 1, 4]),
                no_repeat=rng.choice([0, 1, 2]),
                tolerance=rng.choice([Tolerance(), Tolerance(5, 2.0), Tolerance(60)]),
                scores=row % 3 > 0,
            )
            for row, source in enumerate(sources)
        ]
        drafts, found = [[rng.randrange(3, WORDS + 4) for _ in range(rng.randrange(9))] for _ in sources], []
        for kind in ("one call", "two calls", "hidden states"):
            want, prefix, state = Want(features=kind == "hidden states"), Prefix(), role.start(5)
            role.admit(state, Source(sources, SYMBOLS))
            prefix.admit(requests)
            draft = prefix.clip(Draft(drafts), [9] * 5)
            done = role.score(state, prefix, draft, want)
            if kind == "two calls":
                done.logits()
            verdict = TopBetaTau()(done, draft, prefix)
            found.append(
                (verdict, [tensor(done.logits())[row, : len(tokens) + 1].tolist() for row, tokens in enumerate(draft.tokens)])
            )
            if want.features:
                assert tensor(done.features()).shape == (5, 1 + max(map(len, draft.tokens)), 64)
            else:
                with pytest.raises(RuntimeError, match="not asked for that"):
                    done.features()
        assert found[0] == found[1] == found[2]
        counts |= {*found[0][0].accepted}
    assert len(counts) > 3


@pytest.mark.parametrize("shape", long_but(KERNEL_SHAPES, "post-norm", "pre-norm", "narrow encoder"))
def test_float32_output_is_the_verifiers_greedy_output(shape):
    """As for PyTorch in float64: batch, block, ends, limits, drafters from random to perfect, refills."""
    rng = random.Random(shape)
    fairseq_model, args = wide_verifier(**KERNEL_SHAPES[shape])
    model, _ = on_kernels((fairseq_model, args))
    fairseq_model.double()
    for bias in (-9.0, 1.0):
        sources = sentences(14, seed=rng.random())
        limits = [rng.randrange(1, 25) for _ in sources]
        tilt = make_tilt(0, bias)
        expected = greedy_all(fairseq_model, sources, limits, tilt)
        verifier = tilted_verifier(model, tilt)
        for error, rows in itertools.product((0.0, 0.4, 1.0), rng.sample(range(1, 10), 3)):
            block = rng.choice([rng.randrange(1, 31), [rng.randrange(12) for _ in range(5)]])
            hypotheses, _ = decode(verifier, Knowing(expected, error), sources, limits, block, rows, ragged=rows % 2 == 1)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected


@pytest.mark.parametrize("arch", ["block", "block_causal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", long_but(["post-norm", "pre-norm", "learned"], "pre-norm"))
def test_speculation_is_exact_in_every_dtype(shape, dtype, variant, arch):
    """Tokens and scores, bit for bit, are those of plain decoding in the same data type, whatever the drafter says."""
    verifier, drafter = wide_verifier(**KERNEL_SHAPES[shape]), wide_drafter(arch=arch, **KERNEL_SHAPES[shape])
    sources, limits = sentences(12, seed=6), [3 + 2 * index for index in range(12)]
    tilt = make_tilt(1, 0.0).float() / 4
    expected = None
    for other, block, rows in ((None, 0, 1), (None, 0, 5), (drafter, 1, 1), (drafter, 7, 4), (drafter, 20, 12)):
        model, drafting = on_kernels(verifier, other, dtype)
        role = ROLES[arch](drafting) if drafting else NoDrafter()
        hypotheses, _ = decode(tilted_verifier(model, tilt), role, sources, limits, block, rows)
        found = [(hypothesis.tokens, hypothesis.token_scores) for hypothesis in hypotheses]
        expected = expected or found
        assert found == expected
    assert len({tuple(tokens) for tokens, _ in expected}) > 6


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_weights_are_read_many_at_a_time(variant, dtype):
    """A product with one row takes about as long as in float32 or less. Widened number by number it takes eight times as long."""
    weight, bias, x = torch.randn(4096, 256), torch.randn(4096), torch.randn(1, 256)

    def least(dtype):
        linear, engine, taken = binding.NativeLinear(weight, bias, dtype), binding.Engine(1), []
        for _ in range(50):
            began = time.perf_counter()
            linear(engine, x)
            taken.append(time.perf_counter() - began)
        return min(taken)

    assert least(dtype) < 5 * least("float32")


@pytest.mark.parametrize("width,size", [(32, 32), (256, 96), (96, 256)])
def test_beginning_is_pytorchs(variant, width, size):
    """Also where scores are large, and with a mean before it in the engine's memory."""
    generator, engine = torch.Generator().manual_seed(size), binding.Engine(1)
    query, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((size,), (width, size), (width,)))
    for scale, length in itertools.product((0.1, 1.0, 30.0), (1, 2, 17, 60)):
        encoded = torch.randn(length, size, generator=generator)
        found = torch.from_numpy(cpu.NativeBeginning(engine, scale * query, weight, bias)(encoded))
        expected = transformer.beginning(*(each.double() for each in (encoded, scale * query, weight, bias)))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def attended(query, entries, heads, scale, **sees):
    """The kernels' attention of ``query`` (D,) over ``entries`` (T, 2 D) -> (D,); what it ``sees`` is that of `seen`."""
    return attended_together([query], entries, heads, scale, [seen(**sees)])[0]


def seen(*, from_=0, to=0, sinks=0, listed=(), path=(0, ())):
    """As the kernels are told, and the positions; ``path``: a position, and the places of the entries of those from there on."""
    branch, places = path
    return (from_, to, sinks, len(listed), branch, len(places)), [*listed, *places]


def attended_together(queries, entries, heads, scale, sees):
    """The same of several queries in one call -> (N, D)."""
    given, (rows, positions) = torch.stack(list(queries)), zip(*sees)
    names = "from", "to", "sinks", "listed", "branch", "path"
    told = compiled.library().rows("SeenRow", **dict(zip(names, zip(*rows))))
    listed, result = integers(*positions), torch.empty_like(given)
    compiled.library().specdec_attend(
        len(given),
        given.size(1),
        heads,
        scale,
        given.data_ptr(),
        entries.data_ptr(),
        entries.stride(0),
        start(told),
        start(listed),
        result.data_ptr(),
    )
    return result


def naive_attention(query, entries, heads, scale, positions):
    """The same in float64."""
    keys, values = entries[sorted(positions)].double().chunk(2, -1)
    keys, values = (each.unflatten(1, (heads, -1)).transpose(0, 1) for each in (keys, values))  # (H, T, D / H)
    weights = (keys @ query.double().view(heads, -1, 1) * scale).softmax(1)
    return (weights * values).sum(1).flatten()


@pytest.mark.parametrize("width,heads", [(256, 4), (64, 8), (96, 2), (160, 8), (32, 1)])
def test_attention_does_not_depend_on_how_its_entries_were_asked_for(variant, width, heads):
    """Ranges, sinks and lists, against an oracle; bit for bit the same wherever they name the same positions, and wherever the
    entries of some of these lie.

    What is not seen is NaN, so that it would show.
    """
    generator, rng = torch.Generator().manual_seed(width), random.Random(width)
    for trial in range(60):
        longest = rng.choice((1, 3, 8, 15, 16, 17, 33, 100, 150))
        query, everything = torch.randn(width, generator=generator), torch.randn(longest, 2 * width, generator=generator)
        end = rng.randrange(1, longest + 1)
        start, sinks = rng.choice((0, rng.randrange(end))), rng.choice((0, rng.randrange(end)))
        more = [position for position in range(end, longest) if rng.random() < 0.5]
        positions = {*range(sinks), *range(start, end), *more}
        entries = everything.clone()
        entries[[place for place in range(longest) if place not in positions]] = torch.nan
        given = query, entries, heads, 0.2
        mixed = [*positions]
        rng.shuffle(mixed)
        inside, outside = ({*positions} & {*range(start, end)}), ({*positions} - {*range(start, end)})
        branch = rng.randrange(max(positions) + 1)
        places = [*range(branch, longest)]
        rng.shuffle(places)
        moved = entries.clone()
        moved[places] = entries[branch:]
        elsewhere = query, moved, heads, 0.2
        found = {
            "as asked": attended(*given, from_=start, to=end, sinks=sinks, listed=more),
            "list": attended(*given, listed=mixed),
            "list with repetitions": attended(*given, listed=mixed + mixed[::2]),
            "range and list": attended(*given, from_=min(inside), to=max(inside) + 1, listed=[*outside]),
            "elsewhere": attended(*elsewhere, from_=start, to=end, sinks=sinks, listed=more, path=(branch, places)),
        }
        if positions == {*range(len(positions))}:
            found["prefix"] = attended(*given, to=len(positions))
            found["sinks"] = attended(*given, sinks=len(positions))
            found["path"] = attended(*elsewhere, to=len(positions), path=(branch, places))
        torch.testing.assert_close(
            found["as asked"].double(), naive_attention(query, everything, heads, 0.2, positions), rtol=1e-5, atol=1e-5
        )
        for name, result in found.items():
            assert torch.equal(result, found["as asked"]), (trial, name, positions)


@pytest.mark.parametrize("width,heads", [(256, 4), (96, 2), (160, 8)])
def test_queries_are_taken_together_bit_for_bit(variant, width, heads):
    """What a query gets does not depend on the queries that read the entries with it, however few or many each sees."""
    generator, rng = torch.Generator().manual_seed(width), random.Random(width)
    for longest in (1, 31, 33, 64, 65, 200):
        entries = torch.randn(longest, 2 * width, generator=generator)
        for number in (2, 5, 17):
            queries, sees = torch.randn(number, width, generator=generator), []
            for _ in range(number):
                end = rng.randrange(1, longest + 1)
                sees.append(
                    rng.choice(
                        [
                            {"to": end},
                            {"to": longest},
                            {"from_": rng.randrange(end), "to": end, "sinks": rng.randrange(end)},
                            {"listed": sorted(rng.sample(range(longest), rng.randrange(1, longest + 1)))},
                            {"to": end, "path": (end - 1, [rng.randrange(longest)])},
                        ]
                    )
                )
            together = attended_together(queries, entries, heads, 0.2, [seen(**each) for each in sees])
            for query, each, result in zip(queries, sees, together):
                assert torch.equal(attended(query, entries, heads, 0.2, **each), result), (longest, number, each)


def test_attention_over_more_entries_is_not_the_same(variant):
    """Each entry counts: without any one of them the result is another."""
    generator = torch.Generator().manual_seed(3)
    query, entries = torch.randn(64, generator=generator), torch.randn(40, 128, generator=generator)
    whole = attended(query, entries, 2, 0.2, to=40)
    for gone in range(40):
        assert not torch.equal(whole, attended(query, entries, 2, 0.2, listed=[place for place in range(40) if place != gone]))


def test_an_equal_encoder_is_held_once():
    verifier, drafter = wide_verifier(), wide_drafter()
    drafter[0].encoder.load_state_dict(verifier[0].encoder.state_dict())
    model, drafting = on_kernels(verifier, drafter)
    assert drafting.encoder is model.encoder
    assert on_kernels(verifier, wide_drafter(seed=2))[1].encoder is not model.encoder


def test_where_the_kernels_cannot_pytorch_does(monkeypatch):
    """Widths that they do not compute, other data types, no library: PyTorch, or a clear word where it cannot either."""
    threads = torch.get_num_threads()
    try:
        wide, narrow = engine_model(*wide_verifier()), engine_model(*make_verifier(words=WORDS))
        assert isinstance(assemble(wide, None)[1].model, CpuModel)
        for parts, dtype in ((narrow, "float32"), (narrow, "bfloat16"), (wide, "float64"), (wide, "float16")):
            model = assemble(parts, None, dtype=dtype)[1].model
            assert type(model) is TorchModel
            assert model.transformer.decoder.embedding.tokens.dtype == getattr(torch, dtype)
        assert assemble(wide, None, dtype="auto")[1].model.kind == "int8"
        assert assemble(narrow, None, dtype="auto")[1].model.transformer.decoder.embedding.tokens.dtype == torch.float32
        with pytest.raises(ValueError, match="int8 needs the CPU kernels: widths 16, 24 are not all multiples of 32"):
            assemble(narrow, None, dtype="int8")
        with pytest.raises(ValueError, match="int8 runs only on CPUs"):
            assemble(wide, None, device="meta", dtype="int8")
        monkeypatch.setattr(cpu, "library", lambda: None)
        assert all(type(assemble(wide, None, dtype=dtype)[1].model) is TorchModel for dtype in ("float32", "auto"))
        with pytest.raises(ValueError, match="int8 needs the CPU kernels: they were not compiled for this machine; install a C"):
            assemble(wide, None, dtype="int8")
    finally:
        torch.set_num_threads(threads)
