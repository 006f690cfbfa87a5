"""``--optimizer muon`` of fairseq-train. It is in this folder because fairseq's ``--user-dir`` imports the files of this one."""

from collections.abc import Iterable
from dataclasses import dataclass

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor

from specdec_plugins.training.muon import Muon, is_hidden


@dataclass
class MuonConfig(FairseqAdamConfig):
    """Options of ``--optimizer muon``: those of ``adam``, which hold for its part of the parameters."""


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FairseqOptimizer):
    """The optimiser as fairseq-train builds it, from parameters without names."""

    def __init__(self, cfg: MuonConfig, params: Iterable[Tensor]):
        super().__init__(cfg)
        params = list(params)
        hidden = [p for p in params if is_hidden(p)]
        if not hidden:
            raise ValueError("--optimizer muon: found no weight matrices; with --fp16 add --fp16-no-flatten-grads")
        others = [p for p in params if not is_hidden(p)]
        self._optimizer = Muon(hidden, others, **self.optimizer_config)

    optimizer_config = FairseqAdam.optimizer_config
