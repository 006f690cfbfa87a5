"""What every backend checks before it runs a model or a pair. Knows specs and NumPy arrays only.

D width, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from specdec_plugins.formats.arrays import Lazy, address, array, arrays, equal
from specdec_plugins.formats.files import Mapped
from specdec_plugins.formats.spec import (
    DrafterModel,
    Model,
    storage_fault,
    symbol_faults,
    tensor_faults,
    tensor_shapes,
    weight_fault,
)
from specdec_plugins.model.spec import SideSpec

# A drafter may restrict its output to the tokens listed here (FR-Spec, Zhao et al. 2025): a few thousand make up most text, and
# the other logits would be half of a shallow drafter's work.
DRAFT_VOCABULARY = "decoder.draft_vocabulary"
DRAFTED = 0.99  # fraction of a text's tokens that can be drafted: benchmarks/README.md
COPY = "decoder.copy_attn.weight"
SUCCESSOR = "decoder.successor"
POSITIONS = "encoder.embed_positions.weight"

Verifier = TypeVar("Verifier", Model, DrafterModel)


class UnsupportedModel(ValueError):
    """A model that no backend can run; the message names every reason."""


def checked(verifier: Verifier, drafter: DrafterModel | None) -> tuple[Verifier, DrafterModel | None]:
    """The models, of NumPy arrays, the drafter with the verifier's for equal ones. Raises UnsupportedModel naming what cannot
    run: tensors that cannot be weights, shapes that do not fit a spec, vocabularies of different sizes."""
    _check_weights("verifier", verifier)
    _check_weights("drafter", drafter, verifier)
    verifier = replace(verifier, tensors=arrays(verifier.tensors))
    if verifier.spec is not None and (faults := _faults(verifier)):
        raise UnsupportedModel("; ".join(faults))
    return verifier, drafter and _fitting(drafter, verifier)


def checked_drafter(drafter: DrafterModel, verifier: Model) -> DrafterModel:
    """The same for another drafter of a verifier that `checked` has passed, whose weights are not read again."""
    _check_weights("drafter", drafter, verifier)
    return _fitting(drafter, replace(verifier, tensors=arrays(verifier.tensors)))


def _check_weights(role: str, model: Model | DrafterModel | None, other: Model | DrafterModel | None = None) -> None:
    """Raises UnsupportedModel for invalid weights. Tensors shared with ``other`` were checked with it."""
    if model is None or model.spec is None:
        return
    seen, mapped = {id(each) for each in other.tensors.values()} if other else set[int](), Mapped()
    for name, tensor in model.tensors.items():
        if id(tensor) in seen or isinstance(tensor, Lazy):  # checked when it is computed
            continue
        seen.add(id(tensor))
        fault = storage_fault(tensor) if name == DRAFT_VOCABULARY else weight_fault(tensor)
        if fault:
            raise UnsupportedModel(f"the {role}'s {name} {fault}")
        mapped.read(address(array(tensor)), tensor.nbytes)
    mapped.unload()


def _fitting(drafter: DrafterModel, verifier: Model | DrafterModel) -> DrafterModel:
    """The drafter with the verifier's tensors for equal ones. Raises UnsupportedModel for shapes that do not fit."""
    if drafter.spec is None:
        return drafter
    drafter = _shared(verifier, replace(drafter, tensors=arrays(drafter.tensors)))
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        sizes = [len(model.tensors[name]) for model in (verifier, drafter) if name in model.tensors]
        if len(set(sizes)) > 1:
            raise UnsupportedModel(f"{name} has {sizes[0]:,} tokens in the verifier, {sizes[1]:,} in the drafter")
    if faults := _faults(drafter):
        raise UnsupportedModel("the drafter does not fit this model: " + "; ".join(faults))
    return drafter


def _faults(model: Model | DrafterModel) -> list[str]:
    """Why no backend can run a Transformer."""
    assert model.spec is not None
    sides, drafter, tensors = (model.spec.encoder, model.spec.decoder), isinstance(model, DrafterModel), model.tensors
    if not (sides[1].layers or drafter):
        return ["a decoder without layers"]
    faults = tensor_faults(model.spec, tensor_shapes(tensors), drafter_shapes(tensors, sides[1].width) if drafter else {})
    if not faults:
        sizes = [len(tensors[f"{side}.embed_tokens.weight"]) for side in ("encoder", "decoder")]
        faults = symbol_faults(model.spec, *sizes)
        if drafter and DRAFT_VOCABULARY in tensors:
            faults += vocabulary_faults(tensors[DRAFT_VOCABULARY], sizes[1])
    if COPY in tensors and len({sides[0].width, sides[1].width, sides[1].key_width}) > 1:
        faults.append("a source copy with an encoder, a decoder and keys of different widths")
    return faults


def frequent(counts: Counter[int], special: Iterable[int]) -> list[int]:
    """The fewest tokens that make up `DRAFTED` of a text, and these special ones, ascending."""
    left, tokens = DRAFTED * counts.total(), set(special)
    for token, count in counts.most_common():
        if left <= 0:
            break
        tokens.add(token)
        left -= count
    return sorted(tokens)


def vocabulary_faults(tokens: np.ndarray, size: int) -> list[str]:
    """Why these cannot be the tokens (V',) that a drafter is restricted to, whose indices are those of its logits."""
    proper = tokens.dtype == np.int64 and tokens.ndim == 1 and len(tokens) > 0
    if not proper or not (tokens[1:] > tokens[:-1]).all() or not 0 <= int(tokens[0]) <= int(tokens[-1]) < size:
        return [f"{DRAFT_VOCABULARY} must list tokens below {size:,} in ascending order, as int64"]
    return []


def drafter_shapes(given: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what a drafter of this width has beside its spec, if ``given``: tokens that it drafts, a source copy, a successor
    network."""
    more: dict[str, tuple[int, ...]] = {}
    if DRAFT_VOCABULARY in given:
        more[DRAFT_VOCABULARY] = tuple(given[DRAFT_VOCABULARY].shape)  # its values are checked: `vocabulary_faults`
    if COPY in given:
        more[COPY] = (width, width)
    if f"{SUCCESSOR}.out.weight" in given:
        hidden = (tuple(given[f"{SUCCESSOR}.out.weight"].shape) or (1,))[-1]
        more |= {
            f"{SUCCESSOR}.from_feature.weight": (hidden, width),
            f"{SUCCESSOR}.from_feature.bias": (hidden,),
            f"{SUCCESSOR}.from_token.weight": (hidden, width),
            f"{SUCCESSOR}.out.weight": (width, hidden),
        }
    return more


def _shared(verifier: Model | DrafterModel, drafter: DrafterModel) -> DrafterModel:
    """The drafter, with the verifier's tensors for equal ones of the same name."""
    tensors = dict(drafter.tensors)
    for name, tensor in tensors.items():
        twin = verifier.tensors.get(name)
        if twin is not None and equal(twin, tensor):
            tensors[name] = twin
    return replace(drafter, tensors=tensors)


def same_encoder(verifier: Model | DrafterModel, drafter: DrafterModel) -> bool:
    """Whether two models of `checked` have the same encoder. Position tables may differ in length, as sources are limited to the
    shorter one."""
    models = verifier, drafter
    sides = [model.spec and replace(model.spec.encoder, max_positions=1) for model in models]
    weights = [
        {name: id(tensor) for name, tensor in model.tensors.items() if name.startswith("encoder.") and name != POSITIONS}
        for model in models
    ]
    tables = [model.tensors[POSITIONS] for model in models if POSITIONS in model.tensors]
    if sides[0] != sides[1] or weights[0] != weights[1] or len(tables) == 1:
        return False
    rows = min(map(len, tables), default=0)
    return not tables or equal(*(table[:rows] for table in tables))


def spread(wanted: int, available: int) -> list[int]:
    """So many of the available layers, evenly spread and ending with the last."""
    return [(index + 1) * available // wanted - 1 for index in range(wanted)]


def shallower(side: SideSpec, layers: int) -> SideSpec:
    """The side with ``layers`` of its layers, evenly spread (`spread`)."""
    local = side.local and tuple(index for index, layer in enumerate(spread(layers, side.layers)) if side.local_at(layer))
    return replace(side, layers=layers, local=replace(side.local, layers=local) if side.local and local else None)
