"""The encoder-decoder forward of fairseq's Transformer, on explicit weights and an explicit state.

Weights come as a dictionary in fairseq's naming, settings as a `Config`. Covers what fairseq calls ``transformer`` and
``bart``: norms before or after a layer, learned or sinusoidal positions, relu or gelu, any sharing of embeddings. What is in
the weights and not understood here is refused by name.

B rows, S source positions, Q positions computed, T positions seen, D width, V vocabulary, L layers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.cache import KVCache, hide, span
from specdec_plugins.decoding.backends.torch.graphs import EAGER, Runner
from specdec_plugins.decoding.values import Source

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),  # the same under its old name
}
Attend = Callable[[Tensor, Tensor], Tensor]  # queries (B, Q, D), keys and values (B, Q, 2 D) -> (B, Q, D)


class UnsupportedModel(ValueError):
    """Settings or weights that this forward does not compute; the message names them all."""


@dataclass(frozen=True)
class Config:
    """What the weights' shapes do not tell."""

    encoder_heads: int
    decoder_heads: int
    encoder_prenorm: bool
    decoder_prenorm: bool
    activation: str
    encoder_scale: float  # token embeddings are multiplied by it
    decoder_scale: float
    max_source_positions: int
    max_target_positions: int
    drafter: str | None = None  # the file in `drafters/` that decodes with it; None for an autoregressive model
    pad: int = 1


class Weights:
    """Hands out a model's tensors by name, and keeps account of what was used or missed."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors
        self.used: set[str] = set()
        self.missing: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str) -> Tensor:
        if name not in self.tensors:
            self.missing.append(name)
            return torch.zeros(0)
        self.used.add(name)
        return self.tensors[name]

    def linear(self, *names: str) -> "Linear":
        """One product for several projections of the same input. Empty if a weight is missing, which `faults` will tell."""
        weights = [self(f"{name}.weight") for name in names]
        biases = [self(f"{name}.bias") for name in names]
        return Linear(torch.zeros(0), torch.zeros(0)) if self.missing else Linear(torch.cat(weights), torch.cat(biases))

    def norm(self, name: str) -> "Norm":
        return Norm(self(f"{name}.weight"), self(f"{name}.bias"))

    def count_layers(self, side: str) -> int:
        numbers = {name.split(".")[2] for name in self.tensors if name.startswith(f"{side}.layers.")}
        return len(numbers)


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Norm:
    weight: Tensor  # (D,)
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias)


def attention(queries: Tensor, entries: Tensor, heads: int, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """(B, Q, D) softmax(q k / sqrt(D/heads) + mask) v, for queries (B, Q, D) and entries (B, T, 2 D): keys, then values."""
    rows, width, size = queries.shape
    q = queries.view(rows, width, heads, -1).transpose(1, 2)  # (B, H, Q, D/H)
    k = entries[..., :size].view(rows, -1, heads, size // heads).transpose(1, 2)
    v = entries[..., size:].view(rows, -1, heads, size // heads).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2).reshape(rows, width, size)


class Embedding:
    """Token embedding, position embedding, norm: the bottom of an encoder or decoder."""

    def __init__(self, weights: Weights, side: str, scale: float, max_positions: int, pad: int):
        self.tokens = weights(f"{side}.embed_tokens.weight")  # (V, D)
        self.scale, self.pad = scale, pad
        learned = f"{side}.embed_positions.weight"
        width = self.tokens.size(-1)
        self.positions = (
            weights(learned) if learned in weights else sinusoidal(max_positions + pad + 1, width, pad).to(self.tokens)
        )
        named = f"{side}.layernorm_embedding"
        self.norm = weights.norm(named) if f"{named}.weight" in weights else None

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, Q, D) scaled embeddings of tokens (B, Q)."""
        return F.embedding(tokens, self.tokens) * self.scale

    def place(self, positions: Tensor) -> Tensor:
        """(B, Q, D) embeddings of positions counted from 0; fairseq's table counts from the padding symbol's number + 1.

        What lies beyond the table (only ever an entry that nobody will look at) gets its last row.
        """
        return F.embedding((positions + (self.pad + 1)).clamp_(max=self.positions.size(0) - 1), self.positions)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(positions)
        return x if self.norm is None else self.norm(x)


def sinusoidal(positions: int, width: int, pad: int) -> Tensor:
    """(positions, width) float32 table as in tensor2tensor and fairseq: all sines, then all cosines."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(positions, dtype=torch.float)[:, None] * rates
    table = F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, width % 2))
    table[pad] = 0
    return table


class Layer:
    """A Transformer layer; what it attends to is up to the caller."""

    def __init__(self, weights: Weights, name: str, prenorm: bool, activation: str, cross: bool):
        self.prenorm, self.activation = prenorm, ACTIVATIONS[activation]
        self.qkv = weights.linear(*(f"{name}.self_attn.{part}_proj" for part in "qkv"))
        self.out = weights.linear(f"{name}.self_attn.out_proj")
        self.norm = weights.norm(f"{name}.self_attn_layer_norm")
        if cross:
            self.cross_query = weights.linear(f"{name}.encoder_attn.q_proj")
            self.cross_out = weights.linear(f"{name}.encoder_attn.out_proj")
            self.cross_norm = weights.norm(f"{name}.encoder_attn_layer_norm")
        self.fc1 = weights.linear(f"{name}.fc1")
        self.fc2 = weights.linear(f"{name}.fc2")
        self.final_norm = weights.norm(f"{name}.final_layer_norm")

    def __call__(
        self,
        x: Tensor,
        attend: Attend,
        cross_attend: Callable[[Tensor], Tensor] | None = None,
        keep: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); or -> (B, Q, D), only for the rows and positions ``keep``, which still attend to all."""
        width = x.size(-1)
        qkv = self.qkv(self.norm(x) if self.prenorm else x)  # (B, T, 3 D)
        queries, entries = qkv[..., :width], qkv[..., width:]
        if keep is not None:
            x, queries = x[keep], queries[keep]
        x = x + self.out(attend(queries, entries))
        x = x if self.prenorm else self.norm(x)
        if cross_attend is not None:
            x = self._around(self.cross_norm, x, lambda y: self.cross_out(cross_attend(self.cross_query(y))))
        return self._around(self.final_norm, x, lambda y: self.fc2(self.activation(self.fc1(y))))

    def _around(self, norm: Norm, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The residual connection around a part, with the norm before the part or after the sum."""
        return x + part(norm(x)) if self.prenorm else norm(x + part(x))


class Encoder:
    """A source of B sentences -> (B, S, D); behind a sentence stands anything."""

    def __init__(self, weights: Weights, config: Config):
        self.embedding = Embedding(weights, "encoder", config.encoder_scale, config.max_source_positions, config.pad)
        names = [f"encoder.layers.{index}" for index in range(weights.count_layers("encoder"))]
        self.layers = [Layer(weights, name, config.encoder_prenorm, config.activation, cross=False) for name in names]
        self.norm = final_norm(weights, "encoder", config.encoder_prenorm)
        self.heads = config.encoder_heads

    def __call__(self, source: Source) -> Tensor:
        tokens, lengths = source.tokens, source.lengths
        place = torch.arange(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens, place.expand_as(tokens))
        padding = place >= lengths[:, None]  # (B, S)
        mask = hide(padding, x.dtype)[:, None, None] if padding.any() else None

        def attend(queries: Tensor, entries: Tensor) -> Tensor:
            return attention(queries, entries, self.heads, mask)

        for layer in self.layers:
            x = layer(x, attend)
        return x if self.norm is None else self.norm(x)


class Successor:
    """What a token says about the one after it: adds P[c] . relu(G x + T[t]) to the logit of token c behind token t.

    x is the feature that the logits are made of. From the drafter's weights, with the embeddings E: T = E W_token, P = E W_out.
    """

    def __init__(self, weights: Weights, embeddings: Tensor, projection: Tensor):
        name = "decoder.successor"
        self.gate = weights.linear(f"{name}.from_feature")  # G, (R, D), and its bias
        token, out = weights(f"{name}.from_token.weight"), weights(f"{name}.out.weight")  # (R, D), (D, R)
        if not weights.missing:
            self.tokens, self.out = embeddings @ token.T, projection @ out  # T and P, (V, R)


class Decoder:
    """The parts of a decoder; `verifier.py` and `drafters/block.py` say what attends to what."""

    def __init__(self, weights: Weights, config: Config):
        self.embedding = Embedding(weights, "decoder", config.decoder_scale, config.max_target_positions, config.pad)
        names = [f"decoder.layers.{index}" for index in range(weights.count_layers("decoder"))]
        self.layers = [Layer(weights, name, config.decoder_prenorm, config.activation, cross=True) for name in names]
        self.memory = weights.linear(*(f"{name}.encoder_attn.{part}_proj" for name in names for part in "kv"))  # (L 2 D, D)
        self.norm = final_norm(weights, "decoder", config.decoder_prenorm)
        self.heads = config.decoder_heads
        projection = "decoder.output_projection.weight"
        self.projection = weights(projection) if projection in weights else self.embedding.tokens  # (V, D)
        embeddings, self.vocabulary = self.embedding.tokens, None
        if config.drafter and DRAFT_VOCABULARY in weights:
            self.vocabulary = draft_vocabulary(weights(DRAFT_VOCABULARY), len(self.projection))  # from here on that is V
            embeddings, self.projection = embeddings[self.vocabulary], self.projection[self.vocabulary]
        successor = config.drafter == "block_causal" and "decoder.successor.out.weight" in weights
        self.successor = Successor(weights, embeddings, self.projection) if successor else None
        self.copy = (
            weights("decoder.copy_attn.weight") if config.drafter == "block" and "decoder.copy_attn.weight" in weights else None
        )

    @property
    def width(self) -> int:
        return self.embedding.tokens.size(1)

    def remember(self, source: Source, encoder: "Encoder", numbers: list[int], cache: KVCache, rows: list[int]) -> None:
        """Write the cross-attention keys and values of some sentences of a source, of all layers, into rows of a cache."""
        entries = self.memory(source.encoded_by(encoder)[span(numbers)])  # (N, S, L 2 D)
        cache.put(rows, entries.unflatten(-1, (len(self.layers), -1)).permute(2, 0, 1, 3))

    def features(self, x: Tensor) -> Tensor:
        """(..., D): what the logits are made of, for the last layer's output (..., D)."""
        return x if self.norm is None else self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """(..., V) for the last layer's output (..., D)."""
        return F.linear(self.features(x), self.projection)


# A drafter's weights may name the tokens that it drafts, as few of a vocabulary make up most of what is said (FR-Spec, Zhao et
# al. 2025). Of the others it computes no logits, which would be half of a shallow drafter's work.
DRAFT_VOCABULARY = "decoder.draft_vocabulary"


def draft_vocabulary(tokens: Tensor, size: int) -> Tensor:
    """Those tokens (V',) int64 out of ``size``, ascending; the special symbols come first and so keep their numbers."""
    proper = not tokens.is_floating_point() and tokens.dim() == 1 and tokens[:4].tolist() == [0, 1, 2, 3]
    if not proper or not (tokens[1:] > tokens[:-1]).all() or int(tokens[-1]) >= size:
        raise UnsupportedModel(f"{DRAFT_VOCABULARY} is not 0, 1, 2, 3 and then other tokens below {size:,}, ascending")
    return tokens


def final_norm(weights: Weights, side: str, prenorm: bool) -> Norm | None:
    """The norm after the last layer. Models with norms before the layers have it, except under ``--no-decoder-final-norm``."""
    return weights.norm(f"{side}.layer_norm") if prenorm and f"{side}.layer_norm.weight" in weights else None


# In a checkpoint, but no part of the function: counters, sinusoidal tables that are computed again, unused heads.
IGNORED = ("version", "_float_tensor", "embed_positions.weights", "embed_positions._float_tensor", "block_format")


@dataclass(frozen=True)
class Transformer:
    """A loaded model."""

    config: Config
    encoder: Encoder
    decoder: Decoder
    runner: Runner = EAGER

    @classmethod
    def load(
        cls, tensors: Mapping[str, Tensor], config: Config, encoder: Encoder | None = None, runner: Runner = EAGER
    ) -> "Transformer":
        """Build a model on its weights, with another's encoder if one is given, and its passes run by ``runner``.

        Raises UnsupportedModel with everything that is missing or has no place here.
        """
        if config.activation not in ACTIVATIONS:
            raise UnsupportedModel(f"activation function '{config.activation}'; available: {', '.join(ACTIVATIONS)}")
        weights = Weights(tensors)
        own = encoder is None
        encoder, decoder = encoder or Encoder(weights, config), Decoder(weights, config)
        foreign = [
            name
            for name in tensors
            if not (name in weights.used or name.endswith(IGNORED) or name.startswith("classification_heads."))
            and (own or not is_encoder(name))
        ]
        faults = [f"weights without a place here: {', '.join(foreign)}"] if foreign else []
        if weights.missing:
            faults.append(f"missing weights: {', '.join(weights.missing)}")
        if faults:
            raise UnsupportedModel("; ".join(faults))
        return cls(config, encoder, decoder, runner)


def place(
    tensors: Mapping[str, Tensor], device: torch.device | str, dtype: torch.dtype, beside: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """A model's tensors in ``dtype`` on ``device``, each held once: tied ones stay tied, and one that equals its namesake
    in ``beside`` (another model, already placed) is that one."""
    beside = beside or {}
    placed: dict[tuple, Tensor] = {}  # by the memory that a tensor came from
    result = {}
    for name, tensor in tensors.items():
        origin = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if origin not in placed:
            moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
            twin = beside.get(name)
            same = twin is not None and twin.shape == moved.shape and torch.equal(twin, moved)
            placed[origin] = twin if twin is not None and same else moved
        result[name] = placed[origin]
    return result


def load_pair(
    verifier: tuple[Mapping[str, Tensor], Config],
    drafter: tuple[Mapping[str, Tensor], Config] | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    runner: Runner = EAGER,
) -> tuple[Transformer, Transformer | None]:
    """Load verifier and drafter. A drafter whose encoder equals the verifier's gets that very encoder: held once, run once."""
    tensors = place(verifier[0], device, dtype)
    model = Transformer.load(tensors, verifier[1], runner=runner)
    if drafter is None:
        return model, None
    others = place(drafter[0], device, dtype, beside=tensors)
    own, given = ({name: id(tensor) for name, tensor in each.items() if is_encoder(name)} for each in (others, tensors))
    twin = encoder_settings(drafter[1]) == encoder_settings(verifier[1]) and own == given
    return model, Transformer.load(others, drafter[1], model.encoder if twin else None, runner)


def is_encoder(name: str) -> bool:
    return name.startswith("encoder.") and not name.endswith(IGNORED)


def encoder_settings(config: Config) -> tuple:
    return (config.encoder_heads, config.encoder_prenorm, config.activation, config.encoder_scale, config.pad)
