"""Options of a request. Imports no torch, so that commands can check them at once."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

RULES = ("coupled", "rejection")
LIBRARIES = ("fairseq", "huggingface")
# Instruction sets that the CPU kernels are compiled for, best first: see setup.py.
KERNELS = ("amx", "avx512", "avxvnni", "avx2", "generic")
STOPPING = ("false", "true", "never")
MAX_BEAMS = 1000
MAX_LENGTH_PENALTY, MAX_UNK_PENALTY = 30.0, 1e6  # beyond them sums and powers overflow
MAX_BLOCK_SIZE = 1024  # tokens of a draft, or of a tree


@dataclass(frozen=True)
class Tolerance:
    """A drafted token is acceptable if it is among the verifier's ``beta`` best and within ``tau`` nats of the best.

    ``beta`` 1 is exact. Of equal logits the lower token id ranks first, as in argmax. Raises ValueError for invalid values.
    """

    beta: int = 1
    tau: float = math.inf

    def __post_init__(self) -> None:
        if type(self.beta) is not int or not 1 <= self.beta < 1 << 31:
            raise ValueError(f"beta {self.beta!r} is not a whole number from 1 to {(1 << 31) - 1:,}")
        if not is_number(self.tau) or not self.tau >= 0:
            raise ValueError(f"tau {self.tau!r} is negative or not a number")


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float that fits into a float."""
    return isinstance(value, (int, float)) and (value == math.inf or not value > 1e308)


class Tree(NamedTuple):
    """How a draft branches: up to ``nodes`` tokens per row, those of the likeliest paths.

    ``shape`` fixes the tree: one path per node, as ranks among the candidates. (0, 2) is the third-best token after the best one.
    """

    nodes: int
    shape: tuple[tuple[int, ...], ...] = ()


CHOICES = ("mass", "recent")


class Budget(NamedTuple):
    """Cache positions that a drafting pass reads: ``positions`` of the source, chosen by ``choice`` (``budget.py``), and as many
    of the target. The first ``sinks`` are always among them, except source positions under ``mass``; four collect the attention
    that models do not need (StreamingLLM, Xiao et al. 2024, arXiv 2309.17453)."""

    positions: int = 128
    sinks: int = 4
    choice: str = "mass"


USUAL_BUDGET = Budget()


@dataclass(frozen=True)
class Sampling:
    """Sampling with the warpers of ``backends/torch/sampling.py``; ``top_k`` 0 keeps all tokens.

    ``rule`` names the acceptance rule: ``coupled.py`` and ``rejection.py`` there. Raises ValueError for invalid values.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    rule: str = "coupled"

    def __post_init__(self) -> None:
        for name, most in (("temperature", 1e308), ("repetition_penalty", 1e308), ("top_p", 1)):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value <= most:
                raise ValueError(f"{name} {value!r} is not a number above 0 and at most {most:g}")
        if type(self.top_k) is not int or not 0 <= self.top_k < 1 << 31:
            raise ValueError(f"top_k {self.top_k!r} is not a whole number from 0 to {(1 << 31) - 1:,}")
        if self.rule not in RULES:
            raise ValueError(f"rule '{self.rule}' is unknown; available: {', '.join(RULES)}")


@dataclass(frozen=True)
class Beam:
    """Beam search with ``size`` live hypotheses by the rules of a library (``search/``); the best ``nbest`` are outputs.

    A hypothesis' score is its log-probability divided by its length, eos included, to the power of ``length_penalty``. Each
    unknown token costs ``unk_penalty`` nats. Only ``huggingface`` has ``early_stopping`` and ``renormalize``: log-probabilities
    among allowed tokens. Raises ValueError for invalid values.
    """

    size: int
    rules: str = "fairseq"
    length_penalty: float = 1.0
    nbest: int = 1
    unk_penalty: float = 0.0
    early_stopping: str = "false"
    renormalize: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (("size", 1, MAX_BEAMS), ("nbest", 1, self.size)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} {value!r} is not a whole number from 1 to {most}")
        for name, bound in (("length_penalty", MAX_LENGTH_PENALTY), ("unk_penalty", MAX_UNK_PENALTY)):
            value = getattr(self, name)
            if not is_number(value) or not abs(value) <= bound:
                raise ValueError(f"{name} {value!r} is not a number from -{bound:g} to {bound:g}")
        if self.unk_penalty and self.rules != "fairseq":
            raise ValueError(f"unk_penalty is not supported by the rules of {self.rules}, which are the model's own")
        for name, words in (("rules", LIBRARIES), ("early_stopping", STOPPING), ("renormalize", (False, True))):
            if getattr(self, name) not in words:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; available: {', '.join(map(str, words))}")

    @property
    def candidates(self) -> int:
        """How many continuations a step looks at: two for each live hypothesis, as each may have eos among its best."""
        return 2 * self.size
