"""Sampling: the random numbers, what tokens are drawn from, the rules' distributions, and the engine against the oracle."""

import inspect
import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from conftest import make_drafter, make_verifier, model_settings
from reference import chances, sampled_all, warped
from support import DRAFTERS, EOS, WORDS, Knowing, load, make_pair, make_tilt, run, sentences, tilted_verifier

from specdec_plugins.decoding.backends.torch import coupled, rejection
from specdec_plugins.decoding.backends.torch import sampling as sampling_module
from specdec_plugins.decoding.backends.torch.noise import philox, token_bits, uniform
from specdec_plugins.decoding.backends.torch.sampling import Table, draw, warp
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.noise import Purpose, mixed
from specdec_plugins.decoding.options import Sampling
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Drafter, NoDrafter
from specdec_plugins.decoding.values import Distribution, Draft, Draws

CPU = torch.device("cpu")
WARPS = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.5),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_p=0.8),
    "penalty": Sampling(repetition_penalty=1.6),
    "all": Sampling(temperature=0.8, top_k=5, top_p=0.9, repetition_penalty=1.3),
}


def improbability(counts, chances) -> float:
    """The p-value of Pearson's chi-square test of counts against ``chances``. Rare outcomes are pooled."""
    total, rare, statistic, kinds = sum(counts.values()), [0.0, 0], 0.0, 0
    assert all(chances.get(key, 0) > 0 for key in counts), "an impossible outcome"
    for key, chance in chances.items():
        if chance * total < 8:
            rare = [rare[0] + chance * total, rare[1] + counts.get(key, 0)]
        else:
            statistic += (counts.get(key, 0) - chance * total) ** 2 / (chance * total)
            kinds += 1
    if rare[0] > 1:
        statistic += (rare[1] - rare[0]) ** 2 / rare[0]
        kinds += 1
    return float(torch.special.gammaincc(torch.tensor((kinds - 1) / 2.0), torch.tensor(statistic / 2).double()))


# ---- random numbers


def test_philox_gives_its_authors_numbers():
    """The known answers that Random123 ships."""
    for counter, key, expected in (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ):
        words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
        assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_bits_belong_to_seed_purpose_position_and_token():
    seeds, positions = torch.tensor([[-1], [5]]), torch.tensor([[7], [7]])
    bits = token_bits(seeds, Purpose.DRAFT, positions, torch.arange(9)[None])
    for row, token in itertools.product(range(2), range(9)):
        key = torch.tensor(int(seeds[row]) & 0xFFFFFFFF), torch.tensor(int(seeds[row]) >> 32 & 0xFFFFFFFF)
        words = philox(tuple(map(torch.tensor, (token // 4, 7, int(Purpose.DRAFT), 0))), key)
        assert int(bits[row, token]) == int(words[token % 4])
    assert torch.equal(bits[:, 3:4], token_bits(seeds, Purpose.DRAFT, positions, torch.tensor([[3]])))
    extremes = uniform(torch.tensor([0, 0xFFFFFFFF]))
    assert 0 < extremes[0] < extremes[1] < 1


def test_derived_seeds_differ():
    assert mixed(0) % 2**64 == 0xE220A8397B1DCDAF  # the first number of SplitMix64
    seeds = {mixed(*numbers) for numbers in itertools.product(range(-2, 20), range(20), range(20))}
    assert len(seeds) == 22 * 20 * 20 and all(-(2**63) <= seed < 2**63 for seed in seeds)


# ---- what tokens are drawn from


@pytest.mark.parametrize("seed", range(40))
def test_weights_are_the_naive_ones(seed):
    rng = random.Random(seed)
    vocabulary, width = rng.randrange(2, 12), rng.randrange(1, 4)
    rows, logits = [], []
    drafted = [[rng.randrange(vocabulary) for _ in range(width - 1)] for _ in range(3)]
    for _ in range(3):
        how = Sampling(
            rng.choice([0.3, 1.0, 2.5]), rng.choice([0, 1, 3, 99]), rng.choice([1e-9, 0.5, 0.9, 1.0]), rng.choice([1.0, 0.7, 1.8])
        )
        rows.append(Draws(how, 0, [rng.randrange(vocabulary) for _ in range(rng.randrange(4))]))
        # Few different values, so that there are ties; some tokens may not follow.
        logits.append([[rng.choice([-math.inf, -1.0, 0.0, 0.5, 2.0]) for _ in range(vocabulary)] for _ in range(width)])
        for place in logits[-1]:
            place[rng.randrange(vocabulary)] = 1.0
    table = Table.of(rows, 4, vocabulary, CPU)
    padded = torch.tensor([*logits, logits[0]], dtype=torch.float64)
    tokens = torch.tensor([*drafted, drafted[0]], dtype=torch.int64).view(4, width - 1)
    found = warp(padded, table, tokens)
    for row, place in itertools.product(range(3), range(width)):
        expected = warped(logits[row][place], [*rows[row].prefix, *drafted[row][:place]], rows[row].sampling)
        torch.testing.assert_close(found[row, place], torch.tensor(expected, dtype=torch.float64))


# ---- the rules

VERIFIER = torch.tensor([[1.2, -0.4, 0.3, 0.9, -2.0, 0.1], [0.0, 1.5, -1.0, 0.2, 0.4, -0.3]], dtype=torch.float64)
DRAFTED_FROM = torch.tensor([0.25, 0.05, 0.4, 0.1, 0.0, 0.2], dtype=torch.float64)
KINDS = {"point mass": [2], "full": [0, 1, 2, 3, 4, 5], "sparse": [0, 2, 5], "sparse, most unlikely": [4, 1]}


def first_tokens(how: Sampling, kind: str, count: int, judge=rejection.judge, warp=warp, draw=draw) -> Counter:
    """The tokens that come first and second where the first is drafted, in ``count`` draws of the rejection rule."""
    vocabulary = VERIFIER.size(1)
    table = Table.of([Draws(how, seed, [0, 5]) for seed in range(count)], count, vocabulary, CPU)
    tokens = torch.tensor(KINDS[kind])
    chance = DRAFTED_FROM[tokens] + 0.01
    distribution = Distribution(tokens.expand(count, 1, -1), (chance / chance.sum()).expand(count, 1, -1))
    drafted = tokens[draw(distribution.probabilities, table, Purpose.DRAFT, distribution.tokens)]
    weights = warp(VERIFIER.expand(count, -1, -1), table, drafted)
    offered = torch.ones(count, 1, dtype=torch.int64)
    accepted, own = judge(weights, table, drafted, offered, None if kind == "point mass" else distribution)
    first = torch.where(accepted[:, 0], drafted[:, 0], own[:, 0])
    pairs = zip(first.tolist(), torch.where(accepted[:, 0], own[:, 1], -1).tolist())
    return Counter(pairs)


def expected_pairs(how: Sampling, counts: Counter) -> dict:
    """The probabilities of first tokens; and of second ones, given how often a first one was accepted."""
    accepted = Counter(first for first, second in counts.elements() if second >= 0)
    total, expected = sum(counts.values()), {}
    for token, chance in enumerate(warped(VERIFIER[0].tolist(), [0, 5], how)):
        after = warped(VERIFIER[1].tolist(), [0, 5, token], how)
        share = accepted[token] / max(1, sum(n for (first, _), n in counts.items() if first == token))
        expected |= {(token, second): chance * share * after[second] for second in range(6) if chance * share * after[second]}
        if chance and share < 1:
            expected[token, -1] = chance * (1 - share)
    assert sum(expected.values()) == pytest.approx(1) and total
    return expected


FEW = [("plain", "full"), ("all", "point mass"), ("top-k", "sparse"), ("top-p", "sparse, most unlikely"), ("penalty", "full")]
DRAWS = [(20_000, *pair) for pair in FEW]
DRAWS += [pytest.param(100_000, *pair, marks=pytest.mark.long) for pair in itertools.product(WARPS, KINDS)]


@pytest.mark.parametrize("count, warping, kind", DRAWS)
def test_rejection_gives_the_verifiers_distribution(count, warping, kind):
    counts = first_tokens(WARPS[warping], kind, count)
    assert improbability(counts, expected_pairs(WARPS[warping], counts)) > 1e-4


@pytest.mark.parametrize("warping", WARPS)
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_coupled_draws_have_the_verifiers_distribution(count, warping):
    how = WARPS[warping]
    table = Table.of([Draws(how, seed, [0, 5]) for seed in range(count)], count, 6, CPU)
    drafted = torch.full((count, 1), 3)
    tokens = coupled.choose(warp(VERIFIER.expand(count, -1, -1), table, drafted), table)
    chance = [warped(VERIFIER[place].tolist(), [0, 5, 3][: 2 + place], how) for place in range(2)]
    expected = {(a, b): chance[0][a] * chance[1][b] for a in range(6) for b in range(6) if chance[0][a] * chance[1][b]}
    assert improbability(Counter(map(tuple, tokens.tolist())), expected) > 1e-4


MUTATIONS = {
    "always accepted": (rejection.judge, "* drafted < verified", "* 0 < verified"),
    "accepted by the verifier alone": (rejection.judge, "* drafted < verified", "< verified"),
    "accepted the other way round": (rejection.judge, "* drafted < verified", "* verified < drafted"),
    "recovered from the verifier": (rejection.judge, "(weights - drafter).clamp(min=0)", "weights.clone()"),
    "recovered from what the drafter lacks": (rejection.judge, "(weights - drafter)", "(drafter - weights)"),
    "recovered by the draft's noise": (rejection.judge, "Purpose.RECOVER", "Purpose.DRAFT"),
    "recovered by the noise of acceptance": (rejection.judge, "Purpose.RECOVER", "Purpose.ACCEPT"),
    "the draft's noise decides": (
        rejection.judge,
        "Purpose.ACCEPT, width, tokens.new_zeros(1))",
        "Purpose.DRAFT, width, tokens[..., None])",
    ),
    "the bonus is sharper": (
        rejection.judge,
        "drafter = torch.zeros_like(weights)",
        "drafter = torch.zeros_like(weights); drafter[:, -1] = weights[:, -1] - weights[:, -1] ** 2",
    ),
    "temperature twice": (sampling_module.warp, "[..., None]\n    order", "[..., None] ** 2\n    order"),
    "times not divided": (sampling_module.draw, "/ weights", "* weights"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_rule_is_noticed(mutation):
    function, old, new = MUTATIONS[mutation]
    source = inspect.getsource(function)
    assert source.count(old) == 1
    names = dict(vars(inspect.getmodule(function)))
    exec(source.replace(old, new), names)
    wrong = {function.__name__: names[function.__name__]}
    if function is draw:
        exec(inspect.getsource(rejection.judge), judging := {**vars(rejection), **wrong})
        wrong["judge"] = judging["judge"]
    how = WARPS["cold"]
    for kind in KINDS:
        counts = first_tokens(how, kind, 20_000, **wrong)
        expected = expected_pairs(how, counts)
        if any(key not in expected for key in counts) or improbability(counts, expected) < 1e-9:
            return
    raise AssertionError("every test passes with it")


def test_cutting_by_the_dropped_tokens_own_probability_is_noticed():
    """The design's example: the verifier says either with .5, the drafter .7 and .3, and drafts below .5 are dropped."""
    count = 40_000  # a mean's standard deviation is 0.0025
    table = Table.of([Draws(Sampling(), seed, []) for seed in range(count)], count, 2, CPU)
    distribution = Distribution(torch.tensor([0, 1]).expand(count, 1, 2), torch.tensor([0.7, 0.3]).double().expand(count, 1, 2))
    drafted = draw(distribution.probabilities, table, Purpose.DRAFT)
    weights = torch.full((count, 2, 2), 0.5, dtype=torch.float64)
    outcomes = []
    for offered in (torch.ones_like(drafted), (drafted == 0).long()):
        accepted, own = rejection.judge(weights, table, drafted, offered, distribution)
        outcomes.append(float(torch.where(accepted, drafted, own[:, :1]).double().mean()))
    assert outcomes[0] == pytest.approx(0.5, abs=0.01) and outcomes[1] == pytest.approx(0.35, abs=0.01)


# ---- the engine


@pytest.mark.parametrize("warping", WARPS)
def test_output_is_the_oracles(warping):
    """Whatever is drafted: greedy and sampled requests, drafts from random to perfect, any batch and block."""
    rng, how, cases = random.Random(warping), WARPS[warping], 0
    for seed, bias in ((0, -4.0), (1, 1.0)):
        fairseq_model, args = make_verifier(seed=seed, words=WORDS)
        fairseq_model.double()
        model, _ = load((fairseq_model, args))
        tilt = make_tilt(seed, bias)
        sources = sentences(6, seed=rng.random())
        limits = [rng.randrange(1, 20) for _ in sources]
        requests = [Request(i, sources[i], limits[i], sampling=how, seeds=[mixed(seed, i)]) for i in range(6)]
        expected = sampled_all(fairseq_model, sources, limits, how, [each.seeds[0] for each in requests], tilt)
        for error, rows, ragged in ((0.0, 3, False), (0.3, 10, True), (1.0, 4, False)):
            lengths = [rng.randrange(9) for _ in range(5)]
            hypotheses, stats = run(tilted_verifier(model, tilt), Knowing(expected, error), requests, lengths, rows, ragged)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert error or stats.accepted == stats.drafted
            cases += len(requests)
        hypotheses, _ = run(tilted_verifier(model, tilt), NoDrafter(), requests, [0], 4)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected
    assert cases >= 36


@pytest.mark.parametrize("kind", DRAFTERS)
def test_no_drafter_changes_coupled_samples(kind):
    _, (verifier, drafter), _ = make_pair(seed=3, bias=-1.0, drafter=DRAFTERS[kind], shake=0.3)
    how = Sampling(0.9, top_k=12, top_p=0.95, repetition_penalty=1.2)
    hows = [how, how, how, how, None, how]
    requests = [Request(i, source, 12, sampling=hows[i], seeds=[i], scores=True) for i, source in enumerate(sentences(6, seed=4))]
    expected, _ = run(verifier, NoDrafter(), requests, [0], 6)
    for lengths, rows, ragged in (([3, 0, 8], 3, True), ([6], 6, False)):
        found, stats = run(verifier, drafter, requests, lengths, rows, ragged)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        for one, other in zip(found, expected):
            torch.testing.assert_close(torch.tensor(one.token_scores), torch.tensor(other.token_scores), atol=1e-5, rtol=0)
        assert stats.accepted


def tiny(arch="block_causal", **changes):
    """A verifier of six tokens and its drafter, whose every sentence of three tokens can be listed."""
    verifier, args = make_verifier(seed=1, words=2)
    settings = {"arch": arch, "src_embedding_copy": False, **changes}
    drafter = make_drafter(seed=2, words=2, dtype=torch.float32, **settings)
    tilt = torch.randn(8, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    loaded, drafting = load((verifier.double(), args), (drafter.double(), model_settings(**settings)))
    return verifier, tilted_verifier(loaded, tilt), CausalBlockDrafter(drafting), tilt


class Elsewhere(Drafter):
    """Drafts from a distribution of its own, full or of some tokens, whatever the prefix is."""

    def __init__(self, kind):
        self.tokens = torch.tensor(KINDS[kind])
        chance = DRAFTED_FROM[self.tokens] + 0.01
        self.chance, self.certain = chance / chance.sum(), kind == "point mass"

    def propose(self, state, prefix, plan):
        rows, longest = len(prefix), max(plan.lengths)
        table = Table.of(prefix.draws(), rows, 6, CPU)
        shape = rows, longest, -1
        tokens, chance = self.tokens.expand(shape), self.chance.expand(shape)
        drafted = self.tokens[draw(chance, table, Purpose.DRAFT, tokens)].tolist()
        drafts = [row[:length] for row, length in zip(drafted, plan.lengths)]
        return Draft(drafts, None if self.certain else Distribution(tokens, chance))


WAYS = [
    ("coupled", "all", "own"),
    ("rejection", "plain", "own"),
    ("coupled", "penalty", "none"),
    ("rejection", "cold", "point mass"),
    ("rejection", "top-k", "full"),
    ("rejection", "top-p", "sparse"),
    ("rejection", "penalty", "own"),
    ("rejection", "all", "none"),
    ("rejection", "cold", "own"),
]
SENTENCES = [(2_000, 2_000, *way) for way in WAYS]
SENTENCES += [pytest.param(100_000, 4_000, *way, marks=pytest.mark.long) for way in WAYS]
SENTENCES += [pytest.param(600, 1, *way, marks=pytest.mark.long) for way in WAYS[:2]]


@pytest.mark.parametrize("count, rows, rule, warping, drafting", SENTENCES)
def test_sentences_come_as_often_as_they_should(count, rows, rule, warping, drafting):
    fairseq_model, verifier, own, tilt = tiny()
    drafter = {"own": own, "none": NoDrafter()}.get(drafting) or Elsewhere(drafting)
    how = Sampling(**{**vars(WARPS[warping]), "rule": rule})
    source = [4, 5, 4, EOS]
    requests = [Request(index, source, 3, sampling=how, seeds=[mixed(7, index)]) for index in range(count)]
    hypotheses, stats = run(verifier, drafter, requests, [0] if drafting == "none" else [3, 1, 2], rows)
    counts = Counter(tuple(each.tokens) + (() if each.cut else (EOS,)) for each in hypotheses)
    expected = {}
    for key, chance in chances(fairseq_model, source, 4, how, tilt).items():
        key = key if EOS in key else key[:3]
        expected[key] = expected.get(key, 0.0) + chance
    assert sum(expected.values()) == pytest.approx(1)
    assert improbability(counts, expected) > 1e-4
    assert drafting == "none" or stats.accepted > 0.1 * stats.drafted


def test_samples_of_a_sentence_share_what_is_computed_of_it(monkeypatch):
    _, (verifier, drafter), _ = make_pair(seed=3, bias=-1.0, drafter=DRAFTERS["causal"])
    encoded = []
    remember = type(verifier.model.model)._remember
    monkeypatch.setattr(
        type(verifier.model.model),
        "_remember",
        lambda self, source, numbers, *more: encoded.extend(numbers) or remember(self, source, numbers, *more),
    )
    sources = sentences(3, seed=4)
    seeds = [[mixed(i, j) for j in range(7)] for i in range(len(sources))]
    requests = [Request(i, source, 15, sampling=Sampling(), seeds=seeds[i]) for i, source in enumerate(sources)]
    shared, _ = run(verifier, drafter, requests, [4], 30)
    assert len(shared) == 21 and len(encoded) == 2 * len(sources)  # by the verifier and the drafter
    few, _ = run(verifier, drafter, requests, [4], 10)
    assert [each.tokens for each in few] == [each.tokens for each in shared] and len(encoded) == 4 * len(sources)
    singles = [replace(each, index=7 * each.index + j, seeds=[seed]) for each in requests for j, seed in enumerate(each.seeds)]
    apart, _ = run(verifier, drafter, singles, [4], 10)
    assert [each.tokens for each in shared] == [each.tokens for each in apart]
    assert len({tuple(each.tokens) for each in shared}) > 10
