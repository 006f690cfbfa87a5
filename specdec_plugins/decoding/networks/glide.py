"""The network of drafter `glide` in training."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.backends.torch.layers import through, whole
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.drafters.glide import Options, hosted, shape
from specdec_plugins.decoding.networks.decoder import adopt, decoder_of, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss
from specdec_plugins.decoding.networks.masking import ManyBlocks, training_blocks


class Network(nn.Module):
    """The decoder's layers, which start as those of the verifier whose caches they read."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, (each for each in initial(self.spec, verifier) if not hosted(each[0])))

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of blocks of the target, each token after those before it: a sample of blocks in training, else all."""
        symbols = batch.symbols
        block = training_blocks(batch.target, self.options.length, symbols.pad, symbols.start, self.training)
        return block_loss(self.features(batch, block)[block.masked], block, batch.verifier, confident=self.training)

    def features(self, batch: Batch, block: ManyBlocks) -> Tensor:
        """(B, A, K, D) final hidden states of the blocks' predictions."""
        verifier = batch.verifier
        decoder = decoder_of(self, self.spec, verifier, verifier.spec.decoder.layers)
        encoded, hidden = verifier.encode(batch.source)
        caches = verifier.caches(batch.prefix, encoded, hidden)
        tokens, positions, seen = layout(batch.prefix, block, batch.symbols.pad)
        x = F.dropout(decoder.embedding(tokens, positions), self.options.dropout, self.training)  # (B, A K, D)
        own, sources = zip(*caches)
        before = torch.arange(batch.prefix.size(1), device=x.device)[None]
        context = whole(positions, hide(~seen, x.dtype)[:, None], sources, hidden, own, before)
        x = through(decoder.layers, x, context)
        features: Tensor = decoder.features(x).unflatten(1, block.masked.shape[1:])
        return features


def layout(prefix: Tensor, block: ManyBlocks, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and positions (B, A K) that the blocks are predicted from, and what each attends to, (B, A K, T + A K) bool: what
    the verifier has read of the prefix (B, T) before a block's first input, and earlier inputs of the block."""
    size, starts = block.block_size, block.starts
    positions = (starts[..., None] + block.offsets).flatten(1)
    tokens = F.pad(prefix, (0, size), value=pad).gather(1, positions)
    read = torch.arange(prefix.size(1), device=prefix.device) < starts.repeat_interleave(size, 1)[..., None]
    number = torch.arange(starts.size(1) * size, device=prefix.device)
    earlier = (number[:, None] >= number) & (number[:, None] // size == number // size)
    return tokens, positions, torch.cat([read, earlier.expand(len(prefix), -1, -1)], 2)
