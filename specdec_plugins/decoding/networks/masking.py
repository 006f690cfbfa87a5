"""Block masking and glancing for training: what a drafter sees, what it must predict, what it is shown.

Vectorised functions over integer tensors; no model, no fairseq.

B sentences, S target tokens, T positions of the decoder input, A blocks per sentence, K block size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Blocks per sentence: in training, as all would mean K predictions per token; and in evaluation, evenly spread.
TRAINED, JUDGED = 4, 64


@dataclass(frozen=True)
class MaskedBlock:
    """One masked block per sentence: a visible prefix, K mask symbols, padding. The block may extend past the sentence."""

    prev_target: Tensor  # (B, T) int64: the decoder's input
    target: Tensor  # (B, T) int64: the token at each position, padding after the end of sentence
    masked: Tensor  # (B, T) bool: mask symbols that stand for a target token
    starts: Tensor  # (B,) int64: prefix lengths, so the first mask position of each row
    block_size: int


@dataclass(frozen=True)
class ManyBlocks:
    """A blocks per sentence, each predicted from the tokens before it. Short sentences have fewer blocks."""

    prev_target: Tensor  # (B, S) int64: the start token, then all target tokens but the last
    target: Tensor  # (B, A, K) int64: the blocks' tokens, padding after the end of sentence
    masked: Tensor  # (B, A, K) bool: what to predict
    starts: Tensor  # (B, A) int64: prefix lengths; 0 where there is no block
    block_size: int

    @property
    def offsets(self) -> Tensor:
        """(B, A, K) int64 index of each prediction in its block."""
        return torch.arange(self.block_size, device=self.starts.device).expand_as(self.masked)


def lengths(target: Tensor, pad: int) -> Tensor:
    """(B,) number of target tokens, eos included, of right-padded ``target`` (B, S)."""
    return target.ne(pad).sum(1)


def random_starts(target_lengths: Tensor) -> Tensor:
    """(B,) prefix lengths, uniform over 0 .. length - 1."""
    uniform = torch.rand(target_lengths.shape, device=target_lengths.device, dtype=torch.float64)
    return (uniform * target_lengths).long()


def fixed_starts(target_lengths: Tensor, ids: Tensor) -> Tensor:
    """(B,) prefix lengths that depend only on each sentence's number and length, spread evenly by the golden-ratio sequence.

    Validation thus covers all parts of sentences, the same in every run, however sentences are batched.
    """
    uniform = (ids.double() * 0.6180339887498949) % 1.0
    return (uniform * target_lengths).long()


def mask_blocks(target: Tensor, starts: Tensor, block_size: int, pad: int, mask: int) -> MaskedBlock:
    """Turn right-padded ``target`` (B, S) into prefixes of lengths ``starts`` (B,), blocks and padding."""
    width = int(starts.max()) + block_size
    position = torch.arange(width, device=target.device)  # (T,)
    padded = F.pad(target, (0, max(0, width - target.size(1))), value=pad)[:, :width]  # (B, T)
    in_prefix = position < starts[:, None]  # (B, T)
    in_block = ~in_prefix & (position < starts[:, None] + block_size)  # (B, T)
    prev_target = padded.masked_fill(in_block, mask).masked_fill(~(in_prefix | in_block), pad)
    return MaskedBlock(prev_target, padded, in_block & padded.ne(pad), starts, block_size)


def many_starts(target_lengths: Tensor, blocks: int) -> Tensor:
    """(B, A) distinct random prefix lengths 0 .. length - 1; -1 where a sentence has fewer than A = ``blocks``."""
    longest = int(target_lengths.max())
    scores = torch.rand(len(target_lengths), longest, device=target_lengths.device)
    position = torch.arange(longest, device=target_lengths.device)
    chosen = scores.masked_fill(position >= target_lengths[:, None], 2.0).argsort(1)[:, :blocks]
    return chosen.masked_fill(chosen >= target_lengths[:, None], -1)


def many_blocks(target: Tensor, starts: Tensor, block_size: int, pad: int, start: int) -> ManyBlocks:
    """Blocks of right-padded ``target`` (B, S) after the prefix lengths ``starts`` (B, A); negative starts have no block."""
    first = target.new_full((target.size(0), 1), start)
    position = starts.clamp(min=0)[..., None] + torch.arange(block_size, device=target.device)  # (B, A, K)
    padded = F.pad(target, (0, block_size), value=pad)
    tokens = padded.gather(1, position.flatten(1)).view(position.shape)
    tokens = tokens.masked_fill((starts < 0)[..., None], pad)
    return ManyBlocks(torch.cat([first, target[:, :-1]], 1), tokens, tokens.ne(pad), starts.clamp(min=0), block_size)


def layout(prefix: Tensor, block: ManyBlocks, mask: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, T), positions (B, T) and which positions each attends to, (B, T, T) bool, of the prefix (B, S) followed by the
    blocks' mask symbols: T = S + A (K - 1)."""
    rows, width = prefix.shape
    blocks, masks = block.starts.size(1), block.block_size - 1
    offset = torch.arange(1, masks + 1, device=prefix.device)
    index = torch.arange(width, device=prefix.device)
    positions = torch.cat([index.expand(rows, -1), (block.starts[..., None] + offset).flatten(1)], 1)  # (B, T)
    last = torch.cat([index.expand(rows, -1), block.starts.repeat_interleave(masks, 1)], 1)  # (B, T): last prefix position seen
    number = torch.arange(blocks * masks, device=prefix.device)
    earlier = (number[:, None] >= number) & (number[:, None] // max(1, masks) == number // max(1, masks))  # in the same block
    earlier = F.pad(earlier, (0, 0, width, 0)).expand(rows, -1, -1)  # (B, T, A (K - 1))
    tokens = torch.cat([prefix, prefix.new_full((rows, blocks * masks), mask)], 1)
    return tokens, positions, torch.cat([index <= last[..., None], earlier], 2)


def training_blocks(target: Tensor, block_size: int, pad: int, start: int, training: bool) -> ManyBlocks:
    """Blocks of right-padded ``target`` (B, S): `TRAINED` of each sentence at random in training, else all, or `JUDGED`."""
    sizes = lengths(target, pad)
    if training:
        return many_blocks(target, many_starts(sizes, TRAINED), block_size, pad, start)
    place = torch.arange(target.size(1), device=target.device)
    if len(place) > JUDGED:
        place = place[:JUDGED] * len(place) // JUDGED
    return many_blocks(target, torch.where(place < sizes[:, None], place, -1), block_size, pad, start)


def reveal(wrong: Tensor, masked: Tensor, ratio: float, scores: Tensor) -> Tensor:
    """(B, T) bool: masked positions that glancing reveals to the drafter (Qian et al. 2021, section 3.2).

    Each row reveals floor(``ratio`` * its wrong predictions) positions, those with the smallest ``scores`` (B, T) among all of
    ``masked`` (B, T), right or wrong. ``wrong`` (B, T) counts only there.
    """
    # The small addition keeps products such as 0.29 * 100 from rounding to just below an integer.
    count = ((wrong & masked).sum(1, keepdim=True).double() * ratio + 1e-6).long()  # (B, 1)
    rank = scores.masked_fill(~masked, float("inf")).argsort(1).argsort(1)  # (B, T)
    return rank < count


def block_view(values: Tensor, block: MaskedBlock) -> Tensor:
    """(B, K) slice of ``values`` (B, T): each row's block."""
    position = block.starts[:, None] + torch.arange(block.block_size, device=values.device)
    return values.gather(1, position)


def leading_right(right: Tensor) -> Tensor:
    """(B,) number of true values before the first false one in each row of ``right`` (B, K) bool."""
    return right.long().cumprod(1).sum(1)
