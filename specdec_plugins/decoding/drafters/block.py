"""The published block drafter: fills K mask symbols after the prefix in one pass (Xia et al. 2023, section 3.2).

Its decoder attends to everything before and after, so nothing of the target side can be cached, and the whole prefix is read
again for every draft. What belongs to the source is computed once a sentence.
"""

from specdec_plugins.decoding.backends import LoadedModel, RowState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Request, Source
from specdec_plugins.formats.spec import DrafterModel


class BlockDrafter:
    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int, shared: object) -> RowState:
        return self.model.start(rows)

    def admit(self, state: RowState, source: Source) -> None:
        """Append the sentences of ``source`` as rows, which are encoded at their first draft."""
        state.admit(source)

    def propose(self, state: RowState, prefix: Prefix, plan: Plan) -> Draft:
        draft = self.model.read_block(state, prefix, plan.lengths).choose(prefix, plan)
        return within_positions(draft, prefix, self.model)

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), 0)


def within_positions(draft: Draft, prefix: Prefix, model: LoadedModel) -> Draft:
    """The part of a draft for which the drafter has positions. It is cut after drafting, not before: in a model in which every
    position attends to all others, a narrower block would be another block."""
    positions = model.spec.decoder.max_positions
    return draft.clip([max(0, positions - len(output)) for output in prefix.outputs], prefix.symbols.eos)


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> BlockDrafter:
    return BlockDrafter(model)
