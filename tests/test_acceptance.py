"""Acceptance rules against hand-made tables and a loop over positions: ties, boundaries, ragged drafts."""

import math
import random

import pytest
import torch

from specdec_plugins.decoding.acceptance import TopBetaTau, accept_all
from specdec_plugins.decoding.values import Draft

INF = math.inf

# logits of each position | draft | tokens offered | beta | tau | accepted | correction
CASES = {
    "all pass, the bonus follows": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [0, 1], 2, 1, INF, 2, 2),
    "refused at once": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [1, 1], 2, 1, INF, 0, 0),
    "refused at the second": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [0, 2], 2, 1, INF, 1, 1),
    "nothing after a refusal counts": ([[3, 1, 2], [0, 5, 4], [1, 2, 9], [0, 0, 7]], [0, 2, 2], 3, 1, INF, 1, 1),
    "no draft": ([[3, 1, 9]], [], 0, 1, INF, 0, 2),
    "no draft, tolerant": ([[3, 1, 9]], [], 0, 3, INF, 0, 2),
    "tie at the top, lower number": ([[1, 4, 4], [9, 0, 0]], [1], 1, 1, INF, 1, 0),
    "tie at the top, higher number": ([[1, 4, 4], [9, 0, 0]], [2], 1, 1, INF, 0, 1),
    "tie at the top is second of two": ([[1, 4, 4], [9, 0, 0]], [2], 1, 2, 0, 1, 0),
    "three tie, the third of two": ([[4, 4, 4], [9, 0, 0]], [2], 1, 2, INF, 0, 0),
    "three tie, the third of three": ([[4, 4, 4], [9, 0, 0]], [2], 1, 3, INF, 1, 0),
    "tie at the boundary, lower number": ([[2, 2, 5, 0], [9, 0, 0, 0]], [0], 1, 2, INF, 1, 0),
    "tie at the boundary, higher number": ([[2, 2, 5, 0], [9, 0, 0, 0]], [1], 1, 2, INF, 0, 2),
    "third of three": ([[2, 1, 5, 0], [9, 0, 0, 0]], [1], 1, 3, INF, 1, 0),
    "third of two": ([[2, 1, 5, 0], [9, 0, 0, 0]], [1], 1, 2, INF, 0, 2),
    "exactly tau below": ([[2, 1, 5, 0], [9, 0, 0, 0]], [0], 1, 4, 3, 1, 0),
    "just more than tau below": ([[2, 1, 5, 0], [9, 0, 0, 0]], [0], 1, 4, 2.99, 0, 2),
    "tau 0 refuses what is worse": ([[4, 5, 0], [9, 0, 0]], [0], 1, 3, 0, 0, 1),
    "tau 0 passes the best": ([[4, 5, 0], [9, 0, 0]], [1], 1, 3, 0, 1, 0),
    "a banned token never passes": ([[4, -INF, 0], [9, 0, 0]], [1], 1, 3, INF, 0, 0),
    "a banned token never passes a wide beta": ([[4, -INF, -INF], [9, 0, 0]], [1], 1, 99, INF, 0, 0),
    "beta beyond the vocabulary": ([[4, 3, -50], [9, 0, 0]], [2], 1, 99, INF, 1, 0),
    "what is not offered does not pass": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [0, 1], 1, 1, INF, 1, 1),
    "what is not offered is not tolerated": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [2, 2], 1, 3, INF, 1, 1),
    "nothing offered": ([[3, 1, 2], [0, 5, 4], [1, 2, 9]], [0, 1], 0, 3, INF, 0, 0),
    "tolerated, then exact, then refused": (
        [[3, 2, 0], [0, 5, 4], [1, 2, 9], [0, 0, 1], [1, 0, 0]], [1, 1, 0, 2], 4, 2, 1, 2, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_table(case, dtype):
    logits, draft, offered, beta, tau, accepted, correction = CASES[case]
    tokens = torch.tensor(draft, dtype=torch.int64)[None]
    scores = torch.tensor(logits, dtype=dtype)[None]
    verdict = TopBetaTau(beta, tau)(scores, Draft(tokens, torch.tensor([offered])))
    assert (verdict.accepted.tolist(), verdict.correction.tolist()) == ([accepted], [correction])
    assert torch.equal(scores, torch.tensor(logits, dtype=dtype)[None]), "a rule reads logits, it does not write them"


def judge(logits, draft, offered, beta, tau):
    """The rule as the docstring has it, one position after the other."""
    for position, scores in enumerate(logits):
        ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
        if position == offered:
            break
        token = draft[position]
        if token not in ranked[:beta] or scores[ranked[0]] - scores[token] > tau or scores[token] == -INF:
            break
    return position, ranked[0]


def test_rule_equals_a_loop_over_positions():
    """Small integers as logits: nearly every position has ties, at the top and at both boundaries."""
    rng = random.Random(0)
    for _ in range(1500):
        rows, width, vocabulary = rng.randrange(1, 6), rng.randrange(5), rng.randrange(2, 7)
        logits = [[[rng.randrange(-2, 3) for _ in range(vocabulary)] for _ in range(width + 1)] for _ in range(rows)]
        for scores in (scores for row in logits for scores in row):
            scores[rng.randrange(vocabulary)] = -INF
            scores[rng.randrange(vocabulary)] = rng.randrange(-2, 3)  # at least one is allowed
        draft = [[rng.randrange(vocabulary) for _ in range(width)] for _ in range(rows)]
        offered = [rng.randrange(width + 1) for _ in range(rows)]
        beta, tau = rng.randrange(1, 8), rng.choice([0, 0.5, 1, 2, INF])
        tokens = torch.tensor(draft, dtype=torch.int64).view(rows, width)
        verdict = TopBetaTau(beta, tau)(torch.tensor(logits, dtype=torch.float64), Draft(tokens, torch.tensor(offered)))
        expected = [judge(*row, beta, tau) for row in zip(logits, draft, offered)]
        assert list(zip(verdict.accepted.tolist(), verdict.correction.tolist())) == expected


def test_unverified_drafts_stand_as_offered():
    verdict = accept_all(None, Draft(torch.tensor([[4, 5, 6], [7, 8, 9]]), torch.tensor([2, 0])))
    assert verdict.accepted.tolist() == [2, 0] and verdict.correction is None


@pytest.mark.parametrize(
    ("beta", "tau", "message"), [(0, INF, "beta 0"), (-3, INF, "beta -3"), (2, -0.5, "tau -0.5"), (1, math.nan, "tau nan")]
)
def test_settings_that_cannot_be(beta, tau, message):
    with pytest.raises(ValueError, match=message):
        TopBetaTau(beta, tau)
