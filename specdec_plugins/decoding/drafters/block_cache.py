"""A block drafter on the verifier's KV cache: drafts K tokens in a pass over K positions, and caches nothing itself.

The last committed token predicts the first token of the block, each of K - 1 mask symbols the next one. Layers attend to the keys
and values that the verifier has cached of the committed tokens before it and of the source, and to those of earlier positions of
the block. The latter are written where the verification that follows overwrites them. Unlike `block_causal`, the drafter reads
no other committed tokens, and projects nothing of the source.

B sentences, A blocks per sentence, K block size, T prefix positions, D width.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.backends import LoadedModel, RowState
from specdec_plugins.decoding.backends.cache import hide
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.transformer import attention, spread
from specdec_plugins.decoding.drafters import over_the_verifier
from specdec_plugins.decoding.drafters.block import drafted, loaded, within_positions
from specdec_plugins.decoding.drafters.small import shape
from specdec_plugins.decoding.networks.decoder import adopt, decoder_of, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss, options_of
from specdec_plugins.decoding.networks.masking import ManyBlocks, training_blocks
from specdec_plugins.decoding.networks.successor import Successor
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model

HOST = ("encoder_attn.k_proj.", "encoder_attn.v_proj.")  # what the verifier has computed for a layer


@dataclass
class Options:
    length: int = 8  # K in training
    layers: int = 2
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32
    dropout: float = 0.1  # of the embedded input


class Network(nn.Module):
    """The decoder's layers, which start as those of the verifier whose caches they read, and a `Successor`."""

    decoder: nn.Module

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, (each for each in initial(self.spec, verifier) if not any(part in each[0] for part in HOST)))
        self.decoder.add_module("successor", Successor(verifier.embeddings.size(1), options.successor_width))

    def loss(self, batch: Batch) -> Loss:
        """Weighted cross-entropy of blocks of the target: a sample in training, else all."""
        verifier, symbols = batch.verifier, batch.symbols
        block = training_blocks(batch.target, self.options.length, symbols.pad, symbols.start, self.training)
        features = self.features(batch, block)[block.masked]  # (N, D)
        successor = cast(Successor, self.decoder.successor)
        features = successor.relate(features, block, lambda tokens: verifier.embeddings[tokens], symbols.pad)
        return block_loss(features, block, verifier, confident=self.training)

    def features(self, batch: Batch, block: ManyBlocks) -> Tensor:
        """(B, A, K, D) final hidden states of the blocks' predictions."""
        verifier, hosts = batch.verifier, batch.verifier.spec.decoder.layers
        decoder = decoder_of(self, self.spec, verifier, hosts)
        encoded, hidden = verifier.encode(batch.source)
        caches = verifier.caches(batch.prefix, encoded, hidden)
        tokens, positions, seen = layout(batch.prefix, block, batch.symbols.mask)
        x = F.dropout(decoder.embedding(tokens, positions), self.options.dropout, self.training)  # (B, A K, D)
        mask = hide(~seen, x.dtype)[:, None]
        for layer in decoder.layers:
            cached, source = caches[layer.entries]

            def attend(queries: Tensor, entries: Tensor, cached: Tensor = cached) -> Tensor:
                return attention(queries, torch.cat([cached.to(entries), entries], 1), decoder.heads, mask)

            def cross_attend(queries: Tensor, source: Tensor = source) -> Tensor:
                return attention(queries, source.to(queries), decoder.heads, hidden)

            x = layer(x, attend, cross_attend)
        return decoder.features(x).unflatten(1, block.masked.shape[1:])


def layout(prefix: Tensor, block: ManyBlocks, mask: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and positions (B, A K) of the blocks, and what each attends to, (B, A K, T + A K) bool: what the verifier has read
    of the prefix (B, T) before a block's first token, and earlier positions of the block."""
    size, starts = block.block_size, block.starts
    tokens = torch.full_like(block.target, mask)
    tokens[..., 0] = prefix.gather(1, starts)
    read = torch.arange(prefix.size(1), device=prefix.device) < starts.repeat_interleave(size, 1)[..., None]
    number = torch.arange(starts.size(1) * size, device=prefix.device)
    earlier = (number[:, None] >= number) & (number[:, None] // size == number // size)
    positions = starts[..., None] + block.offsets
    return tokens.flatten(1), positions.flatten(1), torch.cat([read, earlier.expand(len(prefix), -1, -1)], 2)


@dataclass
class CacheState:
    """``cache`` belongs to the verifier, which moves its rows."""

    cache: RowState

    def select(self, order: list[int]) -> None:
        return None


class CacheBlockDrafter(Drafter):
    traits = Traits(needs_verifier=True, trees=True)

    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int, shared: RowState) -> CacheState:
        return CacheState(shared)

    def propose(self, state: CacheState, prefix: Prefix, plan: Plan) -> Draft:
        masks = [prefix.symbols.mask]
        tokens = [[token, *masks * (length - 1)] if length else [] for token, length in zip(prefix.last, plan.lengths)]
        done = self.model.read(state.cache, Reading(tokens, list(map(len, prefix.outputs))))
        return within_positions(drafted(done, prefix, plan), prefix, self.model)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    """Of the verifier's shape, whatever spec the weights have, as passes read its cache."""
    hosts = verifier.spec.decoder.layers
    options = options_of(Options, {name: value for name, value in weights.options.items() if name != "hosts"})
    if options.layers > hosts:
        raise ValueError(f"drafter '{weights.code}' has {options.layers} layers, its verifier {hosts}")
    made = over_the_verifier(weights, verifier, shape(verifier.spec, options.layers))
    read = {
        name.replace(f".{host}.", f".{number}.", 1): tensor
        for number, host in enumerate(spread(options.layers, hosts))
        for name, tensor in verifier.tensors.items()
        if name.startswith(f"decoder.layers.{host}.") and any(part in name for part in HOST)
    }
    return replace(made, tensors={**made.tensors, **read}, options={"successor_width": options.successor_width, "hosts": hosts})


def build(weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel) -> CacheBlockDrafter:
    return CacheBlockDrafter(loaded(weights, model))
