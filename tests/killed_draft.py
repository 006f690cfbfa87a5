"""specdec-draft, killed again and again: ``killed_draft.py MOMENTS ARGUMENT ...`` (see `test_killed_draft.py`).

Each run is a fork, which tells through a pipe what it begins and what it has saved. MOMENTS, in JSON, are where runs are killed:
what is begun, and for which time. The last run ends by itself.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - which optimisers import, each run for seconds

from specdec_plugins.commands import draft, drafting
from specdec_plugins.commands.evaluation import Evaluator
from specdec_plugins.measure import costs
from specdec_plugins.training.drafting import Training, load

LINES = 24  # translated between two writes of translations
# What is told as begun, and for how many seconds after that it is killed, at most
BEGUN = {
    "distil": (drafting.Work, "outputs", 0.02),
    "update": (Training, "update", 0.02),
    "save": (Training, "save", 0.003),
    "evaluate": (Evaluator, "evaluate", 0.05),
    "measure": (Evaluator, "measured", 0.1),
    "write": (drafting, "save_folder", 0.01),
    "publish": (drafting, "write_card", 0.002),
}


def tell(pipe: int) -> None:
    """Begin to tell, in a run."""

    def telling(what: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def told(*arguments: Any) -> Any:
            os.write(pipe, f"{what} 0\n".encode())
            result = plain(*arguments)
            if what == "save":
                os.write(pipe, f"saved {arguments[0].updates}\n".encode())
            return result

        return told

    for what, (owner, name, _) in BEGUN.items():
        setattr(owner, name, telling(what, getattr(owner, name)))


def killed(arguments: list[str], wanted: tuple[str, int] | None, wait: float) -> tuple[int | None, list[tuple[str, int]]]:
    """A run's status, None if it was killed, and what it has told."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        tell(writer)
        status = draft.main(arguments)
        time.sleep(60 if wanted else 0)  # to be killed, even if the end came first
        os._exit(status)
    os.close(writer)
    heard: list[tuple[str, int]] = []
    with os.fdopen(reader) as pipe:
        for line in pipe:
            what, number = line.split()
            heard.append((what, int(number)))
            if wanted and told_of(heard, wanted[0]) == wanted[1]:
                time.sleep(wait)
                os.kill(child, signal.SIGKILL)
                wanted = None
    status = os.waitpid(child, 0)[1]
    return (None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)), heard


def told_of(heard: list[tuple[str, int]], what: str) -> int:
    """How often."""
    return [each for each, _ in heard].count(what)


def main() -> None:
    moments, *arguments = sys.argv[1:]
    training, rng = Path(arguments[arguments.index("--output") + 1], "training"), random.Random(5)
    drafting.CHECKPOINT, drafting.CHUNK, drafting.EVALUATIONS, costs.ROUNDS = 0.0, LINES, 12, 1
    lines, updates = b"", 0
    for wanted in [*map(tuple, json.loads(moments)), None]:
        wait = rng.uniform(0, BEGUN[wanted[0]][2]) if wanted else 0.0
        status, heard = killed(arguments, wanted, wait)
        data, state = (training / "pairs.jsonl").read_bytes(), training / "state.pt"
        found = data[: data.rfind(b"\n") + 1]
        made = load(state)["updates"] if state.exists() else 0
        translated, least = found.count(b"\n"), lines.count(b"\n") + LINES * max(0, told_of(heard, "distil") - 1)
        assert found.startswith(lines) and translated >= least, f"{translated} lines of {least}"
        saved = max([updates, *(number for what, number in heard if what == "saved")])
        assert saved <= made <= saved + 1, f"update {made} after {saved} was saved"
        print(*(wanted or ["the end"]), "killed" if status is None else status, translated, made, flush=True)
        lines, updates = found, made


if __name__ == "__main__":
    main()
