"""Speculative decoding: a drafter proposes, a verifier scores, what passes is kept, and the verifier adds a token of its own.

This file is the algorithm (Xia et al. 2023, section 3) and knows nothing about models: the roles below do the work.
A batch has B rows, each a sentence in flight; K tokens are drafted at a time; V is the vocabulary.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.values import (
    FAIRSEQ_SYMBOLS,
    Bounds,
    DecodeStats,
    Draft,
    Hypothesis,
    Prefix,
    Request,
    Source,
    Step,
    Symbols,
    Verdict,
    compacted,
)


class Role(Protocol):
    """Drafter and verifier keep a state with one row a sentence, in the order of the batch; it has ``select(order)``."""

    def start(self, rows: int) -> Any: ...
    def admit(self, state: Any, source: Source) -> None: ...


class Drafter(Role, Protocol):
    def propose(self, state: Any, prefix: Prefix, num_tokens: int) -> Draft: ...


class Verifier(Role, Protocol):
    def score(self, state: Any, prefix: Prefix, draft: Draft) -> Tensor | None: ...  # (B, K+1, V)


class Acceptance(Protocol):
    def __call__(self, logits: Any, draft: Draft, bounds: Bounds) -> Verdict: ...


class Controller(Protocol):
    def next_length(self, rows: int) -> int: ...
    def update(self, steps: Sequence[Step]) -> None: ...


@torch.inference_mode()
def speculative_decode(
    drafter: Drafter, verifier: Verifier, acceptance: Acceptance, controller: Controller, requests: Sequence[Request],
    rows: int, stats: DecodeStats, symbols: Symbols = FAIRSEQ_SYMBOLS, device: torch.device | str = "cpu",
) -> Iterator[Hypothesis]:  # fmt: skip
    """Yield the outputs of ``requests`` as they finish, with up to ``rows`` sentences in flight; adds to ``stats``."""
    waiting, capacity, device = deque(requests), min(rows, len(requests)), torch.device(device)
    prefix = Prefix(symbols, device)
    states = drafting, verifying = drafter.start(capacity), verifier.start(capacity)
    stats.lap(None, device)
    while waiting or len(prefix):
        # 1. Refill. New sentences join together, a quarter of the batch at a time: encoding them singly would cost more.
        if waiting and 4 * (capacity - len(prefix)) >= capacity:
            new = [waiting.popleft() for _ in range(min(len(waiting), capacity - len(prefix)))]
            source = Source([request.tokens for request in new], symbols, device)
            verifier.admit(verifying, source)
            drafter.admit(drafting, source)
            prefix.admit(new)
            stats.lap("encoding", device)

        # 2. Draft: one parallel pass for all of the block. Length 0 is plain autoregressive decoding, and costs no pass.
        wanted = controller.next_length(len(prefix))
        length = wanted if max(prefix.room) else 0
        draft = drafter.propose(drafting, prefix, length) if length else Draft([[] for _ in prefix.requests])
        draft = prefix.clip(draft)
        stats.lap("drafting", device)

        # 3. Verify: one pass over the block gives the verifier's choice after every drafted token.
        logits = verifier.score(verifying, prefix, draft)

        # 4. Accept the longest prefix of the draft that passes, and 5. commit it with the verifier's own next token.
        verdict = acceptance(logits, draft, prefix.bounds)
        steps, finished = prefix.commit(draft, verdict)
        stats.lap("verifying", device)

        # 6. Record.
        stats.record(steps, length)
        controller.update(steps)

        # 7. Finished sentences leave; rows from the end of the batch take their places.
        if any(finished):
            done = [prefix.hypothesis(row) for row, end in enumerate(finished) if end]
            order = compacted(finished)
            for state in (prefix, *states):
                if state is not None:
                    state.select(order)
            for hypothesis in done:
                stats.finish(hypothesis)
                stats.lap("elsewhere", device)
                yield hypothesis
                stats.lap(None, device)  # what the caller does with it is not ours
        stats.lap("elsewhere", device)
    stats.settle()
