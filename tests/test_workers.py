"""Processes beside one another: order, bounds, and what happens when one ends early."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

from specdec_plugins.workers import LOOKAHEAD, Workers

ROOT = Path(__file__).resolve().parent.parent  # conftest's would bring torch into every process

PROGRAM = """
import os, sys, time
sys.path.insert(0, "tests")
from test_workers import build
from specdec_plugins.workers import Workers
if __name__ == "__main__":
    with Workers(2, build) as workers:
        for done, _ in enumerate(workers.map([0.0] * 4 + [9999.0] * 9), 1):
            if done == 4:  # both are busy for hours
                print(*(worker.process.pid for worker in workers.workers), flush=True)
"""


def build(number):
    """Sleeps and says where; odd tasks of type int are refused, errors raised, and text ends the process."""

    def answer(task):
        if isinstance(task, str):
            os._exit(1)
        if isinstance(task, Exception):
            raise task
        if isinstance(task, int) and task % 2:
            raise ValueError(f"{task} is odd")
        time.sleep(task)
        return task, number

    return answer


def build_but_the_second(number):
    if number == 1:
        raise ValueError("number 1 cannot be built")
    return build(number)


def build_meeting(folder, number):
    """Answers once three processes have taken a task up."""
    answer = build(number)

    def meet(task):
        (folder / str(number)).touch()
        while len(list(folder.iterdir())) < 3:
            time.sleep(0.001)
        return answer(task)

    return meet


def test_answers_come_in_order_from_all_and_tasks_are_taken_up_as_needed(tmp_path):
    taken = 0

    def tasks():
        nonlocal taken
        for number in range(60):
            taken += 1
            yield 0.02 if number % 7 == 0 else 0.0001 * number

    with Workers(3, partial(build_meeting, tmp_path)) as workers:
        os.kill(workers.workers[0].process.pid, signal.SIGINT)  # as a terminal sends it; to answer that is not their affair
        answers = []
        for done, answer in enumerate(workers.map(tasks())):
            answers.append(answer)
            assert taken - done <= LOOKAHEAD * 3
    assert [task for task, _ in answers] == list(tasks())
    assert {number for _, number in answers} == {0, 1, 2}
    assert not active_children()


@pytest.mark.parametrize("last, message", [(1, "1 is odd"), ("end", "a worker process died")])
def test_an_end_comes_in_its_turn(last, message):
    answers = []
    with pytest.raises(ValueError, match=message), Workers(2, build) as workers:
        for answer in workers.map([0.3, last, 60.0, 60.0]):
            answers.append(answer[0])
    assert answers == [0.3] and not active_children()  # and nobody waited for the others


@pytest.mark.parametrize("error", [EOFError("short"), BrokenPipeError("gone"), MemoryError("full"), ImportError("none")])
def test_errors_of_a_task_come_as_they_are(error):
    with pytest.raises(type(error), match=str(error)), Workers(2, build) as workers:
        list(workers.map([0.0, error]))
    assert not active_children()


def test_one_that_cannot_be_built():
    with pytest.raises(ValueError, match="number 1 cannot be built"):
        Workers(3, build_but_the_second)
    assert not active_children()


def test_busy_workers_end_with_the_process_that_asks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    process.send_signal(signal.SIGKILL)
    process.wait()  # and not until nobody holds its stdout, as the workers do
    deadline = time.monotonic() + 600
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
