"""A model of T5's parts for CTranslate2, made from its spec and tensors: no checkpoint of another library's between them."""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec_plugins.decoding.backends.cpu.arguments import floats
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import SideSpec


def ctranslate2_t5_of(model: Model, symbols: Sequence[str], dtype: str, threads: int) -> Any:
    """CTranslate2's translator. Weights of all layers are apart, as those of a trained model are: it stores equal ones once."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        spec = spec_of(model, symbols, dtype)
        spec.save(folder)
        del spec
        return ctranslate2.Translator(folder, compute_type=dtype, inter_threads=1, intra_threads=threads)


def spec_of(model: Model, symbols: Sequence[str], dtype: str) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    encoder, decoder = model.spec.encoder, model.spec.decoder
    spec = transformer_spec.TransformerSpec.from_config(
        (encoder.layers, decoder.layers),
        decoder.attention.heads,
        pre_norm=True,
        activation=common_spec.Activation.GELUTanh,
        ffn_glu=True,
        relative_attention_bias=True,
        rms_norm=True,
    )
    unlike = np.random.default_rng(1)
    stored = np.float32 if dtype == "float32" else np.float16

    def weight(*names: str) -> np.ndarray:
        rows = [floats(array(model.tensors[f"{name}.weight"])) for name in names]
        rows[0] = np.concatenate([rows[0][:1] * (1 + unlike.random(dtype=np.float32) / 64), rows[0][1:]])
        return np.concatenate(rows).astype(stored)

    def fill(name: str, side: SideSpec, stack: Any) -> None:
        stack.scale_embeddings = False
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight, stack.layer_norm.gamma = weight(f"{name}.embed_tokens"), weight(f"{name}.layer_norm")
        assert side.attention.relative is not None, "T5's parts"
        for number, layer in enumerate(stack.layer):
            own, attention, fed = f"{name}.layers.{number}", layer.self_attention, layer.ffn
            attention.queries_scale = 1.0
            attention.linear[0].weight = weight(*(f"{own}.self_attn.{part}_proj" for part in "qkv"))
            attention.linear[-1].weight = weight(f"{own}.self_attn.out_proj")
            attention.layer_norm.gamma = weight(f"{own}.self_attn_layer_norm")
            attention.relative_attention_bias = weight(f"{own}.self_attn.relative")
            attention.relative_attention_max_distance = np.int32(side.attention.relative.distance)
            if name == "decoder":
                cross = layer.attention
                cross.queries_scale = 1.0
                cross.linear[0].weight = weight(f"{own}.encoder_attn.q_proj")
                cross.linear[1].weight = weight(*(f"{own}.encoder_attn.{part}_proj" for part in "kv"))
                cross.linear[-1].weight = weight(f"{own}.encoder_attn.out_proj")
                cross.layer_norm.gamma = weight(f"{own}.encoder_attn_layer_norm")
            fed.linear_0.weight, fed.linear_0_noact.weight = weight(f"{own}.fc1"), weight(f"{own}.gate")
            fed.linear_1.weight, fed.layer_norm.gamma = weight(f"{own}.fc2"), weight(f"{own}.final_layer_norm")

    fill("encoder", encoder, spec.encoder)
    fill("decoder", decoder, spec.decoder)
    spec.decoder.projection.weight = weight("decoder.output_projection")
    spec.register_source_vocabulary([*symbols])
    spec.register_target_vocabulary([*symbols])
    names = {role: symbols[getattr(model.spec.symbols, role)] for role in ("eos", "start")}
    spec.config.bos_token = spec.config.decoder_start_token = names["start"]
    spec.config.eos_token, spec.config.unk_token = names["eos"], symbols[model.spec.symbols.mask]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=dtype if dtype == "int8" else None)
    return spec
