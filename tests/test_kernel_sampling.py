"""Sampling on the CPU kernels: against the reference on tensors, by distribution, and with and without speculation.

The kernels compute in float32 and the reference in float64, so about one draw in a million differs at a near tie. The cases
here, random with fixed seeds, have none.

B rows, K drafted tokens, V vocabulary, C candidates.
"""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from support import EOS, SYMBOLS, Lengths, commit
from test_kernels import DTYPES, ROLES, on_kernels, variant, wide_drafter, wide_verifier  # noqa: F401
from test_native_loop import both, controllers, requests_of, roles_of, run, with_vocabulary
from test_sampling import improbability

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.cpu.rules import NativeSampling
from specdec_plugins.decoding.backends.torch import noise, rejection
from specdec_plugins.decoding.backends.torch.constraints import repeat_table, repeated, restrict
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.sampling import Table, draw, warp
from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.noise import Purpose, mixed
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Plan, uniform
from specdec_plugins.decoding.verifier import ModelVerifier

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
CPU = torch.device("cpu")


def seed_of(rng):
    return rng.randrange(-(2**63), 2**63)


def sampling_of(rng, rule=None):
    """Random options, including extremes."""
    return Sampling(
        rng.choice([1.0, 0.3, 0.8, 2.5]),
        rng.choice([0, 0, 1, 2, 7, 10**6]),
        rng.choice([1.0, 0.9, 0.5, 1e-9]),
        rng.choice([1.0, 1.0, 1.3, 0.7]),
        rule or rng.choice(["coupled", "rejection"]),
    )


def draws_of(rng, vocabulary, rule=None):
    return Draws(sampling_of(rng, rule), seed_of(rng), [rng.randrange(vocabulary) for _ in range(rng.choice([0, 3, 30]))])


def rough(generator, *shape):
    """Logits rounded to eighths, so that there are ties; some are minus infinity."""
    logits = (16 * torch.randn(shape, generator=generator)).round() / 8
    return logits.masked_fill(torch.rand(shape, generator=generator) < 0.1, -math.inf)


# ---- noise


def test_noise_is_the_references(variant):  # noqa: F811
    """Equal bits; variates equal to float32 precision, also near 0."""
    rng = random.Random(0)
    cases = [(seed_of(rng), rng.randrange(4), rng.randrange(2**40), 64 * rng.randrange(10**4), 128) for _ in range(50)]
    for seed, purpose, position, first, count in [*cases, (5, 3, 7, 0, 2**20), (0, 0, 0, 0, 64), (-1, 1, 2**32 - 1, 0, 64)]:
        bits, variates = torch.zeros(count, dtype=torch.int32), torch.zeros(count)
        compiled.library().specdec_noise(seed, purpose, position, first, count, bits.data_ptr(), variates.data_ptr())
        tokens = torch.arange(first, first + count)
        expected = noise.token_bits(torch.tensor(seed), purpose, torch.tensor(position), tokens)
        assert torch.equal(bits.long() & noise.LOW, expected)
        torch.testing.assert_close(variates.double(), noise.exponential(expected), rtol=1e-6, atol=0)


# ---- weights


@pytest.mark.parametrize("vocabulary", [5, 31, 64, 200, 1001])
def test_weights_are_the_references(vocabulary, variant):  # noqa: F811
    """With ties, drafted tokens that are penalised after their position, and repeated tokens in the penalties."""
    rng, generator = random.Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    cut = 0
    for _ in range(40):
        draws, width = draws_of(rng, vocabulary), 4
        logits = rough(generator, 1, width, vocabulary)
        logits[..., 3] = 0.5
        drafted = [rng.randrange(vocabulary) for _ in range(width - 1)]
        expected = warp(logits, Table.of([draws], 1, vocabulary, CPU), torch.tensor([drafted]))[0]
        native, numbers = NativeSampling([draws]), integers(drafted)
        for k in range(width):
            given, weights = logits[0, k].clone(), torch.full((vocabulary + 64,), math.nan)
            compiled.library().specdec_warp(native.pointer, given.data_ptr(), vocabulary, start(numbers), k, weights.data_ptr())
            assert torch.equal(given, logits[0, k])
            found = weights[:vocabulary].double() / weights[:vocabulary].double().sum()
            torch.testing.assert_close(found, expected[k], rtol=2e-5, atol=1e-9)
            assert not weights[vocabulary:].nan_to_num().any()
            cut += int((found == 0).sum() > 0)
    assert cut > 50


# ---- tokens


class Case:
    """A random batch of sampling rows, each with its own options, and greedy rows, with all kinds of constraints."""

    def __init__(self, rng, generator, vocabulary, rows=6, width=5):
        self.vocabulary, self.rows, self.width = vocabulary, rows, width
        self.logits = rough(generator, rows, width, vocabulary) / 2
        self.logits[..., 4:7] = self.logits[..., 4:7].clamp(min=-3)
        self.logits[..., EOS] = rng.choice([-1.0, 2.0])
        self.logits[..., 5] += 4  # likely, and drafted often
        lengths = [width - 1, *(rng.randrange(width) for _ in range(rows - 1))]
        self.drafts = [[5 if rng.random() < 0.6 else rng.randrange(4, vocabulary) for _ in range(each)] for each in lengths]
        self.draws = [draws_of(rng, vocabulary) if row % 3 else None for row in range(1, rows + 1)]
        room = [max(len(draft), rng.choice([0, 2, 9])) for draft in self.drafts]
        minimum = [rng.choice([0, 0, 2]) for _ in range(rows)]
        repeats = [Repeats(rng.choice([0, 1, 2]), rng.choices(range(4, 7), k=rng.randrange(6))) for _ in range(rows)]
        suppressed = rng.choice([(), (7, 8)])
        self.bounds = Bounds(Constraints(SYMBOLS, (), suppressed), room, minimum, rng.choice([None, repeats]))
        self.origins = None
        if rng.random() < 0.5:  # what drafted tokens were drawn from, the drafted ones among it
            few, depth = 4, width + 1
            others = [torch.randperm(vocabulary - 6, generator=generator)[: few - 1] + 6 for _ in range(rows * depth)]
            tokens = torch.stack([torch.cat([torch.tensor([5]), each]) for each in others]).view(rows, depth, -1)
            self.origins = Distribution(tokens, torch.rand(tokens.shape, generator=generator).softmax(-1))
            for row, draft in enumerate(self.drafts):
                draft[:] = [rng.choice(tokens) for tokens in self.origins.tokens[row, : len(draft)].tolist()]

    def judged(self):
        engine = binding.Engine(2)
        tolerances = [Tolerance()] * self.rows
        given = self.logits.clone()
        draft = Draft(self.drafts, self.origins)
        verdict = CpuPass.of(SimpleNamespace(engine=engine), given).judge(draft, self.bounds, tolerances, self.draws)
        assert torch.equal(given, self.logits)
        return verdict

    def expected(self):
        """The reference: whether each drafted token is accepted, (B, K), and the token in its place if not, (B, K + 1)."""
        table = Table.of(self.draws, self.rows, self.vocabulary, CPU)
        tokens = torch.tensor([[*draft, *[0] * (self.width - 1 - len(draft))] for draft in self.drafts])
        offered = torch.tensor([[len(draft)] for draft in self.drafts])
        minimum = torch.tensor(self.bounds.minimum)[:, None]
        repeats = None
        if self.bounds.repeats:
            rows, most = repeat_table(self.bounds.repeats, self.vocabulary, self.rows)
            repeats = repeated(torch.tensor(rows), tokens, self.vocabulary, most)
        allowed, _ = restrict(self.logits, self.bounds.constraints, minimum, None, repeats)
        weights = warp(allowed, table, tokens)
        origins = self.origins and Distribution(*(each[:, : self.width - 1] for each in self.origins))
        passes, rejected = rejection.judge(weights, table, tokens, offered, origins)
        coupled = draw(weights, table, Purpose.SAMPLE)
        own = torch.where(table.rejects, rejected, coupled)
        there = torch.arange(self.width - 1) < offered
        passes = torch.where(table.rejects, passes, (tokens == own[:, :-1]) & there)
        best = allowed.argmax(-1)
        sampling = table.temperature > 0
        own = torch.where(sampling, own, best)
        passes = torch.where(sampling, passes, (tokens == best[:, :-1]) & there)
        return passes.tolist(), own.tolist()


@pytest.mark.parametrize("vocabulary", [9, 40, 300])
def test_judging_is_the_references(vocabulary, variant):  # noqa: F811
    """Both rules, mixed with greedy rows, all constraints, sampled and certain drafts."""
    rng, generator = random.Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    accepted = cuts = 0
    for _ in range(60):
        case = Case(rng, generator, vocabulary)
        verdict = case.judged()
        passes, own = case.expected()
        for row, draft in enumerate(case.drafts):
            count = next(k for k, passed in enumerate([*passes[row], False]) if not passed)
            limit = count >= case.bounds.room[row]
            token, cut = (EOS, own[row][count] != EOS) if limit else (own[row][count], False)
            accepted, cuts = accepted + count, cuts + cut
            assert (verdict.accepted[row], verdict.own[row], verdict.cut[row]) == (count, token, cut)
            said = [*draft[:count], token]
            scores = case.logits[row, : count + 1].double().log_softmax(-1)[range(count + 1), said]
            assert verdict.scores[row] == pytest.approx(scores.tolist(), abs=1e-5)
    assert accepted > 100 and cuts > 10


def dense(distribution, vocabulary):
    """(B, K, V) float64 probabilities."""
    tokens, probabilities = map(torch.as_tensor, distribution)
    result = torch.zeros(*tokens.shape[:2], vocabulary, dtype=torch.float64)
    return result.scatter_add_(2, tokens, probabilities.double())


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_drafting_is_pytorchs(names, gate, variant):  # noqa: F811
    """Tokens and distributions; a reduced vocabulary uses the noise of the full vocabulary's token."""
    generator, rng, size, rows, width = torch.Generator().manual_seed(1), random.Random(2), 120, 5, 4
    named = [0, 1, 2, 3, *sorted(rng.sample(range(4, 500), size - 4))] if names else None
    vocabulary = None if named is None else torch.tensor(named)
    successor = SimpleNamespace(**{name: torch.randn(size, 32, generator=generator) / 4 for name in ("tokens", "out")})
    decoder = SimpleNamespace(successor=successor, vocabulary=vocabulary, embedding=SimpleNamespace(tokens=successor.tokens))
    eager = TorchModel(SimpleNamespace(decoder=decoder, spec=None), EAGER)
    native = SimpleNamespace(
        engine=binding.Engine(2),
        successor=SimpleNamespace(**{name: each.numpy() for name, each in vars(successor).items()}) if gate else None,
        vocabulary=named,
        token_ids=integers(named) if named else None,
        stack=SimpleNamespace(vocabulary=size),
    )
    different = set()
    for _ in range(40):
        prefix, draws = Prefix(), [draws_of(rng, size) if row else None for row in range(rows)]
        prefix.admit(
            [
                Request(row, [EOS], 90, sampling=draw and draw.sampling, seeds=[draw.seed if draw else 0])
                for row, draw in enumerate(draws)
            ]
        )
        commit(prefix, [draw.prefix if draw else [5] for draw in draws])
        logits = 2 * torch.randn(rows, width, size, generator=generator)
        gates = torch.randn(rows, width, 32, generator=generator) if gate else None
        lengths = [rng.randrange(1, width + 1) for _ in range(rows)]
        plan = Plan(lengths)
        expected = eager.choosing.choose(logits.clone(), gates, prefix, plan)
        draft = CpuPass.of(native, logits.clone(), gates=gates).choose(prefix, plan)
        assert draft.tokens == expected.tokens
        rejects = [draw is not None and draw.sampling.rule == "rejection" for draw in draws]
        assert (draft.distribution is not None) == (expected.distribution is not None) == any(rejects)
        if any(rejects):
            found, told = dense(draft.distribution, 500), dense(expected.distribution, 500)
            for row, length in enumerate(lengths):
                if rejects[row]:
                    torch.testing.assert_close(found[row, :length], told[row, :length], rtol=1e-3, atol=1e-6)
        different.update(tuple(tokens) for tokens in draft.tokens)
    assert len(different) > 150


# ---- distributions


@pytest.mark.parametrize("kind", ["certain", "drawn"])
def test_rejection_keeps_the_distribution(kind):
    """For the first token, drafted or recovered, and for the second after each accepted first token.

    The second depends on the first through the logits and the penalty. The drafter says one of its tokens far too often, two
    slightly too seldom, and one that top-p rules out.
    """
    rows, words, rule = 40_000, 10, Sampling(0.8, 8, 0.9, 1.3, "rejection")
    generator = torch.Generator().manual_seed(4)
    first, second = torch.randn(words, generator=generator), torch.randn(words, words, generator=generator)
    prefix = Prefix()
    prefix.admit([Request(row, [EOS], 90, 0, sampling=rule, seeds=[mixed(7, row)]) for row in range(rows)])
    names = [0, 1, 2, 3, 4, 8]
    drafter = SimpleNamespace(
        engine=binding.Engine(2),
        successor=None,
        vocabulary=names,
        token_ids=integers(names),
        stack=SimpleNamespace(vocabulary=len(names)),
    )
    if kind == "drawn":
        logits = torch.tensor([-2.13, 9.0, 9.0, -2.02, -1.77, -0.24]).expand(rows, 1, -1)
        draft = CpuPass.of(drafter, logits.clone()).choose(prefix, uniform(rows, 1))
    else:
        draft = Draft([[first.topk(2).indices[1].item()]] * rows)
    drafted = torch.tensor(draft.tokens)[:, 0]
    logits = torch.stack([first.expand(rows, -1), second[drafted]], 1)
    verdict = CpuPass.of(drafter, logits).judge(draft, prefix.bounds(), [Tolerance()] * rows, prefix.draws())
    accepted, own = torch.tensor(verdict.accepted) > 0, torch.tensor(verdict.own)

    def expected(values, drafted=()):
        values[SYMBOLS.pad] = -math.inf
        return dict(enumerate(warp(values[None, None], Table.of([Draws(rule, 0, drafted)], 1, words, CPU))[0, 0].tolist()))

    said = torch.where(accepted, drafted, own)
    assert 0.05 < accepted.double().mean() < 0.95
    assert improbability(Counter(said.tolist()), expected(first)) > 1e-3
    for token in set(drafted.tolist()):
        follow = own[accepted & (drafted == token)]
        if len(follow) > 400:
            assert improbability(Counter(follow.tolist()), expected(second[token].clone(), [token])) > 1e-3


# ---- decoding


def sampled(requests, seed, rule=None, share=0.7):
    """The same requests, most of them sampling."""
    rng = random.Random(seed)
    return [
        Request(
            each.index,
            each.tokens,
            each.limit,
            each.min_length,
            each.forced,
            each.tolerance,
            sampling_of(rng, rule) if rng.random() < share else None,
            [seed_of(rng)],
            no_repeat=each.no_repeat,
            scores=each.scores,
        )
        for each in requests
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drafter", [{}, {"successor_width": 32}, {"draft_vocabulary": [*range(8), 9, 13]}, None])
@torch.inference_mode()
def test_the_native_loop_is_the_session(drafter, dtype):
    """Batches of rows under either sampling rule, and greedy rows."""
    options = dict(drafter or {})
    vocabulary = options.pop("draft_vocabulary", None)
    roles = with_vocabulary(vocabulary, dtype) if vocabulary else roles_of(drafter is not None, dtype, **options)
    accepted = fewer = 0
    for rows, longest in ((1, 6), (3, 9), (8, 4)):
        requests = sampled(requests_of(12, seed=rows), rows)
        outputs, calls, expected_calls = both(roles, requests, controllers(longest, rows), rows)
        assert len({tuple(output.tokens) for output in outputs}) > 10
        accepted += sum(step.accepted for output in outputs for step in output.steps)
        fewer += calls < expected_calls
    assert fewer == 3 and (drafter is None or accepted > 10)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_coupled_outputs_do_not_depend_on_the_draft(dtype, variant):  # noqa: F811
    """Tokens and scores equal plain decoding's, bit for bit, for every drafter, block size, batch and number of threads."""
    verifier, expected, accepted = wide_verifier(), None, 0
    with torch.no_grad():
        verifier[0].decoder.output_projection.weight[EOS] *= 0.5
    requests = sampled(requests_of(10, seed=4, plain=True), 3, "coupled", share=0.9)
    for arch, block, rows, threads in (
        (None, 0, 1, 1),
        (None, 0, 5, 2),
        ("block_causal", 1, 1, 2),
        ("block_causal", 7, 4, 1),
        ("block", 5, 10, 2),
        ("block", 3, 2, 3),
    ):
        given = wide_drafter(arch=arch, successor_width=32 if arch == "block_causal" else 0) if arch else None
        models = on_kernels(verifier, given, dtype, threads)
        role = ROLES[arch](models[1]) if arch else NoDrafter()
        session = Session(Roles(role, ModelVerifier(models[0]), TopBetaTau(), Lengths([block])), BoundedAdmission(rows), rows)
        outputs = sorted(session.run(requests), key=lambda hypothesis: hypothesis.index)
        found = [(output.tokens, output.token_scores, output.cut) for output in outputs]
        expected = expected or found
        assert found == expected
        accepted += sum(step.accepted for output in outputs for step in output.steps)
    assert len({tuple(tokens) for tokens, _, _ in expected}) > 7 and accepted > 10


@torch.inference_mode()
def test_a_seed_decides():
    """Equal seeds give equal outputs, others differ; greedy rows ignore seeds."""
    roles = roles_of(True)
    found = []
    for seed in (1, 1, 2):
        requests = [
            Request(each.index, each.tokens, 20, sampling=Sampling() if each.index % 2 else None, seeds=[seed])
            for each in requests_of(8, seed=5, plain=True)
        ]
        outputs, _, _ = run(roles, requests, next(controllers(4, 0)), 4, True)
        found.append([output.tokens for output in outputs])
    assert found[0] == found[1] and found[0][::2] == found[2][::2]
    assert sum(one != other for one, other in zip(found[0][1::2], found[2][1::2])) > 2
