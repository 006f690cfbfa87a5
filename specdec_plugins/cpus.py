"""How many CPUs this process may use, and how many threads it takes if nobody says. Imports torch only for the latter."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROCESS = Path("/proc/self")


def usable_cpus() -> int:
    """The CPUs of the process's affinity, or fewer under a quota of CPU time.

    A quota is rounded down, to at least 1: members of a team wait for each other, so two threads on 1.5 CPUs are no faster than
    one, and stand still for a quarter of each period.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas()])))


@cache
def usual_threads() -> int:
    """Torch's choice, which heeds OMP_NUM_THREADS and the affinity; without OMP_NUM_THREADS at most `usable_cpus`.

    Of the first call, as torch forgets its choice when it is told another number.
    """
    import torch

    threads = torch.get_num_threads()
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, usable_cpus())


def quotas() -> Iterator[float]:
    """The CPUs' worth of time that each control group that the process is in may take; nothing for those without a limit.

    Files that are missing or cannot be read stand for no limit.
    """
    for folder, mount, version in cpu_groups():
        for group in (folder, *folder.parents):
            yield from limit(group, version)
            if group == mount:
                break


def cpu_groups() -> Iterator[tuple[Path, Path, int]]:
    """Of each hierarchy of control groups that can limit CPU time: the process's folder, where it is mounted, version 1 or 2."""
    paths = {}  # of the process's group, by version
    for line in lines(PROCESS / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[2] = path
        elif "cpu" in controllers.split(","):
            paths[1] = path
    for line in lines(PROCESS / "mountinfo"):
        mounted, _, system = line.partition(" - ")
        (root, mount), (kind, _, options) = mounted.split()[3:5], system.split()[:3]
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "cpu" in options.split(",") else 0
        if version in paths:
            # A container may see only the part of the hierarchy from its own group on, mounted as if that were the root.
            inside = os.path.relpath(paths[version], root)
            yield Path(mount, inside) if not inside.startswith("..") else Path(mount), Path(mount), version


def limit(group: Path, version: int) -> list[float]:
    """A group's own quota in CPUs, as a list of one; empty without one."""
    if version == 2:  # "max 100000" or "150000 100000": microseconds in each period
        text = lines(group / "cpu.max")
        quota, period = text[0].split() if text else ("max", "0")
        return [] if quota == "max" else [int(quota) / int(period)]
    given = [lines(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if not all(given) or int(given[0][0]) < 0:  # -1: none
        return []
    return [int(given[0][0]) / int(given[1][0])]


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
