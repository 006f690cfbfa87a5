"""Shards on Ray: the same bytes with any number of actors, whatever dies; faults are named and cost no other shard."""

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_plugins.commands import corpus, translate
from specdec_plugins.corpora.plan import make_plan
from specdec_plugins.corpora.values import Job, ShardReport
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.extras import install_command

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "data" / "demo.en-de"


class Upper:
    """Stands in for a model. Some lines kill its process, lose its file or cannot be translated, a number of times or until a
    file named ``cured`` is there; and some wait for three processes."""

    def __init__(self, folder: Path, number: int):
        self.folder, self.deadline = folder, time.monotonic() + 600
        (folder / f"process-{os.getpid()}").touch()
        if (folder / "no-model").exists():
            raise ValueError("no-model: not a model folder")

    def __call__(self, first, lines):
        for line in lines:
            if line.startswith("die thrice") and len(deaths := list(self.folder.glob("death-*"))) < 3:
                (self.folder / f"death-{len(deaths)}").touch()
                os.kill(os.getpid(), 9)
            elif line.startswith("lose once") and not (self.folder / "lost").exists():
                (self.folder / "lost").touch()
                for path in (self.folder / "out").glob(f"part-{first // 4:05}.txt.*.tmp"):
                    path.unlink()
            elif line.startswith("three"):
                while len(list(self.folder.glob("process-*"))) < 3:
                    assert time.monotonic() < self.deadline, "no third process has started"
                    time.sleep(0.05)
            elif line.startswith("die always") and not (self.folder / "cured").exists():
                os.kill(os.getpid(), 9)
            elif line.startswith("fail") and not (self.folder / "cured").exists():
                raise ValueError("cannot be translated")
        texts = [SimpleNamespace(text=f"{number} {line.upper()}", said="") for number, line in enumerate(lines, first)]
        return SimpleNamespace(lines=texts, too_long="", stats=DecodeStats())


def work(folder, lines):
    """The shards of a text, four lines each, and their job."""
    (folder / "in.txt").write_text("".join(f"{line:<30}\n" for line in lines))
    (folder / "out" / "reports").mkdir(parents=True)
    return make_plan([str(folder / "in.txt")], None, 124, ".txt").shards, Job(str(folder / "out"), partial(Upper, folder))


def whole(output):
    return b"".join(path.read_bytes() for path in sorted(output.glob("part-*.txt")))


def test_without_ray_one_line_names_the_extra(tmp_path, monkeypatch, capfd):
    (tmp_path / "in.txt").write_text("A dog runs.\n")
    monkeypatch.setitem(sys.modules, "ray", None)
    given = [tmp_path / "in.txt", "--model", DEMO, "-o", tmp_path / "out", "--ray"]
    assert corpus.main(list(map(str, given))) == 1
    err = capfd.readouterr().err.strip()
    assert err.count("\n") == 0 and install_command("corpora") in err


def executor(address="local", actors=2, **changes):
    from specdec_plugins.corpora.ray import RayActors

    return RayActors(address, actors, **changes)


def actor(job, **changes):
    pytest.importorskip("pyarrow")
    from specdec_plugins.corpora.ray import Actor

    return Actor(job, executor(**changes), os.getcwd())


def outcome(actor, shard):
    import pyarrow

    number, found = pickle.loads(actor(pyarrow.table({"shard": [pickle.dumps(shard)]}))["outcome"][0].as_py())
    assert number == shard.number
    return found


def test_lines_at_fault_are_not_tried_again_and_errors_that_may_pass_are(tmp_path):
    shards, job = work(tmp_path, ["a", "b", "c", "d", "e", "fail", "g", "h"])
    own = actor(job)
    assert outcome(own, shards[0]).records == 4
    assert outcome(own, shards[1]) == f"{tmp_path}/in.txt, line 6: cannot be translated"
    os.rename(tmp_path / "out" / "reports", tmp_path / "moved")
    (tmp_path / "out" / "reports").touch()  # a file, so that no report can be written
    for _ in range(2):
        with pytest.raises(OSError):
            outcome(own, shards[0])
    assert "reports" in outcome(own, shards[0])  # the third failure is its last


def test_a_model_that_cannot_be_loaded_is_the_error_of_all_shards(tmp_path):
    shards, job = work(tmp_path, ["a"])
    (tmp_path / "no-model").touch()
    assert str(outcome(actor(job), shards[0])) == "no-model: not a model folder"


def test_a_stuck_actor_exits(tmp_path):
    """Even if a call into C holds the interpreter's lock."""
    pytest.importorskip("pyarrow")
    code = (
        "import ctypes, sys, test_corpora_ray as t\n"
        "shards, job = t.work(t.Path(sys.argv[1]), ['a'])\n"
        "own = t.actor(job, patience=0.3); own.translate = lambda first, lines: ctypes.PyDLL(None).sleep(1000)\n"
        "t.outcome(own, shards[0])"
    )
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert done.returncode == 1 and b"Timeout" in done.stderr and not list((tmp_path / "out").glob("part-*.txt"))


def test_actors_share_no_cores(tmp_path):
    """A core is taken until the process that holds it ends."""
    code = (
        "import os, tempfile; from specdec_plugins.corpora.ray import pin\n"
        f"tempfile.tempdir = {str(tmp_path)!r}; slot = pin(1); print(*os.sched_getaffinity(0), slot is None, flush=True); input()"
    )
    cores = sorted(os.sched_getaffinity(0))
    pythonpath = os.environ | {"PYTHONPATH": str(ROOT)}

    def started():
        return subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, env=pythonpath, text=True)

    processes = [started() for _ in cores]
    assert sorted(process.stdout.readline() for process in processes) == sorted(f"{core} False\n" for core in cores)
    processes.append(started())
    assert processes[-1].stdout.readline().endswith("True\n")  # no core is left
    processes[0].kill()
    processes[0].wait()
    processes.append(started())
    assert processes[-1].stdout.readline().endswith("False\n")
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def cluster():
    """Two machines with two cores each, so to speak."""
    pytest.importorskip("ray")
    from shards import Machines

    made = Machines(2, 2, ROOT / "tests")  # actors import this one
    yield made
    made.stop()


@pytest.mark.long
@pytest.mark.parametrize("actors", [1, 4])
def test_any_number_of_actors_writes_the_output_of_translate(cluster, actors, tmp_path):
    text = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8")
    (tmp_path / "in.txt").write_text(text)
    common = ["--model", DEMO, "--quiet", "--threads", 1]
    assert translate.main(list(map(str, [*common, "-i", tmp_path / "in.txt", "-o", tmp_path / "expected"]))) == 0
    given = [
        tmp_path / "in.txt",
        *common,
        "-o",
        tmp_path / "out",
        "--shard-size",
        len(text) // 9,
        "--ray",
        cluster.address,
        "--workers",
        actors,
    ]
    assert corpus.main(list(map(str, given))) == 0
    assert whole(tmp_path / "out") == (tmp_path / "expected").read_bytes()
    assert len(list((tmp_path / "out").glob("part-*.txt"))) > 6


@pytest.mark.long
def test_shards_that_always_fail_are_named_cost_no_other_and_can_be_run_later(cluster, tmp_path):
    """A shard whose file is lost once is not among them, nor one that loses a round's attempts, as a machine's death may cost."""
    lines = [f"line {number}" for number in range(40)]
    lines[5], lines[9], lines[17], lines[30] = "lose once", "die thrice", "fail", "die always"
    shards, job = work(tmp_path, lines)
    reports = list[ShardReport]()
    with pytest.raises(ValueError, match=r"failed: 2: part-00004.txt: .*, line 18: .*; part-00007.txt: its worker died 6 times"):
        reports.extend(executor(cluster.address).run(shards, job))
    done = {report.number for report in reports}
    assert done == set(range(10)) - {4, 7} and (tmp_path / "lost").exists()
    (tmp_path / "cured").touch()
    again = executor(cluster.address).run([shard for shard in shards if shard.number not in done], job)
    assert {report.number for report in again} == {4, 7}
    assert whole(tmp_path / "out") == "".join(f"{number} {line.upper():<30}\n" for number, line in enumerate(lines)).encode()


@pytest.mark.long
def test_a_machine_that_joins_a_run_takes_part(cluster, tmp_path):
    """The two machines have room for two such actors; no shard ends before there are three."""
    shards, job = work(tmp_path, ["three"] * 40)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: list(executor(cluster.address, actors=3, threads=2).run(shards, job)))
        while not found.done() and len(list(tmp_path.glob("process-*"))) < 2:
            time.sleep(0.05)
        cluster.add()
        assert len(found.result()) == 10


@pytest.mark.long
def test_a_killed_driver_and_a_lost_machine_cost_nothing_but_time(tmp_path):
    """More of this, and kills of actors and the head: ``benchmarks/shards.py chaos``."""
    pytest.importorskip("ray")
    from shards import chaos

    found = chaos(tmp_path, 2, ("driver", "machine"))  # raises if an output is wrong
    assert [run["kind"] for run in found] == ["driver", "machine"]
