"""The acceptance rules, and the candidates of beam search, as functions of tensors that a GPU can record.

R rows, K drafted tokens, C candidates, V vocabulary.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch import coupled, rejection
from specdec_plugins.decoding.backends.torch.constraints import repeat_table, repeated, restrict
from specdec_plugins.decoding.backends.torch.graphs import Executor, Results
from specdec_plugins.decoding.backends.torch.sampling import Table, warp
from specdec_plugins.decoding.backends.torch.tensors import pad_rows, send
from specdec_plugins.decoding.constraints import Bounds, Constraints
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.values import DeviceDraft, Distribution, Draft, Draws, Verdict, rejecting

COLUMNS = 5  # of a table's row before the drafted tokens: offered, minimum, room, beta, tau's bits


class Judging(NamedTuple):
    """What a batch needs of the rules: settings that a recording is bound to."""

    constraints: Constraints
    limited: bool  # whether a length limit may end a row
    tolerant: bool  # whether some rows are tolerant
    most: int  # see `repeat_table`
    rejects: bool  # whether some rows use rejection sampling
    scored: bool  # whether some rows want scores


def judge(
    executor: Executor,
    logits: Tensor,
    draft: Draft,
    bounds: Bounds,
    tolerances: Sequence[Tolerance],
    draws: Sequence[Draws | None] | None = None,
    scored: Sequence[bool] | None = None,
) -> Verdict:
    """Judge a draft by logits (R, K+1, V): position j chooses the token after the first j drafted ones. See `Pass.judge`."""
    scored = [True] * len(tolerances) if scored is None else scored
    logits = pad_rows(logits, executor.round(len(logits)))
    device_draft = draft if isinstance(draft, DeviceDraft) else None
    if device_draft is not None:
        width, offered = device_draft.guesses.size(1), device_draft.room
        tokens: list[list[int]] = [[] for _ in offered]
    else:
        width = max(map(len, draft.tokens))
        offered, tokens = list(map(len, draft.tokens)), [[*row, *[0] * (width - len(row))] for row in draft.tokens]
    lines = [
        (count, minimum, room, tolerance.beta, bits(tolerance.tau), *row)
        for count, minimum, room, tolerance, row in zip(offered, bounds.minimum, bounds.room, tolerances, tokens)
    ]
    lines += [(0,) * len(lines[0])] * (len(logits) - len(lines))
    inputs: dict[str, Tensor | tuple[Tensor, ...]] = {"logits": logits[:, : width + 1], "table": send(lines, logits.device)}
    if device_draft is not None:
        inputs["guesses"] = pad_rows(device_draft.guesses, len(logits))
    limited, tolerant = min(bounds.room) <= width, any(tolerance.beta > 1 for tolerance in tolerances)
    repeats, most = repeat_table(bounds.repeats, logits.size(2), len(logits), executor.round) if bounds.repeats else ([], 0)
    if most:
        inputs["repeats"] = send(repeats, logits.device)
    rejects = draws is not None and rejecting(draws)
    if draws is not None:
        inputs["drawing"] = Table.of(draws, len(logits), logits.size(2), logits.device, executor.round)
        if rejects and draft.distribution is not None:
            inputs["distribution"] = Distribution(*(pad_rows(each[:, :width], len(logits)) for each in draft.distribution))
    judging = Judging(bounds.constraints, limited, tolerant, most, rejects, any(scored))
    judged = executor.run(_judge, inputs, settings=(judging,))["judged"][: len(tolerances)].tolist()
    if device_draft is not None:
        device_draft.arrive([list(map(int, row[3 : 3 + width])) for row in judged])
    counts = [int(row[0]) for row in judged]
    scores = [row[3 + width : 4 + width + count] if some else [] for row, count, some in zip(judged, counts, scored)]
    return Verdict(counts, [int(row[1]) for row in judged], scores, [row[2] > 0 for row in judged])


def rank(executor: Executor, logits: Tensor, bounds: Bounds, beams: Sequence[Beam]) -> list[Ranked]:
    """The best tokens by logits (B, V): see `Pass.rank`."""
    few = [beam.candidates for beam in beams]
    logits = pad_rows(logits[:, None], executor.round(len(logits)))
    rows, vocabulary = len(logits), logits.size(2)
    lines = [
        (minimum, room, beam.renormalize, bits(beam.unk_penalty))
        for minimum, room, beam in zip(bounds.minimum, bounds.room, beams)
    ]
    inputs: dict[str, Tensor | tuple[Tensor, ...]] = {
        "logits": logits,
        "table": send([*lines, *[(0,) * 4] * (rows - len(lines))], logits.device),
    }
    repeats, most = repeat_table(bounds.repeats, vocabulary, rows, executor.round) if bounds.repeats else ([], 0)
    if most:
        inputs["repeats"] = send(repeats, logits.device)
    settings = bounds.constraints, most, min(max(few), vocabulary)
    ranked = executor.run(_rank, inputs, settings=settings)["ranked"][: len(few)].tolist()
    return [Ranked(list(map(int, tokens[:size])), scores[:size]) for (tokens, scores), size in zip(ranked, few)]


def _rank(constraints: Constraints, most: int, few: int, logits: Tensor, table: Tensor, repeats: Tensor | None = None) -> Results:
    """One float64 tensor (R, 2, C), ``ranked``: the best ``few`` tokens and their scores, by logits (R, 1, V).

    ``table`` (R, 4): tokens before eos may follow, room, whether to renormalise, and the bits of the penalty for unknown tokens.
    """
    symbols = constraints.symbols
    minimum, room, renormalise, penalty = table.tensor_split(4, 1)  # (R, 1) each
    nothing = table[:, :0]  # drafted
    banned = None if repeats is None else repeated(repeats, nothing, logits.size(-1), most)
    values = logits.double()  # (R, 1, V)
    allowed, _ = restrict(values, constraints, minimum, None, banned)
    allowed[..., symbols.mask] -= penalty.contiguous().view(torch.float64)
    over = (room <= 0)[..., None]
    ending = torch.full_like(values, -math.inf)
    ending[..., symbols.eos] = values[..., symbols.eos]
    allowed = torch.where(over, ending, allowed)
    own = ((renormalise > 0)[..., None] & ~over).expand_as(values)
    total = torch.where(own, allowed, values).logsumexp(-1, keepdim=True)
    scores, tokens = allowed.topk(few)  # (R, 1, C) each
    return {"ranked": torch.cat([tokens.double(), scores - total], 1)}


def bits(number: float) -> int:
    """A float64 as the int64 with the same bits, to travel in a table of integers."""
    whole: int = struct.unpack("q", struct.pack("d", number))[0]
    return whole


def _judge(
    judging: Judging,
    logits: Tensor,
    table: Tensor,
    guesses: Tensor | None = None,
    repeats: Tensor | None = None,
    drawing: Table | None = None,
    distribution: Distribution | None = None,
) -> Results:
    """One float64 tensor (R, 3 + K + K + 1), ``judged``, as each transfer to the host waits for the GPU.

    Its columns: tokens accepted, the own token, whether the limit forced it, the drafted tokens, K + 1 scores if any are wanted.
    The drafted tokens come in ``table`` (R, `COLUMNS` + K), or as ``guesses`` (R, K) of a `DeviceDraft`. ``repeats`` are as in
    `repeat_table`; ``distribution`` is what drafted tokens were drawn from.
    """
    constraints, limited, tolerant, most, rejects, scored = judging
    width = logits.size(1) - 1
    offered, minimum, room, beta, tau, rest = table.tensor_split((1, 2, 3, 4, 5), 1)  # (R, 1) five times, (R, ..)
    tokens = rest[:, :width] if guesses is None else guesses  # (R, K)
    banned = None if repeats is None else repeated(repeats, tokens, logits.size(-1), most)
    allowed, cut = restrict(logits, constraints, minimum, room if limited else None, banned)
    best = allowed.argmax(-1)  # (R, K+1)
    passes = tokens == best[:, :width]  # (R, K)
    if tolerant:
        passes |= _tolerates(allowed[:, :width], best[:, :width], tokens, beta, tau.contiguous().view(torch.float64))
    if drawing is not None:
        if limited:
            allowed = restrict(logits, constraints, minimum, None, banned)[0]
        drawn = _draw(allowed, drawing, tokens, offered, rejects, distribution, constraints.symbols.eos, room)
        mine = drawing.temperature > 0
        passes, best, cut = (torch.where(mine, one, other) for one, other in zip(drawn, (passes, best, cut)))
    passes &= torch.arange(width, device=passes.device) < offered
    if guesses is not None:  # nothing is offered after eos; the host has clipped its own drafts there
        ends = (tokens == constraints.symbols.eos).long()
        passes &= ends.cumsum(1) == ends
    accepted = passes.long().cumprod(1).sum(1, keepdim=True)  # (R, 1) up to the first refusal
    own = best.gather(1, accepted)  # (R, 1)

    columns = [accepted, own, cut.gather(1, accepted), tokens]
    if scored:  # under the unconstrained model, as in fairseq
        said = torch.cat([tokens, own], 1).scatter(1, accepted, own)  # (R, K+1)
        raw = logits.float()
        columns.append(raw.gather(2, said[..., None])[..., 0] - raw.logsumexp(-1))  # (R, K+1)
    return {"judged": torch.cat([each.double() for each in columns], 1)}


def _draw(
    logits: Tensor,
    table: Table,
    tokens: Tensor,
    offered: Tensor,
    rejects: bool,
    distribution: Distribution | None,
    eos: int,
    room: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """By the sampling rules: which drafted ``tokens`` (R, K) are accepted (R, K) bool, the verifier's own tokens (R, K+1), and
    which of these only the limit makes eos (R, K+1) bool."""
    width = tokens.size(1)
    weights = warp(logits, table, tokens)
    own = coupled.choose(weights, table)
    passes = tokens == own[:, :width]
    if rejects:  # some rows do
        accepted, recovered = rejection.judge(weights, table, tokens, offered, distribution)
        own = torch.where(table.rejects, recovered, own)
        passes = torch.where(table.rejects, accepted, passes)
    over = torch.arange(width + 1, device=own.device) >= room  # (R, K+1)
    cut = over & (own != eos)
    passes = torch.where(over[:, :width], tokens == eos, passes)
    return passes, own.masked_fill(over, eos), cut


def _tolerates(logits: Tensor, best: Tensor, tokens: Tensor, beta: Tensor, tau: Tensor) -> Tensor:
    """(R, K) bool: whether a token is among the ``beta`` (R, 1) best and within ``tau`` (R, 1) nats of the best (Xia et al. 2023,
    section 3.3)."""
    top, own = (logits.gather(2, each[..., None]) for each in (best, tokens))  # (R, K, 1)
    near = (top.float() - own.float() <= tau[..., None]) & (own > -math.inf)
    earlier = torch.arange(logits.size(-1), device=logits.device) < tokens[..., None]  # (R, K, V)
    rank = ((logits > own) | ((logits == own) & earlier)).sum(-1)
    return near[..., 0] & (rank < beta)
