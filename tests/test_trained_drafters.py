"""Drafters that train on a frozen verifier: training teaches what decoding uses, and outputs are the verifier's."""

import random
from argparse import Namespace
from dataclasses import replace
from itertools import cycle, product
from types import SimpleNamespace

import pytest
import torch
from conftest import make_batch, make_dictionary, make_verifier
from fairseq.distributed import ModuleProxyWrapper
from naive import altered, random_model
from support import EOS, SHAPES, SYMBOLS, WORDS, Lengths, Mixed, Noted, check_balance, check_sums, commit, sentences, stepwise
from test_blocks import sides_with
from test_native_loop import both, controllers, requests_of
from test_native_loop import run as native_run

from specdec_plugins.criterions.drafter_loss import DrafterLoss
from specdec_plugins.decoding import assembly, compiled, drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu import drafts
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.drafters import draft_in_turn, options_of
from specdec_plugins.decoding.drafters.block import Options
from specdec_plugins.decoding.loop import Session, speculative_decode
from specdec_plugins.decoding.networks.block import Network
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, blocks, network_of, without
from specdec_plugins.decoding.networks.masking import fixed_starts, leading_right, reveal
from specdec_plugins.decoding.options import Sampling, Tolerance, Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Distribution, Draft, Plan, Verdict, uniform
from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.model.spec import Attention, ModelSpec, Output
from specdec_plugins.models.drafter import DrafterShim

OPTIONS = {
    "small": {"layers": 1, "dropout": 0.0},
    "medusa": {"heads": 5},
    "hydra": {"heads": 5, "successor_width": 32},
    "block_state": {"length": 5, "layers": 2, "successor_width": 32},
    "block_causal": {"length": 5, "layers": 2, "successor_width": 32, "dropout": 0.0},
    "glide": {"length": 5, "layers": 2, "dropout": 0.0},
    "eagle": {"layers": 1, "steps": 5, "untold": 0.0},
}
WIDE = {
    "encoder_embed_dim": 32,
    "decoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 64,
    "decoder_ffn_embed_dim": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
}
FAMILIES = ("T5", "T5Gemma", "T5Gemma 2")  # keys without positions and a bias where they are read; rotated keys; merged attention
needs_kernels = pytest.mark.skipif(not compiled.library(), reason="no kernels for this machine")
backends = pytest.mark.parametrize(
    "dtype", ["float64", *(pytest.param(dtype, marks=needs_kernels) for dtype in ("float32", "int8"))]
)
samplings = pytest.mark.parametrize("sampling", [None, Sampling(0.7)], ids=["greedy", "sampled"])
every = pytest.mark.parametrize("name", OPTIONS)
heads = pytest.mark.parametrize("name", ["medusa", "hydra", "block_state"])


def make_model(seed=0, shape="pre-norm"):
    """A verifier for the engine, whose outputs do not end too soon; ``shape`` may be a family's of `test_blocks.py`."""
    if shape in FAMILIES:
        model = random_model(ModelSpec(*sides_with(shape), Output(scale=0.6)), WORDS + 4, WORDS + 4, seed)
        model.tensors["decoder.output_projection.weight"][EOS] *= 0.5
        return model
    model, args = make_verifier(seed=seed, words=WORDS, **{**SHAPES[shape], **WIDE})
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS] *= 0.5
    return fairseq.read({"model": model.state_dict(), "args": args, "cfg": None}, "verifier")


def make_network(name, model, seed=0, shake=0.1, dtype=torch.float64):
    """A drafter's network on a verifier, with perturbed weights."""
    code = drafters.find(name)
    torch.manual_seed(seed)
    verifier = FrozenVerifier(model, dtype=dtype)
    network = network_of(code)(code.Options(**OPTIONS[name]), verifier).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(shake * torch.randn_like(parameter))
    return network, verifier


def make_pair(name, dtype, seed=0, shape="pre-norm", threads=1):
    """Drafter and verifier as roles."""
    model = make_model(seed, shape)
    network, _ = make_network(name, model, seed)
    tensors = {key: tensor.float() for key, tensor in network.state_dict().items()}
    return assembly.assemble(model, DrafterModel(name, tensors, None, OPTIONS[name], 4), dtype=dtype, threads=threads)


def decode(verifier, drafter, requests, controller, rows, check=check_sums):
    """Tokens of each request in order, and statistics."""
    stats = DecodeStats()
    found = list(speculative_decode(Roles(drafter, verifier, TopBetaTau(), controller), requests, rows, stats))
    check(stats, found)
    return [each.tokens for each in sorted(found, key=lambda each: each.index)], stats


def run(verifier, drafter, requests, lengths, rows):
    return decode(verifier, drafter, requests, Lengths(lengths, ragged=True), rows, check_balance)


def requests_for(count, seed, limit=20, samplings=(None,)):
    sources = enumerate(sentences(count, seed=seed))
    return [Request(i, source, limit, sampling=samplings[i % len(samplings)], seeds=[i]) for i, source in sources]


@samplings
@backends
@every
def test_exact(name, dtype, sampling):
    """Against the verifier alone: ragged drafts, plain steps between, refills, ends of sentences, limits."""
    rng, accepted = random.Random(1), 0
    drafter, verifier = make_pair(name, dtype)
    requests = [replace(each, limit=rng.randrange(1, 25)) for each in requests_for(8, seed=6, samplings=[sampling])]
    expected, _ = run(verifier, NoDrafter(), requests, [0], 5)
    for rows, lengths in ((1, [4]), (3, [3, 0, 2]), (8, [5])):
        outputs, stats = run(verifier, drafter, requests, lengths, rows)
        assert outputs == expected
        accepted += stats.accepted
    assert accepted > 10


@samplings
@backends
@heads
def test_trees_of_heads(name, dtype, sampling):
    """They branch, some passes accept several tokens, and no output changes."""
    drafter, verifier = make_pair(name, dtype)
    requests = requests_for(6, seed=3, samplings=[sampling])
    expected, _ = run(verifier, NoDrafter(), requests, [0], 5)
    for rows in (1, 4):
        outputs, stats = decode(verifier, drafter, requests, FixedLength(4, tree=Tree(9)), rows)
        assert outputs == expected
        assert stats.drafted > 5 * stats.iterations and stats.accepted > 5


@backends
@heads
def test_outputs_where_chains_and_trees_take_turns(name, dtype):
    """From none to chains to trees and back, within sentences."""
    drafter, verifier = make_pair(name, dtype)
    requests = requests_for(12, seed=3, samplings=[Sampling(0.7), None])
    expected, _ = run(verifier, NoDrafter(), requests, [0], 5)
    for rows in (1, 4):
        noted = Noted(Mixed(5, 9, 1))
        outputs, stats = decode(verifier, drafter, requests, noted, rows)
        assert outputs == expected and noted.kinds == {"none", "chain", "tree"} and stats.accepted > 5


@every
def test_rejection_sampling_runs_on_both_backends(name):
    """Drafters report the distribution of each token; all sentences are decoded, and statistics balance."""
    for dtype in ("float64", "float32"):
        drafter, verifier = make_pair(name, dtype)
        requests = requests_for(8, seed=2, limit=12, samplings=[Sampling(1.0, rule="rejection")])
        outputs, stats = run(verifier, drafter, requests, [3, 1], 4)
        assert len(outputs) == 8 and stats.accepted > 3


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, "pre-norm") for name in ("medusa", "hydra", "block_state", "glide")), *(("glide", shape) for shape in FAMILIES)],
)
@torch.inference_mode()
def test_drafts_in_the_native_loop(name, shape, dtype):
    """Its drafts equal those of the session's own iterations: greedy with tolerances, sampled by either rule."""
    roles = make_pair(name, dtype, shape=shape)
    accepted = fewer = 0
    for rows, longest in ((1, 7), (3, 4), (8, 5)):
        plain = requests_of(14, seed=rows)
        drawn = [
            replace(each, tolerance=None, seeds=[each.index], sampling=Sampling(0.8, rule=rule))
            for each, rule in zip(plain, cycle(["coupled", "rejection"]))
        ]
        for requests in (plain, drawn):
            least = 0.05 if name == "glide" and rows > 1 else 0.0
            outputs, calls, expected_calls = both(roles, requests, controllers(longest, rows, least=least), rows)
            accepted += sum(step.accepted for output in outputs for step in output.steps)
            fewer += calls < expected_calls
    assert accepted > 60 and fewer == 6


@needs_kernels
@torch.inference_mode()
def test_threads_share_passes_of_large_drafters(monkeypatch):
    """Drafts of fewer sentences than threads are those of one thread."""
    found = []
    for threads, least in ((1, drafts.WORTH_SHARING), (3, drafts.WORTH_SHARING), (3, 1)):
        monkeypatch.setattr(drafts, "WORTH_SHARING", least)
        roles = make_pair("glide", "int8", threads=threads)
        for rows in (1, 2, 4):
            found.append(native_run(roles, requests_of(12, seed=rows), next(controllers(6, rows, least=0.05)), rows, True)[:2])
    assert found[:3] == found[3:6] == found[6:]


@needs_kernels
def test_heads_with_layers_keep_no_cache_of_the_output():
    """Not in the native loop either: room for a draft is enough, however long the output."""
    drafter, verifier = make_pair("block_state", "float32")
    verifier.limits = verifier.limits._replace(target_positions=151)
    requests = [Request(0, [5, 6, EOS], 150, min_length=150)]
    session = Session(Roles(drafter, verifier, TopBetaTau(), FixedLength(4)), BoundedAdmission(1), 1)
    expected = [output.tokens for output in session.run(requests)]
    drafting, verifying = session.runner.drafting, session.runner.verifying
    assert len(expected[0]) == 150 and drafting.cache.cache.capacity < 64 < 150 < verifying.cache.capacity
    session = Session(Roles(drafter, stepwise(verifier), TopBetaTau(), FixedLength(4)), BoundedAdmission(1), 1)
    assert [output.tokens for output in session.run(requests)] == expected


@backends
def test_vectors_are_read_as_tokens_are(dtype):
    """A permuted embedding table, indexed to match, gives the logits of the tokens, whatever position is read first."""
    model, _ = assembly.load(make_model(), None, dtype=dtype, threads=1)
    source, tokens = Source([[5, 6, EOS], [7, EOS]], SYMBOLS), [[2, 9, 4], [2, 8]]
    order = torch.randperm(len(model.target_embeddings), generator=torch.Generator().manual_seed(0))
    table, numbers = model.target_embeddings[order], order.argsort().tolist()

    def logits(rows, **embeddings):
        state = model.start(2)
        state.admit(source)
        done = tensor(model.read(state, Reading(rows, [0, 0], [1, 0], **embeddings)).logits()).clone()
        return done[0, :2], done[1, :2]

    expected = logits(tokens)
    found = logits([[numbers[token] for token in row] for row in tokens], embeddings=table)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))


def batch_of(verifier, lengths=(6, 3, 8), seed=0):
    """A training batch."""
    target = make_batch(lengths, words=WORDS, seed=seed)
    prefix = torch.cat([torch.full((len(lengths), 1), EOS), target[:, :-1]], 1)
    prefix[prefix.eq(EOS) & (torch.arange(prefix.size(1)) > 0)] = SYMBOLS.pad
    return Batch(make_batch([5, 7, 4], words=WORDS, seed=seed + 1), prefix, target, SYMBOLS, verifier)


def teach(network, batch, updates=40):
    """Losses per prediction while a network memorises a batch."""
    optimiser, losses = torch.optim.Adam(network.parameters(), 3e-3), []
    for _ in range(updates):
        loss = network.train().loss(batch)
        losses.append(float(loss.total) / float(loss.predictions))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
    return losses


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *product(OPTIONS, ["pre-norm"]),
        *product(["glide"], ["post-norm", *FAMILIES]),
        *(pytest.param(*case, marks=pytest.mark.long) for case in product(OPTIONS, ["post-norm"]) if case[0] != "glide"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in product(("small", "eagle", "block_causal"), FAMILIES)),
    ],
)
def test_training_teaches_what_decoding_uses(name, shape):
    """A batch can be memorised while the verifier stays frozen, and training and decoding agree on which drafted tokens are right
    after the target's own tokens."""
    model = make_model(3, shape)
    network, verifier = make_network(name, model, shake=0.0)
    batch = batch_of(verifier)
    losses = teach(network, batch)
    assert losses[-1] < 0.7 * losses[0]
    assert all(each.grad is not None for each in network.parameters())  # as distributed training requires
    assert all(not tensor.requires_grad for tensor in verifier.tensors.values())
    right = network.eval().loss(batch).right
    weights = DrafterModel(name, network.state_dict(), None, OPTIONS[name], right.size(1))
    drafter, judge = assembly.assemble(model, weights, dtype="float64")
    found = []
    for source, target in zip(without(batch.source, SYMBOLS.pad), without(batch.target, SYMBOLS.pad)):
        found += drafted_right(drafter, judge, source, target, right.size(1))
    # Predictions after a wrong one have a different prefix, so only leading ones compare. Decoding never starts with eos.
    expected, first = right.long().cumprod(1).sum(1).tolist(), [0, 6, 9]
    assert [n for i, n in enumerate(found) if i not in first] == [n for i, n in enumerate(expected) if i not in first]
    assert all(found[i] >= expected[i] for i in first)
    assert len(set(expected)) > 2


@pytest.mark.parametrize("shape", ["pre-norm", "post-norm", "learned", "untied", "unscaled"])
def test_training_teaches_what_decoding_with_a_whole_block_model_uses(shape):
    with pytest.raises(ValueError, match="tells mask symbols apart by position embeddings"):
        Network(Options(), FrozenVerifier(make_model(3, "T5")))
    model = make_model(3, shape)
    verifier = FrozenVerifier(model, dtype=torch.float64)
    torch.manual_seed(0)
    network = Network(Options(length=4, dropout=0.0), verifier).to(torch.float64)
    assert ("encoder.embed_positions.weight" in network.state_dict()) == (shape == "learned")
    batch = batch_of(verifier)
    batch = replace(batch, **{name: getattr(batch, name).repeat(4, 1) for name in ("source", "prefix", "target")})
    losses = teach(network, batch)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5]) and all(each.grad is not None for each in network.parameters())
    assert all(not tensor.requires_grad for tensor in verifier.tensors.values())
    weights = DrafterModel("block", network.state_dict(), None, {"length": 4}, 4)
    drafter, judge = assembly.assemble(model, weights, dtype="float64")
    right, starts = network.eval().loss(batch).right, fixed_starts(batch.target.ne(SYMBOLS.pad).sum(1), torch.arange(12))
    expected, found = leading_right(right).tolist(), []
    for start, source, target in zip(starts.tolist(), *(without(each, SYMBOLS.pad) for each in (batch.source, batch.target))):
        found.append(drafted_right(drafter, judge, source, target, 4)[start])
    assert [n for n, start in zip(found, starts) if start] == [n for n, start in zip(expected, starts) if start]
    assert len({*expected}) > 2 and len({*starts.tolist()}) > 4


def test_glancing_reveals_less_and_less(monkeypatch):
    """From ``glance_first`` of the wrong tokens to ``glance_last``, which the second pass need not predict."""
    verifier, ratios = FrozenVerifier(make_model(3), dtype=torch.float64), []

    def noted(wrong, masked, ratio, scores):
        ratios.append(ratio)
        return reveal(wrong, masked, ratio, scores)

    monkeypatch.setattr("specdec_plugins.decoding.networks.block.reveal", noted)
    network = Network(Options(length=4, glance_first=1.0, glance_last=0.0), verifier).to(torch.float64)
    counts = []
    for progress in (0.0, 0.5, 1.0):
        torch.manual_seed(1)
        counts.append(network.train().loss(replace(batch_of(verifier), progress=progress)).predictions)
    assert ratios == [1.0, 0.5, 0.0] and counts[0] < counts[1] < counts[2]


def started(drafter, verifier, sources):
    """States of both roles and the prefix, with a row per source."""
    verifying, prefix = verifier.start(4), Prefix()
    drafting = drafter.start(4, verifying)
    for role, state in ((drafter, drafting), (verifier, verifying)):
        role.admit(state, Source(sources, SYMBOLS))
    prefix.admit([Request(i, source, 100) for i, source in enumerate(sources)])
    return drafting, verifying, prefix


def drafted_right(drafter, verifier, source, target, size):
    """At each position of a target, how many leading tokens of a draft match it."""
    (drafting, verifying, prefix), counts = started(drafter, verifier, [source]), []
    for place, token in enumerate(target):
        draft = drafter.propose(drafting, prefix, uniform(1, size))
        ahead = target[place : place + size]
        counts.append(drafters.agreeing(draft.tokens[0], ahead))
        scores = verifier.score(verifying, prefix, draft, drafter.traits.wants)
        drafter.observe(drafting, scores, draft, Verdict([0], [token], [[0.0]], [False]))
        commit(prefix, [[token]])
    return counts


@pytest.mark.parametrize("name", ["medusa", "hydra", "block_state", "eagle"])
def test_weights_that_do_not_fit_are_named(name):
    model = make_model()
    network, _ = make_network(name, model)
    tensors = {key: tensor.float() for key, tensor in network.state_dict().items()}
    wrong = next(key for key in tensors if not key.startswith("decoder.") and tensors[key].dim() == 2)
    less = {key: tensor for key, tensor in tensors.items() if key != wrong}
    for given, message in (
        ({**tensors, wrong: tensors[wrong][1:]}, f"have {wrong} "),
        (less, f"have no {wrong}$"),
        ({**tensors, "more": tensors[wrong]}, "have more, which is unexpected"),
    ):
        with pytest.raises(ValueError, match=message):
            assembly.assemble(model, DrafterModel(name, given, None, OPTIONS[name], 4), dtype="float64")
    for options, message in (({"heads": "many"}, "'many'|no option 'heads'"), ({"depth": 1}, "no option 'depth'")):
        with pytest.raises(ValueError, match=message):
            assembly.assemble(model, DrafterModel(name, tensors, None, options, 4), dtype="float64")


@pytest.mark.parametrize("shape", ["pre-norm", "post-norm", "learned"])
def test_the_frozen_verifier_is_the_verifier(shape):
    """Hidden states of a whole prefix at once equal those of the verifier's own pass."""
    verifier = FrozenVerifier(make_model(shape=shape), dtype=torch.float64)
    batch = batch_of(verifier)
    states = verifier.states(batch.prefix, *verifier.encode(batch.source))
    present = batch.target != SYMBOLS.pad
    torch.testing.assert_close(states[present], verifier.read(batch.source, batch.prefix)[1][present])


def test_blocks_of_a_target():
    """Three predictions from each position on; past the end, all are wrong."""
    right, present = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]).bool(), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    expected = [[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert blocks(right, present, 3).long().tolist() == expected


@backends
@torch.no_grad()
def test_initial_states_are_those_of_training_and_made_only_to_draft(dtype):
    """Once per source; rows of a group share it, and iterations without drafts compute none."""
    drafter, verifier = make_pair("hydra", dtype)
    made, beginning, sources = [], drafter.beginning, [[5, 6, 9, EOS], [7, EOS], [11, 12, EOS]]
    drafter.beginning = lambda encoded: made.append(len(encoded)) or beginning(encoded)
    expected, _ = run(verifier, drafter, [Request(i, each, 9) for i, each in enumerate(sources)], [0], 2)
    assert not made
    outputs, _ = run(verifier, drafter, [Request(i, each, 9, seeds=(0, 0)) for i, each in enumerate(sources)], [3], 6)
    assert made == list(map(len, sources)) and outputs == [each for each in expected for _ in range(2)]

    state, source = drafter.start(4, None), Source(sources, SYMBOLS)
    drafter.admit(state, source)
    state.select([2, 1, 1])
    network = make_network("hydra", make_model())[0].float().to(tensor(state.states))
    encoded = [each[: len(tokens)] for each, tokens in zip(tensor(drafter.verifier.encode(source)), sources)]
    wanted = [network.beginning(each[None], each.new_zeros(1, len(each)))[0] for each in encoded]
    torch.testing.assert_close(tensor(state.current()), torch.stack([wanted[row] for row in (2, 1, 1)]))


@backends
@pytest.mark.parametrize("name", ["small", "eagle"])
def test_rows_that_pause_keep_their_state(name, dtype):
    """Each row drafts what it drafts alone, whatever other rows draft and however rows move."""
    drafter, verifier = make_pair(name, dtype)
    sources, rng = [[5, 6, 9, EOS], [7, EOS], [11, 12, EOS]], random.Random(3)

    def step(states, lengths, tokens):
        drafting, verifying, prefix = states
        draft = drafter.propose(drafting, prefix, Plan(lengths))
        scores = verifier.score(verifying, prefix, draft, drafter.traits.wants)
        scores.logits()
        drafter.observe(drafting, scores, draft, Verdict([0] * len(lengths), tokens, [[0.0]] * len(lengths), []))
        commit(prefix, [[token] for token in tokens])
        return draft.tokens

    together, alone = started(drafter, verifier, sources), [started(drafter, verifier, [source]) for source in sources]
    owners = [0, 1, 2]
    for turn in range(6):
        lengths, tokens = [rng.choice([0, 1, 4]) for _ in owners], [rng.randrange(4, WORDS) for _ in owners]
        drafts = step(together, lengths, tokens)
        for row, owner in enumerate(owners):
            expected = step(alone[owner], [lengths[row]], [tokens[row]])[0]
            assert drafts[row] == expected, (turn, row)
        order = rng.sample(range(3), 3)
        for state in together:
            state.select(order)
        owners = [owners[row] for row in order]


def test_distributions_of_a_draft_in_turn_are_its_own():
    """A recorded pass reuses the memory of its results."""
    tokens, probabilities = torch.zeros(1, 1, 2, dtype=torch.int64), torch.zeros(1, 1, 2)
    prefix, made = Prefix(), []
    prefix.admit([Request(0, [5, EOS], 9)])

    def choose(ahead, wanted):
        made.append(len(ahead.outputs[0]))
        tokens.fill_(len(made))
        probabilities.fill_(len(made) / 10)
        return Draft([[5 + len(made)]], Distribution(tokens, probabilities))

    draft = draft_in_turn(prefix, Plan([3]), choose, torch)
    assert made == [0, 1, 2] and draft.tokens == [[6, 7, 8]]
    assert draft.distribution.tokens[0, :, 0].tolist() == [1, 2, 3]
    assert draft.distribution.probabilities[0, :, 1].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_draft_ends_with_the_token_that_makes_it_improbable():
    """Unless its length can change the output."""
    prefix, confidence = Prefix(), [[0.9, 0.8, 0.7, 0.9], [0.9, 0.4, 0.9, 0.9], [0.1] * 4, [0.1] * 4]
    rejecting = Sampling(rule="rejection")
    for index, options in enumerate(({}, {"sampling": Sampling()}, {"tolerance": Tolerance(2)}, {"sampling": rejecting})):
        prefix.admit([Request(index, [5, EOS], 9, **options)])

    def choose(ahead, wanted):
        draft = Draft([[6] if more else [] for more in wanted])
        draft.confidence = [row[min(len(output), 3)] for row, output in zip(confidence, ahead.outputs)]
        return draft

    def drafted(length, least):
        return [*map(len, draft_in_turn(prefix, Plan([length] * 4, least=least), choose, torch).tokens)]

    assert drafted(4, 0.6) == [3, 2, 4, 4]  # 0.9, 0.72, 0.504; 0.9, 0.36
    assert drafted(4, 0.5) == [4, 2, 4, 4] and drafted(2, 0.5) == [2, 2, 2, 2] and drafted(4, 0.0) == [4] * 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("small", {"layers": 0}, "option layers is 0, less than 1"),
        ("eagle", {"steps": None}, "option steps: 'None' is not of type int"),
        ("medusa", {"heads": [5]}, "is not of type int"),
        ("hydra", {"heads": -1, "successor_width": 0}, "heads is -1.*successor_width is 0"),
        ("eagle", {"layers": 1e999}, "option layers: 'inf' is not of type int"),
    ],
)
def test_options_from_outside(name, options, message):
    """One line names what is wrong, whatever the type."""
    with pytest.raises(ValueError, match=message):
        assembly.assemble(make_model(), DrafterModel(name, {}, None, options, 4), dtype="float64")


def test_several_gpus_share_the_gradients(tmp_path):
    """fairseq's data-parallel training only synchronises gradients of what a model's `forward` computed."""
    from torch import distributed

    code, model = drafters.find("medusa"), make_model()
    shim = DrafterShim(code, options_of(code.Options, []), model)
    dictionary = make_dictionary(WORDS)
    batch = batch_of(None)
    inputs = {"src_tokens": batch.source, "prev_output_tokens": batch.prefix}
    sample = {"net_input": inputs, "target": batch.target, "ntokens": 17}
    shared = []

    def share(_, bucket):
        shared.append(bucket.buffer().numel())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(shim)
        parallel.register_comm_hook(None, share)
        loss, _, _ = DrafterLoss(SimpleNamespace(target_dictionary=dictionary))(ModuleProxyWrapper(parallel), sample)
        loss.backward()
    finally:
        distributed.destroy_process_group()
    assert sum(shared) == sum(parameter.numel() for parameter in shim.parameters() if parameter.requires_grad) > 0


def test_a_drafter_trains_on_its_verifiers_dictionary(tmp_path):
    verifier, args = make_verifier()
    path = tmp_path / "verifier.pt"
    checkpoint.save({"args": args, "model": verifier.state_dict()}, path)
    task = SimpleNamespace(source_dictionary=make_dictionary(), target_dictionary=make_dictionary(9))
    options = Namespace(drafter="medusa", verifier=str(path), drafter_options=[])
    with pytest.raises(ValueError, match=r"verifier.pt has 24 symbols in its decoder, the data 13"):
        DrafterShim.build_model(options, task)
    task.target_dictionary = make_dictionary()
    shim = DrafterShim.build_model(options, task)
    other = {**shim.state_dict(), "block_verifier": torch.zeros_like(shim.block_verifier)}
    mark = shim.block_verifier.clone()
    shim.load_state_dict(other)
    assert shim.block_verifier.equal(mark)


@pytest.mark.parametrize("name", ["small", "eagle", "block_state"])
def test_no_more_layers_than_the_verifier_has(name):
    code, model = drafters.find(name), make_model()
    options = options_of(code.Options, ["layers=9"])
    with pytest.raises(ValueError, match="--drafter-options layers=9: the verifier has 2 to start from"):
        network_of(code)(options, FrozenVerifier(model))


def test_layers_begin_as_the_verifiers_evenly_spread():
    verifier, args = make_verifier(words=WORDS, decoder_layers=5, **WIDE)
    frozen = FrozenVerifier(fairseq.read({"model": verifier.state_dict(), "args": args, "cfg": None}, "verifier"))
    network = network_of(drafters.find("small"))(options_of(drafters.find("small").Options, ["layers=2"]), frozen).state_dict()
    for layer, source in ((0, 1), (1, 4)):
        assert network[f"decoder.layers.{layer}.fc1.weight"].equal(frozen.tensors[f"decoder.layers.{source}.fc1.weight"])


def test_a_verifier_without_decoder_layers_is_refused():
    model = make_model()
    side = replace(model.spec.decoder, layers=0)
    tensors = {name: tensor for name, tensor in model.tensors.items() if not name.startswith("decoder.layers.")}
    with pytest.raises(ValueError, match="a decoder without layers"):
        assembly.assemble(replace(model, spec=replace(model.spec, decoder=side), tensors=tensors), None, dtype="float64")


def test_a_drafter_on_the_verifiers_cache_takes_its_shape_from_the_verifier():
    """Whatever spec and options a folder claims: its passes address the verifier's memory."""
    model = make_model()
    network, _ = make_network("glide", model)
    tensors = {key: tensor.float() for key, tensor in network.state_dict().items()}
    claimed = replace(model.spec, decoder=replace(model.spec.decoder, layers=1, attention=Attention(1)))
    given = DrafterModel("glide", tensors, claimed, OPTIONS["glide"], 4, hosts=1000)
    made = drafters.as_transformer(given, model)
    decoder = model.spec.decoder
    assert made.spec == replace(
        model.spec, decoder=altered(decoder, layers=2, inner_width=min(decoder.feed_forward.width, decoder.width))
    )
    assert made.hosts == decoder.layers
    with pytest.raises(ValueError, match="no option 'hosts'"):
        drafters.as_transformer(replace(given, options={**given.options, "hosts": 1000}), model)
    with pytest.raises(ValueError, match=f"drafter 'glide' has {decoder.layers + 1} layers, its verifier {decoder.layers}"):
        drafters.as_transformer(DrafterModel("glide", tensors, None, {"layers": decoder.layers + 1}, 4), model)
