"""Scores on demand: rows that want none get none, and nothing else depends on it."""

import random

import pytest
import torch
from test_tree_rules import RULES, given_pass
from test_trees import random_tree

from specdec_plugins.decoding.constraints import Bounds, Constraints
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Draft, Draws


@RULES
@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("rule", [None, "coupled", "rejection"])
def test_a_verdict_has_the_scores_of_the_rows_that_want_them(rule, shape, kernels):
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    for _ in range(20):
        rows = rng.randrange(1, 7)
        parents = [
            random_tree(rng, rng.randrange(9)) if shape == "tree" else range(-1, rng.randrange(9) - 1) for _ in range(rows)
        ]
        tokens = [rng.choices(range(4, 9), k=len(each)) for each in parents]
        draft = TreeDraft(tokens, [[*each] for each in parents]) if shape == "tree" else Draft(tokens)
        logits = torch.randn(rows, max(map(len, tokens)) + 1, 12, generator=generator, dtype=torch.float64).mul(2).round()
        bounds = Bounds(Constraints(), [rng.choice((1, 30)) for _ in range(rows)], [rng.choice((0, 2)) for _ in range(rows)])
        how = Sampling(0.9, rule=rule or "coupled")
        draws = [Draws(how, row, [0, 5]) if rng.random() < 0.7 else None for row in range(rows)] if rule else None
        tolerances = [rng.choice((Tolerance(), Tolerance(4, 2.0))) for _ in range(rows)]
        whole = given_pass(logits, kernels).judge(draft, bounds, tolerances, draws)
        for scored in ([rng.random() < 0.5 for _ in range(rows)], [False] * rows):
            some = given_pass(logits, kernels).judge(draft, bounds, tolerances, draws, scored)
            assert some._replace(scores=whole.scores) == whole
            assert some.scores == [scores if wanted else [] for scores, wanted in zip(whole.scores, scored)]
