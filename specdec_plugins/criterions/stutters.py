"""Stutters: what a model has translated repeats itself here and there, and it learns to go on from there.

Greedy decoding falls into circles where a model is at a loss (*hand hand hand ..*). A sentence ends there; a document goes on,
with all that follows so many positions too late, and a model that finds its place in the source by positions leaves out as
much of it. With stutters in the prefix it learns to leave a circle, and to find its place by what it has translated.

B batch, T target symbols, padding included.
"""

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

LONGEST = 3  # symbols that a stutter repeats
MOST = 64  # times that it repeats them
SHARE = 8  # a batch grows wider by a part of so many at most, as its other rows are filled up to the longest


def stuttered(row: Sequence[int], rate: float, kept: set[int], most: int, random: Random) -> tuple[list[int], list[bool]]:
    """Draw where a row stutters.

    Args:
        row: symbols. rate: stutters expected for each. kept: symbols that are not repeated. most: symbols of the result.

    Returns: of each symbol of the result, its index in ``row``, as 0, 1, 2, 1, 2, 3; and whether what follows it is to be
        predicted, which is not the case within a stutter.
    """
    indices, predicted = [], []
    room = most - len(row)
    for index in range(len(row)):
        indices.append(index)
        predicted.append(True)
        if random.random() < rate:
            again = range(max(index + 1 - random.randint(1, LONGEST), 0), index + 1)
            times = min(int(MOST ** random.random()), room // len(again))
            if times > 0 and kept.isdisjoint(row[again.start : again.stop]):
                indices += list(again) * times
                predicted += [False] * (len(again) * times - 1) + [True]
                room -= len(again) * times
    return indices, predicted


def with_stutters(prefix: Tensor, target: Tensor, rate: float, padding: int, kept: set[int], most: int) -> tuple[Tensor, Tensor]:
    """A batch with stutters, drawn by torch's seed.

    Args:
        prefix, target: (B, T) int64, what the decoder reads and predicts, filled on the right with ``padding``.
        rate: stutters expected for each symbol. kept: symbols that are not repeated. most: symbols that a row may have.

    Returns: both anew, (B, the longest row); what is not to be predicted is padding in the target.
    """
    most = min(prefix.size(1) + prefix.size(1) // SHARE, most)
    random = Random(int(torch.randint(1 << 62, ())))
    rows = [
        stuttered(row[:length], rate, kept, most, random)
        for row, length in zip(prefix.tolist(), prefix.ne(padding).sum(1).tolist())
    ]
    shape = len(rows), max(len(indices) for indices, _ in rows)
    read, due = prefix.new_full(shape, padding), target.new_full(shape, padding)
    for row, (indices, predicted) in enumerate(rows):
        read[row, : len(indices)] = prefix[row, indices]
        due[row, : len(indices)] = target[row, indices].masked_fill(~torch.tensor(predicted, device=target.device), padding)
    return read, due
