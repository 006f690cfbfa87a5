"""The forward of `transformer.py` on CPU kernels (`kernels.cpp`): the same weights, one call a pass.

Nothing is padded, starting a pass costs microseconds, and each position's result is, bit for bit, the same whatever is computed
beside it. Weights are held in float32, bfloat16 or int8; everything else is float32.

B rows, K drafted tokens, S source positions, T positions in the cache, D width, V vocabulary, L layers.
"""

import ctypes
import math
import weakref
from array import array
from collections.abc import Iterable, Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import TopBetaTau
from specdec_plugins.decoding.backends.torch.cache import KVCache, SourceMemory
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Embedding, Encoder, Layer, Linear, Norm, Transformer
from specdec_plugins.decoding.drafters.block import CANDIDATES, BlockDrafter
from specdec_plugins.decoding.drafters.block_causal import CausalBlockDrafter
from specdec_plugins.decoding.reader import Reader, ReaderState, widest
from specdec_plugins.decoding.values import Bounds, Draft, Prefix, Source, Verdict
from specdec_plugins.decoding.verifier import TransformerVerifier

DTYPES = {"float32": 0, "bfloat16": 1, "int8": 2}  # how weights are held
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2}
TILE = 32  # widths are multiples of it
VARIANTS = ("avx512", "avx2", "generic")  # of the library, the best first: see setup.py

SIGNATURES = {
    "supported": (c_int, []),
    "engine": (c_void_p, [c_int]),
    "engine_free": (None, [c_void_p]),
    "linear": (c_void_p, [c_void_p, c_void_p, c_int, c_int, c_int]),
    "linear_free": (None, [c_void_p]),
    "remember": (None, [c_void_p, c_void_p, c_int64, c_int64, *[c_void_p] * 2, c_int64, c_void_p, c_int64, c_int64]),
    "stack": (c_void_p, [*[c_int] * 4, c_void_p, c_float, c_void_p, c_int, c_int, *[c_void_p] * 3]),
    "stack_free": (None, [c_void_p]),
    "layer": (None, [c_void_p] * 3),
    "encode": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "read": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, *[c_void_p, c_int64, c_int64] * 2, c_void_p, c_void_p]),
    "draft": (None, [c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p,
                     c_int64, c_int64, c_void_p, c_void_p, c_void_p]),
    "choose": (None, [c_void_p, c_void_p, *[c_int64] * 5, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p]),
    "judge": (None, [c_void_p, c_void_p, *[c_int64] * 3, c_void_p, *[c_int64] * 3, c_double, c_void_p, c_void_p]),
}  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels for this CPU's widest vectors; None if there are none, and eager PyTorch has to do."""
    for variant in VARIANTS:
        for path in Path(__file__).parent.glob(f"_kernels_{variant}.*"):
            found = ctypes.CDLL(str(path))
            for name, (result, arguments) in SIGNATURES.items():
                function = getattr(found, f"specdec_{name}")
                function.restype, function.argtypes = result, arguments
            if found.specdec_supported():
                return found
    return None


def obstacles(model: Transformer) -> list[str]:
    """Why the kernels do not compute a model; empty if they do."""
    decoder = model.decoder
    found = [] if library() else ["they were not compiled for this machine"]
    if not model.encoder.layers or not model.decoder.layers:
        found.append("there is a side without layers")
    if model.spec.activation not in ACTIVATIONS:
        found.append(f"the activation {model.spec.activation}")
    if model.spec.zero_start:
        found.append("a zero embedding at the start")
    widths = {model.encoder.embedding.tokens.size(1), decoder.width}
    widths |= {layer.fc1.weight.size(0) for layer in (*model.encoder.layers, *decoder.layers)}
    widths |= {decoder.successor.tokens.size(1)} if decoder.successor else set()
    if any(width % TILE for width in widths):
        found.append(f"widths {', '.join(map(str, sorted(widths)))}, and they compute multiples of {TILE}")
    return found


class Handle:
    """Something that the library made and must free."""

    def __init__(self, kind: str, *arguments):
        made = library()
        assert made is not None, "ask `obstacles` first"
        self.library = made
        self.pointer = getattr(made, f"specdec_{kind}")(*arguments)
        weakref.finalize(self, getattr(made, f"specdec_{kind}_free"), self.pointer)


class Engine(Handle):
    """Threads and scratch memory for passes, one at a time."""

    def __init__(self, threads: int):
        super().__init__("engine", threads)


class NativeLinear(Handle):
    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: str):
        """``weight`` (O, I), ``bias`` (O,) or None for none."""
        self.outputs = weight.size(0)
        self.sources = floats(weight), None if bias is None else floats(bias)
        super().__init__("linear", *map(address, self.sources), *weight.shape, DTYPES[dtype])
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
        self.weight_bytes = -(-weight.size(0) // TILE) * TILE * (weight.size(1) * size + 12)  # 12: bias, scale and offset
        del self.sources  # the library has its own copy


class Stack(Handle):
    """The embedding, the layers and what follows them."""

    def __init__(
        self, engine: Engine, embedding: Embedding, layers: Sequence[Layer], last: Norm | None, heads: int, activation: str,
        projection: "NativeLinear | None", dtype: str, gate: "NativeLinear | None" = None,
    ):  # fmt: skip
        self.engine, self.projection, self.gate = engine, projection, gate
        self.tables = floats(embedding.tokens), floats(embedding.positions)  # the library reads them
        self.vocabulary = projection.outputs if projection else 0
        super().__init__(
            "stack", embedding.tokens.size(1), heads, ACTIVATIONS[activation], layers[0].prenorm, address(self.tables[0]),
            embedding.scale, address(self.tables[1]), embedding.offset, embedding.positions.size(0) - 1,
            addresses(*parts(embedding.norm), *parts(last)), self.projection and self.projection.pointer,
            gate and gate.pointer,
        )  # fmt: skip
        self.linears = []
        for layer in layers:
            cross = hasattr(layer, "cross_query")
            between = (layer.cross_query, layer.cross_out) if cross else (None, None)
            linears: list[Linear | None] = [layer.qkv, layer.out, *between, layer.fc1, layer.fc2]
            held = [NativeLinear(each.weight, each.bias, dtype) if each else None for each in linears]
            self.linears.append(held)
            norms = *parts(layer.norm), *parts(layer.cross_norm if cross else None), *parts(layer.final_norm)
            self.library.specdec_layer(self.pointer, pointers(each.pointer if each else None for each in held), addresses(*norms))


class NativeEncoder:
    """As `Encoder`."""

    def __init__(self, engine: Engine, encoder: Encoder, activation: str, dtype: str):
        self.embedding = encoder.embedding
        self.stack = Stack(engine, encoder.embedding, encoder.layers, encoder.norm, encoder.heads, activation, None, dtype)

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
        projection = projection or NativeLinear(decoder.projection, decoder.bias, dtype)
        self.embedding, self.width, self.copy = decoder.embedding, decoder.width, decoder.copy
        self.vocabulary = decoder.vocabulary
        self.memory = NativeLinear(decoder.memory.weight, decoder.memory.bias, dtype)
        self.successor = successor = decoder.successor
        gate = NativeLinear(successor.gate.weight, successor.gate.bias, dtype) if successor else None
        self.stack = Stack(
            engine, decoder.embedding, decoder.layers, decoder.norm, decoder.heads, activation, projection, dtype, gate
        )
        self.layers = self.stack.linears

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
        self.spec, self.code, self.engine = model.spec, model.code, engine
        self.encoder = encoder or NativeEncoder(engine, model.encoder, model.spec.activation, dtype)
        self.decoder = NativeDecoder(engine, model.decoder, model.spec.activation, dtype, projection)


class Buffer:
    """Memory for logits that are read before the next pass; one large allocation a pass would cost more than the pass."""

    def __init__(self):
        self.memory = torch.empty(0)
        self.known: dict[tuple[int, ...], tuple[Tensor, int]] = {}

    def view(self, *shape: int) -> tuple[Tensor, int]:
        """The first numbers as a tensor, and their address."""
        if shape not in self.known:
            size = math.prod(shape)
            if self.memory.numel() < size:
                self.memory = torch.empty(2 * size)
                self.known.clear()
            self.known[shape] = self.memory[:size].view(shape), self.memory.data_ptr()
        return self.known[shape]


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
        numbers = integers(starts(tokens), places, firsts, memory.slots, memory.lengths, *tokens)
        stack.library.specdec_read(
            stack.engine.pointer, stack.pointer, rows, width, start(numbers), *cache.layout, *sources, output, gate_output
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
        successor, lengths = self.model.decoder.successor, integers(map(len, prefix.outputs))
        chosen = integers([0] * (rows * width))
        self.engine.library.specdec_choose(
            self.engine.pointer, address(logits), rows, width, vocabulary, prefix.symbols.pad, prefix.symbols.eos,
            start(lengths), address(gates), 0 if gates is None else gates.size(-1), successor and address(successor.tokens),
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
        numbers = integers(state.slots, state.lengths)
        copied = None if decoder.copy is None else entries.data[len(decoder.layers)]
        stack.library.specdec_draft(
            stack.engine.pointer, stack.pointer, rows, address(prefix.tokens), prefix.tokens.stride(0), address(prefix.lengths),
            num_tokens, prefix.symbols.mask, address(room), room.stride(0), *entries.layout, start(numbers),
            address(copied), output,
        )  # fmt: skip
        return logits, None


@dataclass(frozen=True)
class NativeTopBetaTau(TopBetaTau):
    """The same rule, on float32 logits."""

    engine: Engine = None  # type: ignore[assignment]  # a field behind others that have defaults

    def __call__(self, logits: Tensor, draft: Draft, bounds: Bounds) -> Verdict:
        rows, width, vocabulary = logits.shape
        numbers = integers(starts(draft.tokens), bounds.empty, bounds.room, *draft.tokens)
        judged, scores = integers([0] * (3 * rows)), array("f", bytes(4 * rows * width))
        self.engine.library.specdec_judge(
            self.engine.pointer, address(logits), rows, width, vocabulary, start(numbers), bounds.symbols.pad, bounds.symbols.eos,
            self.beta, self.tau, start(judged), start(scores),
        )  # fmt: skip
        found = judged.tolist()
        counts = found[:rows]
        parts = [scores[row * width : row * width + count + 1].tolist() for row, count in enumerate(counts)]
        return Verdict(counts, found[rows : 2 * rows], parts, list(map(bool, found[2 * rows :])))


def integers(*parts: Iterable[int]) -> array:
    """int64, one part after the other: in one array, as each costs more than a handful of numbers does."""
    return array("q", [*chain.from_iterable(parts)])


def start(numbers: array) -> int:
    """The address of the first; valid as long as the array is."""
    return numbers.buffer_info()[0]


def starts(rows: Sequence[Sequence[int]]) -> Iterable[int]:
    """Where each row begins and ends if they stand one after the other."""
    return accumulate(map(len, rows), initial=0)


def on_kernels(
    verifier: Transformer, drafter: Transformer | None, dtype: str, threads: int
) -> tuple[NativeTransformer, NativeTransformer | None]:
    """The same models on the kernels; an encoder or output projection that they share stays shared."""
    engine = Engine(threads)
    first = NativeTransformer(verifier, engine, dtype)
    if drafter is None:
        return first, None
    encoder = first.encoder if drafter.encoder is verifier.encoder else None
    ours, theirs = verifier.decoder, drafter.decoder
    same = theirs.projection is ours.projection and theirs.bias is ours.bias
    projection = first.decoder.stack.projection if same else None
    return first, NativeTransformer(drafter, engine, dtype, encoder, projection)


def drafter(model: NativeTransformer) -> BlockDrafter:
    """The drafter that decodes with a model."""
    return NativeCausalBlockDrafter(NativeReader(model)) if model.code == "block_causal" else NativeBlockDrafter(model)


def floats(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def addresses(*tensors: Tensor | None):
    """An array of pointers. Valid as long as the tensors are."""
    return pointers(map(address, tensors))


def pointers(values: Iterable[int | None]):
    values = list(values)
    return (c_void_p * len(values))(*map(c_void_p, values))


def parts(norm: Norm | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if norm is None else (floats(norm.weight), floats(norm.bias))
