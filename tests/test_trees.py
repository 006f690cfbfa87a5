"""Trees of drafted tokens: their passes against chains along their paths, their rules against brute force, whole decodings."""

import itertools
import random

import pytest
import torch
from reference import following, encode, greedy
from support import EOS, SHAPES, SYMBOLS, WORDS, Knowing, Lengths, check_sums, load, make_tilt, sentences, tilted_verifier
from test_kernels import KERNEL_SHAPES, on_kernels, wide_verifier

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.drafters.none import NoDrafter
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import TreeDraft, depths, path_to
from specdec_plugins.decoding.values import Draft, Request, Source

KERNELS = pytest.mark.skipif(not binding.library(), reason="the kernels were not compiled for this machine")
BACKENDS = ["float64", *(pytest.param(dtype, marks=KERNELS) for dtype in binding.DTYPES)]


def loaded(dtype, shape="post-norm"):
    """A verifier on PyTorch in float64, or on the kernels in another data type."""
    if dtype == "float64":
        return load(wide_verifier(**SHAPES[shape]))[0]
    return on_kernels(wide_verifier(**KERNEL_SHAPES[shape]), dtype=dtype)[0]


def random_tree(rng, nodes):
    """Parents of so many nodes: bushy or long, in any order in which parents come first."""
    reach = rng.choice((1, 2, 4, nodes + 1))
    return [rng.randrange(max(-1, node - reach), node) for node in range(nodes)]


def same(found, expected, dtype):
    if dtype == "float64":
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", ["post-norm", "learned", "unscaled"])
@pytest.mark.parametrize("dtype", BACKENDS)
def test_a_node_has_the_logits_of_a_chain_along_its_path(dtype, shape):
    """Ragged rows, some without nodes, several unread tokens before the root, lengths beyond a block of attention; and once a
    path is kept, the next pass is that of a row that read the path as a chain."""
    rng, model = random.Random(shape), loaded(dtype, shape)
    for _ in range(4):
        sources = sentences(4, seed=rng.random())
        tree, chain = model.start(4), model.start(4)
        for state in (tree, chain):
            state.admit(Source(sources, SYMBOLS))
        before = [[EOS, *rng.choices(range(4, WORDS + 4), k=rng.randrange(20))] for _ in sources]
        for state in (tree, chain):
            model.read(state, before, [0] * 4).logits()
        fresh = [rng.choices(range(4, WORDS + 4), k=rng.randrange(1, 4)) for _ in sources]
        trees = [random_tree(rng, rng.choice((0, 1, 5, 24))) for _ in sources]
        nodes = [rng.choices(range(4, WORDS + 4), k=len(parents)) for parents in trees]
        positions = list(map(len, before))
        tokens = [[*row, *more] for row, more in zip(fresh, nodes)]
        found = model.read(tree, tokens, positions, None, parents=trees).logits().clone()
        firsts = [len(row) - 1 for row in fresh]
        narrowed = model.read(tree, tokens, positions, firsts, parents=trees).logits().clone()
        paths = [path_to(rng.randrange(-1, len(parents)), parents) for parents in trees]
        for row, (unread, drafted, parents) in enumerate(zip(fresh, nodes, trees)):
            same(narrowed[row, : len(drafted) + 1], found[row, len(unread) - 1 :][: len(drafted) + 1], dtype)
            for node in range(-1, len(parents)):
                path = path_to(node, parents)
                others = [[] for _ in sources]
                others[row] = [*unread, *(drafted[each] for each in path)]
                chained = model.read(chain, others, positions).logits()
                same(found[row, len(unread) + node], chained[row, len(unread) + len(path) - 1], dtype)
        # Keep a path of each row, and go on.
        tree.keep([position + first for position, first in zip(positions, firsts)], paths)
        kept = [[*row, *(drafted[node] for node in path)] for row, drafted, path in zip(fresh, nodes, paths)]
        model.read(chain, kept, positions).logits()
        further = [[5, 6, 7]] * 4
        places = [position + len(row) for position, row in zip(positions, kept)]
        expected = model.read(chain, further, places).logits().clone()
        same(model.read(tree, further, places).logits(), expected, dtype)


def test_a_tree_is_cut_where_its_paths_must_end():
    draft = TreeDraft([[5, EOS, 6, 7, 8, 9]], [[-1, 0, 1, 0, 3, -1]])
    assert (clipped := draft.clip([9], EOS)).tokens == [[5, EOS, 7, 8, 9]] and clipped.parents == [[-1, 0, 0, 2, -1]]
    assert (clipped := draft.clip([2], EOS)).tokens == [[5, EOS, 7, 9]] and clipped.parents == [[-1, 0, 0, -1]]
    assert draft.clip([0], EOS).tokens == [[]]
    assert depths([-1, 0, 1, 0, 3, -1]) == [1, 2, 3, 2, 3, 1]


class Branching(Knowing):
    """Trees at random, in which the output that follows is often a path; with errors, ends of sentence and equal siblings."""

    def propose(self, state, prefix, plan):
        tokens, trees = [], []
        for request, output, length in zip(prefix.requests, prefix.outputs, plan.lengths):
            future = [*self.outputs[request.index], EOS][len(output) :][:length]
            row, parents, ends = [], [], {-1: 0}  # nodes on the path of the output, and how far it has come there
            for node in range(self.random.randrange(3 * length + 1)):
                parent = self.random.choice([*ends, self.random.randrange(-1, node)])
                known = ends.get(parent, length) < len(future) and self.random.random() >= self.error
                row.append(future[ends[parent]] if known else self.random.randrange(2, WORDS))
                parents.append(parent)
                if known:
                    ends[node] = ends[parent] + 1
            tokens.append(row)
            trees.append(parents)
        return TreeDraft(tokens, trees)


def decode(verifier, drafter, requests, block, rows, acceptance=None, ragged=False):
    """Hypotheses in the order of the requests, and statistics, which balance."""
    stats, controller = DecodeStats(), Lengths([block], ragged) if isinstance(block, int) else Lengths(block, ragged)
    found = speculative_decode(drafter, verifier, acceptance or TopBetaTau(), controller, requests, rows, stats)
    hypotheses = sorted(found, key=lambda hypothesis: hypothesis.index)
    assert [hypothesis.index for hypothesis in hypotheses] == [request.index for request in requests]
    check_sums(stats, hypotheses)
    assert (controller.passes, controller.drafted, controller.accepted) == (stats.passes, stats.drafted, stats.accepted)
    return hypotheses, stats


def said(hypotheses, dtype):
    """What must not depend on drafts: tokens; on the kernels scores, too, bit for bit."""
    return [(each.tokens, each.cut, each.token_scores if dtype != "float64" else None) for each in hypotheses]


DRAWN = {"best": None, "drawn": Sampling(1.5, top_k=12, top_p=0.95), "penalised": Sampling(0.8, repetition_penalty=1.7)}


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("dtype", BACKENDS)
def test_the_output_is_that_without_drafts(dtype, how):
    """Exact and coupled, in ragged batches of several sizes, with short limits, shortest lengths, forced tokens and ends inside of
    trees; and trees do pay: paths of several tokens are accepted."""
    rng, accepted = random.Random(how), 0
    for bias in (-6.0, 0.5):
        verifier = tilted_verifier(loaded(dtype), make_tilt(3, bias).to(torch.float64 if dtype == "float64" else torch.float32))
        requests = [
            Request(index, source, rng.randrange(1, 22), min_length=rng.choice((0, 1, 4)), forced=rng.choice(((), (), (7, 9))),
                    sampling=rng.choice((DRAWN[how], DRAWN[how], None)), seed=rng.randrange(99))
            for index, source in enumerate(sentences(10, seed=4))
        ]  # fmt: skip
        alone, _ = decode(verifier, NoDrafter(), requests, 0, 1)
        outputs = [hypothesis.tokens for hypothesis in alone]
        assert len({tuple(tokens) for tokens in outputs}) > 5
        for error, rows, block in ((0.0, 1, 3), (0.3, 4, [1, 0, 5, 2]), (0.5, 10, 6), (1.0, 3, 4)):
            found, stats = decode(verifier, Branching(outputs, error), requests, block, rows, ragged=rows == 4)
            assert said(found, dtype) == said(alone, dtype)
            accepted = max(accepted, stats.mean_accepted_length)
    assert accepted > 2
