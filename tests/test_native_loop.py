"""The native loop against the session's own iterations: the same outputs, steps, scores and sums, whatever is asked of it."""

import random

import pytest
import torch
from conftest import ROOT
from support import EOS, SYMBOLS, WORDS, check_balance, finished, sentences, stepwise
from test_kernels import DTYPES, KERNEL_SHAPES, on_kernels, variant, wide_drafter, wide_verifier  # noqa: F401

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu.runner import CpuRunner
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL, Session
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles, Traits
from specdec_plugins.decoding.values import Outcome, Plan, Want
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import load_folder

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")


class Repeated:
    """A controller whose plans depend on the iteration alone: random lengths by row, each plan for one to 20 iterations."""

    def __init__(self, longest, seed, ragged=True, least=0.0):
        self.random, self.longest, self.ragged, self.least = random.Random(seed), longest, ragged, least
        self.passes, self.left, self.lengths = 0, 0, []

    def plan(self, prefix):
        if not self.left or len(prefix) != len(self.lengths):
            self.left = self.random.choice([1, 2, 5, 20])
            longest = self.longest * self.random.choice([0, 1, 1])
            self.lengths = [self.random.randrange(longest + 1) for _ in range(len(prefix))]
            if not self.ragged:
                self.lengths = [longest] * len(prefix)
        return Plan(self.lengths, self.left, least=self.least)

    def update(self, outcome: Outcome):
        assert 1 <= outcome.times <= outcome.plan.times and outcome.seconds > 0
        assert len(outcome.steps) == outcome.times * len(outcome.plan.lengths)
        self.left -= outcome.times
        self.passes += outcome.times


def run(roles, requests, controller, rows, native, acceptance=None, constraints=None):
    """Outputs by request, the statistics, and the calls of `step`."""
    drafter, verifier = roles
    rule = acceptance or TopBetaTau()
    session = Session(
        Roles(drafter, verifier if native else stepwise(verifier), rule, controller), BoundedAdmission(rows), rows, constraints
    )
    assert isinstance(session.runner, CpuRunner) == native
    for request in requests:
        session.submit(request)
    found, calls = [], 0
    while not session.idle:
        found += finished(session.step(ITERATIONS_PER_CALL if native else 1))
        calls += 1
        assert calls < 3000, "the loop does not end"
    check_balance(session.stats, found)
    assert controller.passes == session.stats.passes
    stats = session.stats
    counts = stats.passes, stats.iterations, stats.drafted, stats.accepted, stats.own_tokens, stats.cut, stats.lengths
    return sorted(found, key=lambda hypothesis: hypothesis.index), counts, calls


def both(roles, requests, controllers, rows, **options):
    """The native run; checks that the session's own iterations give the same."""
    outputs, counts, calls = run(roles, requests, next(controllers), rows, True, **options)
    expected, expected_counts, expected_calls = run(roles, requests, next(controllers), rows, False, **options)
    assert outputs == expected and counts == expected_counts
    return outputs, calls, expected_calls


def controllers(longest, seed, **options):
    while True:
        yield Repeated(longest, seed, **options)


def roles_of(drafter, dtype="float32", seed=0, positions=64, **changes):
    """A random pair whose outputs vary: the output bias makes eos likelier, or nothing would end."""
    verifier = wide_verifier(seed, **KERNEL_SHAPES["pre-norm"], max_target_positions=positions)
    with torch.no_grad():
        verifier[0].decoder.output_projection.weight[EOS] *= 0.5
    given = wide_drafter(arch="block_causal", **{**KERNEL_SHAPES["pre-norm"], **changes}) if drafter else None
    models = on_kernels(verifier, given, dtype)
    return (CausalBlockDrafter(models[1]) if drafter else NoDrafter()), ModelVerifier(models[0])


def requests_of(count, seed, plain=False):
    """With limits, least lengths, forced beginnings and tolerances of their own."""
    rng, requests = random.Random(seed), []
    for index, source in enumerate(sentences(count, seed)):
        limit = rng.randrange(1, 30)
        options = (
            {}
            if plain
            else {
                "min_length": rng.choice([0, 1, 1, 4]),
                "forced": [rng.randrange(4, WORDS + 4) for _ in range(rng.choice([0, 0, 1, 3]))],
                "no_repeat": rng.choice([0, 0, 1, 2, 3]),
                "tolerance": rng.choice([None, Tolerance(), Tolerance(3, 2.0), Tolerance(WORDS, 0.7)]),
            }
        )
        requests.append(Request(index, source, limit, scores=index % 3 > 0, **options))
    return requests


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drafter", [{}, {"successor_width": 32}, {"draft_vocabulary": [*range(8), 9, 13]}, None])
@torch.inference_mode()
def test_is_the_session(drafter, dtype, variant):  # noqa: F811
    options = dict(drafter or {})
    vocabulary = options.pop("draft_vocabulary", None)
    roles = roles_of(drafter is not None, dtype, **options)
    if vocabulary:
        roles = with_vocabulary(vocabulary, dtype)
    fewer = 0
    for rows, longest in ((1, 6), (3, 9), (8, 4)):
        requests = requests_of(20, seed=rows)
        outputs, calls, expected_calls = both(roles, requests, controllers(longest, rows), rows)
        assert len({tuple(output.tokens) for output in outputs}) > 5
        fewer += calls < expected_calls
    assert fewer == 3  # it is the native loop that ran


def with_vocabulary(vocabulary, dtype):
    from support import engine_model

    from specdec_plugins.decoding.backends.cpu.model import CpuModel
    from specdec_plugins.decoding.loading import DRAFT_VOCABULARY

    given = engine_model(*wide_drafter(arch="block_causal", **KERNEL_SHAPES["pre-norm"]))
    given.tensors[DRAFT_VOCABULARY] = torch.tensor(vocabulary)
    verifier = roles_of(False, dtype)[1]
    return CausalBlockDrafter(CpuModel(given, verifier.model.engine, dtype)), verifier


@torch.inference_mode()
def test_constraints_and_tolerance_of_the_session():
    roles = roles_of(True)
    requests = requests_of(15, seed=3, plain=True)
    outputs, _, _ = both(roles, requests, controllers(4, 0), 4)
    common = max(range(4, WORDS + 4), key=lambda token: sum(token in output.tokens for output in outputs))
    constraints = Constraints(forced=(17, 9), suppressed=(common, 5))
    requests = [Request(each.index, each.tokens, each.limit + 2) for each in requests]
    outputs, _, _ = both(roles, requests, controllers(5, 1), 4, acceptance=TopBetaTau(4, 1.5), constraints=constraints)
    assert all(output.tokens[:2] == [17, 9] and not {common, 5} & set(output.tokens) for output in outputs)
    assert sum(step.accepted for output in outputs for step in output.steps) > 20


@torch.inference_mode()
def test_a_drafter_with_few_positions():
    """The drafter's positions end before the verifier's."""
    roles = roles_of(True, max_target_positions=12)
    assert roles[0].model.spec.decoder.max_positions < 20
    requests = [Request(index, source, 30, min_length=20) for index, source in enumerate(sentences(6, seed=1))]
    outputs, _, _ = both(roles, requests, controllers(8, 2), 3)
    assert all(len(output.tokens) >= 20 for output in outputs)


@torch.inference_mode()
def test_caches_grow_within_a_call():
    """A call ends where the caches are full, and the next one goes on with larger ones."""
    roles = roles_of(False, positions=200)
    requests = [Request(index, [5 + index, EOS], 150, min_length=100) for index in range(3)]
    outputs, _, _ = both(roles, requests, controllers(0, 3), 2)
    assert all(len(output.tokens) >= 100 for output in outputs)


@torch.inference_mode()
def test_a_step_is_bounded():
    """However long a plan stands, a step makes as many iterations as it was asked for, one by default."""
    roles = roles_of(False)

    class Always(Repeated):
        def plan(self, prefix):
            return Plan([0] * len(prefix), 10**18)

    session = Session(Roles(*roles, TopBetaTau(), Always(0, 0)), BoundedAdmission(2), 2)
    session.submit(Request(0, [5, EOS], 60, min_length=60, scores=True))
    for times, passes in ((1, 1), (5, 6), (ITERATIONS_PER_CALL, 6 + ITERATIONS_PER_CALL)):
        session.step(times)
        assert session.stats.passes == passes
    session.step()
    session.submit(Request(1, [6, EOS], 60, min_length=60))
    session.step()
    assert len(session.prefix) == 2
    (partial,) = session.cancel(0)
    assert len(partial.tokens) == len(partial.token_scores) == 8 + ITERATIONS_PER_CALL
    assert [len(each.tokens) for each in session.run([])] == [60]


class Counting(CausalBlockDrafter):
    """A drafter whose iterations are counted where Python sees them."""

    asked = observed = 0

    def observe(self, state, scores, draft, verdict):
        Counting.observed += 1
        assert len(verdict.accepted) == len(draft.tokens) == len(state.rows)


class Mine(Counting):
    def propose(self, state, prefix, plan):
        Counting.asked += 1
        return super().propose(state, prefix, plan)


@torch.inference_mode()
def test_a_subclass_keeps_its_recipe_unless_it_proposes():
    drafter, verifier = roles_of(True)
    for kind, follows in ((Counting, False), (Mine, False), (Mine, True)):
        Counting.asked = Counting.observed = 0
        own = kind(drafter.model)
        assert (own.recipe() is None) == (kind is Mine)
        own.traits = Traits(follows=follows, wants=Want(features=True))
        outputs, counts, _ = run((own, verifier), requests_of(6, seed=2), Repeated(4, 3), 2, True)
        drafting, passes = counts[0] - counts[-1][0], counts[0]
        assert Counting.asked == (drafting if kind is Mine else 0) and 0 < drafting <= passes
        assert Counting.observed == (passes if follows else Counting.asked)
        assert outputs == run((drafter, verifier), requests_of(6, seed=2), Repeated(4, 3), 2, True)[0]


@torch.inference_mode()
def test_a_rule_of_ones_own_is_called():
    roles, called = roles_of(True), []

    def rule(scores, draft, prefix):
        called.append(len(draft.tokens))
        return TopBetaTau()(scores, draft, prefix)

    requests = requests_of(6, seed=2)
    outputs, counts, _ = run(roles, requests, Repeated(4, 3), 2, True, acceptance=rule)
    assert len(called) == counts[0] and outputs == run(roles, requests, Repeated(4, 3), 2, True)[0]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@torch.inference_mode()
def test_the_pair_that_ships(dtype):
    """Real outputs, one and eight at a time; the whole policy, whose plans depend on seconds, commits the same tokens."""
    pair = load_folder(ROOT / "data" / "demo.en-de")
    roles = assemble(pair.verifier, pair.drafter, dtype=dtype)
    lines = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()
    requests = [Request(i, pair.codec.encode(line.lower()).ids, 60, scores=i % 3 > 0) for i, line in enumerate(lines)]
    constraints = Constraints(SYMBOLS)
    accepted = 0
    for rows in (1, 8):
        outputs, _, _ = both(roles, requests, controllers(8, rows), rows, constraints=constraints)
        accepted += sum(step.accepted for output in outputs for step in output.steps)
        session = Session(Roles(*roles, TopBetaTau(), Throughput(8)), BoundedAdmission(rows), rows, constraints)
        found = sorted(session.run(requests), key=lambda hypothesis: hypothesis.index)
        assert [each.tokens for each in found] == [each.tokens for each in outputs]
        assert [each.token_scores for each in found] == [each.token_scores for each in outputs]
    assert accepted > 100
