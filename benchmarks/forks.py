#!/usr/bin/env python3
"""The cost of forking a row, by rows, target positions and width, on both backends.

    benchmarks/forks.py [--device cpu] [--layers 6] [--rows 1 4 16] [--positions 8 32 128] [--widths 256 512 1024]

One row with that many positions and a source of 100 tokens is forked until there are so many further rows. Prints bytes copied
and microseconds, both per fork: a fork should cost its own positions, whatever the batch holds, and nothing of the source.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tabulate import tabulate  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from specdec_plugins.decoding.backends.cpu.state import KVCache as CpuCache  # noqa: E402
from specdec_plugins.decoding.backends.cpu.state import SlottedState  # noqa: E402
from specdec_plugins.decoding.backends.state import Sources  # noqa: E402
from specdec_plugins.decoding.backends.torch.state import DenseState, KVCache  # noqa: E402
from specdec_plugins.decoding.requests import Source  # noqa: E402
from specdec_plugins.model.spec import Symbols  # noqa: E402

SOURCE, REPEATS = 100, 20


class Counting(np.ndarray):
    """An array that counts the bytes written into it."""

    written = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        Counting.written += np.asarray(value).nbytes
        super().__setitem__(key, value)


class Copied(TorchDispatchMode):
    """Counts the bytes that tensor operations write, without views, or that are written into ``caches`` of arrays."""

    def __init__(self, *caches: Any) -> None:
        super().__init__()
        self.bytes = Counting.written = 0
        self.caches = [cache for cache in caches if isinstance(cache.data, np.ndarray)]
        for cache in self.caches:
            cache.data = cache.data.view(Counting)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.bytes += Counting.written
        for cache in self.caches:
            cache.data = cache.data.view(np.ndarray)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor) and not function.is_view:
            self.bytes += result.nbytes
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16], help="forks made at once")
    parser.add_argument("--positions", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024])
    options = parser.parse_args()
    table = []
    for kind, width, positions, rows in product((SlottedState, DenseState), options.widths, options.positions, options.rows):
        if kind is SlottedState and options.device != "cpu":
            continue
        like = torch.empty(0, device=options.device)
        state = standing(kind, options.layers, width, like, positions, rows + 1)
        with Copied(state.cache) as copied:
            fork(state, rows)
        seconds = [timed(state, rows, options.device) for _ in range(REPEATS)]
        table.append([kind.__name__, width, positions, rows, copied.bytes // rows, statistics.median(seconds) / rows * 1e6])
    headers = "state", "width", "positions", "forks", "bytes per fork", "us per fork"
    print(tabulate(table, headers, floatfmt=".1f", intfmt=","))
    return 0


def standing(kind: type, layers: int, width: int, like: torch.Tensor, positions: int, rows: int) -> Any:
    """A state with one row of so many positions, and room for ``rows``."""
    make = partial(KVCache, like=like) if kind is DenseState else CpuCache
    cache, sources = (make(layers, 2 * width) for _ in range(2))
    sources.reserve(1, SOURCE)
    state = kind(cache, Sources(sources, lambda *_: None))
    state.admit(Source([[5] * SOURCE], Symbols()))
    state.encode()
    cache.reserve(rows, positions)
    state.held = [positions]
    return state


def fork(state: Any, rows: int) -> None:
    state.select([0] * (rows + 1))


def timed(state: Any, rows: int, device: str) -> float:
    """Seconds per fork, starting from one row each time."""
    state.select([0])
    synchronise = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    synchronise()
    began = time.perf_counter()
    fork(state, rows)
    synchronise()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
