"""From two models' weights to the loop's roles, on the best backend there is: the CPU kernels, or PyTorch."""

import torch

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance import TopBetaTau
from specdec_plugins.decoding.backends.cpu import kernels
from specdec_plugins.decoding.backends.torch.graphs import EAGER, Recorder, cuda_graphs
from specdec_plugins.decoding.backends.torch.transformer import load_pair
from specdec_plugins.decoding.loop import Drafter
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.spec import DrafterModel, Model

THREADS = torch.get_num_threads()  # torch's choice, before anything here changes it


def load_roles(
    verifier: Model, drafter: DrafterModel | None, device: torch.device | str = "cpu", dtype: str = "float32",
    threads: int | None = None, beta: int = 1, tau: float = float("inf"),
) -> tuple[Drafter, TransformerVerifier, TopBetaTau]:  # fmt: skip
    """A block drafter (or the drafter ``none``), the verifier and the acceptance rule.

    The kernels compute on CPUs in ``kernels.DTYPES``; with them PyTorch is left one thread, as its idle threads would be in
    their way. Data type ``auto`` is the fastest: int8 on the kernels, float16 on a GPU, else float32. Raises ValueError if
    nothing computes in that data type.
    """
    where, automatic = torch.device(device), dtype == "auto"
    if automatic:
        dtype = {"cpu": "int8", "cuda": "float16"}.get(where.type, "float32")
    wanted = where.type == "cpu" and dtype in kernels.DTYPES
    if dtype == "int8" and not wanted:
        raise ValueError(f"int8 is for CPUs, not for device {device}")
    runner = Recorder(cuda_graphs(where)) if where.type == "cuda" else EAGER
    models = load_pair(verifier, drafter, device, torch.float32 if wanted else getattr(torch, dtype), runner)
    obstacles = [each for model in models if model for each in kernels.obstacles(model)] if wanted else ["not wanted"]
    if not obstacles:
        torch.set_num_threads(1)
        verifying, drafting = kernels.on_kernels(*models, dtype, threads or THREADS)
        return (
            kernels.drafter(drafting) if drafting else drafters.build("none", None),
            kernels.NativeVerifier(verifying),
            kernels.NativeTopBetaTau(beta, tau, engine=verifying.engine),
        )
    if automatic and wanted:
        dtype = "float32"
    if dtype == "int8":
        raise ValueError(f"int8 needs the CPU kernels: {'; '.join(dict.fromkeys(obstacles))}")
    if wanted and dtype != "float32":
        models = load_pair(verifier, drafter, device, getattr(torch, dtype))
    torch.set_num_threads(threads or THREADS)
    drafting_model = models[1]
    return (
        drafters.build(drafting_model.code or "none" if drafting_model else "none", drafting_model),
        TransformerVerifier(models[0]),
        TopBetaTau(beta, tau, runner),
    )
