"""The learning process of a server: trains the drafter on what it has served, and finds out which states are faster.

Work is done in rounds. A round makes some updates on recent examples, then replays held-back ones with the drafter in service and
with the trained one. As they are of one shape, a pass takes the same time with both, and fewer passes are faster; the clock of a
machine that serves cannot tell a few percent. Knows token ids; no text and no server.
"""

import time
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import torch

from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.engine import Engine
from specdec_plugins.formats.arrays import arrays
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.settings import Settings
from specdec_plugins.training.drafting import Training
from specdec_plugins.training.pairs import Pair
from specdec_plugins.training.precision import choose_kernels, keep_memory
from specdec_plugins.training.served import Example, Pace, Report, Task

HELD_BACK = 8  # one source in this many is never trained on, whenever it comes


class Learner:
    """Answers tasks, each of which is a part of a round. ``share``: of a core, at most; rests between tasks keep to it."""

    def __init__(self, folder: str, drafter: DrafterModel, settings: Settings, share: float, pace: Pace):
        choose_kernels("bf16" if torch.cpu._is_avx512_bf16_supported() else "float32")
        keep_memory()
        pair = replace(load_folder(folder), drafter=drafter, others=())
        self.engine = Engine(pair, replace(settings, threads=1, block_size=drafter.block_size))
        torch.set_num_threads(1)
        self.training = Training.of(drafter, pair.verifier)
        self.share, self.pace = share, pace
        self.first = self.present = drafter
        self.offered: DrafterModel | None = None
        self.recent, self.held_back = deque[Pair](maxlen=pace.recent), deque[Example](maxlen=pace.held_back)
        self.fresh, self.promising = 0, True  # examples since the last round began; whether it brought something
        self.made, self.planned = -1, 0  # updates of this round, -1: none is under way

    def __call__(self, task: Task) -> Report:
        began, busy = time.monotonic(), time.process_time()
        if self.offered is not None:
            self.settle(self.offered if task.taken else self.present)
        self.learn_of(task.examples)
        if self.made < 0 and not self.ready():
            return Report(self.pace.pause, self.training.updates)
        report = self.compared() if self.made == self.planned else self.updated()
        busy = time.process_time() - busy
        return replace(report, rest=max(0.0, busy / self.share - (time.monotonic() - began)), updates=self.training.updates)

    def learn_of(self, examples: Sequence[Example]) -> None:
        """Keep examples: to train on, or to compare with."""
        for each in examples:
            source = array("i", each.request.tokens)
            if zlib.crc32(source.tobytes()) % HELD_BACK:
                self.recent.append(Pair(source, array("i", each.output)))
                self.fresh += 1
            else:
                self.held_back.append(each)

    def ready(self) -> bool:
        """Whether another round may bring something."""
        least = self.pace.least
        enough = len(self.recent) >= least and len(self.held_back) >= least // (2 * HELD_BACK)
        return enough and (self.promising or self.fresh >= least)

    def updated(self) -> Report:
        if self.made < 0:
            self.training.feed([*self.recent])
            self.made, self.fresh, self.planned = 0, 0, min(self.pace.updates, self.pace.epochs * self.training.batches)
        self.training.update(self.made / self.planned)
        self.made += 1
        return Report(0.0, 0)

    def compared(self) -> Report:
        """Replay the held-back examples. A state that is worse than the present one is dropped; one that is not better by the
        margin is trained further."""
        self.made = -1
        made = self.training.drafter()
        made = replace(made, tensors=arrays(made.tensors), devices=self.first.devices)
        try:
            first, present, state = (self.replay(each) for each in (self.first, self.present, made))
        except ValueError as error:
            self.settle(self.present)
            self.promising = False
            return Report(0.0, 0, refused=str(error))
        self.promising = state >= self.pace.margin * present
        if self.promising:
            self.offered = made
            return Report(0.0, 0, made, "", first, state)
        if state < present:
            self.settle(self.present)
        return Report(0.0, 0, None, f"{state:.2f} instead of {present:.2f} tokens a pass", first, present)

    def settle(self, drafter: DrafterModel) -> None:
        """``drafter`` drafts from now on. Training continues from it, unless it is there already."""
        if drafter is not self.offered:
            self.training.adopt(drafter)
        self.present, self.offered = drafter, None

    def replay(self, drafter: DrafterModel) -> float:
        """Decode the held-back examples as they were served, one at a time, in drafts as long as in training. Returns tokens a
        pass. Raises ValueError for invalid weights, and for another output."""
        self.engine.redraft(drafter)
        requests = [replace(each.request, index=number) for number, each in enumerate(self.held_back)]
        stats = DecodeStats()
        session = self.engine.session(max(each.rows for each in requests), usual_rows=1, stats=stats)
        outputs = [*session.run(requests)]
        if any(each.tokens != self.held_back[each.index].output for each in outputs if not each.output):
            raise ValueError("an output differs from the one served; was the model's folder replaced?")
        return stats.mean_accepted_length
