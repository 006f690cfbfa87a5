"""Heads on the verifier's last hidden state, one for each drafted token (Medusa, Cai et al. 2024, arXiv 2401.10774).

The verifier's own token comes from a hidden state x. Head k maps it to x + silu(W_k x), and the verifier's output projection maps
that to the logits of the k-th token after the own one, so a draft costs about as much as its logits. Before a sentence's first
pass, a learned mean of the encoder's output replaces x.

B sentences, S source positions, T target positions, A blocks per sentence, K heads, N predicted positions of the batch, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.backends import LoadedModel, RowState
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.transformer import beginning, heads
from specdec_plugins.decoding.drafters import matching, over_the_verifier
from specdec_plugins.decoding.drafters.block import drafted
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss, options_of
from specdec_plugins.decoding.networks.masking import ManyBlocks, training_blocks
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.recipes import Vectors
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Verdict, Want
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec

POSITIONS = "decoder.embed_positions.weight"


@dataclass
class Options:
    heads: int = 5


class Beginning(nn.Module):
    """A hidden state before the verifier's first pass: W sum_s softmax(q . h_s) h_s, where h is the encoder's output."""

    def __init__(self, verifier: ModelSpec):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(verifier.encoder.width))
        self.out = nn.Linear(verifier.encoder.width, verifier.decoder.width)

    def forward(self, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, D) for an encoder's output (B, S, D); ``hidden`` (B, S), added to scores, masks padding."""
        return beginning(encoded, self.query, self.out.weight, self.out.bias, hidden)


def states_before(beginning: Tensor, states: Tensor) -> Tensor:
    """(B, T, D) the hidden state that each token was predicted from, given ``states`` (B, T, D) after each token."""
    return torch.cat([beginning[:, None], states[:, :-1]], 1)


class HeadsNetwork(nn.Module):
    """Heads that draft ``length`` tokens with ``vectors`` vectors, and the `Beginning`."""

    reads_token = False  # whether heads also read the verifier's own token

    def __init__(self, verifier: FrozenVerifier, length: int, vectors: int):
        super().__init__()
        width = verifier.embeddings.size(1)
        self.length = length
        self.heads = nn.Linear(width * (1 + self.reads_token), width * vectors)
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)
        self.beginning = Beginning(verifier.spec)

    def loss(self, batch: Batch) -> Loss:
        """Weighted cross-entropy of blocks of the target, each after a hidden state: a sample in training, else all."""
        verifier, pad, start = batch.verifier, batch.symbols.pad, batch.symbols.start
        block = training_blocks(batch.target, self.length, pad, start, self.training)
        encoded, hidden = verifier.encode(batch.source)
        states = states_before(self.beginning(encoded, hidden[:, 0, 0]), verifier.states(batch.prefix, encoded, hidden))
        rows = torch.arange(len(states), device=states.device)[:, None]
        own = verifier.embed(batch.prefix[rows, block.starts]) if self.reads_token else None
        vectors = heads(self.heads, states[rows, block.starts], own)  # (B, A, vectors, D)
        vectors = self.read(vectors, verifier, encoded, hidden)[block.masked]  # (N, D)
        return block_loss(self.relate(vectors, block, verifier), block, verifier)

    def read(self, vectors: Tensor, verifier: FrozenVerifier, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, A, K, D) features of the blocks' positions: the heads' vectors, unless overridden."""
        return vectors

    def relate(self, predicted: Tensor, block: ManyBlocks, verifier: FrozenVerifier) -> Tensor:
        """Features (N, D) conditioned on the tokens before them, if overridden."""
        return predicted


class Network(HeadsNetwork):
    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__(verifier, options.heads, options.heads)


@dataclass
class HeadsState:
    """The model's state, and the hidden state that each row's last token was predicted from."""

    cache: RowState
    states: Tensor  # (N, D) after the last iteration
    starts: list[Callable[[], Tensor]] = field(default_factory=list)  # compute (D,) before each row's first iteration
    places: list[int | None] = field(default_factory=list)  # each row's index in `states`; None before its first iteration

    def select(self, order: list[int]) -> None:
        self.cache.held = [0] * len(self.starts)  # each draft begins anew
        self.cache.select(order)
        self.starts = [self.starts[row] for row in order]
        self.places = [self.places[row] for row in order]

    def replace(self, states: Tensor) -> None:
        """Take ``states`` (B, D), which predicted each row's last token."""
        self.states, self.places = states, [*range(len(states))]

    def current(self) -> Tensor:
        """(B, D) each row's hidden state."""
        if self.places != [*range(len(self.states))]:
            states = [start() if place is None else self.states[place] for start, place in zip(self.starts, self.places)]
            self.replace(torch.stack(states))
        return self.states


class HeadsDrafter(Drafter):
    """Decoding with heads of any kind."""

    traits = Traits(needs_verifier=True, follows=True, trees=True, wants=Want(features=True))

    def __init__(
        self,
        model: LoadedModel,
        verifier: LoadedModel,
        length: int,
        heads: Callable[[Tensor, Sequence[int]], Tensor],
        beginning: Callable[[Tensor], Tensor],
    ):
        self.model, self.verifier, self.length, self.heads, self.beginning = model, verifier, length, heads, beginning

    def start(self, rows: int, shared: object) -> HeadsState:
        table = self.verifier.target_embeddings
        return HeadsState(self.model.start(rows), table.new_empty(0, table.size(1)))

    def admit(self, state: HeadsState, source: Source) -> None:
        state.cache.admit(source)
        state.starts += [cache(partial(self._first_state, source, number)) for number in range(len(source.sizes))]
        state.places += [None] * len(source.sizes)

    def _first_state(self, source: Source, number: int) -> Tensor:
        """(D,) from the sentence alone, so that it does not depend on the batch."""
        return self.beginning(self.verifier.encode(source)[number, : source.sizes[number]])

    def recipe(self) -> Vectors:
        return Vectors(self.model, self.heads, self.length)

    @torch.inference_mode()
    def propose(self, state: HeadsState, prefix: Prefix, plan: Plan) -> Draft:
        vectors = self.heads(state.current(), prefix.last)  # (B, vectors, D)
        count = vectors.size(1)
        lengths = [min(length, self.length) for length in plan.lengths]
        # Token k is drafted from vector k, or the last one.
        numbers = [[row * count + min(k, count - 1) for k in range(length)] for row, length in enumerate(lengths)]
        done = self.model.read(state.cache, Reading(numbers, [0] * len(lengths), embeddings=vectors.flatten(0, 1)))
        return drafted(done, prefix, plan._replace(lengths=lengths))

    def observe(self, state: HeadsState, scores: Any, draft: Draft, verdict: Verdict) -> None:
        features = scores.features()
        state.replace(torch.stack([features[row, verdict.results(row)[-1]] for row in range(len(state.places))]))

    def bytes_for(self, request: Request) -> int:
        encoded = self.verifier.target_embeddings.element_size() * self.verifier.spec.encoder.width  # kept for the beginning
        return self.model.bytes_for(len(request.tokens), 0) + encoded * len(request.tokens)


def layerless(verifier: ModelSpec) -> ModelSpec:
    """A decoder that only projects: no layers, no norms, nothing scaled."""
    embedding = replace(verifier.decoder.embedding, scale=1.0, norm=False)
    side = replace(verifier.decoder, layers=0, final_norm=False, embedding=embedding)
    return replace(verifier, decoder=side, output=replace(verifier.output, scale=1.0), zero_start=False)


def projecting(weights: DrafterModel, verifier: Model, options: Any, spec: ModelSpec) -> DrafterModel:
    """A Transformer that reads vectors: the drafter's layers and the verifier's output projection."""
    made = over_the_verifier(replace(weights, options=asdict(options)), verifier, spec)
    kept = {name: tensor for name, tensor in made.tensors.items() if not name.startswith("decoder.layernorm_embedding.")}
    if POSITIONS not in weights.tensors:
        kept[POSITIONS] = np.zeros_like(array(kept[POSITIONS]))
    return replace(made, tensors=kept)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return projecting(weights, verifier, options_of(Options, weights.options), layerless(verifier.spec))


def heads_drafter(
    weights: DrafterModel, model: LoadedModel, verifier: LoadedModel, length: int, count: int, reads_token: bool
) -> HeadsDrafter:
    """A drafter of ``length`` tokens from ``count`` vectors. Raises ValueError with every tensor that does not fit."""
    width, source = verifier.spec.decoder.width, verifier.spec.encoder.width
    shapes = {
        "heads.weight": (count * width, width * (1 + reads_token)),
        "heads.bias": (count * width,),
        "beginning.query": (source,),
        "beginning.out.weight": (width, source),
        "beginning.out.bias": (width,),
    }
    own = matching(weights, shapes)
    beginning = verifier.beginning(own["beginning.query"], own["beginning.out.weight"], own["beginning.out.bias"])
    heads = verifier.heads(own["heads.weight"], own["heads.bias"], reads_token)
    return HeadsDrafter(model, verifier, length, heads, beginning)


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    count = options_of(Options, weights.options).heads
    return heads_drafter(weights, model, verifier, count, count, reads_token=False)
