"""The loss that never holds all logits, against the one that does."""

import pytest
import torch


@pytest.fixture(params=[1, 3, 100], ids="chunks of {} rows".format)
def module(request, monkeypatch):
    from specdec_plugins.decoding.networks import cross_entropy

    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", request.param * VOCABULARY)
    return cross_entropy


ROWS, WIDTH, VOCABULARY = 8, 5, 11


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    features, projection = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(VOCABULARY, WIDTH, dtype=dtype)
    return features.requires_grad_(), projection.requires_grad_(), torch.arange(ROWS) % VOCABULARY, torch.rand(ROWS)


def by_torch(features, projection, targets, weights, smoothing, cap=None):
    logits = features @ projection.t()
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    each = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    plain = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (weights * each).sum(), (weights * plain).sum(), logits.argmax(1) == targets


def weighed(module, features, projection, targets, weights, smoothing=0.0, cap=None):
    each, plain, right = module.cross_entropy(features, projection, targets, smoothing, cap)
    return (weights * each).sum(), (weights * plain).sum(), right


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_equals_torchs(module, smoothing, frozen, cap):
    ours, theirs = inputs(), inputs()
    if frozen:
        ours[1].requires_grad_(False)
    found, expected = weighed(module, *ours, smoothing, cap), by_torch(*theirs, smoothing, cap)
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-12, atol=0)
    assert found[2].equal(expected[2])
    assert found[0].requires_grad and not found[1].requires_grad
    (3 * found[0]).backward()
    (3 * expected[0]).backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=1e-12, atol=1e-14)
    if frozen:
        assert ours[1].grad is None
    else:
        torch.testing.assert_close(ours[1].grad, theirs[1].grad, rtol=1e-12, atol=1e-14)


def test_large_logits_neither_overflow_nor_vanish(module):
    features, projection, targets, weights = inputs(torch.float32)
    loss, *_ = weighed(module, features * 1e4, projection, targets, weights)
    loss.backward()
    expected = by_torch(features.detach().double() * 1e4, projection.detach().double(), targets, weights, 0.0)[0]
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    assert features.grad.isfinite().all() and projection.grad.isfinite().all()


def test_half_precision_keeps_small_slopes_by_the_loss_scale(module):
    """A probability of 1e-9 is 0 in float16; with a loss scale of 2 ** 16 its slope is not."""
    features = torch.tensor([[1.0]], dtype=torch.float16, requires_grad=True)
    projection = torch.tensor([[20.7], [0.0]], dtype=torch.float16, requires_grad=True)
    loss, *_ = module.cross_entropy(features, projection, torch.tensor([0]))
    assert loss.dtype == torch.float32
    (loss * 2**16).sum().backward()
    assert projection.grad.dtype == torch.float16
    assert projection.grad[1].item() == pytest.approx(2**16 * 1.025e-9, rel=0.05)


def test_autocast_mixes_precisions(module):
    """As in training by --amp: features in half precision, the projection's weights in float32."""
    features, projection, targets, weights = inputs(torch.float32)
    loss, *_ = weighed(module, features.bfloat16(), projection, targets, weights)
    loss.backward()
    assert features.grad.dtype == projection.grad.dtype == torch.float32
    assert projection.grad.abs().sum() > 0
