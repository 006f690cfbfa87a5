"""Speculative beam search is plain beam search: tokens, order and scores, whatever is drafted."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from reference import greedy
from support import EOS, SHAPES, SYMBOLS, Knowing, make_pair, make_tilt, sentences
from test_beam import (
    KERNELS,
    KINDS,
    check_against_naive,
    outputs_by,
    requests_of,
    rounded,
    session_of,
    streamed,
    translated,
    world,
)
from test_drafters import NAMES
from test_drafters import make as without_weights
from test_kernels import on_kernels, wide_verifier
from test_trained_drafters import OPTIONS
from test_trained_drafters import make_pair as trained

from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.passes import TorchPass
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.options import Beam, Sampling
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Drafter, Traits, Verifier
from specdec_plugins.decoding.search import groups
from specdec_plugins.decoding.trees import MAX_DRAFTED, TreeDraft, nodes_of, tokens_to
from specdec_plugins.decoding.values import LOGITS, Draft
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.model.spec import OutputRules
from specdec_plugins.translator import Translator

assert world  # a fixture
HOWS = ["right", "wrong", "random", "alternating", "ended", "too long"]


class Tables(Verifier):
    """Logits in float64 that depend on the position and the last two tokens, and so not on what else a pass reads."""

    def __init__(self, seed, bias, words=14, scale=1.5):
        generator = torch.Generator().manual_seed(seed)
        parts = ((40, words), (words + 1, words), (words + 1, words))
        self.places, self.last, self.before = (scale * torch.randn(size, generator=generator).double() for size in parts)
        self.last[:, EOS] += bias

    def score(self, state, prefix, draft, want=LOGITS):
        nodes = nodes_of(draft, range(len(prefix)))
        texts = [[-1, EOS, *prefix.outputs[row], *path] for row, path in tokens_to(draft, nodes)]
        before, last, places = zip(*((*text[-2:], len(text) - 2) for text in texts))
        found = self.places[list(places)] + self.last[list(last)] + self.before[list(before)]
        logits = torch.full((len(prefix), 1 + max(map(len, draft.tokens)), found.size(1)), float("nan"), dtype=torch.float64)
        rows, numbers = zip(*nodes)
        logits[list(rows), [number + 1 for number in numbers]] = found
        return TorchPass(SimpleNamespace(executor=EAGER), {"logits": logits})


class Foreseeing(Drafter):
    """Knows which hypotheses live in each request's search, and drafts them, or not, as ``how`` says."""

    def __init__(self, lives, how, branching, seed=0, outputs=()):
        self.lives, self.how, self.random, self.outputs = lives, how, random.Random(seed), outputs
        self.traits = Traits(trees=branching)
        self.calls = 0

    def propose(self, state, prefix, plan):
        self.calls += 1
        trees = []
        for request, output, length in zip(prefix.requests, prefix.outputs, plan.lengths):
            depth = length + 3 if self.how == "too long" else length
            trees.append(self.tree(self.lives.get(request.index, {}), tuple(output), depth, 1 if plan.tree is None else 99))
        tokens = [tokens for tokens, _ in trees]
        return Draft(tokens) if plan.tree is None else TreeDraft(tokens, [parents for _, parents in trees])

    def tree(self, lives, output, depth, most):
        """With up to ``most`` children of each node."""
        tokens, parents, ends = [], [], [(output, -1)]
        for level in range(depth):
            following = []
            for text, node in ends:
                known = [*lives.get(text, ())]
                self.random.shuffle(known)
                drafted = [*known, *(self.random.randrange(14) for _ in range(self.random.randrange(3)))][:most]
                for number, token in enumerate(drafted):
                    token = self.changed(token, level)
                    if number < max(1, len(known)):
                        following.append(((*text, token), len(tokens)))
                    tokens.append(token)
                    parents.append(node)
            ends = following
        return tokens, parents

    def changed(self, token, level):
        wrong, drawn = (token + 1) % 14, self.random.randrange(14)
        return {
            "wrong": wrong,
            "random": drawn,
            "alternating": token if self.calls % 2 else wrong,
            "ended": EOS if self.random.random() < 0.3 else token,
        }.get(self.how, token)


def lives_of(verifier, requests, monkeypatch, constraints=None):
    """Of each request: the tokens that follow the prefixes of the hypotheses that live in its plain search."""
    found = {}
    with monkeypatch.context() as patch:
        step = groups.step

        def recording(search, beams, candidates):
            after = step(search, beams, candidates)
            for node in after.live:
                text = [each.token for each in node.path()]
                lives.setdefault(tuple(text[:-1]), {})[text[-1]] = None
            return after

        patch.setattr(groups, "step", recording)
        for request in requests:
            if request.beam is not None:
                lives = found[request.index] = {}
                list(session_of(verifier, request.rows, constraints=constraints).run([request]))
    return found


def check_random_sessions(count, seed, monkeypatch):
    """Random tables, requests, drafters and sessions. Returns (drafted tokens, accepted tokens) by how drafts are made."""
    rng, figures = random.Random(seed), {how: [0, 0] for how in HOWS}
    for number in range(count):
        rules = rng.choice([OutputRules(), OutputRules("huggingface", ends=rng.random() < 0.5)])
        verifier, constraints = Tables(seed + number, rng.choice([-4, -1, 1, 3])), Constraints(SYMBOLS, rules=rules)
        requests = []
        for request in requests_of(rng.randrange(1, 5), seed + number, greedy=rng.random() < 0.3):
            forced = [token % 14 for token in request.forced if token % 14 != EOS]
            beam = request.beam and rng.choice([kind for kind in KINDS if kind.rules == rules.library])
            requests.append(replace(request, forced=forced, beam=beam))
        rows = rng.choice([8, 12, 40])
        expected = outputs_by(session_of(verifier, rows, constraints=constraints).run(requests))
        lives, how = lives_of(verifier, requests, monkeypatch, constraints), rng.choice(HOWS)
        lengths = [rng.randrange(6) for _ in range(rng.randrange(1, 4))]
        drafter = Foreseeing(lives, how, rng.random() < 0.6, number)
        session = session_of(verifier, rows, drafter, lengths, constraints)
        assert outputs_by(session.run(requests)) == expected, (number, how)
        figures[how][0] += session.stats.drafted
        figures[how][1] += session.stats.accepted
    return figures


def test_it_is_plain_beam_search_whatever_is_drafted(monkeypatch):
    figures = check_random_sessions(60, 0, monkeypatch)
    assert all(drafted for drafted, _ in figures.values())
    assert figures["right"][1] > figures["right"][0] / 20


@pytest.mark.long
def test_thousands_of_searches_are_plain_ones(monkeypatch):
    check_random_sessions(2000, 1000, monkeypatch)


@pytest.mark.parametrize("beam", [kind for kind in KINDS if kind.rules == "fairseq"])
def test_a_pass_replays_as_many_steps_as_are_drafted(beam, monkeypatch):
    verifier, request = Tables(5, -3), Request(0, [5, EOS], 23, beam=beam)
    plain = session_of(verifier, 8)
    expected, steps = outputs_by(plain.run([request])), plain.stats.iterations
    for length in (1, 3, 7):
        session = session_of(verifier, 8, Foreseeing(lives_of(verifier, [request], monkeypatch), "right", True), [length])
        found = list(session.run([request]))
        assert outputs_by(found) == expected
        stats = session.stats
        assert stats.passes == -(-steps // (length + 1)) and stats.committed == steps
        for each in found:
            said = [token for step in each.steps for token in (*step.drafted[: step.accepted], step.own)]
            assert [token for token in said if token != EOS] == each.tokens


@pytest.mark.parametrize("branching", [True, pytest.param(False, marks=pytest.mark.long)], ids=["trees", "chains"])
def test_models_in_float64(world, branching, monkeypatch):
    """Greedy, sampled and beam requests in one session, forced beginnings, limits, refills; against the naive searches."""
    model, verifier, tilt = world
    requests, accepted = requests_of(12, 5), 0
    outputs = [greedy(model, request.tokens, request.limit, tilt) for request in requests]
    lives = lives_of(verifier, requests, monkeypatch)
    for drafter in (Foreseeing(lives, "right", branching), Foreseeing(lives, "ended", branching), Knowing(outputs, 0.3)):
        session = session_of(verifier, 11, drafter, (3, 0, 5))
        assert check_against_naive(model, tilt, requests, list(session.run(requests))) > 10
        accepted += session.stats.accepted
    assert accepted > 10


def test_streams_and_cancelled_searches(world, monkeypatch):
    _, verifier, _ = world
    requests = requests_of(12, 7, greedy=False)
    expected = outputs_by(session_of(verifier, 40).run(requests))
    lives = lives_of(verifier, requests, monkeypatch)
    session, streams, done, rng = session_of(verifier, 12, Foreseeing(lives, "right", True), (4, 2)), {}, [], random.Random(1)
    for request in requests:
        session.submit(request)
    cancelled = set()
    while not session.idle:
        streamed(session, streams, done)
        if rng.random() < 0.3 and session.prefix.group(index := rng.randrange(12)):
            session.cancel(index)
            cancelled.add(index)
    kept = {key: output for key, output in outputs_by(done).items() if key[0] not in cancelled}
    assert kept == rounded({key: output for key, output in expected.items() if key[0] not in cancelled}) and cancelled


@KERNELS
@pytest.mark.parametrize("branching", [True, False], ids=["trees", "chains"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_on_the_kernels_bit_for_bit(dtype, branching, monkeypatch):
    """With refills and among greedy and sampled requests."""
    verifier = ModelVerifier(tilted(on_kernels(wide_verifier(), dtype=dtype)[0]))
    for greedy_too in (False, True):
        requests = requests_of(12, 8, greedy=greedy_too)
        expected = outputs_by(session_of(verifier, 23).run(requests))
        drafter = Foreseeing(lives_of(verifier, requests, monkeypatch), "right", branching)
        session = session_of(verifier, 17, drafter, (3, 0, 5))
        assert outputs_by(session.run(requests)) == expected
        assert session.stats.accepted


def tilted(model):
    from support import Tilted

    return Tilted(model, make_tilt(4, -1.0))


# ---- every drafter


def check_drafter(verifier, drafter, requests, exact):
    """Plain and speculative sessions, in which rows fork and move; returns accepted tokens."""
    expected, accepted = outputs_by(session_of(verifier, 16).run(requests)), 0
    for rows, lengths in ((8, [4]), (16, [3, 0, 5])):
        session = session_of(verifier, rows, drafter, lengths)
        found = outputs_by(session.run(requests))
        assert found == (expected if exact else rounded(expected))
        accepted += session.stats.accepted
    return accepted


def searches(count, seed, limit=14):
    beams, sources = random.Random(seed), sentences(count, seed)
    return [Request(index, source, limit, beam=beams.choice(KINDS)) for index, source in enumerate(sources)]


BACKENDS = [
    pytest.param("float64", marks=pytest.mark.long),
    *(pytest.param(dtype, marks=KERNELS) for dtype in ("float32", "int8")),
]


@pytest.mark.parametrize("dtype", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_drafters_without_weights(name, dtype):
    model, args = wide_verifier(**SHAPES["pre-norm"])
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] *= 0.5
    if dtype == "float64":
        from support import load

        verifier = ModelVerifier(load((model.double(), args))[0])
    else:
        verifier = ModelVerifier(on_kernels((model, args), dtype=dtype)[0])
    requests = searches(4, 6)
    best = {each.index: each.tokens for each in session_of(verifier, 16).run(requests) if not each.output}
    outputs = [best[index] for index in range(len(requests))]
    hinted = [replace(request, hint=output) for request, output in zip(requests, outputs)]
    drafter = without_weights(name, outputs, [request.tokens for request in requests])
    check_drafter(verifier, drafter, hinted, dtype != "float64")
    mixed = [replace(each, beam=None, sampling=Sampling(0.5)) if each.index % 3 == 1 else each for each in hinted]
    check_drafter(verifier, drafter, mixed, dtype != "float64")


@pytest.mark.parametrize("dtype", BACKENDS)
@pytest.mark.parametrize("name", [*OPTIONS, "window"])
def test_drafters_with_models(name, dtype):
    from specdec_plugins.decoding.drafters.window import WindowDrafter
    from specdec_plugins.decoding.options import Budget

    drafter, verifier = trained("small" if name == "window" else name, dtype)
    if name == "window":
        drafter = WindowDrafter(verifier.model, Budget(8, 2))
    accepted = check_drafter(verifier, drafter, searches(4, 6), dtype != "float64")
    assert accepted or name not in ("window", "block_causal")


@KERNELS
def test_the_larger_a_beam_the_fewer_steps_are_drafted():
    """A pass has room for as many results of every row as the largest tree needs; beams of more than 64 draft nothing."""
    drafter, verifier = trained("block_causal", "float32")
    propose, drafted = drafter.propose, []

    def noted(state, prefix, plan):
        drafted.append((plan.lengths[0], max(map(len, propose(state, prefix, plan).tokens))))
        return propose(state, prefix, plan)

    drafter.propose = noted
    for size, longest in ((2, 16), (12, 5), (70, 0)):
        drafted.clear()
        requests = [Request(0, sentences(1, 6)[0], 20, beam=Beam(size, nbest=size))]
        expected = outputs_by(session_of(verifier, size).run(requests))
        assert outputs_by(session_of(verifier, size, drafter, [16]).run(requests)) == expected
        assert {length for length, _ in drafted} == ({longest} if longest else set())
        assert all(nodes <= MAX_DRAFTED for _, nodes in drafted)


@pytest.mark.parametrize("arch", ["block", "block_causal"])
def test_block_drafters_in_pytorch(arch):
    _, (verifier, drafter), _ = make_pair(seed=3, bias=-1.0, arch=arch)
    check_drafter(verifier, drafter, requests_of(8, 9), False)


# ---- the shipped pair

LINES = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()


@KERNELS
@pytest.mark.parametrize("dtype", ["int8", *(pytest.param(each, marks=pytest.mark.long) for each in ("float32", "bfloat16"))])
def test_the_shipped_pair(dtype):
    for beam, count in ((2, 8), (5, 4)):
        how = {"dtype": dtype, "beam": beam, "nbest": 2}
        plain = translated(LINES[:count], 4, strategy="ar", **how)
        for batch_size, drafting in ((1, {}), (4, {}), (4, {"draft_with": "recycling"}), (3, {"draft_with": "ngram"})):
            found = translated(LINES[:count], batch_size, block_size=4, **how, **drafting)
            assert [(each.text, each.score, each.token_scores) for each in found] == [
                (each.text, each.score, each.token_scores) for each in plain
            ]
            assert sum(each.accepted for each in found) or drafting


def test_a_search_streams_under_speculation():
    how = {"beam": 3, "max_len_b": 24, "dtype": "float32"}
    plain = translated(LINES[:2], 2, strategy="ar", **{**how, "nbest": 1})
    translator = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), block_size=3, **how)
    assert ["".join(translator.stream_text(line)) for line in LINES[:2]] == [each.text for each in plain]
