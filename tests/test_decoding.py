"""The engine against the oracle: whatever is drafted, batched, refused or cut, the output is the verifier's."""

import itertools
import random

import pytest
import torch
from conftest import make_verifier
from reference import draft_alone, greedy, greedy_all, log_probabilities, tolerant
from support import (
    DRAFTERS,
    EOS,
    SHAPES,
    WORDS,
    Knowing,
    Planned,
    check_balance,
    decode,
    load,
    long_but,
    make_pair,
    make_tilt,
    sentences,
    tilted_verifier,
)

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.torch.constraints import restrict
from specdec_plugins.decoding.backends.torch.tensors import prefix_tokens
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.prefix import Prefix, compacted
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import DeviceDraft, Draft, Iterations
from specdec_plugins.decoding.verifier import Unverified, accept_all


@pytest.mark.parametrize("shape", long_but(SHAPES, "post-norm"))
def test_output_is_the_verifiers_greedy_output(shape):
    """Hundreds of drafts: batch 1 to 9, block 1 to 30, any end, limits, drafters from random to perfect."""
    rng = random.Random(shape)
    cases = 0
    for seed in range(2):
        fairseq_model, args = make_verifier(seed=seed, words=WORDS, **SHAPES[shape])
        fairseq_model.double()
        model, _ = load((fairseq_model, args))
        for bias in (-9.0, 0.0, 2.0):
            sources = sentences(8, seed=rng.random())
            limits = [rng.randrange(1, 25) for _ in sources]
            tilt = make_tilt(seed, bias)
            unbounded = greedy_all(fairseq_model, sources, [limit + 1 for limit in limits], tilt)
            expected = [output[:limit] for output, limit in zip(unbounded, limits)]
            cut = [len(output) > limit for output, limit in zip(unbounded, limits)]
            verifier = tilted_verifier(model, tilt)
            for error, rows in zip((0.0, 0.2, 0.6, 1.0) * 2, rng.sample(range(1, 10), 8)):
                block = rng.choice([rng.randrange(1, 31), [rng.randrange(12) for _ in range(5)]])
                hypotheses, stats = decode(verifier, Knowing(expected, error), sources, limits, block, rows)
                assert [hypothesis.tokens for hypothesis in hypotheses] == expected
                assert [hypothesis.cut for hypothesis in hypotheses] == cut
                cases += len(sources)
                if error == 0.0:
                    assert stats.accepted == stats.drafted
            hypotheses, stats = decode(verifier, NoDrafter(), sources, limits, 0, 5)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert stats.mean_accepted_length == 1.0 and stats.drafted == 0
    assert cases >= 384


@pytest.mark.parametrize("shape", ["post-norm", "learned"])
def test_the_oracle_of_a_batch_is_the_oracle_of_each_sentence(shape):
    fairseq_model, _ = make_verifier(words=WORDS, **SHAPES[shape])
    sources, limits = sentences(9, seed=4), [1 + 2 * index for index in range(9)]
    for bias in (-9.0, 1.0):
        tilt = make_tilt(0, bias)
        expected = [greedy(fairseq_model.double(), source, limit, tilt) for source, limit in zip(sources, limits)]
        assert greedy_all(fairseq_model, sources, limits, tilt) == expected
    assert len(set(map(len, expected))) > 3


ARCHITECTURES = pytest.mark.parametrize("arch", ["block", "block_causal"])


@ARCHITECTURES
@pytest.mark.parametrize(("shape", "same_encoder"), [("post-norm", False), ("pre-norm", True), ("learned", False)])
def test_block_drafter_leaves_the_verifiers_output(shape, same_encoder, arch):
    for seed, bias in enumerate((-9.0, 1.0)):
        (plain, _), (verifier, drafter), tilt = make_pair(seed, same_encoder, bias, drafter={"arch": arch}, **SHAPES[shape])
        sources = sentences(5, seed=seed)
        limits = [4 + 3 * index for index in range(5)]
        expected = greedy_all(plain, sources, limits, tilt)
        for block, rows in ((1, 3), (5, 5), (25, 2)):
            hypotheses, stats = decode(verifier, drafter, sources, limits, block, rows)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert 0 < stats.accepted < stats.drafted or block == 1


@ARCHITECTURES
def test_adaptive_lengths_leave_the_verifiers_output(arch):
    """Drafts of any length, none, and sources that the drafter reads only when it is asked, after rows have moved."""
    (fairseq_model, _), (verifier, drafter), tilt = make_pair(bias=-1.0, drafter={"arch": arch})
    sources, limits = sentences(24, seed=3), [5 + index % 20 for index in range(24)]
    expected = greedy_all(fairseq_model, sources, limits, tilt)
    for rows in (1, 4):
        requests = [Request(index, tokens, limit) for index, (tokens, limit) in enumerate(zip(sources, limits))]
        stats, controller = DecodeStats(), Throughput(4)
        outputs = speculative_decode(Roles(drafter, verifier, TopBetaTau(), controller), requests, rows, stats)
        found = sorted(outputs, key=lambda each: each.index)
        assert [hypothesis.tokens for hypothesis in found] == expected
        check_balance(stats, found)
        assert sum(stats.lengths.values()) == stats.passes and stats.lengths[0] and len(stats.lengths) > 1


@pytest.mark.parametrize("kind", long_but(DRAFTERS, "block", "causal", "successor", "some tokens, successor"))
def test_strategy_drafter_is_the_plugins_model_alone(kind):
    """Whole blocks up to the limit, with eos in some of them."""
    for seed, bias in enumerate((-9.0, 0.5)):
        (_, plugin), (_, drafter), tilt = make_pair(seed, bias=bias, drafter=DRAFTERS[kind], shake=0.3)
        sources = sentences(4, seed=seed)
        for block in (1, 5):
            expected = [draft_alone(plugin, source, 12, block, tilt) for source in sources]
            hypotheses, stats = decode(Unverified(), drafter, sources, [12] * 4, block, 3, accept_all)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert stats.accepted == stats.drafted and stats.own_tokens == 0
            for hypothesis in hypotheses:
                assert hypothesis.cut == (hypothesis.steps[-1].drafted[-1] != EOS)
                assert hypothesis.token_scores is None


def test_a_drafters_output_does_not_depend_on_its_neighbours():
    """Every position of a block sees all of it, so a block must be as wide for a row near its limit as for the others."""
    (_, plugin), (_, drafter), tilt = make_pair(bias=-40.0)
    tilt *= 0.2  # little enough that the model itself decides
    sources, limits = sentences(9, seed=3), [3, 5, 8, 11, 13, 17, 18, 19, 23]
    expected = [draft_alone(plugin, source, limit, 6, tilt) for source, limit in zip(sources, limits)]
    for rows in (1, 4, 9):
        hypotheses, _ = decode(Unverified(), drafter, sources, limits, 6, rows, accept_all)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected


@ARCHITECTURES
def test_a_drafter_with_fewer_positions_than_the_verifier(arch):
    """It drafts where it can; from there on the verifier goes alone, and nothing more is offered."""
    for learned in (False, True):
        (fairseq_model, _), (verifier, drafter), tilt = make_pair(
            bias=-9.0, drafter={"max_target_positions": 9, "arch": arch}, decoder_learned_pos=learned
        )
        sources = sentences(6, seed=1)
        expected = greedy_all(fairseq_model, sources, [20] * 6, tilt)
        hypotheses, stats = decode(verifier, drafter, sources, [20] * 6, 4, 3)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected
        assert stats.drafted > 0
        for hypothesis in hypotheses:
            at = 0
            for step in hypothesis.steps:
                assert len(step.drafted) == max(0, min(4, 9 - at, 20 - at))
                at += step.accepted + 1


def test_a_drafter_alone_ends_where_its_positions_end():
    _, (_, drafter), _ = make_pair(bias=-9.0, drafter={"max_target_positions": 9})
    hypotheses, _ = decode(Unverified(), drafter, sentences(3, seed=1), [20] * 3, 4, 2, accept_all)
    assert all(len(hypothesis.tokens) == 9 and hypothesis.cut for hypothesis in hypotheses)


def test_tolerant_output_equals_one_sentence_at_a_time():
    """Drafts of good, but not always the best, tokens; each turn must be judged as the reference judges it."""
    rng = random.Random(0)
    seen = set()
    for seed, bias in enumerate((-9.0, 0.0, 2.0)):
        fairseq_model, args = make_verifier(seed=seed, words=WORDS, **SHAPES["pre-norm"])
        model, _ = load((fairseq_model.double(), args))
        tilt = make_tilt(seed, bias)
        ranked = tilt.argsort(-1, descending=True)
        verifier = tilted_verifier(model, tilt)
        for beta, tau, block in ((1, 9.0, 4), (2, 0.7, 3), (3, 1.5, 5), (3, float("inf"), 7), (5, 2.0, 2), (99, 1.0, 9)):
            sources = sentences(5, seed=rng.random())
            limits = [rng.randrange(1, 16) for _ in sources]
            plans = [[int(row[rng.choice([0, 0, 1, 2, 3])]) for row in ranked] for _ in sources]
            expected = [
                tolerant(fairseq_model, source, limit, plan, block, beta, tau, tilt)
                for source, limit, plan in zip(sources, limits, plans)
            ]
            rule = TopBetaTau(beta, tau)
            hypotheses, _ = decode(verifier, Planned(plans), sources, limits, block, rng.randrange(1, 8), rule)
            for hypothesis, (tokens, turns, cut) in zip(hypotheses, expected):
                assert hypothesis.tokens == tokens
                assert [(step.drafted, step.accepted, step.own) for step in hypothesis.steps] == turns
                assert hypothesis.cut == cut
                seen |= {(accepted, correction is None) for _, accepted, correction in turns}
    assert {accepted for accepted, _ in seen} >= set(range(6)) and (1, True) in seen


@pytest.mark.parametrize("block", [0, 4])
def test_token_scores_are_fairseqs(block):
    """Log-probabilities over the whole vocabulary, of what the rules of decoding forbid too; eos after a limit has its own."""
    fairseq_model, args = make_verifier(words=WORDS)
    model, _ = load((fairseq_model.double(), args))
    for bias in (-9.0, 1.0):
        tilt = make_tilt(0, bias)
        sources, limits = sentences(8, seed=1), list(range(1, 17, 2))
        expected = greedy_all(fairseq_model, sources, limits, tilt)
        hypotheses, _ = decode(tilted_verifier(model, tilt), Knowing(expected, 0.3), sources, limits, block, 3)
        for hypothesis, source, output in zip(hypotheses, sources, expected):
            scores = log_probabilities(fairseq_model, source, output, tilt)
            scores = scores.gather(1, torch.tensor([*output, EOS])[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(hypothesis.token_scores), scores.float(), rtol=1e-5, atol=1e-5)


def test_long_outputs():
    """Beyond what the buffers hold at first, while another row starts anew."""
    positions = 200
    fairseq_model, args = make_verifier(words=WORDS, max_target_positions=positions)
    model, _ = load((fairseq_model.double(), args))
    tilt = make_tilt(0, -9.0, positions)
    sources, limits = sentences(4, seed=1), [150, 70, 9, 66]
    expected = greedy_all(fairseq_model, sources, limits, tilt)
    for block, rows in ((7, 2), (30, 4)):
        hypotheses, _ = decode(tilted_verifier(model, tilt), Knowing(expected, 0.1), sources, limits, block, rows)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected


class Recorder(Knowing):
    """A drafter that writes down which sources come in, and how many rows are drafted for."""

    def __init__(self, outputs):
        super().__init__(outputs, error=0.5)
        self.admitted, self.batches = [], []

    def admit(self, state, source):
        self.admitted += source.sentences

    def propose(self, state, prefix, plan):
        self.batches.append(len(prefix))
        return super().propose(state, prefix, plan)


def test_rows_are_refilled_in_the_order_of_the_requests():
    fairseq_model, args = make_verifier(words=WORDS)
    model, _ = load((fairseq_model.double(), args))
    tilt = make_tilt(0, 0.0)
    sources, limits = sentences(23, seed=1), [1 + index % 9 for index in range(23)]
    expected = greedy_all(fairseq_model, sources, limits, tilt)
    for rows in (1, 4, 8, 23, 60):
        drafter = Recorder(expected)
        hypotheses, _ = decode(tilted_verifier(model, tilt), drafter, sources, limits, 2, rows)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected
        assert drafter.admitted == sources
        assert max(drafter.batches) == min(rows, 23)
    assert decode(tilted_verifier(model, tilt), Recorder([]), [], [], 2, 4)[1].passes == 0


def test_a_long_sentence_holds_nobody_back():
    """Each row goes on with the next sentence as soon as its own is finished; in wide batches, as soon as a quarter is free."""
    fairseq_model, args = make_verifier(words=WORDS)
    model, _ = load((fairseq_model.double(), args))
    tilt = make_tilt(0, -20.0)
    lengths = [50, *[1 + index % 7 for index in range(40)]]
    sources = sentences(len(lengths), seed=1)
    for rows in (1, 2, 4, 10):
        verifier = tilted_verifier(model, tilt)
        hypotheses, stats = decode(verifier, NoDrafter(), sources, lengths, 0, rows)
        assert [len(hypothesis.tokens) for hypothesis in hypotheses] == lengths
        free_at = [0] * rows
        for length in lengths:
            free_at[free_at.index(min(free_at))] += length + 1
        if rows <= 4:
            assert stats.passes == max(free_at)
        assert stats.passes <= max(51, stats.iterations / (0.75 * rows) + 8)


def test_outputs_come_as_they_finish():
    fairseq_model, args = make_verifier(words=WORDS)
    model, _ = load((fairseq_model.double(), args))
    requests = [Request(index, source, limit) for index, (source, limit) in enumerate(zip(sentences(5, 1), (30, 2, 9, 4, 5)))]
    verifier = tilted_verifier(model, make_tilt(0, -20.0))
    stats = DecodeStats()
    found = speculative_decode(Roles(NoDrafter(), verifier, TopBetaTau(), FixedLength(0)), requests, 5, stats)
    order = [(hypothesis.index, stats.passes) for hypothesis in found]
    assert order == [(1, 3), (3, 5), (4, 6), (2, 10), (0, 31)]


def test_compacted_moves_only_into_gaps():
    for finished in itertools.product((False, True), repeat=7):
        order = compacted(7, [row for row, end in enumerate(finished) if end])
        staying = [row for row, end in enumerate(finished) if not end]
        assert sorted(order) == staying
        for new, old in enumerate(order):
            assert (new == old) == (not finished[new]), "a row that can stay stays, and a gap is filled"


def make_prefix(lengths, limits):
    prefix = Prefix()
    prefix.admit([Request(index, [EOS], limit) for index, limit in enumerate(limits)])
    draft = Draft([list(range(4, 4 + length)) for length in lengths])
    prefix.commit(Iterations.of(draft, accept_all(None, draft), EOS))
    return prefix


def test_what_may_be_chosen_where():
    """Pad nowhere, eos not first, nothing but eos from the limit on."""
    prefix = make_prefix([0, 2, 3], limits=[9, 4, 3])
    logits = torch.zeros(3, 4, 6)  # tokens 0 .. 5; pad is 1, eos is 2
    minimum, room = (torch.tensor(each)[:, None] for each in (prefix.bounds().minimum, prefix.bounds().room))
    allowed, forced = restrict(logits, prefix.constraints, minimum, room)
    plain, first, last = [1], [1, 2], [0, 1, 3, 4, 5]
    expected = [[first, plain, plain, plain], [plain, plain, last, last], [last] * 4]
    assert [[(row == -torch.inf).nonzero().flatten().tolist() for row in rows] for rows in allowed] == expected
    assert forced.tolist() == [[False] * 4, [False, False, True, True], [True] * 4]
    logits[..., EOS] = 1
    assert not restrict(logits, prefix.constraints, minimum, room)[1].any()


def test_what_is_offered():
    """Nothing after eos, nothing beyond the limit, and no more than the drafter offers or was asked for."""
    prefix = make_prefix([0, 2, 3, 1, 1, 1], limits=[9, 4, 3, 9, 9, 9])
    guesses = [[5, EOS, 6, EOS], [5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, EOS]]
    expected = [[5, EOS], [5, 6], [], [5, 6, 7, 8], [5, 6, 7, EOS], []]
    asked = [9] * 6
    assert prefix.clip(Draft([*guesses, []]), asked).tokens == expected
    assert prefix.clip(Draft([*guesses, []]), [1, 0, 2, 3, 9, 9]).tokens == [[5], [], [], [5, 6, 7], [5, 6, 7, EOS], []]
    on_device = DeviceDraft(torch.tensor([*guesses, *[[9] * 4] * 3]), room=[4, 4, 4, 4, 4, 0])  # 6 rows are 8 in a recorded pass
    assert on_device.tokens[:5] == guesses
    assert prefix.clip(on_device, asked).tokens == expected
    clipped = prefix.clip(on_device, asked)
    assert clipped.arrive([*guesses, [9] * 4]) == clipped.tokens == expected


def test_what_the_models_see_is_what_was_committed():
    """The tensors follow the outputs: through admissions, moves, and growth beyond what was reserved."""
    rng, prefix, outputs, index = random.Random(0), Prefix(), [], 0
    for _ in range(80):
        if len(prefix) < 5 and rng.random() < 0.5:
            prefix.admit([Request(index, [EOS], 500)])
            outputs.append([])
            index += 1
        if len(prefix):
            draft = Draft([[rng.randrange(4, 9) for _ in range(rng.randrange(1, 9))] for _ in outputs])
            prefix.commit(Iterations.of(draft, accept_all(None, draft), EOS))
            outputs = [output + new for output, new in zip(outputs, draft.tokens)]
        tokens, lengths = prefix_tokens(prefix)
        assert lengths.tolist() == list(map(len, outputs))
        for row, output in zip(tokens, outputs):
            assert row[: len(output) + 1].tolist() == [EOS, *output]
        if rng.random() < 0.2:
            order = rng.sample(range(len(prefix)), max(0, len(prefix) - 1))
            prefix.select(order)
            outputs = [outputs[row] for row in order]
    assert max(map(len, outputs)) > 64
