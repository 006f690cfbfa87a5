"""The autoregressive model that decides: scores a whole draft in one cached pass.

B rows, K drafted tokens, V vocabulary.
"""

from torch import Tensor

from specdec_plugins.decoding.reader import Reader, ReaderState
from specdec_plugins.decoding.values import Draft, Prefix, Source


class TransformerVerifier(Reader):
    """A fairseq Transformer or BART as verifier."""

    def score(self, state: ReaderState, prefix: Prefix, draft: Draft) -> Tensor:
        """(B, K+1, V) logits after the prefix and each of the drafted tokens; behind a row's draft, or the last row, stands
        anything.

        Read are the last committed token and the draft; what came before is in the cache.
        """
        last = [output[-1] if output else prefix.symbols.eos for output in prefix.outputs]
        places, firsts = list(map(len, prefix.outputs)), [0] * len(last)
        if draft.guesses is not None:
            return self.read(state, [[token] for token in last], places, firsts, draft.guesses)[0]
        return self.read(state, [[token, *row] for token, row in zip(last, draft.tokens)], places, firsts)[0]


class Unverified:
    """No verifier: every draft stands as it is (strategy ``drafter``)."""

    def start(self, rows: int) -> None:
        return None

    def admit(self, state: None, source: Source) -> None:
        return None

    def score(self, state: None, prefix: Prefix, draft: Draft) -> None:
        return None
