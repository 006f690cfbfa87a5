"""What a server and its learning process (`learner.py`) tell each other. Imports no PyTorch."""

from dataclasses import dataclass
from typing import NamedTuple

from specdec_plugins.decoding.requests import Request
from specdec_plugins.formats.spec import DrafterModel


@dataclass(frozen=True)
class Pace:
    """How much is kept, and when what is done. Tests and benchmarks on a busy machine do not wait for ``idle_time``."""

    recent: int = 4096  # examples that updates are made from
    held_back: int = 200  # examples that states are compared on, never trained on
    least: int = 256  # examples before the first round, and new ones before the next if the last one brought nothing
    updates: int = 100  # of a round, at most, in which the learning rate falls
    epochs: int = 3  # of a round, at most: 25 on the first 250 requests to the documentation pair made its drafter worse
    margin: float = 1.01  # growth of tokens a pass below which a state is not worth a swap
    pause: float = 2.0  # seconds between looks at a server that has sent too little
    idle_time: bool = True  # whether all other processes come first


class Example(NamedTuple):
    """A request and the tokens of its output, without eos. No draft could have changed them."""

    request: Request
    output: list[int]


class Task(NamedTuple):
    """The examples since the last task, and whether the drafter of the last report drafts now."""

    examples: list[Example]
    taken: bool = False


@dataclass(frozen=True)
class Report:
    """What has come of a task. Tokens a pass are those of the held-back examples."""

    rest: float  # seconds to wait before the next task
    updates: int  # since the process began
    drafter: DrafterModel | None = None  # faster than the present one
    refused: str = ""  # why a state was dropped
    first: float = 0.0  # tokens a pass with the drafter that the process began with; 0: not compared
    present: float = 0.0  # and with the best one known
