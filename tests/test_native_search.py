"""Searches in one native call against the pure steps of `search/`: the same outputs, scores, steps and sums, to the last bit."""

import random

import numpy as np
import pytest
import torch
from support import EOS, SYMBOLS, WORDS, sentences, stepwise
from test_beam import requests_of
from test_kernels import DTYPES, KERNEL_SHAPES, on_kernels, variant, wide_drafter, wide_verifier  # noqa: F401
from test_session import KERNELS

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.steady import Steady
from specdec_plugins.decoding.drafters import Rows
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL, Session
from specdec_plugins.decoding.options import Beam
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, NoDrafter, Roles, Traits
from specdec_plugins.decoding.values import Draft, Want
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.model.spec import OutputRules

pytestmark = KERNELS


def run(verifier, requests, rows, native, times=ITERATIONS_PER_CALL, constraints=None, drafter=None, controller=None, cancel=()):
    """Outputs, statistics, and the iterations that each native call ran. Native runs make no iteration in Python."""
    verifier, controller = verifier if native else stepwise(verifier), controller or FixedLength(0)
    roles = Roles(drafter or NoDrafter(), verifier, TopBetaTau(), controller)
    session, calls = Session(roles, BoundedAdmission(rows), rows, constraints), []
    iterate = session.runner.iterate

    def counted(*arguments):
        done = iterate(*arguments)
        calls.append(done.times)
        return done

    session.runner.iterate = counted
    for request in requests:
        session.submit(request)
    found, streams = [], {}
    while not session.idle:
        for commit in session.step(times):
            streams.setdefault(commit[:2], []).extend(commit.tokens)
            found += [commit.finished] if commit.finished else []
        for index in cancel:
            if session.prefix.group(index):
                session.cancel(index)
    for each in found:
        assert streams[each.index, each.output] == each.tokens
    stats = session.stats
    assert not session.runner.verifying.targets.users and session.runner.verifying.slots == []  # every slot was given back
    counts = stats.iterations, stats.committed, stats.cut, stats.prefilled, stats.sentences
    kept = [each for each in found if each.index not in cancel]
    return sorted(kept, key=lambda each: (each.index, each.output)), counts, calls


def both(*arguments, **options):
    """The native run; checks that the pure steps give the same. What a cancelled search did depends on the call it is in."""
    native, pure = (run(*arguments, native, **options) for native in (True, False))
    assert native[0] == pure[0] and (options.get("cancel") or native[1] == pure[1])
    return native


def verifier_of(dtype="float32", seed=0, threads=2, **changes):
    """A random one whose outputs vary in length."""
    verifier = wide_verifier(seed, **{**KERNEL_SHAPES["pre-norm"], "max_target_positions": 64, **changes})
    with torch.no_grad():
        verifier[0].decoder.output_projection.weight[EOS] *= 0.5
    return ModelVerifier(on_kernels(verifier, dtype=dtype, threads=threads)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_pure_search(dtype, variant):  # noqa: F811
    """Beams of all kinds, lengths and bans, under both rules, in batches that change all the time."""
    requests = requests_of(16, 11, greedy=False)
    for threads, rows in ((1, 8), (3, 29)):
        outputs, _, calls = both(verifier_of(dtype, threads=threads), requests, rows)
        assert len(outputs) == sum(request.beam.nbest for request in requests) and calls and max(calls) > 4


def test_whatever_the_number_of_iterations_in_a_call():
    """A call that ends in the middle of searches goes on where it stopped."""
    verifier, requests = verifier_of(), requests_of(10, 12, greedy=False)
    outputs = [both(verifier, requests, 19, times=times)[0] for times in (1, 2, 5, 16)]
    assert all(each == outputs[0] for each in outputs)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("stopping", ["false", "true", "never"])
def test_rules_of_imported_models(stopping, ends):
    """Models without a forced end, context in n-grams, bans, penalties of either sign, and limits that cut."""
    rng, rules = random.Random(4), OutputRules("huggingface", ends=ends)
    constraints = Constraints(SYMBOLS, forced=(7,), suppressed=(0, 9), rules=rules)
    requests = []
    for index, source in enumerate(sentences(24, 13)):
        size = rng.choice([1, 2, 4, 7])
        beam = Beam(size, "huggingface", rng.choice([-0.5, 0, 1, 1.6]), rng.randint(1, size), 0.0, stopping, rng.random() < 0.5)
        limit = rng.choice([2, 4, 12, 30])
        requests.append(
            Request(
                index, source, limit, rng.choice([0, 1, 5]), beam=beam, no_repeat=rng.choice([0, 1, 2, 3]), scores=index % 3 > 0
            )
        )
    outputs, _, calls = both(verifier_of(seed=3), requests, 16, constraints=constraints)
    assert any(each.cut for each in outputs) and calls


def test_when_no_token_is_allowed():
    """A search whose hypotheses have no continuation ends with what it has."""
    constraints = Constraints(SYMBOLS, suppressed=(*range(5, WORDS + 4),))
    requests = [
        Request(index, source, 9, 6, beam=Beam(3, rules, nbest=2), no_repeat=1)
        for index, (source, rules) in enumerate(zip(sentences(6, 2), 3 * ["fairseq", "huggingface"]))
    ]
    outputs, _, _ = both(verifier_of(), requests, 12, constraints=constraints)
    assert outputs and all(len(set(each.tokens)) == len(each.tokens) < 6 for each in outputs)


def test_large_beams_and_few_tokens():
    """More candidates than the vocabulary has, and caches that grow within a search."""
    requests = [Request(index, source, 60, 40, beam=Beam(30, nbest=30)) for index, source in enumerate(sentences(3, 21))]
    outputs, _, calls = both(verifier_of(), requests, 60)
    assert len(outputs) == 90 and sum(calls) > 80


def test_cancelled_searches_leave_no_trace():
    requests = requests_of(12, 14, greedy=False)
    for cancel in ([0, 5], [3], [*range(0, 12, 2)]):
        both(verifier_of(), requests, 17, times=3, cancel=cancel)


@pytest.mark.parametrize("drafted", [0, 3])
def test_beside_rows_that_do_not_search(drafted):
    """Greedy and sampled rows, with drafts or without, in the same passes: outputs are those of each request alone."""
    given = wide_drafter(arch="block_causal", **KERNEL_SHAPES["pre-norm"])
    models = on_kernels(wide_verifier(0, **KERNEL_SHAPES["pre-norm"], max_target_positions=64), given)
    verifier, requests, drafter = ModelVerifier(models[0]), requests_of(16, 15), CausalBlockDrafter(models[1])
    controller = Steady(FixedLength(drafted), drafted)
    outputs, _, calls = both(verifier, requests, 15, drafter=drafter, controller=controller, cancel=[3])
    assert sum(calls) > len(calls)
    for request in requests:
        alone, _, _ = run(verifier, [request], 15, True, drafter=drafter, controller=controller)
        assert request.index == 3 or alone == [each for each in outputs if each.index == request.index]


def test_a_row_holds_what_reading_its_tokens_writes():
    """After forks, which copy only what the overwritten hypothesis had not in common."""
    verifier, source = verifier_of(), sentences(1, 3)[0]
    session = Session(Roles(NoDrafter(), verifier, TopBetaTau(), FixedLength(0)), BoundedAdmission(5), 5)
    session.submit(Request(0, source, 30, 20, beam=Beam(5)))
    checked = 0
    while not session.idle:
        session.step(2)
        for row, output in enumerate(session.prefix.outputs):
            fresh = verifier.start(1)
            fresh.admit(Source([source], SYMBOLS))
            verifier.model.read(fresh, Reading([[EOS, *output[:-1]]], [0])).logits()
            state, held = session.runner.verifying, len(output)
            assert state.held[row] == held
            assert np.array_equal(state.cache.data[:, state.slots[row], :held], fresh.cache.data[:, fresh.slots[0], :held])
            checked += 1
    assert checked > 60


class Watching(Drafter):
    """Drafts at random, and notes what it sees of each row: of which request, tokens, verdict, and the best tokens there."""

    traits = Traits(follows=True, wants=Want(features=True))

    def __init__(self, seed):
        self.random, self.seen = random.Random(seed), []

    def start(self, rows, shared):
        return Rows()

    def admit(self, state, source):
        state.rows += [tuple(tokens) for tokens in source.sentences]

    def propose(self, state, prefix, plan):
        drafts = {source: [self.random.randrange(4, WORDS) for _ in range(4)] for source in sorted(set(state.rows))}
        return Draft([drafts[source][:length] for source, length in zip(state.rows, plan.lengths)])

    def observe(self, state, scores, draft, verdict):
        logits, features = tensor(scores.logits()), tensor(scores.features())
        self.seen.append(
            sorted(
                (
                    *(source, tokens, accepted, own, logits[row, : len(tokens) + 1].argmax(-1).tolist()),
                    features[row, : len(tokens) + 1].tolist(),
                )
                for row, (source, tokens, accepted, own) in enumerate(
                    zip(state.rows, draft.tokens, verdict.accepted, verdict.own)
                )
            )
        )


def test_drafters_see_searches_and_other_rows():
    """A drafter in Python beside searches sees the same passes, whoever runs them; rows may be in another order."""
    seen = []
    for native in (True, False):
        drafter = Watching(5)
        run(verifier_of(), requests_of(12, 15), 9, native, drafter=drafter, controller=Steady(FixedLength(3), 3))
        seen.append(drafter.seen)
    assert seen[0] == seen[1]
    drafted = [row for rows in seen[0] for row in rows if row[1]]
    assert len(drafted) > 40 and any(row[2] for row in drafted) and any(not row[1] for rows in seen[0] for row in rows)
