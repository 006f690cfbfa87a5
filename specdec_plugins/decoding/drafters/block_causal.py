"""The causal block drafter: reads what was committed since its last draft, then K - 1 mask symbols, and guesses K tokens.

The last committed token predicts the first token of the block, each mask symbol the next one. Nothing sees what comes after it,
so keys and values of committed tokens are kept, and those of the masks are overwritten by the next pass.

B rows, K drafted tokens, V vocabulary.
"""

from dataclasses import dataclass, field

from torch import Tensor

from specdec_plugins.decoding.backends.torch.transformer import Transformer
from specdec_plugins.decoding.drafters.block import BlockDrafter
from specdec_plugins.decoding.reader import Reader, ReaderState
from specdec_plugins.decoding.values import Prefix, Source


@dataclass
class CausalState(ReaderState):
    """Also how many tokens of each row's prefix were read; eos, which all begin with, included."""

    read: list[int] = field(default_factory=list)

    def select(self, order: list[int]) -> None:
        super().select(order)
        self.read = [self.read[row] for row in order]


class CausalBlockDrafter(BlockDrafter):
    def __init__(self, reader: Reader):
        super().__init__(reader.model)
        self.reader = reader

    def start(self, rows: int) -> CausalState:  # type: ignore[override]
        state = self.reader.start(rows)
        return CausalState(state.cache, state.memory)

    def admit(self, state: CausalState, source: Source) -> None:  # type: ignore[override]
        self.reader.admit(state, source)
        state.read += [0] * len(source.sentences)

    def guess(  # type: ignore[override]
        self, state: CausalState, prefix: Prefix, num_tokens: int
    ) -> tuple[Tensor, Tensor | None]:
        """(B, K, V) logits of the block and, with a successor network, its (B, K, R) gates."""
        masks = [prefix.symbols.mask] * (num_tokens - 1)
        fresh = [[prefix.symbols.eos, *output][read:] for output, read in zip(prefix.outputs, state.read)]
        places, state.read = state.read, [len(output) + 1 for output in prefix.outputs]
        return self.reader.read(state, [row + masks for row in fresh], places, [len(row) - 1 for row in fresh])


def build(model: Transformer) -> CausalBlockDrafter:
    return CausalBlockDrafter(Reader(model))
