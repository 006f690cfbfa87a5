"""Show a fairseq log as it grows, one short line per report: ``fairseq-train ... | python -m ...commands.watch STAGE UPDATES``.

UPDATES is the training's total; 0 if it makes no updates. The time left is estimated from the updates seen by this process, so it
includes validations and checkpoints but no updates from before a resumption.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator

REPORT = re.compile(r"\| (train_inner|valid) \| (\{.*\})")
WINDOW = 40  # reports for estimating speed: covers several validations, yet follows changes in load


def reports(lines: Iterable[str], stage: str, total: int = 0) -> Iterator[str]:
    """One line per report: update, loss or ``accept_len``, speed, time left."""
    seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # update, seconds since the training started or was resumed
    for line in lines:
        if not (report := REPORT.search(line)):
            continue
        figures = {key.removeprefix("valid_"): value for key, value in json.loads(report[2]).items()}
        validating = report[1] == "valid"
        words = []
        if "num_updates" in figures:
            words.append(f"update {int(figures['num_updates']):,}" + (f" of {total:,}" if total else ""))
        measure = "accept_len" if validating and "accept_len" in figures else "nll_loss"
        words += [f"{measure} {figures[measure]}"] if measure in figures else []
        if "ups" in figures:
            words.append(f"{float(figures['ups']):.2f} updates/s")
            seen.append((int(figures["num_updates"]), float(figures.get("wall", 0))))
            left = total - seen[-1][0]
            if left > 0 and (speed := updates_per_second(seen) or float(figures["ups"])):
                words.append(f"{duration(left / speed)} left")
        yield f"{stage}{' valid' if validating else ''}: {', '.join(words)}"


def updates_per_second(seen: deque[tuple[int, float]]) -> float:
    """Speed from the first to the last (update, seconds) pair; 0 if unknown."""
    (first, start), (last, end) = seen[0], seen[-1]
    return (last - first) / (end - start) if end > start else 0.0


def duration(seconds: float) -> str:
    """Seconds in words: ``40 s``, ``12 min``, ``1 h 14 min``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"


if __name__ == "__main__":
    for report in reports(sys.stdin, sys.argv[1], int(sys.argv[2])):
        print(report, flush=True)
