"""``--optimizer muon`` for fairseq-train, in this folder because ``--user-dir`` imports its files."""

from collections.abc import Iterable
from dataclasses import dataclass

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor

from specdec_plugins.training.muon import Muon, is_hidden


@dataclass
class MuonConfig(FairseqAdamConfig):
    """The options of ``--optimizer adam``; momentum options apply to the parameters that Adam trains."""


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FairseqOptimizer):
    """Muon for the parameters whose shape `is_hidden` recognises, Adam for the others."""

    def __init__(self, cfg: MuonConfig, params: Iterable[Tensor]):
        super().__init__(cfg)
        params = list(params)
        hidden = [p for p in params if is_hidden(p)]
        if not hidden:
            raise ValueError("--optimizer muon: found no weight matrices; with --fp16 add --fp16-no-flatten-grads")
        self._optimizer = Muon(hidden, [p for p in params if not is_hidden(p)], **self.optimizer_config)

    optimizer_config = FairseqAdam.optimizer_config
