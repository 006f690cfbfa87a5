"""The causal block drafter against fairseq's own Transformer: many blocks in training, a cache in the engine."""

import random

import pytest
import torch
from conftest import make_batch, make_drafter, make_verifier, model_settings
from reference import EOS, PAD, drafted
from support import SHAPES, SYMBOLS, WORDS, commit, load, sentences, shaken, standing

from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.passes import TorchPass
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter, Options
from specdec_plugins.decoding.networks.block_causal import Network
from specdec_plugins.decoding.networks.drafter_code import DECAY, Batch, FrozenVerifier
from specdec_plugins.decoding.networks.masking import leading_right, many_blocks, many_starts
from specdec_plugins.decoding.values import Draft, uniform
from specdec_plugins.formats import fairseq


def make_causal(seed=0, **changes):
    return shaken(make_drafter(seed=seed, words=WORDS, arch="block_causal", src_embedding_copy=False, **changes), seed)


def network_of(plugin, verifier, args, **options):
    """The drafter's network with a plugin's decoder, and with its embeddings and encoder as those of the verifier."""
    weights = {name: tensor for name, tensor in plugin.state_dict().items() if name in verifier.state_dict()}
    frozen = FrozenVerifier(fairseq.read({"args": args, "cfg": None, "model": weights}, "verifier"), dtype=torch.float64)
    options = Options(layers=args.decoder_layers, successor_width=8, dropout=0.0, **options)
    network = Network(options, frozen).double()
    network.load_state_dict({name: plugin.state_dict()[name] for name in network.state_dict()})
    return network.eval(), frozen


def batch_of(target, verifier):
    prefix = torch.cat([torch.full((len(target), 1), EOS), target[:, :-1]], 1)
    return Batch(make_batch([4, 6, 5], words=WORDS + 4), prefix, target, SYMBOLS, verifier)


def unpadded(rows):
    return [[token for token in row if token != PAD] for row in rows.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 2, 5])
def test_blocks_in_one_pass_are_blocks_one_at_a_time(shape, block_size):
    """Also if a block extends past the end, or a sentence has fewer blocks."""
    plugin = make_causal(successor_width=8, **SHAPES[shape])
    network, frozen = network_of(plugin, *make_verifier(words=WORDS, **SHAPES[shape]))
    target = make_batch((7, 3, 5), seed=1, words=WORDS + 4)
    batch = batch_of(target, frozen)
    starts = torch.tensor([[6, 0, 3], [2, 0, -1], [1, 4, 2]])
    block = many_blocks(target, starts, block_size, PAD, EOS)
    expected = []
    for source, sentence, row_starts in zip(unpadded(batch.source), unpadded(target), starts.tolist()):
        for start in row_starts:
            if start >= 0:
                features = drafted(plugin, source, sentence[:start], block_size, project=False)
                expected.append(features[: len(sentence) - start])
    torch.testing.assert_close(network.features(batch, block)[block.masked], torch.cat(expected), rtol=1e-5, atol=1e-5)


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
    """Against a loop over predictions from the oracle's features, after each token of a target."""
    plugin = make_causal(successor_width=8)
    network, frozen = network_of(plugin, *make_verifier(words=WORDS), length=4)
    batch = batch_of(make_batch([5, 3, 1], seed=1, words=WORDS + 4), frozen)
    total = weights = 0.0
    leading = []
    for source, sentence in zip(unpadded(batch.source), unpadded(batch.target)):
        for start in range(len(sentence)):
            features = drafted(plugin, source, sentence[:start], 4, project=False)
            leading.append(0)
            for offset, token in enumerate(sentence[start : start + 4]):
                feature = features[offset]
                if offset:
                    before = plugin.decoder.embed_tokens.weight[sentence[start + offset - 1]]
                    feature = feature + plugin.decoder.successor(feature, before)
                scores = plugin.decoder.output_layer(feature).log_softmax(-1)
                total, weights = total - DECAY**offset * scores[token], weights + DECAY**offset
                leading[-1] += leading[-1] == offset and int(scores.argmax()) == token
    loss = network.loss(batch)
    torch.testing.assert_close(loss.total, total, check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss.predictions, torch.tensor(weights), rtol=1e-5, atol=1e-5)
    assert leading_right(loss.right).tolist() == leading
    assert loss.present.sum(0).tolist() == [9, 6, 4, 2]


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
        logits = tensor(passes[-1].logits())
        for row, (source, output) in enumerate(zip(sources, prefix.outputs)):
            torch.testing.assert_close(logits[row], drafted(plugin, source, output, block), rtol=1e-5, atol=1e-5)
        for _ in range(rng.randrange(1, 3)):
            commit(prefix, [[rng.randrange(4, WORDS + 4) for _ in range(rng.randrange(1, 4))] for _ in sources])
