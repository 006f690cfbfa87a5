"""What figures depend on besides the program: the processor, the packages, the number of threads. And what a process holds."""

import hashlib
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from specdec_plugins.cpus import usable_cpus

PACKAGES = ("torch", "fairseq-fixed", "fairseq", "ctranslate2")


class Mix(NamedTuple):
    """How a system uses the cores: ``workers`` side by side (processes, or CTranslate2's translators), each of ``threads``."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}"


def machine(device: str = "cpu") -> dict[str, Any]:
    """The date, the processor, the number of cores, the versions and the commit, and the GPU if ``device`` is one."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    gpu: dict[str, Any] = {}
    if device != "cpu":
        import torch

        properties = torch.cuda.get_device_properties(device)
        gpu = {"gpu": properties.name, "gpu_mib": properties.total_memory >> 20, "cuda": torch.version.cuda}
    return {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(),
        "cores": cores(), "python": platform.python_version(),
        **versions, **gpu, **source(),
    }  # fmt: skip


def source() -> dict[str, str]:
    """The ``commit`` of a checkout, with a + if it has changes; elsewhere the `fingerprint` of the package's code."""
    package = Path(__file__).parent.parent
    told = []
    for command in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            told.append(subprocess.run(["git", *command], cwd=package, capture_output=True, text=True, check=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            return {"code": fingerprint(package.rglob("*.py"))}
    return {"commit": told[0] + ("+" if told[1] else "")}


def cpu_name() -> str:
    """What the processor calls itself; nothing where Linux does not tell."""
    if not os.path.exists("/proc/cpuinfo"):
        return ""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def cores() -> int:
    """The number of cores that this process may use."""
    return usable_cpus()


def thread_choices(device: str = "cpu") -> list[int]:
    """Numbers of threads to try: the powers of two up to all cores, and all cores; on a GPU only 1."""
    if device != "cpu":
        return [1]
    return sorted({*(1 << n for n in range(cores().bit_length()) if 1 << n <= cores()), cores()})


def full_mixes(threads: Iterable[int], device: str = "cpu") -> list[Mix]:
    """For each number of threads, as many workers as keep all cores busy; one on a GPU."""
    return [Mix(max(1, cores() // number) if device == "cpu" else 1, number) for number in threads]


def peak_memory(device: str = "cpu") -> int:
    """The most bytes that this process had in memory, or PyTorch on a GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # last, as on Linux it is at least the parent's
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def tensor_bytes(*objects: Any) -> int:
    """Bytes of all the tensors, and of the kernels' weights, that some objects hold, each counted once."""
    import torch

    total, seen, waiting = 0, set(), list(objects)
    while waiting:
        item = waiting.pop()
        storage = item.untyped_storage() if isinstance(item, torch.Tensor) else None
        key = storage.data_ptr() if storage else id(item)
        if key in seen or isinstance(item, type):
            continue
        seen.add(key)
        if storage:
            total += storage.nbytes()
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
        elif hasattr(item, "__dict__"):
            waiting.append(vars(item))
            total += getattr(item, "weight_bytes", 0)  # of a product on the kernels
    return total


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of some files' names and contents."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]
