"""How many CPUs a process may use: its affinity, and quotas of control groups in either version, in made-up trees."""

import os

import pytest
import torch
from conftest import run_python

from specdec_plugins import cpus

QUOTAS = [(None, 64), (0.5, 1), (1, 1), (1.5, 1), (2, 2), (3.9, 3), (100, 64)]  # in CPUs; of 64 in the affinity


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine of 64 CPUs: `machine(version, path, root)` returns the mounted hierarchy of the process's group."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(cpus, "PROCESS", tmp_path / "proc")

    def make(version, path="/a/b", root="/"):
        process, mount = tmp_path / "proc", tmp_path / "cgroup"
        process.mkdir()
        lines = {1: f"4:memory:/m\n3:cpu,cpuacct:{path}\n1:name=systemd:/s\n0::/u\n", 2: f"0::{path}\n"}
        (process / "cgroup").write_text(lines[version])
        kinds = {1: "cgroup cgroup rw,cpu,cpuacct", 2: "cgroup2 cgroup2 rw"}
        mounts = ["22 1 8:1 / / rw - ext4 /dev/sda rw", f"31 22 0:28 {root} {mount} rw shared:4 - {kinds[version]}"]
        mounts.append(f"32 22 0:29 / {tmp_path / 'memory'} rw - cgroup cgroup rw,memory")
        (process / "mountinfo").write_text("\n".join(mounts) + "\n")
        return mount

    return make


def limit(group, version, quota, period=100_000):
    group.mkdir(parents=True, exist_ok=True)
    number = None if quota is None else int(quota * period)
    if version == 2:
        (group / "cpu.max").write_text(f"{'max' if number is None else number} {period}\n")
    else:
        (group / "cpu.cfs_quota_us").write_text(f"{-1 if number is None else number}\n")
        (group / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("quota", "usable"), QUOTAS)
def test_a_quota_is_rounded_down(machine, version, quota, usable):
    limit(machine(version) / "a/b", version, quota)
    assert cpus.usable_cpus() == usable


@pytest.mark.parametrize("version", [1, 2])
def test_the_strictest_group_on_the_way_up_counts(machine, version):
    mount = machine(version)
    limit(mount / "a/b", version, 8)
    limit(mount / "a", version, 3)
    limit(mount, version, 5, period=50_000)
    limit(mount.parent, version, 1)  # above the mount: no group
    limit(mount / "a/b/c", version, 1)  # another process's
    assert cpus.usable_cpus() == 3


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "root", "group"), [("/docker/x", "/docker/x", "."), ("/docker/x/y", "/docker/x", "y"), ("/../..", "/", ".")]
)
def test_a_container_sees_its_group_as_the_root(machine, version, path, root, group):
    limit(machine(version, path, root) / group, version, 2)
    assert cpus.usable_cpus() == 2


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_missing_is_no_limit(machine, version):
    machine(version)
    assert cpus.usable_cpus() == 64


def test_without_control_groups_the_affinity_counts(machine, tmp_path):
    assert not (tmp_path / "proc").exists() and cpus.usable_cpus() == 64


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_one_cpu_is_one_thread():
    """Also after torch was told another number."""
    program = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); del os.environ['OMP_NUM_THREADS']\n"
        "from specdec_plugins.decoding.assembly import THREADS\n"
        "import torch; torch.set_num_threads(2)\n"
        "from specdec_plugins.cpus import usual_threads; print(THREADS, usual_threads())"
    )
    assert run_python("-c", program).stdout.split() == ["1", "1"]


@pytest.fixture
def threads(tmp_path, monkeypatch):
    """Makes a machine of 8 cores with two threads each, CPU n beside n + 8: `threads(allowed, chosen)` is `usual_threads`."""
    for cpu in range(16):
        topology = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    monkeypatch.setattr(cpus, "SYSTEM", tmp_path / "cpu")
    monkeypatch.setattr(cpus, "PROCESS", tmp_path / "proc")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)

    def make(allowed, chosen=None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*allowed}, raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if chosen is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", chosen)
        return cpus.usual_threads.__wrapped__()

    return make


@pytest.mark.parametrize(
    ("allowed", "chosen", "expected"),
    [
        (range(16), None, 8),
        (range(4), None, 4),
        ((0, 8), None, 1),
        ((0, 1, 8), None, 2),
        ((3,), "5", 5),
        (range(16), "16", 8),
        (range(16), " 3 ", 3),
        (range(16), "4,2", 4),
        *((range(16), wrong, 8) for wrong in ("", "0", "-3", "many", "3x", "\u0663")),
    ],
)
def test_threads_are_physical_cores_or_chosen(threads, allowed, chosen, expected):
    assert threads(allowed, chosen) == expected


def test_threads_are_no_more_than_a_quota_allows(threads, monkeypatch):
    monkeypatch.setattr(cpus, "quotas", lambda: iter([2.5]))
    assert threads(range(16)) == 2 and threads(range(16), "5") == 5


def test_where_the_system_does_not_say_every_cpu_is_a_core(threads, monkeypatch, tmp_path):
    monkeypatch.setattr(cpus, "SYSTEM", tmp_path / "nothing")
    assert threads(range(5)) == 5 and threads(range(5), "20") == 16


@pytest.mark.parametrize("chosen", [None, "100"])
def test_threads_are_pytorchs(chosen, monkeypatch):
    """With MKL, which bounds OMP_NUM_THREADS by the physical cores."""
    if not torch.backends.mkl.is_available():
        pytest.skip("this PyTorch has no MKL")
    program = (
        "import os, torch; from specdec_plugins.cpus import usual_threads, usable_cpus\n"
        "most = 1000 if 'OMP_NUM_THREADS' in os.environ else usable_cpus()\n"
        "print(min(torch.get_num_threads(), most), usual_threads())"
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    theirs, ours = run_python("-c", program).stdout.split()
    assert theirs == ours
