"""The engine's forward against fairseq's: same weights, same logits, for every shape that it says it computes."""

import argparse
import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import make_batch, make_dictionary, make_drafter, make_verifier, model_settings
from reference import drafted
from support import EOS, SHAPES, SYMBOLS, WORDS, commit, decode, engine_model, load, sentences, shaken, standing

from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.state import Sources
from specdec_plugins.decoding.backends.torch import transformer
from specdec_plugins.decoding.backends.torch.arrays import tensor as as_tensor
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import Placement, load_pair
from specdec_plugins.decoding.backends.torch.state import DenseState, KVCache
from specdec_plugins.decoding.backends.torch.tensors import source_tokens
from specdec_plugins.decoding.backends.torch.transformer import Transformer
from specdec_plugins.decoding.drafters.block import BlockDrafter
from specdec_plugins.decoding.loading import UnsupportedModel
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.values import Draft, uniform
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.formats.positions import sinusoidal

NORMS = "post-norm", "pre-norm", "learned"
MORE_SHAPES = {
    **SHAPES,
    "encoder prenorm only": {"encoder_normalize_before": True},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "wide encoder": {
        "share_all_embeddings": False,
        "encoder_embed_dim": 24,
        "encoder_attention_heads": 3,
        "encoder_layers": 1,
        "decoder_layers": 3,
    },
    "odd width": {"encoder_embed_dim": 15, "decoder_embed_dim": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "gelu_accurate": {"activation_fn": "gelu_accurate"},
    "gelu_fast": {"activation_fn": "gelu_fast"},
    "learned encoder only": {"encoder_learned_pos": True, "layernorm_embedding": True, "max_source_positions": 40},
}
TINY = {
    "encoder_embed_dim": 48,
    "decoder_embed_dim": 48,
    "encoder_ffn_embed_dim": 20,
    "decoder_ffn_embed_dim": 28,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_source_positions": 50,
    "max_target_positions": 60,
}
ARCHITECTURES = tuple(
    """
    transformer transformer_tiny transformer_iwslt_de_en transformer_wmt_en_de transformer_vaswani_wmt_en_de_big
    transformer_vaswani_wmt_en_fr_big transformer_wmt_en_de_big transformer_wmt_en_de_big_t2t bart_base bart_large mbart_base
    mbart_large mbart_base_wmt20
""".split()
)


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """fairseq computes softmax and gelu in float32 in every model; without that, every difference is an error."""
    import fairseq.modules

    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    monkeypatch.setattr(fairseq.modules, "gelu", torch.nn.functional.gelu)


def make_shaken(seed=0, dtype=torch.float64, **changes):
    model, args = make_verifier(seed=seed, words=WORDS, **changes)
    return shaken(model, seed).to(dtype), args


def make_architecture(arch, **changes):
    """A model of a named architecture and its settings, resolved as the command line would."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    torch.manual_seed(0)
    args = argparse.Namespace(**{**TINY, "arch": arch, "max_source_positions": 50, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    args.dropout = args.attention_dropout = 0.0
    dictionary = make_dictionary(WORDS)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).eval()
    return shaken(model).double(), args


def targets_for(rows, width, seed=0):
    """(B, K) tokens that a decoder could have said before its end."""
    return torch.randint(3, WORDS + 4, (rows, width), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def fairseq_logits(model, source, target):
    """(B, K+1, V) by fairseq's own forward, for a padded source (B, S) and K target tokens a row."""
    inputs = torch.cat([torch.full((len(target), 1), EOS), target], 1)
    return model(source, source.ne(SYMBOLS.pad).sum(1), inputs)[0]


@torch.inference_mode()
def engine_logits(model, source, target):
    """(B, K+1, V) by the verifier, which gets the target as a draft."""
    rows = [[token for token in row if token != SYMBOLS.pad] for row in source.tolist()]
    verifier, prefix = ModelVerifier(model), Prefix()
    state = verifier.start(len(rows))
    verifier.admit(state, Source(rows, SYMBOLS))
    prefix.admit([Request(index, row, 50) for index, row in enumerate(rows)])
    return as_tensor(verifier.score(state, prefix, Draft(target.tolist())).logits())


def assert_same_logits(model, engine, error=1e-9):
    for left, lengths in itertools.product((False, True), ([7], [5, 9, 1, 3], [4, 4])):
        source = make_batch(lengths, words=WORDS + 4, left=left, seed=len(lengths))
        for width in (0, 1, 11):
            target = targets_for(len(lengths), width)
            expected = fairseq_logits(model, source, target)
            found = engine_logits(engine, source, target)
            torch.testing.assert_close(found, expected.to(found.dtype), rtol=error, atol=error)


@pytest.mark.parametrize("shape, single", [*((each, False) for each in MORE_SHAPES), *((each, True) for each in NORMS)])
def test_logits_are_fairseqs(shape, single):
    dtype, error = (torch.float32, 1e-4) if single else (torch.float64, 1e-9)
    model, args = make_shaken(dtype=dtype, **MORE_SHAPES[shape])
    assert_same_logits(model, load((model, args), dtype=dtype)[0], error)


def test_position_tables_are_fairseqs():
    """To the last bits of float32: of a sine, and of an angle, which is up to 1,024."""
    make_verifier()  # so that conftest has kept fairseq's
    from fairseq.modules import SinusoidalPositionalEmbedding

    for rows, width in ((1026, 512), (300, 64), (40, 21)):
        ours, theirs = sinusoidal(rows, width, 1), SinusoidalPositionalEmbedding.theirs(rows, width, 1)
        errors = (torch.from_numpy(ours) - theirs).abs()
        assert errors.max() < 2**-13 and (errors < 2**-22).float().mean() > 0.98, (rows, width)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_named_architectures(arch, tmp_path):
    """From a file, with the settings where fairseq 0.12 puts them; all that an architecture's name implies must arrive."""
    model, args = make_architecture(arch)
    checkpoint.save({"args": None, "cfg": {"model": args, "task": {}}, "model": model.state_dict()}, tmp_path / "model.pt")
    given = fairseq.read(checkpoint.load(tmp_path / "model.pt"), arch)
    spec = given.spec
    assert [side.norms == "before" for side in (spec.encoder, spec.decoder)] == [arch.endswith("t2t")] * 2
    assert (spec.encoder.embedding.scale == 1.0) == arch.startswith("bart")
    assert spec.encoder.feed_forward.activation == ("gelu" if "bart" in arch else "relu")
    assert_same_logits(model, TorchModel(load_pair(given, None, dtype=torch.float64)[0]))


def test_a_classification_head_is_no_part_of_translating():
    model, args = make_architecture("bart_base")
    args.pooler_dropout = 0.0
    model.register_classification_head("topic", num_classes=3)
    assert any(name.startswith("classification_heads.") for name in model.state_dict())
    assert_same_logits(model.double(), load((model.double(), args))[0])


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True, "layernorm_embedding": True, "activation_fn": "gelu"},
        {"share_all_embeddings": False, "decoder_layers": 3, "no_scale_embedding": True},
    ],
    ids=["post-norm", "pre-norm", "learned", "unscaled"],
)
@torch.inference_mode()
def test_drafters_logits_are_the_plugins(form, copy, shape):
    """Rows stand at different lengths; each must draft as if it were alone."""
    fairseq_model = shaken(make_drafter(words=WORDS, src_embedding_copy=copy, **shape))
    args = model_settings(src_embedding_copy=copy, **{"activation_fn": "relu", **shape})
    weights = {**fairseq_model.state_dict(), "block_format": torch.tensor([form])}
    if form == 1:
        del weights["block_format"]
    fairseq_model.load_state_dict(weights.copy(), strict=True)
    given = fairseq.read({"model": weights, "args": args, "cfg": None}, "drafter")
    model = TorchModel(placed(given, torch.float64))
    drafter, sources = BlockDrafter(model), sentences(6, seed=4)
    rng = random.Random(5)
    targets = [[rng.randrange(4, WORDS + 4) for _ in range(length)] for length in (3, 0, 7, 1, 12, 3)]
    state, prefix = standing(drafter, sources, targets)
    for block in (1, 5, 16):
        plan = uniform(len(prefix), block)
        logits = as_tensor(model.read_block(state, prefix, plan.lengths).logits())
        draft = drafter.propose(state, prefix, plan)
        for row, (source, target) in enumerate(zip(sources, targets)):
            expected = drafted(fairseq_model, source, target, block)
            tolerance = 1e-5 if copy else 1e-9  # the plugin's source copy has its softmax in float32
            torch.testing.assert_close(logits[row], expected, rtol=tolerance, atol=tolerance)
            expected[:, SYMBOLS.pad] = -torch.inf
            expected[0, EOS] -= torch.inf if not target else 0
            best = expected.argmax(-1).tolist()
            assert draft.tokens[row] == best[: best.index(EOS) + 1 if EOS in best else block]


def placed(model, dtype):
    """An engine's model in a data type."""
    return Transformer.load(replace(model, tensors=Placement("cpu", dtype)(model.tensors)))


@pytest.mark.parametrize("shape", NORMS)
@torch.inference_mode()
def test_cached_logits_are_uncached_logits(shape):
    """Many turns in which drafts of any length are refused anywhere, rows leave, and others come in their places."""
    fairseq_model, args = make_shaken(**{**SHAPES[shape], "max_target_positions": 300})
    verifier = ModelVerifier(load((fairseq_model, args))[0])
    rng = random.Random(shape)
    capacity, admitted = 6, 0
    state, prefix, committed = verifier.start(capacity), Prefix(), []
    for turn in range(40):
        if len(prefix) < capacity and (not committed or rng.random() < 0.5):
            new = sentences(rng.randrange(1, capacity - len(prefix) + 1), seed=rng.random(), longest=1 + turn // 2)
            verifier.admit(state, Source(new, SYMBOLS))
            prefix.admit([Request(admitted + index, source, 250) for index, source in enumerate(new)])
            committed += [[] for _ in new]
            admitted += len(new)
        draft = targets_for(len(prefix), rng.choice([0, 0, 1, 3, 8, 20]), seed=turn)
        logits = as_tensor(verifier.score(state, prefix, Draft(draft.tolist())).logits())
        said = []
        for row, request in enumerate(prefix.requests):
            target = torch.tensor([committed[row] + draft[row].tolist()], dtype=torch.int64)
            expected = fairseq_logits(fairseq_model, torch.tensor([request.tokens]), target)[0, len(committed[row]) :]
            torch.testing.assert_close(logits[row], expected, rtol=1e-9, atol=1e-9)
            said.append([*draft[row, : rng.randrange(draft.size(1) + 1)].tolist(), rng.randrange(3, WORDS + 4)])
            committed[row] += said[-1]
        commit(prefix, said)
        staying = [row for row in range(len(prefix)) if rng.random() < 0.9]
        rng.shuffle(staying)
        state.select(staying)
        prefix.select(staying)
        committed = [committed[row] for row in staying]
    assert admitted > 15


def old_names(weights):
    """A checkpoint's weights as versions of fairseq before 0.9 named, packed and numbered them."""
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    old = {}
    for name, tensor in weights.items():
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif ".k_proj." in name or ".v_proj." in name or name.endswith("version"):
            continue
        elif name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = tensor
        else:
            for number, norm in enumerate(norms[name.split(".")[0]]):
                name = name.replace(f".{norm}.", f".layer_norms.{number}.")
            old[name] = tensor
    return {**old, "decoder.embed_positions._float_tensor": torch.zeros(1)}


@pytest.mark.parametrize("versions", [{}, {"encoder": 2.0}, {"encoder": 3.0, "decoder": 2.0}, {"encoder": 2.0, "decoder": 3.0}])
@pytest.mark.parametrize("prenorm", [False, True])
def test_checkpoints_of_old_versions(prenorm, versions):
    """As fairseq reads them: other names, and before certain versions no norm after the last layer."""
    changes = {
        "share_all_embeddings": False,
        "share_decoder_input_output_embed": False,
        "encoder_normalize_before": prenorm,
        "decoder_normalize_before": prenorm,
    }
    model, args = make_shaken(**changes)
    weights = old_names(model.state_dict())
    weights.update({f"{side}.version": torch.tensor([number]) for side, number in versions.items()})
    again, _ = make_verifier(seed=9, words=WORDS, **changes)
    again.double().load_state_dict(weights.copy(), strict=False)
    engine, _ = load_pair(fairseq.read({"model": weights, "args": args, "cfg": None}, "old"), None, dtype=torch.float64)
    assert_same_logits(again, TorchModel(engine))
    if prenorm:
        assert (engine.encoder.norm is None) == (versions.get("encoder", 1) < 2)
        assert (engine.decoder.norm is None) == (versions.get("decoder", 1) < 3)


def shared_encoder(verifier, **changes):
    """A drafter in plugin form whose encoder, and all that it has in common with the verifier's, is the verifier's."""
    drafter = make_drafter(seed=8, words=WORDS, **changes)
    drafter = shaken(drafter, seed=8).double()
    own = drafter.state_dict()
    for name, tensor in verifier.state_dict().items():
        if name.startswith("encoder.") and name in own and own[name].shape == tensor.shape:
            own[name].copy_(tensor)
    return drafter, argparse.Namespace(**{**vars(model_settings(**changes)), "activation_fn": "relu", **changes})


def test_an_equal_encoder_is_held_once_and_run_once(monkeypatch):
    verifier, args = make_shaken()
    model, drafter = load((verifier, args), shared_encoder(verifier))
    one, other = model.transformer, drafter.transformer
    assert other.encoder is one.encoder
    assert other.decoder.embedding.tokens.data_ptr() == one.encoder.embedding.tokens.data_ptr()
    assert other.decoder.embedding.tokens.data_ptr() == one.decoder.projection.data_ptr()
    calls = []
    plain = transformer.Encoder.__call__
    monkeypatch.setattr(transformer.Encoder, "__call__", lambda self, *batch: calls.append(self) or plain(self, *batch))
    decode(ModelVerifier(model), BlockDrafter(drafter), sentences(7, seed=1), [9] * 7, 4, 7)
    assert len(calls) == 1


OTHER_ENCODERS = {
    "one weight": ({}, {}),
    "fewer layers": ({}, {"encoder_layers": 1}),
    "more layers": ({}, {"encoder_layers": 3}),
    "other heads": ({}, {"encoder_attention_heads": 4}),
    "unscaled": ({}, {"no_scale_embedding": True}),
    "prenorm": ({}, {"encoder_normalize_before": True}),
    "no prenorm": ({"encoder_normalize_before": True}, {}),
    "other activation": ({}, {"activation_fn": "gelu"}),
    "embedding norm": ({}, {"layernorm_embedding": True}),
    "no embedding norm": ({"layernorm_embedding": True}, {}),
    "learned positions": ({}, {"encoder_learned_pos": True}),
    "no learned positions": ({"encoder_learned_pos": True}, {}),
}


@pytest.mark.parametrize("case", OTHER_ENCODERS)
@torch.inference_mode()
def test_another_encoder_is_run_itself(case):
    """Weights and settings that agree as far as both have them do not make two encoders the same function."""
    verifiers, drafters = OTHER_ENCODERS[case]
    verifier, args = make_shaken(**verifiers)
    drafter, drafter_args = shared_encoder(verifier, **drafters)
    if case == "one weight":
        drafter.encoder.layers[1].fc2.bias[3] += 0.5
    model, loaded = (each.transformer for each in load((verifier, args), (drafter, drafter_args)))
    assert loaded.encoder is not model.encoder
    source = Source(sentences(5, seed=2), SYMBOLS)
    for fairseq_model, engine in ((verifier, model), (drafter, loaded)):
        lengths = torch.tensor(source.sizes)
        expected = fairseq_model.encoder(source_tokens(source), src_lengths=lengths)["encoder_out"][0].transpose(0, 1)
        found = source.made_by(engine.encoder)
        for row, length in enumerate(source.sizes):
            torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=1e-9, atol=1e-9)


def test_unsupported_settings_are_refused_together():
    model, args = make_shaken()
    changes = {
        "arch": "lightconv",
        "adaptive_input": True,
        "adaptive_softmax_cutoff": "100,200",
        "cross_self_attention": True,
        "no_cross_attention": True,
        "no_token_positional_embeddings": True,
        "quant_noise_pq": 0.1,
        "scale_attn": True,
        "scale_fc": True,
        "scale_heads": True,
        "scale_resids": True,
        "activation_fn": "tanh",
        "decoder_output_dim": 8,
        "decoder_input_dim": 9,
        "encoder_attention_heads": None,
    }
    with pytest.raises(CheckpointError, match=r"^mine: the engine does not support") as caught:
        engine_model(model, argparse.Namespace(**{**vars(args), **changes}), "mine")
    for setting, value in changes.items():
        named = str(caught.value)
        assert f"--{setting.replace('_', '-')} {value}" in named or f"'{value}'" in named or f"'{setting}'" in named


@pytest.mark.parametrize("arch", ["transformer_lm", "lstm", "nonautoregressive_transformer", ""])
def test_other_architectures_are_refused(arch):
    model, args = make_shaken()
    with pytest.raises(CheckpointError, match=f"architecture '{arch}'; available: transformer, bart, mbart, block"):
        engine_model(model, argparse.Namespace(**{**vars(args), "arch": arch}))


def test_a_drafter_of_a_later_format_is_refused():
    drafter = make_drafter()
    weights = {**drafter.state_dict(), "block_format": torch.tensor([3])}
    with pytest.raises(CheckpointError, match="format 3; this version reads formats 1 and 2"):
        fairseq.read({"model": weights, "args": model_settings(), "cfg": None}, "drafter")


def test_foreign_and_missing_weights_are_refused_together():
    model, args = make_shaken()
    given = engine_model(model, args)
    absent = [
        "decoder.layers.1.fc1.weight",
        "encoder.layers.0.final_layer_norm.bias",
        "decoder.layers.0.encoder_attn.k_proj.weight",
    ]
    weights = {name: tensor for name, tensor in given.tensors.items() if name not in absent}
    weights |= {"decoder.alien.weight": torch.ones(2), "encoder.layers.0.scale": torch.ones(1)}
    weights["encoder.layers.1.fc2.bias"] = torch.ones(7)
    faults = [*absent, "decoder.alien.weight", "encoder.layers.0.scale", "encoder.layers.1.fc2.bias (7,), not (16,)"]
    with pytest.raises(UnsupportedModel) as caught:
        load_pair(replace(given, tensors=weights), None)
    assert all(name in str(caught.value) for name in faults)
    with pytest.raises(CheckpointError) as caught:
        fairseq.read({"model": {**weights, "decoder.layers.1.fc1.weight": torch.ones(1)}, "args": args, "cfg": None}, "mine.pt")
    assert str(caught.value).startswith("mine.pt: ") and all(name in str(caught.value) for name in faults if name != absent[0])
    drafter = engine_model(make_drafter(), model_settings())
    del drafter.tensors["encoder.layers.0.fc1.weight"]
    with pytest.raises(UnsupportedModel, match=r"encoder\.layers\.0\.fc1\.weight"):
        load_pair(given, drafter)


def test_no_weight_can_be_missing_unnoticed():
    model, args = make_shaken(**SHAPES["pre-norm"])
    given = engine_model(model, args)
    for absent in given.tensors:
        others = {name: tensor for name, tensor in given.tensors.items() if name != absent}
        with pytest.raises(UnsupportedModel, match=f"missing weights.*{absent}"):
            load_pair(replace(given, tensors=others), None)


@torch.inference_mode()
def test_bfloat16_runs():
    verifier, args = make_shaken(dtype=torch.float32)
    drafter = make_drafter(words=WORDS, dtype=torch.float32)
    model, loaded = load((verifier, args), (drafter, model_settings(activation_fn="relu")), dtype=torch.bfloat16)
    source = make_batch([5, 9, 1, 3], words=WORDS + 4)
    logits = engine_logits(model, source, targets_for(4, 6))
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
    # Three digits a number, and a few layers: near enough that nothing is misplaced.
    torch.testing.assert_close(logits.float(), fairseq_logits(verifier, source, targets_for(4, 6)), rtol=0.1, atol=0.3)
    hypotheses, _ = decode(ModelVerifier(model), BlockDrafter(loaded), sentences(7, seed=1), [9] * 7, 4, 3)
    assert all(torch.tensor(hypothesis.token_scores).isfinite().all() for hypothesis in hypotheses)


def test_cache_is_addressed_by_row_and_position():
    cache = KVCache(layers=2, width=4, like=torch.zeros(1, dtype=torch.float64))
    cache.reserve(3, 2)
    entries = torch.arange(16.0, dtype=torch.float64).view(2, 2, 4)
    cache.write(1, torch.tensor([[0], [1]]), torch.tensor([[0, 1], [1, 0]]), entries)
    found = cache.read(1, 2, 2)
    assert torch.equal(found[0], entries[0]) and torch.equal(found[1], entries[1, [1, 0]])
    assert not cache.read(0, 3, 2).any() and not cache.data[1, 2].any()

    cache.reserve(1, 1)  # growing keeps what is there, and asking for less takes nothing away
    cache.reserve(5, 7)
    assert cache.data.size(1) >= 5 and cache.data.size(2) >= 7 and torch.equal(cache.read(1, 2, 2)[0], entries[0])
    assert not cache.data[:, :, 2:].any()

    more = torch.tensor([[[1.0] * 4], [[2.0] * 4], [[3.0] * 4]], dtype=torch.float64)
    cache.write(1, torch.arange(3)[:, None], torch.tensor([[5], [5], [5]]), more)
    cache.copy([(2, 0, 6)])
    assert cache.read(1, 2, 6)[:, 5, 0].tolist() == [3.0, 2.0]
    cache.copy([(1, 0, 6), (0, 1, 6)])
    assert cache.read(1, 2, 6)[:, 5, 0].tolist() == [2.0, 3.0]
    assert torch.equal(cache.read(1, 2, 2)[0], entries[1, [1, 0]])
    cache.copy([(0, 1, 1), (0, 2, 0)])  # the first positions, and none
    assert cache.read(1, 3, 6)[1:, 5, 0].tolist() == [3.0, 3.0] and torch.equal(cache.read(1, 2, 1)[1], entries[1, 1:])


def test_sources_are_encoded_when_they_are_read():
    """Rows come, move, are duplicated and leave before they are read; each ends with the entries of its own source."""
    for kind in (DenseState, SlottedState):
        calls = []

        def remember(source, numbers, cache, slots, calls=calls):
            calls.append(source)
            width = max(source.sizes)
            values = torch.tensor([float(source.sentences[number][0]) for number in numbers])
            cache.put(slots, values[None, :, None, None].expand(1, len(numbers), width, 1))

        like = torch.zeros(1)
        state = kind(KVCache(1, 1, like), Sources(KVCache(1, 1, like), remember))

        def first(state=state):
            state.encode()
            return state.sources.cache.data[0, state.sources.slots, 0, 0].tolist()

        state.admit(Source([[10, EOS], [11, EOS], [12, EOS]], SYMBOLS))
        state.admit(Source([[20, EOS]], SYMBOLS))
        state.select([3, 1])
        state.admit(Source([[30], [31, EOS]], SYMBOLS))
        assert not calls
        assert first() == [20, 11, 30, 31] and len(calls) == 3 and state.sources.lengths == [2, 2, 1, 2]
        state.select([3, 1, 3])
        state.admit(Source([[40, EOS]], SYMBOLS))
        state.select([3, 0, 3, 2])
        assert first() == [40, 31, 40, 31] and state.sources.lengths == [2, 2, 2, 2] and len(calls) == 4
        state.select([])
        assert first() == [] and state.held == []


def test_the_mask_of_sources_hides_padding():
    state = DenseState(KVCache(1, 1, torch.zeros(1)), Sources(KVCache(1, 1, torch.zeros(1)), None))
    state.admit(Source([[5, 6, EOS], [7, 8, EOS]], SYMBOLS))
    assert state.source_mask is None
    state.admit(Source([[5, 6, 7, 8, EOS]], SYMBOLS))
    assert state.source_mask.squeeze().tolist() == [[0, 0, 0, -torch.inf, -torch.inf]] * 2 + [[0] * 5]
    state.select([2])
    assert state.source_mask is None


def test_a_slotted_row_keeps_its_slot_and_siblings_share_a_source():
    state = SlottedState(KVCache(1, 1, torch.zeros(1)), Sources(KVCache(1, 1, torch.zeros(1)), lambda *_: None))
    state.admit(Source([[5, EOS]] * 4, SYMBOLS))
    state.select([3, 1])
    assert state.slots == state.sources.slots == [3, 1]
    state.select([0, 1, 0])
    assert state.slots == [3, 1, 0] and state.sources.slots == [3, 1, 3]
    state.select([2])  # the first sibling leaves, the source stays
    assert state.slots == [0] and state.sources.slots == [3]
    state.admit(Source([[5, EOS]] * 4, SYMBOLS))
    assert state.slots == [0, 1, 2, 3, 4] and state.sources.slots == [3, 0, 1, 2, 4]
