"""Acceptance estimate: how many tokens an iteration is expected to commit, by the length of its draft.

Measured: at each position of the block, in how many drafts it was verified (all positions before it passed), and in how many of
these it passed, too. Assumed: rows and sentences are alike, so one estimate serves batches of any size; and a position of which
little is known passes as often as the one before it does.
"""

from collections.abc import Sequence

from specdec_plugins.decoding.values import Step

DECAY = 0.99  # weight of a draft relative to the next one that reached the position: the last 100 drafts count, as texts change
PRIOR = 0.75  # probability that the first token of a draft passes, before any was seen: drafts get a trial, short ones first
PRIOR_WEIGHT = 4  # drafts that the expectation for a position weighs


class AcceptanceEstimate:
    """For drafts of up to ``longest`` tokens."""

    def __init__(self, longest: int):
        self.reached = [0.0] * longest  # drafts that were verified at the position, decayed
        self.passed = [0.0] * longest  # of these, drafts that passed there

    def observe(self, steps: Sequence[Step], lengths: Sequence[int]) -> None:
        """One step for each row, and how many tokens its draft could have had. Tokens past the first that is refused say nothing.

        Where the draft ended sooner, because a gate closed, its next token counts as refused, unless the output ended there.
        """
        for step, length in zip(steps, lengths):
            refused = step.drafted and step.own is not None and step.accepted < length
            for position in range(step.accepted + bool(refused)):
                self.reached[position] = DECAY * self.reached[position] + 1
                self.passed[position] = DECAY * self.passed[position] + (step.accepted > position)

    def expected_tokens(self) -> list[float]:
        """Tokens that an iteration commits with a draft of 0, 1, .. ``longest`` tokens.

        With a draft of K, 1 (the verifier's own) + the sum over j <= K of the probability that the first j tokens pass.
        """
        tokens, survival, rate = [1.0], 1.0, PRIOR
        for passed, reached in zip(self.passed, self.reached):
            rate = (passed + PRIOR_WEIGHT * rate) / (reached + PRIOR_WEIGHT)
            survival *= rate
            tokens.append(tokens[-1] + survival)
        return tokens
