"""The likeliest tokens at each position of a draft, in NumPy: the twin of `backends/torch/candidates.py`.

B rows of a pass, K drafted positions, C candidates at each, V vocabulary, G width of the successor network; P = C where scores
depend on the token before, which takes a successor network, else 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, numbered
from specdec_plugins.decoding.backends.cpu.arguments import address
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.options import Sampling
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draws


def best_few(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(.., C) the indices of the largest logits (.., V), largest first, and these logits."""
    few = min(count, logits.shape[-1])
    best = np.sort(np.argpartition(-logits, few - 1, -1)[..., :few], -1)
    found = np.take_along_axis(logits, best, -1)
    order = np.argsort(-found, -1, kind="stable")
    return np.take_along_axis(best, order, -1), np.take_along_axis(found, order, -1)


def candidates_of(
    logits: np.ndarray, gates: np.ndarray | None, successor: Any, vocabulary: Sequence[int] | None, prefix: Prefix
) -> Candidates:
    """By logits (B, K, V), and gates (B, K, G) with a successor network: see the twin."""
    own, logits = numbered(prefix.symbols, vocabulary), logits.copy()
    if own.pad >= 0:
        logits[..., own.pad] = -np.inf
    if own.eos >= 0:
        logits[[row for row, output in enumerate(prefix.outputs) if not output], 0, own.eos] = -np.inf
    numbers, few = best_few(logits, CANDIDATES)  # (B, K, C)
    tokens = numbers if vocabulary is None else np.array(vocabulary)[numbers]
    totals = few[:, :, None].astype(np.float64)  # (B, K, 1, C)
    if successor is not None and gates is not None:
        relation = np.maximum(gates[:, 1:, None] + successor.tokens[numbers[:, :-1]], 0)  # (B, K - 1, C, G)
        after = successor.out[numbers[:, 1:]].astype(np.float64)
        totals = totals.repeat(few.shape[2], 2)  # (B, K, P, C)
        totals[:, 1:] += relation.astype(np.float64) @ after.swapaxes(2, 3)
    scores = log_softmax(totals)
    for row, draws in enumerate(prefix.draws() or ()):
        if draws is not None:
            scores[row] = log_softmax(warped(totals[row], draws.sampling))
            if draws.sampling.rule == "coupled":
                scores[row] = log_softmax(scores[row] - np.log(noise(draws, tokens[row]))[:, None])
    return Candidates(tokens.tolist(), scores.tolist())


def log_softmax(values: np.ndarray) -> np.ndarray:
    values = values - values.max(-1, keepdims=True)
    scores: np.ndarray = values - np.log(np.exp(values).sum(-1, keepdims=True))
    return scores


def warped(values: np.ndarray, how: Sampling) -> np.ndarray:
    """Logits (.., C) after the warpers of `backends/torch/sampling.py`, without the penalty."""
    values = values / min(max(how.temperature, 1e-30), 1e30)
    order = np.argsort(-values, -1, kind="stable")
    ranked = np.take_along_axis(values, order, -1)
    if how.top_k:
        last = min(how.top_k, values.shape[-1]) - 1
        ranked = np.where(ranked < ranked[..., last : last + 1], -np.inf, ranked)
    mass = np.exp(log_softmax(ranked))
    beyond = mass.cumsum(-1) - mass >= how.top_p
    beyond[..., 0] = False
    np.put_along_axis(values, order, np.where(beyond, -np.inf, ranked), -1)
    return values


def noise(draws: Draws, tokens: np.ndarray) -> np.ndarray:
    """(K, C) exponential noise of a row's next positions that the verifier draws ``tokens`` (K, C) with."""
    first, bits = len(draws.prefix), np.empty(tokens.shape, np.uint32)
    positions, drawn = np.empty(tokens.shape, np.int64), np.ascontiguousarray(tokens, np.int64)
    positions[:] = np.arange(first, first + len(tokens))[:, None]
    kernels().specdec_bits(draws.seed, Purpose.SAMPLE, bits.size, address(positions), address(drawn), address(bits))
    variates: np.ndarray = -np.log1p(-(bits + 0.5) * 2.0**-32)
    return variates
