"""``--lr-scheduler plateau`` for fairseq-train: the learning rate of ``specdec-draft``. In this folder as `muon.py` is."""

from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from specdec_plugins.training.drafting import learning_rate


@dataclass
class PlateauConfig(FairseqDataclass):
    warmup_updates: int = field(default=0, metadata={"help": "updates over which the learning rate rises"})
    total_num_update: float = field(default=II("optimization.max_update"), metadata={"help": "updates in all"})
    lr: Any = field(default=II("optimization.lr"))


@register_lr_scheduler("plateau", dataclass=PlateauConfig)
class Plateau(FairseqLRScheduler):
    """It rises, stays, and falls to 0 over the last part."""

    def __init__(self, cfg: PlateauConfig, optimizer):
        super().__init__(cfg, optimizer)
        self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        cfg = self.cfg
        self.optimizer.set_lr(learning_rate(cfg.lr[0], cfg.warmup_updates, num_updates, num_updates / cfg.total_num_update))
        return self.optimizer.get_lr()
