"""fairseq side: the tasks that ``--task`` can name.

``--user-dir specdec_plugins`` imports this package in every fairseq command, whichever task it runs, so what
all of them need is done here: checkpoints load with torch's protection on, CPU training takes fast kernels, and ``--curriculum``
orders as many epochs as it says.
"""

import os

import torch
from fairseq.data.iterators import EpochBatchIterator

from specdec_plugins.formats.checkpoint import allow_fairseq_types


def choose_kernels() -> None:
    """Pick float32 kernels for training, from measurements (see ``benchmarks/README.md``).

    ``SPECDEC_MATMUL=bf16`` sends float32 matrix products through bfloat16 units where the hardware has them;
    weights, sums and everything else stay float32. (fairseq-train's own ``--bf16`` asks for a TPU.)
    """
    precision = os.environ.get("SPECDEC_MATMUL", "float32")
    if precision not in ("float32", "bf16"):
        raise ValueError(f"SPECDEC_MATMUL={precision!r} is unknown. Available: bf16, float32.")
    if precision == "bf16":
        torch.set_float32_matmul_precision("medium")
    if not torch.cuda.is_available():
        # The CPU flash kernel is slow on batches of many short sentences; the plain one computes the same.
        torch.backends.cuda.enable_flash_sdp(False)


def shuffle_after_curriculum() -> None:
    """Shuffle the epochs after those of ``--curriculum``: fairseq's reused data loader keeps the first epoch's order for all."""
    batches_of = EpochBatchIterator._get_iterator_for_epoch

    def batches_as_asked(self, epoch, shuffle, *args, **kwargs):
        if self.dataloader is not None:
            self.epoch_batch_sampler.shuffle = shuffle
        return batches_of(self, epoch, shuffle, *args, **kwargs)

    EpochBatchIterator._get_iterator_for_epoch = batches_as_asked


allow_fairseq_types()
choose_kernels()
shuffle_after_curriculum()
