"""A translated sentence, and the error for a source that is too long."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.elementary import exponential, mean
from specdec_plugins.decoding.requests import Step
from specdec_plugins.text.alignment import Alignment

Pass = tuple[list[str], list[str], str | None]  # accepted drafts, refused drafts, the verifier's own token
BESIDE = ("hints", "source_lang", "target_lang", "protected", "beginnings")  # options that may have a value per sentence


@dataclass(frozen=True)
class Translation:
    """The result for one sentence. ``source_tokens`` and ``tokens`` are subwords; ``token_scores`` (nats) include eos.

    Scores are None unless asked for.
    """

    text: str
    source_tokens: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    token_scores: list[float] | None = None
    steps: list[Step] = field(default_factory=list)
    cut: bool = False  # the length limit ended the output
    sample: int = 0  # its index among the outputs of the sentence
    shortened: bool = False  # the source was too long: truncated, or skipped if there are no source_tokens
    drafter: str | None = None  # the drafter's name; None without drafts
    beam_score: float | None = None  # by the rules of a beam search
    alignment: Alignment | None = None  # of the words of the source and of ``text``; None: not asked for
    unplaced: list[str] = field(default_factory=list)  # terms of the glossary whose translations the text lacks
    missing_numbers: list[str] = field(default_factory=list)  # numbers of the source, as it spells them, that the text lacks
    word_scores: list[float] | None = None  # nats: the means of ``text.split()``

    @property
    def score(self) -> float | None:
        """A beam's score; otherwise the mean log-probability of the tokens under the verifier, in nats."""
        if self.beam_score is not None:
            return self.beam_score
        return None if self.token_scores is None else mean(self.token_scores)

    @property
    def confidence(self) -> float | None:
        """The geometric mean of the tokens' probabilities under the verifier: 1 for an empty source, 0 for a missing output."""
        if self.token_scores is None:
            return None
        if not self.token_scores:
            return float(not (self.shortened or self.source_tokens))
        return exponential(mean(self.token_scores))

    @property
    def iterations(self) -> int:
        """Verifier passes."""
        return len(self.steps)

    @property
    def drafted(self) -> int:
        return sum(len(step.drafted) for step in self.steps)

    @property
    def accepted(self) -> int:
        return sum(step.accepted for step in self.steps)

    @property
    def accepted_lengths(self) -> list[int]:
        """Tokens committed by each iteration, the verifier's own included."""
        return [step.accepted + (step.own is not None) for step in self.steps]

    def passes(self, tokens: Callable[[Sequence[int]], list[str]]) -> list[Pass]:
        """Of each iteration."""
        return passes_of(self.steps, tokens)


def passes_of(steps: Sequence[Step], tokens: Callable[[Sequence[int]], list[str]]) -> list[Pass]:
    """Of each step: accepted drafts, refused drafts, the verifier's own token. ``tokens`` gives subwords for ids."""
    return [
        (
            tokens(step.drafted[: step.accepted]),
            tokens(step.drafted[step.accepted :]),
            None if step.own is None else tokens([step.own])[0],
        )
        for step in steps
    ]


class SourceTooLong(ValueError):
    """A source longer than the models' positions; ``index`` is its position among the sentences, from 0."""

    def __init__(self, index: int, length: str, limit: int):
        super().__init__(index, length, limit)
        self.index = index

    def __str__(self) -> str:
        _, length, limit = self.args  # kept whole, so that the error can be pickled
        return f"{length} tokens, and the models read at most {limit:,}"
