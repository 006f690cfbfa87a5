"""T5Gemma 2: its config, the embedding beside its table, its attention to the source; hostile folders. `test_huggingface.py`
compares logits and outputs with transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import transformers
from safetensors.torch import load_file
from test_huggingface import CASES, SCALED, SIZE, changed, padded, refused, renamed, saved, within

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu import model as kernels
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.loading import checked
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import Want
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.huggingface import read_model
from specdec_plugins.model.spec import Heads, Local, Rotary

pytest.importorskip("transformers", reason="compares with transformers")


def text_within(**values):
    """Of T5Gemma 2's encoder."""

    def change(folder):
        path = folder / "config.json"
        content = json.loads(path.read_text())
        content["encoder"]["text_config"] |= values
        path.write_text(json.dumps(content))

    return change


def rope(kind, **values):
    return within("decoder", rope_parameters={kind: values})


EOI = "model.encoder.embed_tokens.eoi_embedding"
HOSTILE_GEMMA2 = [
    (changed("config.json", encoder=None), "config.json: no 'encoder' with its sizes"),
    (within("encoder", text_config=None), "config.json: no 'text_config' with its sizes"),
    (within("encoder", eoi_token_index=-1), "eoi_token_index is -1, not a whole number from 0"),
    (text_within(sliding_window=0), "sliding_window is 0, not a whole number from 1"),
    (text_within(sliding_window_pattern="x"), "sliding_window_pattern is 'x', not a whole number"),
    (text_within(num_hidden_layers=3), "for each of 3 layers"),
    (text_within(num_hidden_layers=10**9, layer_types=None), "more than 1,000 layers"),
    (text_within(hidden_size=64), "merged attention of width 32 to a source of width 64"),
    (text_within(head_dim=None), "config.json: no 'head_dim'"),
    (text_within(layer_types=["chunked_attention"] * 2), "is not supported; only full_attention and sliding_attention"),
    (rope("full_attention", rope_type="yarn"), "rope_type 'yarn' is not supported; only default and linear"),
    (rope("full_attention", rope_type="linear"), "rotary positions with a factor of 0.0"),
    (rope("sliding_attention", rope_type="linear", factor=-2), "rotary positions with a factor of -2.0"),
    (rope("sliding_attention", rope_theta=0.5), "rotary positions with a theta of 0.5"),
    (rope("full_attention", beta=1), "only a rope_type, a rope_theta and a factor for each of full_attention"),
    (rope("chunked_attention", rope_theta=9), "only a rope_type, a rope_theta and a factor for each of full_attention"),
    (within("decoder", rope_parameters=[1]), "only a rope_type, a rope_theta and a factor for each of full_attention"),
    (within("decoder", vocab_size=SIZE + 1), f"decoder.embed_tokens.weight has {SIZE} tokens, not the config's {SIZE + 1}"),
    (renamed(EOI, "x"), "missing weights: encoder.embed_tokens.eoi_embedding"),
    (renamed("model.decoder.layers.0.self_attn.q_norm.weight", "x"), "missing weights: decoder.layers.0.self_attn.q_norm"),
    (renamed("model.decoder.norm.weight", "model.decoder.layers.0.cross_attn.q_proj.weight"), "weights without a place here"),
]


@pytest.fixture(scope="module")
def small_gemma2(tmp_path_factory):
    return saved(tmp_path_factory, *CASES["t5gemma2"])


@pytest.mark.parametrize(("change", "message"), HOSTILE_GEMMA2, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_hostile_t5gemma2_is_refused_in_one_line(small_gemma2, tmp_path, change, message):
    refused(small_gemma2, tmp_path / "folder", change, message)


def test_what_configs_of_t5gemma2_say(small_gemma2, tmp_path):
    """Rotary positions as versions 4 and 5 write them, a pattern of windows, and limits."""
    read, folder = (lambda folder: read_model(folder)[0].spec), tmp_path / "folder"
    shutil.copytree(small_gemma2, folder)
    spec = read(folder)
    assert spec.encoder.local == Local((0,), 5, 5, Rotary(10_000.0)) and spec.encoder.attention.rotary == Rotary(1_000_000.0)
    assert spec.decoder.local == Local((0,), 7, 0, Rotary(10_000.0)) and spec.decoder.attention.merged
    assert (spec.decoder.attention.cap, spec.decoder.max_positions) == (None, 200)
    old = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 5.0, "rope_local_base_freq": 7.0}
    within("decoder", rope_parameters=None, max_position_embeddings=131_072, **old)(folder)
    text_within(layer_types=None, sliding_window_pattern=2, sliding_window=9, rope_parameters={"full_attention": SCALED})(folder)
    spec = read(folder)
    assert spec.decoder.attention.rotary == Rotary(5.0, 8.0) and spec.decoder.local.rotary == Rotary(7.0)
    assert spec.encoder.attention.rotary == Rotary(500.0, 8.0) and spec.encoder.local == Local((0,), 5, 4, Rotary())
    assert spec.decoder.max_positions == 8_192


def test_the_token_that_ends_an_image_has_its_own_embedding(small_gemma2, tmp_path):
    """Beside the table, which the output projection keeps; where the vocabulary lacks the token, nothing changes."""
    shutil.copytree(small_gemma2, tmp_path / "folder")
    tensors, stored = read_model(tmp_path / "folder")[0].tensors, load_file(tmp_path / "folder/model.safetensors")
    table, output = tensors["decoder.embed_tokens.weight"], tensors["decoder.output_projection.weight"]
    assert table is tensors["encoder.embed_tokens.weight"]
    assert [*(table != output).any(1).nonzero()[0]] == [20]
    assert np.allclose(table[20] * np.float32(32**0.5), stored[EOI], rtol=1e-12)
    within("encoder", eoi_token_index=SIZE)(tmp_path / "folder")
    tensors = read_model(tmp_path / "folder")[0].tensors
    assert tensors["decoder.embed_tokens.weight"] is tensors["decoder.output_projection.weight"]


def test_merged_attention_to_the_source(small_gemma2):
    """Of each head, as transformers returns it, on both backends."""
    ours, model = read_model(small_gemma2)[0], transformers().T5Gemma2ForConditionalGeneration.from_pretrained(small_gemma2)
    model = model.double().eval()
    model.set_attn_implementation("eager")
    sources, targets = [[5, 6, 7, 8, 9, 10, 11], [12, 20, 14]], [[2, 30, 31, 32, 33], [2, 34, 35, 36, 37]]
    with torch.no_grad():
        wanted = model(**padded(sources, 0), decoder_input_ids=torch.tensor(targets), output_attentions=True).cross_attentions
    models = [TorchModel(load_pair(ours, None, dtype=torch.float64)[0])]
    models += [kernels.load(*checked(ours, None), "float32", 1)[0]] if compiled.library() else []
    for each, close in zip(models, (1e-7, 1e-4)):
        verifier = ModelVerifier(each)
        for heads in (Heads(0, (1,)), Heads(1, (0, 3))):
            state = verifier.start(2)
            verifier.admit(state, Source(sources, ours.spec.symbols))
            found = tensor(each.read(state, Reading(targets, [0, 0], want=Want(attention=True, heads=heads))).attention())
            for row, source in enumerate(sources):
                whole = sum(wanted[heads.layer][row, head, :, : len(source)] for head in heads.heads)
                assert (found[row, :, : len(source)] - whole).abs().max() < close
