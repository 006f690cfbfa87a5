"""The autoregressive model that decides: scores a whole draft in one cached pass.

B rows, K drafted tokens.
"""

from specdec_plugins.decoding.backends import LoadedModel, Pass, RowState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Draft, Request, Source, Verdict


class ModelVerifier:
    """An encoder-decoder model as verifier, on whichever backend it was loaded."""

    def __init__(self, model: LoadedModel):
        self.model = model

    def start(self, rows: int) -> RowState:
        return self.model.start(rows)

    def admit(self, state: RowState, source: Source) -> None:
        """Append the sentences of ``source`` as rows, and encode them: the verifier reads every source."""
        state.admit(source)
        state.encode()

    def score(self, state: RowState, prefix: Prefix, draft: Draft) -> Pass:
        """The pass that reads the last committed token and the draft; what came before is in the cache."""
        last, positions = prefix.last, list(map(len, prefix.outputs))
        if isinstance(draft, TreeDraft):
            tokens = [[token, *row] for token, row in zip(last, draft.tokens)]
            return self.model.read(state, tokens, positions, parents=draft.parents)
        if draft.guesses is not None:
            return self.model.read(state, [[token] for token in last], positions, None, draft.guesses)
        return self.model.read(state, [[token, *row] for token, row in zip(last, draft.tokens)], positions)

    def commit(self, state: RowState, prefix: Prefix, draft: Draft, verdict: Verdict) -> None:
        """Let the entries of the accepted paths follow the prefix, as those of a chain do."""
        if verdict.paths is not None:
            state.keep(list(map(len, prefix.outputs)), verdict.paths)

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), request.limit + 1)


class Unverified:
    """No verifier: every draft stands as it is (strategy ``drafter``)."""

    def start(self, rows: int) -> None:
        return None

    def admit(self, state: None, source: Source) -> None:
        return None

    def score(self, state: None, prefix: Prefix, draft: Draft) -> None:
        return None
