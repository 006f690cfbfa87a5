"""Sampling from logits: repetition penalty, temperature, top-k and top-p, in Hugging Face's order.

The penalty (CTRL, Keskar et al. 2019, arXiv 1909.05858) divides the positive logits of tokens in the prefix and multiplies their
negative ones. Top-k keeps the k largest logits and all equal to the k-th. Top-p (Holtzman et al. 2020, arXiv 1904.09751) keeps
the fewest likeliest tokens whose probabilities sum to at least p; of equals the lower token id comes first.

``csrc/sample.h`` does the same. R rows, W positions, V vocabulary, T tokens of a prefix.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.noise import exponential, token_bits
from specdec_plugins.decoding.backends.torch.tensors import pad_rows, send
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.options import Sampling
from specdec_plugins.decoding.values import Draws


class Table(NamedTuple):
    """`Draws` of all rows as tensors, each (R, 1); rows that are not sampled have temperature 0."""

    temperature: Tensor  # float64
    top_k: Tensor
    top_p: Tensor  # float64
    penalty: Tensor  # float64
    seeds: Tensor
    positions: Tensor  # of the first token to draw
    rejects: Tensor  # bool: under the rejection rule
    prefixes: Tensor  # (R, T) padded with V; T = 0 if no row has a penalty

    @classmethod
    def of(
        cls,
        draws: Sequence[Draws | None],
        rows: int,
        vocabulary: int,
        device: torch.device,
        round_up: Callable[[int, int], int] = lambda size, unit: size,
    ) -> "Table":
        """Draws of the first of ``rows`` rows. ``round_up(T, unit)`` leaves fewer different shapes."""
        nothing = Draws(Sampling(), 0, ())
        given = [each or nothing for each in draws]
        sampling = [each.sampling for each in given]

        def column(numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
            return pad_rows(torch.tensor(numbers, dtype=dtype).to(device)[:, None], rows)

        longest = 0
        if any(each.repetition_penalty != 1 for each in sampling):
            longest = round_up(max(1, *(len(each.prefix) for each in given)), 64)
        prefixes = [[*each.prefix[:longest], *[vocabulary] * (longest - len(each.prefix))] for each in given]
        return cls(
            column([each.sampling.temperature if each else 0.0 for each in draws], torch.float64),
            column([each.top_k for each in sampling], torch.int64),
            column([each.top_p for each in sampling], torch.float64),
            column([each.repetition_penalty for each in sampling], torch.float64),
            column([each.seed for each in given], torch.int64),
            column([len(each.prefix) for each in given], torch.int64),
            column([each.rule == "rejection" for each in sampling], torch.bool),
            pad_rows(send(prefixes, device), rows),
        )

    def bits(self, purpose: int, width: int, tokens: Tensor) -> Tensor:
        """Random bits for each of ``tokens`` (..., N) at each row's next W = ``width`` positions: (R, W, N)."""
        positions = self.positions + torch.arange(width, device=self.positions.device)  # (R, W)
        return token_bits(self.seeds[..., None], purpose, positions[..., None], tokens)


def warp(logits: Tensor, table: Table, drafted: Tensor | None = None) -> Tensor:
    """(R, W, V) float64 probabilities of sampling each token from constrained logits (R, W, V). Position j comes after the prefix
    and the first j of the row's ``drafted`` tokens (R, W - 1), if any."""
    values = penalised(logits.double(), table, drafted)
    temperature = table.temperature.clamp(1e-30, 1e30)  # no NaN at the extremes
    values = values / torch.where(table.temperature > 0, temperature, 1.0)[..., None]
    order = values.sort(dim=-1, descending=True, stable=True)
    last = (table.top_k - 1).where(table.top_k > 0, values.size(-1) - 1).clamp(max=values.size(-1) - 1)
    least = order.values.gather(-1, last[..., None].expand(*values.shape[:-1], 1))
    values = values.masked_fill(values < least, -math.inf)
    likeliest = order.values.masked_fill(order.values < least, -math.inf).softmax(-1)
    beyond = likeliest.cumsum(-1) - likeliest >= table.top_p[..., None]
    beyond[..., 0] = False
    values = values.masked_fill(torch.empty_like(beyond).scatter_(-1, order.indices, beyond), -math.inf)
    return values.softmax(-1)


def penalised(values: Tensor, table: Table, drafted: Tensor | None) -> Tensor:
    """Logits (R, W, V) after the repetition penalty."""
    if not table.prefixes.size(1):
        return values
    rows, width, vocabulary = values.shape
    held = values.new_zeros(rows, width, vocabulary + 1, dtype=torch.bool)  # one more for padding
    held[:, 0].scatter_(1, table.prefixes, True)
    if drafted is not None and width > 1:
        held[:, 1:].scatter_(2, drafted[..., None], True)
        held = held.long().cumsum(1) > 0  # each position's prefix has those of the positions before
    else:
        held = held[:, :1].expand(-1, width, -1)
    penalty = table.penalty[..., None]
    return torch.where(held[..., :vocabulary], torch.where(values > 0, values / penalty, values * penalty), values)


def draw(weights: Tensor, table: Table, purpose: int, tokens: Tensor | None = None) -> Tensor:
    """(R, W) indices sampled by weights (R, W, N), normalised or not, of ``tokens`` (R, W, N) or of 0 .. N - 1.

    An exponential race: the least of exponentially distributed times divided by the weights wins.
    """
    if tokens is None:
        tokens = torch.arange(weights.size(-1), device=weights.device)
    return (exponential(table.bits(purpose, weights.size(1), tokens)) / weights).argmin(-1)


def draw_candidate(scores: Tensor, tokens: Tensor, table: Table, place: int) -> tuple[Tensor, Tensor]:
    """Sample a drafter's token, ``place`` positions after the prefix, among candidates ``tokens`` (R, C) with logits ``scores``
    (R, C): (R, 1) its index, and (R, C) the probabilities.

    The coupled rule uses the verifier's random numbers. Logits are warped like the verifier's, but without the penalty.
    """
    here = table._replace(positions=table.positions + place, prefixes=table.prefixes[:, :0])
    weights, named = warp(scores[:, None], here), tokens[:, None]
    numbers = torch.where(table.rejects, draw(weights, here, Purpose.DRAFT, named), draw(weights, here, Purpose.SAMPLE, named))
    return numbers, weights[:, 0]
