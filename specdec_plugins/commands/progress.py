"""Progress on stderr: a bar in a terminal, at most a few lines in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TextIO

from specdec_plugins.formats.errors import printable

LOG_INTERVAL = 10.0  # seconds between two lines of `Steps` in a log


def bar(items: Iterable | None = None, *, hidden: bool = False, **options) -> Any:
    """A tqdm bar, shown only in a terminal and unless ``hidden``; ``options`` are tqdm's."""
    if hidden or not sys.stderr.isatty():
        return NoBar(items)
    from tqdm import tqdm

    return tqdm(items, file=sys.stderr, dynamic_ncols=True, **options)


class NoBar:
    """Stands for a bar that is not shown: importing tqdm takes as long as translating a sentence."""

    def __init__(self, items: Iterable | None = None):
        self.items = items

    def __iter__(self) -> Iterator:
        return iter(self.items or ())

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *error) -> None: ...

    def close(self) -> None: ...

    def update(self, count: int = 1) -> None: ...

    def write(self, text: str, file: TextIO) -> None:
        print(text, file=file)


class Steps:
    """Reports the current step of a long run and the time left. A context manager."""

    def __init__(self, total: float):
        self.total, self.began, self.shown = total, time.monotonic(), -LOG_INTERVAL
        self.first = 0.0  # what earlier runs had done
        self.bar = bar(total=total, leave=False, bar_format="{desc} {percentage:3.0f}% [{elapsed}, {remaining} left]")

    def resume(self, done: float) -> None:
        """Earlier runs have ``done`` some of the total: the time left follows the speed of this one."""
        self.first = self.bar.initial = done
        self.began = time.monotonic()

    def step(self, what: str, done: float) -> None:
        """Step ``what`` begins after ``done`` of the total, or more if the total was an estimate."""
        done = min(done, self.total)
        if not isinstance(self.bar, NoBar):
            self.bar.n = done
            self.bar.set_description_str(printable(what))
            return
        now = time.monotonic()
        if now - self.shown >= LOG_INTERVAL:
            self.shown = now
            left = (now - self.began) * (self.total - done) / (done - self.first) if done > self.first else 0.0
            print(printable(what) + (f"; {timedelta(seconds=round(left))} left" if left else ""), file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a line that stays."""
        self.bar.write(printable(message), file=sys.stderr)

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *error) -> None:
        self.bar.close()
