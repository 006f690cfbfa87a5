"""An oracle that computes a `Model` straight from its specification: one sentence, no cache, no batch, in float64."""

import math

import torch
from torch import Tensor

from specdec_plugins.formats.spec import Model, ModelSpec, shapes

ACTIVATIONS = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "swish": lambda x: x / (1 + torch.exp(-x)),
}


def random_model(spec: ModelSpec, source_size: int, target_size: int, seed: int = 0, spare: int = 2) -> Model:
    """A model whose every tensor matters; its position tables have ``spare`` more rows than they need."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(spec, source_size, target_size).items():
        if name.endswith("embed_positions.weight"):
            shape = (shape[0] + spare, shape[1])
        scale = 0.5 if len(shape) == 1 else 1 / math.sqrt(shape[1])
        tensor = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        tensors[name] = tensor + ("norm" in name and name.endswith("weight"))
    return Model(spec, tensors)


def logits(model: Model, source: list[int], target: list[int]) -> Tensor:
    """(n + 1, V) after the start token and each of n target tokens."""
    spec, tensors = model.spec, {name: tensor.double() for name, tensor in model.tensors.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        y = torch.stack([(tensors[f"{name}.weight"] * row).sum(1) for row in x])
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(1, keepdim=True) + 1e-5)
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def attend(name: str, x: Tensor, memory: Tensor, heads: int, causal: bool) -> Tensor:
        q, k, v = linear(f"{name}.q_proj", x), linear(f"{name}.k_proj", memory), linear(f"{name}.v_proj", memory)
        size, rows = q.size(1) // heads, []
        for position in range(len(q)):
            parts = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                seen = position + 1 if causal else len(k)
                weights = (k[:seen, part] @ q[position, part] / math.sqrt(size)).softmax(0)
                parts.append(weights @ v[:seen, part])
            rows.append(torch.cat(parts))
        return linear(f"{name}.out_proj", torch.stack(rows))

    def stack(name: str, tokens: list[int], memory: Tensor | None) -> Tensor:
        side = getattr(spec, name)
        x = tensors[f"{name}.embed_tokens.weight"][tokens] * side.embedding_scale
        if name == "decoder" and spec.zero_start:
            x[0] = 0
        x = x + tensors[f"{name}.embed_positions.weight"][side.position_offset :][: len(tokens)]
        x = norm(f"{name}.layernorm_embedding", x) if side.embedding_norm else x

        def around(norm_name: str, x: Tensor, part) -> Tensor:
            return x + part(norm(norm_name, x)) if side.prenorm else norm(norm_name, x + part(x))

        for index in range(side.layers):
            layer = f"{name}.layers.{index}"

            def look(y: Tensor, layer: str = layer) -> Tensor:
                return attend(f"{layer}.self_attn", y, y, side.heads, causal=name == "decoder")

            def cross(y: Tensor, layer: str = layer) -> Tensor:
                return attend(f"{layer}.encoder_attn", y, memory, side.heads, causal=False)

            def feed(y: Tensor, layer: str = layer) -> Tensor:
                return linear(f"{layer}.fc2", ACTIVATIONS[spec.activation](linear(f"{layer}.fc1", y)))

            x = around(f"{layer}.self_attn_layer_norm", x, look)
            x = x if memory is None else around(f"{layer}.encoder_attn_layer_norm", x, cross)
            x = around(f"{layer}.final_layer_norm", x, feed)
        return norm(f"{name}.layer_norm", x) if side.final_norm else x

    encoded = stack("encoder", source, None)
    return linear("decoder.output_projection", stack("decoder", [spec.symbols.start, *target], encoded))


def repeating(output: list[int], size: int) -> set[int]:
    """The tokens, eos apart, after which an output would have one of its n-grams twice; none if ``size`` is 0."""
    ngrams = {tuple(output[start : start + size]) for start in range(len(output) - size + 1)} if size else set()
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == tuple(output[len(output) - size + 1 :])} - {2}
