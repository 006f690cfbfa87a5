"""Tensor parallel ranks: processes that decode the same batch together, and the roles that rank 0 decides for all.

Every rank runs the whole loop on the same values. Partial results are summed or concatenated, with the same bits on all ranks;
rank 0 decides what depends on a clock, on chance or on something that it alone has. Knows nothing about models. ``torchrun``, or
anything else that sets its environment variables, starts the processes.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Admission, Controller, Drafter
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Distribution, Draft, Outcome, Plan, Request, Source, Verdict

Value = TypeVar("Value")
# Seconds that a rank waits for another within a pass: ranks are never more than part of a layer apart, which takes seconds only
# for thousands of long rows on a CPU. Gloo notices a dead rank at once; this is for NCCL, and for a rank that hangs.
TIMEOUT = 60
PATIENCE = 365  # days that a rank waits outside passes: for another one to load its model, or for rank 0's input
GRACE = 2  # seconds that rank 0 has to report why the run ends, before other ranks do


class RankLost(ValueError):
    """Another rank has ended or does not answer."""


class Ranks:
    """A set of ranks; this process is number ``rank`` of ``size``. All ranks must call a method that communicates.

    A single rank needs no groups and communicates nothing.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, patient: Any = None, store: Any = None):
        self.rank, self.size, self._group, self._patient, self._store = rank, size, group, patient, store

    @cache  # noqa: B019 - a process group lasts until `leave`, and making one takes all ranks
    def first(self, count: int) -> "Ranks | None":
        """The first ``count`` ranks; None on other ranks. All ranks must call it in the same order."""
        if not 0 < count <= self.size:
            raise ValueError(f"the drafter cannot run on {count:,} ranks; there are {self.size:,}")
        if count == self.size:
            return self
        group = _meeting(dist.new_group, range(count), timeout=timedelta(seconds=TIMEOUT)) if count > 1 else None
        return Ranks(self.rank, count, group) if self.rank < count else None

    def share(self, total: int) -> tuple[int, int]:
        """This rank's range of ``total`` consecutive items; see `part`."""
        return part(total, self.rank, self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, with the same bits on each."""
        if self.size > 1:
            _meeting(dist.all_reduce, tensor, group=self._group)
        return tensor

    def join(self, tensor: Tensor, total: int) -> Tensor:
        """Concatenate the ranks' shares of a last dimension of ``total``."""
        if self.size == 1:
            return tensor
        widths = [stop - start for start, stop in (part(total, rank, self.size) for rank in range(self.size))]
        own = tensor.new_zeros(*tensor.shape[:-1], widths[0])  # ranks exchange tensors of one size
        own[..., : tensor.size(-1)] = tensor
        parts = [torch.empty_like(own) for _ in widths]
        _meeting(dist.all_gather, parts, own, group=self._group)
        return torch.cat([each[..., :width] for each, width in zip(parts, widths)], -1)

    def decide(self, function: Callable[[], Value]) -> Value:
        """What rank 0's ``function`` returns, a value that can be pickled; other ranks don't call theirs."""
        return self._tell(function, self._group)

    def hand(self, value: Value | None = None) -> Value | None:
        """Rank 0's value, however long the others wait for it."""
        return self._tell(lambda: value, self._patient)

    def wait(self) -> None:
        """Wait until all ranks are here, however long that takes."""
        self.hand()

    def _tell(self, function: Callable[[], Value], group: Any) -> Value:
        values = [function() if self.rank == 0 else None]
        if self.size > 1:
            _meeting(dist.broadcast_object_list, values, src=0, group=group, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    def leave(self) -> None:
        """End and forget all groups; their threads could abort a process that is shutting down."""
        Ranks.first.cache_clear()
        all_ranks.cache_clear()
        self._group = self._patient = None
        dist.destroy_process_group()

    def speaks(self) -> bool:
        """Whether this rank reports why the run ends: rank 0, which knows its progress, otherwise one of those left."""
        if self._store is None:
            return True
        if self.rank:
            with suppress(RuntimeError):  # rank 0 reports nothing
                self._store.wait(["ended"], timedelta(seconds=GRACE))
        try:
            return self._store.add("ended", 1) == 1
        except RuntimeError:  # the store is gone with its process
            return True


def part(total: int, rank: int, size: int) -> tuple[int, int]:
    """A rank's range of ``total`` consecutive items, from and to; the first ranks get one more."""
    least, more = divmod(total, size)
    start = rank * least + min(rank, more)
    return start, start + least + (rank < more)


def _meeting(function: Callable, *arguments, **options) -> Any:
    """Call a function of `torch.distributed`; raises RankLost where it fails."""
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0].partition("\n")[0]  # without gloo's own file and advice
        raise RankLost(f"another rank has ended, or does not answer: {reason}") from None


def started() -> bool:
    """Whether the environment says which rank this process is."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def local(name: str) -> int:
    """``RANK`` or ``WORLD_SIZE`` among the processes of this machine."""
    return int(os.environ.get(f"LOCAL_{name}", os.environ[name]))


@cache
def all_ranks(timeout: float = TIMEOUT) -> Ranks:
    """All ranks, once they have met: CPUs exchange tensors by gloo, GPUs by NCCL. ``timeout``: see `TIMEOUT`.

    Raises ValueError if this process has no rank, and RankLost if the others do not come.
    """
    if not started():
        raise ValueError("tensor parallel decoding needs torchrun, which starts the ranks (docs/performance.md)")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    store, rank, size = _meeting(lambda: next(iter(dist.rendezvous("env://"))))  # type: ignore[attr-defined]
    short = timedelta(seconds=timeout)
    _meeting(dist.init_process_group, backend, store=store, rank=rank, world_size=size, timeout=short)
    patient = _meeting(dist.new_group, timeout=timedelta(days=PATIENCE), backend="gloo") if size > 1 else None
    return Ranks(rank, size, dist.group.WORLD, patient, store)


class LedController:
    """Rank 0's controller: its clock counts."""

    def __init__(self, controller: Controller, ranks: Ranks):
        self.controller, self.ranks = controller, ranks

    def plan(self, prefix: Prefix) -> Plan:
        return self.ranks.decide(lambda: self.controller.plan(prefix))

    def update(self, outcome: Outcome) -> None:
        if self.ranks.rank == 0:
            self.controller.update(outcome)


class LedAdmission:
    """Rank 0's admission: ranks hold different shares of the cache."""

    def __init__(self, admission: Admission, ranks: Ranks):
        self.admission, self.ranks = admission, ranks

    def admits(self, prefix: Prefix, waiting: Sequence[Request]) -> int:
        return self.ranks.decide(lambda: self.admission.admits(prefix, waiting))


class LedDrafter(Drafter):
    """Rank 0's drafts, for all ranks. The drafter may run on several ranks; the others have one that drafts nothing.

    ``encode`` is the verifier's encoder, which a drafter may read and all ranks must run together.
    """

    def __init__(self, drafter: Drafter, encode: Callable[[Source], Any], ranks: Ranks):
        self.drafter, self.encode, self.ranks = drafter, encode, ranks
        self.traits = ranks.decide(lambda: drafter.traits)

    def start(self, rows: int, shared: Any) -> Any:
        return self.drafter.start(rows, shared)

    def admit(self, state: Any, source: Source) -> None:
        self.encode(source)
        self.drafter.admit(state, source)

    def propose(self, state: Any, prefix: Prefix, plan: Plan) -> Draft:
        own = self.drafter.propose(state, prefix, plan)
        draft = self.ranks.decide(lambda: on_host(own))
        if draft.distribution is not None:
            draft.distribution = Distribution(*(each.to(prefix.device) for each in draft.distribution))
        return draft

    def observe(self, state: Any, scores: Any, draft: Draft, verdict: Verdict) -> None:
        self.drafter.observe(state, scores, draft, verdict)

    def bytes_for(self, request: Request) -> int:
        return self.drafter.bytes_for(request)


def on_host(draft: Draft) -> Draft:
    """The draft with its tensors on the host, where it can be pickled."""
    if isinstance(draft, TreeDraft):
        return draft
    distribution = draft.distribution and Distribution(*(each.cpu() for each in draft.distribution))
    return Draft(draft.tokens, distribution, draft.confidence)
