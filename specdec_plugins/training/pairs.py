"""A verifier's translations as token ids, which drafters learn: a JSON line each, and batches of them. Knows no text.

B sentences, S source positions, T target positions.
"""

import json
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specdec_plugins.decoding.backends.torch.tensors import source_tokens
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier
from specdec_plugins.decoding.requests import Source


class Pair(NamedTuple):
    source: Sequence[int]  # as the model reads it
    target: Sequence[int]  # without eos


def line_of(pair: Pair | None) -> str:
    """A pair as a line of a file; None stands for a source without a usable translation."""
    return json.dumps(pair and [[*each] for each in pair], separators=(",", ":")) + "\n"


def read_pairs(path: Path, sizes: tuple[int, int]) -> list[Pair | None]:
    """The pairs in a file; an empty list if there is no file. Truncates an unfinished last line, left by an interrupted run.

    Raises ValueError, naming the line, for one that is no pair of token ids below ``sizes``.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    if (end := data.rfind(b"\n") + 1) < len(data):
        with open(path, "r+b") as file:
            file.truncate(end)
    pairs: list[Pair | None] = []
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            found = json.loads(line)
            pair = None if found is None else Pair(*(array("i", ids) for ids in found))
            if pair is not None and not all(0 <= each < size for ids, size in zip(pair, sizes) for each in ids):
                raise ValueError
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise ValueError(f"{path}, line {number}: damaged; remove the file to translate the text again") from None
        pairs.append(pair)
    return pairs


def batches(pairs: Sequence[Pair], most: int, seed: int, epoch: int) -> list[list[int]]:
    """The numbers of the pairs of each batch of an epoch: pairs of similar lengths, in an order that depends on seed and epoch.
    A batch has at most ``most`` tokens on either side, eos and padding included, or a single pair."""
    rng, order = random.Random(f"{seed} {epoch}"), list(range(len(pairs)))
    rng.shuffle(order)
    longest = [max(len(pair.source), len(pair.target) + 1) for pair in pairs]
    order.sort(key=longest.__getitem__)  # stable, so pairs of one length stay shuffled
    made: list[list[int]] = [[]]
    for number in order:
        if made[-1] and (len(made[-1]) + 1) * longest[number] > most:
            made.append([])
        made[-1].append(number)
    rng.shuffle(made)
    return made


def batch_of(pairs: Sequence[Pair], verifier: FrozenVerifier, progress: float = 1.0) -> Batch:
    """What a drafter's loss reads of pairs, which follows the verifier's special tokens. ``progress``: of the training."""
    symbols = verifier.spec.symbols
    prefixes, targets = [[symbols.start, *pair.target] for pair in pairs], [[*pair.target, symbols.eos] for pair in pairs]
    source, prefix, target = (
        source_tokens(Source(rows, symbols)) for rows in ([pair.source for pair in pairs], prefixes, targets)
    )
    return Batch(source, prefix, target, symbols, verifier, progress)
