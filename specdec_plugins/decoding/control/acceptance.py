"""Acceptance estimates: how often drafted tokens pass, and how many tokens an iteration commits by draft length.

Rows and sentences are assumed alike, so one estimate serves batches of any size. Recent drafts count more, as texts change.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from specdec_plugins.decoding.control.costs import CostModel
from specdec_plugins.decoding.requests import Step

DECAY = 0.99  # weight of an observation relative to the next one: about the last 100 count
PRIOR = 0.75  # pass rate of a first token before any was seen: drafts get a trial, short ones first
PRIOR_WEIGHT = 3  # observations that a prior weighs
FADED = 12  # observations that `fade` keeps: few enough that twice the rate is not ruled out


class Survival:
    """By position, the share of drafts that continue there. An unobserved position has the share of the one before."""

    def __init__(self, longest: int):
        self.longest = longest
        self.reached = [0.0] * longest  # decayed number of drafts that came to the position
        self.passed = [0.0] * longest  # of these, drafts that went on

    def count_drafts(self, drafts: Mapping[int, int], planned: int) -> None:
        """Count drafts of ``planned`` tokens, given by the number of tokens after which they ended."""
        left = sum(drafts.values())
        for position in range(planned):
            if not left:
                return
            passing = left - drafts.get(position, 0)
            self.count(position, passing / left, left)
            left = passing

    def count(self, position: int, rate: float, tokens: int = 1) -> None:
        """Count ``tokens`` at a position, a fraction ``rate`` as passed."""
        decay = DECAY**tokens
        weight = (1 - decay) / (1 - DECAY)
        self.reached[position] = decay * self.reached[position] + weight
        self.passed[position] = decay * self.passed[position] + weight * rate

    def rate(self, position: int, prior: float) -> float:
        """Rate at a position, as far as observed; else ``prior``."""
        return (self.passed[position] + PRIOR_WEIGHT * prior) / (self.reached[position] + PRIOR_WEIGHT)

    def fade(self) -> None:
        """Keep the rates, but no more weight than that of `FADED` observations."""
        for position, number in enumerate(self.reached):
            kept = FADED / max(number, FADED)
            self.reached[position] *= kept
            self.passed[position] *= kept

    def expected(self, prior: float) -> list[float]:
        """Mean tokens after which drafts of 0, 1, .. ``longest`` tokens end; the ``prior`` is the first position's."""
        tokens, survival, rate = [0.0], 1.0, prior
        for position in range(self.longest):
            rate = self.rate(position, rate)
            survival *= rate
            tokens.append(tokens[-1] + survival)
        return tokens


class AcceptanceEstimate:
    """What drafts commit and what they cost, by length. Drafts may end before the planned length, and cost what they offer."""

    def __init__(self, longest: int):
        self.longest = longest
        self.accepted, self.offered = Survival(longest), Survival(longest)

    def observe(self, steps: Sequence[Step], planned: int) -> None:
        """Observe steps for which ``planned`` tokens were planned.

        A draft that ends early, for want of tokens, counts as refused there: the estimate answers what planning a
        length yields. For the same reason the token that ends an output is the iteration's own.
        """
        self.accepted.count_drafts(Counter([step.accepted - (step.own is None) for step in steps]), planned)
        self.offered.count_drafts(Counter([len(step.drafted) for step in steps]), planned)

    def fade(self) -> None:
        """Keep the rates, but give new observations more weight."""
        self.accepted.fade()
        self.offered.fade()

    def expected_tokens(self) -> list[float]:
        """Tokens that an iteration commits with a draft of 0, 1, .. ``longest`` tokens, the verifier's own one included."""
        return [tokens + 1 for tokens in self.accepted.expected(PRIOR)]

    def expected_seconds(self, costs: CostModel) -> list[float]:
        """Seconds of an iteration with a draft of 0, 1, .. ``longest`` tokens; infinity where unknown."""
        plain, *drafts = costs.expected(self.longest)
        _, *offered = self.offered.expected(1.0)
        seconds = np.interp(offered, range(1, self.longest + 1), drafts).tolist() if costs.longest else drafts
        return [plain, *(each if mean <= costs.longest else math.inf for each, mean in zip(seconds, offered))]


class CopyEstimate(AcceptanceEstimate):
    """For drafters that copy text, whose tokens pass by their position in the text rather than in the draft.

    An output may agree with an earlier text for ten tokens and then not at all. Pass rates by position then mislead: seen through
    long drafts, shorter ones gain little; seen through short drafts, longer ones gain much. So every draft is also replayed with
    shorter ones (`replayed`). The replay in turn underestimates drafters whose tokens pass more often right after a commit.
    Expected tokens are those of the replay for the length in use, nearer to the larger of both estimates the shorter the draft
    is, and the smaller of both for longer drafts.
    """

    def __init__(self, longest: int):
        super().__init__(longest)
        # By draft length less one, decayed: tokens committed by drafts of at least that length, passes that drafts of that length
        # need for them, and how many of these passes offer 0, 1, .. tokens.
        self.tokens, self.passes = np.zeros(longest), np.zeros(longest)
        self.offers = np.zeros((longest, longest + 1))
        self.unread: Counter[tuple[int, int, int]] = Counter()  # drafts not taken in yet: offered, accepted, planned tokens
        self.planned = longest  # the latest plan

    def observe(self, steps: Sequence[Step], planned: int) -> None:
        """Takes drafts in when asked for an estimate, many at once: a pass can take less than 200 microseconds."""
        self.planned = planned
        for step in steps:
            accepted = step.accepted - (step.own is None)
            self.unread[min(max(len(step.drafted), accepted), planned), accepted, planned] += 1

    def _take_in(self) -> None:
        if not self.unread:
            return
        decay = DECAY ** self.unread.total()
        for sums in (self.tokens, self.passes, self.offers):
            sums *= decay
        for (offered, accepted, planned), count in self.unread.items():
            self.accepted.count_drafts({accepted: count}, planned)
            passes, offers = replayed(offered, accepted, planned)
            self.tokens[:planned] += count * (accepted + 1)
            self.passes[:planned] += count * passes
            self.offers[:planned, : planned + 1] += count * offers
        self.unread.clear()

    def fade(self) -> None:
        self._take_in()
        super().fade()
        kept = FADED / np.maximum(self.passes, FADED)
        self.tokens *= kept
        self.passes *= kept
        self.offers *= kept[:, None]

    def expected_tokens(self) -> list[float]:
        self._take_in()
        plain, *rates = super().expected_tokens()
        by_position = np.array(rates)
        by_text = (self.tokens + PRIOR_WEIGHT * by_position) / (self.passes + PRIOR_WEIGHT)
        shorter = 1 - np.arange(1, self.longest + 1) / self.planned
        gain = by_position - by_text
        expected = by_text + np.where(shorter < 0, np.minimum(gain, 0), shorter * np.maximum(gain, 0))
        return [plain, *expected.tolist()]

    def expected_seconds(self, costs: CostModel) -> list[float]:
        """By the tokens expected to be offered, which a draft costs here."""
        return costs.expected_of(self.mean_over_offers, self.longest)

    def mean_over_offers(self, values: Sequence[float]) -> list[float]:
        """Means of ``values``, given by the number of offered tokens, where 0, 1, .. ``longest`` tokens are planned.

        A plan of one token more, as long as little is known of it, is offered one more where the shorter plan was exhausted.
        """
        self._take_in()
        means, mean, exhausted = [values[0]], values[0], 1.0
        sums, full = self.offers @ np.array(values), self.offers.diagonal(1)
        for planned, (passes, known, whole) in enumerate(zip(self.passes.tolist(), sums.tolist(), full.tolist()), 1):
            prior = mean + exhausted * (values[planned] - values[planned - 1])
            mean = (known + PRIOR_WEIGHT * prior) / (passes + PRIOR_WEIGHT)
            exhausted = (whole + PRIOR_WEIGHT * exhausted) / (passes + PRIOR_WEIGHT)
            means.append(mean)
        return means


@lru_cache(maxsize=4096)  # long drafts have more combinations than should be kept
def replayed(offered: int, accepted: int, planned: int) -> tuple[np.ndarray, np.ndarray]:
    """Replay a draft of ``planned`` tokens with drafts of 1, 2, .. ``planned`` tokens: the passes that each needs to commit the
    same text (planned,), and how many of these offer 0, 1, .. tokens (planned, planned + 1).

    ``accepted`` of ``offered`` tokens passed. If all planned ones did, the text continues, and the last pass counts in part.
    """
    passes, offers = np.zeros(planned), np.zeros((planned, planned + 1))
    committed = accepted + 1
    for length in range(1, planned + 1):
        if accepted == planned:
            offers[length - 1, length] = passes[length - 1] = committed / (length + 1)
            continue
        starts = range(0, committed, length + 1)
        passes[length - 1] = len(starts)
        for start in starts:
            offers[length - 1, max(0, min(length, offered - start))] += 1
    return passes, offers
