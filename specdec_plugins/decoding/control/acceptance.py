"""Acceptance estimate: how many tokens an iteration is expected to commit, by the length of its draft.

Measured: at each position of the block, in how many drafts it was verified (all positions before it passed), and in how many of
these it passed, too. Assumed: rows and sentences are alike, so one estimate serves batches of any size; and a position of which
little is known passes as often as the one before it does.

Drafters that copy are another matter, as places in a text are not alike: an output may agree with an earlier one for ten tokens
and then for none. Long drafts take few passes for the ten, so by the passes that *they* made, shorter drafts would gain little;
and by the passes that short drafts make, longer ones would gain much. So it is also measured what drafts of other lengths would
have taken for the same tokens, if the same ones were drafted: of shorter ones exactly (`shorter`), of longer ones if a token was
refused or there was no more to offer. For shorter ones that is too little, as their tokens come sooner after the last committed
one, and pass more often. For drafts as long as those that are made, the second estimate is what happened; for shorter ones the
larger of the two counts, too, the more the shorter they are; for longer ones the smaller.

Trees have an estimate for each size. The first nodes of a tree are the smaller tree that would have been drafted in its place
(`trees.grow`), and the first one after each node is the chain, so that each tree tells of smaller ones and of chains, too.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from specdec_plugins.decoding.values import Outcome, Step

DECAY = 0.99  # weight of a draft relative to the next one that reached the position: the last 100 drafts count, as texts change
DECAY_OF_COPIES = 0.995  # of drafts that copy, whose accepted lengths differ more: the last 200
PRIOR = 0.75  # probability that the first token of a draft passes, before any was seen: drafts get a trial, short ones first
PRIOR_WEIGHT = 4  # drafts that the expectation for a position weighs
HEAVIEST = 1e100  # weight of a draft, before all are weighed anew
PLANNED_GAIN = 0.05  # weight of a draft's length in the mean of those that are made: a few drafts on trial change little
FEW_ENDS = 20  # places at one of which a copied draft ends, before any was seen
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
    """For drafts of up to ``longest`` tokens. ``like`` is an estimate that this one is expected to resemble, if there is one:
    that of drafts without a gate.
    """

    def __init__(self, longest: int, like: "AcceptanceEstimate | None" = None, decay: float = DECAY):
        self.reached = [0.0] * longest  # drafts that were verified at the position, decayed
        self.passed = [0.0] * longest  # of these, drafts that passed there
        # Of drafts that copy: tokens that they committed; by length less one, passes that it takes for them, and how many of
        # these offer 0, 1, .. tokens. A draft counts `weight` times, ever more, so that earlier ones decay.
        self.tokens, self.passes = 0.0, [0.0] * longest
        self.offers = [[0.0] * (length + 1) for length in range(1, longest + 1)]
        self.weight = 1.0
        # Such drafts that were not taken in yet, by tokens offered, accepted and planned
        self.unread: Counter[tuple[int, int, int]] = Counter()
        self.ended = self.places = 0.0  # drafts that offered less than planned; places at which there was a token or was none
        self.planned = 0.0  # mean length of the drafts that are made
        self.like, self.decay = like, decay

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
        for step in steps:
            accepted = step.accepted - (step.own is None)
            self.unread[min(max(len(step.drafted), accepted), planned), accepted, planned] += 1

    def count(self, accepted: int, length: int) -> None:
        """Note at which positions of a draft of ``length`` tokens tokens passed."""
        for position in range(accepted + (accepted < length)):
            self.reached[position] = self.decay * self.reached[position] + 1
            self.passed[position] = self.decay * self.passed[position] + (accepted > position)

    def _take_in(self) -> None:
        """Note what the unread drafts committed, and what drafts of other lengths would have taken for that."""
        if not self.unread:
            return
        unread, self.unread = self.unread, Counter()
        self.weight /= max(DECAY_OF_COPIES ** sum(unread.values()), 1 / HEAVIEST)
        for (offered, accepted, planned), count in unread.items():
            for _ in range(count):
                self.count(accepted, planned)
                self.planned += PLANNED_GAIN * (planned - self.planned) if self.planned else planned
            self.ended += count * self.weight * (offered < planned)
            self.places += count * self.weight * (offered + (offered < planned))
        rates = self.rates()
        for (offered, accepted, planned), count in unread.items():
            weight, others = count * self.weight, shorter(offered, accepted, planned)
            self.tokens += weight * (accepted + 1)
            self.passes[:planned] = [before + weight * each for before, each in zip(self.passes, others.passes)]
            for offers, told in zip(self.offers, others.offers):
                for tokens, each in told:
                    offers[tokens] += weight * each
            for length, (passes, tokens) in enumerate(self._longer(offered, accepted, planned, rates), planned):
                self.passes[length] += weight * passes
                self.offers[length][tokens] += weight * passes
        if self.weight > HEAVIEST:
            self._scale(1 / self.weight)
            self.weight = 1.0

    def _longer(self, offered: int, accepted: int, planned: int, rates: Sequence[float]) -> Iterator[tuple[float, int]]:
        """What drafts of more tokens than ``planned`` would take for what such a draft committed: passes, and tokens that they
        offer. If nothing was refused, further tokens are expected to pass at ``rates``; if all was offered, to be there.
        """
        ending = (self.ended + self.weight) / (self.places + FEW_ENDS * self.weight)  # share of places at which drafts end
        further = 0.0
        offers, lasts, survival = float(offered), 1.0, 1.0
        for length, rate in enumerate(rates[planned:], planned + 1):
            if offered == planned:
                lasts *= 1 - ending
                offers += lasts
            if accepted == planned:
                survival *= rate
                further += survival
            yield (accepted + 1) / (accepted + 1 + further), min(length, round(offers))

    def rates(self) -> list[float]:
        """Probability that a token passes at each position, where all tokens before it did."""
        self._take_in()
        rates, rate = [], PRIOR
        alike = self.like.rates() if self.like else ()
        for position, (passed, reached) in enumerate(zip(self.passed, self.reached)):
            prior = alike[position] if alike else rate
            rate = (passed + PRIOR_WEIGHT * prior) / (reached + PRIOR_WEIGHT)
            rates.append(rate)
        return rates

    def deviations(self, rates: Sequence[float]) -> list[float]:
        """Standard deviations of `rates`: those of beta distributions that weigh as many drafts."""
        return [math.sqrt(rate * (1 - rate) / (reached + PRIOR_WEIGHT + 1)) for rate, reached in zip(rates, self.reached)]

    def fade(self, share: float) -> None:
        """Keep a ``share`` of what is known, but no fewer than `FADED` drafts."""

        def kept(drafts: float, weight: float = 1.0) -> float:
            """The share of some drafts that is kept."""
            least = FADED * weight
            return max(share, least / drafts) if drafts > least else 1.0

        self._take_in()
        shares = list(map(kept, self.reached))
        for sums in (self.reached, self.passed):
            sums[:] = map(mul, sums, shares)
        self._scale(kept(min(self.passes), self.weight))

    def _scale(self, share: float) -> None:
        """Of drafts that copy, weigh all by so much."""
        self.tokens, self.ended, self.places = share * self.tokens, share * self.ended, share * self.places
        for sums in (self.passes, *self.offers):
            sums[:] = [share * each for each in sums]

    def expected_tokens(self) -> list[float]:
        """Tokens that an iteration commits with a draft of 0, 1, .. ``longest`` tokens."""
        return committed(self.rates())

    def expected_of_copies(self) -> list[float]:
        """The same, if a drafter copies: tokens that it did not have the place to draft, it drafts in the next pass."""
        self._take_in()
        plain, *expected = committed(self.rates())
        prior = PRIOR_WEIGHT * self.weight
        for length, passes in enumerate(self.passes, 1):
            by_position = expected[length - 1]
            by_passes = (self.tokens + prior * by_position) / (passes + prior)
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


class TreeEstimates:
    """For trees of the given ``sizes``, whose paths have up to ``longest`` tokens. They are expected to resemble ``chains``, the
    estimate of which learns of trees, too.
    """

    def __init__(self, sizes: Sequence[int], longest: int, chains: AcceptanceEstimate, decay: float = DECAY):
        self.longest, self.chains = longest, chains
        self.by_size = {size: AcceptanceEstimate(self.depth(size), chains, decay) for size in sizes}

    def depth(self, size: int) -> int:
        """Tokens that the longest path of a tree may have."""
        return min(size, self.longest)

    def learn(self, outcome: Outcome) -> None:
        """Observe the outcome of a plan with a tree."""
        assert outcome.plan.tree is not None
        for step in outcome.steps:
            chain = chain_of(step)  # as far as it is known: it may go on where the tree's path leaves it
            self.chains.count(chain.accepted - (chain.own is None), len(step.firsts))
        for size, estimate in self.by_size.items():
            if size <= outcome.plan.tree.nodes:
                steps = [smaller(step, size) for step in outcome.steps]
                estimate.observe(steps, [min(length, size) for length in outcome.plan.lengths] * outcome.times)

    def expected_tokens(self) -> list[float]:
        """Tokens that an iteration commits with a tree of each size."""
        return [estimate.expected_tokens()[-1] for estimate in self.by_size.values()]


def smaller(step: Step, nodes: int) -> Step:
    """What would have been accepted of a tree's first nodes. A part of the path does not end the sentence."""
    accepted = sum(node < nodes for node in step.path)
    return step if accepted == step.accepted else Step([], accepted, 0)


def chain_of(step: Step) -> Step:
    """What would have been accepted of the chain in a tree's place."""
    accepted = sum(first == node for first, node in zip(step.firsts, step.path))
    return step if accepted == step.accepted else Step([], accepted, 0)


def committed(rates: Iterable[float]) -> list[float]:
    """Tokens that an iteration commits with a draft of 0, 1, .. tokens, that pass at such rates.

    With a draft of K, 1 (the verifier's own) + the sum over j <= K of the probability that the first j tokens pass.
    """
    tokens, survival = [1.0], 1.0
    for rate in rates:
        survival *= rate
        tokens.append(tokens[-1] + survival)
    return tokens
