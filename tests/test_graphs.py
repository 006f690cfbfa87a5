"""Recorded passes, with tapes in place of CUDA graphs, keep the promises of eager ones."""

import pickle
from typing import ClassVar

import pytest
import torch
from reference import greedy_all
from support import DRAFTERS, decode, long_but, make_pair, sentences
from tapes import Tapes

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.torch.graphs import EAGER, GRAPH_BYTES, Recorder
from specdec_plugins.decoding.backends.torch.state import KVCache
from specdec_plugins.decoding.stats import DecodeStats


@pytest.mark.parametrize("kind", long_but(DRAFTERS, "block"))
def test_recorded_passes_leave_the_verifiers_output(kind):
    """Batches of 1 to 9, whose rows are rounded up to 1, 2, 4, 8 and 16; drafts of any length and none; every run on the
    memory of the one before."""
    for seed, bias in enumerate((-9.0, -1.0)):
        runner = Tapes()
        (model, _), (verifier, drafter), tilt = make_pair(seed, bias=bias, drafter=DRAFTERS[kind], shake=0.1, runner=runner)
        rule, sources = TopBetaTau(), sentences(9, seed=seed, longest=30)
        limits = [3 + 5 * index % 20 for index in range(9)]
        expected = greedy_all(model, sources, limits, tilt)
        for rows, block in ((1, 5), (1, 5), (3, [2, 0, 0, 0, 5]), *[(9, 5)] * 3):
            recordings = len(runner.tapes)
            hypotheses, stats = decode(verifier, drafter, sources, limits, block, rows, rule)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert stats.accepted
        assert len(runner.tapes) == recordings, "memory grows in the first run, and is recorded in the second"
        assert verifier.recordings == len(runner.tapes) > 0
        assert runner.record is not None and sum(tape.replays for tape in runner.tapes) > 4 * len(runner.tapes) > 40


@pytest.mark.parametrize("beta", [1, 3])
def test_recorded_passes_give_the_results_of_eager_ones(beta):
    """Tokens, scores and every step, also with tolerance."""
    found = []
    for runner in (EAGER, Tapes()):
        _, (verifier, drafter), _ = make_pair(bias=-1.0, drafter=DRAFTERS["successor"], shake=0.1, runner=runner)
        sources, limits = sentences(12, seed=5), [5 + index for index in range(12)]
        found.append(decode(verifier, drafter, sources, limits, 4, 6, TopBetaTau(beta, 2.0)))
    for one, two in zip(found[0][0], found[1][0]):
        assert (one.tokens, one.steps, one.cut) == (two.tokens, two.steps, two.cut)
        assert one.token_scores == pytest.approx(two.token_scores, abs=1e-6)
    assert found[0][1].lengths == found[1][1].lengths


def test_a_recording_is_bound_to_memory_not_to_a_cache():
    """Another cache may reuse the memory of a freed one, and with it the recordings."""
    runner = Tapes()
    _, (verifier, drafter), _ = make_pair(bias=-1.0, drafter=DRAFTERS["successor"], shake=0.1, runner=runner)
    sources, limits = sentences(9, seed=5), [5 + index for index in range(9)]
    models = [role.model.model for role in (verifier, drafter)]
    expected = [hypothesis.tokens for hypothesis in decode(verifier, drafter, sources, limits, 4, 4)[0]]
    decode(verifier, drafter, sources, limits, 4, 4)
    recordings = len(runner.tapes)
    for model in models:
        model.idle = [tuple(map(twin, caches)) for caches in model.idle]
    assert [hypothesis.tokens for hypothesis in decode(verifier, drafter, sources, limits, 4, 4)[0]] == expected
    assert len(runner.tapes) == recordings


def twin(cache):
    """Another cache on the same memory."""
    other = KVCache(1, 1, cache.data)
    other._take(cache.data)
    return other


def plus(add, x):
    return {"sum": x + add}


@pytest.mark.parametrize("fault", ["refused", "wrong"])
def test_passes_that_cannot_be_recorded_run_eagerly(caplog, fault):
    """One warning, and right results."""

    def record(compute):
        if fault == "refused":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return lambda: None

    runner = Recorder(record)
    for number in range(4):
        assert runner.run(plus, {"x": torch.full((2,), float(number))}, settings=(1,))["sum"].tolist() == [number + 1] * 2
    reason = {"refused": "operation not permitted when stream is capturing", "wrong": "a recorded pass gives other results"}[
        fault
    ]
    assert len(caplog.records) == 1 and reason in caplog.text and not runner.held


def test_a_recording_is_for_sizes_types_and_settings():
    """The least recently used one goes."""
    runner = Tapes(most=3 * GRAPH_BYTES + 1000)  # of some bytes each
    kinds = [(torch.zeros(2), 1), (torch.zeros(3), 1), (torch.zeros(2, dtype=torch.float64), 1), (torch.zeros(2), 2)]
    turns = [(3, kinds[:3]), (3, kinds[:3]), (4, kinds[3:]), (4, kinds[2:]), (5, kinds[:1]), (5, kinds[3:])]
    for count, chosen in turns:
        for x, add in chosen:
            result = runner.run(plus, {"x": x + 5}, settings=(add,))["sum"]
            assert torch.equal(result, x + 5 + add) and result.dtype == x.dtype
        assert len(runner.tapes) == count and len(runner.known) <= 3
        assert runner.held == sum(recording.bytes for recording in runner.known.values()) <= runner.most


def test_sizes():
    assert [EAGER.round(size, 4) for size in (1, 5)] == [1, 5]
    assert [Tapes().round(size) for size in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert [Tapes().round(size, 6) for size in (0, 1, 6, 7, 12, 13, 24, 25)] == [6, 6, 6, 12, 12, 24, 24, 48]


def test_a_gpu_books_its_own_time(monkeypatch):
    """Laps are booked in order, once the GPU has passed them; the host waits only at the end."""
    waited = []

    class Event:
        """The GPU passes a lap when the host has made two more."""

        made: ClassVar = []

        def __init__(self, enable_timing):
            self.number = len(self.made)
            self.made.append(self)

        def record(self, stream):
            pass

        def query(self):
            return waited or self.number + 2 < len(self.made)

        def synchronize(self):
            waited.append(self.number)

        def elapsed_time(self, other):
            return 1000.0 * (2**other.number - 2**self.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    stats, device = DecodeStats(), "cuda"
    for what in (None, "drafting", "verifying", "elsewhere"):
        stats.lap(what, device)
    assert (stats.seconds["drafting"], stats.seconds["verifying"]) == (1.0, 0.0) and not waited
    for what in (None, "drafting"):
        stats.lap(what, device)
    stats.settle()
    found = [stats.seconds[what] for what in ("drafting", "verifying", "elsewhere")]
    assert found == [1.0 + 16.0, 2.0, 4.0] and waited == [5]
    assert pickle.loads(pickle.dumps(stats)) == stats
