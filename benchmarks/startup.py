#!/usr/bin/env python3
"""From shell to first translation, compared with a process that only imports NumPy: seconds, CPU seconds and peak memory.

    benchmarks/startup.py [--model data/demo.en-de] [--dtype int8] [--rounds 10]

Processes take turns, and each figure is the median of the differences within a round. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SENTENCE = "A dog runs through the snow.\n"


def measured(command: list[str]) -> dict[str, float]:
    """A process's time until its first line of output, and its peak memory. Raises RuntimeError without output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start compiles the package
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(SENTENCE.encode())
        process.stdin.close()
        if not process.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} wrote nothing")
        seconds = time.perf_counter() - began
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]  # user and system time
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": usage.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "data" / "demo.en-de"))
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    translate = ["-m", "specdec_plugins.commands.translate", "--model", options.model, "--dtype", options.dtype, "--quiet"]
    translate += ["--threads", "1"]
    rounds = [
        (measured(["-c", "import numpy; print(numpy.__version__)"]), measured(translate)) for _ in range(1 + options.rounds)
    ][1:]
    result = {f"numpy_{name}": statistics.median(numpy[name] for numpy, _ in rounds) for name in rounds[0][0]}
    result |= {f"more_{name}": statistics.median(ours[name] - numpy[name] for numpy, ours in rounds) for name in rounds[0][0]}
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
