"""What figures depend on besides the program: processor, packages, threads. Also the memory of a process."""

import hashlib
import platform
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from specdec_plugins.cpus import usable_cpus

PACKAGES = ("torch", "fairseq-fixed", "fairseq", "ctranslate2")


class Mix(NamedTuple):
    """How a system uses the cores: ``workers`` (processes, or CTranslate2's translators) with ``threads`` each."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}"


def machine(device: str = "cpu", kernels: str | None = None) -> dict[str, Any]:
    """Date, processor, number of cores, versions and commit; also the GPU, if ``device`` is one, else the instruction set of the
    CPU kernels, which is ``kernels`` if a run names one."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    on: dict[str, Any] = {}
    if device != "cpu":
        import torch

        properties = torch.cuda.get_device_properties(device)
        on = {"gpu": properties.name, "gpu_mib": properties.total_memory >> 20, "cuda": torch.version.cuda}
    else:
        from specdec_plugins.decoding.compiled import chosen

        on = {"kernels": found.name if (found := chosen(kernels)) else "none"}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu_name(),
        "cores": usable_cpus(),
        "python": platform.python_version(),
        **versions,
        **on,
        **source(),
    }


def source() -> dict[str, str]:
    """The ``commit`` of a checkout, with a + for uncommitted changes; elsewhere a hash of the package's ``code``."""
    package = Path(__file__).parent.parent
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=10", "--dirty=+"]
    try:
        return {"commit": subprocess.run(command, cwd=package, capture_output=True, text=True, check=True).stdout.strip()}
    except (OSError, subprocess.CalledProcessError):
        files = sorted(package.rglob("*.py"))
        lines = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files)
        return {"code": hashlib.sha256("".join(lines).encode()).hexdigest()[:16]}


def cpu_name() -> str:
    """The processor's model name; empty where it is unknown."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def thread_choices(device: str = "cpu") -> list[int]:
    """Numbers of threads to try: the powers of two up to all cores, and all cores; 1 on a GPU."""
    cores = usable_cpus() if device == "cpu" else 1
    return sorted({*(1 << n for n in range(cores.bit_length())), cores})


READ = 1 << 28, 1 << 26  # bytes that are read, in all and by each thread at least: more than caches hold


def bandwidth(threads: int) -> float:
    """Bytes a second that threads of this process read from memory together: the best of five passes."""
    import numpy as np

    parts = np.ones((threads, max(READ[0] // threads, READ[1]) // 8), np.int64)
    found = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # of NumPy's reductions the one that computes least
            found = max(found, parts.nbytes / (time.perf_counter() - began))
    return found


def full_mixes(threads: Iterable[int], device: str = "cpu") -> list[Mix]:
    """For each number of threads, enough workers to keep all cores busy; one on a GPU."""
    return [Mix(max(1, usable_cpus() // number) if device == "cpu" else 1, number) for number in threads]


def peak_memory(device: str = "cpu") -> int:
    """Peak bytes in memory of this process, or of PyTorch on a GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()  # rusage has at least the parent's
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
