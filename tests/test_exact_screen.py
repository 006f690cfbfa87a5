"""The exact screen of an output layer chooses as all logits do, whatever the weights, hidden states and rules.

V vocabulary, D width, N rows.
"""

import math
import random
from ctypes import addressof, byref
from dataclasses import replace

import numpy as np
import pytest
import torch
from naive import side_of
from support import long_but
from test_kernels import variant  # noqa: F401
from test_native_loop import both, controllers, requests_of, roles_of

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.backends.cpu import weights
from specdec_plugins.decoding.backends.cpu.arguments import address, integers, start
from specdec_plugins.decoding.backends.cpu.binding import DTYPES, Engine, NativeLinear, Plane, Projection, Stack
from specdec_plugins.decoding.backends.cpu.runner import Batch
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Want
from specdec_plugins.formats.packed import TILE

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
WIDTH, STATES, LONGEST, ALL = 64, 12, 4, 1 << 20  # ALL: more rows than any pass has
VOCABULARIES = 40 * TILE + 7, 9 * TILE, TILE - 1


def near(rng, vocabulary):
    """As trained layers are: each hidden state has a direction in common with few tokens."""
    weight = rng.normal(size=(vocabulary, WIDTH))
    chosen = weight[rng.integers(vocabulary, size=STATES)]
    return weight, rng.normal(size=vocabulary), chosen + 0.3 * rng.normal(size=chosen.shape)


def flat(rng, vocabulary):
    return rng.normal(size=(vocabulary, WIDTH)), rng.normal(size=vocabulary), rng.normal(size=(STATES, WIDTH))


def ties(rng, vocabulary):
    """Few different tokens and small whole numbers, whose scale is 1: equal logits in many panels."""
    few = rng.integers(-3, 4, size=(5, WIDTH))
    few[:, 0], x = 127, rng.integers(-2, 3, size=(STATES, WIDTH))
    x[:, 1] = 127
    return few[rng.integers(5, size=vocabulary)], np.zeros(vocabulary), x


def tight(rng, vocabulary):
    """Tokens whose lower bits are a multiple of the hidden state, which no smaller bound lets through: ahead by one of the few
    that have no lower bits, level, or behind. With -127 in each row, and nothing there in states, all scales are 1."""
    x = 127 * rng.choice((-1, 1), size=(STATES, WIDTH))
    sign, few = np.sign(x)[rng.integers(STATES, size=vocabulary)], np.arange(vocabulary) % (TILE + 1) == 0
    dimension = np.arange(WIDTH)
    weight = np.where(few[:, None], 16 * (dimension <= 40), 7 + 16 * (dimension <= 12)) * sign
    bias = np.where(few, 0, 127 * 7 + rng.integers(-1, 2, size=vocabulary))  # 16 * 40 = 7 * 63 + 16 * 12 + 7
    weight[:, 0], x[:, 0] = -127, 0
    return weight, bias, x


def halfway(rng, vocabulary):
    """States most of which quantising loses, and tokens of just these numbers: ahead of the only one that reads what it keeps,
    level, or behind. Scales are those of `tight`."""
    x = 31 / 64 * rng.choice((-1, 1), size=(STATES, WIDTH))
    sign, only = np.sign(x)[rng.integers(STATES, size=vocabulary)], np.arange(vocabulary) == vocabulary // 2
    weight = np.where(only[:, None], 16 * (np.arange(WIDTH) == 1), 112 * sign * (np.arange(WIDTH) > 1))
    bias = np.where(only, 0, 16 * 127 - 112 * 62 * 31 / 64 + rng.integers(-1, 2, size=vocabulary))
    weight[:, 0], x[:, 0], x[:, 1] = -127, 0, 127
    return weight, bias, x


def extremes(rng, vocabulary):
    """Nothing but the largest numbers, which crowd AVX2's sums of 16 bits."""
    return (127 * np.sign(rng.normal(size=shape)) for shape in ((vocabulary, WIDTH), vocabulary, (STATES, WIDTH)))


def zeros(rng, vocabulary):
    """Without inputs logits are biases, and bounds are no larger; several are the largest."""
    weight, _, x = near(rng, vocabulary)
    weight[rng.random(vocabulary) < 0.5], x[::2] = 0, 0
    return weight, 1.0 * (rng.random(vocabulary) < 0.1), x


def norms(rng, vocabulary):
    """Rows and hidden states of very different lengths."""
    weight, bias, x = near(rng, vocabulary)
    return (
        weight * 10.0 ** rng.integers(-12, 13, size=(vocabulary, 1)),
        bias * 1e6,
        x * 10.0 ** rng.integers(-40, 8, size=(STATES, 1)),
    )


def infinite(rng, vocabulary):
    """Logits beyond float32, and hidden states that are no numbers."""
    weight, bias, x = near(rng, vocabulary)
    x *= 10.0 ** rng.integers(30, 38, size=(STATES, 1))
    x[::3, 5], x[1::3, 5] = np.inf, np.nan
    weight[rng.random(vocabulary) < 0.3] = 0
    return weight, bias, x


FAMILIES = [near, flat, ties, tight, halfway, extremes, zeros, norms, infinite]


class Layer:
    """Chooses by a stack without layers, whose embeddings are the hidden states: token t has state t modulo `STATES`."""

    def __init__(self, weight, bias, states, dtype, threads=1):
        weight, bias, states = (np.ascontiguousarray(each, np.float32) for each in (weight, bias, states))
        self.threads, projection = threads, NativeLinear(weight, bias, dtype)
        side = side_of(layers=1, heads=2, width=WIDTH, inner_width=WIDTH, max_positions=1)
        places, tokens = np.zeros((1, WIDTH), np.float32), np.resize(states, (len(weight), WIDTH))
        self.stack = Stack(Engine(threads), side, tokens, places, output=Projection(projection, plane=Plane(projection, 1)))
        self.vocabulary, self.cache = len(weight), np.zeros(1, np.float32)

    def __call__(self, drafts, rules, banned, eos, repeats, screened, engine=None):
        """What an iteration does to each row, (drafted, accepted, own, cut) and the bits of scores that it wants, and the call.
        ``drafts`` begin with a row's last token."""
        engine = engine or Engine(self.threads)  # a new one remembers no pass that computed much
        library, size = engine.library, len(drafts)
        zero = [0] * size
        fields = dict.fromkeys(
            ("slot", "source_slot", "drafter_slot", "drafter_source_slot", "source_length", "position", "least"), zero
        )
        rows = library.rows(
            "DecodeRow", **fields, draft_length=[len(each) - 1 for each in drafts], unread=[1] * size, **rules
        )  # fmt: skip
        logits = np.full((size, LONGEST + 1, self.vocabulary), math.nan, np.float32)
        last, given = integers(each[0] for each in drafts), integers(*(each[1:] for each in drafts))
        record, kept = integers([-1] * 4 * size), integers([0] * size * LONGEST)
        scores, banned, cache = np.zeros(size * (LONGEST + 1), np.float32), integers(banned), address(self.cache)
        bans = library.rows("RepeatRow", size=[n for n, _ in repeats], prefix=[len(prefix) for _, prefix in repeats])
        prefixes = integers(*(prefix for _, prefix in repeats))
        no_repeats = library.structs["NoRepeats"](start(bans), start(prefixes))
        call = library.structs["RunCall"](
            verifier=self.stack.pointer,
            caches=library.structs["Caches"](cache, 0, 0, cache, 0, 0, 1 << 20),
            logits=address(logits),
            screened=screened,
            layer=-1,
            heads=-1,
            eos=eos,
            banned_count=len(banned),
            banned=start(banned),
            batch=size,
            longest=LONGEST,
            steps=1,
            rows=start(rows),
            tokens=start(last),
            given=start(given),
            repeats=addressof(no_repeats) if any(n for n, _ in repeats) else None,
            record=start(record),
            drafts=start(kept),
            scores=address(scores),
        )
        library.specdec_run(engine.pointer, byref(call))
        scores = scores.view(np.uint32).reshape(size, -1).tolist()
        done = zip(scores, rules["scored"], range(0, 4 * size, 4))
        return [(*record[at : at + 4], *(own[: record[at + 1] + 1] if wanted else ())) for own, wanted, at in done], call


def asked(rng, layer, bests):
    """A random batch: drafts, many of whose tokens are among ``bests``, those after a state, and rules, which may ban these."""
    count, vocabulary = rng.choice((1, 2, 5)), layer.vocabulary
    drafts = [rng.choices(range(vocabulary), k=rng.randrange(1, LONGEST + 2)) for _ in range(count)]
    for draft in drafts:
        for at in range(1, len(draft)):
            few = rng.choice((0, 1, 1, 4))
            draft[at] = rng.choice(bests[draft[at - 1] % STATES][:few]) if few else draft[at]
    likeliest = [token for draft in drafts for state in draft for token in bests[state % STATES]]
    eos = rng.choice(likeliest) if rng.random() < 0.5 else rng.randrange(vocabulary)
    banned = rng.sample(likeliest, min(len(likeliest), rng.choice((0, 1, 3)))) + [rng.randrange(vocabulary)] * rng.randrange(2)
    beta, tau = rng.choice(((1, 0.0), (2, math.inf), (3, 0.5), (5, 100.0), (vocabulary, math.inf)))
    rules = {
        "beta": [beta] * count,
        "tau": [tau] * count,
        "room": [rng.choice((1, 2, 9)) for _ in drafts],
        "minimum": [rng.choice((0, 0, 2)) for _ in drafts],
        "scored": rng.choice(([0] * count, [0] * count, [0] * count, [rng.randrange(2) for _ in drafts])),
    }
    repeats = [(rng.choice((0, 1, 2)), rng.choices([*likeliest, *drafts[0]], k=6)) for _ in drafts]
    return drafts, rules, banned, eos, repeats


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("dtype", long_but(Plane.KINDS, "float32", "int8"))
def test_choices_are_those_of_all_logits(family, vocabulary, dtype, variant):  # noqa: F811
    rng, accepted, screened = random.Random(vocabulary), 0, 0
    for seed in range(4):
        with np.errstate(over="ignore", invalid="ignore"):
            weight, bias, states = family(np.random.default_rng(seed), vocabulary)
            logits = np.nan_to_num(states @ weight.T + bias)
        bests = np.argsort(-logits, kind="stable")[:, :4].tolist()
        layer = Layer(weight, bias, states, dtype, threads=1 + 2 * (seed % 2))
        for _ in range(20):
            batch = asked(rng, layer, bests)
            expected, _ = layer(*batch, screened=0)
            found, call = layer(*batch, screened=ALL)
            assert found == expected, batch
            accepted, screened = accepted + sum(row[1] for row in found), screened + call.screened_passes
    assert screened > 50 * (family is not infinite) and accepted > 5


def plain(drafts, vocabulary):
    """A batch without bans, under the exact rule."""
    same = {"beta": [1], "tau": [0.0], "room": [9], "minimum": [0], "scored": [0]}
    return drafts, {name: value * len(drafts) for name, value in same.items()}, [], vocabulary - 1, [(0, [])] * len(drafts)


@pytest.mark.parametrize("dtype", Plane.KINDS)
def test_few_panels_are_computed(dtype, variant):  # noqa: F811
    vocabulary = max(VOCABULARIES)
    layer = Layer(*near(np.random.default_rng(1), vocabulary), dtype)
    _, call = layer(*plain([[state] for state in range(STATES)], vocabulary), screened=ALL)
    assert call.screened_passes == 1 and STATES <= call.computed_panels < 3 * STATES


@pytest.mark.parametrize(
    ("dtype", "rows", "expected"), [("float32", 12, 1), ("bfloat16", 12, 1), ("float32", 3, 0), ("int8", 12, 0)]
)
def test_rows_beside_one_that_wants_scores_are_screened_where_it_saves_time(dtype, rows, expected, variant):  # noqa: F811
    layer = Layer(*near(np.random.default_rng(1), 40 * TILE), dtype)
    drafts, rules, *others = plain([[state % STATES] for state in range(rows)], layer.vocabulary)
    rules["scored"][1] = 1
    found, call = layer(drafts, rules, *others, screened=ALL)
    assert (call.screened_passes, len(found[1])) == (expected, 5) and found == layer(drafts, rules, *others, screened=0)[0]
    assert call.computed_panels < 3 * rows


def test_where_most_panels_are_computed_passes_are_soon_not_screened():
    vocabulary, passes = max(VOCABULARIES), []
    layer = Layer(np.ones((vocabulary, WIDTH)), np.zeros(vocabulary), np.ones((STATES, WIDTH)), "int8")
    engine = Engine(1)
    for _ in range(400):
        found, call = layer(*plain([[0]], vocabulary), screened=ALL, engine=engine)
        assert found == [(0, 0, 0, 0)] and call.computed_panels == call.screened_passes * -(-vocabulary // TILE)
        passes.append(call.screened_passes)
    assert passes[:2] == [1, 1] and 8 <= sum(passes) < 20


@pytest.fixture
def screens(monkeypatch):
    """Verifiers that are screened or not, whatever it costs."""
    monkeypatch.setattr(weights, "plane_rows", lambda linear: ALL)
    return lambda roles, screened: setattr(roles[1].model.stack.output.plane, "rows", ALL * screened)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", Plane.KINDS)
def test_the_native_loop(screens, dtype, monkeypatch):
    """It is the session's own iterations, which read all logits, also beside rows that want scores."""
    screened, run = [], Batch.run
    monkeypatch.setattr(Batch, "run", lambda self, times: (run(self, times), screened.append(self.call.screened_passes))[0])
    for rows, longest in ((1, 6), (3, 9), (8, 4)):
        for scored in (0, 0.5):
            rng, requests = random.Random(rows), requests_of(20, seed=rows)
            requests = [replace(each, scores=rng.random() < scored) for each in requests]
            roles = roles_of(True, dtype)  # new ones remember no pass that computed much
            screens(roles, True)
            both(roles, requests, controllers(longest, rows), rows)
            assert any(screened) or scored
            screened.clear()
            screens(roles, False)
            both(roles, requests, controllers(longest, rows), rows)
            assert not any(screened)


class Guessing(Drafter):
    def propose(self, state, prefix, plan):
        return Draft([[5] * length for length in plan.lengths])


class Watching(Guessing):
    def observe(self, state, scores, draft, verdict):
        assert scores.logits().shape[:2] == (len(draft.tokens), max(map(len, draft.tokens)) + 1)


class Glancing(Guessing):
    traits, blind = Traits(wants=Want(features=True, logits=False)), 0

    def observe(self, state, scores, draft, verdict):
        assert scores.features().shape[:2] == (len(draft.tokens), max(map(len, draft.tokens)) + 1)
        if "logits" not in scores.results:  # of a call that may have screened them
            Glancing.blind += 1
            with pytest.raises(RuntimeError, match=r"or `Traits\.wants`"):
                scores.logits()


@torch.inference_mode()
@pytest.mark.parametrize("drafter", [Guessing, Watching, Glancing])
def test_a_pass_of_which_a_drafter_observes_logits_has_them_all(screens, monkeypatch, drafter):
    screened, run, Glancing.blind = [], Batch.run, 0
    monkeypatch.setattr(
        Batch,
        "run",
        lambda self, times: (run(self, times), any(self.draft.tokens) and screened.append(self.call.screened_passes))[0],
    )
    roles = drafter(), roles_of(True, "int8")[1]
    screens(roles, True)
    both(roles, [replace(each, scores=False) for each in requests_of(5, seed=1)], controllers(4, 1), 1)
    assert len(screened) > 5 and any(screened) == (drafter is not Watching) and (drafter is Glancing) == (Glancing.blind > 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_verifiers_have_a_plane(screens, dtype):
    drafter, verifier = roles_of(True, dtype)
    assert verifier.model.stack.output.plane and drafter.model.stack.output.plane is None
