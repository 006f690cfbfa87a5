"""``specdec-translate --tensor-parallel``: rank 0 reads, writes and reports; all ranks translate what it broadcasts."""

import argparse
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdec_plugins.commands.runner import Terminated
from specdec_plugins.commands.translation.answers import Answers
from specdec_plugins.commands.translation.inputs import Buffer
from specdec_plugins.settings import Fault, rank_faults

if TYPE_CHECKING:  # options are checked before torch is loaded
    from specdec_plugins.decoding.ranks import Ranks


def parallel_faults(options: argparse.Namespace) -> list[Fault]:
    """Options that cannot be combined with --tensor-parallel, or a missing torchrun."""
    faults = rank_faults(options.device)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        start = "torchrun --nproc-per-node N -m specdec_plugins.commands.translate"
        faults.append(("tensor_parallel", f"requires torchrun, which starts the ranks: {start}"))
    if options.workers > 1:
        faults.append(("workers", "cannot be combined with --tensor-parallel, where all ranks work on each batch"))
    return faults


@contextmanager
def joined() -> Iterator["Ranks"]:
    """Join the group of ranks. If a run ends early, one rank reports why and the others exit silently."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch would warn about lost connections at length

    from specdec_plugins.decoding.ranks import all_ranks

    ranks = all_ranks()
    if ranks.rank:
        logging.disable(logging.WARNING)
    try:
        yield ranks
    except (KeyboardInterrupt, Terminated, ValueError, OSError, ImportError) as end:
        for number in (signal.SIGTERM, signal.SIGINT):  # report before ending
            signal.signal(number, signal.SIG_IGN)
        if not ranks.speaks():
            raise SystemExit(1) from None
        if isinstance(end, Terminated):
            raise ValueError("stopped by SIGTERM, which torchrun sends when another rank has ended") from None
        raise
    ranks.leave()


def lead(ranks: "Ranks", answer: Callable[[Buffer], Answers], buffers: Iterable[Buffer]) -> Iterator[Answers]:
    """Answer buffers on rank 0, with the other ranks' help."""
    for buffer in buffers:
        ranks.hand(buffer)
        yield answer(buffer)
    ranks.hand()


def follow(ranks: "Ranks", answer: Callable[[Buffer], Answers]) -> None:
    """What the other ranks do during `lead`."""
    while (buffer := ranks.hand()) is not None:
        answer(buffer)
