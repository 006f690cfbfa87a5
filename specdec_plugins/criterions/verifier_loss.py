"""The verifier's loss: fairseq's label-smoothed cross-entropy, computed in bfloat16 where training asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.modules import MultiheadAttention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Target tokens from which a CPU takes the flash kernel. Forward and backward of 4 heads of 64, one thread of a Xeon at 2.5 GHz,
# milliseconds by flash and plain: 250 tokens (batch of 16) 97 and 127, 1,000 (4) 270 and 530, 4,000 (1) 970 and 2,150; and it
# keeps no weight of every pair of positions. On batches of many short sentences it is the slower one.
LONG = 256

# Arguments with which fairseq's attention to the source, written for decoding, takes masks and kernels as the others do.
AS_IN_TRAINING = {"static_kv": False, "need_weights": False, "need_head_weights": False}


@contextmanager
def flash_attention(model: nn.Module) -> Iterator[None]:
    """Every attention takes the flash kernel: those to the source, too, which fairseq computes step by step as in decoding."""

    def as_in_training(_, args, kwargs):
        return args, kwargs | AS_IN_TRAINING

    layers = [layer for layer in model.modules() if isinstance(layer, MultiheadAttention) and layer.encoder_decoder_attention]
    hooks = [layer.register_forward_pre_hook(as_in_training, with_kwargs=True) for layer in layers]
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@register_criterion("verifier_loss", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class VerifierLoss(LabelSmoothedCrossEntropyCriterion):
    """As fairseq's; with ``SPECDEC_MATMUL=bf16`` the model runs under autocast on a CPU.

    Weights, softmax, sums and the optimiser stay in float32. Activations in bfloat16 halve the memory traffic of a step, and
    processors with AVX-512 but without AMX get bfloat16 products no other way. fairseq offers no autocast on CPUs; the
    criterion is the one place that sees the whole forward pass and leaves the checkpoint a stock Transformer's. The same goes for
    the attention kernel of long batches (`LONG`).
    """

    def forward(self, model, sample, reduce=True):
        device = sample["target"].device.type
        mixed = device == "cpu" and torch.get_float32_matmul_precision() == "medium"
        long = device == "cpu" and sample["target"].size(1) >= LONG
        flash = flash_attention(model) if long else nullcontext()
        autocast = torch.autocast(device, dtype=torch.bfloat16) if mixed else nullcontext()  # fairseq's own (--amp) stays on
        with autocast, flash:
            return self.compute(model, sample, reduce)

    def compute(self, model, sample, reduce):
        """The loss of a batch; kernels and precision are chosen."""
        return super().forward(model, sample, reduce)
