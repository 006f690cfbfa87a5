"""fairseq side: the tasks that ``--task`` can name.

``--user-dir specdec_plugins`` imports this package in every fairseq command, whichever task it runs, so what
all of them need is done here: checkpoints load with torch's protection on, and CPU training takes fast kernels.
"""

import os

import torch

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


allow_fairseq_types()
choose_kernels()
