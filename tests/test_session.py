"""Requests that come and go: joining, cancelling, options by request, duplicated rows, and what bounds admission."""

import itertools
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from conftest import make_verifier
from naive import repeating
from reference import following, greedy, log_probabilities, sampled
from support import (
    EOS,
    SHAPES,
    WORDS,
    Knowing,
    Lengths,
    check_balance,
    commit,
    decode,
    finished,
    load,
    make_pair,
    make_tilt,
    run,
    sentences,
    standing,
    tilted_verifier,
)
from test_kernels import KERNEL_SHAPES, on_kernels, wide_verifier

from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import PATIENCE, BoundedAdmission
from specdec_plugins.decoding.backends.state import Slots
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters import Rows
from specdec_plugins.decoding.loop import Session, speculative_decode
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Drafter, NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Draft
from specdec_plugins.decoding.verifier import ModelVerifier

KERNELS = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")


@pytest.fixture(scope="module")
def world():
    """A verifier, its tilt, and the outputs of some sentences."""
    model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    loaded, _ = load((model.double(), args))
    tilt = make_tilt(3, -1.0)
    sources = sentences(30, seed=5)
    limits = [4 + index % 13 for index in range(30)]
    expected = [greedy(model, source, limit, tilt) for source, limit in zip(sources, limits)]
    return model, tilted_verifier(loaded, tilt), tilt, sources, limits, expected


def make_session(verifier, drafter, rows, lengths=(3,), **bounds):
    stats = DecodeStats()
    roles = Roles(drafter, verifier, TopBetaTau(), Lengths(list(lengths), ragged=True))
    session = Session(roles, BoundedAdmission(rows, **bounds), rows, stats=stats)
    return session, stats


def test_groups_join_stream_and_leave_while_others_are_in_flight(world):
    """Groups of one to three rows, submitted and cancelled at any time, whether they wait or are in flight: the others are not
    affected, and what was streamed of an output is the output."""
    model, verifier, tilt, sources, limits, expected = world
    rng, interrupted, how = random.Random(0), 0, Sampling(0.8, top_k=9)
    requests = [
        Request(
            index,
            source,
            limit,
            sampling=how if index % 4 else None,
            seeds=[mixed(index, n) for n in range(1 + index % 3)],
            scores=index % 5 > 1,
        )
        for index, (source, limit) in enumerate(zip(sources, limits))
    ]
    outputs = {
        (each.index, n): sampled(model, each.tokens, each.limit, how, seed, tilt) if each.sampling else expected[each.index]
        for each in requests
        for n, seed in enumerate(each.seeds)
    }
    for rows in (3, 5, 7):
        session, stats = make_session(verifier, Knowing(expected, 0.3), rows, (0, 3, 5, 1))
        waiting, cancelled, partial, done = deque(requests), set(), [], []
        streams = {key: ([], []) for key in outputs}
        while waiting or not session.idle:
            for _ in range(rng.randrange(3)):
                if waiting:
                    session.submit(waiting.popleft())
            all_of_them = rng.random() < 0.7
            for request, output, tokens, scores, whole, _ in session.step(rng.choice([1, 1, 3]), all_of_them):
                assert whole or all_of_them
                stream = streams[request, output]
                stream[0].extend(tokens), stream[1].extend(scores)
                if whole:
                    assert (whole.index, whole.output) == (request, output) and stream == (whole.tokens, whole.token_scores or [])
                    done.append(whole)
            assert len(session.prefix) <= rows
            if rng.random() < 0.4:
                index = rng.randrange(30)
                known = {request.index for request in (*session.waiting, *session.prefix.requests)}
                flying = session.prefix.group(index)
                found = session.cancel(index)
                assert len(found) == len(flying) and not session.prefix.group(index)
                for each in found:
                    tokens, scores = streams[index, each.output]
                    assert (tokens, scores) == (each.tokens[: len(tokens)], (each.token_scores or [])[: len(scores)])
                cancelled |= {index} & known
                partial += found
        assert session.step() == []
        kept = {(each.index, each.output): each.tokens for each in done if each.index not in cancelled}
        assert kept == {key: tokens for key, tokens in outputs.items() if key[0] not in cancelled}
        interrupted += len(partial)
        assert all(each.tokens == outputs[each.index, each.output][: len(each.tokens)] for each in partial)
        check_balance(stats, [*done, *partial])
    assert interrupted > 1


FINE = Request(7, [5, EOS], 9)


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"limit": 0}, "limit is 0, not a whole number from 1 to 63"),
        ({"limit": 64}, "limit is 64, not"),
        ({"limit": 9.0}, "limit is 9.0, not"),
        ({"limit": True}, "limit is True, not"),
        ({"min_length": -1}, "min_length is -1, not"),
        ({"min_length": 10**20}, "min_length is 1"),
        ({"no_repeat": 1.5}, "no_repeat is 1.5, not"),
        ({"index": "a"}, "index is 'a', not"),
        ({"tokens": []}, "the source is empty"),
        ({"tokens": [5] * 65}, "the source has 65 tokens; the models read at most 64"),
        ({"tokens": [WORDS + 4, EOS]}, f"source has token ids outside the vocabulary of {WORDS + 4}"),
        ({"tokens": [5, -1]}, "source has token ids"),
        ({"tokens": [10**30, EOS]}, "source has token ids"),
        ({"tokens": [5.0, EOS]}, "source has token ids"),
        ({"forced": [WORDS + 4]}, "forced has token ids"),
        ({"forced": [EOS]}, "the forced tokens include eos"),
        ({"hint": [-5]}, "hint has token ids"),
        ({"seeds": [1 << 63]}, "seeds are .9223372036854775808., not one 64-bit integer for each output"),
        ({"seeds": []}, "seeds are"),
        ({"seeds": 5}, "tokens, forced, hint and seeds are sequences"),
        ({"tokens": None}, "tokens, forced, hint and seeds are sequences"),
        ({"seeds": [0.5]}, "seeds are"),
        ({"seeds": [1, 2, 3]}, "3 outputs need as many rows; there are 2"),
        ({"tolerance": 0.5}, "tolerance is 0.5, not a Tolerance"),
        ({"sampling": "yes"}, "sampling is 'yes', not a Sampling"),
    ],
)
def test_requests_that_cannot_be_decoded_are_refused(world, changes, fault):
    """And others go on."""
    session, _ = make_session(world[1], NoDrafter(), 2)
    session.submit(Request(0, world[3][0], world[4][0]))
    with pytest.raises(ValueError, match=f"request {changes.get('index', 7)}: {fault}"):
        session.submit(replace(FINE, **changes))
    assert [output.tokens for output in session.run([])] == [world[5][0]]


class Choosy(Knowing):
    """A drafter with a row's state that fails for some sources: at once, or after the second token."""

    late = False

    def start(self, rows, shared):
        return Rows()

    def admit(self, state, source):
        for tokens in source.sentences:
            state.rows.append(len(tokens))
            if not self.late and len(tokens) % 4 == 3:
                raise RuntimeError("not of this length")

    def propose(self, state, prefix, plan):
        assert state.rows == [len(request.tokens) for request in prefix.requests]
        for request, output, length in zip(prefix.requests, prefix.outputs, plan.lengths):
            if self.late and length and len(output) > 1 and len(request.tokens) % 4 == 3:
                raise RuntimeError("not of this length")
        return super().propose(state, prefix, plan)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=KERNELS)])
def test_a_request_that_fails_ends_alone(kernels, late):
    """In the middle of a batch, with all outputs of its group; the others are decoded."""
    model = wide_verifier()
    verifier = ModelVerifier((on_kernels(model) if kernels else load(model))[0])
    sources = sentences(24, seed=2)
    requests = [Request(index, source, 9, seeds=[0] * (1 + index % 2)) for index, source in enumerate(sources)]
    session, stats = make_session(verifier, NoDrafter(), 6)
    expected = {each.index: each.tokens for each in session.run(requests)}
    failing = {index for index, source in enumerate(sources) if len(source) % 4 == 3}
    assert 2 < len(failing) < 12
    drafter = Choosy([expected[index] for index in range(24)], 0.3)
    drafter.late = late
    session, stats = make_session(verifier, drafter, 6)
    for request in requests:
        session.submit(request)
    found = []
    while not session.idle:
        found += finished(session.step())
    assert {(each.index, each.output) for each in found} == {(each.index, n) for each in requests for n in range(each.rows)}
    for each in found:
        failed = each.index in failing and (not late or len(expected[each.index]) > 1)
        assert (str(each.error) == "not of this length") == failed
        assert each.tokens == expected[each.index][: (len(each.tokens) if late else 0) if failed else None]
    check_balance(stats, [each for each in found if each.steps or not each.error])
    with pytest.raises(RuntimeError, match="not of this length"):
        list(session.run(requests))


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=KERNELS)])
@pytest.mark.parametrize("rule", [None, Tolerance(3, 2.0), Sampling(0.8), Sampling(0.8, rule="rejection")], ids=str)
def test_prefill_is_plain_decoding_with_forced_tokens(world, rule, kernels):
    """Under every rule, beside requests without: the outputs, the scores, and figures that leave forced tokens out."""
    model, verifier, tilt, *_ = world
    if kernels:
        model, args = wide_verifier(**KERNEL_SHAPES["pre-norm"])
        verifier, tilt = ModelVerifier(on_kernels((model, args))[0]), None
    rng, requests, options = random.Random(2), [], {"tolerance" if isinstance(rule, Tolerance) else "sampling": rule}
    for index, source in enumerate(sentences(8, seed=5)):
        forced = [rng.randrange(4, WORDS) for _ in range(rng.choice([0, 1, 7, 30, 50]))]
        limit, seeds = rng.choice([5, 40, 60]), [index] * rng.choice([1, 1, 2])
        requests.append(
            Request(
                index, source, limit, len(forced) + 1, forced, seeds=seeds, scores=index % 5 > 0, **(options if index % 4 else {})
            )
        )
    outputs = []
    for drafter in (NoDrafter(), Knowing([[5] * 60] * 8, 0.3)):
        stats = DecodeStats()
        found = list(speculative_decode(Roles(drafter, verifier, TopBetaTau(), Lengths([3, 0], ragged=True)), requests, 4, stats))
        check_balance(stats, found)
        outputs.append({(each.index, each.output): each.tokens for each in found})
        for each in found:
            request = requests[each.index]
            count = min(len(request.forced), request.limit)
            assert each.prefilled == count and each.tokens[:count] == list(request.forced[:count])
            said = log_probabilities(model, request.tokens, each.tokens[:count], tilt)[:count].tolist()
            expected = [row[token] for row, token in zip(said, each.tokens)]
            assert request.scores or each.token_scores is None
            assert (each.token_scores or expected)[:count] == pytest.approx(expected, abs=1e-3 if kernels else 1e-5)
            if not kernels and not (request.sampling or request.tolerance):
                assert each.tokens == constrained(model, request, tilt)
    if rule in (None, Sampling(0.8)):
        assert outputs[0] == outputs[1]


def test_a_session_has_rows_and_a_thread(world):
    session, _ = make_session(world[1], NoDrafter(), 2)
    with ThreadPoolExecutor(1) as pool:
        for use in (session.step, lambda: session.submit(FINE), lambda: session.cancel(0)):
            with pytest.raises(RuntimeError, match="belongs to the thread that made it"):
                pool.submit(use).result()
    # A session has rows.
    for rows in (0, -1):
        with pytest.raises(ValueError, match=f"^a batch of {rows} rows; it needs at least one"):
            BoundedAdmission(rows)


class Wild(Drafter):
    """A drafter that drafts what it likes."""

    def __init__(self, tokens):
        self.tokens = tokens

    def propose(self, state, prefix, plan):
        return Draft([list(self.tokens) for _ in prefix.requests])


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=KERNELS)])
def test_what_a_wild_drafter_drafts(kernels):
    """Of a draft longer than was asked for the first tokens count; one of numbers that are no tokens is refused."""
    model = wide_verifier()
    verifier = ModelVerifier((on_kernels(model) if kernels else load(model))[0])
    requests = [Request(index, source, 9) for index, source in enumerate(sentences(4, seed=1))]

    def decoded(drafter, stats):
        done = speculative_decode(Roles(drafter, verifier, TopBetaTau(), Lengths([3])), requests, 2, stats)
        return [output.tokens for output in sorted(done, key=lambda output: output.index)]

    stats = DecodeStats()
    assert decoded(Wild([7] * 20), stats) == decoded(NoDrafter(), DecodeStats())
    assert 0 < stats.drafted <= 3 * stats.iterations
    for wrong in (-1, WORDS + 4, 10**12):
        with pytest.raises(ValueError, match="a token id outside the verifier's vocabulary"):
            decoded(Wild([7, wrong]), DecodeStats())


@pytest.mark.parametrize("error", [0.2, 1.0])
def test_each_request_has_its_own_options(world, error):
    """Forced tokens, shortest outputs and tolerances of neighbours in a batch, against one sentence at a time."""
    model, verifier, tilt, sources, _, _ = world
    rng, requests, expected = random.Random(1), [], []
    for index, source in enumerate(sources[:20]):
        forced = [rng.randrange(4, WORDS) for _ in range(rng.choice([0, 0, 1, 4]))]
        request = Request(
            index,
            source,
            limit=rng.randrange(1, 14),
            min_length=rng.choice([0, 1, 6]),
            forced=forced,
            no_repeat=rng.choice([0, 1, 2, 3, 1 << 30]),
        )
        requests.append(request)
        expected.append(constrained(model, request, tilt))
    assert len({len(output) for output in expected}) > 3
    found = []
    stats, drafter = DecodeStats(), Knowing(expected, error)
    for hypothesis in speculative_decode(
        Roles(drafter, verifier, TopBetaTau(), Lengths([4, 0, 2], ragged=True)), requests, 6, stats
    ):
        found.append((hypothesis.index, hypothesis.tokens))
    assert [tokens for _, tokens in sorted(found)] == expected
    # A row with tolerance accepts any draft; its neighbours accept none but the verifier's own.
    outputs = [[rng.randrange(4, WORDS) for _ in range(9)] for _ in range(6)]
    loose = Tolerance(99, float("inf"))
    mixed = [Request(index, sources[index], 9, tolerance=loose if index % 2 else None) for index in range(6)]
    for hypothesis in speculative_decode(
        Roles(Knowing(outputs, 0.0), verifier, TopBetaTau(), Lengths([9])), mixed, 6, DecodeStats()
    ):
        if hypothesis.index % 2:
            assert hypothesis.tokens[: hypothesis.steps[0].accepted] == outputs[hypothesis.index][: hypothesis.steps[0].accepted]
            assert hypothesis.steps[0].accepted == len(hypothesis.steps[0].drafted)
        else:
            assert hypothesis.tokens == greedy(model, sources[hypothesis.index], 9, tilt)


def constrained(model, request, tilt):
    """The verifier's greedy output under a request's options, one token at a time, with nothing cached."""
    encoder_out = model.encoder(torch.tensor([request.tokens]), src_lengths=torch.tensor([len(request.tokens)]))
    output = []
    while len(output) < request.limit:
        logits = following(model, encoder_out, output, tilt) if output else unbounded(model, encoder_out, tilt)
        if len(output) < request.min_length:
            logits[EOS] = -torch.inf
        logits[list(repeating(output, request.no_repeat))] = -torch.inf
        best = request.forced[len(output)] if len(output) < len(request.forced) else int(logits.argmax())
        if best == EOS:
            break
        output.append(best)
    return output


def unbounded(model, encoder_out, tilt):
    """The first position's logits, where an output may be empty."""
    with torch.no_grad():
        logits = model.decoder(torch.tensor([[EOS]]), encoder_out=encoder_out)[0][0, -1] + tilt[0]
    logits[1] = -torch.inf
    return logits


def test_a_models_own_constraints_hold_for_every_output(world):
    """Tokens that begin every output, and tokens that none has."""
    _, verifier, _, sources, limits, expected = world
    common = max(set(itertools.chain(*expected)), key=lambda token: sum(token in output for output in expected))
    constraints = Constraints(forced=(17, 9), suppressed=(common,))
    requests = [Request(index, source, limit + 2) for index, (source, limit) in enumerate(zip(sources, limits))]
    outputs = {}
    for block in ([0], [5, 2]):
        found = speculative_decode(
            Roles(Knowing(expected, 0.5), verifier, TopBetaTau(), Lengths(block, ragged=True)),
            requests,
            5,
            DecodeStats(),
            constraints,
        )
        outputs[tuple(block)] = [hypothesis.tokens for hypothesis in sorted(found, key=lambda hypothesis: hypothesis.index)]
    assert outputs[(0,)] == outputs[(5, 2)]
    assert all(output[:2] == [17, 9] and common not in output for output in outputs[(0,)])


def test_rows_have_drafts_of_their_own_length(world):
    _, verifier, _, sources, limits, expected = world
    hypotheses, stats = decode(verifier, Knowing(expected, 0.0), sources, limits, [0, 1, 7, 3], 5, ragged=True)
    assert [hypothesis.tokens for hypothesis in hypotheses] == expected
    assert len({len(step.drafted) for hypothesis in hypotheses for step in hypothesis.steps}) > 3
    for arch in ("block", "block_causal"):
        (model, _), roles, tilt = make_pair(bias=-1.0, drafter={"arch": arch})
        expected = [greedy(model, source, limit, tilt) for source, limit in zip(sources, limits)]
        hypotheses, stats = decode(*roles, sources, limits, [0, 6, 1, 3], 5, ragged=True)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected and stats.accepted


def test_duplicated_rows_go_on_apart(world):
    """A row named twice becomes two; forced apart, each says what the verifier says after its own tokens."""
    model, verifier, tilt, sources, _, _ = world
    outputs = [[5, 6], [7], [8, 9, 10]]
    _, prefix = standing(verifier, sources[:3], outputs, limit=20)
    # The cache holds nothing yet: read the outputs as drafts after an empty prefix.
    fresh, empty = standing(verifier, sources[:3], [[], [], []], limit=20)
    verifier.score(fresh, empty, Draft([list(output) for output in outputs])).logits()
    order = [2, 0, 2, 1, 2, 0]
    for each in (fresh, prefix):
        each.select(order)
    drafts = [[11 + row] for row in range(6)]
    logits = tensor(verifier.score(fresh, prefix, Draft([list(draft) for draft in drafts])).logits())
    again = tensor(verifier.score(fresh, prefix, Draft([[*draft, 4] for draft in drafts])).logits())
    assert torch.equal(logits[:, :2], again[:, :2]) or torch.allclose(logits[:, :2], again[:, :2], atol=1e-12)
    for row, old in enumerate(order):
        said = [*outputs[old], *drafts[row]]
        with torch.no_grad():
            expected = model.decoder(
                torch.tensor([[EOS, *said]]),
                encoder_out=model.encoder(torch.tensor([sources[old]]), src_lengths=torch.tensor([len(sources[old])])),
            )[0][0, -1]
        torch.testing.assert_close(again[row, 1], expected + tilt[len(said)], rtol=1e-6, atol=1e-6)  # its softmax is in float32


def test_the_outputs_of_duplicated_rows_are_their_own():
    prefix = flying([3, 3])
    commit(prefix, [[5], [6]])
    prefix.select([1, 0, 1])
    commit(prefix, [[7], [8], [9]])
    assert prefix.outputs == [[6, 7], [5, 8], [6, 9]]
    assert [[step.drafted for step in steps] for steps in prefix.steps] == [[[6], [7]], [[5], [8]], [[6], [9]]]


def test_slots_are_counted():
    slots = Slots()
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    assert slots.recount([2, 1, 1]) == {0} and not slots.release(1)
    assert slots.release(1) and slots.users == {2: 1}
    assert [slots.take() for _ in range(3)] == [0, 1, 3] and slots.bound == 4


class Asked(Lengths):
    """Plans that hold for four iterations; notes what it is told of them."""

    def __init__(self):
        super().__init__([2])
        self.told = []

    def plan(self, prefix):
        return super().plan(prefix)._replace(times=4)

    def update(self, outcome):
        assert len(outcome.steps) == outcome.times * len(outcome.plan.lengths) and outcome.seconds > 0
        self.told.append(outcome.times)


def test_a_plan_is_repeated_up_to_the_end_of_a_row_before_the_controller_is_asked_again(world):
    """With any drafter: what a controller takes to decide counts where a pass is short."""
    _, verifier, _, sources, limits, expected = world
    controller = Asked()
    session = Session(Roles(Knowing(expected, 0.3), verifier, TopBetaTau(), controller), BoundedAdmission(3), 3)
    for index in range(12):
        session.submit(Request(index, sources[index], limits[index]))
    found = finished(session.step(3))
    while not session.idle:
        found += finished(session.step(9))
    assert controller.told[0] <= 3 < max(controller.told) == 4  # what was asked for, what was planned
    assert min(controller.told[1:]) < 4 and sum(controller.told) == session.stats.passes  # a row ended, others join
    assert [each.tokens for each in sorted(found, key=lambda each: each.index)] == expected[:12]
    check_balance(session.stats, found)


def test_the_encoders_time_is_booked_as_such(world):
    """Sources are encoded when their requests join, not in the first verification."""
    _, verifier, _, sources, limits, expected = world
    state, _ = standing(verifier, sources[:4], [[]] * 4)
    assert state.sources.cache.capacity >= max(map(len, sources[:4]))
    session, stats = make_session(verifier, NoDrafter(), 4, (0,))
    for index in range(4):
        session.submit(Request(index, sources[index], limits[index]))
    found = finished(session.step())
    encoding = stats.seconds["encoding"]
    while not session.idle:
        found += finished(session.step())
    assert stats.seconds["encoding"] == encoding > 0 and stats.seconds["verifying"] > 0
    assert sorted(hypothesis.tokens for hypothesis in found) == sorted(expected[:4])


# ---- admission


def flying(sizes):
    prefix = Prefix()
    prefix.admit([Request(100 + index, [5] * size, 9) for index, size in enumerate(sizes)])
    return prefix


def queued(sizes):
    return deque(Request(index, [5] * size, 9) for index, size in enumerate(sizes))


def test_admission_by_rows():
    """As many as fit, a quarter of the batch at a time."""
    bounds = BoundedAdmission(8)
    assert bounds.admits(flying([]), queued([3] * 20)) == 8
    assert bounds.admits(flying([3] * 7), queued([3] * 20)) == 0
    assert bounds.admits(flying([3] * 6), queued([3] * 20)) == 2
    assert bounds.admits(flying([3] * 6), queued([3])) == 1
    assert bounds.admits(flying([3] * 8), queued([3])) == 0
    assert BoundedAdmission(3).admits(flying([3] * 2), queued([3] * 9)) == 1
    # A request waits for others only so long.
    bounds = BoundedAdmission(8)
    admitted = (bounds.admits(flying([3] * 7), queued([3])) for _ in range(99))
    assert len(list(itertools.takewhile(lambda count: not count, admitted))) == PATIENCE


def test_admission_by_tokens_and_bytes(world):
    """Rows x the longest source; what exceeds the bound alone is decoded alone."""
    bounds = BoundedAdmission(8, tokens=20)
    assert bounds.admits(flying([]), queued([5] * 9)) == 4
    assert bounds.admits(flying([]), queued([10, 5, 5])) == 2
    assert bounds.admits(flying([10]), queued([5, 5])) == 1
    assert bounds.admits(flying([5, 5]), queued([10, 5])) == 0
    assert bounds.admits(flying([]), queued([50, 5])) == 1
    assert bounds.admits(flying([50]), queued([5])) == 0
    assert bounds.admits(flying([]), queued([1] * 30)) == 8
    # Admission by bytes.
    bounds = BoundedAdmission(8, bytes=100, bytes_for=lambda request: 10 * len(request.tokens))
    assert bounds.admits(flying([]), queued([3] * 9)) == 3
    assert bounds.admits(flying([3]), queued([3] * 9)) == 2
    assert bounds.admits(flying([9]), queued([3])) == 0
    assert bounds.admits(flying([]), queued([40, 3])) == 1
    # Bytes of a row are what its entries take.
    _, verifier, _, sources, _, _ = world
    request = Request(0, sources[0], 9)
    spec = verifier.model.spec.decoder
    entries = spec.layers * 2 * spec.width * 8  # float64
    assert verifier.bytes_for(request) == (len(sources[0]) + 10) * entries


def test_admission_by_groups():
    """A group joins whole or waits; one that exceeds the tokens or bytes by itself is decoded alone."""
    groups = deque(Request(index, [5] * 3, 9, seeds=range(size)) for index, size in enumerate((3, 2, 4)))
    assert BoundedAdmission(8).admits(flying([]), groups) == 2
    assert BoundedAdmission(9).admits(flying([]), groups) == 3
    assert BoundedAdmission(8).admits(flying([3] * 6), groups) == 0
    assert BoundedAdmission(8, tokens=6).admits(flying([]), groups) == 1
    assert BoundedAdmission(8, tokens=6).admits(flying([3]), groups) == 0
    bounds = BoundedAdmission(8, bytes=6, bytes_for=lambda request: 2 * request.rows)
    assert bounds.admits(flying([]), groups) == 1 and bounds.admits(flying([3]), groups) == 0


def test_max_tokens_bounds_what_is_in_flight(world):
    """In every step of a run, by what the drafter sees; and the bound is used, not just kept."""
    _, verifier, _, sources, limits, expected = world
    seen = []

    class Watching(Knowing):
        def propose(self, state, prefix, plan):
            sizes = [len(request.tokens) for request in prefix.requests]
            seen.append((len(sizes), max(sizes)))
            return super().propose(state, prefix, plan)

    requests = [Request(index, source, limit) for index, (source, limit) in enumerate(zip(sources, limits))]
    requests.sort(key=lambda request: -len(request.tokens))
    for bound in (1, 8, 20, 50, 1000):
        seen.clear()
        found = make_session(verifier, Watching(expected, 0.5), 30, (2,), tokens=bound)[0].run(requests)
        assert [hypothesis.tokens for hypothesis in sorted(found, key=lambda each: each.index)] == expected
        assert all(rows * longest <= bound or rows == 1 for rows, longest in seen)
        assert max(rows * longest for rows, longest in seen) > 0.5 * min(bound, 30 * max(map(len, sources)))


@KERNELS
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_forced_tokens_have_the_scores_of_decoded_ones(dtype):
    """To the last bit, on the kernels: a greedy output forced upon the model scores as it did when it was decoded."""
    verifier = ModelVerifier(on_kernels(wide_verifier(**KERNEL_SHAPES["pre-norm"]), dtype=dtype)[0])
    requests = [Request(index, source, 12, scores=True) for index, source in enumerate(sentences(20, seed=3))]
    decoded = [each for each in run(verifier, NoDrafter(), requests, 0, 4)[0] if each.tokens]
    forced = [replace(requests[each.index], forced=each.tokens[: max(1, len(each.tokens) - 1)]) for each in decoded]
    again = run(verifier, NoDrafter(), [replace(each, index=n) for n, each in enumerate(forced)], 0, 3)[0]
    assert len(decoded) > 10 and any(len(each.forced) > 5 for each in forced)
    assert [each.tokens for each in again] == [each.tokens for each in decoded]
    assert [each.token_scores for each in again] == [each.token_scores for each in decoded]
