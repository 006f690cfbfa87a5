"""What a drafter brings: expected tokens a pass and gain, from acceptance by position and the costs of passes; and when more
training no longer pays. Pure functions, without models and clocks.

K is a draft's length; costs are seconds.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Acceptance by position, given all before, of drafts of the shipped drafters in int8: documentation's test set, the lower of the
# two texts on which nothing was tuned (benchmarks/README.md, "The pair that ships"). Only glide's was recorded by position.
REACHED = {"glide": (0.83, 0.87, 0.89, 0.89, 0.91, 0.90, 0.90, 0.91)}
WORTH = 1.05  # gain from which a drafter is worth its training: less is within the noise of timing on a busy machine
# Evaluations compared by `pays`, and the growth of tokens a pass that another so many must promise. On 200 held-out lines the
# standard error of tokens a pass is 1.5 %, that of the difference between two means of three below 1 % (same lines).
COMPARED, GROWTH = 3, 0.01


@dataclass(frozen=True)
class Costs:
    """Seconds for each sentence outside passes, and for each row of a pass with a draft of K tokens, 0 for a plain one."""

    sentence: float
    row: Mapping[int, float]


@dataclass(frozen=True)
class Expected:
    gain: float  # in speed over plain decoding
    length: int  # of the drafts that bring it; 0: none


def acceptance(steps: Iterable[tuple[int, int]], longest: int) -> list[float]:
    """By position, the share of drafted tokens that pass where all before them do, up to the first position that no draft
    reached. Steps are (drafted, accepted) tokens."""
    reached, passed = [0] * longest, [0] * longest
    for drafted, accepted in steps:
        for position in range(min(drafted, accepted + 1, longest)):
            reached[position] += 1
            passed[position] += accepted > position
    return [one / other for one, other in zip(passed, reached) if other]


def passes(rates: Sequence[float], length: int) -> float:
    """Expected passes for an output of ``length`` tokens, eos included, with drafts of ``len(rates)`` tokens.

    The last pass of an output commits less than a draft could, which for short outputs is much: at rates of 0.9, drafts of 8
    commit 6.1 tokens without end, and 4.8 in outputs of 13 tokens.
    """
    expected = [0.0] * (length + 1)  # by tokens left
    for left in range(1, length + 1):
        total, reached = 1.0, 1.0  # eos ends the output, accepted or not
        for accepted, rate in enumerate(rates[: left - 1]):
            total += reached * (1 - rate) * expected[left - accepted - 1]
            reached *= rate
        if len(rates) < left:  # all accepted, and the verifier's own token after them
            total += reached * expected[left - len(rates) - 1]
        expected[left] = total
    return expected[length]


def tokens_per_pass(rates: Sequence[float], lengths: Sequence[int]) -> float:
    """Over outputs of these ``lengths``, eos included."""
    known = {length: passes(rates, length) for length in {*lengths}}
    return sum(lengths) / max(1e-9, sum(known[length] for length in lengths))


def expected_gain(rates: Sequence[float], lengths: Sequence[int], costs: Costs) -> Expected:
    """The gain at the best of the draft lengths whose cost is known and whose acceptance is."""
    best, plain = Expected(1.0, 0), len(lengths) * costs.sentence + sum(lengths) * costs.row[0]
    for length in sorted(costs.row):
        if 0 < length <= len(rates):
            rows = sum(lengths) / tokens_per_pass(rates[:length], lengths)
            gain = plain / (len(lengths) * costs.sentence + rows * costs.row[length])
            best = max(best, Expected(gain, length), key=lambda each: each.gain)
    return best


def pays(history: Sequence[float]) -> bool:
    """Whether more training pays, by the tokens a pass of evaluations at equal intervals: while the last `COMPARED` are on
    average over `GROWTH` better than as many before them."""
    if len(history) < 2 * COMPARED:
        return True
    before, last = history[-2 * COMPARED : -COMPARED], history[-COMPARED:]
    return statistics.fmean(last) > (1 + GROWTH) * statistics.fmean(before)
