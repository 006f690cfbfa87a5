"""Stand-ins for a GPU on a CPU: tapes for CUDA graphs, and a counter of host waits."""

import weakref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_plugins.decoding.backends.torch.graphs import Recorder

WAITS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::equal", "aten::is_nonzero"}


class Tape(TorchDispatchMode):
    """Records PyTorch operations with their memory and replays them without Python's logic.

    Like a CUDA graph, it keeps only its own results alive.
    """

    def __init__(self):
        super().__init__()
        self.operations = []
        self.made = {}  # by id
        self.replays = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function._schema.name not in WAITS, "the host waits for the device during a pass"
        result = function(*arguments, **(keywords or {}))
        results = [result] if isinstance(result, torch.Tensor) else result
        keywords = {name: self.borrowed(value) for name, value in (keywords or {}).items()}
        self.operations.append((function, self.borrowed(arguments), keywords, results))
        self.made |= {id(each): each for each in results}
        return result

    def borrowed(self, value):
        """A weak reference to memory from outside, also in a list; single numbers are kernel arguments."""
        if isinstance(value, list | tuple):
            return list(map(self.borrowed, value))
        outside = isinstance(value, torch.Tensor) and value.dim() and id(value) not in self.made
        return weakref.ref(value) if outside else value

    def replay(self):
        self.replays += 1
        for function, arguments, keywords, results in self.operations:
            again = function(*map(present, arguments), **{name: present(value) for name, value in keywords.items()})
            for place, value in zip(results, [again] if isinstance(again, torch.Tensor) else again):
                place.copy_(value)


def present(value):
    """The value behind a weak reference, or behind those of a list."""
    if isinstance(value, list):
        return list(map(present, value))
    found = value() if isinstance(value, weakref.ref) else value
    assert found is not None or value is None, "a recording works on memory that has been freed"
    return found


class Tapes(Recorder):
    """A recorder on tapes."""

    def __init__(self, **options):
        super().__init__(self.tape, **options)
        self.tapes = []

    def tape(self, compute):
        self.tapes.append(Tape())
        with self.tapes[-1]:
            compute()
        return self.tapes[-1].replay


class Transfers(TorchFunctionMode):
    """Counts operations that make the host wait for a GPU: reading results, sending values."""

    def __init__(self):
        super().__init__()
        self.count = 0
        names = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__")
        self.waiting = {getattr(torch.Tensor, name) for name in names}

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        by_list = function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and any(
            isinstance(each, list) for each in (arguments[1] if isinstance(arguments[1], tuple) else [arguments[1]])
        )
        self.count += function in self.waiting or by_list or (function is torch.tensor and "device" in (keywords or {}))
        return function(*arguments, **(keywords or {}))
