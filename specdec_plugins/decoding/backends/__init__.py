"""What computes a model's passes: PyTorch, or kernels compiled for this CPU.

A backend offers passes, not roles: it loads models, and a loaded model encodes sources, reads tokens after those in its cache,
reads a block in which every position attends to all others, chooses tokens, and judges drafts. The roles over it exist once.

B rows, which a recorded pass makes R >= B, Q tokens read, W of them with a prediction, S source positions, T target positions,
D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from specdec_plugins.decoding.backends.candidates import Candidates
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Draws, Plan, Source, Verdict
from specdec_plugins.formats.spec import ModelSpec


class RowState(Protocol):
    """What a model keeps of each row: keys and values of the target tokens that it read, and of the source.

    ``held`` counts the target positions that each row holds, which a fork copies. A pass sets it to all that it wrote; whoever
    knows that a row needs fewer, as after a refused draft, may lower it.
    """

    held: list[int]

    def admit(self, source: Source) -> None:
        """Append the sentences of ``source`` as rows. They are encoded when they are first read, or by `encode`."""
        ...

    def encode(self) -> None:
        """Encode the sources that were not read yet."""
        ...

    def select(self, order: list[int]) -> None:
        """See `State.select`. A fork copies the positions that its row holds and shares its source."""
        ...

    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Let the entries of ``paths[b]``, nodes of the tree that row b read after position ``roots[b]``, follow it."""
        ...


class Pass(Protocol):
    """A pass over some tokens. It runs when a result is asked for, once; together with what is asked, where a backend can."""

    def logits(self) -> Tensor:
        """(R, W, V), R >= B; undefined past a row's results."""
        ...

    def features(self) -> Tensor:
        """(R, W, D) hidden states that the logits are computed from, if the reading wants them."""
        ...

    def attention(self) -> Tensor:
        """(R, W, S) attention to each source position, summed over heads and layers, if the reading wants it; undefined past a
        source's end."""
        ...

    def with_logits(self, logits: Tensor) -> "Pass":
        """The same pass with other logits, for instance mixed with another model's; to be judged, of any rows and width."""
        ...

    def choose(self, prefix: Prefix, plan: Plan) -> Draft:
        """The likeliest token at each of row b's first ``plan.lengths[b]`` positions: never pad, and no eos in an empty output.

        A model with a successor network chooses each token among its likeliest candidates, given the one before. In a row that
        draws its tokens, each is drawn from among these candidates; under the rejection rule the draft has their distribution.
        Where the plan's gate asks for it, the draft has the confidence at each position: the probability of the likeliest
        candidate, of all of them.
        """
        ...

    def candidates(self, prefix: Prefix) -> Candidates:
        """The likeliest tokens at each position, and how likely each is after each of those before it, to grow a tree from."""
        ...

    def judge(
        self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None = None
    ) -> Verdict:
        """Accept drafted tokens by the exact or the tolerant rule, or, in rows with ``draws``, by the rule that these name.

        The pass has read each row's last token and its draft.
        """
        ...


class LoadedModel(Protocol):
    """A model on a backend."""

    spec: ModelSpec
    target_embeddings: Tensor  # (V, D) of the target side, for drafters that share them

    @property
    def recordings(self) -> int:
        """How many passes have been recorded, here and in models that share the runner; 0 where nothing is recorded."""
        ...

    @property
    def source_vocabulary(self) -> int:
        """How many tokens a source may be made of."""
        ...

    def start(self, rows: int) -> RowState:
        """A state without rows, for ``rows`` at most."""
        ...

    def encode(self, source: Source) -> Tensor:
        """(B, S, D) output of the encoder; undefined past a sentence's end."""
        ...

    def linear(self, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
        """A linear layer of weight (O, I) and bias (O,) in the model's data type: (N, I) -> (N, O)."""
        ...

    def heads(self, weight: Tensor, bias: Tensor, reads_token: bool) -> Callable[[Tensor, Sequence[int]], Tensor]:
        """K heads on this model's hidden states, with weight (K D, D), or (K D, 2 D) if they read the last token, too, and bias
        (K D,): (B, K, D) vectors for hidden states (B, D) and B tokens. `transformer.heads` says which."""
        ...

    def beginning(self, query: Tensor, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
        """A hidden state (D,) for the encoder's output (S, D) of a sentence of which nothing is verified yet, by ``query`` (D,),
        weight (D, D) and bias (D,). `transformer.beginning` says which."""
        ...

    def read(self, state: Any, reading: Reading) -> Pass:
        """Run a pass. It overwrites entries that an earlier pass wrote at its positions."""
        ...

    def read_block(self, state: Any, prefix: Prefix, lengths: Sequence[int]) -> Pass:
        """Read row b's prefix and ``lengths[b]`` mask tokens, which all attend to each other; results at the masks."""
        ...

    def bytes_for(self, source: int, target: int) -> int:
        """The memory that the entries of a row with so many positions take."""
        ...
