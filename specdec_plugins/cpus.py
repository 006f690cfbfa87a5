"""The number of usable CPUs, and the default number of threads."""

import os
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

PROCESS = Path("/proc/self")
SYSTEM = Path("/sys/devices/system/cpu")


def usable_cpus() -> int:
    """The CPUs in the process's affinity, or fewer under a CPU quota.

    Quotas are rounded down, to at least 1: threads of a team wait for each other, so two of them on 1.5 CPUs are no faster than
    one and stall for a quarter of each period.
    """
    return max(1, int(min([len(allowed_cpus()), *quotas()])))


@cache
def usual_threads() -> int:
    """As many as PyTorch starts by default: OMP_NUM_THREADS, but at most one for each physical core of the machine; without it,
    one for each physical core in the affinity, and at most `usable_cpus`."""
    chosen = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if chosen.isascii() and chosen.isdecimal() and int(chosen):
        return min(int(chosen), cores(range(os.cpu_count() or 1)))
    return min(cores(allowed_cpus()), usable_cpus())


def allowed_cpus() -> Collection[int]:
    """The numbers of the CPUs in the process's affinity."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def cores(cpus: Collection[int]) -> int:
    """The number of physical cores that these CPUs are threads of; as many as CPUs where the system does not say."""
    return len({(*lines(SYSTEM / f"cpu{number}" / "topology" / "thread_siblings_list"), str(number))[0] for number in cpus})


def quotas() -> Iterator[float]:
    """The quotas, in CPUs, of the process's control groups and their parents. Missing files mean no limit."""
    for folder, mount, version in cpu_groups():
        for group in (folder, *folder.parents):
            yield from limit(group, version)
            if group == mount:
                break


def cpu_groups() -> Iterator[tuple[Path, Path, int]]:
    """For each hierarchy that can limit CPU time: the process's folder, the mount point, and the version, 1 or 2."""
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
            # A container may see its own group mounted as the root.
            inside = os.path.relpath(paths[version], root)
            yield Path(mount, inside) if not inside.startswith("..") else Path(mount), Path(mount), version


def limit(group: Path, version: int) -> list[float]:
    """A group's own quota in CPUs, as a list of at most one."""
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
