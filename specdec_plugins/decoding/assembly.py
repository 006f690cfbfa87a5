"""From models to roles: loads both models on the best backend, and builds the drafter and the verifier over them."""

from dataclasses import replace

import torch

from specdec_plugins.cpus import usual_threads
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.backends.cpu import model as cpu
from specdec_plugins.decoding.backends.torch.arrays import tensors
from specdec_plugins.decoding.backends.torch.graphs import EAGER, Executor, Recorder, cuda_graphs
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.compiled import chosen
from specdec_plugins.decoding.roles import Drafter, NoDrafter
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.spec import DrafterModel, Model

RECORDINGS = 1 / 8  # of a GPU's memory that recorded passes may take
THREADS = usual_threads()  # before anything here changes torch's choice


def assemble(
    verifier: Model,
    drafter: DrafterModel | None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    kernels: str | None = None,
) -> tuple[Drafter, ModelVerifier]:
    """The drafter (``none`` without weights) and the verifier.

    The kernels run on CPUs in ``cpu.DTYPES``, PyTorch everything else. Data type ``auto`` is the fastest: int8 with the kernels,
    float16 on a GPU, or bfloat16 for a model that overflows it, else float32. ``kernels`` names the kernels' instruction set, by
    default the best. Raises ValueError for a data type that no backend computes in, or that the model overflows, and for named
    kernels that cannot run here.
    """
    loaded, drafting = load(verifier, drafter, device, dtype, threads, kernels)
    if drafter is None:
        return NoDrafter(), ModelVerifier(loaded)
    own = replace(drafter, tensors=tensors(drafter.tensors))
    return drafters.with_weights(drafter.code).build(own, drafting, loaded), ModelVerifier(loaded)


def load(
    verifier: Model,
    drafter: DrafterModel | None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    kernels: str | None = None,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Both models on one backend; None for a drafter that is not one of our Transformers. Raises ValueError as `assemble`."""
    drafter = drafter and drafters.as_transformer(drafter, verifier)
    where, automatic = torch.device(device), dtype == "auto"
    narrow = [each.spec for each in (verifier, drafter) if each and each.spec and not each.spec.float16]
    if automatic:
        dtype = {"cpu": "int8", "cuda": "bfloat16" if narrow else "float16"}.get(where.type, "float32")
    if dtype == "float16" and narrow:
        raise ValueError("float16: this model's hidden states exceed its range; use bfloat16 or float32")
    if dtype == "int8" and where.type != "cpu":
        raise ValueError(f"int8 runs only on CPUs, not on device {device}")
    if where.type == "cpu" and dtype in cpu.DTYPES:
        library = chosen(kernels)
        models = load_pair(verifier, drafter, device, torch.float32, packing=True)
        obstacles = [each for model in models if model for each in cpu.obstacles(model)]
        if not obstacles:
            torch.set_num_threads(1)  # PyTorch's idle threads would compete with the kernels'
            own = drafters.kernels_dtype(drafter.code) if drafter else dtype
            return cpu.load(*models, dtype, threads or THREADS, own, library)
        if kernels is not None:
            raise ValueError(f"kernels for {kernels} cannot run this model: {'; '.join(dict.fromkeys(obstacles))}")
        if automatic:
            dtype = "float32"
        if dtype == "int8":
            raise ValueError(f"int8 needs the CPU kernels: {'; '.join(dict.fromkeys(obstacles))}")
    torch.set_num_threads(threads or THREADS)
    first, second = load_pair(verifier, drafter, device, getattr(torch, dtype))
    executor: Executor = EAGER
    if where.type == "cuda":
        memory = torch.cuda.get_device_properties(where).total_memory
        executor = Recorder(cuda_graphs(where), most=int(RECORDINGS * memory))
    return TorchModel(first, executor), TorchModel(second, executor) if second else None
