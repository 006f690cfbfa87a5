"""Processes that decode the same batch together, and the roles of which one of them decides.

Every rank runs the whole loop on the same values. What they compute in parts they add up or join, so that all of them have the
same bits; what depends on a clock, on chance or on something that only one rank has is decided by rank 0, which tells the others.
Knows nothing about models. The processes are started by ``torchrun``, or in any way that sets its environment variables.
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
# Seconds that a rank waits for another one within a pass. Ranks are apart by a part of a layer's work, which takes seconds only
# for thousands of long rows on a CPU. A rank that has died is noticed at once on gloo, when its connection is closed; this is for
# one that hangs, and for NCCL.
TIMEOUT = 60
# Days that a rank waits for what is not part of a pass: for another one to load its model, and for rank 0 to have input.
PATIENCE = 365
GRACE = 2  # seconds that other ranks give rank 0 to say why the run ends


class RankLost(ValueError):
    """Another rank has ended, or does not answer; this one cannot go on."""


class Ranks:
    """Some ranks, of which this process is number ``rank`` of ``size``. A method that communicates is called by all of them."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, patient: Any = None, store: Any = None):
        """Of one rank there are no groups: nothing is communicated."""
        self.rank, self.size, self._group, self._patient, self._store = rank, size, group, patient, store

    @cache  # noqa: B019 - a process group lasts until `leave`, and making one takes all ranks
    def first(self, count: int) -> "Ranks | None":
        """The first ``count`` of these ranks; None where this is none of them. Called by all of them in the same order."""
        if not 0 < count <= self.size:
            raise ValueError(f"the drafter is to run on {count:,} ranks, and there are {self.size:,}")
        if count == self.size:
            return self
        group = _meeting(dist.new_group, range(count), timeout=timedelta(seconds=TIMEOUT)) if count > 1 else None
        return Ranks(self.rank, count, group) if self.rank < count else None

    def share(self, total: int) -> tuple[int, int]:
        """This rank's part of ``total`` things in a row, of which the first ranks have one more: from, to."""
        return part(total, self.rank, self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, with the same bits on each; it takes the tensor's place."""
        if self.size > 1:
            _meeting(dist.all_reduce, tensor, group=self._group)
        return tensor

    def join(self, tensor: Tensor, total: int) -> Tensor:
        """(..., total), of which each rank has the last dimension's `share`."""
        if self.size == 1:
            return tensor
        widths = [stop - start for start, stop in (part(total, rank, self.size) for rank in range(self.size))]
        widest = widths[0]
        own = tensor.new_zeros(*tensor.shape[:-1], widest)  # ranks exchange tensors of one size
        own[..., : tensor.size(-1)] = tensor
        parts = [torch.empty_like(own) for _ in widths]
        _meeting(dist.all_gather, parts, own, group=self._group)
        return torch.cat([each[..., :width] for each, width in zip(parts, widths)], -1)

    def decide(self, function: Callable[[], Value]) -> Value:
        """What rank 0's ``function`` returns, which must be something to pickle; the others' are not called."""
        return self._tell(function, self._group)

    def hand(self, value: Value | None = None) -> Value | None:
        """Rank 0's value, for which the others wait however long it takes."""
        return self._tell(lambda: value, self._patient)

    def wait(self) -> None:
        """Until all ranks are here, however long that takes."""
        self.hand()

    def _tell(self, function: Callable[[], Value], group: Any) -> Value:
        values = [function() if self.rank == 0 else None]
        if self.size > 1:
            _meeting(dist.broadcast_object_list, values, src=0, group=group, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    def leave(self) -> None:
        """End all groups, and forget them: else their threads may want Python while it shuts down, which aborts the process."""
        Ranks.first.cache_clear()
        all_ranks.cache_clear()
        self._group = self._patient = None
        dist.destroy_process_group()

    def speaks(self) -> bool:
        """Whether this rank is the one that tells why the run ends: rank 0, which knows how far it has come, else one of those
        that are left."""
        if self._store is None:
            return True
        if self.rank:
            with suppress(RuntimeError):  # rank 0 says nothing
                self._store.wait(["ended"], timedelta(seconds=GRACE))
        try:
            return self._store.add("ended", 1) == 1
        except RuntimeError:  # the store is gone, with the process that had it
            return True


def part(total: int, rank: int, size: int) -> tuple[int, int]:
    """From where to where ``total`` things belong to a rank."""
    least, more = divmod(total, size)
    start = rank * least + min(rank, more)
    return start, start + least + (rank < more)


def _meeting(function: Callable, *arguments, **options) -> Any:
    """A function of `torch.distributed`. Raises RankLost where it fails, as it does when another rank is gone."""
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0].partition("\n")[0]  # without gloo's own file and advice
        raise RankLost(f"another rank has ended, or does not answer: {reason}") from None


def started() -> bool:
    """Whether ``torchrun``, or somebody in its place, has said which rank this process is."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def local(name: str) -> int:
    """``RANK`` or ``WORLD_SIZE`` among the processes of this machine."""
    return int(os.environ.get(f"LOCAL_{name}", os.environ[name]))


@cache
def all_ranks(timeout: float = TIMEOUT) -> Ranks:
    """All ranks, when all of them are there: CPUs exchange tensors by gloo, GPUs by NCCL, where there are any. ``timeout``: see
    `TIMEOUT`.

    Raises ValueError where nobody has said which rank this is, and RankLost if the others do not come.
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
    """Rank 0's controller, whose clock is the one that counts."""

    def __init__(self, controller: Controller, ranks: Ranks):
        self.controller, self.ranks = controller, ranks

    def plan(self, prefix: Prefix) -> Plan:
        return self.ranks.decide(lambda: self.controller.plan(prefix))

    def update(self, outcome: Outcome) -> None:
        if self.ranks.rank == 0:
            self.controller.update(outcome)


class LedAdmission:
    """Rank 0's admission: ranks hold different parts of the cache."""

    def __init__(self, admission: Admission, ranks: Ranks):
        self.admission, self.ranks = admission, ranks

    def admits(self, prefix: Prefix, waiting: Sequence[Request]) -> int:
        return self.ranks.decide(lambda: self.admission.admits(prefix, waiting))


class LedState:
    """What a drafter on some of the ranks keeps of each row; ``own`` is None elsewhere."""

    def __init__(self, own: Any):
        self.own = own

    def select(self, order: list[int]) -> None:
        if self.own is not None:
            self.own.select(order)


class LedDrafter(Drafter):
    """A drafter with weights, on some of the ranks, whose drafts on rank 0 are those of all.

    ``encode`` is what a drafter may have computed of a source together with all ranks: the output of the verifier's encoder.
    """

    def __init__(self, drafter: Drafter | None, encode: Callable[[Source], Any], ranks: Ranks):
        """``drafter`` is None on the other ranks."""
        self.drafter, self.encode, self.ranks = drafter, encode, ranks
        self.traits = ranks.decide(lambda: drafter.traits)  # type: ignore[union-attr]  # rank 0 has one

    def start(self, rows: int, shared: Any) -> LedState:
        return LedState(None if self.drafter is None else self.drafter.start(rows, shared))

    def admit(self, state: LedState, source: Source) -> None:
        self.encode(source)
        if self.drafter is not None:
            self.drafter.admit(state.own, source)

    def propose(self, state: LedState, prefix: Prefix, plan: Plan) -> Draft:
        own = None if self.drafter is None else self.drafter.propose(state.own, prefix, plan)
        draft = self.ranks.decide(lambda: on_host(own))
        if draft.distribution is not None:
            draft.distribution = Distribution(*(each.to(prefix.device) for each in draft.distribution))
        return draft

    def observe(self, state: LedState, scores: Any, draft: Draft, verdict: Verdict) -> None:
        if self.drafter is not None:
            self.drafter.observe(state.own, scores, draft, verdict)

    def bytes_for(self, request: Request) -> int:
        """On rank 0, which admits."""
        return 0 if self.drafter is None else self.drafter.bytes_for(request)


def on_host(draft: Draft | None) -> Draft:
    """The draft without what is on a device, so that it can be sent."""
    assert draft is not None, "rank 0 drafts"
    if isinstance(draft, TreeDraft):
        return draft
    told = draft.distribution
    return Draft(draft.tokens, told and Distribution(*(each.cpu() for each in told)), draft.confidence)
