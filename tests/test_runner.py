"""What all commands share: exit statuses, one-line errors with the names of options, signals, progress."""

import argparse
import errno
import os
import pickle
import signal
import time

import pytest

from specdec_plugins.commands import progress
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import out_of_range, run_command
from specdec_plugins.fields import OptionError
from specdec_plugins.formats.files import whole
from specdec_plugins.settings import Settings


def parser():
    p = argparse.ArgumentParser(prog="specdec-x")
    p.add_argument("--block-size", type=int)
    p.add_argument("--sizes", type=int, nargs="+")
    p.add_argument("--output")
    return p


def raising(error):
    def run(options):
        raise error

    return run


def test_a_run_that_ends_well_leaves_signals_as_they_were(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert run_command(parser(), [], lambda options: print("done")) == 0
    assert capsys.readouterr() == ("done\n", "") and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("error", "arguments", "status", "message"),
    [
        (ValueError("line 3:\nbad"), [], 1, "error: line 3: bad (so far: 2)"),
        (ImportError("no such package"), [], 1, "error: no such package (so far: 2)"),
        (MemoryError("no room for a pass"), [], 1, "error: no room for a pass (so far: 2)"),
        (OSError(errno.ENOENT, "No such file", "a.txt"), [], 1, "error: a.txt: No such file (so far: 2)"),
        (OSError(errno.ENOSPC, "No space left"), ["--output", "b"], 1, "error: b: No space left (so far: 2)"),
        (OSError(errno.ENOSPC, "No space left"), [], 1, "error: stdout: No space left (so far: 2)"),
        (OptionError([("block_size", "0 is less than 1")]), [], 2, "error: --block-size 0 is less than 1"),
        (KeyboardInterrupt(), [], 130, "stopped (so far: 2), go on"),
    ],
)
def test_how_a_run_ends_is_said_in_one_line(error, arguments, status, message, capsys):
    assert run_command(parser(), arguments, raising(error), ending=lambda: " (so far: 2)", resumption=", go on") == status
    assert capsys.readouterr() == ("", f"specdec-x: {message}\n")


def test_termination_ends_a_run(capsys):
    def run(options):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    assert run_command(parser(), [], run, ending=lambda: " early") == 143
    assert capsys.readouterr().err == "specdec-x: stopped early\n"


def test_faults_are_told_all_at_once_before_anything_runs(capsys):
    def check(options):
        return [*out_of_range(options, "block_size", "sizes"), ("output", "is missing")]

    arguments = ["--block-size", "-1", "--sizes", "3", "0"]
    assert run_command(parser(), arguments, raising(AssertionError("must not run")), check) == 2
    error = "specdec-x: error: --block-size -1 is less than 1; --sizes 0 is less than 1; --output is missing\n"
    assert capsys.readouterr().err == error


def test_settings_tell_everything_that_is_wrong_with_them():
    with pytest.raises(OptionError) as error:
        Settings(strategy="ar", block_size=0, beta=0, dtype="int9")
    assert error.value.faults == [
        ("block_size", "0 is less than 1"),
        ("block_size", "is not supported by strategy ar"),
        ("beta", "0 is less than 1"),
        ("beta", "is not supported by strategy ar"),
        ("dtype", "'int9' is unknown; available: float32, bfloat16, int8, int4, float16, auto"),
    ]
    assert str(error.value).startswith("block_size 0 is less than 1; block_size is not supported")
    copy = pickle.loads(pickle.dumps(error.value))  # as it comes from a worker
    assert copy.faults == error.value.faults and str(copy) == str(error.value)


def test_steps_in_a_log_are_few_and_say_how_long_the_rest_takes(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Steps(4.0) as steps:
        steps.step("loading", 0.0)
        now[0] += 5
        steps.step("too soon", 0.5)
        now[0] += 5
        steps.step("half", 1.0)
        steps.say("left out: x")
        now[0] += 10
        steps.step("all", 2.0)
        now[0] += 10
        steps.step("longer than estimated", 4.5)
    assert capsys.readouterr().err.splitlines() == [
        "loading",
        "half; 0:00:30 left",
        "left out: x",
        "all; 0:00:20 left",
        "longer than estimated",
    ]


def test_the_steps_of_a_resumed_run_take_as_long_as_its_own(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Steps(1.0) as steps:
        now[0] += 50
        steps.resume(0.5)
        steps.step("resumed", 0.5)
        now[0] += 10
        steps.step("on", 0.6)
    assert capsys.readouterr().err.splitlines() == ["resumed", "on; 0:00:40 left"]


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), whole(tmp_path / "pipe"):
        raise AssertionError("nothing may be written")
    assert (tmp_path / "pipe").is_fifo()
