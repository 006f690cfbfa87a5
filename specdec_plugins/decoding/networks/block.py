"""The network of drafter `block` in training: a whole Transformer of the verifier's shape, which starts as the verifier.

fairseq trains the same drafter as published, with a fresh decoder and dropout in every layer (`models/block.py`).

B sentences, S source positions, T target positions, N predicted positions (over the batch), D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.backends.torch.attention import Attention
from specdec_plugins.decoding.backends.torch.layers import through, whole
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.backends.torch.transformer import Transformer
from specdec_plugins.decoding.drafters.block import Options, check, filled
from specdec_plugins.decoding.loading import COPY
from specdec_plugins.decoding.networks.cross_entropy import cross_entropy
from specdec_plugins.decoding.networks.decoder import adopt
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, encoded_by
from specdec_plugins.decoding.networks.masking import block_view, fixed_starts, lengths, mask_blocks, random_starts, reveal
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import DrafterModel, close, sinusoidal_tables


class Network(nn.Module):
    """The verifier's tensors but sinusoidal tables, tied ones once, and the source copy."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec, given = options, verifier.spec, verifier.tensors
        check(self.spec)
        self._given, seen = given, set[int]()
        tables = {name for name, table in sinusoidal_tables(self.spec).items() if close(array(given[name]), table)}
        for name in sorted(given):
            if name not in tables and id(given[name]) not in seen:
                adopt(self, iter([(name, given[name].clone())]))
            seen.add(id(given[name]))
        adopt(self, iter([(COPY, 0.02 * torch.randn(self.spec.decoder.width, self.spec.decoder.width))]))

    def tensors(self) -> dict[str, Tensor]:
        """The whole model's, by canonical names."""
        return filled(dict(self.named_parameters()), self._given)

    def loss(self, batch: Batch) -> Loss:
        """Smoothed cross-entropy of one block of each target. In training a first pass counts errors, and in proportion to them
        tokens of the block are revealed (Qian et al. 2021)."""
        symbols, sizes = batch.symbols, lengths(batch.target, batch.symbols.pad)
        numbers = torch.arange(len(sizes), device=sizes.device)
        starts = random_starts(sizes) if self.training else fixed_starts(sizes, numbers)
        block = mask_blocks(batch.target, starts, self.options.length, symbols.pad, symbols.mask)
        model = Transformer.load(DrafterModel("block", tensors := self.tensors(), self.spec))
        encoded, hidden = encoded_by(model, batch.source)
        copied = model.encoder.embedding.copied(batch.source, tensors[COPY])[0]  # (B, S, 2 D)

        def passed(tokens: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
            """Losses (N,) at ``masked``, and where predictions are right, (B, T)."""
            masks = (tokens == symbols.mask) & in_block
            features = self.features(model, tokens, masks, encoded, copied, hidden)[masked]
            losses, hits = self.judge(model, features, block.target[masked])
            return losses, torch.zeros_like(masked).masked_scatter(masked, hits)

        tokens, masked = block.prev_target, block.masked
        in_block = torch.arange(tokens.size(1), device=tokens.device) >= starts[:, None]
        if self.training:
            scores = torch.rand(masked.shape, device=masked.device)
            devices = [tokens.device] if tokens.is_cuda else []
            with torch.no_grad(), torch.random.fork_rng(devices=devices):  # the same dropout in both passes
                right = passed(tokens, masked)[1]
            ratio = self.options.glance_first + batch.progress * (self.options.glance_last - self.options.glance_first)
            revealed = reveal(~right, masked, ratio, scores)
            tokens, masked = torch.where(revealed, block.target, tokens), masked & ~revealed
        losses, right = passed(tokens, masked)
        return Loss(losses.sum(), len(losses), block_view(right, block), block_view(masked, block))

    def features(
        self, model: Transformer, tokens: Tensor, masks: Tensor, encoded: Tensor, copied: Tensor, hidden: Tensor
    ) -> Tensor:
        """(B, T, D) final hidden states for the decoder's input (B, T), as `TorchModel.read_block` computes them. Positions
        ``masks`` (B, T) copy the source."""
        decoder = model.decoder
        place = torch.arange(tokens.size(1), device=tokens.device)[None]
        positions = decoder.embedding.place(place)  # (1, T, D)
        x = decoder.embedding.embed(tokens)
        copies = Attention(1, 1, scale=1.0)(positions.expand_as(x), copied, hidden)
        x = torch.where(masks[..., None], copies.to(x), x) + positions
        x = x if decoder.embedding.norm is None else decoder.embedding.norm(x)
        x = F.dropout(x, self.options.dropout, self.training)
        context = whole(place, hide(tokens == model.spec.symbols.pad, x.dtype)[:, None, None], decoder.remember(encoded), hidden)
        return decoder.features(through(decoder.layers, x, context, placed=positions))

    def judge(self, model: Transformer, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (N,) in nats of final hidden states (N, D), and which predictions are right."""
        projection, bias = model.decoder.projection, model.decoder.bias
        if bias is not None:
            features, projection = F.pad(features, (0, 1), value=1.0), torch.cat([projection, bias[:, None]], 1)
        losses, _, hits = cross_entropy(features, projection, targets, self.options.label_smoothing, model.decoder.cap)
        return losses, hits
