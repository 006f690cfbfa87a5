"""The forward of `transformer.py` on CPU kernels (`binding.py`): the same weights, one call a pass.

Nothing is padded, starting a pass costs microseconds, and each position's result is, bit for bit, the same whatever is computed
beside it. Weights are held in float32, bfloat16 or int8; everything else is float32.

B rows, K drafted tokens, S source positions, T positions in the cache, D width, V vocabulary, L layers.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import TopBetaTau
from specdec_plugins.decoding.backends.cpu.binding import (
    DTYPES,
    TILE,
    Buffer,
    Engine,
    NativeLinear,
    Stack,
    address,
    integers,
    library,
    start,
    starts,
)
from specdec_plugins.decoding.backends.torch.cache import KVCache, SourceMemory
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Encoder, Linear, Norm, Transformer
from specdec_plugins.decoding.drafters.block import CANDIDATES, BlockDrafter
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.reader import Reader, ReaderState, widest
from specdec_plugins.decoding.values import Bounds, Draft, Prefix, Source, Verdict
from specdec_plugins.decoding.verifier import TransformerVerifier

__all__ = ["DTYPES", "Engine", "NativeLinear", "integers", "library", "obstacles", "on_kernels", "start"]


def obstacles(model: Transformer) -> list[str]:
    """Why the kernels do not compute a model; empty if they do."""
    decoder = model.decoder
    found = [] if library() else ["they were not compiled for this machine"]
    if not model.encoder.layers or not model.decoder.layers:
        found.append("there is a side without layers")
    widths = {model.encoder.embedding.tokens.size(1), decoder.width}
    widths |= {layer.fc1.weight.size(0) for layer in (*model.encoder.layers, *decoder.layers)}
    widths |= {decoder.successor.tokens.size(1)} if decoder.successor else set()
    if any(width % TILE for width in widths):
        found.append(f"widths {', '.join(map(str, sorted(widths)))}, and they compute multiples of {TILE}")
    return found


def stack_of(
    engine: Engine, side: Encoder | Decoder, activation: str, dtype: str, projection: NativeLinear | None = None,
    gate: NativeLinear | None = None,
) -> Stack:  # fmt: skip
    """An encoder or decoder of `transformer.py` on the kernels."""
    embedding = side.embedding
    stack = Stack(
        engine, embedding.tokens, embedding.positions, heads=side.heads, activation=activation, prenorm=side.layers[0].prenorm,
        scale=embedding.scale, offset=embedding.pad + 1, embedding_norm=pair(embedding.norm), last_norm=pair(side.norm),
        projection=projection, gate=gate,
    )  # fmt: skip
    for layer in side.layers:
        cross = hasattr(layer, "cross_query")
        between = (layer.cross_query, layer.cross_out) if cross else (None, None)
        linears: list[Linear | None] = [layer.qkv, layer.out, *between, layer.fc1, layer.fc2]
        norms = layer.norm, layer.cross_norm if cross else None, layer.final_norm
        stack.add_layer(
            [NativeLinear(each.weight, each.bias, dtype) if each else None for each in linears], [pair(norm) for norm in norms]
        )
    return stack


def pair(norm: Norm | None) -> tuple[Tensor, Tensor] | None:
    return None if norm is None else (norm.weight, norm.bias)


class NativeEncoder:
    """As `Encoder`."""

    def __init__(self, engine: Engine, encoder: Encoder, activation: str, dtype: str):
        self.embedding = encoder.embedding
        self.stack = stack_of(engine, encoder, activation, dtype)

    def __call__(self, source: Source) -> Tensor:
        sentences, longest, stack = source.sentences, source.longest, self.stack
        output = torch.empty(len(sentences), longest, self.embedding.tokens.size(1))
        numbers = integers(starts(sentences), *sentences)
        stack.library.specdec_encode(
            stack.engine.pointer, stack.pointer, len(sentences), longest, start(numbers), address(output)
        )
        return output


class NativeDecoder:
    """What `Decoder` holds, for the roles below."""

    def __init__(self, engine: Engine, decoder: Decoder, activation: str, dtype: str, projection: NativeLinear | None):
        projection = projection or NativeLinear(decoder.projection, None, dtype)
        self.embedding, self.width, self.copy = decoder.embedding, decoder.width, decoder.copy
        self.vocabulary = decoder.vocabulary
        self.memory = NativeLinear(decoder.memory.weight, decoder.memory.bias, dtype)
        self.successor = successor = decoder.successor
        gate = NativeLinear(successor.gate.weight, successor.gate.bias, dtype) if successor else None
        self.stack = stack_of(engine, decoder, activation, dtype, projection, gate)
        self.layers = self.stack.layers

    def remember(self, source: Source, encoder: NativeEncoder, numbers: list[int], cache: KVCache, rows: list[int]) -> None:
        """As `Decoder.remember`."""
        encoded, lengths = source.encoded_by(encoder), [source.sizes[number] for number in numbers]
        cache.reserve(max(rows) + 1, max(lengths))
        given, engine = integers(numbers, rows, lengths), self.stack.engine
        engine.library.specdec_remember(
            engine.pointer, self.memory.pointer, len(rows), source.longest, start(given), address(encoded), 2 * self.width,
            *cache.layout,
        )  # fmt: skip


class NativeTransformer:
    """A `Transformer` whose passes the kernels compute; with ``encoder`` and ``projection``, one that uses another's."""

    runner = EAGER

    def __init__(
        self, model: Transformer, engine: Engine, dtype: str, encoder: NativeEncoder | None = None,
        projection: NativeLinear | None = None,
    ):  # fmt: skip
        self.config, self.engine = model.config, engine
        self.encoder = encoder or NativeEncoder(engine, model.encoder, model.config.activation, dtype)
        self.decoder = NativeDecoder(engine, model.decoder, model.config.activation, dtype, projection)


class NativeReader(Reader):
    """Reads tokens; the logits stand until the next call."""

    scattered = True

    def __init__(self, model: NativeTransformer):
        super().__init__(model)  # type: ignore[arg-type]
        self.stack, self.buffer, self.gates = model.decoder.stack, Buffer(), Buffer()

    def read(
        self, state: ReaderState, tokens: Sequence[Sequence[int]], places: Sequence[int], firsts: Sequence[int],
        guesses: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        assert guesses is None, "drafts of the kernels are on the host"
        stack, cache, memory = self.stack, state.cache, state.memory
        rows, width = len(tokens), widest(tokens, firsts)
        sources = memory.entries.layout
        cache.reserve(max(memory.slots) + 1, max(place + len(row) for place, row in zip(places, tokens)))
        logits, output = self.buffer.view(rows, width, stack.vocabulary)
        gates, gate_output = self.gates.view(rows, width, stack.gate.outputs) if stack.gate else (None, None)
        numbers = integers(starts(tokens), places, firsts, memory.slots, memory.slots, memory.lengths, *tokens)
        stack.library.specdec_read(
            stack.engine.pointer, stack.pointer, rows, width, start(numbers), *cache.layout, *sources, output, gate_output, None
        )
        return logits, gates


class NativeVerifier(NativeReader, TransformerVerifier):
    """Scores a draft; the logits stand until the next call."""


class NativeChoice:
    """The choice of tokens, for a drafter on an ``engine``."""

    engine: Engine
    model: Any

    def choose(self, prefix: Prefix, logits: Tensor, gates: Tensor | None) -> list[list[int]]:
        rows, width, vocabulary = logits.shape
        successor = self.model.decoder.successor
        numbers = integers([width] * rows, [not output for output in prefix.outputs])
        chosen = integers([0] * (rows * width))
        self.engine.library.specdec_choose(
            self.engine.pointer, address(logits), rows, width, vocabulary, prefix.symbols.pad, prefix.symbols.eos,
            start(numbers), address(gates), 0 if gates is None else gates.size(-1), successor and address(successor.tokens),
            successor and address(successor.out), min(CANDIDATES, vocabulary), start(chosen),
        )  # fmt: skip
        tokens = chosen.tolist()
        return [tokens[first : first + width] for first in range(0, rows * width, width)]


class NativeCausalBlockDrafter(NativeChoice, CausalBlockDrafter):
    def __init__(self, reader: NativeReader):
        super().__init__(reader)
        self.engine = reader.stack.engine


class NativeBlockDrafter(NativeChoice, BlockDrafter):
    """Drafts; the logits stand until the next call."""

    scattered = True

    def __init__(self, model: NativeTransformer):
        super().__init__(model)  # type: ignore[arg-type]
        self.decoder, self.buffer, self.room, self.engine = model.decoder, Buffer(), Buffer(), model.engine

    def guess(self, state: SourceMemory, prefix: Prefix, num_tokens: int) -> tuple[Tensor, None]:
        decoder, rows, entries = self.decoder, len(prefix), state.entries
        stack = decoder.stack
        room, _ = self.room.view(max(state.slots) + 1, prefix.longest + num_tokens, 2 * decoder.width)
        logits, output = self.buffer.view(rows, num_tokens, stack.vocabulary)
        numbers = integers(starts(prefix.outputs), [num_tokens] * rows, state.slots, state.slots, state.lengths, *prefix.outputs)
        copied = None if decoder.copy is None else entries.data[len(decoder.layers)]
        stack.library.specdec_draft(
            stack.engine.pointer, stack.pointer, rows, num_tokens, start(numbers), prefix.symbols.mask, address(room),
            room.stride(0), *entries.layout, address(copied), output,
        )  # fmt: skip
        return logits, None


@dataclass(frozen=True)
class NativeTopBetaTau(TopBetaTau):
    """The same rule, on float32 logits."""

    engine: Engine = None  # type: ignore[assignment]  # a field behind others that have defaults

    def __call__(self, logits: Tensor, draft: Draft, bounds: Bounds) -> Verdict:
        rows, width, vocabulary = logits.shape
        numbers = integers(starts(draft.tokens), [self.beta] * rows, bounds.room, bounds.empty, [0] * (rows + 1), *draft.tokens)
        tau = array("d", [self.tau]) * rows
        judged, scores = integers([0] * (3 * rows)), array("f", bytes(4 * rows * width))
        self.engine.library.specdec_judge(
            self.engine.pointer, address(logits), rows, width, vocabulary, start(numbers), bounds.symbols.pad, bounds.symbols.eos,
            0, None, start(tau), start(judged), start(scores),
        )  # fmt: skip
        found = judged.tolist()
        counts = found[:rows]
        parts = [scores[row * width : row * width + count + 1].tolist() for row, count in enumerate(counts)]
        return Verdict(counts, found[rows : 2 * rows], parts, list(map(bool, found[2 * rows :])))


def on_kernels(
    verifier: Transformer, drafter: Transformer | None, dtype: str, threads: int
) -> tuple[NativeTransformer, NativeTransformer | None]:
    """The same models on the kernels; an encoder or output projection that they share stays shared."""
    engine = Engine(threads)
    first = NativeTransformer(verifier, engine, dtype)
    if drafter is None:
        return first, None
    encoder = first.encoder if drafter.encoder is verifier.encoder else None
    projection = first.decoder.stack.projection if drafter.decoder.projection is verifier.decoder.projection else None
    return first, NativeTransformer(drafter, engine, dtype, encoder, projection)


def drafter(model: NativeTransformer) -> BlockDrafter:
    """The drafter that decodes with a model."""
    return NativeCausalBlockDrafter(NativeReader(model)) if model.config.drafter == "block_causal" else NativeBlockDrafter(model)
