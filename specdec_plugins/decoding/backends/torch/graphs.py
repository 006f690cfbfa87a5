"""Runs passes eagerly, or, on a GPU, records each once as a CUDA graph and replays it.

The host takes longer to launch a pass's hundreds of small kernels than the GPU to compute them. A CUDA graph launches them all at
once, but repeats the same kernels on the same memory. So passes are functions of tensors of few different sizes and of settings,
and each combination has its own recording.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.state import KVCache

log = logging.getLogger(__name__)
Inputs = Mapping[str, Tensor | tuple[Tensor, ...]]  # by parameter; tuples are NamedTuples
Results = Mapping[str, Tensor]
Settings = tuple[Hashable, ...]
Function = Callable[..., Results]
Record = Callable[[Callable[[], None]], Callable[[], Any]]  # records a function, and returns one that replays it
MOST_BYTES = 2 << 30  # default limit of all recordings
GRAPH_BYTES = 2 << 20  # of a recording besides inputs and results: an assumption for some hundred kernels, not measured


class Executor(Protocol):
    recordings: int  # made so far

    def round(self, size: int, unit: int = 1) -> int:
        """The size to compute for a needed ``size``: a multiple of ``unit``."""
        ...

    def run(self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: Settings = ()) -> Results:
        """``function(*caches, *settings, **inputs)``. Its results are valid until the same function is run again."""
        ...


class Eager:
    """Runs every function as it is."""

    recordings = 0

    def round(self, size: int, unit: int = 1) -> int:
        return size

    def run(self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: Settings = ()) -> Results:
        return function(*caches, *settings, **inputs)


EAGER = Eager()


class Recorder:
    """Records a function when it first runs with inputs of these sizes, these caches and these settings.

    If a recording fails or gives wrong results, it logs a warning and runs everything eagerly from then on.
    """

    def __init__(self, record: Record, most: int = MOST_BYTES):
        self.record: Record | None = record
        self.most = most  # bytes; recordings that were not used for longest go first
        self.held = self.recordings = 0
        self.known: OrderedDict[Hashable, Recording] = OrderedDict()

    def round(self, size: int, unit: int = 1) -> int:
        """The next of ``unit``, 2 ``unit``, 4 ``unit``, ...: few sizes, and less than half of each wasted."""
        return unit << (max(1, -(-size // unit)) - 1).bit_length()

    def run(self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: Settings = ()) -> Results:
        call = partial(function, *caches, *settings)
        if self.record is None:
            return call(**inputs)
        sizes = ((each.shape, each.dtype) for each in flat(inputs))
        key = (function, *inputs, *sizes, *(each.layout for each in caches), settings)
        try:
            recording = self.known.pop(key, None)
            if recording is None:
                self.recordings += 1
                recording = Recording(self.record, call, inputs)
                self.held += recording.bytes
        except RuntimeError as error:  # PyTorch's and CUDA's own
            log.warning("passes run without CUDA graphs, several times slower: %s", str(error).partition("\n")[0])
            self.record, self.held = None, 0
            self.known.clear()
            return call(**inputs)
        self.known[key] = recording
        while self.held > self.most and len(self.known) > 1:
            self.held -= self.known.popitem(last=False)[1].bytes
        return recording(inputs)


class Recording:
    """A recorded function with its own memory for inputs and results."""

    def __init__(self, record: Record, call: Function, inputs: Inputs):
        """Raises RuntimeError if recording fails."""
        self.inputs = cloned(inputs)
        first = call(**cloned(inputs))  # cloned here and below, as a function may overwrite its inputs
        self.results = {name: torch.zeros_like(each) for name, each in first.items()}  # apart from intermediate results
        self.bytes = GRAPH_BYTES + sum(each.nbytes for each in (*flat(self.inputs), *self.results.values()))

        def compute() -> None:
            for name, result in call(**cloned(self.inputs)).items():
                self.results[name].copy_(result)

        # Runs before it is recorded: loading kernels and choosing libraries' algorithms cannot be recorded.
        compute()
        expected = {name: each.clone() for name, each in self.results.items()}
        self.replay = record(compute)
        for each in self.results.values():
            each.zero_()
        again = self(inputs)
        if not all(
            torch.allclose(one.float(), again[name].float(), 0.01, 0.01, equal_nan=True) for name, one in expected.items()
        ):
            raise RuntimeError("a recorded pass gives other results than the pass")

    def __call__(self, inputs: Inputs) -> Results:
        for own, each in zip(flat(self.inputs), flat(inputs)):
            own.copy_(each)
        self.replay()
        return self.results


def flat(inputs: Inputs) -> list[Tensor]:
    """All tensors of the inputs, in order."""
    return [tensor for each in inputs.values() for tensor in (each if isinstance(each, tuple) else (each,))]


def cloned(inputs: Inputs) -> Inputs:
    return {
        name: type(each)(*(tensor.clone() for tensor in each)) if isinstance(each, tuple) else each.clone()
        for name, each in inputs.items()
    }


def cuda_graphs(device: str) -> Record:
    """Records CUDA graphs, which share memory for intermediate results.

    Avoids `torch.cuda.graph`, which leaves its stream current if a recording fails, and empties the allocator's cache each time.
    """
    with torch.cuda.device(device):
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(compute: Callable[[], None]) -> Callable[[], Any]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                compute()
            except BaseException:
                with suppress(RuntimeError):  # repeats that the recording failed
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    return record
