"""The engine against the oracle: whatever is drafted, batched, refused or cut, the output is the verifier's."""

import itertools
import random

import pytest
import torch
from conftest import make_drafter, make_verifier
from reference import drafted, greedy

from specdec_plugins import checkpoint
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance import TopBetaTau, accept_all
from specdec_plugins.decoding.control import FixedLength
from specdec_plugins.decoding.loop import compacted, speculative_decode
from specdec_plugins.decoding.transformer import load_pair
from specdec_plugins.decoding.values import DecodeStats, Draft, Prefix, Request, Source, Symbols
from specdec_plugins.decoding.verifier import TransformerVerifier, Unverified

WORDS, EOS = 20, 2
SHAPES = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True, "activation_fn": "gelu"},
    "separate": {"share_all_embeddings": False, "decoder_layers": 1},
    "untied": {"share_all_embeddings": False, "share_decoder_input_output_embed": False, "decoder_ffn_embed_dim": 40},
    "unscaled": {"no_scale_embedding": True, "layernorm_embedding": True, "decoder_normalize_before": True},
}


def engine_model(model, args, name="model"):
    return checkpoint.engine_model({"model": model.state_dict(), "args": args, "cfg": None}, name)


def load(verifier, drafter=None, dtype=torch.float64):
    """Engine models of fairseq ones."""
    return load_pair(engine_model(*verifier), drafter and engine_model(*drafter), dtype=dtype)


class Tilted:
    """A verifier with something added to its logits, position by position: left alone, a random model says one word for ever."""

    def __init__(self, verifier, tilt):
        self.verifier, self.tilt = verifier, tilt
        self.start, self.admit = verifier.start, verifier.admit

    def score(self, state, prefix, draft_tokens):
        logits = self.verifier.score(state, prefix, draft_tokens)
        return logits + self.tilt[prefix.lengths[:, None] + torch.arange(logits.size(1))]


def make_tilt(seed, eos_bias):
    """(64, V) what to add at each target position; ``eos_bias`` decides how soon sentences end."""
    tilt = 2 * torch.randn(64, WORDS + 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tilt[:, EOS] += eos_bias
    return tilt


class Knowing:
    """A drafter that knows the outputs and errs with a given probability: from random to perfect."""

    def __init__(self, outputs, error, seed=0):
        self.outputs, self.error, self.random = outputs, error, random.Random(seed)

    def start(self, rows):
        return None

    def admit(self, state, source):
        return None

    def propose(self, state, prefix, num_tokens):
        rows = []
        for request, length in zip(prefix.requests, prefix.lengths.tolist()):
            future = [*self.outputs[request.index], EOS][length:][:num_tokens]
            future += [self.random.randrange(WORDS) for _ in range(num_tokens - len(future))]
            rows.append([self.random.randrange(WORDS) if self.random.random() < self.error else token for token in future])
        return Draft(torch.tensor(rows), torch.full((len(rows),), num_tokens))


def sentences(count, seed, longest=9):
    rng = random.Random(seed)
    return [[rng.randrange(4, WORDS + 4) for _ in range(rng.randrange(longest))] + [EOS] for _ in range(count)]


def decode(verifier, drafter, sources, limits, block, rows, acceptance=None):
    requests = [Request(index, tokens, limit) for index, (tokens, limit) in enumerate(zip(sources, limits))]
    stats = DecodeStats()
    found = speculative_decode(drafter, verifier, acceptance or TopBetaTau(), FixedLength(block), requests, rows, stats)
    hypotheses = sorted(found, key=lambda hypothesis: hypothesis.index)
    assert [hypothesis.index for hypothesis in hypotheses] == list(range(len(sources)))
    check_balance(stats, hypotheses)
    return hypotheses, stats


def check_balance(stats, hypotheses):
    """The promise of DecodeStats, against a recount from the steps."""
    steps = [step for hypothesis in hypotheses for step in hypothesis.steps]
    assert stats.sentences == len(hypotheses) and stats.iterations == len(steps)
    assert stats.committed == sum(len(hypothesis.token_scores) for hypothesis in hypotheses)
    assert stats.drafted == sum(len(step.drafted) for step in steps)
    for hypothesis in hypotheses:
        said = [token for step in hypothesis.steps for token in step.drafted[: step.accepted] + [step.correction]]  # noqa: RUF005
        said = [token for token in said if token is not None]
        assert said in (hypothesis.tokens, [*hypothesis.tokens, EOS])
        for step in hypothesis.steps:
            assert step.accepted <= len(step.drafted)
            assert EOS not in step.drafted[:-1]  # nothing is offered after an end of sentence
            assert step.correction is not None or step.drafted[step.accepted - 1] == EOS or stats.corrections == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_output_is_the_verifiers_greedy_output(shape):
    """Thousands of sentences: batch 1 to 9, block 1 to 30, any end, limits, drafters from random to perfect."""
    rng = random.Random(shape)
    cases = 0
    for seed in range(4):
        fairseq_model, args = make_verifier(seed=seed, words=WORDS, **SHAPES[shape])
        fairseq_model.double()
        model, _ = load((fairseq_model, args))
        for bias in (-9.0, 0.0, 2.0):
            sources = sentences(14, seed=rng.random())
            limits = [rng.randrange(1, 25) for _ in sources]
            tilt = make_tilt(seed, bias)
            expected = [greedy(fairseq_model, source, limit, tilt) for source, limit in zip(sources, limits)]
            verifier = Tilted(TransformerVerifier(model), tilt)
            for error, rows in itertools.product((0.0, 0.2, 0.6, 1.0), rng.sample(range(1, 10), 2)):
                block = rng.randrange(1, 31)
                hypotheses, stats = decode(verifier, Knowing(expected, error), sources, limits, block, rows)
                assert [hypothesis.tokens for hypothesis in hypotheses] == expected
                cases += len(sources)
                if error == 0.0:
                    assert stats.accepted == stats.drafted
            hypotheses, stats = decode(verifier, drafters.build("none", None), sources, limits, 0, 5)
            assert [hypothesis.tokens for hypothesis in hypotheses] == expected
            assert stats.mean_accepted_length == 1.0 and stats.drafted == 0
    assert cases >= 1000
