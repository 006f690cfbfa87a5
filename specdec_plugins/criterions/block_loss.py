"""``--criterion block_loss``: cross-entropy over many blocks per sentence, each token predicted after the verifier's own.

B sentences, A blocks per sentence, K block size, N predicted positions (over the batch), D width.
"""

from dataclasses import dataclass, field

from fairseq.criterions import register_criterion

from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig, acceptance_counts
from specdec_plugins.decoding.networks.masking import ManyBlocks


@dataclass
class BlockLossConfig(GlatLossConfig):
    position_decay: float = field(
        default=1.0, metadata={"help": "weight of each block position relative to the previous one, over 0 and at most 1"}
    )


@register_criterion("block_loss", dataclass=BlockLossConfig)
class BlockLoss(GlatLoss):
    """Weighted sum of the predicted tokens' losses; fairseq divides it by the sum of the weights over the update."""

    def __init__(self, task, label_smoothing, position_decay):
        super().__init__(task, label_smoothing)
        if not 0 < position_decay <= 1:
            raise ValueError(f"--position-decay {position_decay} must be over 0 and at most 1")
        self.position_decay = position_decay

    def forward(self, model, sample, reduce=True):
        """Returns (loss, sum of weights, logging output); ``sample["block"]`` is a ManyBlocks."""
        block: ManyBlocks = sample.get("block")
        if not isinstance(block, ManyBlocks):
            raise ValueError("--criterion block_loss requires --arch block_causal and --noise block_mask")
        source = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        features = model(*source, block.prev_target, block, features_only=True)  # (N, D)
        weights = self.position_decay ** block.offsets[block.masked].float()  # (N,)
        loss, nll_loss, right = self.compute_loss(model, features, block.target, block.masked, weights)
        right, present = right.flatten(0, 1), block.masked.flatten(0, 1)  # (B A, K)
        counts = acceptance_counts(right) if model.training else acceptance_counts(right, present)
        sample_size = weights.sum()
        log = {"loss": loss.data, "nll_loss": nll_loss.data, "sample_size": sample_size, "ntokens": sample["ntokens"]}
        return loss, sample_size, {**log, **counts, "nsentences": sample["target"].size(0), "nblocks": present[:, 0].sum()}
