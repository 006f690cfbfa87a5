"""Trees, and drafts for beam searches, in the kernels' one call against the session's own iterations: the same outputs, steps,
scores and sums, to the last bit."""

import random
from copy import copy
from dataclasses import replace
from functools import partial

import pytest
from support import SYMBOLS, WORDS, check_sums, finished, sentences, stepwise
from test_beam import KERNELS, Planned, outputs_by, requests_of
from test_kernels import DTYPES
from test_native_search import verifier_of
from test_speculative_beam import Foreseeing, lives_of
from test_trees import Branching

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.drafters import Rows
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.options import Beam, Sampling, Tolerance, Tree
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Drafter, NoDrafter, Roles, Traits
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Draft, Want
from specdec_plugins.model.spec import OutputRules

pytestmark = KERNELS
RULES = [None, Sampling(1.5, top_k=12, top_p=0.95), Sampling(1.2, rule="rejection"), Sampling(0.9, 9, 0.9, 1.7, "rejection")]


def run(verifier, drafter, requests, rows, lengths, native, tree=None, constraints=None):
    """Outputs and sums. A native run calls no verifier."""
    given = copy(verifier) if native else stepwise(verifier)
    if native:
        given.score = None
    roles = Roles(drafter, given, TopBetaTau(), Planned(list(lengths), tree=tree))
    session, found = Session(roles, BoundedAdmission(rows), rows, constraints), []
    for request in requests:
        session.submit(request)
    while not session.idle:
        found += finished(session.step())
    if all(request.beam is None for request in requests):
        check_sums(session.stats, found)
    stats, state = session.stats, session.runner.verifying
    assert not state.targets.users and state.slots == []  # every slot was given back
    counts = stats.passes, stats.iterations, stats.drafted, stats.accepted, stats.own_tokens, stats.committed
    return sorted(found, key=lambda each: (each.index, each.output)), counts


def both(verifier, drafter, *arguments, **options):
    """The native run; checks that Python's iterations give the same. ``drafter()`` makes one."""
    native, python = (run(verifier, drafter(), *arguments, native, **options) for native in (True, False))
    assert native == python
    return native


def mixed_requests(count, seed):
    """Exact, tolerant, coupled and under rejection, with constraints, in turn."""
    rng = random.Random(seed)
    return [
        Request(
            index,
            source,
            rng.randrange(1, 24),
            min_length=rng.choice((0, 1, 4)),
            forced=rng.choice(((), (), (7, 9))),
            tolerance=rng.choice((None, Tolerance(3, 2.0))),
            sampling=RULES[index % len(RULES)],
            seeds=[rng.randrange(99)],
            no_repeat=rng.choice((0, 0, 1, 2)),
            scores=index % 3 > 0,
        )
        for index, source in enumerate(sentences(count, seed))
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_trees_are_judged_as_in_python(dtype):
    """Under every rule, in ragged batches, with chains and plain iterations between."""
    verifier, requests, accepted = verifier_of(dtype), mixed_requests(16, 3), []
    outputs = [each.tokens for each in run(verifier, NoDrafter(), requests, 4, [0], True)[0]]
    for error, rows, lengths in ((0.0, 1, [4]), (0.3, 5, [5, 0, 2]), (0.7, 16, [6])):
        _, counts = both(verifier, partial(Branching, outputs, error), requests, rows, lengths, tree=Tree(9))
        accepted.append(counts[3] / counts[1])
    assert accepted[0] > 0.5 and accepted[2] > 0.1


class Settled(Foreseeing):
    """Whose trees depend on nothing but request and output: batches may have their rows in another order."""

    def tree(self, lives, output, depth, most):
        self.random = random.Random(str((output, depth)))
        return super().tree(lives, output, depth, most)


@pytest.mark.parametrize("branching", [True, False], ids=["trees", "chains"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_searches_replay_steps_as_in_python(dtype, branching, monkeypatch):
    """Beams of all kinds, lengths and bans under both rules, right drafts and wrong ones; outputs are those without drafts."""
    verifier, requests = verifier_of(dtype), requests_of(14, 11, greedy=False)
    lives, accepted = lives_of(stepwise(verifier), requests, monkeypatch), 0
    expected = outputs_by(run(verifier, NoDrafter(), requests, 30, [0], True)[0])
    for how, rows, lengths in (("right", 8, [4]), ("ended", 19, [3, 0, 5]), ("wrong", 30, [3])):
        found, counts = both(verifier, partial(Settled, lives, how, branching), requests, rows, lengths)
        assert outputs_by(found) == expected
        accepted = max(accepted, counts[3] / counts[1])
    assert accepted > (1 if branching else 0.1)


@pytest.mark.parametrize("ends", [True, False])
def test_searches_of_imported_models(ends, monkeypatch):
    """Without a forced end, with context in n-grams, suppressed tokens, all ways to stop, and limits within drafts."""
    rng, rules = random.Random(4), OutputRules("huggingface", ends=ends)
    constraints = Constraints(SYMBOLS, forced=(7,), suppressed=(0, 9), rules=rules)
    requests = []
    for index, source in enumerate(sentences(18, 13)):
        size, stopping = rng.choice([1, 2, 4, 7]), ("false", "true", "never")[index % 3]
        beam = Beam(size, "huggingface", rng.choice([-0.5, 0, 1, 1.6]), rng.randint(1, size), 0.0, stopping, rng.random() < 0.5)
        limit, least = rng.choice([2, 4, 12, 30]), rng.choice([0, 1, 5])
        requests.append(Request(index, source, limit, least, beam=beam, no_repeat=rng.choice([0, 1, 2, 3])))
    verifier = verifier_of(seed=3)
    lives = lives_of(stepwise(verifier), requests, monkeypatch, constraints)
    expected = outputs_by(run(verifier, NoDrafter(), requests, 16, [0], True, constraints=constraints)[0])
    for how in ("right", "too long"):
        found, counts = both(verifier, partial(Settled, lives, how, True), requests, 16, [5], constraints=constraints)
        assert outputs_by(found) == expected and counts[3] > counts[1]


def test_when_no_token_is_allowed_after_a_draft(monkeypatch):
    constraints = Constraints(SYMBOLS, suppressed=(*range(7, WORDS + 4),))
    requests = [
        Request(index, source, 9, 6, beam=Beam(3, rules, nbest=2), no_repeat=1)
        for index, (source, rules) in enumerate(zip(sentences(6, 2), 3 * ["fairseq", "huggingface"]))
    ]
    verifier = verifier_of()
    lives = lives_of(stepwise(verifier), requests, monkeypatch, constraints)
    found, counts = both(verifier, partial(Settled, lives, "right", True), requests, 12, [4], constraints=constraints)
    assert found and all(len(each.tokens) < 6 for each in found) and counts[3]


class Watching(Drafter):
    """Drafts at random, chains or trees, and notes what it sees of each row: of which request, tokens, verdict, results."""

    def __init__(self, branching):
        self.traits, self.branching = Traits(follows=True, wants=Want(features=True)), branching
        self.random, self.seen = random.Random(5), []

    def start(self, rows, shared):
        return Rows()

    def admit(self, state, source):
        state.rows += [tuple(tokens) for tokens in source.sentences]

    def propose(self, state, prefix, plan):
        drafts = {}
        for source in sorted({*state.rows}):
            siblings = self.random.sample(range(4, WORDS + 4), WORDS)
            parents = [-1] * WORDS + [self.random.randrange(WORDS) for _ in siblings]
            drafts[source] = siblings + siblings[:: self.random.choice((1, -1))], parents
        tokens, parents = (list(each) for each in zip(*(drafts[source] for source in state.rows)))
        return TreeDraft(tokens, parents) if self.branching else Draft(tokens)

    def observe(self, state, scores, draft, verdict):
        logits, features = tensor(scores.logits()), tensor(scores.features())
        for row, (source, tokens) in enumerate(zip(state.rows, draft.tokens)):
            path, size = list(verdict.results(row)), len(tokens) + 1
            said = source, tokens, draft.parents and draft.parents[row], verdict.own[row]
            self.seen.append((path, said, logits[row, :size].tolist(), features[row, :size].tolist()))


@pytest.mark.parametrize("branching", [True, False], ids=["trees", "chains"])
def test_drafters_see_searches_and_other_rows(branching):
    """Whoever runs the pass; rows may be in another order."""
    seen, requests = [], [replace(each, sampling=None) for each in requests_of(12, 15)]
    for native in (True, False):
        drafter = Watching(branching)
        run(verifier_of(), drafter, requests, 12, [5], native)
        seen.append(sorted(drafter.seen, key=repr))
    assert seen[0] == seen[1]
    assert any(path[-1] >= len(path) if branching else len(path) > 1 for path, *_ in seen[0])
