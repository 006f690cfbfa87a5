"""What translating a sentence gives, and what becomes of one that is too long. Knows neither models nor the engine's roles."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.values import Step


@dataclass(frozen=True)
class Translation:
    """One sentence's result. ``source_tokens`` and ``tokens`` are subwords; ``token_scores`` (nats) include the closing eos."""

    text: str
    source_tokens: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    token_scores: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    cut: bool = False  # the length limit ended the output
    sample: int = 0  # its number among the samples of a sentence
    shortened: bool = False  # the source was too long for the models: cut, or, if there are no source_tokens, skipped
    drafter: str | None = None  # the drafter's name; None where none drafts

    @property
    def score(self) -> float:
        """Mean log-probability of the tokens under the verifier, in nats (fairseq's score with --lenpen 1)."""
        return sum(self.token_scores) / max(1, len(self.token_scores))

    @property
    def iterations(self) -> int:
        """Verifier passes that the output took."""
        return len(self.steps)

    @property
    def drafted(self) -> int:
        """Tokens offered for verification, in all iterations."""
        return sum(len(step.drafted) for step in self.steps)

    @property
    def accepted(self) -> int:
        """Of these, the accepted ones."""
        return sum(step.accepted for step in self.steps)

    @property
    def accepted_lengths(self) -> list[int]:
        """Tokens that each iteration committed, the verifier's own included."""
        return [step.accepted + (step.own is not None) for step in self.steps]


class SourceTooLong(ValueError):
    """A source longer than the models' positions; ``index`` is its number among the sentences given, from 0."""

    def __init__(self, index: int, length: str, limit: int):
        super().__init__(index, length, limit)
        self.index = index

    def __str__(self) -> str:
        _, length, limit = self.args  # all that it is made of, so that it can be sent from process to process
        return f"{length} tokens, and the models read at most {limit:,}"


@dataclass(frozen=True)
class Source:
    """A source as token ids with eos; without any if it is to be skipped for its length. ``forced`` tokens begin its output."""

    tokens: list[int]
    shortened: bool
    forced: Sequence[int] = ()
