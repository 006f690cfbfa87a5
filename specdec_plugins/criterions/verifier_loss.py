"""The verifier's loss: fairseq's label-smoothed cross-entropy, computed in bfloat16 where training asks for it."""

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)


@register_criterion("verifier_loss", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class VerifierLoss(LabelSmoothedCrossEntropyCriterion):
    """As fairseq's; with ``SPECDEC_MATMUL=bf16`` the model runs under autocast on a CPU.

    Weights, softmax, sums and the optimiser stay in float32. Activations in bfloat16 halve the memory traffic of a step, and
    processors with AVX-512 but without AMX get bfloat16 products no other way. fairseq offers no autocast on CPUs; the
    criterion is the one place that sees the whole forward pass and leaves the checkpoint a stock Transformer's.
    """

    def forward(self, model, sample, reduce=True):
        device = sample["target"].device.type
        mixed = device == "cpu" and torch.get_float32_matmul_precision() == "medium"
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            return super().forward(model, sample, reduce)
