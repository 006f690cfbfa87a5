"""Models' tensors on a device: checked, placed once each, and loaded as `Transformer`s."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY, POSITIONS, Transformer, UnsupportedModel
from specdec_plugins.formats.arrays import address, array
from specdec_plugins.formats.files import Mapped, unload
from specdec_plugins.formats.spec import DrafterModel, Model, storage_fault, weight_fault

AS_STORED = ("_proj.weight", "fc1.weight", "gate.weight", "fc2.weight", "output_projection.weight", "embed_tokens.weight")


class Placement:
    """Puts models' tensors on ``device`` in ``dtype``, each once: tied tensors stay tied, and a tensor that equals its namesake
    in a model placed before becomes that one.

    With ``packing`` linear layers and embeddings keep their stored data type: the kernels widen them piece by piece, so that a
    float16 model is never held in float32 as well.
    """

    def __init__(self, device: torch.device | str, dtype: torch.dtype, packing: bool = False):
        self.device, self.dtype, self.packing = device, dtype, packing
        self._placed: dict[tuple, Tensor] = {}  # by origin
        self._given: list[Tensor] = []  # kept: nothing else may take their addresses, which are origins
        self._named: dict[str, Tensor] = {}

    def __call__(self, given: Mapping[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
        tensors = {name: tensor(each).detach() for name, each in given.items()}
        self._given += tensors.values()
        origins = {name: (each.data_ptr(), each.shape, each.stride()) for name, each in tensors.items()}
        converted = {origin for name, origin in origins.items() if not (self.packing and name.endswith(AS_STORED))}
        for name, each in tensors.items():
            origin, twin = origins[name], self._named.get(name)
            if origin not in self._placed:
                dtype = self.dtype if each.is_floating_point() and origin in converted else None
                moved = each.to(device=self.device, dtype=dtype)
                self._placed[origin] = twin if twin is not None and equal(twin, moved) else moved
        result = {name: self._placed[origin] for name, origin in origins.items()}
        self._named |= result
        return result


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same values, whatever their data types."""
    common = torch.promote_types(one.dtype, other.dtype)
    return one.shape == other.shape and torch.equal(one.to(common), other.to(common))


def load_pair(
    verifier: Model | DrafterModel,
    drafter: DrafterModel | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    packing: bool = False,
) -> tuple[Transformer, Transformer | None]:
    """Load verifier and drafter; None for a drafter that is not a Transformer, whose code loads it. ``packing``: see `Placement`.

    A drafter whose encoder equals the verifier's shares it, held once and run once. Raises UnsupportedModel, also for weights
    that are not finite floats and for a drafter with another vocabulary.
    """
    check_weights(verifier, drafter)
    addresses = [address(array(each)) for model in (verifier, drafter) if model for each in model.tensors.values()]
    unload(addresses)  # checking has read all of them
    place = Placement(device, dtype, packing)
    placed = replace(verifier, tensors=place(verifier.tensors))
    model, second = Transformer.load(placed, packing=packing), None
    if drafter is not None and drafter.spec is not None:
        other = replace(drafter, tensors=place(drafter.tensors))
        second = Transformer.load(other, model.encoder if same_encoder(placed, other) else None, packing)
    unload(addresses)
    return model, second


def check_weights(verifier: Model | DrafterModel, drafter: DrafterModel | None) -> None:
    """Raise UnsupportedModel naming the first tensor that cannot be a weight, or vocabularies of different sizes."""
    checked, mapped = set[int](), Mapped()  # tensors that both models have are checked once
    for role, model in (("verifier", verifier), ("drafter", drafter)):
        for name, each in model.tensors.items() if model is not None and model.spec is not None else ():
            if id(each) in checked:
                continue
            checked.add(id(each))
            fault = storage_fault(each) if name == DRAFT_VOCABULARY else weight_fault(each)
            if fault:
                raise UnsupportedModel(f"the {role}'s {name} {fault}")
            mapped.read(address(array(each)), each.nbytes)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        sizes = [len(model.tensors[name]) for model in (verifier, drafter) if model is not None and name in model.tensors]
        if len(set(sizes)) > 1 and drafter is not None and drafter.spec is not None:
            raise UnsupportedModel(f"{name} has {sizes[0]:,} tokens in the verifier, {sizes[1]:,} in the drafter")


def same_encoder(verifier: Model | DrafterModel, drafter: DrafterModel) -> bool:
    """Whether two models from one `Placement` have the same encoder. Position tables may differ in length, as sources are limited
    to the shorter one."""
    sides = [model.spec and replace(model.spec.encoder, max_positions=1) for model in (verifier, drafter)]
    tables = [model.tensors.get(POSITIONS) for model in (verifier, drafter)]
    weights = [
        {name: id(tensor) for name, tensor in model.tensors.items() if name.startswith("encoder.") and name != POSITIONS}
        for model in (verifier, drafter)
    ]
    if sides[0] != sides[1] or weights[0] != weights[1] or tables[0] is None or tables[1] is None:
        return False
    rows = min(map(len, tables))  # type: ignore[arg-type]
    return tables[0] is tables[1] or torch.equal(tables[0][:rows], tables[1][:rows])
