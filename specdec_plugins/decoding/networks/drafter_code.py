"""The interface between a trainable drafter's file and its training. Knows torch, not fairseq.

A drafter's file has an object with

    Options   a dataclass of int, float, str and bool fields with defaults; an int whose default is at least 1 stays at least 1
    Network   a torch module, built by ``Network(options, verifier)``, with ``loss(batch) -> Loss``; its tensors are the weights
    build     ``build(weights, model, verifier) -> Drafter`` for decoding; see `specdec_plugins.decoding.drafters`

Name it as ``module:object``, by an installed entry point of the group ``specdec.drafters``, or by its file name in
`specdec_plugins.decoding.drafters`. Train it with

    fairseq-train DATA --user-dir specdec_plugins --task translation --arch drafter --criterion drafter_loss \\
        --drafter module:object --drafter-options width=64 --verifier VERIFIER.pt ...

B sentences, S source positions, T target positions, D width, V vocabulary.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import Placement
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.backends.torch.tensors import send
from specdec_plugins.decoding.backends.torch.transformer import Transformer
from specdec_plugins.decoding.networks.cross_entropy import cross_entropy
from specdec_plugins.decoding.networks.decoder import Unrolled, embedded
from specdec_plugins.decoding.networks.masking import ManyBlocks
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import Want
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import ModelSpec, Symbols

DECAY = 0.85  # weight of a block position's loss relative to the previous one's: later ones are used less often
SURE = 0.5  # share of the drafter's confidence in weights that follow it; the rest counts every position as right


def network_of(code: Any) -> Any:
    """The ``Network`` of a drafter's code; of our own, that in the file of the same name here. None: it cannot be trained."""
    if hasattr(code, "Network"):
        return code.Network
    package, _, name = getattr(code, "__name__", "").rpartition(".")
    ours = package == drafters.__name__ and find_spec(f"{__package__}.{name}")
    return import_module(f"{__package__}.{name}").Network if ours else None


class Loss(NamedTuple):
    """``total`` in nats, summed over ``predictions``. ``right`` (N, K) bool, optional: which predictions of N blocks are right;
    logged as ``accept_len``. ``present`` (N, K) bool, optional: which have a target; validation then logs ``block_acc``."""

    total: Tensor
    predictions: Tensor | int
    right: Tensor | None = None
    present: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """Training sentences, right-padded with ``symbols.pad``."""

    source: Tensor  # (B, S) int64, ending with eos
    prefix: Tensor  # (B, T) int64: the start token, then the target without its eos
    target: Tensor  # (B, T) int64, ending with eos
    symbols: Symbols
    verifier: "FrozenVerifier"
    progress: float = 1.0  # part of the training that is over


class FrozenVerifier:
    """The verifier without gradients, for drafters that read its embeddings, hidden states or logits.

    A drafter may be restricted to the tokens ``drafted`` (V',), ascending.
    """

    def __init__(
        self, model: Model, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, drafted: Tensor | None = None
    ):
        self.spec: ModelSpec = model.spec
        self.tensors = Placement(device, dtype)(model.tensors)  # by canonical names
        self.transformer = Transformer.load(replace(model, tensors=self.tensors))
        self.model = TorchModel(self.transformer)
        decoder = self.transformer.decoder
        self._output, bias = decoder.projection, decoder.bias
        self._numbers = torch.arange(len(self._output), device=device)  # of each token among those drafted; -1 for others
        if drafted is not None:
            drafted = drafted.to(device)
            self._output, bias = self._output[drafted], None if bias is None else bias[drafted]
            self._numbers = torch.full_like(self._numbers, -1).scatter_(0, drafted, torch.arange(len(drafted), device=device))
        if bias is not None:  # as a column, which features multiply by 1
            self._output = torch.cat([self._output, bias[:, None]], 1)
        self._biased = bias is not None

    @property
    def vocabulary(self) -> int:
        """V"""
        return self.transformer.decoder.projection.size(0)

    @property
    def embeddings(self) -> Tensor:
        """(V, D) of the target side."""
        return self.transformer.decoder.embedding.tokens

    @torch.no_grad()
    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) encoder output, undefined at padding, and the mask (B, 1, 1, S) to add to attention scores."""
        return encoded_by(self.transformer, source)

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T, D) embeddings of target tokens (B, T), scaled as the verifier scales them, without positions."""
        return self.transformer.decoder.embedding.embed(tokens)

    @torch.no_grad()
    def states(self, prefix: Tensor, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, T, D) hidden states after each token of a prefix (B, T), given the result of `encode`."""
        decoder = self.transformer.decoder
        return Unrolled(decoder, encoded, hidden)(embedded(decoder, prefix))

    @torch.no_grad()
    def caches(self, prefix: Tensor, encoded: Tensor, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, of a prefix's tokens (B, T, 2 D) and of the source (B, S, 2 D), given the result of
        `encode`."""
        decoder = self.transformer.decoder
        run = Unrolled(decoder, encoded, hidden)
        run(embedded(decoder, prefix))
        return [(entries, source) for (entries,), source in zip(run.entries, run.sources)]

    def cross_entropy(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) losses in nats for final hidden states (N, D), and (N,) bool, which predictions are right. Targets (N,) that are
        not drafted count as wrong and have no loss."""
        numbers = self._numbers[targets]
        known, right = numbers >= 0, torch.zeros_like(targets, dtype=torch.bool)
        features = F.pad(features[known], (0, 1), value=1.0) if self._biased else features[known]
        losses, _, hits = cross_entropy(features, self._output, numbers[known], cap=self.transformer.decoder.cap)
        return losses.new_zeros(len(targets)).masked_scatter(known, losses), right.masked_scatter(known, hits)

    def read(self, source: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, V) logits and (B, T, D) hidden states after each token of a prefix, undefined at padding; no gradient."""
        sources, tokens = (without(each, self.spec.symbols.pad) for each in (source, prefix))
        state = self.model.start(len(sources))
        state.admit(Source(sources, self.spec.symbols, str(source.device)))
        done = self.model.read(state, Reading(tokens, [0] * len(tokens), want=Want(features=True)))
        return done.logits().clone(), done.features().clone()  # copies, usable in autograd


def encoded_by(transformer: Transformer, source: Tensor) -> tuple[Tensor, Tensor]:
    """See `FrozenVerifier.encode`."""
    symbols = transformer.spec.symbols
    sources = Source(without(source, symbols.pad), symbols, str(source.device))
    encoded = transformer.encoder(sources)
    past = torch.arange(sources.longest, device=source.device) >= send(sources.sizes, source.device)[:, None]
    return encoded, hide(past, encoded.dtype)[:, None, None]


def without(tokens: Tensor, pad: int) -> list[list[int]]:
    """Right-padded rows (B, T) as lists without padding. The first token may be the start token, which some models pad with."""
    lengths = tokens[:, 1:].ne(pad).sum(1) + 1
    return [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist())]


def block_loss(features: Tensor, block: ManyBlocks, verifier: FrozenVerifier, confident: bool = False) -> Loss:
    """Cross-entropy of blocks, weighted by position, for the final hidden states (N, D) of ``block.masked``.

    ``confident``: weights follow the model's confidence (D-PACE, 2605.18810). A position's is the sum over it and later ones of
    the probability, smoothed, that the block is right up to there.
    """
    losses, hits = verifier.cross_entropy(features, block.target[block.masked])
    if confident:
        sure = torch.exp(-losses.detach()) * SURE + 1 - SURE
        ahead = sure.new_zeros(block.masked.shape).masked_scatter(block.masked, sure).cumprod(-1)
        weights = ahead.flip(-1).cumsum(-1).flip(-1)[block.masked]
    else:
        weights = DECAY ** block.offsets[block.masked].float()
    right = torch.zeros_like(block.masked).masked_scatter(block.masked, hits)
    some = block.masked[..., 0]
    return Loss((weights * losses).sum(), weights.sum(), right[some], block.masked[some])


def blocks(right: Tensor, present: Tensor, size: int) -> Tensor:
    """(N, K): for each of the N positions ``present`` in a target (B, T), whether the next K = ``size`` predictions are ``right``
    (B, T); false past the end."""
    return F.pad(right & present, (0, size - 1)).unfold(1, size, 1)[present]
