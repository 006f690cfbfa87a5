"""A Transformer's passes in PyTorch: on GPUs, in float64, and for models that the CPU kernels cannot run.

B rows, R >= B rows computed by a recorded pass, Q tokens read, W of them with a prediction, K guesses, S source positions,
T positions in the cache, D width, V vocabulary.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.state import Sources
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.attention import Attention, Memory
from specdec_plugins.decoding.backends.torch.graphs import EAGER, Executor, Results
from specdec_plugins.decoding.backends.torch.layers import Context, Layer, through, whole
from specdec_plugins.decoding.backends.torch.passes import Choosing, TorchPass
from specdec_plugins.decoding.backends.torch.state import DenseState, KVCache, hide, span
from specdec_plugins.decoding.backends.torch.tensors import pad_rows, prefix_tokens, send, source_tokens
from specdec_plugins.decoding.backends.torch.transformer import Transformer, beginning, heads
from specdec_plugins.decoding.backends.torch.visibility import ancestry, distances, visibility
from specdec_plugins.decoding.backends.torch.weights import Linear
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.trees import within_rows
from specdec_plugins.decoding.values import LOGITS, Array, Want


class Extent(NamedTuple):
    """How far a pass reads and what it masks: settings that a recording is bound to."""

    seen: int  # T target positions
    read: int  # S source positions
    results: int  # W predictions a row
    alone: bool  # whether each row's only query is at its last position
    even: bool  # whether no source is padded
    chosen: bool  # whether some tokens need no prediction
    near: tuple[int, int] | None  # (sinks, window) of the target, if not all is read
    want: Want
    shared: bool  # whether rows share sources, which are then gathered


Inputs = tuple[Any, ...]  # of `Attention`


class SourceAttention:
    """A pass's attention to its sources, and its ``weights`` (R, Q, S) by layer, of the last (R, W, S), if they are wanted."""

    def __init__(self, cache: KVCache, extent: Extent, lengths: Tensor, owners: Tensor, listed: Tensor | None):
        """Sources of ``lengths`` (R, 1) in the slots ``owners`` (R, 1); ``listed`` (R, N) are the positions to read."""
        self.cache, self.extent, self.owners, self.listed = cache, extent, owners, listed
        self.weights: list[Tensor] = []
        past = None
        if listed is not None:
            past, self.listed = listed >= lengths, listed.clamp(max=extent.read - 1)
        elif not extent.even:
            past = torch.arange(extent.read, device=lengths.device) >= lengths
        self.padded = None if past is None else hide(past, cache.data.dtype)[:, None, None]  # (R, 1, 1, S)

    def memory(self, layer: Layer) -> Memory:
        cache, read = self.cache, self.extent.read
        if self.listed is not None:
            return cache.gather(layer.entries, self.owners, self.listed), self.padded
        if self.extent.shared:
            return cache.pick(layer.entries, self.owners[:, 0], read), self.padded
        return cache.read(layer.entries, len(self.owners), read), self.padded

    def __call__(self, layer: Layer, attention: Attention, inputs: Inputs, keep: tuple[Tensor, Tensor] | None) -> Tensor:
        """``keep``: the queries whose weights are wanted, if not all."""
        want = self.extent.want
        if not want.attention or (want.heads is not None and want.heads.layer != layer.entries):
            return attention(*inputs)
        mixed, weights = attention.weighed(*inputs)
        chosen = weights if want.heads is None else torch.stack([weights[:, head] for head in want.heads.heads], 1)
        total = chosen.sum(1)[..., : self.extent.read]
        self.weights.append(total if keep is None else total[keep])
        return mixed


class TorchModel:
    """A `Transformer` whose passes ``executor`` runs eagerly or records."""

    runner, xp, on_device = None, torch, True

    def __init__(self, transformer: Transformer, executor: Executor = EAGER):
        self.transformer, self.spec, self.executor = transformer, transformer.spec, executor
        self.target_embeddings = transformer.decoder.embedding.tokens
        self.target_vocabulary, self.device = len(self.target_embeddings), str(self.target_embeddings.device)
        self.choosing = Choosing(transformer.decoder, executor)
        self.idle: list[tuple[KVCache, KVCache]] = []  # of former states: recordings are bound to their memory

    @property
    def recordings(self) -> int:
        return self.executor.recordings

    @property
    def source_vocabulary(self) -> int:
        return len(self.transformer.encoder.embedding.tokens)

    def start(self, rows: int) -> DenseState:
        decoder = self.transformer.decoder
        width, like = 2 * decoder.side.key_width, decoder.embedding.tokens
        layers = len(decoder.layers) + (decoder.copy is not None)
        cache, sources = self.idle.pop() if self.idle else (KVCache(layers, width, like), KVCache(layers, width, like))
        state = DenseState(cache, Sources(sources, self._remember))
        if self.executor is not EAGER:
            weakref.finalize(state, self.idle.append, (cache, sources))
        return state

    def bytes_for(self, source: int, target: int) -> int:
        decoder = self.transformer.decoder
        return (source + target) * len(decoder.layers) * 2 * decoder.side.key_width * decoder.embedding.tokens.element_size()

    @torch.inference_mode()
    def _remember(self, source: Source, numbers: Sequence[int], cache: KVCache, rows: Sequence[int]) -> None:
        """See `Remember`. The source copy's keys and values are a last layer."""
        encoder, decoder = self.transformer.encoder, self.transformer.decoder
        if decoder.memory is None:
            return
        chosen = span(numbers, cache.data.device)
        cache.put(rows, torch.stack(decoder.remember(source.made_by(encoder)[chosen])))  # (L, N, S, 2 G K)
        if decoder.copy is not None:
            cache.put(rows, encoder.embedding.copied(source_tokens(source)[chosen], decoder.copy), len(decoder.layers))

    @torch.inference_mode()
    def encode(self, source: Source) -> Tensor:
        return source.made_by(self.transformer.encoder)

    def array(self, values: Array) -> Tensor:
        return tensor(values).to(self.target_embeddings)

    def host(self, values: Tensor) -> np.ndarray:
        return values.float().cpu().numpy()

    def linear(self, weight: Array, bias: Array) -> Callable[[Tensor], Tensor]:
        return Linear(self.array(weight), self.array(bias))

    def heads(self, weight: Array, bias: Array, reads_token: bool) -> Callable[[Tensor, Sequence[int]], Tensor]:
        linear, embedding = self.linear(weight, bias), self.transformer.decoder.embedding

        def vectors(states: Tensor, tokens: Sequence[int]) -> Tensor:
            return heads(linear, states, embedding.embed(send(tokens, states.device)) if reads_token else None)

        return vectors

    def beginning(self, query: Array, weight: Array, bias: Array) -> Callable[[Tensor], Tensor]:
        given = {"query": query, "weight": weight, "bias": bias}
        return partial(beginning, **{name: self.array(each) for name, each in given.items()})

    @torch.inference_mode()
    def read(self, state: DenseState, reading: Reading) -> TorchPass:
        state.encode()
        tokens, positions, firsts, guesses, embeddings, parents, visible, want = reading
        executor, cache, sources = self.executor, state.cache, state.sources.cache
        firsts = firsts or [0] * len(tokens)
        results = max(1, *(len(row) - first for row, first in zip(tokens, firsts)))  # attention needs a query
        width = executor.round(max(map(len, tokens)), results)
        padding = executor.round(len(tokens)) - len(tokens)
        # One transfer to the device, not four. Padding rows read at position 0 of a source with one token.
        lines = [
            (position, first, length, slot, *row, *[0] * (width - len(row)))
            for position, first, length, slot, row in zip(positions, firsts, state.sources.lengths, state.sources.slots, tokens)
        ]
        table = send([*lines, *[(0, 0, 1, 0, *[0] * width)] * padding], cache.data.device)
        inputs: dict[str, Tensor] = {"table": table}
        if guesses is not None:
            inputs["guesses"] = pad_rows(guesses, len(table))
            results, width = results + guesses.size(1), width + guesses.size(1)
        if embeddings is not None:
            inputs["vectors"] = pad_rows(embeddings, max(executor.round(len(embeddings)), len(table) * width))
        if parents is not None:
            family = ancestry(within_rows(tokens, parents), len(table), width)
            inputs["family"] = family.to(table.device, non_blocking=True)
        if visible is not None:
            listed = tensor(visible.sources).to(table.device, non_blocking=True)
            inputs["listed"], want = pad_rows(listed, len(table)), replace(want, attention=False)
        longest = max(positions) + width
        drafted = 0 if guesses is None else guesses.size(1)
        state.held = [position + len(row) + drafted for position, row in zip(positions, tokens)]
        seen, read = executor.round(longest, 64), executor.round(state.sources.longest, 32)
        cache.reserve(len(table), seen)
        sources.reserve(len(table), read)
        extent = Extent(
            seen,
            read,
            results,
            alone=len(table) * width == 1 and seen == longest and parents is None,
            even=all(length == read for length in state.sources.lengths) and not padding,
            chosen=max(firsts) > 0,
            near=(min(visible.sinks, seen), min(visible.window, seen)) if visible else None,
            want=want,
            shared=state.shared,
        )
        return TorchPass(self.choosing, executor.run(self._read, inputs, (cache, sources), (extent,)))

    def _read(
        self,
        cache: KVCache,
        sources: KVCache,
        extent: Extent,
        table: Tensor,
        guesses: Tensor | None = None,
        vectors: Tensor | None = None,
        family: Tensor | None = None,
        listed: Tensor | None = None,
    ) -> Results:
        """A pass's results. ``table`` (R, 4 + Q) has each row's position, first result, source length, source slot and tokens.

        ``guesses`` (R, K) follow the tokens; tokens index ``vectors`` (N, D); ``family`` (R, Q, Q) bool says which tokens of a
        tree see which; ``listed`` (R, N) are the source positions to read.
        """
        seen, near = extent.seen, extent.near
        decoder, device, rows = self.transformer.decoder, table.device, len(table)
        start, first, lengths, owners, tokens = table.tensor_split((1, 2, 3, 4), 1)  # (R, 1) four times, (R, Q)
        if guesses is not None:
            tokens = torch.cat([tokens, guesses], 1)
        width = tokens.size(1)
        places = start + torch.arange(width, device=device)  # (R, Q) in the cache
        slots = torch.arange(rows, device=device)[:, None]  # (R, 1); not kept: a recording must own what it works on
        positions, nearest, hidden = visibility(places, seen, near, family, extent.alone)
        mask = None if hidden is None else hide(hidden, cache.data.dtype)[:, None]  # (R, 1, Q, T)
        ahead = distances(places, positions, seen, nearest) if decoder.by_distance else None
        keep = None
        if extent.chosen:
            wanted = (first + torch.arange(extent.results, device=device)).clamp_(max=width - 1)  # (R, W)
            keep = slots, wanted

        heads, looks = extent.want.heads, SourceAttention(sources, extent, lengths, owners, listed)
        last = decoder.layers[-1] if decoder.layers else None  # heads on hidden states have no layers

        def own(layer: Layer, queries: Tensor, entries: Tensor) -> Tensor:
            cache.write(layer.entries, slots, places, entries)
            known = cache.read(layer.entries, rows, seen) if nearest is None else cache.gather(layer.entries, slots, nearest)
            inputs: Inputs = queries, known, mask, ahead
            if keep is not None and layer is last:
                visible = None if mask is None else mask[:, 0][keep][:, None]  # (R, 1, W, T)
                inputs = queries, known, visible, None if ahead is None else ahead[keep]
            if not layer.merged:
                return layer.attention(*inputs)
            return looks(layer, layer.attention, (*inputs, looks.memory(layer)), None if layer is last else keep)

        def source(layer: Layer, queries: Tensor) -> Tensor:
            return looks(layer, layer.cross, (queries, *looks.memory(layer)), None if layer is last else keep)

        x = decoder.embedding(tokens, positions, vectors)
        layers = decoder.layers if extent.want.logits or heads is None else decoder.layers[: heads.layer + 1]
        x = through(layers, x, Context(positions, own, source), keep, last=last)
        results = self._results(x, extent.want) if extent.want.logits else {}
        return {**results, "attention": torch.stack(looks.weights).sum(0)} if looks.weights else results

    def _results(self, x: Tensor, want: Want = LOGITS) -> Results:
        """For the last layer's output (..., D)."""
        decoder = self.transformer.decoder
        features = decoder.features(x)
        results = {"logits": decoder.project(features)}
        if decoder.successor:
            results["gates"] = decoder.successor.gate(features)
        return {**results, "features": features} if want.features else results

    @torch.inference_mode()
    def read_block(self, state: DenseState, prefix: Prefix, lengths: Sequence[int]) -> TorchPass:
        """Positions are added before every layer, as in the published drafter."""
        state.encode()
        decoder, (read, committed) = self.transformer.decoder, prefix_tokens(prefix)
        masks = send(lengths, committed.device)  # (B,)
        width = max(lengths)
        longest = max(len(output) + length for output, length in zip(prefix.outputs, lengths))
        place = torch.arange(max(longest, prefix.longest), device=committed.device)
        positions = decoder.embedding.place(place)  # (T, D)
        # (B, K) positions of each row's masks; a row with fewer repeats its last one
        where = committed[:, None] + torch.minimum(place[:width], (masks[:, None] - 1).clamp(min=0))
        where = where.clamp(max=len(place) - 1)
        row = torch.arange(len(prefix), device=committed.device)[:, None]

        tokens = torch.full((len(prefix), len(place)), prefix.symbols.mask, device=committed.device)
        tokens[:, : prefix.longest] = read[:, 1 : prefix.longest + 1]
        ends = (committed + masks)[:, None]  # (B, 1)
        tokens[(place >= committed[:, None]) & (place < ends)] = prefix.symbols.mask
        x = decoder.embedding.embed(tokens)  # (B, T, D)
        if decoder.copy is not None:
            known = state.read_sources(len(decoder.layers))
            x[row, where] = Attention(1, 1, scale=1.0)(positions[where], known, state.source_mask)
        # A row without masks still attends to one position, as a softmax over nothing is NaN.
        mask = hide(place >= ends.clamp(min=1), x.dtype)[:, None, None]
        x = x + positions
        if decoder.embedding.norm is not None:
            x = decoder.embedding.norm(x)
        sources = [state.read_sources(index) for index in range(len(decoder.layers))]
        x = through(decoder.layers, x, whole(place[None], mask, sources, state.source_mask), (row, where), positions)
        return TorchPass(self.choosing, self._results(x))  # of the masks: the last layer dropped the rest
