"""The rules on trees, on given logits: against brute force, chains and distributions; and whole sentences under rejection."""

import inspect
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from naive import repeating
from reference import chances, warped
from support import EOS, SYMBOLS, Knowing
from test_sampling import WARPS, improbability, tiny
from test_trees import KERNELS, decode, random_tree

from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.torch import trees as rules
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.passes import TorchPass
from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import Sampling, Tolerance
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.trees import TreeDraft, path_to
from specdec_plugins.decoding.values import Draft, Draws


def given_pass(logits, kernels):
    """A pass that has logits (B, W, V), float64, on PyTorch or on the kernels."""
    if kernels:
        return CpuPass.of(SimpleNamespace(engine=binding.Engine(2)), logits.float())
    return TorchPass(SimpleNamespace(executor=EAGER), {"logits": logits})


RULES = pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=KERNELS)], ids=["pytorch", "kernels"])


def passing(logits, token, said, beta, tau, room, minimum, repeats):
    """Whether a token passes after those ``said`` by logits, a list; and the token that comes if none does."""
    allowed, depth = list(logits), len(said)
    for each in (SYMBOLS.pad, 11, *([EOS] if depth < minimum else []), *repeating([*repeats.prefix, *said], repeats.size)):
        allowed[each] = -math.inf
    ranked = sorted(range(len(allowed)), key=lambda number: (-allowed[number], number))
    if depth >= room:
        ranked, beta = [EOS], 1
    near = beta == 1 or (allowed[ranked[0]] - allowed[token] <= tau and allowed[token] > -math.inf)
    return token in ranked[:beta] and near, ranked[0]


@RULES
def test_the_longest_acceptable_path_is_taken(kernels):
    """Against all paths of random trees, with ties among logits, all constraints, and rows of different tolerance."""
    rng = random.Random(5)
    generator = torch.Generator().manual_seed(5)
    branched = lengths = 0
    for _ in range(120):
        rows = rng.randrange(1, 6)
        parents = [random_tree(rng, rng.randrange(30)) for _ in range(rows)]
        tokens = [rng.choices((EOS, 4, 5, 6, 7, 8), k=len(tree)) for tree in parents]
        room = [rng.choice((0, 1, 3, 30, 30, 30)) for _ in range(rows)]
        draft = TreeDraft(tokens, parents).clip(room, EOS)
        tokens, parents = draft.tokens, draft.parents
        logits = torch.randn(rows, max(map(len, tokens)) + 1, 12, generator=generator, dtype=torch.float64).mul(2).round()
        logits += torch.tensor([0, 0, 2, 0, *[2] * 5, 0, 0, 3])  # what is drafted is likely, and what is suppressed, too
        tolerances = [
            Tolerance(beta, rng.choice((0.5, 2.0, math.inf)) if beta > 1 else math.inf)
            for beta in rng.choices((1, 2, 4, 6), k=rows)
        ]
        minimum = [rng.choice((0, 0, 2)) for _ in range(rows)]
        repeats = [Repeats(rng.choice((0, 0, 1, 2)), rng.choices((4, 5, 6, 7), k=rng.randrange(5))) for _ in range(rows)]
        bounds = Bounds(Constraints(suppressed=(11,)), room, minimum, rng.choice((None, repeats)))
        verdict = given_pass(logits, kernels).judge(draft, bounds, tolerances, None)
        for row in range(rows):
            values = logits[row].tolist()
            scores = logits[row].log_softmax(-1)
            rule = bounds.repeats[row] if bounds.repeats else Repeats(0, ())
            limits = tolerances[row].beta, tolerances[row].tau, room[row], minimum[row], rule
            acceptable = {}
            for node in range(-1, len(tokens[row])):
                path = path_to(node, parents[row])
                before = [-1, *path]
                words = [tokens[row][each] for each in path]
                if all(
                    passing(values[a + 1], words[depth], words[:depth], *limits)[0]
                    for depth, (a, b) in enumerate(zip(before, path))
                ):
                    acceptable[tuple(path)] = sum(float(scores[a + 1, tokens[row][b]]) for a, b in zip(before, path))
            longest = max(map(len, acceptable))
            best = max(score for path, score in acceptable.items() if len(path) == longest)
            path = verdict.paths[row]
            assert verdict.accepted[row] == len(path) == longest
            assert acceptable[tuple(path)] == pytest.approx(best, abs=1e-5)
            end = path[-1] if path else -1
            words = [tokens[row][node] for node in path]
            own = passing(values[end + 1], 0, words, *limits)[1]
            assert verdict.own[row] == own
            said = [*(tokens[row][node] for node in path), own]
            expected = [float(scores[node + 1, token]) for node, token in zip((-1, *path), said)]
            assert verdict.scores[row] == pytest.approx(expected, abs=1e-5)
            unlimited = passing(values[end + 1], 0, words, *limits[:2], 99, *limits[3:])[1]
            assert verdict.cut[row] == (longest >= room[row] and unlimited != EOS)
            lengths += longest
            branched += len([each for each in acceptable if len(each) == longest]) > 1 and longest > 0
    assert lengths > 100 and branched > 10


@RULES
@pytest.mark.parametrize("rule", [None, "coupled", "rejection"])
def test_a_tree_that_does_not_branch_is_a_chain(rule, kernels):
    """The verdict is the chain's, by each rule; under rejection by the same numbers."""
    generator = torch.Generator().manual_seed(2)
    rng = random.Random(2)
    tokens = [rng.choices(range(4, 9), k=4) for _ in range(40)]
    logits = torch.randn(40, 5, 9, generator=generator, dtype=torch.float64)
    logits[:, :4].scatter_(2, torch.tensor(tokens)[..., None], 3.0)
    bounds = Bounds(Constraints(), [4 + row % 3 for row in range(40)], [row % 2 for row in range(40)])
    how = Sampling(0.9, repetition_penalty=1.2, rule=rule or "coupled")
    draws = [Draws(how, row, [0, 5]) for row in range(40)] if rule else None
    tolerances = [Tolerance(1 + row % 2) for row in range(40)]
    chain = given_pass(logits, kernels).judge(Draft(tokens), bounds, tolerances, draws)
    draft = TreeDraft(tokens, [[-1, 0, 1, 2]] * 40)
    found = given_pass(logits, kernels).judge(draft, bounds, tolerances, draws)
    assert found[:2] == chain[:2] and found.cut == chain.cut
    assert found.paths == [[*range(accepted)] for accepted in chain.accepted]
    for mine, theirs in zip(found.scores, chain.scores):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert 4 in chain.accepted and 0 in chain.accepted


# After two tokens of a prefix: the logits after it, and after each next token. The tree has tokens 3, 0 and 3 again after the
# prefix, and 1, 5 and 0 after the first 3; so there are refusals after refusals.
FIRST, SECOND = (torch.randn(*shape, 6, generator=torch.Generator().manual_seed(8)).double() for shape in ((), (6,)))
BRANCHES = [3, 0, 3, 1, 5, 0, 2], [-1, -1, -1, 0, 0, 0, 1]


def two_tokens(how, count, kernels=False):
    """Counts of the first two tokens after the prefix, over ``count`` seeds."""
    tokens, parents = BRANCHES
    logits = torch.stack([FIRST, *SECOND[tokens]]).expand(count, -1, -1)
    draws = [Draws(how, seed, [2, 5]) for seed in range(count)]
    constraints = Constraints(SimpleNamespace(pad=4, eos=4))  # the fifth token never comes
    free = Bounds(constraints, [9] * count, [9] * count)
    draft = TreeDraft([tokens] * count, [parents] * count)
    verdict = given_pass(logits, kernels).judge(draft, free, [Tolerance()] * count, draws)
    said = [[*(tokens[node] for node in path), own] for path, own in zip(verdict.paths, verdict.own)]
    short = [row for row, row_said in enumerate(said) if len(row_said) == 1]
    more = [draws[row]._replace(prefix=[2, 5, *said[row]]) for row in short]
    if short:
        logits = torch.stack([SECOND[said[row]] for row in short])
        bounds = Bounds(constraints, [9] * len(short), [9] * len(short))
        later = given_pass(logits, kernels).judge(Draft([[]] * len(short)), bounds, [Tolerance()] * len(short), more)
        for row, token in zip(short, later.own):
            said[row].append(token)
    return Counter(tuple(row[:2]) for row in said)


def expected_two(how):
    def chance(logits, prefix):
        logits = logits.tolist()
        logits[4] = -math.inf
        return warped(logits, prefix, how)

    first = chance(FIRST, [2, 5])
    return {
        (a, b): first[a] * second for a in range(6) if first[a] for b, second in enumerate(chance(SECOND[a], [2, 5, a])) if second
    }


@RULES
@pytest.mark.parametrize("warping", WARPS)
@pytest.mark.parametrize("count", [4_000, pytest.param(40_000, marks=pytest.mark.long)])
def test_rejection_on_a_tree_gives_the_verifiers_distribution(count, warping, kernels):
    how = Sampling(**{**vars(WARPS[warping]), "rule": "rejection"})
    assert improbability(two_tokens(how, count, kernels), expected_two(how)) > 1e-4


@KERNELS
def test_rejection_on_the_kernels_is_that_of_pytorch():
    """The same tries with the same numbers, under all constraints: rounding decides nothing here."""
    rng, generator = random.Random(6), torch.Generator().manual_seed(6)
    refused = lengths = 0
    for _ in range(100):
        rows = rng.randrange(1, 6)
        parents = [random_tree(rng, rng.randrange(20)) for _ in range(rows)]
        room = [rng.choice((0, 1, 3, 30, 30)) for _ in range(rows)]
        draft = TreeDraft([rng.choices((EOS, 4, 5, 6, 7), k=len(tree)) for tree in parents], parents).clip(room, EOS)
        logits = torch.randn(rows, max(map(len, draft.tokens)) + 1, 12, generator=generator, dtype=torch.float64)
        logits = (logits + torch.tensor([0, 0, 2, 0, *[2] * 4, 0, 0, 0, 3])).float().double()
        repeats = [Repeats(rng.choice((0, 1, 2)), rng.choices((4, 5, 6, 7), k=rng.randrange(5))) for _ in range(rows)]
        bounds = Bounds(
            Constraints(suppressed=(11,)), room, [rng.choice((0, 2)) for _ in range(rows)], rng.choice((None, repeats))
        )
        how = [
            rng.choice((None, Sampling(), Sampling(0.8, rule="rejection"), Sampling(1.5, 6, 0.9, 1.7, "rejection")))
            for _ in repeats
        ]
        draws = [each and Draws(each, rng.randrange(99), rng.choices((4, 5, 6), k=3)) for each in how]
        tolerances, scored = [Tolerance()] * rows, [rng.random() < 0.5 for _ in repeats]
        found, expected = (given_pass(logits, each).judge(draft, bounds, tolerances, draws, scored) for each in (True, False))
        assert found._replace(scores=[]) == expected._replace(scores=[])
        for mine, theirs in zip(found.scores, expected.scores):
            assert mine == pytest.approx(theirs, abs=1e-5)
        lengths += sum(found.accepted)
        refused += sum(bool(tree) and not path for tree, path in zip(draft.parents, found.paths))
    assert lengths > 40 and refused > 20


MUTATIONS = {
    "nothing is normalised": (rules.first_accepted, "number * left < chance", "number < chance"),
    "normalised by all that was tried before": (rules.first_accepted, "left -= chance", "left *= chance"),
    "one number for all tries": (rules.first_accepted, "zip(children, uniforms)", "zip(children, [uniforms[0]] * 9)"),
    "tried twice": (rules.first_accepted, "if token in refused:", "if False:"),
    "the own token is drawn from all": (rules.draw_rest, "if refused:", "if False:"),
    "the last refusal alone counts": (rules.first_accepted, "return None, refused", "return None, refused[-1:]"),
    "always the first child": (rules.first_accepted, "number * left < chance", "True"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_rule_is_noticed(mutation, monkeypatch):
    function, old, new = MUTATIONS[mutation]
    source = inspect.getsource(function)
    assert source.count(old) == 1
    exec(source.replace(old, new), names := dict(vars(rules)))
    monkeypatch.setattr(rules, function.__name__, names[function.__name__])
    how = Sampling(rule="rejection")
    counts, expected = two_tokens(how, 4_000), expected_two(how)
    assert any(key not in expected for key in counts) or improbability(counts, expected) < 1e-9


class Fixed(Knowing):
    """The same tree in every step."""

    def __init__(self, tokens, parents):
        self.tree = tokens, parents

    def propose(self, state, prefix, plan):
        tokens, parents = self.tree
        return TreeDraft([tokens for _ in plan.lengths], [parents for _ in plan.lengths])


@pytest.mark.parametrize("warping", ["plain", "all"])
@pytest.mark.parametrize("rows", [1_000, pytest.param(7, marks=pytest.mark.long)])
def test_sentences_come_as_often_as_they_should(rows, warping):
    """Of a tiny model under the rejection rule: whole sentences, listed with their probabilities."""
    fairseq_model, verifier, _, tilt = tiny()
    how = Sampling(**{**vars(WARPS[warping]), "rule": "rejection"})
    source = [4, 5, 4, EOS]
    requests = [Request(index, source, 3, sampling=how, seeds=[mixed(7, index)]) for index in range(3_000)]
    drafter = Fixed([4, 5, EOS, 3, 4, EOS, 4], [-1, -1, 0, 0, 3, 1, 1])
    hypotheses, stats = decode(verifier, drafter, requests, 3, rows)
    counts = Counter(tuple(each.tokens) + (() if each.cut else (EOS,)) for each in hypotheses)
    listed = chances(fairseq_model, source, 4, how, tilt)
    expected = Counter()
    for key, chance in listed.items():
        expected[key if EOS in key else key[:3]] += chance
    assert improbability(counts, expected) > 1e-4
    assert stats.accepted > 0.3 * stats.iterations
