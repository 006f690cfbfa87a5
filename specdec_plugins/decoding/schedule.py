"""In which order, and how many at a time, sentences are decoded."""

from collections.abc import Sequence

from specdec_plugins.decoding.values import Request


def schedule(requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> list[tuple[int, list[Request]]]:
    """Groups of requests, each with the number of rows to decode it with: longest sources first, so that short ones end a run.

    ``max_tokens`` bounds rows x longest source (a single longer sentence goes alone). Where sources have become so short that
    twice the rows would fit, a new group begins.
    """
    groups: list[tuple[int, list[Request]]] = []
    for request in sorted(requests, key=lambda request: -len(request.tokens)):
        rows = min(batch_size or len(requests), max(1, (max_tokens or 0) // len(request.tokens)) if max_tokens else len(requests))
        if not groups or rows >= 2 * groups[-1][0]:
            groups.append((rows, []))
        groups[-1][1].append(request)
    return groups
