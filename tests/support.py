"""What the engine's tests share: models of known logits, drafters of known quality, and a loop that checks its statistics."""

import itertools
import random
from copy import copy
from types import SimpleNamespace

import pytest
import torch
from conftest import make_drafter, make_verifier, model_settings

from specdec_plugins.decoding import compiled, drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.networks.drafter_code import Loss
from specdec_plugins.decoding.options import Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import depths, within_rows
from specdec_plugins.decoding.values import Draft, Iterations, Plan, uniform
from specdec_plugins.decoding.verifier import ModelVerifier, Unverified, accept_all
from specdec_plugins.formats import fairseq
from specdec_plugins.model.spec import Symbols

WORDS, EOS = 20, 2
SYMBOLS = Symbols()
UNTIED = {"share_all_embeddings": False, "share_decoder_input_output_embed": False}
SHAPES = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True, "activation_fn": "gelu"},
    "separate": {"share_all_embeddings": False, "decoder_layers": 1},
    "untied": {**UNTIED, "decoder_ffn_embed_dim": 40},
    "unscaled": {"no_scale_embedding": True, "layernorm_embedding": True, "decoder_normalize_before": True},
}
DRAFTERS = {
    "block": {"src_embedding_copy": False},
    "source copy": {"src_embedding_copy": True},
    "causal": {"arch": "block_causal"},
    "successor": {"arch": "block_causal", "successor_width": 7},
    "untied successor": {"arch": "block_causal", "successor_width": 7, **UNTIED},
    "some tokens": {"draft_vocabulary": [*range(8), 9, 13, 21], "src_embedding_copy": False},
    "some tokens, successor": {"draft_vocabulary": [*range(4), *range(9, 24)], "arch": "block_causal", "successor_width": 7},
}


def compiled_for(name, monkeypatch):
    """The kernels for a set of instructions, which others are made with from now on; None if this CPU does not have it."""
    compiled.library.cache_clear()
    monkeypatch.setattr(compiled, "VARIANTS", (name,))
    return compiled.library()


def read_call(stack, width, caches, tokens, positions, firsts, slots, source_slots, source_lengths, **results):
    """A `ReadCall` of calls.h, and what has to live as long as it. ``caches``: address and strides of both; ``results``:
    addresses."""
    library, given = compiled.library(), integers(*tokens)
    rows = library.rows(
        "ReadRow",
        tokens=map(len, tokens),
        position=positions,
        first=firsts,
        slot=slots,
        source_slot=source_slots,
        source_length=source_lengths,
    )
    call = library.structs["ReadCall"](
        stack=stack.pointer,
        caches=library.structs["Caches"](*caches, 0),
        batch=len(tokens),
        width=width,
        rows=start(rows),
        tokens=start(given),
        layer=-1,
        heads=-1,
        **results,
    )
    return call, (rows, given)


def long_but(cases, *quick):
    """Cases to parametrise a test with, of which ``make test`` takes the quick ones, and ``make test-long`` the others."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.long) for case in cases]


# ---- models


def engine_model(model, args, name="model"):
    """A fairseq model as the engine's formats read it."""
    return fairseq.read({"model": model.state_dict(), "args": args, "cfg": None}, name)


def load(verifier, drafter=None, dtype=torch.float64, runner=EAGER):
    """fairseq models, each with its settings, on the PyTorch backend."""
    models = load_pair(engine_model(*verifier), drafter and engine_model(*drafter), dtype=dtype)
    return tuple(model and TorchModel(model, runner) for model in models)


def shaken(model, seed=0):
    """A model whose every weight matters: fresh biases are 0 and fresh norms 1, so that leaving them out would go unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def make_tilt(seed, eos_bias, positions=64):
    """(positions, V) what to add at each target position; ``eos_bias`` decides how soon sentences end."""
    tilt = 2 * torch.randn(positions, WORDS + 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tilt[:, EOS] += eos_bias
    return tilt


class Tilted:
    """A loaded model with something added to its logits, position by position: a random model says one word all the time."""

    runner = None

    def __init__(self, model, tilt):
        self.model = model
        names = getattr(model, "vocabulary", None)
        names = names or getattr(getattr(getattr(model, "transformer", None), "decoder", None), "vocabulary", None)
        self.tilt = tilt if names is None else tilt[:, names]

    def __getattr__(self, name):
        return getattr(self.model, name)

    def read(self, state, reading):
        tokens, positions, parents = reading.tokens, reading.positions, reading.parents
        firsts = reading.firsts or [0] * len(positions)
        done = self.model.read(state, reading)
        if parents is None:
            return self._tilted(done, [position + first for position, first in zip(positions, firsts)])
        logits = tensor(done.logits()).clone()
        for row, (position, first, follows) in enumerate(zip(positions, firsts, within_rows(tokens, parents))):
            added = self.tilt[[position + depth - 1 for depth in depths(follows)][first:]].to(logits)
            logits[row, : len(added)] += added
        return done.with_logits(logits)

    def read_block(self, state, prefix, lengths):
        return self._tilted(self.model.read_block(state, prefix, lengths), list(map(len, prefix.outputs)))

    def _tilted(self, done, starts):
        logits = tensor(done.logits()).clone()  # a recorded pass computes more rows
        places = torch.tensor(starts)[:, None] + torch.arange(logits.size(1))
        logits[: len(starts)] += self.tilt[places.clamp(max=len(self.tilt) - 1)].to(logits)
        return done.with_logits(logits)


def tilted_verifier(model, tilt):
    return ModelVerifier(Tilted(model, tilt))


def make_pair(seed=0, same_encoder=False, bias=0.0, drafter=None, shake=0.0, runner=EAGER, **changes):
    """A verifier and a block drafter, both tilted alike, in fairseq's form and as roles; and the tilt.

    ``shake`` moves the drafter's weights: a fresh successor network adds nothing.
    """
    verifier, args = make_verifier(seed=seed, words=WORDS, **changes)
    changes = {**changes, **(drafter or {})}
    plugin = make_drafter(seed=seed + 1, words=WORDS, **changes)
    if "draft_vocabulary" in changes:
        plugin.decoder.register_buffer("draft_vocabulary", torch.tensor(changes["draft_vocabulary"]))
    with torch.no_grad():
        for parameter in plugin.parameters() if shake else ():
            parameter.add_(shake * torch.randn(parameter.shape))
    if same_encoder:
        plugin.encoder.load_state_dict(verifier.double().encoder.state_dict())
    settings = model_settings(**{"activation_fn": "relu", **changes})
    models = load((verifier.double(), args), (plugin, settings), runner=runner)
    assert (models[0].transformer.encoder is models[1].transformer.encoder) == same_encoder
    tilt = make_tilt(seed, bias)
    role = drafters.find(settings.arch).build(None, Tilted(models[1], tilt), models[0])
    return (verifier, plugin), (tilted_verifier(models[0], tilt), role), tilt


# ---- drafters and controllers


class Knowing(Drafter):
    """A drafter that knows the outputs and errs with a given probability: from random to perfect."""

    def __init__(self, outputs, error, seed=0):
        self.outputs, self.error, self.random = outputs, error, random.Random(seed)

    def propose(self, state, prefix, plan):
        rows = []
        for request, output, length in zip(prefix.requests, prefix.outputs, plan.lengths):
            future = [*self.outputs[request.index], EOS][len(output) :][:length]
            future += [self.random.randrange(WORDS) for _ in range(length - len(future))]
            row = [self.random.randrange(WORDS) if self.random.random() < self.error else token for token in future]
            rows.append(row[: self.random.choice([length, self.random.randrange(length + 1)])])
        return Draft(rows)


class Planned(Knowing):
    """A drafter with a fixed text for each sentence, from which it drafts what follows the output's length."""

    def __init__(self, plans):
        self.plans = plans

    def propose(self, state, prefix, plan):
        starts = [(self.plans[request.index], len(output)) for request, output in zip(prefix.requests, prefix.outputs)]
        return Draft([text[start : start + length] for (text, start), length in zip(starts, plan.lengths)])


class Lengths:
    """A controller that cycles through some draft lengths, counts, and gives up on a loop that does not end in ``most`` passes.

    With ``ragged`` each row gets another one. Drafts branch as ``tree`` says.
    """

    def __init__(self, lengths, ragged=False, most=1000, tree=None):
        self.lengths, self.ragged, self.most, self.tree = itertools.cycle(lengths), ragged, most, tree
        self.passes = self.drafted = self.accepted = 0

    def plan(self, prefix):
        assert self.passes < self.most, "the loop does not end"
        if self.ragged:
            return Plan([next(self.lengths) for _ in range(len(prefix))], tree=self.tree)
        return Plan([next(self.lengths)] * len(prefix), tree=self.tree)

    def update(self, outcome):
        self.passes += 1
        self.drafted += sum(len(step.drafted) for step in outcome.steps)
        self.accepted += sum(step.accepted for step in outcome.steps)
        assert outcome.seconds >= 0 and len(outcome.plan.lengths) == len(outcome.steps)


class Noted:
    """A controller, and which kinds of plans it made: none, chain, tree."""

    def __init__(self, controller):
        self.controller, self.update, self.kinds = controller, controller.update, set()

    def plan(self, prefix):
        plan = self.controller.plan(prefix)
        self.kinds.add("tree" if plan.tree else "chain" if any(plan.lengths) else "none")
        return plan


class Mixed:
    """Chains, trees and none at random, each for some passes."""

    def __init__(self, longest, nodes, seed):
        self.longest, self.nodes, self.random = longest, nodes, random.Random(seed)

    def plan(self, prefix):
        length = self.random.randrange(self.longest + 1)
        tree = self.random.choice([None, Tree(self.random.randint(1, self.nodes))])
        return uniform(len(prefix), length, self.random.choice([1, 1, 4]), tree if length else None)

    def update(self, outcome):
        assert outcome.seconds >= 0


# ---- decoding


def sentences(count, seed, longest=9):
    rng = random.Random(seed)
    return [[rng.randrange(4, WORDS + 4) for _ in range(rng.randrange(longest))] + [EOS] for _ in range(count)]


def decode(verifier, drafter, sources, limits, block, rows, acceptance=None, ragged=False, device="cpu"):
    """Decode sources: see `run`."""
    scores = not isinstance(verifier, Unverified)
    requests = [Request(index, *each, scores=scores) for index, each in enumerate(zip(sources, limits))]
    return run(verifier, drafter, requests, block, rows, ragged, acceptance=acceptance, device=device)


def run(verifier, drafter, requests, lengths, rows, ragged=False, acceptance=None, tree=None, check=None, device="cpu"):
    """Hypotheses in the order of requests and outputs, and statistics that pass a check; ``lengths`` are taken in turn."""
    lengths, most = [lengths] if isinstance(lengths, int) else lengths, max(1000, 20 * len(requests))
    stats, controller = DecodeStats(), Lengths(lengths, ragged, most, tree)
    roles = Roles(drafter, verifier, acceptance or TopBetaTau(), controller)
    found = speculative_decode(roles, requests, rows, stats, device=device)
    hypotheses = sorted(found, key=lambda each: (each.index, each.output))
    assert [each.index for each in hypotheses] == sorted(each.index for each in requests for _ in each.seeds)
    (check or check_balance)(stats, hypotheses)
    assert (controller.passes, controller.drafted, controller.accepted) == (stats.passes, stats.drafted, stats.accepted)
    assert stats.passes <= stats.iterations <= stats.passes * rows
    return hypotheses, stats


def outputs_of(verifier, drafter, requests, lengths, rows):
    """Outputs and statistics of ragged drafts."""
    found, stats = run(verifier, drafter, requests, lengths, rows, ragged=True)
    return [each.tokens for each in found], stats


def check_balance(stats, hypotheses):
    """The promise of DecodeStats, and what holds where every draft is a chain."""
    check_sums(stats, hypotheses)
    for step in (step for hypothesis in hypotheses for step in hypothesis.steps):
        assert EOS not in step.drafted[:-1]  # nothing is offered after an end of sentence
        if step.own is not None:
            assert step.own != next(iter(step.drafted[step.accepted :]), None), "the refused token was right"


def check_sums(stats, hypotheses):
    """The promise of DecodeStats, against a recount from the steps."""
    steps = [step for hypothesis in hypotheses for step in hypothesis.steps]
    assert stats.sentences == len(hypotheses) and stats.iterations == len(steps)
    assert stats.cut == sum(hypothesis.cut for hypothesis in hypotheses)
    assert stats.prefilled == sum(hypothesis.prefilled for hypothesis in hypotheses)
    scored = [hypothesis for hypothesis in hypotheses if hypothesis.token_scores is not None]
    if len(scored) == len(hypotheses):
        assert stats.committed + stats.prefilled == sum(len(hypothesis.token_scores) for hypothesis in scored)
    assert stats.drafted == sum(len(step.drafted) for step in steps)
    assert stats.accepted == sum(step.accepted for step in steps)
    assert stats.own_tokens == sum(step.own is not None for step in steps)
    for hypothesis in hypotheses:
        said = []
        for step in hypothesis.steps:
            said += step.drafted[: step.accepted] + ([] if step.own is None else [step.own])
            assert step.accepted <= len(step.drafted)
            assert EOS not in step.drafted[: step.accepted][:-1]
            assert stats.own_tokens == 0 or step.own is not None or step.drafted[step.accepted - 1] == EOS
        tokens = hypothesis.tokens[hypothesis.prefilled :]
        assert said in (tokens, [*tokens, EOS])


def finished(commits):
    """The outputs that a step finished."""
    return [commit.finished for commit in commits if commit.finished]


def standing(role, sources, targets, limit=60):
    """A verifier's or drafter's state and the prefix after some sentences are in flight and have said ``targets``."""
    state, prefix = role.start(len(sources)) if isinstance(role, ModelVerifier) else role.start(len(sources), None), Prefix()
    role.admit(state, Source(sources, SYMBOLS))
    prefix.admit([Request(index, source, limit) for index, source in enumerate(sources)])
    commit(prefix, targets)
    return state, prefix


def commit(prefix, tokens):
    """Append tokens to the outputs, as if they had been accepted."""
    draft = Draft([list(row) for row in tokens])
    prefix.commit(Iterations.of(draft, accept_all(None, draft), EOS))


def stepwise(verifier):
    """The same verifier, whose sessions iterate in Python."""

    class Stepwise(type(verifier)):
        runner = None

    other = copy(verifier)
    other.__class__ = Stepwise
    return other


def batch_of_fairseq(verifier):
    """What `DrafterLoss` hands to a drafter of two sentences as fairseq has them: ids shifted by 4, so 4 is the model's eos and 2
    fairseq's, and sources padded on the left."""
    from specdec_plugins.criterions.drafter_loss import DrafterLoss

    seen = []

    class Model(torch.nn.Module):
        drafted = torch.tensor([0])

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def verifier_as(self, like):
            return verifier

        def forward(self, batch):
            seen.append(batch)
            return Loss(self.weight.sum(), 1)

    source = torch.tensor([[1, 1, 9, 10, 4, 2], [5, 6, 7, 8, 4, 2]])
    prefix, target = torch.tensor([[2, 20, 21], [2, 22, 1]]), torch.tensor([[20, 21, 2], [22, 2, 1]])
    sample = {"net_input": {"src_tokens": source, "prev_output_tokens": prefix}, "target": target, "ntokens": 5}
    DrafterLoss(SimpleNamespace())(Model(), sample)
    return seen[0]
