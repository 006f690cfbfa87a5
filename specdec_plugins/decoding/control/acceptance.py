"""Acceptance estimate: how many tokens an iteration is expected to commit, by the length of its draft.

Measured: at each position of the block, in how many drafts it was verified (all positions before it passed), and in how many of
these it passed, too. Assumed: rows and sentences are alike, so one estimate serves batches of any size; and a position of which
little is known passes as often as the one before it does.

Drafters that copy are another matter, as places in a text are not alike: an output may agree with an earlier one for ten tokens
and then for none. Long drafts take few passes for the ten, so by the passes that *they* made, shorter drafts would gain little;
and by the passes that short drafts make, longer ones would gain much. So it is also measured what shorter drafts would have
taken for the same tokens, if the same ones were drafted (`shorter`). That in turn is too little for those whose tokens pass more
often, as they come sooner after the last committed one. For drafts as long as those that are made, the second estimate is what
happened; for shorter ones the larger of the two counts, too, the more the shorter they are; for longer ones the smaller.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from specdec_plugins.decoding.values import Outcome, Step

DECAY = 0.99  # weight of a draft relative to the next one that reached the position: the last 100 drafts count, as texts change
DECAY_OF_COPIES = 0.995  # of drafts that copy, whose accepted lengths differ more: the last 200
PRIOR = 0.75  # probability that the first token of a draft passes, before any was seen: drafts get a trial, short ones first
PRIOR_WEIGHT = 4  # drafts that the expectation for a position weighs
HEAVIEST = 1e100  # weight of a draft, before all are weighed anew
FADED = 8  # drafts that what was learned long ago still weighs: few enough that a rate twice as high is not ruled out


class Shorter(NamedTuple):
    """Of drafts of 1, 2, .. tokens: passes that they take, and of these, how many offer how many tokens."""

    passes: tuple[float, ...]
    offers: tuple[tuple[tuple[int, float], ...], ...]  # pairs of tokens and passes; of some tokens several


@lru_cache(maxsize=4096)  # of long drafts there are more combinations than should be kept
def shorter(offered: int, accepted: int, planned: int) -> Shorter:
    """What drafts of up to ``planned`` tokens would take for what a draft of ``planned`` tokens committed, of which so many
    were ``offered`` and ``accepted``, if the same tokens were drafted. If nothing was refused, their last pass counts in part.
    """
    committed = accepted + 1
    passes: list[float] = []
    offers: list[tuple[tuple[int, float], ...]] = []
    for length in range(1, planned + 1):
        if accepted == planned:
            passes.append(committed / (length + 1))
            offers.append(((length, passes[-1]),))
        else:
            starts = range(0, committed, length + 1)
            passes.append(float(len(starts)))
            offers.append(tuple((max(0, min(length, offered - start)), 1.0) for start in starts))
    return Shorter(tuple(passes), tuple(offers))


class AcceptanceEstimate:
    """For drafts of up to ``longest`` tokens."""

    def __init__(self, longest: int, decay: float = DECAY):
        self.reached = [0.0] * longest  # drafts that were verified at the position, decayed
        self.passed = [0.0] * longest  # of these, drafts that passed there
        # Of drafts that copy, by length less one: tokens that drafts at least as long committed, passes that this length takes
        # for them, and how many of these offer 0, 1, .. tokens. A draft counts `weight` times, ever more, so that earlier ones
        # decay, whatever is drafted.
        self.tokens, self.passes = [0.0] * longest, [0.0] * longest
        self.offers = [[0.0] * (length + 1) for length in range(1, longest + 1)]
        self.weight = 1.0
        # Such drafts that were not taken in yet, by tokens offered, accepted and planned
        self.unread: Counter[tuple[int, int, int]] = Counter()
        self.planned = longest  # the last one's length
        self.decay = decay

    def learn(self, outcome: Outcome) -> None:
        """Observe an outcome."""
        self.observe(outcome.steps, [*outcome.plan.lengths] * outcome.times)

    def observe(self, steps: Sequence[Step], lengths: Sequence[int]) -> None:
        """One step for each row, and how many tokens were planned for it. Tokens past the first that is refused say nothing.

        What is expected of a length is what comes of planning it. So where a draft ended sooner, because a gate closed or the
        drafter had no more to offer, its next token counts as refused. And the token that ends an output is the iteration's own.
        """
        for step, length in zip(steps, lengths):
            accepted = step.accepted - (step.own is None)
            self.count(accepted, length)

    def copied(self, steps: Sequence[Step], planned: int) -> None:
        """Observe drafts of a drafter that copies, for which so many tokens were planned. What they tell is worked out when it is
        asked for, of many drafts at once: a pass can take less than 200 microseconds.
        """
        self.planned = planned
        for step in steps:
            accepted = step.accepted - (step.own is None)
            self.unread[min(max(len(step.drafted), accepted), planned), accepted, planned] += 1

    def count(self, accepted: int, length: int) -> None:
        """Note at which positions of a draft of ``length`` tokens tokens passed."""
        for position in range(accepted + (accepted < length)):
            self.reached[position] = self.decay * self.reached[position] + 1
            self.passed[position] = self.decay * self.passed[position] + (accepted > position)

    def _take_in(self) -> None:
        """Note at which positions the unread drafts passed, and what shorter ones would have taken for what they committed."""
        if not self.unread:
            return
        self.weight /= max(DECAY_OF_COPIES ** sum(self.unread.values()), 1 / HEAVIEST)
        for (offered, accepted, length), count in self.unread.items():
            for _ in range(count):
                self.count(accepted, length)
            weight, others = count * self.weight, shorter(offered, accepted, length)
            self.tokens[:length] = [before + weight * (accepted + 1) for before in self.tokens[:length]]
            self.passes[:length] = [before + weight * each for before, each in zip(self.passes, others.passes)]
            for offers, told in zip(self.offers, others.offers):
                for tokens, each in told:
                    offers[tokens] += weight * each
        self.unread.clear()
        if self.weight > HEAVIEST:
            for sums in (self.tokens, self.passes, *self.offers):
                sums[:] = [each / self.weight for each in sums]
            self.weight = 1.0

    def rates(self) -> list[float]:
        """Probability that a token passes at each position, where all tokens before it did."""
        self._take_in()
        rates, rate = [], PRIOR
        for passed, reached in zip(self.passed, self.reached):
            rate = (passed + PRIOR_WEIGHT * rate) / (reached + PRIOR_WEIGHT)
            rates.append(rate)
        return rates

    def fade(self, share: float) -> None:
        """Keep a ``share`` of what is known, but no fewer than `FADED` drafts."""

        def kept(drafts: list[float], weight: float) -> list[float]:
            """Of each position the share that is kept."""
            least = FADED * weight
            return [max(share, least / number) if number > least else 1.0 for number in drafts]

        self._take_in()
        shares = kept(self.reached, 1.0)
        for sums in (self.reached, self.passed):
            sums[:] = map(mul, sums, shares)
        shares = kept(self.passes, self.weight)
        for sums in (self.passes, self.tokens):
            sums[:] = map(mul, sums, shares)
        self.offers = [[part * each for each in offers] for part, offers in zip(shares, self.offers)]

    def expected_tokens(self) -> list[float]:
        """Tokens that an iteration commits with a draft of 0, 1, .. ``longest`` tokens."""
        return committed(self.rates())

    def expected_of_copies(self) -> list[float]:
        """The same, if a drafter copies: tokens that it did not have the place to draft, it drafts in the next pass."""
        plain, *expected = committed(self.rates())
        prior = PRIOR_WEIGHT * self.weight
        for length, (tokens, passes) in enumerate(zip(self.tokens, self.passes), 1):
            by_position = expected[length - 1]
            by_passes = (tokens + prior * by_position) / (passes + prior)
            if length > self.planned:
                expected[length - 1] = min(by_position, by_passes)
            else:
                expected[length - 1] = by_passes + (1 - length / self.planned) * max(0.0, by_position - by_passes)
        return [plain, *expected]

    def mean_over_offers(self, values: Sequence[float]) -> list[float]:
        """What the values of 0, 1, .. offered tokens are on average, where 0, 1, .. ``longest`` are planned."""
        self._take_in()
        prior = PRIOR_WEIGHT * self.weight
        # Little is known of one token more: what offers all that is planned has that, too.
        means, mean, whole = [values[0]], values[0], 1.0
        for planned, (offers, passes) in enumerate(zip(self.offers, self.passes), 1):
            alike = mean + whole * (values[planned] - values[planned - 1])
            mean = (sum(map(mul, offers, values)) + prior * alike) / (passes + prior)
            whole = (offers[planned] + prior * whole) / (passes + prior)
            means.append(mean)
        return means


def committed(rates: Iterable[float]) -> list[float]:
    """Tokens that an iteration commits with a draft of 0, 1, .. tokens, that pass at such rates.

    With a draft of K, 1 (the verifier's own) + the sum over j <= K of the probability that the first j tokens pass.
    """
    tokens, survival = [1.0], 1.0
    for rate in rates:
        survival *= rate
        tokens.append(tokens[-1] + survival)
    return tokens
