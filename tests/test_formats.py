"""The neutral model: its forward against a naive oracle, fairseq's settings into it and back, and the model folder."""

import argparse
import json
import logging
import os
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from conftest import ROOT, edit_json, make_drafter, make_verifier, model_settings
from naive import altered, logits, random_model, side_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu import model as cpu
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.compiled import library
from specdec_plugins.decoding.loading import UnsupportedModel, checked
from specdec_plugins.decoding.requests import Source
from specdec_plugins.formats import fairseq, files
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.formats.description import read_description
from specdec_plugins.formats.folder import Pair, load_folder, save_folder
from specdec_plugins.formats.spec import Model, extended, fingerprint, sinusoidal, sinusoidal_table
from specdec_plugins.formats.to_fairseq import checkpoint_of
from specdec_plugins.model.spec import ModelSpec, Output, Symbols
from specdec_plugins.text.codec import CodecConfig

DEMO = ROOT / "data" / "demo.en-de"
WORDS = 20
SIZE = WORDS + 4
SIDE = side_of(
    layers=2,
    heads=2,
    width=16,
    inner_width=24,
    prenorm=False,
    final_norm=False,
    embedding_norm=False,
    embedding_scale=4.0,
    max_positions=30,
    position_offset=2,
)
PLAIN = ModelSpec(SIDE, SIDE)
PRENORM = altered(SIDE, prenorm=True, final_norm=True)
SPECS = {
    "plain": PLAIN,
    "output bias": altered(PLAIN, output_bias=True),
    "swish": altered(PLAIN, activation="swish"),
    "gelu": altered(PLAIN, activation="gelu"),
    "gelu_tanh": altered(PLAIN, activation="gelu_tanh"),
    "offset 0": altered(PLAIN, encoder=altered(SIDE, position_offset=0), decoder=altered(SIDE, position_offset=0)),
    "two offsets": altered(PLAIN, encoder=altered(SIDE, position_offset=0), decoder=altered(SIDE, position_offset=5)),
    "zero start": altered(PLAIN, zero_start=True),
    "start is pad": altered(PLAIN, symbols=Symbols(start=1)),
    "start is another": altered(PLAIN, symbols=Symbols(start=9), output_bias=True, activation="swish", zero_start=False),
    "two scales": altered(PLAIN, encoder=altered(SIDE, embedding_scale=1.0), decoder=altered(SIDE, embedding_scale=0.7)),
    "pre-norm": altered(PLAIN, encoder=PRENORM, decoder=altered(PRENORM, final_norm=False)),
    "post-norm, final norm": altered(PLAIN, encoder=altered(SIDE, final_norm=True), decoder=altered(SIDE, final_norm=True)),
    "embedding norms": altered(
        PLAIN, encoder=altered(SIDE, embedding_norm=True), decoder=altered(PRENORM, embedding_norm=True), zero_start=True
    ),
    "marian": altered(
        PLAIN,
        encoder=altered(SIDE, position_offset=0),
        decoder=altered(SIDE, position_offset=0, layers=1),
        activation="swish",
        output_bias=True,
        zero_start=True,
        symbols=Symbols(pad=23, eos=0, start=23, mask=1),
    ),
    "other widths": altered(PLAIN, encoder=altered(SIDE, width=24, heads=3, layers=1, inner_width=12)),
}
WIDE = {"width": 64, "heads": 2, "inner_width": 96}


def cases(seed, symbols, rows=4):
    """Sources and targets of different lengths."""
    rng = random.Random(seed)
    return [
        (
            [*(rng.randrange(4, SIZE) for _ in range(rng.randrange(9))), symbols.eos],
            [rng.randrange(4, SIZE) for _ in range(length)],
        )
        for length in rng.sample(range(12), rows)
    ]


def read_twice(model, pairs, start):
    """Each pair's logits, by two passes over a batch: the second reads what the first did not, after its cache."""
    state = model.start(len(pairs))
    state.admit(Source([source for source, _ in pairs], Symbols()))
    texts = [[start, *target] for _, target in pairs]
    halves = [(len(text) + 1) // 2 for text in texts]
    first = tensor(
        model.read(state, Reading([text[:half] for text, half in zip(texts, halves)], [0] * len(texts))).logits()
    ).clone()
    # The first half's last token is read again, so that every row reads something.
    second = tensor(
        model.read(
            state, Reading([text[half - 1 :] for text, half in zip(texts, halves)], [half - 1 for half in halves])
        ).logits()
    )
    return [
        torch.cat([first[row, : half - 1], second[row, : len(text) - half + 1]])
        for row, (text, half) in enumerate(zip(texts, halves))
    ]


@pytest.mark.parametrize("case", SPECS)
@torch.inference_mode()
def test_forward_is_the_specs(case):
    model = random_model(SPECS[case], SIZE, SIZE + 3)
    symbols = model.spec.symbols
    pairs = cases(case, symbols)
    found = read_twice(TorchModel(load_pair(model, None, dtype=torch.float64)[0]), pairs, symbols.start)
    for (source, target), each in zip(pairs, found):
        torch.testing.assert_close(each, logits(model, source, target), rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_all_positions_are_read():
    model = random_model(altered(PLAIN, encoder=altered(SIDE, position_offset=0)), SIZE, SIZE, spare=0)
    source, target = [4] * (SIDE.max_positions - 1) + [2], [5] * (SIDE.max_positions - 1)
    found = read_twice(TorchModel(load_pair(model, None, dtype=torch.float64)[0]), [(source, target)], 2)
    torch.testing.assert_close(found[0], logits(model, source, target), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", SPECS)
@torch.inference_mode()
def test_kernels_compute_the_spec(case):
    spec = SPECS[case]
    spec = replace(spec, encoder=altered(spec.encoder, **WIDE), decoder=altered(spec.decoder, **WIDE))
    model = random_model(spec, SIZE, SIZE + 3)
    if not library():
        pytest.skip("the kernels were not compiled for this machine")
    assert not cpu.obstacles(model)
    pairs = cases(case, spec.symbols)
    found = read_twice(cpu.load(*checked(model, None), "float32", 1)[0], pairs, spec.symbols.start)
    for (source, target), each in zip(pairs, found):
        torch.testing.assert_close(each.double(), logits(model, source, target), rtol=2e-4, atol=2e-4)


def test_what_cannot_be_a_model_is_said_at_once():
    with pytest.raises(ValueError) as caught:
        ModelSpec(
            altered(SIDE, heads=3, activation="tanh"), altered(SIDE, inner_width=0), Output(scale=float("nan")), forced=(-1,)
        )
    named = (
        "'tanh'",
        "encoder: 3 heads",
        "decoder: layers",
        "outputs scaled by nan",
        "special tokens must not be negative",
    )
    assert all(each in str(caught.value) for each in named)
    for change in (
        {"layers": 10**9},
        {"width": 1 << 20, "heads": 1},
        {"max_positions": 10**9},
        {"max_positions": 1 << 19, "width": 1 << 10},
    ):
        with pytest.raises(ValueError, match="decoder: "):
            replace(PLAIN, decoder=altered(SIDE, **change))


# ---- fairseq's checkpoints


def state_of(model, args, **more):
    return {"model": model.state_dict(), "args": args, "cfg": None, **more}


def test_settings_become_a_spec():
    changes = {
        "encoder_learned_pos": True,
        "activation_fn": "gelu_fast",
        "decoder_normalize_before": True,
        "max_source_positions": 40,
        "decoder_layers": 3,
        "layernorm_embedding": True,
    }
    model, args = make_verifier(words=WORDS, **changes)
    found = fairseq.read(state_of(model, args), "x")
    shared = {
        "layers": 2,
        "heads": 2,
        "width": 16,
        "inner_width": 24,
        "embedding_norm": True,
        "embedding_scale": 4.0,
        "activation": "gelu_tanh",
    }
    assert found.spec == ModelSpec(
        side_of(**shared, max_positions=40, position_offset=2),
        side_of(**{**shared, "layers": 3}, prenorm=True, final_norm=True, max_positions=64, position_offset=2),
    )
    assert found.tensors["encoder.embed_positions.weight"].shape == (42, 16)
    assert found.tensors["decoder.embed_positions.weight"] is sinusoidal(66, 16, 1)
    assert found.tensors["decoder.output_projection.weight"] is found.tensors["encoder.embed_tokens.weight"]
    assert not [name for name in found.tensors if "version" in name or "_float_tensor" in name]


def test_settings_of_fairseqs_dataclass():
    """fairseq nests the settings of the two sides where a model has no legacy options."""
    from fairseq.models.transformer import TransformerConfig

    model, args = make_verifier(words=WORDS, decoder_layers=1, encoder_ffn_embed_dim=40)
    config = TransformerConfig.from_namespace(args)
    nested = {**vars(config), "_name": "transformer", "arch": "transformer"}
    for side in ("encoder", "decoder", "quant_noise"):
        nested[side] = {**vars(nested[side]), "_name": "transformer"}  # as fairseq registers its dataclasses
    for settings in (argparse.Namespace(**nested), argparse.Namespace(**{**vars(config), "arch": "transformer"})):
        cfg = {"args": None, "cfg": {"model": settings}}
        assert fairseq.read({**cfg, "model": model.state_dict()}, "x").spec == fairseq.read(state_of(model, args), "x").spec


UNKNOWN = {
    "encoder_alien": 1, "decoder_use_bias": False, "share_everything": True, "no_positions": True, "scale_alien": 0.0,
    "layernorm_alien": "x", "activation_scale": 2, "adaptive_alien": [], "cross_alien": 1, "quant_noise_alien": 0,
    "max_alien_positions": 7, "attention_bias": True, "tie_alien": True, "base_alien": 1,
}  # fmt: skip


def test_unknown_model_options_are_refused_by_name():
    model, args = make_verifier(words=WORDS)
    with pytest.raises(CheckpointError) as caught:
        fairseq.read(state_of(model, argparse.Namespace(**{**vars(args), **UNKNOWN})), "mine.pt")
    for name, value in UNKNOWN.items():
        assert f"the unknown model option --{name.replace('_', '-')} {value}" in str(caught.value)
    fairseq.read(state_of(model, argparse.Namespace(**{**vars(args), **dict.fromkeys(UNKNOWN)})), "mine.pt")


def test_every_option_of_fairseqs_training_is_known():
    """None of fairseq's own options is taken for an unknown one of a model, whatever command line a model was trained with."""
    from fairseq import options, tasks
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES

    arguments = """
        data --arch transformer --criterion label_smoothed_cross_entropy --optimizer adam --lr-scheduler inverse_sqrt
        --task translation
    """.split()
    args = vars(options.parse_args_and_arch(options.get_training_parser(), arguments))
    assert "no_progress_bar" in args and "no_cross_attention" in args
    for arch, complete in ARCH_CONFIG_REGISTRY.items():
        if arch.split("_")[0] in fairseq.ARCHITECTURES and ARCH_MODEL_REGISTRY[arch].__name__ in (
            "TransformerModel",
            "BARTModel",
            "BlockDrafterModel",
            "CausalBlockDrafterModel",
        ):
            parser = argparse.ArgumentParser(conflict_handler="resolve")
            ARCH_MODEL_REGISTRY[arch].add_args(parser)
            settings = argparse.Namespace(arch=arch)
            complete(settings)
            found = {**args, **vars(parser.parse_args([])), **vars(settings), "arch": arch}
            assert not list(fairseq.setting_faults(found)), arch
    classes = [each for registry in REGISTRIES.values() for each in registry["dataclass_registry"].values()]
    for config in filter(None, [*classes, *tasks.TASK_DATACLASS_REGISTRY.values()]):
        names = set(config.__dataclass_fields__) - fairseq.SPEC_SETTINGS - fairseq.NO_MODEL_OPTIONS
        assert not [name for name in names if fairseq.MODEL_OPTION.match(name)], config


def test_a_drafter_says_what_it_is():
    drafter = make_drafter(words=WORDS, arch="block_causal", successor_width=8)
    args = argparse.Namespace(**{**vars(model_settings(arch="block_causal", successor_width=8)), "block_size": 7})
    found = fairseq.read(state_of(drafter, args), "x")
    assert (found.code, found.options, found.block_size, found.verifier) == ("block_causal", {"successor_width": 8}, 7, None)
    weights = {**drafter.state_dict(), "block_verifier": torch.arange(32, dtype=torch.uint8)}
    assert fairseq.read({"model": weights, "args": args}, "x").verifier == bytes(range(32)).hex()
    del weights["decoder.successor.out.weight"]
    with pytest.raises(CheckpointError, match=r"weights that its settings imply are missing: decoder\.successor\.out\.weight"):
        fairseq.read({"model": weights, "args": args}, "x")
    published = fairseq.read(state_of(make_drafter(words=WORDS), model_settings()), "x")
    assert (published.code, published.options, published.block_size) == ("block", {"source_copy": True}, 25)
    tensors = {**published.tensors, "decoder.successor.out.weight": torch.zeros(16, 4)}
    with pytest.raises(UnsupportedModel, match=r"missing weights: decoder\.successor\.from_feature\.weight"):
        load_pair(replace(published, tensors=tensors), None)


WRONG_TYPES = {"encoder_embed_dim": "wide", "encoder_layers": [2], "activation_fn": [1], "encoder": [3]}


@pytest.mark.parametrize("change", WRONG_TYPES)
def test_settings_of_another_type_are_no_traceback(change):
    model, args = make_verifier(words=WORDS)
    with pytest.raises(CheckpointError, match=r"^mine\.pt: "):
        fairseq.read(
            state_of(model, argparse.Namespace(**{**vars(args), change: WRONG_TYPES[change], "arch": "transformer"})), "mine.pt"
        )


ROUND_TRIPS = {
    "plain": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True, "activation_fn": "gelu", "max_target_positions": 30},
    "untied": {"share_all_embeddings": False, "share_decoder_input_output_embed": False, "decoder_layers": 1},
    "unscaled": {"no_scale_embedding": True, "layernorm_embedding": True, "activation_fn": "gelu_accurate"},
}


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_back_to_fairseq(case):
    """fairseq's own generator takes it, and reading it again gives the same model."""
    from specdec_plugins.fairseq_engine import FairseqGenerator

    model, args = make_verifier(words=WORDS, **ROUND_TRIPS[case])
    first = fairseq.read(state_of(model, args), "x")
    again = fairseq.read(checkpoint_of(first), "x")
    assert again.spec == first.spec and again.tensors.keys() == first.tensors.keys()
    assert all(np.array_equal(again.tensors[name], tensor) for name, tensor in first.tensors.items())
    generator = FairseqGenerator(first, "cpu", torch.float32)
    source, target = torch.tensor([[5, 9, 4, 2]]), torch.tensor([[2, 7, 8]])
    with torch.no_grad():
        expected, found = (each(source, torch.tensor([4]), target)[0] for each in (model, generator.model))
    torch.testing.assert_close(found, expected)


def test_what_fairseq_does_not_compute_is_said_at_once():
    spec = replace(SPECS["marian"], encoder=replace(SPECS["two scales"].encoder, final_norm=True), forced=(3,))
    with pytest.raises(ValueError, match="fairseq's Transformer does not compute") as caught:
        checkpoint_of(random_model(spec, SIZE, SIZE))
    named = (
        "swish",
        "output bias",
        "zero embedding",
        "start token",
        "pad and eos as 23 and 0",
        "forced",
        "scaled",
        "positions of the decoder from row 0",
        "the encoder's last layer",
    )
    assert all(each in str(caught.value) for each in named)


# ---- model folders


def dictionary(folder, name, words=WORDS):
    path = folder / name
    path.write_text("".join(f"w{number} 1\n" for number in range(words)))
    return path


@pytest.fixture
def pair(tmp_path):
    """A verifier with everything that fairseq has not, and a causal drafter that shares its encoder."""
    spec = altered(
        PLAIN,
        encoder=replace(SIDE, max_positions=20),
        decoder=replace(SIDE, max_positions=28),
        activation="swish",
        output_bias=True,
        zero_start=True,
        symbols=Symbols(start=9),
        forced=(5,),
        suppressed=(6, 7),
    )
    verifier = random_model(spec, SIZE, SIZE, spare=0)
    tensors = {name: each.float() for name, each in verifier.tensors.items()}
    tensors["encoder.embed_positions.weight"] = tensor(sinusoidal_table(spec.encoder))
    tensors["decoder.embed_tokens.weight"] = tensors["decoder.output_projection.weight"] = tensors["encoder.embed_tokens.weight"]
    verifier = Model(spec, tensors)
    drafter = fairseq.read(
        state_of(
            make_drafter(words=WORDS, dtype=torch.float32, arch="block_causal", successor_width=8),
            model_settings(arch="block_causal", successor_width=8),
        ),
        "x",
    )
    shared = {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.layers.")}
    drafter = replace(drafter, tensors={**drafter.tensors, **shared}, block_size=6, verifier=fingerprint(verifier))
    (tmp_path / "d").mkdir()
    files = {side: dictionary(tmp_path / "d", name) for side, name in (("source", "dict.xa.txt"), ("target", "dict.xb.txt"))}
    return Pair.open(verifier, drafter, CodecConfig("fairseq-bpe", "mine", files, "xa", "xb", {"tokenizer": "moses"}))


def assert_same(found, expected, **tolerance):
    assert found.spec == expected.spec and found.tensors.keys() == expected.tensors.keys()
    for name, each in expected.tensors.items():
        torch.testing.assert_close(
            tensor(found.tensors[name]), tensor(each), **{"rtol": 0, "atol": 0, "check_dtype": False, **tolerance}
        )


def test_a_folder_gives_back_the_pair(pair, tmp_path):
    save_folder(pair, tmp_path / "whole")
    assert len({path.stat().st_mode for path in (tmp_path / "whole").iterdir()}) == 1  # others read the weights, too
    found = load_folder(tmp_path / "whole")
    assert_same(found.verifier, pair.verifier)
    assert_same(found.drafter, pair.drafter)
    for name in ("code", "options", "block_size", "verifier"):
        assert getattr(found.drafter, name) == getattr(pair.drafter, name)
    assert replace(found.config, folder="mine", files=pair.config.files) == pair.config and found.block_size == 6
    assert {role: path.name for role, path in found.config.files.items()} == {"source": "dict.xa.txt", "target": "dict.xb.txt"}
    tensors = found.verifier.tensors
    assert tensors["decoder.output_projection.weight"] is tensors["encoder.embed_tokens.weight"]
    assert found.drafter.tensors["encoder.layers.0.fc1.weight"] is tensors["encoder.layers.0.fc1.weight"]
    with safe_open(tmp_path / "whole" / "drafter.safetensors", "pt") as file:
        assert not {"encoder.layers.0.fc1.weight", "decoder.embed_positions.weight"} & set(file.keys())
    save_folder(replace(pair, drafter=None), tmp_path / "alone")
    assert load_folder(tmp_path / "alone").drafter is None


def test_half_precision_leaves_sinusoidal_tables_alone(pair, tmp_path):
    save_folder(pair, tmp_path / "half", half=True)
    found = load_folder(tmp_path / "half")
    assert_same(found.verifier, pair.verifier, rtol=1e-3, atol=1e-4)
    for model, given in ((found.verifier, pair.verifier), (found.drafter, pair.drafter)):
        name = "encoder.embed_positions.weight"
        assert np.array_equal(model.tensors[name], given.tensors[name])
    learned = found.verifier.tensors["decoder.embed_positions.weight"]
    given = pair.verifier.tensors["decoder.embed_positions.weight"]
    assert learned.dtype == np.float16 and not np.array_equal(learned.astype(np.float32), given)
    assert fingerprint(found.verifier) == fingerprint(pair.verifier) == found.drafter.verifier


def test_the_fingerprint_does_not_depend_on_how_a_stored_table_was_rounded(pair):
    name = "encoder.embed_positions.weight"
    table = pair.verifier.tensors[name]
    mark = fingerprint(pair.verifier)
    for stored, same in ((table * (1 + 2**-22), True), (table.half(), True), (table * 1.001, False)):
        elsewhere = replace(pair.verifier, tensors={**pair.verifier.tensors, name: stored})
        assert (fingerprint(elsewhere) == mark) is same  # a table that is no sinusoidal one is a weight


def test_a_drafter_for_another_verifier_is_warned_of(pair, tmp_path, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING):
        save_folder(pair, tmp_path / "same")
        load_folder(tmp_path / "same")
        save_folder(replace(pair, drafter=replace(pair.drafter, verifier=None)), tmp_path / "unknown")
        load_folder(tmp_path / "unknown")
        assert not caplog.records
        save_folder(replace(pair, drafter=replace(pair.drafter, verifier="0" * 64)), tmp_path / "other")
        monkeypatch.setattr("specdec_plugins.formats.spec.fingerprint", None)  # loading hashes no weights
        load_folder(tmp_path / "same")
        assert load_folder(tmp_path / "other").drafter is not None
    message = f"{tmp_path / 'other'}: the drafter was trained for another verifier: fewer of its tokens will be accepted"
    assert [record.getMessage() for record in caplog.records] == [message]


def heads_of(content):
    return content["verifier"]["spec"]["encoder"]["attention"]


DAMAGES = {
    "unknown key 'alien'": lambda c: c.update(alien=1),
    "unknown key 'verifier.alien'": lambda c: c["verifier"].update(alien=1),
    "unknown key 'verifier.spec.alien'": lambda c: c["verifier"]["spec"].update(alien=1),
    "unknown key 'drafter.spec.decoder.alien'": lambda c: c["drafter"]["spec"]["decoder"].update(alien=1),
    "unknown key 'verifier.spec.symbols.alien'": lambda c: c["verifier"]["spec"]["symbols"].update(alien=1),
    "drafter 'block.*' has no option 'alien'": lambda c: c["drafter"]["options"].update(alien=1),
    "no 'verifier.spec.encoder.attention.heads'": lambda c: heads_of(c).pop("heads"),
    "'verifier.spec.encoder.attention.heads' is '2', not of type int": lambda c: heads_of(c).update(heads="2"),
    "'verifier.spec.output.bias' is 1, not of type bool": lambda c: c["verifier"]["spec"]["output"].update(bias=1),
    "'drafter.block_size' is True, not of type int": lambda c: c["drafter"].update(block_size=True),
    r"'verifier.spec.forced\[0\]' is 1.5, not of type int": lambda c: c["verifier"]["spec"].update(forced=[1.5]),
    "verifier.spec.encoder is not an object": lambda c: c["verifier"]["spec"].update(encoder=[]),
    "verifier.spec: encoder: 5 heads do not divide": lambda c: heads_of(c).update(heads=5),
    "verifier.spec: decoder: more than 1,000 layers": lambda c: c["verifier"]["spec"]["decoder"].update(layers=10**9),
    "unknown tokenizer 'none'": lambda c: c["codec"].update(options={"tokenizer": "none"}),
    "unknown options: alien": lambda c: c["codec"].update(options={"alien": 1}),
    "no codec named 'alien'. Available: fairseq-bpe, byte-level": lambda c: c["codec"].update(name="alien"),
    "codec 'json:dumps' is not a codec": lambda c: c["codec"].update(name="json:dumps"),
    "codec 'alien:Codec': No module named 'alien'": lambda c: c["codec"].update(name="alien:Codec"),
    "codec fairseq-bpe needs the files: target": lambda c: c["codec"]["files"].pop("target"),
    "format 5": lambda c: c.update(format=5),
    "format True": lambda c: c.update(format=True),
    "format None": lambda c: c.pop("format"),
    "is not the name of a file in the folder": lambda c: c["verifier"].update(weights="../verifier.safetensors"),
    "'/etc/passwd' is not the name": lambda c: c["codec"]["files"].update(source="/etc/passwd"),
    "no none.safetensors in it": lambda c: c["drafter"].update(weights="none.safetensors"),
    "'' is not the name of a file": lambda c: c["codec"]["files"].update(target=""),
    "drafter: shared: unknown tensor alien": lambda c: c["drafter"]["shared"].append("alien"),
    "verifier: sinusoidal: unknown tensor alien": lambda c: c["verifier"]["sinusoidal"].append("alien"),
    "verifier: aliases: x for y": lambda c: c["verifier"]["aliases"].update(x="y"),
    "weights without a place here: alien": lambda c: c["verifier"]["aliases"].update(alien="encoder.embed_tokens.weight"),
    "missing weights: encoder.layers.2": lambda c: c["verifier"]["spec"]["encoder"].update(layers=3),
    "the verifier's start token 99 is outside": lambda c: c["verifier"]["spec"]["symbols"].update(start=99),
}


@pytest.mark.parametrize("code", ["mod.evil:drafter", "evil:drafter", "mod:drafter"])
def test_a_folder_brings_no_code(pair, tmp_path, monkeypatch, code):
    """Also where Python looks for modules in the folder, or in the one above it. Code elsewhere is as good as installed."""
    folder = tmp_path / "mod"
    save_folder(replace(pair, drafter=replace(pair.drafter, code=code)), folder)
    for path in (folder / "evil.py", folder / "__init__.py"):
        path.write_text("import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n")
    monkeypatch.syspath_prepend(folder if code.startswith("evil") else tmp_path)
    with pytest.raises(ValueError, match="is code in the folder itself, which is never run"):
        load_folder(folder)
    assert not (folder / "executed").exists()
    (tmp_path / "beside.py").touch()
    edit_json(folder / "model.json", lambda content: content["drafter"].update(code="beside:drafter"))
    monkeypatch.syspath_prepend(tmp_path)
    assert load_folder(folder).drafter.code == "beside:drafter"


@pytest.mark.parametrize("change", [{"attention": 5}, {"attention": {}}, {"prenorm": "both"}, {"prenorm": [1]}, {"heads": {}}])
def test_descriptions_of_format_3_are_read_as_such(tmp_path, change):
    content = json.loads((DEMO / "model.json").read_text())
    content["verifier"]["spec"]["decoder"] |= change
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"model.json: .*verifier.spec.decoder.*{next(iter(change))}"):
        read_description(tmp_path / "model.json")


def test_a_description_is_a_file_of_some_size(tmp_path):
    (tmp_path / "model.json").write_text('{"format": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match=r"model\.json: damaged or not ours"):
        load_folder(tmp_path)
    (tmp_path / "model.json").unlink()
    os.mkfifo(tmp_path / "model.json")
    with pytest.raises(ValueError, match=r"model\.json: not a file"):
        load_folder(tmp_path)


def test_positions_without_end_are_refused_before_they_are_computed(pair):
    with pytest.raises(ValueError, match=r"100,000,00\d positions of width"):
        extended(pair.verifier, 100_000_000)


@pytest.mark.parametrize("size", [0, -5, 100_000])
def test_no_draft_is_so_long(pair, size):
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    with pytest.raises(ValueError, match=r"a block size of .* is not from 1 to 1,024"):
        Translator(replace(pair, drafter=replace(pair.drafter, block_size=size)), Settings(strategy="specdec"))


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_descriptions_are_refused_by_name(pair, tmp_path, message):
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    folder = tmp_path / "folder"
    save_folder(pair, folder)
    edit_json(folder / "model.json", DAMAGES[message])
    with pytest.raises(ValueError, match=message):
        Translator(load_folder(folder), Settings(strategy="specdec"))


def test_all_faults_of_the_weights_are_said_at_once(pair, tmp_path):
    folder = tmp_path / "folder"
    save_folder(pair, folder)
    weights = load_file(folder / "verifier.safetensors")
    del weights["encoder.layers.0.fc1.weight"]
    weights |= {"alien": torch.ones(2), "decoder.layers.1.fc2.bias": torch.ones(3)}
    save_file(weights, folder / "verifier.safetensors")
    with pytest.raises(ValueError, match="verifier: ") as caught:
        load_folder(folder)
    named = ("missing weights: encoder.layers.0.fc1.weight", "place here: alien", "decoder.layers.1.fc2.bias (3,), not (16,)")
    assert all(each in str(caught.value) for each in named) and "\n" not in str(caught.value)
    (folder / "verifier.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match=r"verifier\.safetensors: not a readable safetensors file"):
        load_folder(folder)
    (folder / "model.json").write_text(" " * 2_000_000)
    with pytest.raises(ValueError, match=r"model\.json: larger than 1,000,000 bytes"):
        load_folder(folder)
    (folder / "model.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"model\.json: damaged or not ours"):
        load_folder(folder)


def test_a_folder_of_format_1_becomes_one_of_the_newest(tmp_path):
    """The drafter has its own decoder, and shares the rest with the verifier."""
    old = tmp_path / "old"
    old.mkdir()
    described = {"format": 1, "source_lang": "xa", "target_lang": "xb", "codes": None, "block_size": 6}
    for side in ("source", "target"):
        described[f"{side}_dict"] = dictionary(old, f"dict.{side}.txt").name
    model, args = make_verifier(words=WORDS)
    drafter = make_drafter(words=WORDS, dtype=torch.float32, arch="block_causal", successor_width=8)
    settings = {"verifier": args, "drafter": model_settings(arch="block_causal", successor_width=8)}
    shared = sorted(name for name in model.state_dict() if not name.startswith("decoder.layers."))
    for role, weights, others in (("verifier", model, []), ("drafter", drafter, shared)):
        own = {name: each.contiguous().clone() for name, each in weights.state_dict().items() if name not in others}
        save_file(own, old / f"{role}.safetensors")
        described[role] = {"weights": f"{role}.safetensors", "settings": vars(settings[role]), "aliases": {}, "shared": others}
    (old / "model.json").write_text(json.dumps(described))
    first = load_folder(old)
    save_folder(first, tmp_path / "new")
    second = load_folder(tmp_path / "new")
    assert_same(second.verifier, first.verifier)
    assert_same(second.drafter, first.drafter)
    assert {**asdict(second.drafter), "tensors": None} == {**asdict(first.drafter), "tensors": None}
    assert second.drafter.code == "block_causal" and second.block_size == 6
    edit_json(old / "model.json", lambda c: c["verifier"]["settings"].update(encoder_alien=1))
    with pytest.raises(ValueError, match="verifier: the engine does not support the unknown model option --encoder-alien 1"):
        load_folder(old)


@pytest.mark.parametrize("name", ["demo.en-de", "docs.en-fr", "long.en-de"])
def test_a_pair_that_ships_loads_without_a_warning(name, caplog):
    load_folder(ROOT / "data" / name)
    assert not caplog.messages


def test_a_file_is_on_disk_before_it_takes_anothers_place(tmp_path, monkeypatch):
    """A loss of power right after the exchange would leave an empty file instead of either."""
    done, path = [], tmp_path / "file"
    path.write_text("old")
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (done.append(os.readlink(f"/proc/self/fd/{number}")), sync(number)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append((str(old), str(new))), replace(old, new)))
    files.write(path, "new")
    beside = done[0]
    assert done == [beside, (beside, str(path)), str(tmp_path)] and path.read_text() == "new"
