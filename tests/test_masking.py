"""Block masking and glancing against slow references, sentence by sentence."""

import random

import pytest
import torch
from conftest import make_batch

from specdec_plugins.decoding.networks import masking

PAD, EOS, MASK = 1, 2, 3


def slow_layout(sentence, start, block_size):
    """One sentence's input, target and masked, unpadded, by the definition."""
    padded = [*sentence, *[PAD] * (start + block_size - len(sentence))][: start + block_size]
    masked = [start <= position < len(sentence) for position in range(start + block_size)]
    return [*padded[:start], *[MASK] * block_size], padded, masked


@pytest.mark.parametrize("block_size", [1, 2, 5, 25])
def test_mask_blocks_equals_a_loop_over_sentences(block_size):
    rng = random.Random(block_size)
    for case in range(50):
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 9))]
        target = make_batch(lengths, seed=case)
        starts = [rng.randrange(length) for length in lengths]
        block = masking.mask_blocks(target, torch.tensor(starts), block_size, PAD, MASK)
        width = max(starts) + block_size
        assert block.prev_target.shape == block.target.shape == block.masked.shape == (len(lengths), width)
        for row, (length, start) in enumerate(zip(lengths, starts)):
            inputs, targets, masked = slow_layout(target[row, :length].tolist(), start, block_size)
            # after a sentence's block, the input is padding and nothing is predicted
            rest = width - start - block_size
            tail = target[row, start + block_size : width].tolist()
            assert block.prev_target[row].tolist() == inputs + [PAD] * rest
            assert block.target[row].tolist() == targets + tail + [PAD] * (rest - len(tail))
            assert block.masked[row].tolist() == masked + [False] * rest


def test_random_starts_are_uniform_and_leave_a_token_to_predict():
    torch.manual_seed(0)
    lengths = torch.tensor([1, 4]).repeat_interleave(20000)
    starts = masking.random_starts(lengths)
    assert starts[:20000].eq(0).all()
    counts = starts[20000:].bincount(minlength=4)
    assert counts.numel() == 4 and ((counts / 5000 - 1).abs() < 0.05).all()  # never the whole sentence


def test_fixed_starts_depend_on_the_sentence_only():
    lengths, ids = torch.randint(1, 30, (200,)), torch.arange(200)
    starts = masking.fixed_starts(lengths, ids)
    order = torch.randperm(200)
    assert starts[order].equal(masking.fixed_starts(lengths[order], ids[order]))
    assert ((starts >= 0) & (starts < lengths)).all()
    spread = masking.fixed_starts(torch.full((1000,), 10), torch.arange(1000)).bincount(minlength=10)
    assert spread.min() >= 95 and spread.max() <= 105


@pytest.mark.parametrize("ratio", [0.0, 0.29, 0.3, 0.5, 1.0])
def test_reveal_equals_a_loop_over_sentences(ratio):
    generator = torch.Generator().manual_seed(int(ratio * 100))
    for _ in range(100):
        masked, wrong, scores = torch.rand(3, 6, 15, generator=generator)
        masked, wrong = masked < 0.6, wrong < 0.5
        revealed = masking.reveal(wrong, masked, ratio, scores)
        for row in range(6):
            candidates = [position for position in range(15) if masked[row, position]]
            errors = sum(bool(wrong[row, position]) for position in candidates)
            count = round(errors * ratio * 100) // 100  # in hundredths, without rounding
            expected = sorted(candidates, key=lambda position: scores[row, position])[:count]
            assert sorted(expected) == revealed[row].nonzero().flatten().tolist()


def test_reveal_rounds_down_exact_products():
    masked = torch.ones(1, 100, dtype=torch.bool)
    for ratio in (0.07, 0.29, 0.57, 0.58):  # products with 100 that floating point puts just below an integer
        assert masking.reveal(masked, masked, ratio, torch.rand(1, 100)).sum() == round(ratio * 100)


def test_leading_right_counts_up_to_the_first_error():
    rows = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert masking.leading_right(rows).tolist() == [2, 0, 4, 0]


def test_block_view_cuts_out_each_rows_block():
    block = masking.mask_blocks(make_batch([6, 3]), torch.tensor([4, 1]), 3, PAD, MASK)
    assert masking.block_view(block.prev_target, block).eq(MASK).all()
    assert masking.block_view(block.masked, block).tolist() == [[True, True, False], [True, True, False]]
