"""A screen of a drafter's output layer: its best logits are exact, and nothing else that a pass or a decoder computes changes.

V vocabulary, D width, N rows.
"""

import math
from ctypes import byref
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from naive import side_of
from random_pair import Shape, random_pair
from support import read_call
from test_kernels import variant  # noqa: F401
from test_native_loop import both, controllers, requests_of
from test_native_loop import run as native_run

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import drafts
from specdec_plugins.decoding.backends.cpu import model as cpu
from specdec_plugins.decoding.backends.cpu.binding import Engine, NativeLinear, Projection, Screen, Stack
from specdec_plugins.decoding.options import Sampling
from specdec_plugins.formats.packed import TILE

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
WIDTH, RANK, EXACT = 64, 32, 16  # EXACT: panels, as in output.h
LARGE, SMALL = 40 * TILE + 7, 9 * TILE + 1  # vocabularies, of more panels and of fewer


def weights(vocabulary, noise=0.02):
    """(V, D) nearly of rank 24, and (V,)."""
    generator = torch.Generator().manual_seed(vocabulary)
    low = torch.randn(vocabulary, 24, generator=generator) @ torch.randn(24, WIDTH, generator=generator) / 24**0.5
    return low + noise * torch.randn(vocabulary, WIDTH, generator=generator), torch.randn(vocabulary, generator=generator)


class Layer:
    """Logits of hidden states (N, D), which are the embeddings of a stack without layers, each a sentence of its own."""

    def __init__(self, vocabulary, screened, states, threads=1):
        weight, bias = weights(vocabulary)
        self.vocabulary, self.engine = vocabulary, Engine(threads)
        self.projection = NativeLinear(weight, bias, "int4")
        self.screen = Screen(weight, bias, RANK) if screened else None
        self.stack = Stack(
            self.engine,
            side_of(layers=1, heads=2, width=WIDTH, inner_width=WIDTH, max_positions=1),
            states,
            torch.zeros(1, WIDTH),
            output=Projection(self.projection, screen=self.screen),
        )

    def __call__(self, rows):
        cache, count = torch.zeros(1), len(rows)
        logits = torch.full((count, 1, self.vocabulary), math.nan)
        tokens, zero, caches = [[row] for row in rows], [0] * count, (cache.data_ptr(), 0, 0) * 2
        call, _kept = read_call(self.stack, 1, caches, tokens, zero, zero, range(count), zero, zero, logits=logits.data_ptr())
        self.stack.library.specdec_read(self.engine.pointer, byref(call))
        return logits[:, 0]


def states(count):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("vocabulary", [LARGE, SMALL])
def test_logits_of_the_best_panels_are_exact(vocabulary, variant):  # noqa: F811
    """Those with the largest approximations; the others keep these. So the best token is the right one."""
    given, panels = states(50), -(-vocabulary // TILE)
    exact, layer = Layer(vocabulary, False, given)(range(50)), Layer(vocabulary, True, given)
    found = layer(range(50))
    near = torch.from_numpy(layer.screen.weights(layer.engine, layer.screen.basis(layer.engine, given)))
    assert 0.01 < (near - exact).abs().mean() / exact.abs().mean() < 0.2
    best = F.pad(near, (0, panels * TILE - vocabulary), value=-math.inf).view(50, panels, TILE).amax(2)
    chosen = torch.zeros(50, panels).scatter(1, best.topk(min(panels, EXACT), 1).indices, 1).bool()
    assert torch.equal(found, torch.where(chosen.repeat_interleave(TILE, 1)[:, :vocabulary], exact, near))
    assert torch.equal(found.argmax(1), exact.argmax(1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_logits_do_not_depend_on_what_else_is_in_the_pass(threads, variant):  # noqa: F811
    """Bit for bit: few rows share products between threads, many are divided between them."""
    given = states(50)
    one = Layer(LARGE, True, given)
    alone = torch.cat([one([row]) for row in range(50)])
    layer = Layer(LARGE, True, given, threads)
    for rows in ([3], [0, 49], range(5), range(50)):
        assert torch.equal(layer(rows), alone[[*rows]])


@pytest.mark.parametrize("sampled", [Screen.SAMPLED, 100])
def test_the_basis_is_what_tells_tokens_apart(sampled, monkeypatch):
    """Also that of so large a layer that it is computed from some rows. int4 weights err by a tenth."""
    monkeypatch.setattr(Screen, "SAMPLED", sampled)
    (weight, _), x, engine = weights(LARGE, noise=0), states(20), Engine(1)
    screen, expected = Screen(weight, None, RANK), x @ weight.T
    found = torch.from_numpy(screen.weights(engine, screen.basis(engine, x)))
    assert (found - expected).abs().mean() < 0.13 * expected.abs().mean()


@pytest.mark.parametrize("scale", [0.0, 1e25])
def test_weights_whose_squares_are_no_numbers(scale):
    weight = weights(LARGE)[0] * scale
    screen, engine = Screen(weight, None, RANK), Engine(1)
    assert np.isfinite(screen.basis(engine, states(2))).all()


@pytest.fixture
def roles(monkeypatch):
    """A random pair whose drafter has a screen, and tokens whose logits it approximates."""
    monkeypatch.setattr(
        cpu, "screen_of", lambda output, dtype, engine: Screen(output.weight, output.bias, RANK) if dtype == "int4" else None
    )

    def make(threads=1):
        shape = Shape(layers=2, drafter_layers=1, width=WIDTH, inner=96, heads=2, vocabulary=LARGE, positions=64)
        verifier, drafter = random_pair(shape)
        made = assemble(verifier, drafter, dtype="int8", threads=threads)
        assert made[0].model.stack.output.screen and not made[1].model.stack.output.screen
        return made

    return make


@torch.inference_mode()
def test_drafts_in_the_native_loop(roles):
    """They are those of the session's own iterations, whether greedy or sampled by either rule."""
    accepted = 0
    for rows, longest in ((1, 7), (3, 4), (8, 5)):
        plain = requests_of(14, seed=rows)
        coupled, rejecting = (
            [replace(each, tolerance=None, seeds=[each.index], sampling=Sampling(0.3, rule=rule)) for each in plain]
            for rule in ("coupled", "rejection")
        )
        for requests in (plain, coupled, rejecting):
            outputs, *_ = both(roles(), requests, controllers(longest, rows, least=0.01), rows)
            accepted += sum(step.accepted for output in outputs for step in output.steps)
    assert accepted > 30


@torch.inference_mode()
def test_drafts_do_not_depend_on_threads(roles, monkeypatch):
    found = []
    for threads, least in ((1, drafts.WORTH_SHARING), (3, drafts.WORTH_SHARING), (3, 1)):
        monkeypatch.setattr(drafts, "WORTH_SHARING", least)
        for rows in (1, 2, 7):
            found.append(native_run(roles(threads), requests_of(12, seed=rows), next(controllers(6, rows)), rows, True)[:2])
    assert found[:3] == found[3:6] == found[6:]


def test_only_large_layers_of_wide_drafters_have_one():
    for width, vocabulary, screened in ((64, 4200, False), (512, 4096, False), (512, 4097, True)):
        pair = random_pair(Shape(layers=1, drafter_layers=1, width=width, inner=64, heads=2, vocabulary=vocabulary, positions=8))
        drafter, verifier = assemble(*pair, dtype="int8", threads=1)
        assert bool(drafter.model.stack.output.screen) == screened and verifier.model.stack.output.screen is None
