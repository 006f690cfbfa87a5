"""Number formats, kernels and memory of training on a CPU, by measured speed. Knows torch, not fairseq."""

import ctypes
from contextlib import AbstractContextManager, nullcontext

import torch

# glibc's mallopt: sizes from which memory is mapped, and kept free memory from which it is returned
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
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


def keep_memory() -> None:
    """Keep the memory of large tensors from one update to the next, which glibc would return to the system and fault in again: an
    update in bfloat16 takes 0.53 instead of 0.67 processor seconds (Xeon with AMX, one thread). Other C libraries: nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 1 << 30)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
