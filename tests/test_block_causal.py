"""The causal block drafter: attention in training, and equal results in the engine, pass after pass."""

import random

import pytest
import torch
from conftest import make_batch, make_drafter, model_settings
from reference import EOS, PAD, drafted
from support import SHAPES, WORDS, commit, load, sentences, shaken, standing

from specdec_plugins.criterions.drafter_loss import BlockLoss
from specdec_plugins.decoding.backends.torch.model import TorchPass
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.networks.masking import many_blocks, many_starts
from specdec_plugins.decoding.values import Draft, uniform


def make_causal(seed=0, **changes):
    return shaken(make_drafter(seed=seed, words=WORDS, arch="block_causal", src_embedding_copy=False, **changes), seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 2, 5])
def test_blocks_in_one_pass_are_blocks_one_at_a_time(shape, block_size):
    """Also if a block extends past the end, a sentence has fewer blocks, or sources are padded on the left."""
    model = make_causal(**SHAPES[shape])
    lengths = (7, 3, 5)
    source, target = make_batch([4, 6, 5], left=True, words=WORDS + 4), make_batch(lengths, seed=1, words=WORDS + 4)
    starts = torch.tensor([[6, 0, 3], [2, 0, -1], [1, 4, 2]])
    block = many_blocks(target, starts, block_size, PAD, EOS)
    logits = model(source, None, block.prev_target, block)
    expected = []
    for row, row_starts in enumerate(starts.tolist()):
        tokens = source[row][source[row].ne(PAD)].tolist()
        for start in row_starts:
            if start >= 0:
                prefix = target[row, :start].tolist()
                expected.append(drafted(model, tokens, prefix, block_size)[: lengths[row] - start])
    torch.testing.assert_close(logits, torch.cat(expected))


def test_every_parameter_gets_a_gradient():
    """Distributed training without unused parameters requires it, also if no sentence has a prefix."""
    model = make_causal(share_all_embeddings=False).train()
    source, target = make_batch([4, 6]), make_batch([5, 2], seed=1)
    block = many_blocks(target, torch.tensor([[0], [0]]), 3, PAD, EOS)
    model(source, None, block.prev_target, block).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_many_blocks_equal_a_loop():
    lengths = [5, 1, 3]
    target = make_batch(lengths, seed=2)
    starts = torch.tensor([[4, 0], [0, -1], [2, 1]])
    block = many_blocks(target, starts, 3, PAD, EOS)
    for row, length in enumerate(lengths):
        sentence = target[row, :length].tolist()
        assert block.prev_target[row, :length].tolist() == [EOS, *sentence[:-1]]
        for number, start in enumerate(starts[row].tolist()):
            cut = sentence[start : start + 3] if start >= 0 else []
            assert block.target[row, number].tolist() == cut + [PAD] * (3 - len(cut))
            assert block.masked[row, number].tolist() == [True] * len(cut) + [False] * (3 - len(cut))


def test_loss_is_the_weighted_sum_over_blocks():
    """Against a loop over predictions from the oracle's features."""
    model = make_causal(successor_width=8)
    source, target = make_batch([4, 6], words=WORDS + 4), make_batch([5, 3], seed=1, words=WORDS + 4)
    block = many_blocks(target, torch.tensor([[3, 0], [1, -1]]), 4, PAD, EOS)
    total = weights = 0.0
    leading = blocks = 0
    for row, starts in enumerate(((3, 0), (1,))):
        sentence = target[row][target[row].ne(PAD)].tolist()
        tokens = source[row][source[row].ne(PAD)].tolist()
        for start in starts:
            features = drafted(model, tokens, sentence[:start], 4, project=False)
            streak, blocks = True, blocks + 1
            for offset, token in enumerate(sentence[start : start + 4]):
                feature = features[offset]
                if offset:
                    before = model.decoder.embed_tokens.weight[sentence[start + offset - 1]]
                    feature = feature + model.decoder.successor(feature, before)
                scores = model.decoder.output_layer(feature).log_softmax(-1)
                smoothed = 0.9 * scores[token] + 0.1 * scores.mean()
                total, weights = total - 0.5**offset * smoothed, weights + 0.5**offset
                streak = streak and int(scores.argmax()) == token
                leading += streak
    sample = {"net_input": {"src_tokens": source, "src_lengths": None}, "target": target, "ntokens": 8, "block": block}
    loss, sample_size, log = BlockLoss(None, 0.1, 0.5)(model, sample)
    torch.testing.assert_close(loss, total, check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sample_size, torch.tensor(weights))
    assert (int(log["leading"]), int(log["nblocks"])) == (leading, blocks)
    assert [int(log[f"present_00{position}"]) for position in range(1, 5)] == [3, 3, 1, 1]


def test_many_starts_are_different_and_reach_everywhere():
    torch.manual_seed(0)
    lengths = torch.tensor([1, 3, 9])
    seen = [set(), set(), set()]
    for _ in range(100):
        for row, chosen in enumerate(many_starts(lengths, 4).tolist()):
            present = [start for start in chosen if start >= 0]
            assert len(set(present)) == len(present) == min(4, int(lengths[row]))
            seen[row].update(present)
    assert seen == [set(range(1)), set(range(3)), set(range(9))]


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_drafts_with_a_cache_equal_drafts_without(shape, monkeypatch):
    """Pass after pass: rows of different lengths, commits and drafts of any length, pauses between drafts."""
    changes = {"activation_fn": "relu", "max_target_positions": 300, **SHAPES[shape]}
    plugin = make_causal(**changes)
    model, _ = load((plugin, model_settings(arch="block_causal", **changes)))
    passes = []

    def read(*arguments, original=model.read):
        passes.append(original(*arguments))
        return passes[-1]

    model.read = read
    role, rng, sources = CausalBlockDrafter(model), random.Random(shape), sentences(5, seed=3)
    state, prefix = standing(role, sources, [[] for _ in sources])
    for _ in range(8):
        block = rng.randrange(1, 8)
        monkeypatch.setattr(TorchPass, "choose", lambda self, prefix, lengths: Draft([[] for _ in lengths]))
        role.propose(state, prefix, uniform(len(prefix), block))
        logits = passes[-1].logits()
        for row, (source, output) in enumerate(zip(sources, prefix.outputs)):
            torch.testing.assert_close(logits[row], drafted(plugin, source, output, block), rtol=1e-5, atol=1e-5)
        for _ in range(rng.randrange(1, 3)):
            commit(prefix, [[rng.randrange(4, WORDS + 4) for _ in range(rng.randrange(1, 4))] for _ in sources])
