"""The causal block drafter: reads the tokens committed since its last draft and K - 1 mask symbols, and drafts K tokens.

The last committed token predicts the first token of the block, each mask symbol the next one. Attention is causal, so committed
tokens stay in the KV cache; the next pass overwrites the masks. Many blocks per sentence train in one pass, each after its own
part of the prefix.

B sentences, A blocks per sentence, K block size, S prefix positions, T = S + A (K - 1) positions, D width.
"""

from dataclasses import dataclass

from specdec_plugins.decoding.backends import LoadedModel, Reading
from specdec_plugins.decoding.drafters import CachedDrafter, CachedRows, complete, options_of, over_the_verifier
from specdec_plugins.decoding.drafters.block import drafted, loaded, within_positions
from specdec_plugins.decoding.drafters.small import shape
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Masked, Traits
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model


@dataclass
class Options:
    length: int = 8  # K in training
    layers: int = 2
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32
    dropout: float = 0.1  # of the embedded input


class CausalBlockDrafter(CachedDrafter[int]):
    """A row is the number of tokens that the model has read of its prefix, including the start token."""

    traits = Traits(trees=True)
    fresh, held = staticmethod(int), staticmethod(int)

    def recipe(self) -> Masked:
        return Masked(self.model)

    def propose(self, state: CachedRows[int], prefix: Prefix, plan: Plan) -> Draft:
        start, mask = prefix.symbols.start, prefix.symbols.mask
        positions = state.rows.copy()
        tokens: list[list[int]] = []
        firsts: list[int] = []
        for row, (output, length) in enumerate(zip(prefix.outputs, plan.lengths)):
            if not length:  # the row catches up at its next draft
                tokens.append([])
                firsts.append(0)
                continue
            read = positions[row]
            fresh = output[read - 1 :] if read else [start, *output]
            tokens.append(fresh + [mask] * (length - 1))
            firsts.append(len(fresh) - 1)
            state.rows[row] = len(output) + 1
        done = self.model.read(state.cache, Reading(tokens, positions, firsts))
        return within_positions(drafted(done, prefix, plan), prefix, self.model)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    """A drafter that has a spec is complete."""
    if weights.spec is not None:
        return complete(weights, "successor_width")
    return over_the_verifier(weights, verifier, shape(verifier.spec, options_of(Options, weights.options).layers))


def build(weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel) -> CausalBlockDrafter:
    return CausalBlockDrafter(loaded(weights, model))
