"""Drafter window: drafts of the verifier itself, on a budget of its cache; and passes that read a selection of it."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from conftest import ROOT, make_verifier
from reference import greedy_all
from support import SHAPES, SYMBOLS, WORDS, load, make_tilt, outputs_of, sentences, standing, tilted_verifier
from tapes import Tapes
from test_blocks import model_with
from test_kernels import DTYPES, on_kernels, wide_verifier

from specdec_plugins import Translator
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.backends import Reading, Visible
from specdec_plugins.decoding.backends.cpu import model as kernels
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.budget import around, likeliest
from specdec_plugins.decoding.drafters import PairFacts, without_weights
from specdec_plugins.decoding.drafters.window import WindowDrafter
from specdec_plugins.decoding.loading import checked
from specdec_plugins.decoding.options import CHOICES, Budget, Sampling
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter
from specdec_plugins.decoding.values import Draft, Verdict, Want, uniform
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.settings import Settings

KERNELS = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
WHOLE = 64  # positions: more than any source or output here has
BUDGETS = [Budget(positions, sinks, choice) for choice in CHOICES for positions, sinks in ((1, 0), (6, 2), (WHOLE, 4))]


def requests_of(sources, **options):
    return [Request(index, source, 24, seeds=[index], **options) for index, source in enumerate(sources)]


@cache
def of_fairseq():
    """A model of fairseq's, its settings, and what it says to sources longer and shorter than the budgets."""
    model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    tilt, sources = make_tilt(0, 0.0), sentences(8, 0, longest=20)
    return model, args, tilt, sources, greedy_all(model.double(), sources, [24] * 8, tilt)


def exact_on_pytorch(budget, runner):
    """In float64, against fairseq's own model: ragged drafts, refills, ends."""
    model, args, tilt, sources, expected = of_fairseq()
    verifier = tilted_verifier(load((model, args), runner=runner)[0], tilt)
    for rows, lengths in ((1, [4]), (4, [5, 0, 2, 7])):
        outputs, stats = outputs_of(verifier, WindowDrafter(verifier.model, budget), requests_of(sources), lengths, rows)
        assert outputs == expected
        assert stats.drafted and (stats.accepted == stats.drafted or budget.positions < WHOLE)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_exact_on_pytorch(budget):
    """With a budget that covers everything, every drafted token is the verifier's own."""
    exact_on_pytorch(budget, EAGER)


def test_exact_in_recorded_passes():
    exact_on_pytorch(Budget(6, 2, "mass"), Tapes())


@KERNELS
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_on_the_kernels(dtype):
    """Against the verifier alone; greedy, and sampled by the coupled rule; in batches of any size."""
    model, _ = on_kernels(wide_verifier(**SHAPES["pre-norm"]), dtype=dtype)
    verifier, sources = ModelVerifier(model), sentences(6, seed=6, longest=40)
    for sampling in (None, Sampling(0.4)):
        requests = requests_of(2 * sources if sampling else sources, sampling=sampling)  # rows that share a source
        expected, _ = outputs_of(verifier, NoDrafter(), requests, [0], 5)
        for budget in BUDGETS:
            for rows, lengths in ((1, [4]), (6, [6, 0, 3])):
                outputs, stats = outputs_of(verifier, WindowDrafter(model, budget), requests, lengths, rows)
                assert outputs == expected, (budget, rows)
                assert stats.drafted and (stats.accepted == stats.drafted or budget.positions < WHOLE or sampling)


# ---- passes over visible positions


def backends():
    """A model in float64 on PyTorch, and others on the kernels."""
    yield load(wide_verifier(**SHAPES["pre-norm"]), dtype=torch.float64)[0]
    if compiled.library():
        for dtype in DTYPES:
            yield on_kernels(wide_verifier(**SHAPES["pre-norm"]), dtype=dtype)[0]


@torch.inference_mode()
def test_a_pass_reads_what_is_visible_and_nothing_else():
    """Other entries may hold anything; any visible one changes the result. If everything is visible, nothing changes."""
    sources, outputs = [[5] * 20 + [2], [6, 7, 8, 2]], [[5, 6, 7, 8, 9, 10, 11, 12], [9]]
    chosen = torch.tensor([[0, 3, 4, 17, 20], [0, 2, 4, 5, 6]])  # of the second source, positions 0 and 2
    tokens, places = [[11, 12], [13, 14]], [9, 2]
    for model in backends():

        def logits(visible, change=None, model=model):
            state, prefix = standing(ModelVerifier(model), sources, [[], []])
            ModelVerifier(model).score(state, prefix, Draft(outputs)).logits()
            if change is not None:
                change(tensor(state.cache.data), tensor(state.sources.cache.data))
            return tensor(model.read(state, Reading(tokens, places, visible=visible)).logits())[:2].clone()

        def far(cache, memory):
            """All that is not visible: of the target the first two and the last three, for either query, are."""
            cache[:, 0, 2:7] = 50
            for row, seen in enumerate(([0, 3, 4, 17, 20], [0, 2])):
                memory[:, row, [place for place in range(len(sources[row])) if place not in seen]] = 50

        visible = Visible(2, 3, chosen)
        expected = logits(visible)
        assert torch.equal(expected, logits(visible, far))
        assert not torch.equal(expected, logits(Visible(2, 64, chosen)))
        for row, place in ((0, 0), (0, 1), (0, 8), (1, 1)):
            found = logits(visible, lambda cache, _, row=row, place=place: cache[:, row, place].neg_())
            assert not torch.equal(found[row], expected[row]) and torch.equal(found[1 - row], expected[1 - row])
        for row, place in ((0, 17), (1, 2)):
            found = logits(visible, lambda _, memory, row=row, place=place: memory[:, row, place].neg_())
            assert not torch.equal(found[row], expected[row]) and torch.equal(found[1 - row], expected[1 - row])
        everything = Visible(0, 64, torch.arange(21).expand(2, -1).contiguous())
        torch.testing.assert_close(logits(everything), logits(None), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", pytest.param("kernels", marks=KERNELS)])
@torch.inference_mode()
def test_a_window_has_relative_positions(backend):
    """If everything is visible, the logits of a T5 are those without a window, of one row and of two."""
    model = model_with("relative positions")
    if backend == "torch":
        loaded = TorchModel(load_pair(model, None, dtype=torch.float64)[0])
    else:
        loaded = kernels.load(*checked(model, None), "float32", 2)[0]
    outputs = [[5, 6, 7, 8, 9, 10, 11, 12], [9]]
    for rows in (1, 2):

        def read(visible, rows=rows):
            state, prefix = standing(ModelVerifier(loaded), [[5] * 20 + [2], [6, 7, 8, 2]][:rows], [[], []][:rows])
            ModelVerifier(loaded).score(state, prefix, Draft(outputs[:rows])).logits()
            tokens, places = [[11, 12], [13, 14]][:rows], [9, 2][:rows]
            return tensor(loaded.read(state, Reading(tokens, places, visible=visible)).logits())[:rows].clone()

        everything = Visible(2, 64, torch.arange(21).expand(rows, -1).contiguous())
        torch.testing.assert_close(read(everything), read(None), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_attention_to_the_source():
    """Of each result, also where others are left out: the same on both backends, and 1 for each head and layer in all. The logits
    are what they are without."""
    sources, tokens = [[5, 6, 7, 8, 9] * 5 + [2], [6, 7, 8, 2]], [[4, 5, 6], [7]]
    found = []
    for model in backends():
        states = [standing(ModelVerifier(model), sources, [[], []])[0] for _ in range(3)]
        plain = model.read(states[0], Reading(tokens, [0, 0]))
        expected = tensor(plain.logits()).clone()
        with pytest.raises(RuntimeError, match="not asked for that"):
            plain.attention()
        whole = model.read(states[1], Reading(tokens, [0, 0], want=Want(attention=True)))
        for row, given in enumerate(tokens):
            torch.testing.assert_close(tensor(whole.logits())[row, : len(given)], expected[row, : len(given)], rtol=0, atol=1e-12)
        masses = [
            tensor(whole.attention())[row, : len(tokens[row]), : len(source)].double() for row, source in enumerate(sources)
        ]
        for mass in masses:
            torch.testing.assert_close(mass.sum(1), torch.full((len(mass),), 2 * 8.0, dtype=torch.float64), rtol=1e-4, atol=1e-4)
        last = tensor(model.read(states[2], Reading(tokens, [0, 0], [2, 0], want=Want(attention=True))).attention())
        for row, mass in enumerate(masses):
            torch.testing.assert_close(last[row, 0, : len(sources[row])].double(), mass[-1], rtol=0, atol=1e-6)
        found.append(masses)
    for one, other in zip(found[0], found[-len(DTYPES)]):  # in float64 and, on the kernels, float32
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@KERNELS
@torch.inference_mode()
def test_attention_of_a_tree_is_that_of_its_paths():
    """On the kernels bit for bit."""
    sources, tokens, parents = [[5, 6, 7, 8, 9] * 5 + [2], [6, 7, 8, 2]], [[4, 5, 6, 7, 8], [7]], [[-1, 0, 0, 1], []]
    models = [load(wide_verifier(**SHAPES["pre-norm"]), dtype=torch.float64)[0]]
    models += [on_kernels(wide_verifier(**SHAPES["pre-norm"]), dtype=dtype)[0] for dtype in DTYPES]
    for model in models:
        with pytest.raises(RuntimeError, match="not asked for that"):
            model.read(standing(ModelVerifier(model), sources, [[], []])[0], Reading([[4], [5]], [0, 0])).attention()
        tree, chain = (standing(ModelVerifier(model), sources, [[], []])[0] for _ in range(2))
        found = tensor(model.read(tree, Reading(tokens, [0, 0], parents=parents, want=Want(attention=True))).attention()).clone()
        path = tensor(model.read(chain, Reading([[4, 5, 6, 8], [7]], [0, 0], want=Want(attention=True))).attention())
        tolerance = 1e-9 if model is models[0] else 0
        torch.testing.assert_close(found[0, [0, 1, 2, 4], :26], path[0, :4, :26], rtol=0, atol=tolerance)
        torch.testing.assert_close(found[1, 0, :4], path[1, 0, :4], rtol=0, atol=tolerance)


# ---- which positions are chosen


def test_chosen_positions():
    lengths, centres = np.array([30, 30, 30, 7, 3]), np.array([0, 15, 29, 5, 1])
    assert around(centres, lengths, Budget(6, 2)).tolist() == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 13, 14, 15, 16],
        [0, 1, 26, 27, 28, 29],
        [0, 1, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5],
    ]
    # Also where many positions have one mass, and where a source ends within a page.
    for budget, length, size in itertools.product((1, 6, 9, 16, 70), (1, 5, 9, 17, 90), (90, 203)):
        masses = np.zeros((1, size), np.float32)
        masses[:, :length] = np.random.default_rng(length).integers(1, 4, (1, length))
        lengths = np.array([length])
        alone, beside = (likeliest(each, lengths, budget)[0].tolist() for each in (masses[:, :length], masses))
        assert [place for place in alone if place < length] == [place for place in beside if place < length]


class Seen:
    """A pass whose attention is known."""

    def __init__(self, masses):
        self.known = np.array(masses, np.float32)

    def attention(self):
        return self.known


class Nothing:
    """A verifier that is not asked."""

    host = staticmethod(lambda values: values)


@pytest.mark.parametrize(
    "choice, then",
    [("mass", [0, 1, 4, 5, 6]), ("recent", [0, 3, 4, 5, 6])],  # by mass 0 and 5, with their neighbours
)
def test_positions_are_chosen_by_the_attention_after_the_last_accepted_token(choice, then):
    """In the first row after two tokens, in the second after none, whose source has two positions."""
    drafter = WindowDrafter(Nothing(), Budget(5, 1, choice))
    assert drafter.traits.wants.attention
    state = drafter.start(2, None)

    def chosen():
        rows = zip(state.chosen.positions.tolist(), state.chosen.lengths.tolist())
        return [[place for place in row if place < size] for row, size in rows]

    drafter.admit(state, Source([[5, 5, 5, 5, 5, 5, 2], [6, 2]], SYMBOLS))
    assert chosen() == [[0, 1, 2, 3, 4], [0, 1]]
    flat, unknown = [9.0] * 7, [torch.nan] * 5
    masses = [[flat, flat, [0.5, 0.4, 0.2, 0.1, 0, 0.9, 0.3]], [[0.0, 0.5, *unknown], flat, flat]]
    drafter.observe(state, Seen(masses), Draft([[7, 8], [7, 8]]), Verdict([2, 0], [9, 9], [], []))
    assert chosen() == [then, [0, 1]]
    state.select([1, 0, 1])
    assert chosen() == [[0, 1], then, [0, 1]]


class Reads:
    """A model that writes down what passes are told to read."""

    def __init__(self, model):
        self.model, self.visible = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def read(self, state, reading):
        self.visible.append(reading.visible)
        return self.model.read(state, reading)


@torch.inference_mode()
def test_every_pass_reads_the_positions_chosen_last():
    """Those of the verifier's attention after the last accepted token; a fork's are its row's."""
    sources = [[5] * 20 + [2], [6, 7, 8, 2]]
    verifier = ModelVerifier(load(wide_verifier(**SHAPES["pre-norm"]), dtype=torch.float64)[0])
    model = Reads(verifier.model)
    drafter = WindowDrafter(model, Budget(5, 1, "recent"))
    judging, prefix = standing(verifier, sources, [[], []])
    state = drafter.start(2, judging)
    drafter.admit(state, Source(sources, SYMBOLS))
    drafter.propose(state, prefix, uniform(2, 3))
    assert model.visible and all((sinks, window) == (1, 4) for sinks, window, _ in model.visible)
    assert all(chosen.tolist() == [[0, 1, 2, 3, 4]] * 2 for _, _, chosen in model.visible)
    draft = Draft([[7, 8], [9]])
    scores = verifier.score(judging, prefix, draft, drafter.traits.wants)
    drafter.observe(state, scores, draft, Verdict([2, 0], [9, 9], [], []))
    best = tensor(scores.attention())[0, 2].argmax().item(), tensor(scores.attention())[1, 0, :4].argmax().item()
    expected = [[0, *range(begin, begin + 4)] for begin in (max(1, min(best[0] - 2, 17)), max(1, min(best[1] - 2, 0)))]
    model.visible.clear()
    drafter.propose(state, prefix, uniform(2, 3))
    assert model.visible and all(chosen.tolist() == expected for _, _, chosen in model.visible)
    state.select([1, 0, 1])
    assert state.chosen.visible.sources.tolist() == [expected[1], *expected]


@pytest.mark.parametrize("budget, page", [(7, 1), (8, 2), (16, 4), (70, 16), (128, 16)])
def test_pages_of_the_largest_attention_are_chosen_whole(budget, page):
    masses, lengths = np.random.default_rng(budget).random((3, 203), np.float32), np.full(3, 203)
    for row, chosen in zip(masses, likeliest(masses, lengths, budget).tolist()):
        pages = sorted(range(0, 203, page), key=lambda first: -row[first : first + page].sum())[: budget // page]
        whole = [place for first in sorted(pages) for place in range(first, first + page) if place < 203]
        assert chosen == whole + [203] * (budget - len(whole))
    assert likeliest(masses[:, :budget], lengths.clip(max=budget), budget).tolist() == [list(range(budget))] * 3


def test_it_is_told_its_verifier_and_budget():
    assert Settings(draft_with="window").budget == Budget() == Budget(128, 4, "mass")
    with pytest.raises(ValueError, match="drafter 'window' drafts with the verifier and needs it loaded"):
        without_weights("window", PairFacts(SYMBOLS, [], "", WORDS))
    how = {"draft_with": "window", "kv_budget": 5, "sinks": 1, "kv_choice": "recent", "block_size": 3}
    lines = ["A man is playing a guitar in the street while two dogs run through the snow.", "A dog runs."]
    demo = ROOT / "data" / "demo.en-de"
    fast, plain = (Translator.from_pretrained(demo, dtype="int8", **each) for each in (how, {"strategy": "ar"}))
    assert fast.engine.roles.drafter.budget == Budget(5, 1, "recent")
    assert [each.text for each in fast.translate(lines)] == [each.text for each in plain.translate(lines)]
    assert 0 < fast.stats.accepted < fast.stats.drafted
    request = fast.engine.request(0, [5, 2])
    assert fast.engine.roles.drafter.bytes_for(request) == 5 * 8
