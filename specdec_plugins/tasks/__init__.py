"""Tasks for fairseq's ``--task``.

``--user-dir specdec_plugins`` imports this package in every fairseq command, whatever its task. So it also allows fairseq's types
in checkpoints, which load with torch's protection on, and picks fast CPU kernels.
"""

import os

from specdec_plugins.formats.checkpoint import allow_fairseq_types
from specdec_plugins.training.precision import choose_kernels

allow_fairseq_types()
try:  # SPECDEC_MATMUL=bf16: fairseq-train's own --bf16 requires a TPU
    choose_kernels(os.environ.get("SPECDEC_MATMUL", "float32"))
except ValueError as error:
    raise ValueError(f"SPECDEC_MATMUL: {error}") from None
