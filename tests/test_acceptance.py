"""Acceptance rules against hand-made tables and a loop over positions: ties, boundaries, constraints, ragged drafts."""

import math
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from naive import repeating
from support import compiled_for
from test_kernels import by_speed

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.cpu.binding import Engine
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.judge import judge as judge_tensors
from specdec_plugins.decoding.compiled import VARIANTS, library
from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.values import Draft
from specdec_plugins.decoding.verifier import accept_all
from specdec_plugins.model.spec import Symbols

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
        [[3, 2, 0], [0, 5, 4], [1, 2, 9], [0, 0, 1], [1, 0, 0]],
        [1, 1, 0, 2],
        4,
        2,
        1,
        2,
        2,
    ),
}


def on_kernels(logits, draft, bounds, tolerances):
    """The kernels' rule on given logits."""
    return CpuPass.of(SimpleNamespace(engine=Engine(2)), logits).judge(draft, bounds, tolerances)


@pytest.fixture(params=["float64", "float32", "bfloat16", *by_speed()])
def how(request, monkeypatch):
    """A rule and its logits' data type: PyTorch's, and that of the kernels as compiled for each set of instructions."""
    if request.param not in VARIANTS:
        return partial(judge_tensors, EAGER), getattr(torch, request.param)
    request.addfinalizer(library.cache_clear)
    if not compiled_for(request.param, monkeypatch):
        pytest.skip(f"not compiled for {request.param}, or not for this CPU")
    return on_kernels, torch.float32


def bounds_of(room, minimum=None, symbols=None, suppressed=(), repeats=None):
    """The constraints of a step; by default an output may be empty."""
    return Bounds(Constraints(symbols or Symbols(), (), suppressed), room, minimum or [0] * len(room), repeats)


@pytest.mark.parametrize("case", CASES)
def test_table(case, how):
    rule, dtype = how
    logits, draft, offered, beta, tau, accepted, correction = CASES[case]
    words = len(logits[0])
    logits = [[*row, -INF, -INF] for row in logits]  # pad and eos, out of the way
    scores = torch.tensor(logits, dtype=dtype)[None]
    bounds = bounds_of([99], symbols=Symbols(pad=words, eos=words + 1))
    verdict = rule(scores, Draft([draft[:offered]]), bounds, [Tolerance(beta, tau)])
    assert (verdict.accepted, verdict.own, verdict.cut) == ([accepted], [correction], [False])
    assert torch.equal(scores, torch.tensor(logits, dtype=dtype)[None]), "a rule reads logits, it does not write them"
    said = [*draft[:accepted], correction]
    expected = scores[0].float().log_softmax(-1)[range(accepted + 1), said]
    torch.testing.assert_close(torch.tensor(verdict.scores[0]), expected)


def judge(logits, draft, tolerance, room, minimum, repeats, suppressed, pad=1, eos=2):
    """The rule as the docstrings have it, one position after the other: accepted, own token, cut, scores."""
    scores = []
    for position, row in enumerate(logits):
        banned = {pad, *suppressed, *([eos] if position < minimum else [])}
        banned |= repeating([*repeats.prefix, *draft[:position]], repeats.size)
        allowed = [-INF if token in banned else row[token] for token in range(len(row))]
        ranked = sorted(range(len(row)), key=lambda token: (-allowed[token], token))
        cut = position >= room and ranked[0] != eos
        if position >= room:
            ranked, allowed = [eos], [0.0 if token == eos else -INF for token in range(len(row))]
        token = draft[position] if position < len(draft) else None
        passes = token in ranked[: tolerance.beta] and allowed[ranked[0]] - allowed[token] <= tolerance.tau
        passes = passes and allowed[token] > -INF
        said = token if passes else ranked[0]
        scores.append(row[said] - math.log(sum(map(math.exp, row))))
        if not passes:
            return position, said, cut, scores


def test_rule_equals_a_loop_over_positions(how):
    """Small integers as logits: nearly every position has ties, at the top and at both boundaries. Widths around a vector's.

    Every row has its own tolerance, limit, minimum and n-grams that it must not repeat. Banned tokens count in scores.
    """
    rng, seen, again, (rule, dtype) = random.Random(0), set(), 0, how
    for _ in range(600):
        rows, width, vocabulary = rng.randrange(1, 6), rng.randrange(5), rng.choice([5, 6, 15, 16, 17, 40])
        drafts = [[rng.randrange(vocabulary) for _ in range(rng.randrange(width + 1))] for _ in range(rows)]
        width = max(map(len, drafts))
        logits = [[[rng.randrange(-2, 3) for _ in range(vocabulary)] for _ in range(width + 1)] for _ in range(rows)]
        for scores in (scores for row in logits for scores in row):
            scores[rng.randrange(vocabulary)] = -INF
            scores[2 if rng.random() < 0.1 else rng.randrange(3, vocabulary)] = rng.randrange(-2, 4)
            scores[3] = max(scores[3], -2)  # at least one is allowed
            scores[1] += rng.choice([0, 0, 20])
        minimum = [rng.choice([0, 0, 1, 2]) for _ in range(rows)]
        room = [rng.randrange(len(draft), width + 3) for draft in drafts]  # nothing is drafted beyond the limit
        suppressed = rng.choice([(), (0,), (0, vocabulary - 1)]) if vocabulary > 6 else ()
        tolerances = [Tolerance(rng.randrange(1, 8), rng.choice([0, 0.5, 1, 2, INF])) for _ in range(rows)]
        sizes = [rng.choice([0, 1, 2, 3]) if vocabulary == 40 else 0 for _ in drafts]
        repeats = [Repeats(size, rng.choices(draft or [5], k=rng.randrange(12))) for size, draft in zip(sizes, drafts)]
        bounds = bounds_of(room, minimum, None, suppressed, repeats if any(sizes) else None)
        for row in logits:
            for scores in row:
                scores[2] = max(scores[2], -2)
        verdict = rule(torch.tensor(logits, dtype=dtype), Draft(drafts), bounds, tolerances)
        expected = [judge(*row, suppressed) for row in zip(logits, drafts, tolerances, room, minimum, repeats)]
        assert list(zip(verdict.accepted, verdict.own, verdict.cut)) == [row[:3] for row in expected]
        for found, (_, _, _, scores) in zip(verdict.scores, expected):
            assert found == pytest.approx(scores, abs=1e-5)
        for row, (accepted, own, cut, _) in enumerate(expected):
            seen.add((accepted > 2, cut, own == 2, tolerances[row].beta > 1))
            again += logits[row][accepted].index(max(logits[row][accepted])) in repeating(
                [*repeats[row].prefix, *drafts[row][:accepted]], sizes[row]
            )
    assert len(seen) >= 8 and again > 5


def test_unverified_drafts_stand_as_offered():
    verdict = accept_all(None, Draft([[4, 5], []]))
    assert (verdict.accepted, verdict.own, verdict.cut) == ([2, 0], None, [False, False])
    assert verdict.scores == [[], []]


@pytest.mark.parametrize(
    ("beta", "tau", "message"),
    [
        (0, INF, "beta 0"),
        (-3, INF, "beta -3"),
        (1.5, INF, "beta 1.5"),
        (1 << 31, INF, "beta 2147483648"),
        ("2", INF, "beta '2'"),
        (2, -0.5, "tau -0.5"),
        (1, math.nan, "tau nan"),
        (1, "1", "tau '1'"),
        (1, 10**400, "tau 1000"),
    ],
)
def test_settings_that_cannot_be(beta, tau, message):
    with pytest.raises(ValueError, match=message):
        TopBetaTau(beta, tau)
