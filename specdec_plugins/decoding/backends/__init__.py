"""Backends compute a model's passes: PyTorch, or kernels compiled for this CPU. Drafter and verifier are built on either.

B rows, R >= B rows computed by a recorded pass, Q tokens read, W of them with a prediction, K guesses, N positions or embeddings,
S source positions, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from specdec_plugins.decoding.backends.candidates import Candidates
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Beam, Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.search.beam import Ranked
from specdec_plugins.decoding.values import LOGITS, Array, Draft, Draws, Plan, Verdict, Want
from specdec_plugins.model.spec import ModelSpec

NOT_WANTED = "this pass was not asked for that: name it in `Reading.want` or `Traits.wants`"


class Visible(NamedTuple):
    """The positions that a pass attends to, if not all.

    Of the target: the first ``sinks`` and the last ``window`` up to a query's own. Of the source: ``sources`` (B, N) int64,
    ascending in each row; numbers past a source's end are padding.
    """

    sinks: int
    window: int
    sources: Array


class Reading(NamedTuple):
    """Row b reads ``tokens[b]`` from position ``positions[b]`` on; each token attends to those before it.

    * ``firsts``: results start at row b's token ``firsts[b]``; None: at the first.
    * ``guesses`` (R, K): tokens still on the device, to follow the one in ``tokens``.
    * ``embeddings`` (N, D): vectors to read in place of tokens, which then index them.
    * ``parents``: the last ``len(parents[b])`` tokens of row b are a tree, as in a `TreeDraft`, whose root is the token before
      them. Each has the position, the context and the result of a chain along its path. Entries lie in the order of the tokens
      until `RowState.keep` moves a path.
    * ``visible``: the only positions that queries attend to.
    * ``want``: what the pass returns besides logits.

    ``guesses``, ``embeddings``, ``parents`` and ``visible`` exclude one another.
    """

    tokens: Sequence[Sequence[int]]
    positions: Sequence[int]
    firsts: Sequence[int] | None = None
    guesses: Array | None = None
    embeddings: Array | None = None
    parents: Sequence[Sequence[int]] | None = None
    visible: Visible | None = None
    want: Want = LOGITS


class RowState(Protocol):
    """The KV caches of each row's target and source.

    ``held`` counts each row's target positions, which a fork copies. A pass sets it to all that it wrote; the caller may lower
    it, as after a refused draft.
    """

    held: list[int]

    def admit(self, source: Source) -> None:
        """Append the sentences of ``source`` as rows, which `encode` or the first pass encodes."""
        ...

    def encode(self) -> None:
        """Encode the sources that were not encoded yet."""
        ...

    def select(self, order: list[int]) -> None:
        """See `State.select`. A fork copies the row's held positions and shares its source."""
        ...

    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Move the entries of ``paths[b]``, nodes of the tree that row b read after position ``roots[b]``, to follow it."""
        ...


class Pass(Protocol):
    """A pass over some tokens. It runs once, when a result is asked for, and may fuse with `choose` or `judge`."""

    def logits(self) -> Array:
        """(R, W, V); undefined past a row's results."""
        ...

    def features(self) -> Array:
        """(R, W, D) hidden states that the logits are computed from, if the reading wants them."""
        ...

    def attention(self) -> Array:
        """(R, W, S) attention to the source, summed over heads and layers, if the reading wants it; undefined past its end."""
        ...

    def with_logits(self, logits: Array) -> "Pass":
        """The same pass with other logits of any rows and width, for instance mixed with another model's."""
        ...

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        """The likeliest token at each of row b's first ``plan.lengths[b]`` positions: never pad, and no eos in an empty output.

        With a successor network each token is the best of the likeliest candidates after the token before it. Rows that sample
        draw among the candidates; under the rejection rule the draft has their distribution.
        """
        ...

    def candidates(self, prefix: Prefix) -> Candidates:
        """The likeliest tokens at each position, as in `choose`, with their scores: what trees grow from."""
        ...

    def scores(self, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities (nats) of ``tokens[b]``, which follow row b's results one by one, under the unconstrained model."""
        ...

    def judge(
        self,
        draft: Draft,
        bounds: Bounds,
        tolerances: Sequence[Tolerance],
        draws: Sequence[Draws | None] | None = None,
        scored: Sequence[bool] | None = None,
    ) -> Verdict:
        """Judge the draft or trees that the pass read after each row's last token.

        The rule is exact or tolerant, and in rows with ``draws`` the one that these name. Only ``scored`` rows get scores; None:
        every row.
        """
        ...

    def likeliest(self, places: Sequence[tuple[int, int]], count: int) -> list[list[tuple[float, int]]]:
        """The ``count`` likeliest tokens at each (row, position), the likeliest first, with their log-probabilities (nats) before
        them, under the unconstrained model."""
        ...

    def rank(self, draft: Draft, bounds: Bounds, beams: Sequence[Beam | None]) -> list[list[Ranked]]:
        """The best tokens to follow the prefix, and each drafted node, of rows that have a beam, two for each live hypothesis;
        nothing for other rows.

        Scores are log-probabilities under the unconstrained model, unless the beam renormalises. At the limit only eos remains.
        """
        ...


@dataclass(frozen=True)
class Reordered:
    """What drafters observe of a ``done`` pass, with its rows in another ``order``."""

    done: Pass
    order: list[int]

    def logits(self) -> Array:
        return self.done.logits()[self.order]

    def features(self) -> Array:
        return self.done.features()[self.order]

    def attention(self) -> Array:
        return self.done.attention()[self.order]

    def likeliest(self, places: Sequence[tuple[int, int]], count: int) -> list[list[tuple[float, int]]]:
        return self.done.likeliest([(self.order[row], place) for row, place in places], count)


class LoadedModel(Protocol):
    """A model on a backend."""

    spec: ModelSpec
    device: str
    on_device: bool  # whether its passes choose a `DeviceDraft`
    target_vocabulary: int  # its size

    @property
    def xp(self) -> Any:
        """The module of its arrays: numpy or torch."""
        ...

    @property
    def runner(self) -> Callable[..., Any] | None:
        """See `Verifier.runner`."""
        ...

    @property
    def recordings(self) -> int:
        """How many passes have been recorded, here and in models that share the executor; 0 where nothing is recorded."""
        ...

    @property
    def target_embeddings(self) -> Array:
        """(V, D) of the target side, for drafters that share them, in the data type of hidden states."""
        ...

    @property
    def source_vocabulary(self) -> int:
        """Size of the source vocabulary."""
        ...

    def start(self, rows: int) -> RowState:
        """A state without rows, for at most ``rows``."""
        ...

    def encode(self, source: Source) -> Array:
        """(B, S, D) output of the encoder; undefined past a sentence's end."""
        ...

    def linear(self, weight: Array, bias: Array) -> Callable[[Array], Array]:
        """A linear layer of weight (O, I) and bias (O,) in the model's data type: (N, I) -> (N, O)."""
        ...

    def heads(self, weight: Array, bias: Array, reads_token: bool) -> Callable[[Array, Sequence[int]], Array]:
        """`transformer.heads` of weight (K D, D), or (K D, 2 D) if they also read the last token, and bias (K D,): maps hidden
        states (B, D) and B tokens to vectors (B, K, D). Raises ValueError for other shapes."""
        ...

    def beginning(self, query: Array, weight: Array, bias: Array) -> Callable[[Array], Array]:
        """`transformer.beginning` of query (D,), weight (D, D) and bias (D,): maps an encoder's output (S, D) to a hidden state
        (D,). Raises ValueError for other shapes."""
        ...

    def read(self, state: Any, reading: Reading) -> Pass:
        """A pass over tokens. It overwrites the cache entries at its positions."""
        ...

    def read_block(self, state: Any, prefix: Prefix, lengths: Sequence[int]) -> Pass:
        """A pass over row b's prefix and ``lengths[b]`` masks, which all attend to each other; results at the masks."""
        ...

    def array(self, values: Array) -> Array:
        """Weights of a model's file as an array of its own, in the data type of hidden states."""
        ...

    def host(self, values: Array) -> np.ndarray:
        """An array in the host's memory, in float32; valid as long as the array."""
        ...

    def bytes_for(self, source: int, target: int) -> int:
        """Memory of a row's cache entries."""
        ...
