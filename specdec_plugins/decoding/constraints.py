"""Constraints on the next token: length limits, suppressed tokens, no repeated n-grams.

Only eos may follow at the length limit. Every backend applies the same constraints at each verified position, with that
position's prefix, before any acceptance rule: `backends/torch/constraints.py`, ``csrc/judge.h``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specdec_plugins.model.spec import ModelSpec, OutputRules, Symbols


@dataclass(frozen=True)
class Constraints:
    """A model's own: special symbols, the tokens that begin every output, tokens banned from outputs, and whose rules hold."""

    symbols: Symbols = field(default_factory=Symbols)
    forced: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    rules: OutputRules = field(default_factory=OutputRules)

    def __post_init__(self) -> None:
        if self.symbols.eos in self.forced:
            raise ValueError("the model's forced tokens include eos, which would end every output at once")

    @classmethod
    def of(cls, spec: ModelSpec) -> "Constraints":
        return cls(spec.symbols, spec.forced, (*spec.suppressed, *spec.ends), spec.outputs)  # eos stands for all ends

    @property
    def banned(self) -> tuple[int, ...]:
        """The tokens that no output contains."""
        return self.suppressed if self.rules.library == "huggingface" else (self.symbols.pad, *self.suppressed)

    @property
    def context(self) -> tuple[int, ...]:
        """What precedes an output where n-grams are counted."""
        return (self.symbols.start,) if self.rules.library == "huggingface" else ()


class Repeats(NamedTuple):
    """Bans tokens that would repeat an n-gram of the prefix, n = ``size``; 0 bans none. Never bans eos. As in fairseq."""

    size: int
    prefix: Sequence[int]


class Bounds(NamedTuple):
    """The constraints of one step, by row. Forced tokens are absent: prefill reads them.

    A row may commit ``room`` more tokens before eos, and must commit ``minimum`` more before eos is allowed. ``repeats`` is None
    if no row has the rule.
    """

    constraints: Constraints
    room: list[int]
    minimum: list[int]
    repeats: Sequence[Repeats] | None = None

    def after(self, paths: Sequence[tuple[int, Sequence[int]]]) -> "Bounds":
        """The constraints after each (row, tokens that follow its prefix)."""
        constraints, room, minimum, repeats = self
        return Bounds(
            constraints,
            [room[row] - len(path) for row, path in paths],
            [max(0, minimum[row] - len(path)) for row, path in paths],
            repeats and [repeats[row]._replace(prefix=[*repeats[row].prefix, *path]) for row, path in paths],
        )
