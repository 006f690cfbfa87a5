"""Drafters with a cache of their own that read a budget of it: outputs stay the verifier's, what is not chosen is not read."""

import pytest
import torch
from conftest import ROOT
from random_pair import Shape, random_pair
from reference import greedy
from support import DRAFTERS, SHAPES, SYMBOLS, WORDS, Lengths, check_sums, load, long_but, make_pair, run, sentences, standing
from tapes import Tapes
from test_kernels import DTYPES, on_kernels, wide_verifier
from test_trained_drafters import backends
from test_trained_drafters import make_pair as trained_pair

from specdec_plugins import Translator
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.options import CHOICES, Budget, Sampling, Tree
from specdec_plugins.decoding.roles import NoDrafter
from specdec_plugins.decoding.values import Draft, Request, Source, Want, uniform
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.settings import Settings

DEMO = ROOT / "data" / "demo.en-de"
WHOLE = 64  # positions: more than any source or output here has
BUDGETS = [Budget(positions, sinks, choice) for choice in CHOICES for positions, sinks in ((1, 0), (6, 2), (WHOLE, 4))]
TINY = Shape(2, 1, 64, 96, 4, vocabulary=WORDS + 4, successor_width=32, positions=128)


def requests_of(sources, **options):
    return [Request(index, source, 24, seeds=[index], **options) for index, source in enumerate(sources)]


def decode(verifier, drafter, requests, lengths, rows, tree=None):
    """Outputs and their steps, in the order of the requests."""
    found, _ = run(verifier, drafter, requests, lengths, rows, ragged=True, tree=tree, check=check_sums)
    return [each.tokens for each in found], [each.steps for each in found]


def exact_on_pytorch(budget, runner):
    """In float64, against fairseq's own model: chains and trees, sources longer and shorter than the budget, refills, ends."""
    (model, _), (verifier, plain), tilt = make_pair(drafter=DRAFTERS["successor"], runner=runner, **SHAPES["pre-norm"])
    sources = sentences(8, 0, longest=20)
    expected = [greedy(model, source, 24, tilt) for source in sources]
    drafter = CausalBlockDrafter(plain.model, budget)
    for rows, lengths, tree in ((1, [4], None), (4, [5, 0, 2, 7], None), (4, [3], Tree(7))):
        outputs, steps = decode(verifier, drafter, requests_of(sources), lengths, rows, tree)
        assert outputs == expected and any(step.accepted for row in steps for step in row)
        whole = decode(verifier, plain, requests_of(sources), lengths, rows, tree)[1]
        assert (steps == whole) == (budget.positions == WHOLE)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_exact_on_pytorch(budget):
    """A budget of everything drafts what is drafted without one, and a smaller one something else."""
    exact_on_pytorch(budget, EAGER)


def test_exact_in_recorded_passes():
    exact_on_pytorch(Budget(6, 2, "mass"), Tapes())


def pair_of(name, dtype, budget=None):
    """Drafter and verifier with random weights."""
    if name == "small":
        return trained_pair("small", dtype, budget=budget)
    return assemble(*random_pair(TINY), dtype=dtype, threads=1, budget=budget)


@backends
@pytest.mark.parametrize("name", long_but(["block_causal", "small"], "small"))
def test_exact_and_alike_in_every_batch(name, dtype):
    """Outputs are the verifier's, greedy and sampled; drafts are those of a sentence alone, and with a budget of everything those
    without one, which the native loop makes of `block_causal`."""
    sources = sentences(5, seed=6, longest=40)
    for sampling in (None, Sampling(0.6)):
        requests = requests_of(2 * sources if sampling else sources, sampling=sampling, min_length=8)  # some share a source
        plain, verifier = pair_of(name, dtype)
        expected, _ = decode(verifier, NoDrafter(), requests, [0], 5)
        _, whole = decode(verifier, plain, requests, [4], 6)
        for budget in (Budget(1, 0, "recent"), Budget(6, 2, "recent"), Budget(9, 2, "mass"), Budget(WHOLE, 4, "mass")):
            drafter, verifier = pair_of(name, dtype, budget)
            alone = decode(verifier, drafter, requests, [4], 1)
            assert alone == decode(verifier, drafter, requests, [4], 6) and alone[0] == expected
            assert (alone[1] == whole) == (budget.positions == WHOLE)
            assert decode(verifier, drafter, requests, [6, 0, 3], 5)[0] == expected


class Reads:
    """A model that writes down what passes are told to read."""

    def __init__(self, model):
        self.model, self.visible = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def read(self, state, reading):
        self.visible.append(reading.visible)
        return self.model.read(state, reading)


def test_every_pass_reads_the_positions_chosen_last():
    """Those of the verifier's attention after the last accepted token; a fork's are its row's."""
    (_, (verifier, plain), _), sources = make_pair(drafter=DRAFTERS["causal"]), [[5] * 20 + [2], [6, 7, 8, 2]]
    model = Reads(plain.model)
    drafter = CausalBlockDrafter(model, Budget(5, 1, "recent"))
    state, prefix = standing(drafter, sources, [[], []])
    judging, _ = standing(verifier, sources, [[], []])
    drafter.propose(state, prefix, uniform(2, 3))
    sinks, window, chosen = model.visible[-1]
    assert (sinks, window, chosen.tolist()) == (1, 4, [[0, 1, 2, 3, 4]] * 2)
    draft = Draft([[7, 8], [9]])
    scores = verifier.score(judging, prefix, draft, drafter.traits.wants)
    verdict = TopBetaTau()(scores, draft, prefix)._replace(accepted=[2, 0])
    drafter.observe(state, scores, draft, verdict)
    best = scores.attention()[0, 2].argmax().item(), scores.attention()[1, 0, :4].argmax().item()
    drafter.propose(state, prefix, uniform(2, 3))
    begins = [max(1, min(place - 2, len(source) - 4)) for place, source in zip(best, sources)]
    expected = [[0, *range(begin, begin + 4)] for begin in begins]
    assert model.visible[-1].sources.tolist() == expected
    state.select([1, 0, 1])
    assert state.chosen.positions.tolist() == [expected[1], *expected]
    assert state.chosen.lengths.tolist() == [4, 21, 4]
    assert drafter.bytes_for(Request(0, sources[0], 9)) == plain.bytes_for(Request(0, sources[0], 9)) + 5 * 8


@pytest.mark.skipif(not binding.library(), reason="the kernels were not compiled for this machine")
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
        found = model.read(tree, Reading(tokens, [0, 0], parents=parents, want=Want(attention=True))).attention().clone()
        path = model.read(chain, Reading([[4, 5, 6, 8], [7]], [0, 0], want=Want(attention=True))).attention()
        tolerance = 1e-9 if model is models[0] else 0
        torch.testing.assert_close(found[0, [0, 1, 2, 4], :26], path[0, :4, :26], rtol=0, atol=tolerance)
        torch.testing.assert_close(found[1, 0, :4], path[1, 0, :4], rtol=0, atol=tolerance)


def test_options(tmp_path):
    assert Settings().budget is None and Settings(draft_with="window").budget == Budget()
    assert Settings(kv_budget=128).budget == Budget() and Settings(kv_budget=9, sinks=2).budget == Budget(9, 2)
    with pytest.raises(ValueError, match="drafter 'medusa' does not support kv_budget; block_causal and small do"):
        trained_pair("medusa", "float32", budget=Budget())
    with pytest.raises(ValueError, match="kv_budget is supported only by drafters window, block_causal, small"):
        Translator.from_pretrained(DEMO, NoDrafter(), kv_budget=8)
    lines = ["A man is playing a guitar in the street while two dogs run through the snow.", "A dog runs."]
    plain = Translator.from_pretrained(DEMO, dtype="int8", strategy="ar").translate(lines)
    drafted = []
    for how in ({}, {"kv_budget": 5, "sinks": 1}, {"kv_budget": WHOLE}):
        tree = {"tree": 6} if len(how) == 2 and "sinks" in how else {}
        for more in ({"block_size": 3}, {"block_size": 3, **tree}):
            translator = Translator.from_pretrained(DEMO, dtype="int8", **how, **more)
            assert [each.text for each in translator.translate(lines)] == [each.text for each in plain]
            assert 0 < translator.stats.accepted <= translator.stats.drafted
        drafted.append([result.steps for result in translator.translate(lines)])
    assert drafted[0] == drafted[2] != drafted[1]
    auto = Translator.from_pretrained(DEMO, dtype="int8", kv_budget=8)
    assert [each.text for each in auto.translate(lines)] == [each.text for each in plain]


def test_without_a_budget_the_loop_is_native_and_keeps_no_attention():
    if not binding.library():
        pytest.skip("the kernels were not compiled for this machine")
    for budget, native in ((None, True), (Budget(8, 1), False)):
        drafter, verifier = pair_of("block_causal", "float32", budget)
        session = Session(drafter, verifier, TopBetaTau(), Lengths([3]), None, 4)
        assert (session.native.drafter is not None) == native
        assert drafter.traits.wants.attention == (budget is not None)
        drafter.admit(session.drafting, Source([[5, 6, 2]], SYMBOLS))
