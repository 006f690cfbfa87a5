"""Tasks for fairseq's ``--task``.

``--user-dir specdec_plugins`` imports this package in every fairseq command, whatever its task. So it also allows fairseq's types
in checkpoints, which load with torch's protection on, and picks fast CPU kernels.
"""

import os

import torch

from specdec_plugins.formats.checkpoint import allow_fairseq_types


def choose_kernels() -> None:
    """Pick kernels for training by measured speed.

    ``SPECDEC_MATMUL=bf16`` computes float32 matrix products in bfloat16 where the hardware can; everything else stays float32.
    (fairseq-train's own ``--bf16`` requires a TPU.)
    """
    precision = os.environ.get("SPECDEC_MATMUL", "float32")
    if precision not in ("float32", "bf16"):
        raise ValueError(f"SPECDEC_MATMUL={precision!r} is unknown. Available: bf16, float32.")
    if precision == "bf16":
        torch.set_float32_matmul_precision("medium")
    if not torch.cuda.is_available():
        # The CPU flash kernel is slow on batches of many short sentences.
        torch.backends.cuda.enable_flash_sdp(False)


allow_fairseq_types()
choose_kernels()
