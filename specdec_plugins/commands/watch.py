"""Show a fairseq log as it is written, a short line a report: ``fairseq-train ... | python -m ...commands.watch NAME``."""

import json
import re
import sys
from collections.abc import Iterable, Iterator

REPORT = re.compile(r"\| (train_inner|valid) \| (\{.*\})")


def reports(lines: Iterable[str], name: str) -> Iterator[str]:
    """What a person wants to know of each report: the update, the loss or ``accept_len``, the speed."""
    for line in lines:
        if not (found := REPORT.search(line)):
            continue
        figures = {key.removeprefix("valid_"): value for key, value in json.loads(found[2]).items()}
        words = [f"update {figures['num_updates']}"] if "num_updates" in figures else []
        measure = "accept_len" if found[1] == "valid" and "accept_len" in figures else "nll_loss"
        words += [f"{measure} {figures[measure]}"] if measure in figures else []
        words += [f"{float(figures['ups']):.2f} updates/s"] if "ups" in figures else []
        yield f"{name}{' valid' if found[1] == 'valid' else ''}: {', '.join(words)}"


if __name__ == "__main__":
    for report in reports(sys.stdin, sys.argv[1]):
        print(report, flush=True)
