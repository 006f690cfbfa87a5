"""The causal block drafter: reads the tokens committed since its last draft and K - 1 mask symbols, and drafts K tokens.

The last committed token predicts the first token of the block, each mask symbol the next one. Attention is causal, so committed
tokens stay in the KV cache; the next pass overwrites the masks.
"""

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.drafters import CachedDrafter, CachedRows
from specdec_plugins.decoding.drafters.block import drafted, loaded, within_positions
from specdec_plugins.decoding.options import Budget
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Traits
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.formats.spec import DrafterModel


class CausalBlockDrafter(CachedDrafter[int]):
    """A row is the number of tokens that the model has read of its prefix, including the start token."""

    traits = Traits(trees=True)
    fresh, held = staticmethod(int), staticmethod(int)

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
        done = self.read(state, Reading(tokens, positions, firsts))
        return within_positions(drafted(done, prefix, plan), prefix, self.model)


def build(
    weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel, budget: Budget | None = None
) -> CausalBlockDrafter:
    return CausalBlockDrafter(loaded(weights, model), budget)
