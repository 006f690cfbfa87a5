"""``--task translation_lev_modified``, as published: fairseq's translation task with the noise ``block_mask``."""

import logging
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

# fairseq's --user-dir imports tasks and models, but not criterions.
from specdec_plugins.criterions import document_loss, drafter_loss, verifier_loss  # noqa: F401
from specdec_plugins.decoding.networks.masking import fixed_starts, lengths, mask_blocks, random_starts
from specdec_plugins.models.block import BlockDrafterModel
from specdec_plugins.tasks.generator import BeamGenerator, SpeculativeGenerator
from specdec_plugins.text.vocabulary import fingerprint_of

logger = logging.getLogger(__name__)

PUBLISHED_BLOCK_SIZE = 25


@dataclass
class BlockTranslationConfig(TranslationConfig):
    noise: ChoiceEnum(["block_mask"]) = field(default="block_mask", metadata={"help": "type of noise"})  # type: ignore[valid-type]
    # fairseq's parser reads Optional[int], not int | None.
    block_size: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={"help": "mask positions in a block, K (default: 25 in training, the drafter's own in generation)"},
    )
    start_p: float = field(default=0.5, metadata={"help": "glancing ratio at the first update"})
    minus_p: float = field(default=0.2, metadata={"help": "decrease of the glancing ratio over --total-up updates"})
    total_up: int = field(default=300000, metadata={"help": "updates over which the glancing ratio decreases linearly"})
    drafter_path: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "generation: decode speculatively with this drafter of --path"}
    )
    beta: int = field(default=1, metadata={"help": "generation: accept tokens among the verifier's N best; 1 is exact"})
    tau: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "generation: and within X nats of its best; required with --beta"}
    )


@register_task("translation_lev_modified", dataclass=BlockTranslationConfig)
class BlockTranslationTask(TranslationTask):
    """Trains block drafters. Sentences have no beginning-of-sentence symbol, as in the verifier's translation task."""

    cfg: BlockTranslationConfig

    def __init__(self, cfg, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        if cfg.block_size is None and not cfg.drafter_path:
            cfg.block_size = PUBLISHED_BLOCK_SIZE  # so that the checkpoint records it
        check_options(cfg)
        self.state.merge_state_dict({"dictionaries": [fingerprint_of(src_dict.symbols), fingerprint_of(tgt_dict.symbols)]})

    def get_batch_iterator(self, *args, **kwargs):
        """As fairseq's, without --required-batch-size-multiple, which drops a last, smaller batch."""
        return super().get_batch_iterator(*args, **{**kwargs, "required_batch_size_multiple": 1})

    def build_generator(self, models, args, **kwargs):
        if any(isinstance(model, BlockDrafterModel) for model in models):
            raise ValueError("--path is a block drafter, which cannot translate by itself; give its verifier")
        if self.cfg.drafter_path:
            dictionaries = self.source_dictionary, self.target_dictionary
            return SpeculativeGenerator(
                models, dictionaries, self.cfg.drafter_path, self.cfg.block_size, self.cfg.beta, self.cfg.tau, args
            )
        own = kwargs.get("seq_gen_cls") is None and kwargs.get("prefix_allowed_tokens_fn") is None
        if own and not models[0].training:  # else its weights will change, as in --eval-bleu
            try:
                return BeamGenerator(models, (self.source_dictionary, self.target_dictionary), args)
            except ValueError as error:
                logger.info("fairseq's own generator decodes, as ours does not support %s", error)
        return super().build_generator(models, args, **kwargs)

    def load_state_dict(self, state_dict):
        """Refuse a checkpoint trained with other dictionaries, if it records them; other tasks' do not."""
        ours = self.state_dict()["dictionaries"]
        for side, own, theirs in zip(("source", "target"), ours, state_dict.get("dictionaries", ours)):
            if own != theirs:
                raise ValueError(f"the checkpoint was trained with another {side} dictionary than {self.cfg.data} has")

    def glancing_ratio(self, update_num: int) -> float:
        """``start_p``, decreasing linearly to ``start_p - minus_p`` over ``total_up`` updates."""
        return self.cfg.start_p - self.cfg.minus_p * min(1.0, update_num / self.cfg.total_up)

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        block = self.mask(sample, random_starts(lengths(sample["target"], self.tgt_dict.pad())))
        # Drawn before the model's dropout: no two choices in an update share random numbers.
        scores = torch.rand(block.masked.shape, device=block.masked.device)
        extra = {"block": block, "reveal_scores": scores, "glancing_ratio": self.glancing_ratio(update_num)}
        return super().train_step(sample | extra, model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(self, sample, model, criterion):
        starts = fixed_starts(lengths(sample["target"], self.tgt_dict.pad()), sample["id"])
        return super().valid_step({**sample, "block": self.mask(sample, starts)}, model, criterion)

    def mask(self, sample, starts):
        """The batch's MaskedBlock after prefixes of lengths ``starts`` (B,); the mask symbol is <unk>, as published."""
        assert self.cfg.block_size is not None, "set in training"
        return mask_blocks(sample["target"], starts, self.cfg.block_size, self.tgt_dict.pad(), self.tgt_dict.unk())


def check_options(cfg: BlockTranslationConfig) -> None:
    """Raise ValueError naming every option out of range."""
    faults = []
    if cfg.block_size is not None and cfg.block_size < 1:
        faults.append(f"--block-size {cfg.block_size} is less than 1")
    if cfg.total_up < 1:
        faults.append(f"--total-up {cfg.total_up} is less than 1")
    if not (0 <= cfg.start_p <= 1 and 0 <= cfg.start_p - cfg.minus_p <= 1):
        faults.append(f"--start-p {cfg.start_p} --minus-p {cfg.minus_p} leaves the range 0 to 1")
    if cfg.left_pad_target:
        faults.append("--left-pad-target: prefixes must start at the first position")
    if faults:
        raise ValueError("translation_lev_modified: " + "; ".join(faults))
