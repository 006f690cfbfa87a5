"""When Python collects cyclic garbage among all objects. A full collection holds the interpreter lock, and so every request, for
50 ns per object: up to a second while large files are translated. It therefore waits until no large call runs.
"""

import asyncio
import gc
import time
from collections.abc import Callable

NEVER = 1_000_000_000
OFTEN, RARELY = 10.0, 600.0  # seconds between collections, and even if there are always large calls
LOOK = 0.5  # seconds


class Garbage:
    """Replaces the process's automatic full collections. What lives as long as the process, or a model, is left out of them."""

    def __init__(self) -> None:
        self.frozen, self.last = False, time.monotonic()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self.freeze()

    def freeze(self) -> None:
        """Everything that is left lives on."""
        gc.collect()
        gc.freeze()
        self.frozen, self.last = True, time.monotonic()

    def thaw(self) -> None:
        """Models were replaced, and the old ones may be garbage soon."""
        gc.unfreeze()
        self.frozen = False

    async def collect(self, busy: Callable[[], bool]) -> None:
        """Collect again and again, at times that are not ``busy``. Never returns."""
        while True:
            await asyncio.sleep(LOOK)
            waited = time.monotonic() - self.last
            if waited < OFTEN or (busy() and waited < RARELY):
                continue
            if self.frozen:
                gc.collect()
                self.last = time.monotonic()
            else:
                self.freeze()
