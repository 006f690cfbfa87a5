"""Forks of rows, on both backends: what they copy, and that they go on apart."""

import pytest
import torch
from forks import Copied
from support import EOS, SYMBOLS, WORDS, commit, load, sentences, standing
from test_kernels import on_kernels, wide_verifier
from test_session import KERNELS

from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.drafters.small import SmallDrafter
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import Draft, Verdict, uniform
from specdec_plugins.decoding.verifier import ModelVerifier

BACKENDS = pytest.mark.parametrize("backend", ["torch", *(pytest.param(dtype, marks=KERNELS) for dtype in ("float32", "int8"))])
OUTPUTS = [[5, 6], [7], [8, 9, 10, 11]]


def loaded(backend):
    pair = wide_verifier()
    return load(pair, dtype=torch.float64)[0] if backend == "torch" else on_kernels(pair, dtype=backend)[0]


def copied(state, order, rows=None):
    """Bytes that a selection writes, once the caches have room for its rows."""
    caches = (rows or state).cache, (rows or state).sources.cache
    for cache in caches:
        cache.reserve(len(order), 0)
    with Copied(*caches) as counted:
        state.select(order)
    return counted.bytes


@BACKENDS
@torch.inference_mode()
def test_a_fork_copies_the_positions_that_its_row_holds_and_never_the_source(backend):
    model = loaded(backend)
    role, entry = ModelVerifier(model), model.bytes_for(0, 1)
    state, prefix = standing(role, sentences(3, seed=2), [[] for _ in OUTPUTS])
    assert copied(state, [0, 1, 2, 0, 2]) == 0  # nothing is read yet: a group starts for nothing
    state.select([0, 1, 2])

    draft = Draft([list(output) for output in OUTPUTS])
    scores = role.score(state, prefix, draft)
    scores.logits()
    assert state.held == [3, 2, 5]  # with the start token
    role.commit(state, prefix, draft, Verdict([1, 1, 3], [4, 4, 4], [[0.0]] * 3, [False] * 3))
    assert state.held == [2, 2, 4]  # without refused tokens
    assert copied(state, [0, 1, 2, 2, 0, 2]) == (2 + 4 + 4) * entry
    assert state.held == [2, 2, 4, 4, 2, 4]
    owners = state.sources.slots
    assert len(set(owners)) == 3 and owners[2] == owners[3] == owners[5] and owners[0] == owners[4]
    if backend != "torch":
        assert len(set(state.slots)) == 6 and copied(state, [5, 3, 0]) == 0  # rows do not move


@BACKENDS
@torch.inference_mode()
def test_forks_go_on_apart(backend):
    """Each gets what it would get alone, also after rows that shared a source have left and others have come."""
    model = loaded(backend)
    role, sources = ModelVerifier(model), sentences(4, seed=2)

    def alone(source, tokens, draft):
        state = model.start(1)
        state.admit(Source([source], SYMBOLS))
        logits = tensor(model.read(state, Reading([[EOS, *tokens, *draft]], [0])).logits())
        return logits[0, len(tokens) : len(tokens) + len(draft) + 1].clone()

    state, prefix = standing(role, sources[:3], [[] for _ in OUTPUTS])
    role.score(state, prefix, Draft([list(output) for output in OUTPUTS])).logits()
    commit(prefix, OUTPUTS)
    texts = list(zip(sources, OUTPUTS))
    for seed, order in enumerate([[2, 0, 2, 1, 2], [1, 4, 0], [2, 0], [1, 0, 0, 1]]):
        if seed == 2:  # while rows share sources another one comes
            for each in (state, prefix):
                each.select([0, 1, 2, 2])
            texts.append(texts[2])
            state.admit(Source(sources[3:], SYMBOLS))
            prefix.admit([prefix.requests[0]])
            texts.append((sources[3], []))
            order = [4, 3, 2, 0]
        for each in (state, prefix):
            each.select(order)
        texts = [texts[row] for row in order]
        drafts = [[4 + (seed + row) % WORDS, 5 + row] for row in range(len(order))]
        logits = tensor(role.score(state, prefix, Draft(drafts)).logits()).clone()
        for row, ((source, tokens), draft) in enumerate(zip(texts, drafts)):
            expected, found = alone(source, tokens, draft), logits[row, :3]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-11 if backend == "torch" else 0)
        commit(prefix, [draft[:1] for draft in drafts])
        texts = [(source, [*tokens, draft[0]]) for (source, tokens), draft in zip(texts, drafts)]


@BACKENDS
@pytest.mark.parametrize("kind, length", [(CausalBlockDrafter, 3), (SmallDrafter, 1)])
@torch.inference_mode()
def test_a_drafters_fork_copies_what_it_has_read_of_the_prefix(backend, kind, length):
    drafter = kind(loaded(backend))
    state, prefix = standing(drafter, sentences(2, seed=1), [[5, 6], [7]])
    drafter.propose(state, prefix, uniform(2, length))
    assert copied(state, [0, 1, 0, 1], state.cache) == (3 + 2) * drafter.model.bytes_for(0, 1)  # masks aside
