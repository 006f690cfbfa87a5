"""A verifier in Marian: the same weights under its names, and a vocabulary whose tokens are the ids."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import Model

SPECIAL = ("</s>", "<unk>")
BANNED = -1e9  # bias of the tokens that may not be written
CONFIG = """type: transformer
version: v1.12
dim-emb: {width}
dim-vocabs: [{size}, {size}]
enc-depth: {encoder_layers}
dec-depth: {decoder_layers}
transformer-heads: {heads}
transformer-dim-ffn: {inner}
transformer-ffn-activation: {activation}
transformer-decoder-autoreg: self-attention
transformer-preprocess: ""
transformer-postprocess: dan
transformer-postprocess-emb: d
tied-embeddings-all: true
"""


def marian_of(
    model: Model, dtype: str, threads: int, banned: tuple[int, ...] = (), factor: float = 8, kernels: str | None = None
) -> Callable[[list[list[int]], int], list[list[int]]]:
    """Greedy decoding by Marian, in float32 or with its own 8-bit products. Sources end with eos, outputs do not.

    Outputs have at most ``factor`` times their source's tokens. ``banned`` tokens are never written, eos among them.
    ``kernels``: see `limit_peers`.
    """
    from pymarian import Translator

    with tempfile.TemporaryDirectory() as folder:
        write(model, Path(folder), banned)
        packed = "packed8avx2" if kernels == "avx2" else "packed8"
        products = "" if dtype == "float32" else f" --optimize --gemm-type {packed}"
        translator = Translator(
            f"-m {folder}/model.npz -v {folder}/vocab.yml {folder}/vocab.yml --cpu-threads {threads} -b 1 --normalize 0 "
            f"--skip-cost --mini-batch 64 --maxi-batch 1 --max-length-factor {factor} --workspace 512 --quiet{products}"
        )
    named = {name: token for token, name in enumerate(SPECIAL)}

    def decode(sources: list[list[int]], batch_size: int) -> list[list[int]]:
        lines = [
            line
            for at in range(0, len(sources), batch_size)
            for line in translator.translate([" ".join(map(str, source[:-1])) for source in sources[at : at + batch_size]])
        ]
        return [[named[word] if word in named else int(word) for word in line.split()] for line in lines]

    return decode


def write(model: Model, folder: Path, banned: tuple[int, ...]) -> None:
    """Write ``model.npz`` and ``vocab.yml``. The model is post-norm with sinusoids and one table of embeddings.

    Its token 0 is Marian's eos, and token 1 is unknown.
    """
    spec, tensors = model.spec, {name: array(each).astype(np.float32) for name, each in model.tensors.items()}
    arrays: dict[str, np.ndarray] = {}

    def put(name: str, tensor: np.ndarray) -> None:
        arrays[name] = tensor.T.copy() if tensor.ndim == 2 else tensor[None]

    for side, layers in (("encoder", spec.encoder.layers), ("decoder", spec.decoder.layers)):
        for layer in range(layers):
            ours, theirs = f"{side}.layers.{layer}", f"{side}_l{layer + 1}"
            for attention, name in (("self_attn", "self"), ("encoder_attn", "context"))[: 1 if side == "encoder" else 2]:
                for projection in "qkvo":
                    full = "out_proj" if projection == "o" else f"{projection}_proj"
                    put(f"{theirs}_{name}_W{projection}", tensors[f"{ours}.{attention}.{full}.weight"])
                    put(f"{theirs}_{name}_b{projection}", tensors[f"{ours}.{attention}.{full}.bias"])
                put(f"{theirs}_{name}_Wo_ln_scale", tensors[f"{ours}.{attention}_layer_norm.weight"])
                put(f"{theirs}_{name}_Wo_ln_bias", tensors[f"{ours}.{attention}_layer_norm.bias"])
            for number in (1, 2):
                put(f"{theirs}_ffn_W{number}", tensors[f"{ours}.fc{number}.weight"])
                put(f"{theirs}_ffn_b{number}", tensors[f"{ours}.fc{number}.bias"])
            put(f"{theirs}_ffn_ffn_ln_scale", tensors[f"{ours}.final_layer_norm.weight"])
            put(f"{theirs}_ffn_ffn_ln_bias", tensors[f"{ours}.final_layer_norm.bias"])
    arrays["Wemb"] = tensors["encoder.embed_tokens.weight"]
    size, width = arrays["Wemb"].shape
    given = tensors.get("decoder.output_projection.bias")
    bias = arrays["decoder_ff_logit_out_b"] = np.zeros((1, size), np.float32) if given is None else given[None].copy()
    bias[0, [*spec.suppressed, *banned]] = BANNED
    config = CONFIG.format(
        width=width,
        size=size,
        encoder_layers=spec.encoder.layers,
        decoder_layers=spec.decoder.layers,
        heads=spec.encoder.attention.heads,
        inner=spec.encoder.feed_forward.width,
        activation=spec.encoder.feed_forward.activation,
    )
    arrays["special:model.yml"] = np.frombuffer(config.encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **arrays)  # type: ignore[arg-type]
    names = [*SPECIAL, *map(str, range(len(SPECIAL), size))]
    (folder / "vocab.yml").write_text("".join(f"{name}: {token}\n" for token, name in enumerate(names)), "utf-8")
