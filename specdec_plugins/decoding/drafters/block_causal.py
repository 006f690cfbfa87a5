"""The causal block drafter: reads the tokens committed since its last draft and K - 1 mask symbols, and drafts K tokens.

The last committed token predicts the first token of the block, each mask symbol the next one. Attention is causal, so committed
tokens stay in the KV cache; the next pass overwrites the masks.
"""

from dataclasses import dataclass, field

from specdec_plugins.decoding.backends import LoadedModel, RowState
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.drafters.block import drafted, loaded, within_positions
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Request, Source
from specdec_plugins.formats.spec import DrafterModel


@dataclass
class CausalState:
    """The model's state, and how many tokens of each row's prefix it has read, including the start token."""

    rows: RowState
    read: list[int] = field(default_factory=list)

    def select(self, order: list[int]) -> None:
        self.rows.held = self.read.copy()  # without masks
        self.rows.select(order)
        self.read = [self.read[row] for row in order]


class CausalBlockDrafter(Drafter):
    traits = Traits(trees=True)

    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int, shared: object) -> CausalState:
        return CausalState(self.model.start(rows))

    def admit(self, state: CausalState, source: Source) -> None:
        state.rows.admit(source)
        state.read += [0] * len(source.sentences)

    def propose(self, state: CausalState, prefix: Prefix, plan: Plan) -> Draft:
        start, mask = prefix.symbols.start, prefix.symbols.mask
        positions = state.read.copy()
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
            state.read[row] = len(output) + 1
        done = self.model.read(state.rows, Reading(tokens, positions, firsts))
        return within_positions(drafted(done, prefix, plan), prefix, self.model)

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), request.rows * (request.limit + 1))


def build(weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel) -> CausalBlockDrafter:
    return CausalBlockDrafter(loaded(weights, model))
