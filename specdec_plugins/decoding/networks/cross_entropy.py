"""Cross-entropy over the vocabulary in chunks of rows, without materialising a batch's logits.

The logits of a batch, their softmax and the gradients of both are the largest tensors of a training step and, exceeding any
cache, its slowest part on a CPU. Only one chunk exists at a time; the backward pass recomputes it.

N predicted positions, D width, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Logits per chunk, by device: as many as fit a CPU's caches; on other devices, enough to keep them busy.
CHUNK = {"cpu": 2**22}
DEVICE_CHUNK = 2**26


def cross_entropy(
    features: Tensor, projection: Tensor, targets: Tensor, label_smoothing: float = 0.0, cap: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Smoothed losses, plain losses (without gradient), and which predictions are right.

    The plain loss of a position is n = -log p(target), its smoothed loss (1 - s) n + s m, where m is the mean of -log p over the
    vocabulary and s is ``label_smoothing``. Both are in nats, in float32 or wider.

    Args:
        features: (N, D). projection: (V, D); logits x are features @ projection.T. targets: (N,) int64.
        cap: logits x become cap tanh(x / cap).

    Returns: (N,), (N,), and (N,) bool, true where no logit exceeds the target's.
    """
    # Under autocast, features are in half precision and the projection in float32.
    arguments = features, projection.to(features.dtype), targets, label_smoothing, cap
    result: tuple[Tensor, Tensor, Tensor] = _CrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _chunks(features: Tensor, projection: Tensor, cap: float | None) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows and their logits (rows, V), in one reused buffer."""
    rows = max(1, CHUNK.get(features.device.type, DEVICE_CHUNK) // projection.size(0))
    buffer = features.new_empty(min(rows, features.size(0)), projection.size(0))
    for chunk in (slice(begin, begin + rows) for begin in range(0, features.size(0), rows)):
        logits = torch.mm(features[chunk], projection.t(), out=buffer[: features[chunk].size(0)])
        yield chunk, logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, projection: Tensor, targets: Tensor, label_smoothing: float, cap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        precise = torch.promote_types(features.dtype, torch.float32)
        targets = targets[:, None]
        own, best, mean, normaliser = features.new_zeros((4, features.size(0), 1), dtype=precise)
        for rows, logits in _chunks(features, projection, cap):
            logits = logits.to(precise)
            own[rows] = logits.gather(1, targets[rows])
            best[rows] = logits.amax(1, keepdim=True)
            if label_smoothing:
                mean[rows] = logits.mean(1, keepdim=True)
            normaliser[rows] = logits.sub_(best[rows]).exp_().sum(1, keepdim=True).log_() + best[rows]
        ctx.save_for_backward(features, projection, targets, normaliser)
        ctx.label_smoothing, ctx.cap = label_smoothing, cap
        right = own.eq(best)[:, 0]
        loss = (normaliser - (1 - label_smoothing) * own - label_smoothing * mean)[:, 0]
        plain = (normaliser - own)[:, 0]
        ctx.mark_non_differentiable(plain, right)
        return loss, plain, right

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        (features, projection, targets, normaliser), cap = ctx.saved_tensors, ctx.cap
        # It includes the loss scale of half-precision training: apply it before small slopes round to 0.
        weights = gradient[:, None]
        by_features = torch.empty_like(features)
        by_projection = torch.zeros_like(projection, dtype=normaliser.dtype) if ctx.needs_input_grad[1] else None
        for rows, logits in _chunks(features, projection, cap):
            logits = logits.to(normaliser.dtype)
            bend = None if cap is None else 1 - (logits / cap).square_()  # of the cap, whose slope is 1 at 0
            slope = logits.sub_(normaliser[rows]).exp_()
            if ctx.label_smoothing:
                slope.sub_(ctx.label_smoothing / projection.size(0))
            slope.scatter_add_(1, targets[rows], slope.new_full(targets[rows].shape, ctx.label_smoothing - 1))
            if bend is not None:
                slope.mul_(bend)
            slope = slope.mul_(weights[rows]).to(features.dtype)
            by_features[rows] = slope @ projection
            if by_projection is not None:
                by_projection += slope.t() @ features[rows]
        return by_features, by_projection, None, None, None
