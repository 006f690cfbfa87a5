"""Drawn tokens on the CPU kernels: against the reference on tensors, by their distribution, and with and without speculation.

The kernels compute in float32 where the reference has float64, so two tokens that are nearly equally good may change places;
`differs` admits no other difference. B rows, K drafted tokens, V vocabulary, C candidates.
"""

import itertools
import math
import random
from ctypes import byref
from types import SimpleNamespace

import pytest
import torch
from support import EOS, SYMBOLS, WORDS, commit, decode, make_tilt, sentences, tilted_verifier
from test_kernels import DTYPES, KERNEL_SHAPES, ROLES, on_kernels, variant, wide_drafter, wide_verifier  # noqa: F401
from test_native_loop import both, controllers, roles_of, run, with_vocabulary

from specdec_plugins.decoding import noise
from specdec_plugins.decoding.acceptance import rejection
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.cpu.sampling import NativeSampling
from specdec_plugins.decoding.constraints import Bounds, Constraints, restrict
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.sampling import Table, warp
from specdec_plugins.decoding.values import Distribution, Draft, Draws, Request

pytestmark = pytest.mark.skipif(not binding.library(), reason="the kernels were not compiled for this machine")
CPU = torch.device("cpu")
NEAR = 1e-4  # relative: what rounding may do to two tokens' times in a race


def seed_of(rng):
    return rng.randrange(-(2**63), 2**63)


def sampling_of(rng, rule=None):
    """Options at random, the extremes among them."""
    return Sampling(
        rng.choice([1.0, 0.3, 0.8, 2.5]), rng.choice([0, 0, 1, 2, 7, 10**6]), rng.choice([1.0, 0.9, 0.5, 1e-9]),
        rng.choice([1.0, 1.0, 1.3, 0.7]), rule or rng.choice(["coupled", "rejection"]),
    )  # fmt: skip


def draws_of(rng, vocabulary, rule=None):
    return Draws(sampling_of(rng, rule), seed_of(rng), [rng.randrange(vocabulary) for _ in range(rng.choice([0, 3, 30]))])


def rough(generator, *shape):
    """Logits in eighths, so that there are ties, some of them minus infinity."""
    logits = (16 * torch.randn(shape, generator=generator)).round() / 8
    return logits.masked_fill(torch.rand(shape, generator=generator) < 0.1, -math.inf)


# ---- noise


def test_noise_is_the_references(variant):  # noqa: F811
    """The bits exactly; the variates as exactly as float32 has them, also next to 0."""
    rng = random.Random(0)
    cases = [(seed_of(rng), rng.randrange(4), rng.randrange(2**40), 32 * rng.randrange(10**4), 64) for _ in range(50)]
    for seed, purpose, position, first, count in [*cases, (5, 3, 7, 0, 2**20), (0, 0, 0, 0, 32), (-1, 1, 2**32 - 1, 0, 32)]:
        bits, variates = torch.zeros(count, dtype=torch.int32), torch.zeros(count)
        binding.library().specdec_noise(seed, purpose, position, first, count, bits.data_ptr(), variates.data_ptr())
        tokens = torch.arange(first, first + count)
        expected = noise.token_bits(torch.tensor(seed), purpose, torch.tensor(position), tokens)
        assert torch.equal(bits.long() & noise.LOW, expected)
        torch.testing.assert_close(variates.double(), noise.exponential(expected), rtol=1e-6, atol=0)


# ---- weights


@pytest.mark.parametrize("vocabulary", [5, 31, 64, 200, 1001])
def test_weights_are_the_references(vocabulary, variant):  # noqa: F811
    """With ties, drafted tokens that are penalised from their position on, and penalties of tokens that are there twice."""
    rng, generator = random.Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    cut = 0
    for _ in range(60):
        draws, width = draws_of(rng, vocabulary), 4
        logits = rough(generator, 1, width, vocabulary)
        logits[..., 3] = 0.5
        drafted = [rng.randrange(vocabulary) for _ in range(width - 1)]
        expected = warp(logits, Table.of([draws], 1, vocabulary, CPU), torch.tensor([drafted]))[0]
        native, numbers = NativeSampling([draws]), binding.integers(drafted)
        for k in range(width):
            given, weights = logits[0, k].clone(), torch.full((vocabulary + 32,), math.nan)
            binding.library().specdec_warp(
                native.pointer, given.data_ptr(), vocabulary, binding.start(numbers), k, weights.data_ptr()
            )
            assert torch.equal(given, logits[0, k])
            found = weights[:vocabulary].double() / weights[:vocabulary].double().sum()
            torch.testing.assert_close(found, expected[k], rtol=2e-5, atol=1e-9)
            assert not weights[vocabulary:].nan_to_num().any()
            cut += int((found == 0).sum() > 0)
    assert cut > 100


# ---- tokens


def times_of(weights, table, purpose, tokens=None):
    """(B, W, V) the race: the least time wins."""
    tokens = torch.arange(weights.size(-1)) if tokens is None else tokens
    return noise.exponential(table.bits(purpose, weights.size(1), tokens)) / weights


def near(times, token):
    """Whether a token has as good as the best time."""
    return times[token] <= times.min() * (1 + NEAR)


class Case:
    """A batch at random: rows that sample, each in its own way, and rows that do not; constraints of all kinds."""

    def __init__(self, rng, generator, vocabulary, rows=6, width=5):
        self.vocabulary, self.rows, self.width = vocabulary, rows, width
        self.logits = rough(generator, rows, width, vocabulary) / 2
        self.logits[..., 4:7] = self.logits[..., 4:7].clamp(min=-3)
        self.logits[..., EOS] = rng.choice([-1.0, 2.0])
        self.logits[..., 5] += 4  # likely, and drafted often
        lengths = [width - 1, *(rng.randrange(width) for _ in range(rows - 1))]
        self.drafts = [[5 if rng.random() < 0.6 else rng.randrange(4, vocabulary) for _ in range(each)] for each in lengths]
        self.draws = [draws_of(rng, vocabulary) if row % 3 else None for row in range(1, rows + 1)]
        forced = [rng.choice([(), (), (5,), (6, 4)]) for _ in range(rows)]
        room = [max(len(draft), rng.choice([0, 2, 9])) for draft in self.drafts]
        minimum = [rng.choice([0, 0, 2]) for _ in range(rows)]
        self.bounds = Bounds(Constraints(SYMBOLS, (), rng.choice([(), (7, 8)])), room, minimum, forced)
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
        """The reference's weights and choices, by position: (weights, table, passes (B, K), own (B, W))."""
        table = Table.of(self.draws, self.rows, self.vocabulary, CPU)
        tokens = torch.tensor([[*draft, *[0] * (self.width - 1 - len(draft))] for draft in self.drafts])
        offered = torch.tensor([[len(draft)] for draft in self.drafts])
        minimum = torch.tensor(self.bounds.minimum)[:, None]
        forced = torch.tensor([[*row, *[-1] * self.width][: self.width] for row in self.bounds.forced])
        allowed, _ = restrict(self.logits, self.bounds.constraints, minimum, None, forced)
        weights = warp(allowed, table, tokens)
        origins = self.origins and Distribution(*(each[:, : self.width - 1] for each in self.origins))
        passes, rejected = rejection.judge(weights, table, tokens, offered, origins)
        coupled = times_of(weights, table, Purpose.SAMPLE).argmin(-1)
        own = torch.where(table.rejects, rejected, coupled)
        there = torch.arange(self.width - 1) < offered
        passes = torch.where(table.rejects, passes, (tokens == own[:, :-1]) & there)
        best = allowed.argmax(-1)
        sampling = table.temperature > 0
        own = torch.where(sampling, own, best)
        passes = torch.where(sampling, passes, (tokens == best[:, :-1]) & there)
        return weights, table, passes.tolist(), own.tolist()


@pytest.mark.parametrize("vocabulary", [9, 40, 300])
def test_judging_is_the_references(vocabulary, variant):  # noqa: F811
    """Under both rules, mixed with rows that take the best, with all constraints, and with drafts drawn and certain."""
    rng, generator = random.Random(vocabulary), torch.Generator().manual_seed(vocabulary)
    rows = differing = accepted = cuts = 0
    for _ in range(100):
        case = Case(rng, generator, vocabulary)
        verdict = case.judged()
        weights, table, passes, own = case.expected()
        for row, draft in enumerate(case.drafts):
            count = next(k for k, passed in enumerate([*passes[row], False]) if not passed)
            limit = count >= case.bounds.room[row]
            token, cut = (EOS, own[row][count] != EOS) if limit else (own[row][count], False)
            rows += 1
            accepted, cuts = accepted + count, cuts + cut
            if (verdict.accepted[row], verdict.own[row], verdict.cut[row]) != (count, token, cut):
                differing += 1
                continue
            said = [*draft[:count], token]
            scores = case.logits[row, : count + 1].double().log_softmax(-1)[range(count + 1), said]
            assert verdict.scores[row] == pytest.approx(scores.tolist(), abs=1e-5)
    # Random numbers within float32's rounding of a boundary: next to none.
    assert differing <= 1 and accepted > 100 and cuts > 10, (differing, rows, accepted, cuts)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_drafting_is_the_references(names, gate, variant):  # noqa: F811
    """Drawn among the candidates by the noise of the token that each of them stands for; what from is told where it may be asked."""
    generator, rng, size, rows, width = torch.Generator().manual_seed(1), random.Random(2), 120, 5, 4
    table = sorted(rng.sample(range(4, 500), size - 4)) if names else None
    vocabulary = [0, 1, 2, 3, *table] if table else list(range(size))
    successor = SimpleNamespace(**{name: torch.randn(size, 32, generator=generator) / 4 for name in ("tokens", "out")})
    model = SimpleNamespace(
        engine=binding.Engine(2), successor=successor if gate else None, vocabulary=vocabulary if names else None,
        names=binding.integers(vocabulary) if names else None, stack=SimpleNamespace(vocabulary=size),
    )  # fmt: skip
    differing = positions = 0
    for _ in range(40):
        prefix = Prefix()
        draws = [draws_of(rng, size) if row else None for row in range(rows)]
        requests = [Request(row, [EOS], 90, sampling=draw and draw.sampling, seed=draw.seed if draw else 0)
                    for row, draw in enumerate(draws)]  # fmt: skip
        prefix.admit(requests)
        commit(prefix, [draw.prefix if draw else [5] for draw in draws])
        logits = (16 * torch.randn(rows, width, size, generator=generator)).round() / 8
        gates = torch.randn(rows, width, 32, generator=generator)
        done = CpuPass.of(model, logits.clone())
        done._gates = gates if gate else None
        lengths = [rng.randrange(1, width + 1) for _ in range(rows)]
        draft = done.choose(prefix, lengths)
        rejects = [draw is not None and draw.sampling.rule == "rejection" for draw in draws]
        assert (draft.distribution is not None) == any(rejects) and list(map(len, draft.tokens)) == lengths
        for row, tokens in enumerate(draft.tokens):
            before = None
            for k, token in enumerate(tokens):
                values = logits[row, k].double().clone()
                values[SYMBOLS.pad] = -math.inf
                if not k and not prefix.outputs[row]:
                    values[EOS] = -math.inf
                few = sorted(range(size), key=lambda number: (-values[number].item(), number))[:16]
                totals = values[few]
                if gate and k:
                    relation = torch.relu(gates[row, k] + successor.tokens[before])
                    totals = (values[few].float() + successor.out[few] @ relation).double()
                positions += 1
                before = vocabulary.index(token)
                if not draws[row]:
                    differing += token != vocabulary[few[totals.argmax()]]
                    continue
                sampling = draws[row].sampling
                plain = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, 1.0, sampling.rule)
                few = sorted(few, key=lambda number: (-totals[few.index(number)].item(), number))
                totals = totals.sort(descending=True).values
                place = Table.of([Draws(plain, draws[row].seed, [0] * (len(prefix.outputs[row]) + k))], 1, size, CPU)
                weights, tokens_of = warp(totals[None, None], place), torch.tensor([vocabulary[number] for number in few])
                purpose = Purpose.DRAFT if rejects[row] else Purpose.SAMPLE
                times = times_of(weights, place, purpose, tokens_of)[0, 0]
                assert near(times, tokens_of.tolist().index(token))
                if rejects[row]:
                    told = dict(zip(draft.distribution.tokens[row, k].tolist(), draft.distribution.probabilities[row, k]))
                    for each, weight in zip(tokens_of.tolist(), weights[0, 0].tolist()):
                        assert told[each] == pytest.approx(weight, rel=1e-3, abs=1e-6)
    assert differing == 0 and positions > 300
