"""Loads models for PyTorch's passes: their arrays as tensors on a device, each placed once, and what runs over them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER, Executor, Recorder, cuda_graphs
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.transformer import Transformer
from specdec_plugins.decoding.loading import Verifier, checked, same_encoder
from specdec_plugins.formats.arrays import addresses
from specdec_plugins.formats.files import unload
from specdec_plugins.formats.spec import DrafterModel

RECORDINGS = 1 / 8  # of a GPU's memory that recorded passes may take


class Placement:
    """Puts models' arrays on ``device`` in ``dtype``, each once: tied ones stay tied."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        self._placed: dict[int, tuple[object, Tensor]] = {}  # by the array's identity, which lasts as long as the array

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        for each in arrays.values():
            if id(each) not in self._placed:
                given = tensor(each).detach()
                dtype = self.dtype if given.is_floating_point() else None
                self._placed[id(each)] = each, given.to(device=self.device, dtype=dtype)
        return {name: self._placed[id(each)][1] for name, each in arrays.items()}


def load_pair(
    verifier: Verifier,
    drafter: DrafterModel | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, Transformer | None]:
    """Load verifier and drafter; None for a drafter that is not a Transformer, whose code loads it.

    A drafter whose encoder equals the verifier's shares it, held once and run once. Raises UnsupportedModel.
    """
    verifier, drafter = checked(verifier, drafter)
    place, read = Placement(device, dtype), [*verifier.tensors.values()]
    model, second = Transformer.load(replace(verifier, tensors=place(verifier.tensors))), None
    if drafter is not None and drafter.spec is not None:
        read += drafter.tensors.values()
        placed = replace(drafter, tensors=place(drafter.tensors))
        second = Transformer.load(placed, model.encoder if same_encoder(verifier, drafter) else None)
    unload(addresses(read))
    return model, second


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
