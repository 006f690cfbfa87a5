"""Block masking and glancing: what the drafter sees, what it must predict, what it is shown.

Pure, vectorised functions over integer tensors; nothing here knows fairseq or a model.

B sentences, S target tokens, T positions of the laid-out decoder input, A blocks a sentence, K block size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskedBlock:
    """One masked block a sentence: a visible prefix, then K mask symbols, then padding.

    ``masked`` marks the mask symbols that stand for a target token; the block may reach past the sentence's end.
    """

    prev_target: Tensor  # (B, T) int64: the decoder's input
    target: Tensor  # (B, T) int64: the token at each position, padding after the end of sentence
    masked: Tensor  # (B, T) bool: where there is something to predict
    starts: Tensor  # (B,) int64: prefix lengths, so the first mask position of each row
    block_size: int


@dataclass(frozen=True)
class ManyBlocks:
    """A blocks a sentence, each to be predicted from the part of the sentence before it.

    ``masked`` marks what there is to predict: a block may reach past the end, and a short sentence has fewer blocks.
    """

    prev_target: Tensor  # (B, S) int64: eos, then all target tokens but the last
    target: Tensor  # (B, A, K) int64: the blocks' tokens, padding after the end of sentence
    masked: Tensor  # (B, A, K) bool
    starts: Tensor  # (B, A) int64: prefix lengths; 0 where there is no block
    block_size: int

    @property
    def offsets(self) -> Tensor:
        """(B, A, K) int64, the place of a prediction in its block."""
        return torch.arange(self.block_size, device=self.starts.device).expand_as(self.masked)


def lengths(target: Tensor, pad: int) -> Tensor:
    """(B,) number of target tokens, end-of-sentence included, of right-padded ``target`` (B, S)."""
    return target.ne(pad).sum(1)


def random_starts(target_lengths: Tensor) -> Tensor:
    """(B,) prefix lengths, uniform over 0 .. length - 1, from torch's global generator."""
    uniform = torch.rand(target_lengths.shape, device=target_lengths.device, dtype=torch.float64)
    return (uniform * target_lengths).long()


def fixed_starts(target_lengths: Tensor, ids: Tensor) -> Tensor:
    """(B,) prefix lengths that depend on nothing but each sentence's number and length.

    The golden-ratio sequence spreads them evenly, so that validation sees every part of a sentence, and the same
    part in every run, however the sentences are batched.
    """
    uniform = (ids.double() * 0.6180339887498949) % 1.0
    return (uniform * target_lengths).long()


def mask_blocks(target: Tensor, starts: Tensor, block_size: int, pad: int, mask: int) -> MaskedBlock:
    """Lay out right-padded ``target`` (B, S) as prefix, block, padding, with the prefix lengths ``starts`` (B,)."""
    width = int(starts.max()) + block_size
    position = torch.arange(width, device=target.device)  # (T,)
    laid_out = torch.nn.functional.pad(target, (0, max(0, width - target.size(1))), value=pad)[:, :width]  # (B, T)
    in_prefix = position < starts[:, None]  # (B, T)
    in_block = ~in_prefix & (position < starts[:, None] + block_size)  # (B, T)
    prev_target = laid_out.masked_fill(in_block, mask).masked_fill(~(in_prefix | in_block), pad)
    return MaskedBlock(prev_target, laid_out, in_block & laid_out.ne(pad), starts, block_size)


def many_starts(target_lengths: Tensor, blocks: int) -> Tensor:
    """(B, A) different prefix lengths 0 .. length - 1, at random; -1 where a sentence has too few for A = ``blocks``."""
    longest = int(target_lengths.max())
    scores = torch.rand(len(target_lengths), longest, device=target_lengths.device)
    place = torch.arange(longest, device=target_lengths.device)
    chosen = scores.masked_fill(place >= target_lengths[:, None], 2.0).argsort(1)[:, :blocks]
    return chosen.masked_fill(chosen >= target_lengths[:, None], -1)


def many_blocks(target: Tensor, starts: Tensor, block_size: int, pad: int, eos: int) -> ManyBlocks:
    """Blocks of right-padded ``target`` (B, S) after the prefix lengths ``starts`` (B, A); none where a start is negative."""
    first = target.new_full((target.size(0), 1), eos)
    place = starts.clamp(min=0)[..., None] + torch.arange(block_size, device=target.device)  # (B, A, K)
    padded = torch.nn.functional.pad(target, (0, block_size), value=pad)
    tokens = padded.gather(1, place.flatten(1)).view(place.shape)
    tokens = tokens.masked_fill((starts < 0)[..., None], pad)
    return ManyBlocks(torch.cat([first, target[:, :-1]], 1), tokens, tokens.ne(pad), starts.clamp(min=0), block_size)


def reveal(wrong: Tensor, masked: Tensor, ratio: float, scores: Tensor) -> Tensor:
    """Which masked positions glancing shows to the drafter (Qian et al. 2021, section 3.2).

    In each row as many as ``ratio`` times the wrong predictions, rounded down, picked among all masked positions,
    right or wrong, by the smallest ``scores``; random scores make it a uniform choice.

    Args:
        wrong: (B, T) bool, positions predicted wrong; only those in ``masked`` count.
        masked: (B, T) bool.
        ratio: between 0 and 1.
        scores: (B, T) float.

    Returns: (B, T) bool, a subset of ``masked``.
    """
    # The small addition keeps products like 0.29 * 100, an integer but for rounding, from falling below it.
    count = ((wrong & masked).sum(1, keepdim=True).double() * ratio + 1e-6).long()  # (B, 1)
    rank = scores.masked_fill(~masked, float("inf")).argsort(1).argsort(1)  # (B, T)
    return rank < count


def block_view(values: Tensor, block: MaskedBlock) -> Tensor:
    """(B, K) slice of ``values`` (B, T): each row's block, first mask position first."""
    position = block.starts[:, None] + torch.arange(block.block_size, device=values.device)
    return values.gather(1, position)


def leading_right(right: Tensor) -> Tensor:
    """(B,) how many leading positions of each row of ``right`` (B, K) bool are true, before the first false one."""
    return right.long().cumprod(1).sum(1)
