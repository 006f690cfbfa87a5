"""How the rows of a batch draw their tokens, as the kernels read it.

B rows, K drafted tokens, C candidates of a drafter.
"""

from array import array
from collections.abc import Sequence
from ctypes import byref

from specdec_plugins.decoding.backends.cpu.binding import Sampling, address, floats, integers, start, starts
from specdec_plugins.decoding.values import Distribution, Draws


class NativeSampling:
    """`Sampling` in sample.h and the memory that it points to, which lives as long as this does."""

    def __init__(self, draws: Sequence[Draws | None], token_ids: array | None = None, origins: Distribution | None = None):
        """``draws`` of each row; ``token_ids`` of a drafter's logits; ``origins`` of drafted tokens, to be read or written.

        A prefix is only told where the row has a repetition penalty: nothing else depends on it.
        """
        options, seeds, top_k, rejects, positions, prefixes = [], [], [], [], [], []
        for draw in draws:
            sampling, seed, prefix = draw or (None, 0, ())
            options += [sampling.temperature, sampling.top_p, sampling.repetition_penalty] if sampling else [0.0, 1.0, 1.0]
            seeds.append(seed)
            top_k.append(sampling.top_k if sampling else 0)
            rejects.append(sampling is not None and sampling.rule == "rejection")
            positions.append(len(prefix))
            prefixes.append(prefix if sampling and sampling.repetition_penalty != 1 else ())
        self._options = array("d", options)
        self._numbers = integers(seeds, top_k, rejects, positions, starts(prefixes), *prefixes)
        self._token_ids, self._origins = token_ids, origins
        self.struct = Sampling(
            options=start(self._options), numbers=start(self._numbers), token_ids=token_ids and start(token_ids)
        )
        if origins is not None:
            self._origins = tokens, probabilities = Distribution(origins.tokens.contiguous(), floats(origins.probabilities))
            self.struct.tokens, self.struct.probabilities = address(tokens), address(probabilities)
            self.struct.width, self.struct.candidates = tokens.shape[1:]
        self.pointer = byref(self.struct)
