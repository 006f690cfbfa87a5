"""The loss and its figures against slow references, sentence by sentence and token by token."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import make_batch, make_dictionary, make_drafter
from fairseq.logging import metrics

from specdec_plugins.criterions.drafter_loss import GlatLoss, acceptance_counts
from specdec_plugins.decoding.networks.masking import MaskedBlock, block_view, mask_blocks
from specdec_plugins.tasks import translation_lev_modified as module

PAD, MASK = 1, 3


def make_loss(label_smoothing=0.1):
    return GlatLoss(SimpleNamespace(target_dictionary=None), label_smoothing)


def make_sample(lengths=(6, 8, 3, 12), starts=(2, 5, 0, 3), block_size=4, **extra):
    source = make_batch([5, 7, 4, 9], left=True, seed=1)
    target = make_batch(list(lengths), seed=2)
    block = mask_blocks(target, torch.tensor(starts), block_size, PAD, MASK)
    net_input = {"src_tokens": source, "src_lengths": None}
    return {"target": target, "net_input": net_input, "ntokens": sum(lengths), "block": block, **extra}


def slow_losses(model, sample, prev_target, still_masked, label_smoothing):
    """(smoothed, plain) sum over still masked positions, one token at a time."""
    logits = model(sample["net_input"]["src_tokens"], None, prev_target)
    block: MaskedBlock = sample["block"]
    total = plain = 0.0
    for row, column in still_masked.nonzero().tolist():
        log_probabilities = logits[row, column].log_softmax(-1)
        nll = -log_probabilities[block.target[row, column]]
        total += (1 - label_smoothing) * nll - label_smoothing * log_probabilities.mean()
        plain += nll
    return total, plain


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_plain_loss_equals_a_loop(label_smoothing):
    model, sample = make_drafter(), make_sample()
    loss, sample_size, log = make_loss(label_smoothing)(model, sample)
    block = sample["block"]
    total, plain = slow_losses(model, sample, block.prev_target, block.masked, label_smoothing)
    torch.testing.assert_close(loss, total, check_dtype=False, rtol=1e-5, atol=0)
    torch.testing.assert_close(log["nll_loss"], plain, check_dtype=False, rtol=1e-5, atol=0)
    assert sample_size == int(block.masked.sum()) == 4 + 3 + 3 + 4


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_glancing_loss_equals_a_loop(ratio):
    model = make_drafter(seed=3).train()  # without dropout, so that the slow reference can repeat a pass
    scores = torch.rand(4, 9, generator=torch.Generator().manual_seed(1))
    sample = make_sample(reveal_scores=scores, glancing_ratio=ratio)
    block = sample["block"]
    first = model(sample["net_input"]["src_tokens"], None, block.prev_target).argmax(-1)
    shown, still_masked = block.prev_target.clone(), block.masked.clone()
    for row in range(4):
        columns = block.masked[row].nonzero().flatten().tolist()
        wrong = sum(int(first[row, column] != block.target[row, column]) for column in columns)
        for column in sorted(columns, key=lambda column: scores[row, column])[: math.floor(wrong * ratio + 1e-6)]:
            shown[row, column] = block.target[row, column]
            still_masked[row, column] = False
    total, _ = slow_losses(model, sample, shown, still_masked, 0.1)
    loss, sample_size, log = make_loss()(model, sample)
    torch.testing.assert_close(loss, torch.as_tensor(total), check_dtype=False, rtol=1e-5, atol=1e-6)
    assert sample_size == int(still_masked.sum()) < int(block.masked.sum())
    assert log["block_targets"] == int(block.masked.sum())


def test_acceptance_counts_equal_a_loop():
    sample = make_sample()
    block: MaskedBlock = sample["block"]
    right = torch.rand(block.masked.shape, generator=torch.Generator().manual_seed(4)) < 0.7
    right &= block.masked
    counts = acceptance_counts(block_view(right, block), block_view(block.masked, block))
    leading, present, hits = 0, [0] * 4, [0] * 4
    for row, start in enumerate(block.starts.tolist()):
        streak = True
        for offset in range(4):
            hit = bool(right[row, start + offset])
            present[offset] += bool(block.masked[row, start + offset])
            hits[offset] += hit
            streak = streak and hit
            leading += streak
    assert counts["leading"] == leading
    for name, expected in (("present", present), ("right", hits)):
        assert [int(counts[f"{name}_{k:03d}"]) for k in range(1, 5)] == expected


def test_right_are_the_best_tokens():
    model, sample = make_drafter(), make_sample()
    block = sample["block"]
    logits = model(sample["net_input"]["src_tokens"], None, block.prev_target, block.masked)
    target = block.target.clone()
    target[block.masked] = torch.where(torch.arange(logits.size(0)) % 3 > 0, logits.argmax(-1), logits.argmin(-1))
    features = model(sample["net_input"]["src_tokens"], None, block.prev_target, block.masked, features_only=True)
    *_, right = make_loss().compute_loss(model, features, target, block.masked)
    assert right[block.masked].tolist() == [index % 3 > 0 for index in range(logits.size(0))]
    assert not right[~block.masked].any()


def reduced(logs):
    with metrics.aggregate(new_root=True) as aggregate:
        GlatLoss.reduce_metrics(logs)
        return aggregate.get_smoothed_values()


def test_logged_averages():
    """Losses are per predicted token, accept_len per sentence, accuracies per token at that position."""
    names = ["loss", "nll_loss", "sample_size", "block_targets", "nsentences", "ntokens", "leading"]
    names += ["present_001", "right_001", "present_002", "right_002"]
    logs = [
        dict(zip(names, figures)) for figures in ((8.0, 4.0, 4, 8, 2, 9, 6, 2, 1, 1, 1), (2.0, 1.0, 1, 2, 6, 1, 0, 6, 1, 3, 0))
    ]
    values = reduced(logs)
    assert [values[name] for name in ("loss", "nll_loss")] == [round(nats / 5 / math.log(2), 3) for nats in (10, 5)]
    assert [values[name] for name in ("revealed", "accept_len", "block_acc")] == [0.5, 1 + 6 / 8, [2 / 8, 1 / 4]]
    # workers' logs may be summed before, as fairseq does with several GPUs
    summed = {key: sum(log[key] for log in logs) for key in logs[0]}
    assert reduced([summed]) == values


def test_needs_a_masked_block():
    sample = make_sample()
    del sample["block"]
    with pytest.raises(ValueError, match="--noise block_mask"):
        make_loss()(make_drafter(), sample)


def make_task(target_words=20, **changes):
    cfg = module.BlockTranslationConfig(data="-", source_lang="a", target_lang="b", **changes)
    return module.BlockTranslationTask(cfg, make_dictionary(), make_dictionary(target_words))


def test_glancing_ratio_falls_linearly_and_stays():
    task = make_task(start_p=0.5, minus_p=0.2, total_up=100)
    assert [round(task.glancing_ratio(update), 6) for update in (0, 50, 100, 500)] == [0.5, 0.4, 0.3, 0.3]


def test_bad_options_are_refused_together():
    with pytest.raises(ValueError, match=r"--block-size 0.*--total-up 0.*--start-p 0.1 --minus-p 0.2.*--left-pad-target"):
        make_task(block_size=0, total_up=0, start_p=0.1, minus_p=0.2, left_pad_target=True)


def test_other_dictionaries_are_refused():
    task = make_task()
    task.load_state_dict(make_task().state_dict())
    task.load_state_dict({})  # a verifier's
    with pytest.raises(ValueError, match="another target dictionary"):
        task.load_state_dict(make_task(target_words=21).state_dict())


def test_a_drafter_alone_is_no_translator():
    with pytest.raises(ValueError, match="give its verifier"):
        make_task().build_generator([make_drafter()], None)
