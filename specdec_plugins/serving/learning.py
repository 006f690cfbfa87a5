"""A model's drafter learns from what is served: the server's side of the learning process. Imports no PyTorch.

The engine's threads put examples into a queue that drops the oldest. A thread of this module passes them to the process and
installs each state that the process found to be faster. Serving continues if the process dies.
"""

import logging
import os
import signal
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.requests import Hypothesis, Request
from specdec_plugins.fields import Fault, OptionError
from specdec_plugins.formats.drafter_folder import NAME
from specdec_plugins.formats.folder import Pair, load_folder, replace_drafter, with_drafter
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.serving.line import Line
from specdec_plugins.settings import Settings
from specdec_plugins.training.served import Example, Pace, Report, Task
from specdec_plugins.workers import Worker

log = logging.getLogger(__name__)
WAITING = 1024  # examples for a process that is busy, at most
LONGEST = 512  # tokens of an example's source and output together, at most
STARTS = 3  # of the process
NICE = 19
USUAL_PACE = Pace()


@dataclass(frozen=True)
class Lessons:
    """How a drafter learns."""

    share: float  # of a core, at most
    keep: Path | None = None  # the drafter's own folder
    pace: Pace = USUAL_PACE


class Learning:
    """Of the drafter for the sessions of a ``line``, whose engine is that of the model in a ``folder``."""

    def __init__(self, name: str, line: Line, folder: str, how: Lessons):
        self.name, self.line, self.keep, engine = name, line, how.keep, line.engine
        self.updates = self.swaps = self.refused = 0
        self.first = self.present = 0.0  # tokens a pass on the latest held-back requests; see `Report`
        self.examples: deque[Example] = deque(maxlen=WAITING)
        assert engine.pair.drafter is not None
        self.drafter = engine.pair.drafter  # in service
        self._begin = partial(begin, folder=folder, settings=engine.settings, share=how.share, pace=how.pace)
        self._process: Worker | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="learning", daemon=True)
        line.learn = self.learn
        self._thread.start()

    @property
    def process(self) -> int | None:
        """The number of the learning process, while it lives."""
        worker = self._process
        return worker.process.pid if worker is not None and worker.process.is_alive() else None

    def learn(self, request: Request, output: Hypothesis) -> None:
        """From the engine's threads: keep an example, if it is one."""
        ended = output.error is None and not output.cut and output.tokens
        if ended and not request.depends_on_drafts and len(request.tokens) + len(output.tokens) <= LONGEST:
            self.examples.append(Example(request, output.tokens))

    def stop(self) -> None:
        """End the process and all learning, without waiting."""
        self._stopped.set()
        self.line.learn = None
        if (process := self._process) is not None:
            process.process.kill()

    def close(self) -> None:
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        for number in range(1, STARTS + 1):
            try:
                self._process = Worker(0, partial(self._begin, drafter=self.drafter))
                if not self._stopped.is_set():
                    self._converse(self._process)
            except Exception as error:
                if not self._stopped.is_set():
                    what = "the process starts again" if number < STARTS else "it ends until the model is loaded again"
                    log.warning("model %s: learning failed (%s); %s", self.name, error, what)
            if self._process is not None:
                self._process.process.kill()
                self._process.stop()
            if self._stopped.is_set():
                return
        self.stop()

    def _converse(self, process: Worker) -> None:
        process.receive()
        taken, before = False, self.updates
        while not self._stopped.is_set():
            some = [self.examples.popleft() for _ in range(len(self.examples))]
            report: Report = process.ask(Task(some, taken))
            self.updates = before + report.updates
            if report.first:
                self.first, self.present = report.first, report.present
            taken = report.drafter is not None and self.install(report.drafter)
            if report.refused:
                self.refused += 1
                log.info("model %s: a state of its drafter was dropped: %s", self.name, report.refused)
            self._stopped.wait(report.rest)

    def install(self, drafter: DrafterModel) -> bool:
        """Let a state draft for requests that have no row yet. Returns False for a damaged one, which is dropped."""
        try:
            self.line.engine.redraft(drafter)
        except ValueError as error:
            self.refused += 1
            log.warning("model %s: a damaged state of its drafter was dropped: %s", self.name, error)
            return False
        self.line.renew()
        self.drafter, self.swaps = drafter, self.swaps + 1
        said = f"{self.present:.2f} tokens a pass, {self.first:.2f} at the start"
        log.info("model %s: its drafter has learned: %s", self.name, said)
        if self.keep is not None:
            try:
                replace_drafter(drafter, self.line.engine.pair.verifier, self.keep)
            except OSError as error:
                log.warning("model %s: its drafter was not saved: %s", self.name, error)
        return True


def begin(number: int, folder: str, drafter: DrafterModel, settings: Settings, share: float, pace: Pace):
    """In the process: what answers tasks."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which may be sent to the server's whole group
    if pace.idle_time:
        os.nice(NICE)
        with suppress(AttributeError, OSError):  # not Linux
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from specdec_plugins.training.learner import Learner

    return Learner(folder, drafter, settings, share, pace)


def check_learnable(settings: Settings) -> None:
    """Raises OptionError for settings under which outputs depend on drafts, which change here."""
    faults: list[Fault] = []
    if settings.beta > 1:
        faults.append(("beta", "above 1 is not supported while the drafter learns: outputs would depend on it"))
    if settings.sampling and settings.rule == "rejection":
        faults.append(("rule", "rejection is not supported while the drafter learns: outputs would depend on it; use coupled"))
    if faults:
        raise OptionError(faults)


def learner(folder: str, drafter: str | None) -> Pair:
    """A model whose drafter can learn. Raises ValueError."""
    pair = load_folder(folder)
    if drafter is not None:
        pair = with_drafter(pair, drafter)
    if pair.drafter is None:
        raise ValueError(f"{pair.name} has no drafter that could learn; specdec-draft trains one")
    trained = hasattr(drafters.find(pair.drafter.code), "Options")
    if pair.drafter.spec is not None or not trained:  # a whole Transformer, or one that has no trainer
        raise ValueError(
            f"{pair.name}: its drafter {pair.drafter.code} cannot learn; use one that specdec-draft made, such as glide"
        )
    return pair


def continued(name: str, pair: Pair, keep: Path | None) -> Pair:
    """The pair with the drafter as an earlier server has left it in its folder. One that is damaged is dropped."""
    assert pair.drafter is not None
    if keep is None or not (keep / NAME).exists():
        return pair
    try:
        found = with_drafter(pair, str(keep)).drafter
        if found is None or found.code != pair.drafter.code:
            raise ValueError(f"{keep}: it has another drafter than {pair.drafter.code}")
        if found.verifier != pair.mark:
            raise ValueError(f"{keep}: it was trained for another verifier")
    except (ValueError, OSError) as error:
        log.warning("model %s: what its drafter had learned was dropped: %s", name, error)
        return pair
    return pair.drafting(found)
