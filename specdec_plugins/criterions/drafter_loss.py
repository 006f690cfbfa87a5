"""The drafters' losses: ``--criterion glat_loss`` and ``drafter_loss``.

B sentences, T target positions, K block size, N predicted positions (over the batch), D width.
"""

import math
from dataclasses import dataclass, field

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics

from specdec_plugins.decoding.networks.cross_entropy import cross_entropy
from specdec_plugins.decoding.networks.drafter_code import Batch
from specdec_plugins.decoding.networks.masking import MaskedBlock, block_view, leading_right, reveal
from specdec_plugins.training.precision import mixed
from specdec_plugins.training.token_ids import token_ids


@dataclass
class GlatLossConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.0, metadata={"help": "probability mass spread over the vocabulary"})


@register_criterion("glat_loss", dataclass=GlatLossConfig)
class GlatLoss(FairseqCriterion):
    """Cross-entropy on masked block positions, with glancing (Qian et al. 2021) in training.

    It is a sum, which fairseq divides by the number of predicted tokens over the update.
    """

    def __init__(self, task, label_smoothing):
        super().__init__(task)
        self.label_smoothing = label_smoothing

    def forward(self, model, sample, reduce=True):
        """Returns (loss, number of predicted tokens, logging output).

        ``sample["block"]`` is a MaskedBlock. A positive ``sample["glancing_ratio"]`` requests a glancing pass first, with
        ``sample["reveal_scores"]`` (B, T) as its random numbers.
        """
        if "block" not in sample:
            raise ValueError("--criterion glat_loss requires --task translation_lev_modified and --noise block_mask")
        block: MaskedBlock = sample["block"]
        ratio = sample.get("glancing_ratio", 0.0)
        log = {"ntokens": sample["ntokens"], "nsentences": sample["target"].size(0)}
        masked = block.masked  # (B, T): glance rebinds it to the positions that stay masked in the pass with gradient

        def glance(features):  # (N, D)
            nonlocal masked
            *_, right = self.compute_loss(model, features, block.target, masked)
            log.update(acceptance_counts(block_view(right, block)), block_targets=features.size(0))
            revealed = reveal(~right, block.masked, ratio, sample["reveal_scores"])
            masked = block.masked & ~revealed
            return torch.where(revealed, block.target, block.prev_target), masked

        source = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        how = {"masked": block.masked, "glance": glance if ratio > 0 else None, "features_only": True}
        features = model(*source, block.prev_target, **how)
        loss, nll_loss, right = self.compute_loss(model, features, block.target, masked)
        if ratio <= 0:
            present = None if model.training else block_view(block.masked, block)
            log.update(acceptance_counts(block_view(right, block), present))
        sample_size = features.size(0)
        log.update(loss=loss.data, nll_loss=nll_loss.data, sample_size=sample_size)
        return loss, sample_size, log

    def compute_loss(self, model, features, target, masked):
        """Smoothed and plain loss in nats, summed over ``masked``, and a mask of right predictions, shaped like ``masked``.

        Features (N, D) are those of the masked positions.
        """
        projection = model.decoder.output_projection.weight
        loss, nll_loss, hits = cross_entropy(features, projection, target[masked], self.label_smoothing)
        right = torch.zeros_like(masked)
        right[masked] = hits
        return loss.sum(), nll_loss.sum(), right

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Log losses per token (base 2), ``accept_len`` per block and, in validation, ``block_acc`` by position."""

        def total(key):
            value = sum(log.get(key, 0) for log in logging_outputs)
            return value.item() if torch.is_tensor(value) else value

        predicted, targets = total("sample_size"), total("block_targets")
        blocks = total("nblocks") or total("nsentences")
        if predicted > 0:
            for key in ("loss", "nll_loss"):
                metrics.log_scalar(key, total(key) / predicted / math.log(2), predicted, round=3)
            metrics.log_derived("ppl", lambda meters: round(2 ** min(meters["nll_loss"].avg, 100), 2))
        if targets > 0:
            metrics.log_scalar("revealed", 1 - predicted / targets, targets, round=3)
        if blocks > 0 and any("leading" in log for log in logging_outputs):
            metrics.log_scalar("accept_len", total("leading") / blocks + 1, blocks, round=3)
        positions = sorted({key for log in logging_outputs for key in log if key.startswith("present_")})
        for key in positions:
            if present := total(key):  # the leading underscore keeps the values out of the log line, which gets one list
                metrics.log_scalar(f"_{key}", total(key.replace("present", "right")) / present, present)
        if positions:
            metrics.log_derived(
                "block_acc", lambda meters: [round(meters[f"_{key}"].avg, 3) for key in positions if f"_{key}" in meters]
            )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@register_criterion("drafter_loss", dataclass=FairseqDataclass)
class DrafterLoss(GlatLoss):
    """The loss of a drafter that is one file; fairseq divides it by the number of predictions over the update."""

    def __init__(self, task):
        super().__init__(task, label_smoothing=0.0)

    def forward(self, model, sample, reduce=True):
        """Returns (loss, number of predictions, logging output)."""
        if not hasattr(model, "verifier_as"):
            raise ValueError("--criterion drafter_loss requires --arch drafter")
        verifier = model.verifier_as(next(model.parameters()))
        symbols, target, data = verifier.spec.symbols, sample["target"], sample["net_input"]
        source, prefix = data["src_tokens"], data["prev_output_tokens"]
        if model.drafted is not None:
            source, prefix, target = (
                token_ids(each, symbols, end)
                for each, end in ((source, symbols.pad), (prefix, symbols.start), (target, symbols.eos))
            )
        padded = source.eq(symbols.pad)
        source = source.gather(1, padded.long().argsort(dim=1, stable=True))  # fairseq pads sources on the left
        with mixed(target.device.type):
            loss, count, right, present = model(Batch(source, prefix, target, symbols, verifier))
        log = {"loss": loss.data, "nll_loss": loss.data, "sample_size": count, "ntokens": sample["ntokens"]}
        if right is not None:
            log |= {**acceptance_counts(right, None if model.training else present), "nblocks": right.size(0)}
        return loss, count, {**log, "nsentences": target.size(0)}


def acceptance_counts(right, present=None) -> dict[str, torch.Tensor]:
    """Sums over blocks for ``accept_len``, from ``right`` (B, K) bool: which positions were predicted right.

    With ``present`` (B, K), the positions that had a target, also the counts for accuracy by block position (from 1).
    """
    counts = {"leading": leading_right(right).sum()}
    for index in range(0 if present is None else right.size(1)):
        counts[f"present_{index + 1:03d}"] = present[:, index].sum()
        counts[f"right_{index + 1:03d}"] = right[:, index].sum()
    return counts
