"""The likeliest tokens at each position of a draft, by logits.

R rows of a pass, K drafted positions, C candidates at each, V vocabulary, G width of the successor network; P = C where scores
depend on the token before, which takes a successor network, else 1.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.candidates import CANDIDATES, Candidates, numbered
from specdec_plugins.decoding.backends.torch.noise import exponential
from specdec_plugins.decoding.backends.torch.sampling import Table, warp
from specdec_plugins.decoding.backends.torch.transformer import Successor
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.model.spec import Symbols


def forbid(logits: Tensor, symbols: Symbols, empty: Tensor | list[int]) -> None:
    """Ban pad in logits (R, K, V), and eos at the first position of ``empty`` rows: indices, or (R,) bool. See `numbered`."""
    if symbols.pad >= 0:
        logits[..., symbols.pad] = -math.inf
    if symbols.eos < 0:
        return
    if isinstance(empty, Tensor):
        logits[:, 0, symbols.eos].masked_fill_(empty, -math.inf)
    else:
        logits[empty, 0, symbols.eos] = -math.inf


@torch.inference_mode()
def candidates_of(
    logits: Tensor, gates: Tensor | None, successor: Successor | None, vocabulary: Sequence[int] | None, prefix: Prefix
) -> Candidates:
    """By logits (R, K, V), and gates (R, K, G) with a successor network: never pad, and no eos in an empty output.

    In rows that sample, scores are warped; under the coupled rule they include the noise that the verifier draws with, and so
    predict its sample.
    """
    device, logits = logits.device, logits.clone()
    forbid(logits, numbered(prefix.symbols, vocabulary), [row for row, output in enumerate(prefix.outputs) if not output])
    few, numbers = logits.topk(min(CANDIDATES, logits.size(-1)))  # (R, K, C)
    tokens = numbers if vocabulary is None else torch.tensor(vocabulary, device=device)[numbers]
    totals = few[:, :, None].double()  # (R, K, 1, C) float64: rounding, which may depend on R, must change no tree
    if successor is not None and gates is not None:
        before = successor.tokens[numbers[:, :-1]]  # (R, K-1, C, G)
        relation = torch.relu(gates[:, 1:, None] + before)
        added = relation.double() @ successor.out[numbers[:, 1:]].transpose(2, 3).double()  # (R, K-1, P, C)
        totals = totals.expand(-1, -1, few.size(2), -1).clone()
        totals[:, 1:] += added
    scores = totals.log_softmax(-1)
    draws = prefix.draws()
    if draws is not None:
        table = Table.of(draws, len(logits), logits.size(-1), device)
        table = table._replace(prefixes=table.prefixes[:, :0])  # drafts have no penalty
        warped = warp(totals.flatten(1, 2), table).view_as(totals).log()
        noise = exponential(table.bits(Purpose.SAMPLE, few.size(1), tokens))[:, :, None]
        coupled = (warped - noise.log()).log_softmax(-1)
        drawn = torch.where(table.rejects[..., None, None], warped, coupled)
        scores = torch.where(table.temperature[..., None, None] > 0, drawn, scores)
    return Candidates(tokens.tolist(), scores.tolist())
