"""Encoder and decoder of a Transformer (`model/spec.py`), of `layers.py`. Unknown tensors are refused.

B rows, S source positions, Q positions computed, T positions seen, D width, V vocabulary, L layers; an entry of a cache is 2 G K
wide.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.torch.attention import capped
from specdec_plugins.decoding.backends.torch.layers import Embedding, Layer, ended, rotations_of, through, turn, whole
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.backends.torch.tensors import send, source_tokens
from specdec_plugins.decoding.backends.torch.weights import Weights
from specdec_plugins.decoding.loading import COPY, DRAFT_VOCABULARY, SUCCESSOR, spread
from specdec_plugins.decoding.requests import Source
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec


def heads(linear: Callable[[Tensor], Tensor], states: Tensor, own: Tensor | None) -> Tensor:
    """(..., K, D) x + silu(W [x, e]) for hidden states x (..., D) and, unless None, token embeddings e = ``own`` (..., D)."""
    inputs = states if own is None else torch.cat([states, own], -1)
    added: Tensor = F.silu(linear(inputs)).unflatten(-1, (-1, states.size(-1)))
    return states[..., None, :] + added


def beginning(encoded: Tensor, query: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor | float = 0.0) -> Tensor:
    """(..., D) W sum_s softmax(q h_s) h_s + b for an encoder's output h (..., S, D); ``hidden`` (..., S) is an additive mask."""
    weights = (encoded @ query + hidden).softmax(-1)
    return F.linear((weights[..., None, :] @ encoded)[..., 0, :], weight, bias)


class Encoder:
    """A source of B sentences -> (B, S, D); positions past a sentence's end are undefined."""

    def __init__(self, weights: Weights, spec: ModelSpec):
        self.side = side = spec.encoder
        self.embedding = Embedding(weights, "encoder", side)
        rotations = rotations_of(side, self.embedding.tokens)
        self.layers = [Layer(weights, "encoder", index, side, index, each) for index, each in enumerate(rotations)]
        self.norm = weights.norm("encoder.layer_norm", side.norm) if side.final_norm else None

    def __call__(self, source: Source) -> Tensor:
        tokens, lengths = source_tokens(source), send(source.sizes, source.device)
        place = torch.arange(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens, place.expand_as(tokens))
        padded = min(source.sizes) < source.longest  # by the host's numbers, without a sync
        mask = hide(place >= lengths[:, None], x.dtype)[:, None, None] if padded else None  # (B, 1, 1, S)
        x = through(self.layers, x, whole(place[None], mask))
        return x if self.norm is None else self.norm(x)


class Successor:
    """Relates neighbouring tokens: adds P[c] . relu(G x + T[t]) to the logit of token c after token t, x being the hidden state.

    With the embeddings E, T = E W_token and P = E W_out are computed once.
    """

    def __init__(self, weights: Weights, embeddings: Tensor, projection: Tensor):
        self.gate = weights.linear(f"{SUCCESSOR}.from_feature")  # G, (R, D), and its bias
        token, out = weights(f"{SUCCESSOR}.from_token.weight"), weights(f"{SUCCESSOR}.out.weight")  # (R, D), (D, R)
        self.tokens, self.out = _product(embeddings, token.T), _product(projection, out)  # T and P, (V, R)


def _product(table: Tensor, matrix: Tensor) -> Tensor:
    """table (V, D) @ matrix (D, R) in the matrix's data type, without a copy of a large table in it."""
    return torch.cat([part.to(matrix) @ matrix for part in table.split(1 << 15)])


class Decoder:
    """The parts of a decoder; `TorchModel.read` and `read_block` run them."""

    def __init__(self, weights: Weights, spec: ModelSpec, drafts: bool = False, hosts: int = 0):
        """``drafts``: reads a drafter's own weights as well. With ``hosts`` its layers use the caches of a verifier of so many
        layers, evenly spread."""
        self.side = side = spec.decoder
        self.embedding = Embedding(weights, "decoder", side, spec.zero_start)
        rotations = rotations_of(side, self.embedding.tokens)
        entries = spread(side.layers, hosts) if hosts else range(side.layers)
        self.layers = [
            Layer(weights, "decoder", index, side, at, each) for index, (at, each) in enumerate(zip(entries, rotations))
        ]
        part = "self_attn" if side.attention.merged else "encoder_attn"
        sources = [] if hosts else [f"decoder.layers.{index}.{part}" for index in range(side.layers)]
        memory = [f"{name}.{part}_proj" for name in sources for part in "kv"]
        self.memory = weights.linear(*memory) if memory else None  # (L 2 G K, D)
        self.memory_turns = [turn(weights, f"{name}.k_norm", side.attention.head_norm, None) for name in sources]
        norm = weights.norm("decoder.layer_norm", side.norm) if side.final_norm else None
        self.norm = None if norm is None else norm.scaled(spec.output.scale)
        self.projection = weights("decoder.output_projection.weight")  # (V, D)
        self.bias = weights("decoder.output_projection.bias") if spec.output.bias else None  # (V,)
        self.cap = spec.output.cap
        embeddings, self.vocabulary = self.embedding.tokens, None
        if drafts and DRAFT_VOCABULARY in weights:
            self.vocabulary = weights(DRAFT_VOCABULARY)  # (V',), from here on V
            tied = self.projection is embeddings
            embeddings = embeddings[self.vocabulary]
            self.projection = embeddings if tied else self.projection[self.vocabulary]
            self.bias = None if self.bias is None else self.bias[self.vocabulary]
        ends = spec.all_ends if self.vocabulary is None else ()
        self.ends = torch.tensor(ends, device=embeddings.device) if ends else None
        successor = drafts and f"{SUCCESSOR}.out.weight" in weights
        self.successor = Successor(weights, embeddings, self.projection) if successor else None
        self.copy = weights(COPY) if drafts and COPY in weights else None  # (D, D)

    @property
    def width(self) -> int:
        return self.side.width

    @property
    def by_distance(self) -> bool:
        """Whether passes need the distances of positions."""
        return any(layer.attention.by_distance for layer in self.layers)

    def remember(self, encoded: Tensor) -> list[Tensor]:
        """The keys and values (B, S, 2 G K) of cross-attention, by layer, for the encoder's output (B, S, D)."""
        assert self.memory is not None, "a decoder with layers"
        found = []
        for entries, norm in zip(self.memory(encoded).chunk(len(self.layers), -1), self.memory_turns):
            if norm is not None:
                keys, values = entries.chunk(2, -1)
                entries = torch.cat([norm(keys, self.side.head_width), values], -1)
            found.append(entries)
        return found

    def features(self, x: Tensor) -> Tensor:
        """(..., D) the last layer's output -> hidden states that the logits are computed from."""
        return x if self.norm is None else self.norm(x)

    def project(self, features: Tensor) -> Tensor:
        """(..., V) logits."""
        return ended(capped(F.linear(features, self.projection, self.bias), self.cap), self.ends)


@dataclass(frozen=True)
class Transformer:
    """A loaded model."""

    spec: ModelSpec
    encoder: Encoder
    decoder: Decoder

    @classmethod
    def load(cls, model: Model | DrafterModel, encoder: Encoder | None = None) -> "Transformer":
        """Build a model (see `loading.checked`) on its tensors, with another's encoder if given."""
        assert model.spec is not None
        weights, drafts = Weights(model.tensors), isinstance(model, DrafterModel)
        decoder = Decoder(weights, model.spec, drafts, model.hosts if isinstance(model, DrafterModel) else 0)
        return cls(model.spec, encoder or Encoder(weights, model.spec), decoder)
