"""The drafter that proposes nothing: with it the loop is plain autoregressive decoding."""

from specdec_plugins.decoding.values import Draft, Prefix, Source


class NoDrafter:
    def start(self, rows: int) -> None:
        return None

    def admit(self, state: None, source: Source) -> None:
        return None

    def propose(self, state: None, prefix: Prefix, num_tokens: int) -> Draft:
        """An empty draft, however many tokens are asked for."""
        return Draft([[] for _ in prefix.requests])


def build(model) -> NoDrafter:
    return NoDrafter()
