"""What a request may choose about its tokens. Imports no torch, so that a command can check its options at once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

RULES = ("coupled", "rejection")
MAX_BLOCK_SIZE = 1024  # tokens of a draft, or of a tree


@dataclass(frozen=True)
class Tolerance:
    """How far a drafted token may be from the verifier's best: among its ``beta`` best and within ``tau`` nats of the best.

    ``beta`` 1 is exact. Of equal logits the lower token number ranks first, as for argmax. Raises ValueError for values that
    cannot be.
    """

    beta: int = 1
    tau: float = math.inf

    def __post_init__(self) -> None:
        if type(self.beta) is not int or not 1 <= self.beta < 1 << 31:
            raise ValueError(f"beta {self.beta!r} is not a whole number from 1 to {(1 << 31) - 1:,}")
        if not is_number(self.tau) or not self.tau >= 0:
            raise ValueError(f"tau {self.tau!r} is negative or not a number")


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float, and of a size that fits into a float."""
    return isinstance(value, (int, float)) and (value == math.inf or not value > 1e308)


class Gate(NamedTuple):
    """How sure the models have to be for drafting to go on: probabilities, 0 where that does not matter.

    A row drafts nothing after a token of which the verifier was less sure than ``verifier``. A draft ends before the position at
    which the product of the drafter's confidences falls below ``drafter``. Its confidence at a position is the probability of
    the likeliest token there, which depends on the tokens before it, not on the one that is drafted: a cut that depended on that
    one would change what is sampled under the rejection rule (``acceptance/rejection.py``).
    """

    verifier: float = 0.0
    drafter: float = 0.0


OPEN = Gate()


class Tree(NamedTuple):
    """How a draft branches: at most ``nodes`` tokens for each row, those of the likeliest paths.

    With a ``shape`` it is always the same tree: a path to each node, as the ranks of its tokens among the candidates there, from
    0; (0, 2) is the third best token after the best one.
    """

    nodes: int
    shape: tuple[tuple[int, ...], ...] = ()


CHOICES = ("mass", "recent", "sinks")


BUDGETED = ("block_causal", "small")  # drafters with weights that may read a budget of their cache


class Budget(NamedTuple):
    """What a drafter's pass reads of the cache: ``positions`` of the source, chosen by ``choice`` (``budget.py``), and as many of
    the target. ``sinks`` of them are the first ones, unless attention alone chooses (mass): four, on which models put what
    attention they do not need (StreamingLLM, Xiao et al. 2024, arXiv 2309.17453)."""

    positions: int = 128
    sinks: int = 4
    choice: str = "mass"

    @property
    def attends(self) -> bool:
        """Whether positions are chosen by the verifier's attention."""
        return self.choice != "sinks"


USUAL_BUDGET = Budget()


@dataclass(frozen=True)
class Sampling:
    """That tokens are drawn at random, and from what: `sampling.py` says what the numbers do; ``top_k`` 0 keeps all tokens.

    ``rule`` says which drafted tokens are accepted (``acceptance/coupled.py``, ``acceptance/rejection.py``). Raises ValueError
    for values that cannot be.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    rule: str = "coupled"

    def __post_init__(self) -> None:
        for name, message in sampling_faults(self):
            raise ValueError(f"{name} {message}")


def sampling_faults(values: Any) -> Iterator[tuple[str, str]]:
    """(field, message) of each value that cannot be, of an object with the fields of `Sampling`."""
    for name in ("temperature", "repetition_penalty"):
        value = getattr(values, name)
        if not is_number(value) or not 0 < value < math.inf:
            yield name, f"{value!r} is not a number above 0"
    if not is_number(values.top_p) or not 0 < values.top_p <= 1:
        yield "top_p", f"{values.top_p!r} is not above 0 and at most 1"
    if type(values.top_k) is not int or values.top_k < 0:
        yield "top_k", f"{values.top_k!r} is not a whole number from 0 on"
    elif values.top_k >= 1 << 31:
        yield "top_k", f"{values.top_k} is more than any vocabulary has"
    if values.rule not in RULES:
        yield "rule", f"'{values.rule}' is unknown; available: {', '.join(RULES)}"
