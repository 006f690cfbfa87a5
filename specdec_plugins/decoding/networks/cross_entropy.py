"""Cross-entropy of features under a vocabulary, a few rows at a time: logits are made, used and forgotten.

All logits of a batch, their softmax and the gradients of both are by far the largest tables of a training step, and on a CPU
its slowest part, each being larger than any cache. Here one chunk exists at a time; the backward pass makes it anew.

N predicted positions, D width, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# Logits a chunk, by device: on a CPU what its caches hold, elsewhere what keeps it busy.
CHUNK = {"cpu": 2**22}
DEVICE_CHUNK = 2**26


def cross_entropy(
    features: Tensor, projection: Tensor, targets: Tensor, weights: Tensor | None = None, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Smoothed loss, plain loss (without gradient), and which predictions are right.

    A position's plain loss is -log p(target); its smoothed one is 1 - s of that and s of the mean of -log p over the
    vocabulary, with s ``label_smoothing``. Both are weighted sums in nats, in float32 at least.

    Args:
        features: (N, D). projection: (V, D); logits are features @ projection.T.
        targets: (N,) int64. weights: (N,) float, of the positions in both sums; None for 1.

    Returns: scalar, scalar, and (N,) bool: no token's logit is over the target's.
    """
    weights = torch.ones_like(targets, dtype=torch.float32) if weights is None else weights
    # Under autocast the features come in half precision, the weights of the projection in float32.
    return _CrossEntropy.apply(features, projection.to(features.dtype), targets, weights, label_smoothing)


def _chunks(features: Tensor, projection: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and their logits (rows, V) in one buffer for all chunks."""
    rows = max(1, CHUNK.get(features.device.type, DEVICE_CHUNK) // projection.size(0))
    buffer = features.new_empty(min(rows, features.size(0)), projection.size(0))
    for chunk in (slice(begin, begin + rows) for begin in range(0, features.size(0), rows)):
        yield chunk, torch.mm(features[chunk], projection.t(), out=buffer[: features[chunk].size(0)])


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, projection, targets, weights, label_smoothing):
        precise = torch.promote_types(features.dtype, torch.float32)
        targets, weights = targets[:, None], weights[:, None].to(precise)
        own, best, mean, normaliser = features.new_zeros((4, features.size(0), 1), dtype=precise)
        for rows, logits in _chunks(features, projection):
            logits = logits.to(precise)
            own[rows] = logits.gather(1, targets[rows])
            best[rows] = logits.amax(1, keepdim=True)
            if label_smoothing:
                mean[rows] = logits.mean(1, keepdim=True)
            normaliser[rows] = logits.sub_(best[rows]).exp_().sum(1, keepdim=True).log_() + best[rows]
        ctx.save_for_backward(features, projection, targets, weights, normaliser)
        ctx.label_smoothing = label_smoothing
        right = own.eq(best)[:, 0]
        loss = (weights * (normaliser - (1 - label_smoothing) * own - label_smoothing * mean)).sum()
        plain = (weights * (normaliser - own)).sum()
        ctx.mark_non_differentiable(plain, right)
        return loss, plain, right

    @staticmethod
    def backward(ctx, gradient, *_):
        features, projection, targets, weights, normaliser = ctx.saved_tensors
        # The loss scale of training in half precision is in ``gradient``: applied before small slopes are rounded to 0.
        weights = weights * gradient
        by_features = torch.empty_like(features)
        by_projection = torch.zeros_like(projection, dtype=normaliser.dtype) if ctx.needs_input_grad[1] else None
        for rows, logits in _chunks(features, projection):
            slope = logits.to(normaliser.dtype).sub_(normaliser[rows]).exp_()
            if ctx.label_smoothing:
                slope.sub_(ctx.label_smoothing / projection.size(0))
            slope.scatter_add_(1, targets[rows], slope.new_full(targets[rows].shape, ctx.label_smoothing - 1))
            slope = slope.mul_(weights[rows]).to(features.dtype)
            by_features[rows] = slope @ projection
            if by_projection is not None:
                by_projection += slope.t() @ features[rows]
        return by_features, by_projection, None, None, None
