"""Trees of drafted tokens: their passes against chains along their paths, their growth against brute force, whole decodings."""

import math
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from reference import drafted as drafted_features
from support import (
    DRAFTERS,
    EOS,
    SHAPES,
    SYMBOLS,
    WORDS,
    Knowing,
    Mixed,
    Noted,
    Tilted,
    check_sums,
    load,
    make_pair,
    make_tilt,
    run,
    sentences,
    standing,
    tilted_verifier,
)
from tapes import Tapes
from test_kernels import KERNEL_SHAPES, ROLES, on_kernels, variant, wide_drafter, wide_verifier  # noqa: F401

from specdec_plugins import Translator
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.cpu.candidates import candidates_of as in_numpy
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.candidates import candidates_of as in_pytorch
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.passes import TorchPass
from specdec_plugins.decoding.control.fixed import ALWAYS
from specdec_plugins.decoding.drafters import Rows
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.drafters.lookahead import Lookahead
from specdec_plugins.decoding.drafters.ngram import NGram
from specdec_plugins.decoding.drafters.recycling import Recycling
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.options import Sampling, Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import TreeDraft, depths, grow, path_to
from specdec_plugins.decoding.values import Plan
from specdec_plugins.decoding.verifier import ModelVerifier

KERNELS = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
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


SHAPED = pytest.mark.parametrize("shape", ["post-norm", "learned", "unscaled"])


@SHAPED
def test_a_node_has_the_logits_of_a_chain_along_its_path(shape):
    check_nodes(loaded("float64", shape), "float64", shape)


@SHAPED
@pytest.mark.parametrize("dtype", binding.DTYPES)
def test_on_kernels_it_has_them_bit_for_bit(variant, dtype, shape):  # noqa: F811
    check_nodes(loaded(dtype, shape), dtype, shape)


def check_nodes(model, dtype, seed):
    """Ragged rows, some without nodes, several unread tokens before the root, lengths beyond a block of attention; and once a
    path is kept, the next pass is that of a row that read the path as a chain."""
    rng = random.Random(seed)
    for _ in range(4):
        sources = sentences(4, seed=rng.random())
        tree, chain = model.start(4), model.start(4)
        for state in (tree, chain):
            state.admit(Source(sources, SYMBOLS))
        before = [[EOS, *rng.choices(range(4, WORDS + 4), k=rng.randrange(20))] for _ in sources]
        for state in (tree, chain):
            model.read(state, Reading(before, [0] * 4)).logits()
        fresh = [rng.choices(range(4, WORDS + 4), k=rng.randrange(1, 4)) for _ in sources]
        trees = [random_tree(rng, rng.choice((0, 1, 5, 24))) for _ in sources]
        nodes = [rng.choices(range(4, WORDS + 4), k=len(parents)) for parents in trees]
        positions = list(map(len, before))
        tokens = [[*row, *more] for row, more in zip(fresh, nodes)]
        found = tensor(model.read(tree, Reading(tokens, positions, None, parents=trees)).logits()).clone()
        firsts = [len(row) - 1 for row in fresh]
        narrowed = tensor(model.read(tree, Reading(tokens, positions, firsts, parents=trees)).logits()).clone()
        paths = [path_to(rng.randrange(-1, len(parents)), parents) for parents in trees]
        for row, (unread, drafted, parents) in enumerate(zip(fresh, nodes, trees)):
            same(narrowed[row, : len(drafted) + 1], found[row, len(unread) - 1 :][: len(drafted) + 1], dtype)
            for node in range(-1, len(parents)):
                path = path_to(node, parents)
                others = [[] for _ in sources]
                others[row] = [*unread, *(drafted[each] for each in path)]
                chained = tensor(model.read(chain, Reading(others, positions)).logits())
                same(found[row, len(unread) + node], chained[row, len(unread) + len(path) - 1], dtype)
        # Keep a path of each row, and go on.
        tree.keep([position + first for position, first in zip(positions, firsts)], paths)
        kept = [[*row, *(drafted[node] for node in path)] for row, drafted, path in zip(fresh, nodes, paths)]
        model.read(chain, Reading(kept, positions)).logits()
        further = [[5, 6, 7]] * 4
        places = [position + len(row) for position, row in zip(positions, kept)]
        expected = tensor(model.read(chain, Reading(further, places)).logits()).clone()
        same(tensor(model.read(tree, Reading(further, places)).logits()), expected, dtype)


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


decode = partial(run, check=check_sums)


def said(hypotheses, dtype):
    """What must not depend on drafts: tokens; on the kernels scores, too, bit for bit."""
    return [(each.tokens, each.cut, each.token_scores if dtype != "float64" else None) for each in hypotheses]


DRAWN = {"best": None, "drawn": Sampling(1.5, top_k=12, top_p=0.95), "penalised": Sampling(0.8, repetition_penalty=1.7)}


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("dtype", BACKENDS)
def test_the_output_is_that_without_drafts(dtype, how):
    """Exact and coupled, in ragged batches of several sizes, with short limits, least lengths, forced tokens, and ends inside of
    trees; and trees do pay: paths of several tokens are accepted."""
    rng, accepted = random.Random(how), 0
    for bias in (-6.0, 0.5):
        verifier = tilted_verifier(loaded(dtype), make_tilt(3, bias).to(torch.float64 if dtype == "float64" else torch.float32))
        requests = [
            Request(
                index,
                source,
                rng.randrange(1, 22),
                min_length=rng.choice((0, 1, 4)),
                forced=rng.choice(((), (), (7, 9))),
                sampling=rng.choice((DRAWN[how], DRAWN[how], None)),
                seeds=[rng.randrange(99)],
                no_repeat=rng.choice((0, 0, 1, 2)),
                scores=index % 3 > 0,
            )
            for index, source in enumerate(sentences(10, seed=4))
        ]
        alone, _ = decode(verifier, NoDrafter(), requests, 0, 1)
        outputs = [hypothesis.tokens for hypothesis in alone]
        assert len({tuple(tokens) for tokens in outputs}) > 5
        for error, rows, block in ((0.0, 1, 3), (0.3, 4, [1, 0, 5, 2]), (0.6, 10, 6)):
            found, stats = decode(verifier, Branching(outputs, error), requests, block, rows, ragged=rows == 4)
            assert said(found, dtype) == said(alone, dtype)
            accepted = max(accepted, stats.mean_accepted_length)
    assert accepted > 2


# ---- growth


@pytest.mark.parametrize("dtype", ["float64", pytest.param("int8", marks=KERNELS)])
def test_an_output_does_not_depend_on_the_batch(dtype):
    """Nor where it depends on drafts: under the tolerant rule, and under rejection."""
    verifier, drafter = wide_verifier(), wide_drafter(arch="block_causal", successor_width=32)
    model, drafting = load(verifier, drafter) if dtype == "float64" else on_kernels(verifier, drafter, dtype)
    tilt = make_tilt(3, -1.0).to(torch.float64 if dtype == "float64" else torch.float32) / 2
    how = Sampling(0.9, top_k=9, rule="rejection")
    requests = [
        Request(index, source, 14, sampling=[how, None][index % 2], seeds=[index])
        for index, source in enumerate(sentences(12, seed=8))
    ]
    found = []
    for rows in (1, 5, 12):
        role = CausalBlockDrafter(Tilted(drafting, tilt))
        verifier = tilted_verifier(model, tilt)
        hypotheses, stats = decode(verifier, role, requests, 4, rows, acceptance=TopBetaTau(3, 2.0), tree=Tree(10))
        found.append([(each.tokens, each.steps) for each in hypotheses])
        assert stats.mean_accepted_length > 1.5
    assert found[0] == found[1] == found[2]


def markov(rng, width):
    """Candidates of random scores after each of some tokens, and the whole tree of them up to a depth."""
    table = {
        token: torch.randn(width, generator=torch.Generator().manual_seed(rng.randrange(9999))).log_softmax(0).tolist()
        for token in range(-1, width)
    }

    def children(key):
        depth, token = key
        ranked = sorted(enumerate(table[token]), key=lambda each: -each[1])
        return [] if depth == 4 else [(score, number, (depth + 1, number)) for number, score in ranked]

    def everything(key=(0, -1), path=(), above=0.0):
        for score, token, own in children(key):
            yield (*path, token), above + score
            yield from everything(own, (*path, token), above + score)

    return children, dict(everything())


def paths_of(tokens, parents):
    return [tuple(tokens[node] for node in path_to(end, parents)) for end in range(len(tokens))]


@pytest.mark.parametrize("nodes", [1, 5, 40, 10_000])
def test_a_tree_has_the_likeliest_paths(nodes):
    children, everything = markov(random.Random(nodes), 5)
    tokens, parents = grow(children, (0, -1), Tree(nodes))
    best = sorted(everything, key=lambda path: -everything[path])[:nodes]
    assert sorted(paths_of(tokens, parents)) == sorted(best) and len(tokens) == min(nodes, len(everything))
    assert all(parent < node for node, parent in enumerate(parents))


def test_a_tree_has_the_shape_that_is_asked_for():
    children, everything = markov(random.Random(1), 5)
    shape = ((0,), (2,), (0, 1), (0, 1, 0), (2, 0), (0, 9), (0, 9, 0), (7,))  # some ranks have no candidate

    def ranked(path):
        found = ()
        for rank in path:
            found = sorted((each for each in everything if each[:-1] == found), key=lambda each: -everything[each])[rank]
        return found

    assert paths_of(*grow(children, (0, -1), Tree(99, shape))) == [
        ranked(path) for path in ((0,), (2,), (0, 1), (2, 0), (0, 1, 0))
    ]
    assert len(grow(children, (0, -1), Tree(3, shape))[0]) == 3


@pytest.mark.parametrize("kind", ["causal", "untied successor", "source copy", "some tokens, successor"])
def test_block_drafters_draft_the_likeliest_paths(kind):
    """Against every path of three tokens, counted out from the features of the drafter in fairseq's form."""
    (_, plugin), (_, drafter), tilt = make_pair(5, drafter=DRAFTERS[kind], shake=0.3)
    rng, sources = random.Random(kind), sentences(3, seed=2)
    targets = [[], [7], rng.choices(range(4, WORDS + 4), k=6)]
    for nodes in (30, 4):
        state, prefix = standing(drafter, sources, targets)
        draft = drafter.propose(state, prefix, Plan([3, 2, 3], tree=Tree(nodes)))
        for row, (source, target, length) in enumerate(zip(sources, targets, (3, 2, 3))):
            every = counted_out(plugin, source, target, length, tilt)
            best = sorted(every, key=lambda path: -every[path])[:nodes]
            assert sorted(paths_of(draft.tokens[row], draft.parents[row])) == sorted(best)


def counted_out(plugin, source, target, length, tilt):
    """Each path that may be drafted, and its score."""
    features = drafted_features(plugin, source, target, length, project=False)
    vocabulary = getattr(plugin.decoder, "draft_vocabulary", torch.arange(WORDS + 4))
    successor, found = getattr(plugin.decoder, "successor", None), {}

    def extend(path, above):
        depth = len(path)
        if depth == length or EOS in path:
            return
        feature = features[depth]
        plain, after = plugin.decoder.output_layer(feature), 0
        if successor is not None and path:
            after = plugin.decoder.output_layer(successor(feature, plugin.decoder.embed_tokens.weight[path[-1]]))
        banned = [token for token in range(WORDS + 4) if token not in vocabulary or token == SYMBOLS.pad]
        plain = plain + tilt[len(target) + depth]
        plain[banned + ([EOS] if not target and not path else [])] = -math.inf
        few = plain.argsort(descending=True)[:16]
        for token, score in zip(few.tolist(), (plain + after)[few].log_softmax(0).tolist()):
            if score > -math.inf:
                longer = (*path, token)
                found[longer] = above + score
                extend(longer, above + score)

    with torch.no_grad():
        extend((), 0.0)
    return found


@pytest.mark.parametrize("successor", [False, True])
def test_candidates_in_numpy_are_those_in_pytorch(successor):
    """Tokens and scores, in rows that draw or not, with a vocabulary of the drafter's own."""
    generator, vocabulary = torch.Generator().manual_seed(1), [*range(2, 40)]
    hows = [
        None,
        Sampling(0.7),
        Sampling(1.4, 5, 0.8),
        Sampling(1.1, 3, rule="rejection"),
        Sampling(0.9, 0, 0.6, 1.3, "rejection"),
    ]
    prefix = Prefix()
    prefix.admit([Request(row, [5, EOS], 20, sampling=how, seeds=[row - 2 << 40]) for row, how in enumerate(hows)])
    prefix.outputs = [[7] * row for row in range(5)]
    logits, gates = (torch.randn(5, 4, size, generator=generator) for size in (len(vocabulary), 32))
    tables = {name: torch.randn(len(vocabulary), 32, generator=generator) for name in ("tokens", "out")} if successor else None
    given = gates if successor else None
    expected = in_pytorch(logits, given, tables and SimpleNamespace(**tables), vocabulary, prefix)
    arrays = tables and SimpleNamespace(**{name: table.numpy() for name, table in tables.items()})
    found = in_numpy(logits.numpy(), given if given is None else given.numpy(), arrays, vocabulary, prefix)
    assert found.tokens == expected.tokens
    chances = (torch.tensor(each.scores, dtype=torch.float64).exp() for each in (found, expected))
    torch.testing.assert_close(*chances, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("arch", ["block", "block_causal"])
@pytest.mark.parametrize("dtype", BACKENDS)
def test_trees_of_a_models_own_drafter(dtype, arch):
    """The tree of the first ranks is the drafter's chain, also where rows draw their tokens by the coupled rule; and no tree
    changes an output."""
    verifier, drafter = wide_verifier(), wide_drafter(arch=arch, **({"successor_width": 32} if arch == "block_causal" else {}))
    model, drafting = load(verifier, drafter) if dtype == "float64" else on_kernels(verifier, drafter, dtype)
    tilt = make_tilt(3, -1.0).to(torch.float64 if dtype == "float64" else torch.float32) / 2
    role, first = ROLES[arch](Tilted(drafting, tilt)), Tree(9, ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)))
    how = Sampling(1.2, top_k=9, top_p=0.97, repetition_penalty=1.2)
    requests = [
        Request(index, source, 14, sampling=[how, None, how][index % 3], seeds=[index])
        for index, source in enumerate(sentences(9, seed=8))
    ]
    drafts = []
    for plan in (Plan([4] * 9, tree=first), Plan([4] * 9)):
        state, prefix = role.start(9, None), Prefix()
        role.admit(state, Source([request.tokens for request in requests], SYMBOLS))
        prefix.admit(requests)
        drafts.append(role.propose(state, prefix, plan).clip([9] * 9, EOS))
    trees, chains = drafts
    assert trees.tokens == chains.tokens and trees.parents == [[*range(-1, len(row) - 1)] for row in trees.tokens]

    checked = tilted_verifier(model, tilt)
    alone, _ = decode(checked, NoDrafter(), requests, 0, 4)
    for tree, rows in ((Tree(12), 4), (Tree(5), 9), (Tree(9, ((0,), (1,), (0, 0), (1, 0))), 1)):
        found, stats = decode(checked, role, requests, [4, 1, 6], rows, ragged=rows == 9, tree=tree)
        assert said(found, dtype) == said(alone, dtype)
        assert stats.drafted > 3 * stats.iterations * (rows != 9)


@pytest.mark.parametrize("make", [Recycling, lambda: Lookahead(range(WORDS + 4))])
@pytest.mark.parametrize("dtype", BACKENDS)
def test_trees_of_drafters_without_weights(dtype, make):
    """They change no output, and are accepted more often than chains."""
    model = loaded(dtype)
    tilt = make_tilt(3, -2.0, positions=1).expand(64, -1).to(torch.float64 if dtype == "float64" else torch.float32)
    verifier = tilted_verifier(model, tilt)
    requests = [
        Request(index, source, 30, sampling=[Sampling(0.9), None][index % 2], seeds=[index])
        for index, source in enumerate(sentences(10, seed=8))
    ]
    alone, _ = decode(verifier, NoDrafter(), requests, 0, 4)
    rates = []
    for tree in (None, Tree(12)):
        found, stats = decode(verifier, make(), requests, 4, 3, tree=tree)
        assert said(found, dtype) == said(alone, dtype)
        rates.append(stats.mean_accepted_length)
    assert rates[1] > rates[0] > 1


def predicting(logits):
    """A pass of PyTorch's with these logits."""
    return TorchPass(None, {"logits": logits})


def test_recycled_trees():
    """They have the likeliest successors that the verifier had."""
    drafter = Recycling()
    logits = torch.randn(2, 3, WORDS, generator=torch.Generator().manual_seed(1))
    draft = TreeDraft([[7, 8], [5]], [[-1, 0], [-1]])
    drafter.observe(Rows([5, 6]), predicting(logits), draft, None)  # the later 5 counts
    for token, (row, place) in {5: (1, 1), 6: (1, 0), 7: (0, 1), 8: (0, 2)}.items():
        expected = sorted(range(WORDS), key=lambda number: -logits[row, place, number])[:8]
        assert [follower for _, follower in drafter.branches[token]] == expected
        scores = logits[row, place].log_softmax(-1)[expected].tolist()
        assert [score for score, _ in drafter.branches[token]] == pytest.approx(scores, abs=1e-6)

    def paths(token, length, nodes):
        return paths_of(*grow(partial(drafter.children, length), (0, token), Tree(nodes)))

    assert paths(4, 3, 5) == [] and len(paths(6, 1, 50)) == 8
    assert max(map(len, paths(6, 3, 500))) == 3


@pytest.mark.parametrize("kind", ["block", "block_causal", "recycling", "lookahead"])
@pytest.mark.parametrize("dtype", BACKENDS)
def test_outputs_where_chains_and_trees_take_turns(dtype, kind):
    """With none between, at random, in the native loop and out of it."""
    verifier, trained = wide_verifier(), kind.startswith("block")
    verifier[0].decoder.output_projection.weight.data[EOS] *= 0.5
    drafter = wide_drafter(arch=kind, **({"successor_width": 32} if kind == "block_causal" else {})) if trained else None
    model, drafting = load(verifier, drafter) if dtype == "float64" else on_kernels(verifier, drafter, dtype)
    requests = [
        Request(index, source, 24, seeds=[index], sampling=DRAWN["drawn"] if index % 2 else None)
        for index, source in enumerate(sentences(10, seed=9))
    ]
    alone, _ = decode(ModelVerifier(model), NoDrafter(), requests, 0, 4)
    for rows in (1, 5):
        role = ROLES[kind](drafting) if trained else Recycling() if kind == "recycling" else Lookahead(range(WORDS + 4))
        stats, noted = DecodeStats(), Noted(Mixed(5, 12, kind))
        found = speculative_decode(Roles(role, ModelVerifier(model), TopBetaTau(), noted), requests, rows, stats)
        hypotheses = sorted(found, key=lambda hypothesis: hypothesis.index)
        assert said(hypotheses, dtype) == said(alone, dtype)
        assert noted.kinds == {"none", "chain", "tree"} and stats.accepted
        check_sums(stats, hypotheses)


def test_recycling_branches_from_what_chains_taught():
    """Where no pass of a tree has read a token, its only successor is what followed it in a chain; and trees teach chains."""
    drafter, prefix = Recycling(), Prefix()
    state = drafter.start(1, None)
    drafter.admit(state, Source([[5, EOS]], SYMBOLS))
    prefix.admit([Request(0, [5, EOS], 20)])
    drafter.successors |= {SYMBOLS.start: 7, 7: 9, 9: 4}
    drafter.branches[9] = [(-0.1, 6), (-3.0, 8)]
    draft = drafter.propose(state, prefix, Plan([3], tree=Tree(9)))
    assert sorted(paths_of(draft.tokens[0], draft.parents[0])) == [(7,), (7, 9), (7, 9, 6), (7, 9, 8)]
    logits = torch.randn(1, 5, WORDS, generator=torch.Generator().manual_seed(0))
    state.rows, scores = [3], predicting(logits)
    drafter.observe(state, scores, TreeDraft([[7, 9, 6, 8]], [[-1, 0, 1, 1]]), None)
    assert [drafter.successors[token] for token in (3, 7, 9, 6, 8)] == logits[0].argmax(-1).tolist()


def test_a_drafter_that_does_not_branch_is_refused():
    folder = str(ROOT / "data" / "demo.en-de")
    with pytest.raises(ValueError, match="drafter 'NGram' does not support trees"):
        Translator.from_pretrained(folder, drafter=NGram([]), tree=4)
    branching = {"draft_with": "lookahead", "tree": 4}
    assert Translator.from_pretrained(folder, **branching).engine.roles.controller.plan([0]) == Plan((8,), ALWAYS, tree=Tree(4))
    translator = Translator.from_pretrained(folder, **branching, block_size=3)
    assert translator.engine.roles.controller.plan([0, 0]) == Plan((3, 3), ALWAYS, tree=Tree(4))
    texts = [
        Translator.from_pretrained(folder, **how).translate(["A dog runs.", "Two men are cooking in a kitchen."])
        for how in ({"strategy": "ar"}, {**branching, "block_size": "model"})
    ]
    assert [result.text for result in texts[0]] == [result.text for result in texts[1]]
    assert any(len(step.drafted) == 4 for result in texts[1] for step in result.steps)


def test_recorded_passes_of_trees():
    """What a GPU records is what passes say, on the memory of the runs before, and sizes are few."""
    for kind in ("successor", "source copy"):
        found = []
        for runner in (EAGER, Tapes()):
            _, (verifier, drafter), _ = make_pair(bias=-1.0, drafter=DRAFTERS[kind], shake=0.1, runner=runner)
            requests = [
                Request(index, source, 5 + index, sampling=DRAWN["drawn"] if index % 3 else None, seeds=[index])
                for index, source in enumerate(sentences(12, seed=5))
            ]
            for _ in range(2):
                hypotheses, _ = decode(verifier, drafter, requests, 4, 5, acceptance=TopBetaTau(3, 2.0), tree=Tree(9))
            found.append([(each.tokens, each.steps, each.cut) for each in hypotheses])
        assert found[0] == found[1]
        assert sum(tape.replays for tape in runner.tapes) > 2 * len(runner.tapes) > 0 and runner.record is not None
