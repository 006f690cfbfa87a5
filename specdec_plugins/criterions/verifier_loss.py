"""The verifier's loss: fairseq's label-smoothed cross-entropy, computed in bfloat16 where training asks for it."""

from contextlib import nullcontext

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

# Target tokens from which on a CPU takes the flash kernel. Forward and backward of 4 heads of 64, one thread of a Xeon at
# 2.5 GHz, milliseconds by flash and plain: 250 tokens (batch of 16) 97 and 127, 1,000 (4) 270 and 530, 4,000 (1) 970 and 2,150;
# and it keeps no weight of every pair of positions. On batches of many short sentences it is the slower one.
LONG = 256


@register_criterion("verifier_loss", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class VerifierLoss(LabelSmoothedCrossEntropyCriterion):
    """As fairseq's; with ``SPECDEC_MATMUL=bf16`` the model runs under autocast on a CPU.

    Weights, softmax, sums and the optimiser stay in float32. Activations in bfloat16 halve the memory traffic of a step, and
    processors with AVX-512 but without AMX get bfloat16 products no other way. fairseq offers no autocast on CPUs; the
    criterion is the one place that sees the whole forward pass and leaves the checkpoint a stock Transformer's. So is it of the
    attention kernel: `LONG`.
    """

    def forward(self, model, sample, reduce=True):
        device = sample["target"].device.type
        mixed = device == "cpu" and torch.get_float32_matmul_precision() == "medium"
        long = device == "cpu" and sample["target"].size(1) >= LONG
        flash = sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]) if long else nullcontext()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed), flash:
            return super().forward(model, sample, reduce)
