"""How a pass is run: eagerly, or, on a GPU, recorded once and replayed.

A pass consists of hundreds of small kernels, and the host takes longer to launch them than the GPU to compute them. A CUDA graph
launches them all at once, but it only repeats what was recorded: the same kernels, on the same memory. So a pass is a function of
tensors of few different sizes, and of settings, each combination of which has its own recording.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.cache import KVCache

log = logging.getLogger(__name__)
Inputs = Mapping[str, Tensor | tuple[Tensor, ...]]  # by the function's parameters; tuples are NamedTuples
Results = Mapping[str, Tensor]
Function = Callable[..., Results]
Record = Callable[[Callable[[], None]], Callable[[], Any]]  # records a function, and returns one that repeats it
MOST_BYTES = 2 << 30  # of all recordings, where nothing else is said
GRAPH_BYTES = 2 << 20  # that a recording takes besides its inputs and results: assumed for some hundred kernels, not measured


class Runner(Protocol):
    recordings: int  # made so far

    def round(self, size: int, unit: int = 1) -> int:
        """The size to compute where ``size`` is needed: a multiple of ``unit``."""
        ...

    def run(
        self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: tuple = ()
    ) -> Results:  # fmt: skip
        """``function(*caches, *settings, **inputs)``. Its results are valid until the same function is run again."""
        ...


class Eager:
    """Runs every function at once."""

    recordings = 0

    def round(self, size: int, unit: int = 1) -> int:
        return size

    def run(
        self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: tuple = ()
    ) -> Results:  # fmt: skip
        return function(*caches, *settings, **inputs)


EAGER = Eager()


class Recorder:
    """Records a function the first time that it is run with inputs of these sizes, these caches and these settings.

    If a recording fails, or does not give the function's results, that is logged, and from then on every function runs eagerly.
    """

    def __init__(self, record: Record, most: int = MOST_BYTES):
        self.record: Record | None = record
        self.most = most  # bytes of the recordings that are kept: those used last
        self.held = self.recordings = 0
        self.known: OrderedDict[Hashable, Recording] = OrderedDict()

    def round(self, size: int, unit: int = 1) -> int:
        """The next of ``unit``, 2 ``unit``, 4 ``unit``, ...: few sizes, and less than half of one wasted."""
        return unit << (max(1, -(-size // unit)) - 1).bit_length()

    def run(
        self, function: Function, inputs: Inputs, caches: Sequence[KVCache] = (), settings: tuple = ()
    ) -> Results:  # fmt: skip
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
            log.warning("passes run without CUDA graphs, several times as slowly: %s", str(error).partition("\n")[0])
            self.record, self.held = None, 0
            self.known.clear()
            return call(**inputs)
        self.known[key] = recording
        while self.held > self.most and len(self.known) > 1:
            self.held -= self.known.popitem(last=False)[1].bytes
        return recording(inputs)


class Recording:
    """What a function does, on memory of its own for inputs and results."""

    def __init__(self, record: Record, call: Function, inputs: Inputs):
        """Raises RuntimeError if that does not work."""
        self.inputs = cloned(inputs)
        # Clones here and below: a function may overwrite its inputs.
        first = call(**cloned(inputs))
        self.results = {name: torch.zeros_like(each) for name, each in first.items()}  # not where intermediate results lie
        self.bytes = GRAPH_BYTES + sum(each.nbytes for each in (*flat(self.inputs), *self.results.values()))

        def compute() -> None:
            for name, result in call(**cloned(self.inputs)).items():
                self.results[name].copy_(result)

        # All that is recorded runs before: loading kernels and choosing libraries' algorithms cannot be recorded.
        compute()
        expected = {name: each.clone() for name, each in self.results.items()}
        self.replay = record(compute)
        for each in self.results.values():
            each.zero_()
        again = self(inputs)
        if not all(
            torch.allclose(one.float(), again[name].float(), 0.01, 0.01, equal_nan=True) for name, one in expected.items()
        ):
            raise RuntimeError("a recorded pass does not give what the pass gives")

    def __call__(self, inputs: Inputs) -> Results:
        for place, each in zip(flat(self.inputs), flat(inputs)):
            place.copy_(each)
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


def cuda_graphs(device: torch.device) -> Record:
    """Records what a GPU is given to do. All recordings share the memory for intermediate results.

    Without `torch.cuda.graph`, which leaves its stream current if a recording fails, and gives all unused memory back to the
    driver before each of them.
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
                with suppress(RuntimeError):  # it says only that something failed before
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    return record
