"""``--arch block_causal``: a Transformer decoder that reads the prefix once and predicts the next K tokens in one pass.

It reads eos, the committed tokens, then K - 1 mask symbols. Attention is causal, so keys and values of the prefix can be cached.
The last prefix position predicts the first token of the block and each mask symbol the next one. Many blocks per sentence
train in one pass, each after its own part of the prefix.

B sentences, A blocks per sentence, K block size, S prefix positions, T = S + A (K - 1) positions, N predicted positions,
D width, V vocabulary.
"""

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder

from specdec_plugins.decoding.networks.masking import ManyBlocks, layout
from specdec_plugins.decoding.networks.successor import Successor
from specdec_plugins.models.block import BlockDrafterModel, add_common_args, block_architecture


class CausalBlockDecoder(TransformerDecoder):
    """See the module's docstring."""

    def __init__(self, args, dictionary, embed_tokens, no_encoder_attn=False, output_projection=None):
        super().__init__(args, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self.mask_idx = dictionary.unk()
        hidden = getattr(args, "successor_width", 0)
        self.successor = Successor(self.embed_dim, hidden) if hidden else None

    def forward(self, prev_output_tokens, encoder_out, block: ManyBlocks, features_only=False):
        """(N, V) logits, or (N, D) features; see `CausalBlockDrafterModel.forward`."""
        features = self.extract_features(prev_output_tokens, encoder_out, block)[block.masked]  # (N, D)
        if self.successor is not None:
            features = self.successor.relate(features, block, self.embed_tokens, self.padding_idx)
        return features if features_only else self.output_layer(features)

    def extract_features(self, prev_output_tokens, encoder_out, block: ManyBlocks):
        """(B, A, K, D) features of the blocks' predictions."""
        tokens, positions, seen = layout(prev_output_tokens, block, self.mask_idx)
        every = prev_output_tokens.new_full((1, int(positions.max()) + 1), self.mask_idx)
        x = self.embed_scale * self.embed_tokens(tokens) + self.embed_positions(every)[0][positions]  # (B, T, D)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)  # (T, B, D) for fairseq's layers
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill_(~seen, float("-inf"))
        memory = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        for layer in self.layers:
            x = layer(x, *memory, self_attn_mask=mask.repeat_interleave(layer.self_attn.num_heads, 0))[0]  # (B H, T, T)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        sentence = torch.arange(x.size(0), device=x.device)[:, None]
        width = prev_output_tokens.size(1)
        first = x[sentence, block.starts][:, :, None]  # (B, A, 1, D)
        return torch.cat([first, x[:, width:].unflatten(1, (first.size(1), block.block_size - 1))], 2)


@register_model("block_causal")
class CausalBlockDrafterModel(BlockDrafterModel):
    """fairseq's Transformer, plus ``decoder.successor``."""

    causal = True
    decoder_class = CausalBlockDecoder

    @classmethod
    def add_args(cls, parser):
        add_common_args(parser)
        parser.add_argument(
            "--successor-width",
            type=int,
            metavar="R",
            help="hidden units of the network that conditions a drafted token on the previous one (default: 0, none); "
            "the engine's kernels support multiples of 32",
        )

    def forward(self, src_tokens, src_lengths, prev_output_tokens, block: ManyBlocks, features_only=False):  # type: ignore[override]
        """Logits (N, V), or features (N, D), of the blocks' predictions, in row-major order of ``block.masked`` (B, A, K).

        Args:
            src_tokens: (B, S') int64, padded on either side. src_lengths: unused, fairseq's convention.
            prev_output_tokens: (B, S) int64, eos and the prefix, right padding.
        """
        return self.decoder(prev_output_tokens, self.encoder(src_tokens, src_lengths=src_lengths), block, features_only)


@register_model_architecture("block_causal", "block_causal")
def block_causal_architecture(args):
    """Transformer base, as for ``block``."""
    args.successor_width = getattr(args, "successor_width", None) or 0
    block_architecture(args)
