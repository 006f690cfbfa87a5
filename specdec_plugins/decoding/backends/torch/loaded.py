"""Loads models for PyTorch's passes."""

import torch

from specdec_plugins.decoding.backends.torch.graphs import EAGER, Executor, Recorder, cuda_graphs
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.loading import Verifier
from specdec_plugins.formats.spec import DrafterModel

RECORDINGS = 1 / 8  # of a GPU's memory that recorded passes may take


def load(
    verifier: Verifier, drafter: DrafterModel | None, device: str, dtype: str, threads: int
) -> tuple[TorchModel, TorchModel | None]:
    """Both models; None for a drafter that is not one of our Transformers. Raises UnsupportedModel."""
    torch.set_num_threads(threads)
    first, second = load_pair(verifier, drafter, device, getattr(torch, dtype))
    executor: Executor = EAGER
    if device.startswith("cuda"):
        memory = torch.cuda.get_device_properties(device).total_memory
        executor = Recorder(cuda_graphs(device), most=int(RECORDINGS * memory))
    return TorchModel(first, executor), TorchModel(second, executor) if second else None


def check(device: str) -> None:
    """Raise ValueError for a device that is not available."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device}: {str(error).splitlines()[0]}") from None
