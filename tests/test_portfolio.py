"""Several drafters as one: the output is the verifier's, and the drafts are those of the drafter that is right."""

import json
from itertools import chain

import pytest
from conftest import ROOT, make_verifier
from support import (
    EOS,
    SHAPES,
    SYMBOLS,
    WORDS,
    Knowing,
    Tilted,
    commit,
    load,
    make_tilt,
    sentences,
    tilted_verifier,
)
from test_drafters import COPIES, command, prefix_of, run
from test_kernels import on_kernels, wide_drafter, wide_verifier

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.drafters import PairFacts, agreeing
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.drafters.none import NoDrafter
from specdec_plugins.decoding.options import Gate, Sampling
from specdec_plugins.decoding.portfolio import Portfolio
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Request, Source, Verdict, uniform
from specdec_plugins.settings import OptionError, Settings

DEMO = ROOT / "data" / "demo.en-de"
KERNELS = pytest.mark.skipif(not binding.library(), reason="the kernels were not compiled for this machine")
FACTS = PairFacts(SYMBOLS, COPIES, "", WORDS + 4)


class Watched:
    """A drafter that says what it was asked for, and what it observed."""

    def __init__(self, drafter):
        self.drafter, self.asked, self.observed = drafter, [], []

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def propose(self, state, prefix, plan):
        self.asked.append(list(plan.lengths))
        return self.drafter.propose(state, prefix, plan)

    def observe(self, state, scores, draft, verdict):
        self.observed.append((draft.tokens, verdict.accepted))
        self.drafter.observe(state, scores, draft, verdict)


def block_pair(dtype):
    """A tilted verifier, and the role of a causal block drafter."""
    verifier, drafter = wide_verifier(), wide_drafter(arch="block_causal")
    model, drafting = load(verifier, drafter) if dtype == "float64" else on_kernels(verifier, drafter, dtype)
    tilt = make_tilt(3, -1.0)
    tilt = tilt.double() if dtype == "float64" else tilt.float()
    return tilted_verifier(model, tilt), CausalBlockDrafter(Tilted(drafting, tilt))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("int8", marks=KERNELS)])
def test_the_output_is_the_verifiers(dtype):
    """Greedy and coupled, with refills, plain steps between, and ragged drafts; all drafters observe all drafts; each is used."""
    verifier, model = block_pair(dtype)
    sources, how = sentences(12, seed=6), Sampling(0.7)
    requests = [Request(i, source, 18, sampling=[None, how][i % 2], seed=i) for i, source in enumerate(sources)]
    expected, _ = run(verifier, NoDrafter(), requests, [0], 5)
    for rows, lengths in ((1, [4]), (5, [6, 0, 3])):
        members = [Watched(drafters.without_weights(name, FACTS)) for name in ("ngram", "lookahead")]
        asked = Watched(model)
        outputs, stats = run(verifier, Portfolio(members, asked), requests, lengths, rows)
        assert outputs == expected and stats.accepted > 10
        assert members[0].observed == members[1].observed == asked.observed
        assert sum(map(sum, members[0].asked)) > sum(map(sum, asked.asked)) > 0


def test_under_the_rejection_rule_the_model_drafts():
    """So that what a draft was drawn from is known of all rows: the output is that with the model alone."""
    verifier, model = block_pair("float64")
    how = Sampling(0.9, top_k=9, rule="rejection")
    requests = [Request(i, source, 14, sampling=how, seed=i) for i, source in enumerate(sentences(9, seed=8))]
    alone, _ = run(verifier, model, requests, [4, 2], 3)
    assert run(verifier, Portfolio([drafters.without_weights("ngram", FACTS)], model), requests, [4, 2], 3)[0] == alone


def test_the_drafter_that_is_right_is_taken():
    """Of two look-ups and a model; and the model is not asked where it does not promise more."""
    model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    loaded, _ = load((model.double(), args))
    verifier = tilted_verifier(loaded, make_tilt(3, -2.0, positions=1).expand(64, -1).double())
    requests = [Request(i, source, 30) for i, source in enumerate(sentences(16, seed=4))]
    outputs, _ = run(verifier, NoDrafter(), requests, [0], 4)

    def rate(errors, own):
        """Tokens a pass, and the share of iterations of a row for which the model was asked."""
        lookups = [Watched(Knowing(outputs, error)) for error in errors]
        asked = Watched(Knowing(outputs, own))
        found, stats = run(verifier, Portfolio(lookups, asked), requests, [4], 4)
        assert found == outputs
        return stats.mean_accepted_length, sum(map(bool, chain(*asked.asked))) / stats.iterations

    lengths = {errors: rate(*errors) for errors in (((1.0, 0.1), 1.0), ((0.1, 1.0), 1.0), ((1.0, 1.0), 0.1), ((0.1, 1.0), 0.1))}
    tokens = [tokens for tokens, _ in lengths.values()]
    assert max(tokens) < 1.3 * min(tokens) and min(tokens) > 2
    asked = [share for _, share in lengths.values()]
    assert asked[2] > 0.8 and max(asked[0], asked[1], asked[3]) < 0.5


class Fixed(Drafter):
    """A look-up that expects the same text always."""

    def __init__(self, text, confidence=None):
        self.text, self.confidence = text, confidence

    def propose(self, state, prefix, plan):
        rows = [self.text[len(output) :][:length] for output, length in zip(prefix.outputs, plan.lengths)]
        return Draft(rows, confidence=self.confidence and [self.confidence[:length] for length in plan.lengths])


def test_rows_are_apart_and_drafts_not_taken_count():
    """Each row is drafted what was right there, also after the rows changed places."""
    texts = [[4 + number % 5 for number in range(99)], [14 + number % 3 for number in range(99)]]
    portfolio = Portfolio([Fixed(text) for text in texts])
    state = portfolio.start(2, None)
    portfolio.admit(state, Source([[4, EOS], [5, EOS]], SYMBOLS))
    prefix = prefix_of([[], []])
    for _ in range(12):
        tokens = portfolio.propose(state, prefix, uniform(2, 3)).tokens
        accepted, own = [], []
        for draft, text, output in zip(tokens, texts, prefix.outputs):
            accepted.append(agreeing(draft, text[len(output) :]))
            own.append(text[len(output) + accepted[-1]])
        portfolio.observe(state, None, Draft(tokens), Verdict(accepted, own, [[], []], [False, False]))
        commit(prefix, [[*draft[:count], token] for draft, count, token in zip(tokens, accepted, own)])
    assert accepted == [3, 3] and state.right == [[True, False], [False, True]]
    state.select([1, 0, 1])
    prefix.select([1, 0, 1])
    outputs = prefix.outputs
    expected = [texts[number][len(output) :][:3] for number, output in zip((1, 0, 1), outputs)]
    assert portfolio.propose(state, prefix, uniform(3, 3)).tokens == expected
    state.right[0][0] = True
    assert state.right[2] == [False, True]


def test_a_draft_is_judged_to_its_end():
    """By the tokens of several iterations: 5 6 of 5 6 7 8 are right; the drafts between are not judged, the next one is."""
    portfolio = Portfolio([Fixed([5, 6, 7, 8, 9]), Fixed([11])])
    state, learned = portfolio.start(1, None), []
    portfolio.admit(state, Source([[4, EOS]], SYMBOLS))
    portfolio.expected[0].learn = learned.append
    prefix = prefix_of([[]])
    for token in (5, 6, 4, 8):
        tokens = portfolio.propose(state, prefix, uniform(1, 4)).tokens
        portfolio.observe(state, None, Draft(tokens), Verdict([0], [token], [[]], [False]))
        commit(prefix, [[token]])
    assert learned == [([5, 6, 7, 8], 2, False, 0)]
    assert state.judged[0][0] == ([8, 9], 1, False, 3)


@pytest.mark.parametrize("between", [[], [6], [6, 7, 8], [6, 7, 8, 9], [6, 4], [4, 7]])
def test_tokens_of_iterations_without_a_proposal_count(between):
    """A draft goes on to be judged by what came between, as if it had been told."""
    portfolio = Portfolio([Fixed([5, 6, 7, 8, 9])])
    state, learned = portfolio.start(1, None), []
    portfolio.admit(state, Source([[4, EOS]], SYMBOLS))
    portfolio.expected[0].learn = learned.append
    prefix = prefix_of([[]])
    tokens = portfolio.propose(state, prefix, uniform(1, 4)).tokens
    portfolio.observe(state, None, Draft(tokens), Verdict([0], [5], [[]], [False]))
    for token in (5, *between):
        commit(prefix, [[token]])
    portfolio.propose(state, prefix, uniform(1, 1))
    right = agreeing([5, 6, 7, 8], prefix.outputs[0])
    if right < 4 and right == len(prefix.outputs[0]):
        assert not learned and state.judged[0][0].agreed == right
    else:
        assert learned == [([5, 6, 7, 8], right, False, 0)] and state.judged[0][0] is None


class Told(Fixed):
    """Notes what it is told."""

    def __init__(self, text, follows):
        super().__init__(text)
        self.traits, self.told = Traits(follows=follows), []

    def observe(self, state, scores, draft, verdict):
        self.told.append(verdict.own)


def test_only_a_drafter_that_follows_is_told_of_iterations_for_which_it_was_not_asked():
    following, other = Told([5], True), Told([5], False)
    portfolio = Portfolio([following, other])
    state = portfolio.start(1, None)
    portfolio.admit(state, Source([[4, EOS]], SYMBOLS))
    prefix = prefix_of([[]])
    portfolio.observe(state, None, Draft([[]]), Verdict([0], [9], [[]], [False]))
    tokens = portfolio.propose(state, prefix, uniform(1, 1)).tokens
    portfolio.observe(state, None, Draft(tokens), Verdict([1], [7], [[]], [False]))
    portfolio.observe(state, None, Draft([[]]), Verdict([0], [8], [[]], [False]))
    assert following.told == [[9], [7], [8]] and other.told == [[7]]


def test_a_gate_cuts_only_the_models_drafts():
    portfolio = Portfolio([Fixed([])], Fixed([4, 8, 9, 10], [0.9, 0.5, 0.1]))
    state = portfolio.start(2, None)
    portfolio.admit(state, Source([[4, EOS]], SYMBOLS))
    plan = Plan([3], gate=Gate(0.0, 0.4))
    draft = portfolio.propose(state, prefix_of([[4]]), plan)
    assert draft.tokens == [[8, 9, 10]] and draft.cut(plan.gate).tokens == [[8, 9]]


def test_the_commands_name_several(capfd, tmp_path):
    """By the names of drafters, the folder's own among them or not."""
    (tmp_path / "in").write_text("A man is playing a guitar.\nTwo dogs run through the snow.\n")
    usual = ["--model", DEMO, "--input", tmp_path / "in", "--dtype", "int8", "--batch-size", 1, "--format", "json", "--quiet"]
    texts, committed = set(), []
    for names in ("block_causal+ngram", "recycling+ngram"):
        status, out, err = command(capfd, *usual, "--draft-with", names, "--block-size", 4)
        records = [json.loads(line) for line in out.splitlines()]
        assert (status, err) == (0, "") and {record["drafter"] for record in records} == {names}
        texts.add(tuple(record["text"] for record in records))
        committed.append(sum(record["accepted"] for record in records))
    assert len(texts) == 1 and committed[0] > committed[1]
    for names, message, status in (
        ("ngram+ngram", "--draft-with ngram+ngram names a drafter twice", 2), ("block+ngram", "'block' is no drafter", 1),
        ("block_causal+previous", "--hint is missing", 2), ("ngram+retrieval", "--datastore is missing", 2),
    ):  # fmt: skip
        found, _, err = command(capfd, *usual, "--draft-with", names)
        assert found == status and message in err and err.count("\n") == 1
    with pytest.raises(OptionError, match="tree does not go with several drafters"):
        Settings(draft_with="block_causal+ngram", tree=4)
