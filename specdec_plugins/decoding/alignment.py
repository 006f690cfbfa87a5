"""Which source tokens the tokens of finished outputs attend to, from one further pass over each.

The pass reads the whole output at once. So decoding does not change, whatever the strategy, and an alignment depends on source
and output alone. It computes no logits and ends at the layer whose attention it returns.

B rows, S source positions, T tokens of an output.
"""

from collections.abc import Sequence

import numpy as np

from specdec_plugins.decoding.backends import LoadedModel, Reading
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import Want
from specdec_plugins.model.spec import Heads, Symbols

ROWS = 32  # outputs per pass
NUMBERS = 1 << 22  # attention weights per pass, at most, unless a single output has more


class Aligner:
    """Reads outputs with ``model``, the verifier."""

    def __init__(self, model: LoadedModel, heads: Heads, symbols: Symbols):
        self.model, self.heads, self.symbols = model, heads, symbols
        self.want = Want(attention=True, heads=heads, logits=False)

    def __call__(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """(T, S) for each output: how much each of its tokens, without eos, attends to each source token. Sources have eos."""
        weights = [np.zeros((0, len(source)), np.float32) for source in sources]
        order = sorted((n for n, output in enumerate(outputs) if output), key=lambda n: (len(sources[n]), len(outputs[n])))
        while order:
            longest, widest = len(sources[order[-1]]), max(len(outputs[n]) for n in order[-ROWS:])
            count = max(1, min(ROWS, NUMBERS // (longest * widest)))
            group, order = order[-count:], order[:-count]
            for n, found in zip(group, self._pass([sources[n] for n in group], [outputs[n] for n in group])):
                weights[n] = found
        return weights

    def _pass(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[np.ndarray]:
        model, first = self.model, int(self.heads.reading)
        state = model.start(len(sources))
        state.admit(Source(sources, self.symbols, model.device))
        tokens = [[self.symbols.start, *output][: len(output) + first] for output in outputs]
        zeros = [0] * len(tokens)
        done = model.read(state, Reading(tokens, zeros, [first] * len(tokens) if first else None, want=self.want))
        attention = model.host(done.attention())
        found = [
            attention[row, : len(output), : len(source)].copy() for row, (source, output) in enumerate(zip(sources, outputs))
        ]
        state.select([])
        return found
