"""fairseq's ``.pt`` files as containers: safe loading, atomic saving, averaging. Never imports fairseq; PyTorch reads and writes.

The meaning of settings and weights is in `fairseq.py`. Checkpoints are untrusted: they are read with ``weights_only``, and only
fairseq's own plain containers are allow-listed.
"""

import argparse
import pickle
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from specdec_plugins.extras import needed
from specdec_plugins.formats import files
from specdec_plugins.formats.errors import brief
from specdec_plugins.formats.files import AnyPath
from specdec_plugins.formats.spec import storage_faults

Checkpoint = dict[str, Any]


class CheckpointError(ValueError):
    """An unusable checkpoint; the message names the file and every fault."""


class Node(Mapping[Any, Any]):
    """Replaces omegaconf's containers and values if it is not installed."""

    _content: Any = None  # of a container
    _val: Any = None  # of a value

    def __getitem__(self, key: Any) -> Any:
        item = self._content[key]
        if not isinstance(item, Node) or isinstance(item._content, dict):
            return item
        return item._val if item._content is None else [item[index] for index in range(len(item))]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


OMEGACONF = {
    "dictconfig": "DictConfig",
    "listconfig": "ListConfig",
    "base": "ContainerMetadata Metadata",
    "nodes": "AnyNode BooleanNode EnumNode FloatNode IntegerNode StringNode",
}


@cache
def allow_fairseq_types() -> None:
    """Let ``torch.load(weights_only=True)`` read fairseq's settings: a namespace, or omegaconf's nodes in fairseq 1.0.0a0.

    None of these runs code when unpickled.
    """
    import torch

    installed = find_spec("omegaconf") is not None
    types: list[Any] = [argparse.Namespace, Any, dict, list, int, defaultdict]
    for name, classes in OMEGACONF.items():
        module = f"omegaconf.{name}"
        found = import_module(module) if installed else None
        types += [getattr(found, each) if found else type(each, (Node,), {"__module__": module}) for each in classes.split()]
    torch.serialization.add_safe_globals(types)


def load(path: AnyPath) -> Checkpoint:
    """Read a fairseq checkpoint onto the CPU. Raises CheckpointError for a missing, truncated, unsafe or foreign file."""
    checkpoint = unpickled(path)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise CheckpointError(f"{path}: not a fairseq checkpoint (no 'model' in it)")
    if checkpoint.get("args") is None and checkpoint.get("cfg") is None:
        raise CheckpointError(f"{path}: not a fairseq checkpoint (neither 'args' nor 'cfg' in it)")
    if fault := storage_faults(checkpoint["model"]):
        raise CheckpointError(f"{path}: {fault}")
    try:
        model_args(checkpoint), task_settings(checkpoint)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged or foreign settings ({type(error).__name__}: {brief(error)})") from None
    state = checkpoint.get("task_state") or {}
    if not isinstance(state, dict) or not isinstance(state.get("dictionaries") or (), list | tuple):
        raise CheckpointError(f"{path}: damaged or foreign settings ('task_state')")
    return checkpoint


def unpickled(path: AnyPath) -> Any:
    """What `torch.save` wrote, on the CPU. Raises CheckpointError for what is not just weights."""
    with needed("torch", f"{path}: a fairseq checkpoint"):
        import torch

    allow_fairseq_types()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: refused: {_refusal(error)}") from None
    except (
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        AssertionError,
        OverflowError,
        struct.error,
    ) as error:
        # A truncated or foreign file can fail at any step of reading; all mean the same to the user.
        raise CheckpointError(f"{path}: not a readable checkpoint, or a damaged one ({type(error).__name__})") from None
    return content


def _refusal(error: pickle.UnpicklingError) -> str:
    """The line of torch's message that names what the file would run, without the advice to run it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "global" in line.lower()), "it contains more than weights and settings")


def model_args(checkpoint: Checkpoint) -> argparse.Namespace:
    """The model's settings, from any fairseq version."""
    settings = checkpoint["args"] if checkpoint.get("args") is not None else checkpoint["cfg"]["model"]
    return argparse.Namespace(**_named(settings))


def task_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The task's settings (data folder, languages), from any fairseq version."""
    return _named(checkpoint["args"] if checkpoint.get("args") is not None else checkpoint["cfg"].get("task") or {})


def _named(settings: Any) -> dict[str, Any]:
    """Settings by name. fairseq writes ``args`` and parts of ``cfg`` as namespaces, the rest as mappings."""
    return dict(vars(settings) if isinstance(settings, argparse.Namespace) else settings)


def save(checkpoint: Checkpoint, path: AnyPath) -> None:
    """Write a checkpoint, whole or not at all."""
    import torch

    with files.whole(path) as temporary:
        torch.save(checkpoint, temporary)


def untrained() -> Checkpoint:
    """The rest of a checkpoint, as fairseq-train expects it, for a model that was not trained yet."""
    history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
        "last_optimizer_state": None,
    }


def average(paths: Sequence[AnyPath]) -> Checkpoint:
    """The last of several checkpoints of one model, with the mean of their weights, summed in float64.

    Counters and format markers are the last checkpoint's. Tied weights stay tied. Optimizer state is dropped.
    """
    if not paths:
        raise ValueError("no checkpoints to average")
    sums: dict[str, Any] = {}
    for path in paths:
        checkpoint = load(path)
        weights = checkpoint["model"]
        if sums and {name: tensor.shape for name, tensor in weights.items()} != {name: sums[name].shape for name in sums}:
            raise CheckpointError(f"{path}: not the same model as {paths[0]} (other parameter names or shapes)")
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double() if tensor.is_floating_point() else tensor
    means: dict[int, Any] = {}  # by the memory of the last checkpoint's tensor
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = means.setdefault(tensor.data_ptr(), (sums[name] / len(paths)).to(tensor.dtype))
    return {**checkpoint, "last_optimizer_state": None}
