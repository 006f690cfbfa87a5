#!/usr/bin/env python3
"""Whole corpora on processes and on Ray: what survives kills, what executors cost, and what limits a cluster.

    benchmarks/shards.py chaos [--runs 75]            # SIGKILL at random moments: actors, drivers, raylets; local processes
    benchmarks/shards.py overhead [--lines 1000000]   # both executors beside specdec-translate --workers, without a model
    benchmarks/shards.py scaling                      # a fit of up to 32 actors, whose shards only wait

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DEMO = ROOT / "data" / "demo.en-de"
STORE = 80 << 20  # bytes of a machine's object store
ON_RAY = ("actor", "driver", "machine", "head")  # what is killed; raylets are machines, the head is the driver's
KINDS = (*ON_RAY, "worker", "parent")
MOST = 6  # starts of a driver until its run must have ended
PATIENCE = 900  # seconds for a driver to end, whatever was killed

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
            self.add()

    def add(self) -> None:
        patiently(partial(self.cluster.add_node, **self.node))

    @property
    def address(self) -> str:
        return self.cluster.address

    def raylet(self, node: Any) -> int:
        return node.all_processes["raylet"][0].process.pid

    def targets(self, kind: str) -> list[int]:
        """The processes that a kill of this kind may hit: actors that translate or load a model, or a raylet."""
        if kind == "actor":
            raylets = {self.raylet(node) for node in self.cluster.list_all_nodes()}
            return [pid for pid, parent, name in processes() if parent in raylets and name.startswith("ray::MapWorker")]
        return [self.raylet(self.cluster.head_node if kind == "head" else self.other())]

    def other(self) -> Any:
        return next(iter(self.cluster.worker_nodes))

    def mend(self, kind: str) -> None:
        """Replace the machine whose raylet was killed."""
        if kind == "machine":
            self.cluster.remove_node(self.other(), allow_graceful=False)
            self.add()
        elif kind == "head":
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


class Numbered:
    """Stands in for a model: each line backwards, after its number, in a hundredth of a second. Loads no torch."""

    def __init__(self, options: argparse.Namespace, number: int):
        pass

    def __call__(self, first: int, lines: Sequence[str]) -> Any:
        time.sleep(len(lines) / 100)
        return answers(f"{number} {line[::-1]}" for number, line in enumerate(lines, first))


def numbered_corpus() -> None:
    """``specdec-corpus`` with that model."""
    from specdec_plugins.commands import corpus

    vars(corpus)["LineAnswerer"] = Numbered
    sys.exit(corpus.main())


class Chaos:
    """Runs in which something is killed, each until its command succeeds; those on Ray have two machines."""

    def __init__(self, folder: Path, model: Path | None, lines: int = 240, shards: int = 12, seed: int = 0):
        """Without ``model``, `Numbered` stands in."""
        self.folder, self.shards, self.draw = folder, shards, random.Random(seed)
        self.input = generated(folder / "in.txt", lines)
        common = ["--model", str(model or DEMO), "--quiet", "--threads", "1"]
        if model:
            start = ["-m", "specdec_plugins.commands.corpus"]
            command = [sys.executable, "-m", "specdec_plugins.commands.translate", *common, "-i", str(self.input)]
            self.expected = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout
        else:
            start = ["-c", "import shards; shards.numbered_corpus()"]
            text = self.input.read_text(encoding="utf-8").splitlines()
            self.expected = "".join(f"{number} {line[::-1]}\n" for number, line in enumerate(text)).encode()
        size = str(self.input.stat().st_size // shards)
        self.command = [sys.executable, *start, str(self.input), *common, "--shard-size", size, "--workers", "2"]
        self.machines: Machines | None = None

    def run(self, number: int, kind: str) -> dict[str, Any]:
        """What was killed when, how often the driver started, and whether the output is right. Raises RuntimeError."""
        output, after, began = self.folder / f"out{number}", self.draw.randrange(self.shards - 1), time.monotonic()
        machines = self.machines = self.machines or Machines(2) if kind in ON_RAY else self.machines
        killed, starts, status = False, 0, 1
        while status and starts < MOST:
            starts += 1
            ray = ["--ray", machines.address] if machines and kind in ON_RAY else []
            command = [*self.command, "-o", str(output), *ray]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
            with open(self.folder / "log", "a") as log:
                driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            try:
                new = not killed and self.kill_during(driver, output, after, kind)
                if new and machines and kind == "machine":
                    machines.mend(kind)
                status = driver.wait(PATIENCE)
                if new and machines and kind == "head":
                    machines.mend(kind)
                killed |= new
            finally:
                driver.kill()
        found = {"run": number, "kind": kind, "killed": killed, "after": after, "drivers": starts}
        if status or whole(output) != self.expected:
            raise RuntimeError(f"{found}: status {status}, the output differs from specdec-translate's")
        return found | {"seconds": round(time.monotonic() - began, 1)}

    def kill_during(self, driver: subprocess.Popen, output: Path, after: int, kind: str) -> bool:
        """Kill once ``after`` shards are done and up to 0.3 seconds have passed, if there is anything to kill by then."""
        reports = output / "reports"
        while driver.poll() is None and (not reports.is_dir() or len(list(reports.glob("*.json"))) < after):
            time.sleep(0.02)
        time.sleep(self.draw.random() * 0.3)
        while driver.poll() is None:
            if self.machines and kind in ON_RAY and kind != "driver":
                found = self.machines.targets(kind)
            elif kind == "worker":
                found = [pid for pid, parent, name in processes() if parent == driver.pid and "spawn_main" in name]
            else:
                found = [driver.pid]
            if found:
                with suppress(ProcessLookupError):
                    os.kill(self.draw.choice(found), signal.SIGKILL)
                    return True
            time.sleep(0.02)
        return False


def chaos(
    folder: Path, runs: int, kinds: Sequence[str] = KINDS, model: Path | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Each run's account. Raises RuntimeError if an output is wrong."""
    tests, found = Chaos(folder, model, seed=seed), list[dict[str, Any]]()
    try:
        for number in range(runs):
            found.append(tests.run(number, kinds[number % len(kinds)]))
            print(json.dumps(found[-1]), flush=True)
        return found
    finally:
        if tests.machines:
            tests.machines.stop()


def answers(texts: Iterable[str]) -> Any:
    from specdec_plugins.decoding.stats import DecodeStats

    found = [SimpleNamespace(text=text, said="", line="", traced=[]) for text in texts]
    return SimpleNamespace(lines=found, too_long="", fault=None, stats=DecodeStats())


class Waiting:
    """Stands in for a model: upper case, after ``seconds`` for each line."""

    def __init__(self, seconds: float, number: int):
        self.seconds = seconds

    def __call__(self, first: int, lines: Sequence[str]) -> Any:
        time.sleep(self.seconds * len(lines))
        return answers(map(str.upper, lines))


class UpperBuffers:
    """The same for ``specdec-translate``."""

    def __init__(self, options: argparse.Namespace, number: int = 0):
        pass

    def __call__(self, buffer: Any) -> Any:
        return answers(map(str.upper, buffer.lines))


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
    """Seconds until the first report, from there to the last, and of the driver on a core; reports per second between half of
    them and the last one of each actor; MiB halfway and at the end."""
    (output / "reports").mkdir(parents=True)
    plan = make_plan([str(source)], None, -(-source.stat().st_size // shards), ".txt")
    peaks: dict[str, list[float]] = {"driver": [], "worker": []}
    began, busy, times = time.monotonic(), time.process_time(), list[float]()
    with memory(peaks):
        for _ in executor.run(plan.shards, Job(str(output), partial(Waiting, seconds))):
            times.append(time.monotonic() - began)
    total, busy = time.monotonic() - began, time.process_time() - busy
    half, most = len(times) // 2, len(times) - 1 - getattr(executor, "actors", 0)
    tail = {f"{name} MiB": [round(values[len(values) // 2]), round(values[-1])] for name, values in peaks.items() if values}
    return {
        "shards": len(plan.shards),
        "first": round(times[0], 2),
        "rest": round(total - times[0], 2),
        "driver CPU s": round(busy, 2),
        "shards/s": round((most - half) / (times[most] - times[half]), 2) if most > half else None,
    } | tail


def overhead(folder: Path, lines: int) -> None:
    """Both executors on the same lines, in few shards and in many, whose difference is the cost of shards."""
    from specdec_plugins.commands import translate

    source = generated(folder / "in.txt", lines)
    expected = source.read_bytes().decode().upper().encode()
    vars(translate)["Answerer"] = UpperBuffers
    given, began = ["--model", DEMO, "-i", source, "-o", folder / "out", "--workers", 2, "--quiet"], time.monotonic()
    equal = translate.main(list(map(str, given))) == 0 and (folder / "out").read_bytes() == expected
    print(json.dumps({"executor": "translate", "all": round(time.monotonic() - began, 2), "equal": equal}), flush=True)
    for shards in (20, 200):
        for name, executor in (("processes", LocalProcesses(2)), ("ray", RayActors("local", 2))):
            output = folder / f"{name}{shards}"
            found = timed(executor, source, output, shards)
            print(json.dumps({"executor": name} | found | {"equal": whole(output) == expected}), flush=True)
    long_plan(folder, source)


def long_plan(folder: Path, source: Path, shards: int = 20_000) -> None:
    """Seconds until Ray's first report of a plan with many shards, then per shard, and the driver's MiB."""
    plan = make_plan([str(source)], None, -(-source.stat().st_size // shards), ".txt")
    (folder / "long" / "reports").mkdir(parents=True)
    began, times = time.monotonic(), list[float]()
    for _ in islice(RayActors("local", 2).run(plan.shards, Job(str(folder / "long"), partial(Waiting, 0.0))), 100):
        times.append(time.monotonic() - began)
    found = {"first": round(times[0], 2), "each": round((times[-1] - times[0]) / 99, 4)}
    print(
        json.dumps({"executor": "ray", "shards": len(plan.shards)} | found | {"driver MiB": round(resident(os.getpid()))}),
        flush=True,
    )


def scaling(folder: Path, most: int = 32, rounds: int = 6) -> None:
    """Time shards that only wait, on four machines, by actors and by the seconds a shard waits. Fit what an actor adds to the
    start, and to the seconds of a shard beyond its wait."""
    import numpy

    source = generated(folder / "in.txt", 10_000)
    began = time.perf_counter()
    scan(str(source), None, 1 << 20, 0)
    print(json.dumps({"planning MB/s": round(source.stat().st_size / 1e6 / (time.perf_counter() - began))}))
    cluster, starts, gaps = Machines(4, most // 4), list[tuple[int, float]](), list[tuple[int, float]]()
    try:
        sizes = [(count, 1.0) for count in (2, 4, 8, 16, 32) if count <= most] + [(8, 0.25), (8, 2.0), (2, 0.0)]
        for count, seconds in sizes:
            shards = rounds * count if seconds else 200
            output = folder / f"{count}-{seconds}"
            found = timed(RayActors(cluster.address, count), source, output, shards, seconds * shards / 10_000)
            if seconds:
                starts.append((count, found["first"] - seconds))
                gaps.append((count, count / found["shards/s"] - seconds))
            print(json.dumps({"actors": count, "seconds": seconds, **found}), flush=True)
    finally:
        cluster.stop()
    for name, points in (("start", starts), ("gap", gaps)):
        slope, constant = numpy.polyfit([count for count, _ in points], [seconds for _, seconds in points], 1)
        print(json.dumps({name: f"{constant:.2f} s + {slope:.3f} s for each actor"}))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("chaos", "overhead", "scaling"))
    p.add_argument("--runs", type=int, default=75)
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what chaos kills, in turn")
    p.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    p.add_argument("--model", type=Path, help="the model of chaos (default: a stand-in)")
    p.add_argument("--lines", type=int, default=1_000_000)
    p.add_argument("--actors", type=int, default=32, help="the most that scaling starts")
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.what == "chaos":
            chaos(Path(name), options.runs, options.kinds, options.model, options.seed)
        elif options.what == "overhead":
            overhead(Path(name), options.lines)
        else:
            scaling(Path(name), options.actors)


if __name__ == "__main__":
    main()
