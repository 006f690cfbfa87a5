"""From models to roles: loads both models on the best backend, and builds the drafter and the verifier over them."""

import logging
import sys

from specdec_plugins.cpus import usual_threads
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.backends.cpu import model as cpu
from specdec_plugins.decoding.compiled import chosen
from specdec_plugins.decoding.loading import checked, checked_drafter
from specdec_plugins.decoding.roles import Drafter, NoDrafter
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.extras import needed
from specdec_plugins.formats.arrays import addresses
from specdec_plugins.formats.files import unload
from specdec_plugins.formats.packed import Matrix
from specdec_plugins.formats.spec import DrafterModel, Model

log = logging.getLogger(__name__)
THREADS = usual_threads()
INTEGERS = ("int8", "int4")  # only the kernels compute with them


def assemble(
    verifier: Model,
    drafter: DrafterModel | None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    kernels: str | None = None,
) -> tuple[Drafter, ModelVerifier]:
    """The drafter (``none`` without weights) and the verifier.

    The kernels run on CPUs in ``cpu.DTYPES``, PyTorch everything else. Data type ``auto`` is the fastest: int8 with the kernels,
    or that of packed matrices if a folder has no others; float16 on a GPU, or bfloat16 for a model that overflows it; else
    float32. ``kernels`` names the kernels' instruction set, by default the best. Raises ValueError for a data type that no
    backend computes in, or that the model overflows, and for named kernels that cannot run here.
    """
    loaded, drafting = load(verifier, drafter, device, dtype, threads, kernels)
    if drafter is None:
        return NoDrafter(), ModelVerifier(loaded)
    return drafters.with_weights(drafter.code).build(drafter, drafting, loaded), ModelVerifier(loaded)


def drafter_beside(model: "cpu.CpuModel", verifier: Model, drafter: DrafterModel) -> Drafter:
    """The drafter with these weights for a verifier that the kernels have loaded as ``model``. Raises ValueError for weights that
    cannot be."""
    made = checked_drafter(drafters.as_transformer(drafter, verifier), verifier)
    loaded = None if made.spec is None else cpu.beside(model, verifier, made, drafters.kernels_dtype(made.code))
    unload(addresses(made.tensors.values()))
    built: Drafter = drafters.with_weights(drafter.code).build(drafter, loaded, model)
    return built


def load(
    verifier: Model,
    drafter: DrafterModel | None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    kernels: str | None = None,
) -> tuple[LoadedModel, LoadedModel | None]:
    """Both models on one backend; None for a drafter that is not one of our Transformers. Raises ValueError as `assemble`."""
    drafter = drafter and drafters.as_transformer(drafter, verifier)
    kind, automatic = device.partition(":")[0], dtype == "auto"
    narrow = [each.spec for each in (verifier, drafter) if each and each.spec and not each.spec.float16]
    if automatic:
        packed = [each.kind for each in verifier.tensors.values() if isinstance(each, Matrix)]
        dtype = {"cpu": min(packed, default="int8"), "cuda": "bfloat16" if narrow else "float16"}.get(kind, "float32")
    if dtype == "float16" and narrow:
        raise ValueError("float16: this model's hidden states exceed its range; use bfloat16 or float32")
    if dtype in INTEGERS and kind != "cpu":
        raise ValueError(f"{dtype} runs only on CPUs, not on device {device}")
    why = f"device {device}" if kind != "cpu" else f"data type {dtype} on CPUs"
    if kind == "cpu" and dtype in cpu.DTYPES:
        library = chosen(kernels)
        verifier, drafter = checked(verifier, drafter)
        obstacles = [each for model in (verifier, drafter) if model and model.spec for each in cpu.obstacles(model)]
        if not obstacles:
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)  # its idle threads would compete with the kernels'
            if dtype == "int4" and not (isinstance(verifier, Model) and "int4" in verifier.packed):
                log.warning("int4 weights are rounded as they are; specdec-pack --dtype int4 --calibrate TEXT makes better ones")
            own = drafters.kernels_dtype(drafter.code) if drafter else dtype
            return cpu.load(verifier, drafter, dtype, threads or THREADS, own, library)
        reasons = "; ".join(dict.fromkeys(obstacles))
        if kernels is not None:
            raise ValueError(f"kernels for {kernels} cannot run this model: {reasons}")
        if automatic:
            dtype = "float32"
        if dtype in INTEGERS:
            raise ValueError(f"{dtype} needs the CPU kernels: {reasons}")
        why = f"without the CPU kernels ({reasons}), decoding"
    with needed("torch", why):
        from specdec_plugins.decoding.backends.torch import placement
    return placement.load(verifier, drafter, device, dtype, threads or THREADS)
