"""Number formats and kernels of training on a CPU, by measured speed. Knows torch, not fairseq."""

from contextlib import AbstractContextManager, nullcontext

import torch

PRECISIONS = "float32", "bf16"


def choose_kernels(precision: str) -> None:
    """Compute float32 matrix products in ``precision``, for the whole process: ``bf16`` where the hardware can. Everything else
    stays float32. Raises ValueError for another word."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision '{precision}' is unknown; available: {', '.join(PRECISIONS)}")
    torch.set_float32_matmul_precision("medium" if precision == "bf16" else "highest")
    if not torch.cuda.is_available():
        torch.backends.cuda.enable_flash_sdp(False)  # on CPUs slow on batches of many short sentences


def mixed(device: str) -> AbstractContextManager[object]:
    """Autocast to bfloat16 on a CPU whose products are in bfloat16, else nothing: fairseq's own (``--amp``) stays on. Weights,
    softmax, sums and the optimiser stay in float32.

    bfloat16 activations halve a step's memory traffic, and CPUs with AVX-512 but no AMX multiply in bfloat16 only this way.
    """
    if device == "cpu" and torch.get_float32_matmul_precision() == "medium":
        return torch.autocast(device, dtype=torch.bfloat16)
    return nullcontext()
