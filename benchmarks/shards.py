#!/usr/bin/env python3
"""Whole corpora on processes and on Ray: what survives kills, what executors cost, and what limits a cluster.

    benchmarks/shards.py chaos [--runs 50]            # SIGKILL of actors, the driver, and raylets at random moments
    benchmarks/shards.py overhead [--lines 1000000]   # seconds and memory of both executors, with a stand-in for the model
    benchmarks/shards.py scaling [--machines 1 2 4 8] # a model fitted on simulated machines, whose shards only wait

Clusters are Ray's simulated ones: a raylet for each machine, all of them on this one. Lines are generated.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DEMO = ROOT / "data" / "demo.en-de"
STORE = 80 << 20  # bytes of a machine's object store
KINDS = ("actor", "driver", "machine", "actor", "driver", "head")  # what a run kills; the head's raylet takes the driver along
MOST = 6  # starts of a driver until its run must have ended

from specdec_plugins.corpora.inputs import scan  # noqa: E402
from specdec_plugins.corpora.local import LocalProcesses  # noqa: E402
from specdec_plugins.corpora.plan import make_plan  # noqa: E402
from specdec_plugins.corpora.ray import RayActors  # noqa: E402
from specdec_plugins.corpora.values import Executor, Job  # noqa: E402


def patiently(start: Callable[[], Any]) -> Any:
    """Start something of Ray, which gives up after 30 seconds, however busy the machine is."""
    for _ in range(9):
        with suppress(Exception):
            return start()
    return start()


class Machines:
    """A cluster of simulated machines. The first is the head, on which drivers run."""

    def __init__(self, count: int, cores: int = 1, modules: Path = ROOT / "benchmarks"):
        """``modules`` is a folder of modules that actors may need."""
        path = os.pathsep.join([str(ROOT), str(modules)])
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0", PYTHONPATH=path)
        self.count, self.node = count, {"num_cpus": cores, "object_store_memory": STORE}
        self.start()

    def start(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = patiently(partial(Cluster, initialize_head=True, head_node_args={**self.node, "include_dashboard": False}))
        for _ in range(self.count - 1):
            patiently(partial(self.cluster.add_node, **self.node))

    @property
    def address(self) -> str:
        return self.cluster.address

    def raylet(self, node: Any) -> int:
        return node.all_processes["raylet"][0].process.pid

    def actors(self) -> list[int]:
        """The processes of actors that translate, or load a model."""
        raylets = {self.raylet(node) for node in self.cluster.list_all_nodes()}
        return [pid for pid, parent, name in processes() if parent in raylets and name.startswith("ray::MapWorker")]

    def kill(self, kind: str) -> None:
        """SIGKILL a raylet, the head's or another's, and replace the machine."""
        if kind == "machine":
            node = next(iter(self.cluster.worker_nodes))
            os.kill(self.raylet(node), signal.SIGKILL)
            self.cluster.remove_node(node, allow_graceful=False)
            patiently(partial(self.cluster.add_node, **self.node))
        else:
            os.kill(self.raylet(self.cluster.head_node), signal.SIGKILL)
            self.stop()
            self.start()

    def stop(self) -> None:
        with suppress(AssertionError):  # a killed process may still be dying
            self.cluster.shutdown()


def processes() -> Iterator[tuple[int, int, str]]:
    """All processes: number, that of the parent, and command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def generated(path: Path, lines: int, seed: int = 0) -> Path:
    """A file of lines of random words."""
    words, draw = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").split(), random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(draw.choices(words, k=draw.randrange(1, 16))) + "\n" for _ in range(lines))
    return path


def whole(output: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(output.glob("part-*.txt")))


class Chaos:
    """Runs in which something is killed, each on two machines and until its command succeeds."""

    def __init__(self, folder: Path, lines: int = 120, shards: int = 10, seed: int = 0):
        self.folder, self.shards, self.draw = folder, shards, random.Random(seed)
        self.input = generated(folder / "in.txt", lines)
        common = ["--model", str(DEMO), "--quiet", "--threads", "1"]
        size = str(self.input.stat().st_size // shards)
        command = [sys.executable, "-m", "specdec_plugins.commands.translate", *common, "-i", str(self.input)]
        self.expected = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout
        self.command = [sys.executable, "-m", "specdec_plugins.commands.corpus", str(self.input), *common, "--shard-size", size]
        self.machines = Machines(2)

    def run(self, number: int, kind: str) -> dict[str, Any]:
        """What was killed when, how often the driver started, and whether the output is right. Raises RuntimeError."""
        output, after, began = self.folder / f"out{number}", self.draw.randrange(self.shards), time.monotonic()
        killed, starts = "", 0
        for _ in range(MOST):
            starts += 1
            command = [*self.command, "-o", str(output), "--ray", self.machines.address, "--workers", "2"]
            with open(self.folder / "log", "a") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as driver:
                if not killed:
                    killed = self.kill_during(driver, output, after, kind)
                status = driver.wait()
            if status == 0:
                break
        done = len(list((output / "reports").glob("*.json")))
        found = {"run": number, "kind": kind, "killed": killed, "drivers": starts, "seconds": round(time.monotonic() - began, 1)}
        if status or whole(output) != self.expected:
            raise RuntimeError(f"{found}: status {status}, {done} reports, the output differs from specdec-translate's")
        return found

    def kill_during(self, driver: subprocess.Popen, output: Path, after: int, kind: str) -> str:
        """Kill once ``after`` shards are done and up to a second has passed; what there is to kill by then."""
        reports = output / "reports"
        while driver.poll() is None and (not reports.is_dir() or len(list(reports.glob("*.json"))) < after):
            time.sleep(0.05)
        time.sleep(self.draw.random())
        while kind == "actor" and driver.poll() is None and not self.machines.actors():
            time.sleep(0.05)
        if driver.poll() is not None:
            return "nothing: it had ended"
        if kind == "actor":
            with suppress(ProcessLookupError):
                os.kill(self.draw.choice(self.machines.actors() or [driver.pid]), signal.SIGKILL)
        elif kind == "driver":
            driver.kill()
        else:
            self.machines.kill(kind)
        return f"after {after} of {self.shards} shards"


def chaos(folder: Path, runs: int, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    """Each run's account. Raises RuntimeError if an output is wrong."""
    tests = Chaos(folder)
    try:
        found = []
        for number in range(runs):
            found.append(tests.run(number, kinds[number % len(kinds)]))
            print(json.dumps(found[-1]), flush=True)
        return found
    finally:
        tests.machines.stop()


class Waiting:
    """Stands in for a model: upper case, after ``seconds`` for each line."""

    def __init__(self, seconds: float, number: int):
        self.seconds = seconds

    def __call__(self, first: int, lines: Sequence[str]) -> Any:
        from specdec_plugins.decoding.stats import DecodeStats

        time.sleep(self.seconds * len(lines))
        answers = [SimpleNamespace(text=line.upper(), said="") for line in lines]
        return SimpleNamespace(lines=answers, too_long="", stats=DecodeStats())


@contextmanager
def memory(peaks: dict[str, list[float]]) -> Iterator[None]:
    """Notes, twice a second, the MiB of this process and of the largest actor or worker."""
    over = threading.Event()

    def note() -> None:
        while not over.wait(0.5):
            own = os.getpid()
            others = [pid for pid, parent, name in processes() if name.startswith("ray::MapWorker") or parent == own]
            peaks["driver"].append(resident(own))
            peaks["worker"].append(max(map(resident, others), default=0.0))

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def resident(pid: int) -> float:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def timed(executor: Executor, source: Path, output: Path, shards: int, seconds: float = 0.0) -> dict[str, Any]:
    """Seconds until the first report, from there to the last, and of the driver on a core; MiB halfway and at the end."""
    (output / "reports").mkdir(parents=True)
    plan = make_plan([str(source)], None, -(-source.stat().st_size // shards), ".txt")
    peaks: dict[str, list[float]] = {"driver": [], "worker": []}
    began, first, busy = time.monotonic(), 0.0, time.process_time()
    with memory(peaks):
        for _ in executor.run(plan.shards, Job(str(output), partial(Waiting, seconds))):
            first = first or time.monotonic() - began
    total, busy = time.monotonic() - began, time.process_time() - busy
    tail = {f"{name} MiB": [round(values[len(values) // 2]), round(values[-1])] for name, values in peaks.items() if values}
    return {
        "shards": len(plan.shards),
        "first": round(first, 2),
        "rest": round(total - first, 2),
        "driver CPU s": round(busy, 2),
    } | tail


def overhead(folder: Path, lines: int) -> None:
    """Both executors on the same lines, in few shards and in many, whose difference is the cost of shards."""
    source = generated(folder / "in.txt", lines)
    expected = source.read_bytes().decode().upper().encode()
    for shards in (20, 200):
        for name, executor in (("processes", LocalProcesses(2)), ("ray", RayActors("local", 2))):
            output = folder / f"{name}{shards}"
            found = timed(executor, source, output, shards)
            print(json.dumps({"executor": name} | found | {"equal": whole(output) == expected}), flush=True)


def scaling(folder: Path, machines: Sequence[int], seconds: float = 2.0) -> None:
    """Time shards that only wait on clusters of several sizes, and fit: start + shards / actors * (seconds + gap)."""
    source = generated(folder / "in.txt", 10_000)
    began = time.perf_counter()
    scan(str(source), None, 1 << 20, 0)
    print(json.dumps({"planning MB/s": round(source.stat().st_size / 1e6 / (time.perf_counter() - began))}))
    for count in machines:
        cluster = Machines(count)
        try:
            shards = 12 * count
            waits = timed(RayActors(cluster.address, count), source, folder / f"w{count}", shards, seconds * shards / 10_000)
            idle = timed(RayActors(cluster.address, count), source, folder / f"i{count}", 100)
        finally:
            cluster.stop()
        each = waits["rest"] * count / (waits["shards"] - 1)
        found = {"machines": count, "start": waits["first"] - seconds, "seconds per shard": round(each, 2)}
        print(json.dumps(found | {"most shards/s": round(99 / idle["rest"], 1), **waits}), flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("chaos", "overhead", "scaling"))
    p.add_argument("--runs", type=int, default=50)
    p.add_argument("--lines", type=int, default=1_000_000)
    p.add_argument("--machines", type=int, nargs="+", default=[1, 2, 4, 8])
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.what == "chaos":
            chaos(Path(name), options.runs)
        elif options.what == "overhead":
            overhead(Path(name), options.lines)
        else:
            scaling(Path(name), options.machines)


if __name__ == "__main__":
    main()
