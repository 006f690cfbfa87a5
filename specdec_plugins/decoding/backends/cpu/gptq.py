"""Weights in int4 groups that change a layer's outputs least on given inputs: GPTQ (Frantar et al. 2022, arXiv 2210.17323).

O outputs, I inputs, G inputs of a group.
"""

import ml_dtypes
import numpy as np

from specdec_plugins.formats.packed import GROUP

LEAST, MOST = -8, 7  # of an int4 weight
DAMPING = 0.01  # of the mean square of the inputs, added to each: the paper's
BLOCK = 64  # inputs whose errors are fed back to all later ones at once
# What is tried as a scale, as by csrc/weights.h: the group's largest weight becomes LEAST or MOST, or is cut off, so that others
# have more steps. Larger cuts are the best for none of 360,448 groups of the shipped pairs.
SIGNED = [(1 - 0.05 * part) / most for part in range(8) for most in (LEAST, MOST)]


def rounded(weight: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight (O, I) rounded, and its scales (O, I / G), for inputs x with the second ``moments`` (I, I): the sum of x x'.

    Inputs are taken by size, the largest first. Each one's rounding error is made up for by the weights of those that follow (the
    paper's equation 2, by the Cholesky factor of the inverse moments). Scales are those of the weights as given.
    """
    scales = scales_of(weight)
    steps = np.repeat(scales, GROUP, 1).astype(np.float64)
    moments = moments.astype(np.float64)
    size = np.diagonal(moments).copy()
    moments[np.diag_indices_from(moments)] += DAMPING * (size.mean() or 1)
    order = np.argsort(-size, kind="stable")
    factor = np.linalg.cholesky(np.linalg.inv(moments[order][:, order])).T  # (I, I), upper
    left, steps = (np.ascontiguousarray(each[:, order].T) for each in (weight.astype(np.float64), steps))  # (I, O)
    found = np.empty_like(left)
    for first in range(0, len(left), BLOCK):
        last = min(first + BLOCK, len(left))
        errors = np.empty_like(left[first:last])
        for i in range(first, last):
            found[i] = np.clip(np.rint(left[i] / steps[i]), LEAST, MOST) * steps[i]
            errors[i - first] = (left[i] - found[i]) / factor[i, i]
            left[i + 1 : last] -= factor[i, i + 1 : last, None] * errors[i - first]
        left[last:] -= factor[first:last, last:].T @ errors
    result = np.empty_like(found)
    result[order] = found
    return np.ascontiguousarray(result.T, np.float32), scales


def scales_of(weight: np.ndarray) -> np.ndarray:
    """(O, I / G) float32, rounded to bfloat16: those tried (`SIGNED`) with the smallest squared errors, 1 for groups of zeros."""
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(2, keepdims=True), 2)
    best, least = np.ones_like(largest), np.full_like(largest, np.inf)
    for part in SIGNED:
        scale = (largest * np.float32(part)).astype(ml_dtypes.bfloat16).astype(np.float32)
        scale[np.abs(largest) < 1e-30] = 1
        error = np.square(np.clip(np.rint(groups / scale), LEAST, MOST) * scale - groups).sum(2, keepdims=True)
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return best[..., 0]
