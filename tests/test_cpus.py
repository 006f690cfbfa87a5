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


@pytest.mark.parametrize(("torchs", "chosen", "expected"), [(5, None, 2), (1, None, 1), (5, "5", 5)])
def test_a_chosen_number_of_threads_has_the_last_word(monkeypatch, torchs, chosen, expected):
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    monkeypatch.setattr(cpus, "usable_cpus", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert cpus.usual_threads.__wrapped__() == expected
