"""An oracle that computes a `Model` straight from its specification: one sentence, no cache, no batch, in float64."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.arrays import tensors as as_tensors
from specdec_plugins.decoding.drafters import glide
from specdec_plugins.formats.spec import DrafterModel, Model, shapes
from specdec_plugins.model.spec import Attention, FeedForward, ModelSpec, Norm, Rotary, SideSpec

# Parts of a side by names of their own, for tests
PARTS = {
    "heads": ("attention", "heads"),
    "inner_width": ("feed_forward", "width"),
    "embedding_norm": ("embedding", "norm"),
    "embedding_scale": ("embedding", "scale"),
    "position_offset": ("embedding", "offset"),
}


def altered(spec, **changes):
    """`replace` for a `SideSpec` or a `ModelSpec`, with the names of `PARTS`, ``prenorm``, ``activation`` and ``output_bias``."""
    if isinstance(spec, ModelSpec):
        if activation := changes.pop("activation", None):
            sides = {name: changes.get(name, getattr(spec, name)) for name in ("encoder", "decoder")}
            changes |= {name: altered(side, activation=activation) for name, side in sides.items()}
        if "output_bias" in changes:
            changes["output"] = replace(spec.output, bias=changes.pop("output_bias"))
        return replace(spec, **changes)
    if "prenorm" in changes:
        changes["norms"] = "before" if changes.pop("prenorm") else "after"
    for name, (part, field) in {**PARTS, "activation": ("feed_forward", "activation")}.items():
        if name in changes:
            changes[part] = replace(changes.get(part, getattr(spec, part)), **{field: changes.pop(name)})
    return replace(spec, **changes)


def side_of(*, layers, heads, width, inner_width, max_positions, **more) -> SideSpec:
    """A side of usual parts; ``more`` as in `altered`."""
    return altered(SideSpec(layers, width, Attention(heads), FeedForward(inner_width), max_positions), **more)


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


def untrained_glide(model: Model) -> DrafterModel:
    """The drafter `glide` on a model's cache, with the model's last layer for its own, so that some drafts pass."""
    given = as_tensors(model.tensors)
    width, last = glide.shape(model.spec, 1).decoder.feed_forward.width, model.spec.decoder.layers - 1
    tensors = {name: tensor for name, tensor in given.items() if name.startswith("decoder.layer_norm.")}
    for name, tensor in given.items():
        part = name.removeprefix(f"decoder.layers.{last}.").split(".")[0]
        if name.startswith(f"decoder.layers.{last}.") and not glide.hosted(name):
            narrow = tensor[:width] if part in ("fc1", "gate") else tensor[:, :width] if name.endswith("fc2.weight") else tensor
            tensors[name.replace(f"layers.{last}.", "layers.0.")] = narrow.clone()
    return DrafterModel("glide", tensors, None, {"layers": 1}, 4)


def logits(model: Model, source: list[int], target: list[int]) -> Tensor:  # noqa: C901, PLR0915  # one model, in one place
    """(n + 1, V) after the start token and each of n target tokens."""
    spec, tensors = model.spec, {name: tensor.double() for name, tensor in as_tensors(model.tensors).items()}

    def linear(name: str, x: Tensor) -> Tensor:
        y = torch.stack([(tensors[f"{name}.weight"] * row).sum(1) for row in x])
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def norm(name: str, x: Tensor, kind: Norm) -> Tensor:
        centred = x if kind.rms else x - x.mean(1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(1, keepdim=True) + kind.eps) * tensors[f"{name}.weight"]
        return scaled + tensors[f"{name}.bias"] if kind.bias else scaled

    def cap(x: Tensor, most: float | None) -> Tensor:
        return x if most is None else most * torch.tanh(x / most)

    def turned(x: Tensor, position: int, rotary: Rotary) -> Tensor:
        half = len(x) // 2
        rates = 1 / torch.tensor([rotary.theta ** (2 * i / len(x)) for i in range(half)], dtype=torch.float32) / rotary.factor
        angles = (rates * position).double()
        pairs = torch.complex(x[:half], x[half:]) * torch.complex(torch.cos(angles), torch.sin(angles))
        return torch.cat([pairs.real, pairs.imag])

    def bucket(ahead: int, count: int, most: int, both_ways: bool) -> int:
        first = 0
        if both_ways:
            count //= 2
            first = count if ahead > 0 else 0
        far, exact = abs(ahead) if both_ways else max(-ahead, 0), count // 2
        if far >= exact:
            grown = torch.tensor(far / exact).log() / math.log(most / exact) * (count - exact)
            far = min(exact + int(grown), count - 1)
        return first + far

    def attend(
        name: str, x: Tensor, memory: Tensor, side: SideSpec, causal: bool, own: bool, more: Tensor | None = None
    ) -> Tensor:
        """``more``: of merged attention, what is also attended to, without positions."""
        spec, size, index = side.attention, side.head_width, int(name.split(".")[2])
        rotary, local = side.attention.rotary, side.local if side.local and index in side.local.layers else None
        rotary = local.rotary if local and local.rotary else rotary
        k_more, v_more = torch.zeros(0, side.key_heads, size).double(), torch.zeros(0, side.key_heads, size).double()
        if more is not None:
            k_more, v_more = (linear(f"{name}.{part}_proj", more).unflatten(1, (-1, size)) for part in "kv")
            if spec.head_norm:
                k_more = torch.stack([norm(f"{name}.k_norm", y, spec.head_norm) for y in k_more])
        q, k, v = (linear(f"{name}.{part}_proj", y).unflatten(1, (-1, size)) for part, y in zip("qkv", (x, memory, memory)))
        if spec.head_norm:
            q, k = (torch.stack([norm(f"{name}.{part}_norm", y, spec.head_norm) for y in z]) for part, z in (("q", q), ("k", k)))
        if own and rotary:
            q, k = (
                torch.stack([torch.stack([turned(each, p, rotary) for each in row]) for p, row in enumerate(z)]) for z in (q, k)
            )
        scale, rows = spec.scale or 1 / math.sqrt(size), []
        for position in range(len(q)):
            parts = []
            for head in range(spec.heads):
                shared = head * side.key_heads // spec.heads
                seen, first = position + 1 if causal else len(k), 0
                if own and local:
                    first, seen = max(0, position - local.before + 1), min(seen, position + local.after + 1)
                keys, values = (torch.cat([z[first:seen, shared], w[:, shared]]) for z, w in ((k, k_more), (v, v_more)))
                scores = cap(keys @ q[position, head] * scale, spec.cap)
                if own and spec.relative:
                    kind = spec.relative
                    numbers = [bucket(at - position, kind.buckets, kind.distance, not causal) for at in range(first, seen)]
                    scores = scores + tensors[f"{name}.relative.weight"][numbers, head]
                parts.append(scores.softmax(0) @ values)
            rows.append(torch.cat(parts))
        return linear(f"{name}.out_proj", torch.stack(rows))

    def stack(name: str, tokens: list[int], memory: Tensor | None) -> Tensor:
        side, decodes = getattr(spec, name), name == "decoder"
        x = tensors[f"{name}.embed_tokens.weight"][tokens] * side.embedding.scale
        if decodes and spec.zero_start:
            x[0] = 0
        if side.embedding.offset is not None:
            x = x + tensors[f"{name}.embed_positions.weight"][side.embedding.offset :][: len(tokens)]
        x = norm(f"{name}.layernorm_embedding", x, side.norm) if side.embedding.norm else x

        def around(part_name: str, x: Tensor, part) -> Tensor:
            before = f"{part_name}_layer_norm"
            if side.norms == "after":
                return norm(before, x + part(x), side.norm)
            y = part(norm(before, x, side.norm))
            return x + (norm(f"{part_name}_after_norm", y, side.norm) if side.norms == "both" else y)

        for index in range(side.layers):
            layer = f"{name}.layers.{index}"

            def look(y: Tensor, layer: str = layer) -> Tensor:
                more = memory if side.attention.merged else None
                return attend(f"{layer}.self_attn", y, y, side, causal=decodes, own=True, more=more)

            def cross(y: Tensor, layer: str = layer) -> Tensor:
                return attend(f"{layer}.encoder_attn", y, memory, side, causal=False, own=False)

            def feed(y: Tensor, layer: str = layer) -> Tensor:
                inner = ACTIVATIONS[side.feed_forward.activation](linear(f"{layer}.fc1", y))
                return linear(f"{layer}.fc2", inner * linear(f"{layer}.gate", y) if side.feed_forward.gated else inner)

            x = around(f"{layer}.self_attn", x, look)
            x = x if memory is None or side.attention.merged else around(f"{layer}.encoder_attn", x, cross)
            x = around(f"{layer}.final", x, feed)
        return norm(f"{name}.layer_norm", x, side.norm) if side.final_norm else x

    encoded = stack("encoder", source, None)
    hidden = stack("decoder", [spec.symbols.start, *target], encoded) * spec.output.scale
    return cap(linear("decoder.output_projection", hidden), spec.output.cap)


def repeating(output: list[int], size: int) -> set[int]:
    """The tokens, eos apart, after which an output would have one of its n-grams twice; none if ``size`` is 0."""
    ngrams = {tuple(output[start : start + size]) for start in range(len(output) - size + 1)} if size else set()
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == tuple(output[len(output) - size + 1 :])} - {2}
