"""The verifier's loss: fairseq's label-smoothed cross-entropy, computed in bfloat16 where training asks for it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from fairseq.modules import MultiheadAttention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.criterions.guided_attention import AS_IN_TRAINING, GuidedAttention, sentence_ends
from specdec_plugins.criterions.shifted_positions import shifted_positions
from specdec_plugins.criterions.stutters import with_stutters

# Target tokens from which on a CPU takes the flash kernel. Forward and backward of 4 heads of 64, one thread of a Xeon at
# 2.5 GHz, milliseconds by flash and plain: 250 tokens (batch of 16) 97 and 127, 1,000 (4) 270 and 530, 4,000 (1) 970 and 2,150;
# and it keeps no weight of every pair of positions. On batches of many short sentences it is the slower one.
LONG = 256
MEMORY = 50  # updates over which the attention that strays is averaged
DAMPING = 5  # nats for each that strays


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


@dataclass
class VerifierLossConfig(LabelSmoothedCrossEntropyCriterionConfig):
    guided_attention: float = field(
        default=0.0, metadata={"help": "weight of the loss that holds attention in its sentence, for documents; 0 is none"}
    )
    shifted_positions: float = field(
        default=0.0, metadata={"help": "share of the sentences that train at random positions, as if far into a document"}
    )
    stutters: float = field(
        default=0.0, metadata={"help": "so many in a thousand symbols of the prefix, for documents, to go on behind circles"}
    )


@register_criterion("verifier_loss", dataclass=VerifierLossConfig)
class VerifierLoss(LabelSmoothedCrossEntropyCriterion):
    """As fairseq's; with ``SPECDEC_MATMUL=bf16`` the model runs under autocast on a CPU.

    Weights, softmax, sums and the optimiser stay in float32. Activations in bfloat16 halve the memory traffic of a step, and
    processors with AVX-512 but without AMX get bfloat16 products no other way. fairseq offers no autocast on CPUs; the
    criterion is the one place that sees the whole forward pass and leaves the checkpoint a stock Transformer's. So is it of the
    attention kernel (`LONG`), of stutters, shifted positions and guided attention.
    """

    def __init__(
        self, task, sentence_avg, label_smoothing, ignore_prefix_size=0, report_accuracy=False,
        guided_attention=0.0, shifted_positions=0.0, stutters=0.0,
    ):  # fmt: skip
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.guided_attention = guided_attention
        self.shifted_positions = shifted_positions
        self.stutters = stutters
        self.steps, self.straying = 0, 1.0  # mean of the attention loss; begun anew when training is resumed
        if guided_attention or stutters:
            self.ends = sentence_ends(task.source_dictionary, task.target_dictionary)

    def forward(self, model, sample, reduce=True):
        device = sample["target"].device.type
        mixed = device == "cpu" and torch.get_float32_matmul_precision() == "medium"
        long = device == "cpu" and sample["target"].size(1) >= LONG
        flash = flash_attention(model) if long else nullcontext()
        autocast = torch.autocast(device, dtype=torch.bfloat16) if mixed else nullcontext()  # fairseq's own (--amp) stays on
        with autocast, flash:
            return self.trained(model, sample, reduce) if model.training else super().forward(model, sample, reduce)

    def trained(self, model, sample, reduce):
        """The loss of a training step: prefixes stutter, sentences are moved, attention is guided."""
        if self.stutters:
            sample = self.with_stutters(model, sample)
        source, prefix = (sample["net_input"][side] for side in ("src_tokens", "prev_output_tokens"))
        attention = None
        with ExitStack() as stack:
            if self.shifted_positions:
                symbols = source.ne(self.padding_idx), prefix.ne(self.padding_idx)
                stack.enter_context(shifted_positions(model, *symbols, self.shifted_positions))
            if self.guided_attention:
                attention = GuidedAttention(model, source, prefix, self.padding_idx, self.ends, DAMPING * self.straying)
                stack.enter_context(attention.watch())
            loss, sample_size, log = super().forward(model, sample, reduce)
        if not attention:
            return loss, sample_size, log
        guidance = attention.loss()
        self.steps += 1
        self.straying += (float(guidance.detach()) - self.straying) / min(self.steps, MEMORY)
        guidance = guidance * sample_size
        return loss + self.guided_attention * guidance, sample_size, log | {"guidance": guidance.detach()}

    def with_stutters(self, model, sample):
        inputs = sample["net_input"]
        prefix, target = with_stutters(
            inputs["prev_output_tokens"], sample["target"], self.stutters / 1000, self.padding_idx,
            {self.task.target_dictionary.eos(), self.ends[1]}, model.max_decoder_positions(),
        )  # fmt: skip
        return {**sample, "target": target, "net_input": {**inputs, "prev_output_tokens": prefix}}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        super().reduce_metrics(logging_outputs)
        if guided := [log for log in logging_outputs if "guidance" in log]:
            size = sum(log["sample_size"] for log in guided)
            metrics.log_scalar("guidance", sum(log["guidance"] for log in guided) / size, size, round=3)
