"""``--arch block``: a Transformer whose decoder fills a block of mask symbols in one pass (Xia et al. 2023, section 3.2).

The decoder reads a visible prefix followed by K mask symbols, attends in both directions, has no length predictor, and adds
positions to the input of every layer.

B sentences, S source positions, T target positions, N predicted positions (over the batch), D width, V vocabulary.
"""

from collections.abc import Callable

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerEncoder, TransformerModel, base_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor

# Values of a checkpoint's format marker. Checkpoints of the original code have none.
ORIGINAL_FORM = 1  # embeddings are not scaled
SCALED_FORM = 2  # embeddings are scaled as the settings say, like the verifier's
FINGERPRINT_BYTES = 32

Glance = Callable[[Tensor], tuple[Tensor, Tensor]]


class BlockEncoder(TransformerEncoder):
    """fairseq's encoder; also returns the source positions, for the decoder's copy attention."""

    def forward(self, src_tokens, src_lengths=None, return_all_hiddens=False, token_embeddings=None):
        encoder_out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        encoder_out["encoder_positions"] = [self.embed_positions(src_tokens)]  # (B, S, D)
        return encoder_out


class BlockDecoder(TransformerDecoder):
    """See the module's docstring."""

    def __init__(self, args, dictionary, embed_tokens, no_encoder_attn=False, output_projection=None):
        super().__init__(args, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self.mask_idx = dictionary.unk()
        self.copy_attn: torch.nn.Linear | None = None
        if getattr(args, "src_embedding_copy", False):
            self.copy_attn = torch.nn.Linear(self.embed_dim, self.embed_dim, bias=False)

    def forward(self, prev_output_tokens, encoder_out, masked=None, features_only=False):
        """Logits at ``masked``: (N, V), or everywhere: (B, T, V). See ``BlockDrafterModel.forward``."""
        features = self.extract_features(prev_output_tokens, encoder_out)[0]
        features = features if masked is None else features[masked]  # first, as the output projection is the widest product
        return features if features_only else self.output_layer(features)

    def extract_features(self, prev_output_tokens, encoder_out):
        """(B, T, D) features and, by fairseq's convention, a dictionary of extras (empty)."""
        positions = self.embed_positions(prev_output_tokens)  # (B, T, D)
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        if self.copy_attn is not None:
            is_mask = prev_output_tokens.eq(self.mask_idx)[..., None]  # (B, T, 1)
            x = torch.where(is_mask, self.copy_source(positions, encoder_out).to(x), x)
        padding = prev_output_tokens.eq(self.padding_idx)  # (B, T)
        positions = positions.transpose(0, 1)
        x = x.transpose(0, 1)  # (T, B, D) for fairseq's layers
        memory = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        for index, layer in enumerate(self.layers):
            x = x + positions
            if index == 0 and self.layernorm_embedding is not None:
                x = self.layernorm_embedding(x)
            x = self.dropout_module(x)
            x = layer(x, *memory, self_attn_padding_mask=padding)[0]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return (x if self.project_out_dim is None else self.project_out_dim(x)), {}

    def copy_source(self, positions: Tensor, encoder_out) -> Tensor:
        """(B, T, D) attention-weighted mean of the source embeddings, for mask symbols.

        softmax(W q (e + p)) e over unpadded source tokens, unscaled, where q embeds the target position, e are the source
        embeddings and p their positions.
        """
        assert self.copy_attn is not None, "only with --src-embedding-copy"
        embeddings = encoder_out["encoder_embedding"][0]  # (B, S, D)
        keys = embeddings + encoder_out["encoder_positions"][0]  # (B, S, D)
        scores = self.copy_attn(positions.to(keys)) @ keys.transpose(1, 2)  # (B, T, S)
        padding = encoder_out["encoder_padding_mask"][0][:, None]  # (B, 1, S)
        weights = scores.float().masked_fill(padding, float("-inf")).softmax(-1)
        return weights.to(embeddings) @ embeddings


@register_model("block")
class BlockDrafterModel(TransformerModel):
    """fairseq's Transformer with a block decoder; parameters have fairseq's names, plus ``decoder.copy_attn``."""

    @classmethod
    def add_args(cls, parser):
        TransformerModel.add_args(parser)
        parser.add_argument("--apply-bert-init", action="store_true", help="initialise weights as BERT does")
        parser.add_argument(
            "--src-embedding-copy",
            action="store_true",
            help="a mask position's input is an attention-weighted mean of the source embeddings",
        )

    @classmethod
    def build_model(cls, args, task):
        refuse_unsupported(args)
        return super().build_model(args, task)

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens):
        return initialised(BlockEncoder(args, src_dict, embed_tokens), args)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens):
        return initialised(BlockDecoder(args, tgt_dict, embed_tokens), args)

    def __init__(self, args, encoder, decoder):
        super().__init__(args, encoder, decoder)
        self.register_buffer("block_format", torch.tensor([SCALED_FORM]))
        # Fingerprint of the verifier that it was initialised from; zeros if unknown. Training carries it along.
        self.register_buffer("block_verifier", torch.zeros(FINGERPRINT_BYTES, dtype=torch.uint8))
        self._scales = encoder.embed_scale, decoder.embed_scale

    def forward(
        self, src_tokens, src_lengths, prev_output_tokens, masked=None, glance: Glance | None = None, features_only=False
    ):
        """Predict the masked positions.

        Args:
            src_tokens: (B, S) int64, padded on either side. src_lengths: unused, fairseq's convention.
            prev_output_tokens: (B, T) int64, prefix, mask symbols, right padding.
            masked: (B, T) bool, the positions to predict; None for all.
            glance: maps the result of a first pass, without gradient, to the ``prev_output_tokens`` and ``masked`` of the
                second. Both passes drop out the same units and share the encoder output.
            features_only: return features of width D instead of logits.

        Returns: (N, V) logits in row-major order of ``masked``, or (B, T, V) without it.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        if glance is not None:
            devices = [src_tokens.device] if src_tokens.is_cuda else []
            with torch.no_grad(), torch.random.fork_rng(devices=devices):
                prev_output_tokens, masked = glance(self.decoder(prev_output_tokens, encoder_out, masked, features_only))
        return self.decoder(prev_output_tokens, encoder_out, masked, features_only)

    def upgrade_state_dict_named(self, state_dict, name):
        """Read the format marker; fairseq calls this with a checkpoint's weights before loading them."""
        super().upgrade_state_dict_named(state_dict, name)
        prefix = f"{name}." if name else ""
        form = int(state_dict.setdefault(f"{prefix}block_format", torch.tensor([ORIGINAL_FORM])))
        state_dict.setdefault(f"{prefix}block_verifier", torch.zeros(FINGERPRINT_BYTES, dtype=torch.uint8))
        if form not in (ORIGINAL_FORM, SCALED_FORM):
            raise ValueError(f"block drafter of format {form}; this version reads formats {ORIGINAL_FORM} and {SCALED_FORM}")
        self.encoder.embed_scale, self.decoder.embed_scale = self._scales if form == SCALED_FORM else (1.0, 1.0)


def refuse_unsupported(args) -> None:
    """Raise ValueError naming every setting of fairseq's Transformer that the drafter does not support."""
    unsupported = {
        "no_token_positional_embeddings": "a drafter without positions cannot tell mask symbols apart",
        "adaptive_softmax_cutoff": "it needs logits over the whole vocabulary",
        "adaptive_input": "the source copy needs plain embeddings",
        "no_cross_attention": "the decoder must see the source",
        "cross_self_attention": "self- and cross-attention are separate here",
    }
    faults = [f"--{name.replace('_', '-')}: {why}" for name, why in unsupported.items() if getattr(args, name, None)]
    if args.encoder_embed_dim != args.decoder_embed_dim:
        faults.append("--encoder-embed-dim and --decoder-embed-dim differ: the source copy needs one width")
    if faults:
        raise ValueError("--arch block does not support " + "; ".join(faults))


def initialised(module, args):
    if getattr(args, "apply_bert_init", False):
        module.apply(init_bert_params)
    return module


@register_model_architecture("block", "block")
def block_architecture(args):
    """Transformer base (6 + 6 layers, D = 512), as published; every dimension has an option."""
    for option in ("apply_bert_init", "src_embedding_copy"):
        setattr(args, option, getattr(args, option, False))
    base_architecture(args)
