"""The autoregressive model that decides: scores a whole draft in one cached pass."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specdec_plugins.decoding.backends import LoadedModel, Pass, Reading, RowState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import ModelLimits, Request, Source
from specdec_plugins.decoding.roles import Verifier
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import LOGITS, Draft, Verdict, Want


class ModelVerifier(Verifier):
    """An encoder-decoder model as verifier, on any backend."""

    limits: ModelLimits

    def __init__(self, model: LoadedModel):
        self.model = model
        self.limits = ModelLimits(
            model.source_vocabulary,
            model.target_vocabulary,
            model.spec.encoder.max_positions,
            model.spec.decoder.max_positions,
        )

    @property
    def recordings(self) -> int:
        return self.model.recordings

    @property
    def runner(self) -> Callable[..., Any] | None:
        return self.model.runner

    def start(self, rows: int) -> RowState:
        return self.model.start(rows)

    def admit(self, state: RowState, source: Source) -> None:
        """Append the sentences of ``source`` as rows and encode them."""
        state.admit(source)
        state.encode()

    def score(self, state: RowState, prefix: Prefix, draft: Draft, want: Want = LOGITS) -> Pass:
        """The pass over the last committed token and the draft, which always has logits."""
        want = replace(want, logits=True)
        last, positions = prefix.last, list(map(len, prefix.outputs))
        if draft.guesses is not None:
            return self.model.read(state, Reading([[token] for token in last], positions, guesses=draft.guesses, want=want))
        tokens = [[token, *row] for token, row in zip(last, draft.tokens)]
        parents = draft.parents if isinstance(draft, TreeDraft) else None
        return self.model.read(state, Reading(tokens, positions, parents=parents, want=want))

    def prefill(self, state: RowState, prefix: Prefix, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        """Read forced tokens after each row's prefix; a row without any reads nothing. Returns the scores that are wanted."""
        fresh = [[last, *row[:-1]] if row else [] for last, row in zip(prefix.last, tokens)]
        scored = [row if request.scored else [] for request, row in zip(prefix.requests, tokens)]
        firsts = [len(row) - len(some) for row, some in zip(tokens, scored)]  # no logits where no scores are wanted
        return self.model.read(state, Reading(fresh, list(map(len, prefix.outputs)), firsts)).scores(scored)

    def commit(self, state: RowState, prefix: Prefix, draft: Draft, verdict: Verdict) -> None:
        """Move the cache entries of accepted tree paths to follow the prefix, where a chain's already are."""
        roots = list(map(len, prefix.outputs))
        if verdict.paths is not None:
            state.keep(roots, verdict.paths)
        state.held = [root + 1 + accepted for root, accepted in zip(roots, verdict.accepted)]

    def bytes_for(self, request: Request) -> int:
        return self.model.bytes_for(len(request.tokens), request.rows * (request.limit + 1))


class Unverified(Verifier):
    """No verifier, for strategy ``drafter``; goes with `accept_all`. ``limits`` are the drafter's."""

    def __init__(self, limits: ModelLimits | None = None):
        self.limits = limits


def accept_all(scores: None, draft: Draft, prefix: Prefix | None = None) -> Verdict:
    """The rule without a verifier: drafts are outputs, without scores and own tokens."""
    sizes = list(map(len, draft.tokens))
    return Verdict(sizes, None, [[] for _ in sizes], [False] * len(sizes))
