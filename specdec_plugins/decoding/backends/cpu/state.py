"""What the kernels' passes keep of each row: entries lie in numbered slots and do not move while a row lives."""

from collections.abc import Sequence

import torch

from specdec_plugins.decoding.backends.cache import KVCache
from specdec_plugins.decoding.backends.cpu.binding import Engine
from specdec_plugins.decoding.backends.sources import Slots, Sources
from specdec_plugins.decoding.values import Source


class SlottedState:
    """Keys and values of the target tokens (``cache``, one slot per row) and of the sources."""

    def __init__(self, cache: KVCache, sources: Sources, engine: Engine):
        self.cache, self.sources, self.engine = cache, sources, engine
        self.user = 0  # see `Slotted`
        engine.states.add(self)
        self.targets = Slots()
        self.slots: list[int] = []  # each row's target slot
        self.held: list[int] = []  # see `RowState`

    def admit(self, source: Source) -> None:
        self.sources.admit(source)
        self.slots += [self.targets.take() for _ in source.sizes]
        self.held += [0] * len(source.sizes)

    def placed(self) -> tuple[list[int], list[int], list[int]]:
        """By row: its target slot, its source slot and the length of its source."""
        return self.slots, self.sources.slots, self.sources.lengths

    def encode(self) -> None:
        self.user = self.engine.claim()  # before caches grow: another thread's pass may be reading them
        self.sources.encode()

    @torch.inference_mode()
    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep(self.slots, roots, paths)

    def select(self, order: list[int]) -> None:
        self.engine.claim()
        self.sources.select(order)
        named = set(order)
        for row, slot in enumerate(self.slots):
            if row not in named:
                self.targets.release(slot)
        slots = [self.slots[row] for row in order]
        if len(named) < len(order):
            self._fork(order, slots)
        self.slots, self.held = slots, [self.held[row] for row in order]

    @torch.inference_mode()
    def _fork(self, order: list[int], slots: list[int]) -> None:
        """Give each repetition of a row a slot of its own, with a copy of the positions that the row holds."""
        first = {row: place for place, row in reversed([*enumerate(order)])}
        forks = []
        for place, row in enumerate(order):
            if place != first[row]:
                slots[place] = self.targets.take()
                forks.append((self.slots[row], slots[place], self.held[row]))
        self.cache.copy(forks)
