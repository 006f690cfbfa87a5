"""A Transformer's passes on the CPU kernels.

Nothing is padded, starting a pass costs microseconds, and a position's result does not depend, bit for bit, on what else is in
the pass. Weights are float32, bfloat16 or int8; everything else is float32.

B rows, Q tokens read, W of them with a prediction, S source positions, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import zip_longest

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.cache import KVCache
from specdec_plugins.decoding.backends.cpu.binding import (
    DTYPES,
    TILE,
    Buffer,
    Engine,
    NativeLinear,
    Screen,
    Stack,
    address,
    floats,
    integers,
    mapped,
    start,
)
from specdec_plugins.decoding.backends.cpu.passes import BlockPass, CausalPass
from specdec_plugins.decoding.backends.cpu.runner import CpuRunner
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.sources import Sources
from specdec_plugins.decoding.backends.torch.layers import Layer, Turn
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Encoder, Transformer
from specdec_plugins.decoding.backends.torch.weights import Linear, Norm
from specdec_plugins.decoding.compiled import Library, library
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source

__all__ = ["DTYPES", "CpuModel", "load", "obstacles"]

LANES = 16  # of a vector


def obstacles(model: Transformer) -> list[str]:
    """Why the kernels cannot run a model; empty if they can."""
    decoder = model.decoder
    faults = [] if library() else ["they were not compiled for this machine"]
    sides = model.spec.encoder, model.spec.decoder
    widths = {width for side in sides for width in (side.width, side.query_width, side.key_width, side.feed_forward.width)}
    widths |= {decoder.successor.tokens.size(1)} if decoder.successor else set()
    if any(width % TILE for width in widths):
        faults.append(f"widths {', '.join(map(str, sorted(widths)))} are not all multiples of {TILE}")
    heads = {side.head_width for side in sides if side.attention.head_norm}
    if any(width % LANES for width in heads):
        faults.append(f"normed heads of width {', '.join(map(str, sorted(heads)))} are no multiples of {LANES}")
    return faults


def load(
    verifier: Transformer,
    drafter: Transformer | None,
    dtype: str,
    threads: int,
    drafting: str = "int8",
    library: Library | None = None,
) -> tuple["CpuModel", "CpuModel | None"]:
    """Both models on one team of threads, with the encoder or output projection that they share held once. ``dtype`` is the
    verifier's, ``drafting`` the drafter's. The kernels are ``library``, by default the best."""
    engine = Engine(threads, library)
    first = CpuModel(verifier, engine, dtype)
    if drafter is None:
        return first, None
    encoder = first.encoder if drafter.encoder is verifier.encoder else None
    shared = dtype == drafting and drafter.decoder.projection is verifier.decoder.projection
    return first, CpuModel(drafter, engine, drafting, encoder, first.stack.projection if shared else None)


class CpuEncoder:
    """`Encoder` on the kernels."""

    def __init__(self, engine: Engine, encoder: Encoder, dtype: str):
        self.width = encoder.side.width
        self.stack = stack_of(engine, encoder, dtype)

    def __call__(self, source: Source) -> Tensor:
        """(B, S, D); undefined past a sentence's end."""
        sentences, stack = source.sentences, self.stack
        output = torch.empty(len(sentences), source.longest, self.width)
        lengths, tokens = integers(map(len, sentences)), integers(*sentences)
        stack.library.specdec_encode(
            stack.engine.pointer, stack.pointer, len(sentences), source.longest, start(lengths), start(tokens), address(output)
        )
        return output


class NativeHeads:
    """`LoadedModel.heads`. `drafts.py` reads the attributes."""

    def __init__(self, model: "CpuModel", weight: Tensor, bias: Tensor, reads_token: bool):
        if weight.dim() != 2 or len(weight) % model.width or weight.size(1) != model.width * (1 + reads_token):
            raise ValueError(f"weights of heads are {tuple(weight.shape)}, which does not fit width {model.width}")
        self.engine, self.linear = model.engine, NativeLinear(weight, bias, model.dtype, model.engine.library)
        self._table = model.target_embeddings if reads_token else None
        self.embeddings = address(self._table)
        self.width, self.scale = model.width, model.spec.decoder.embedding.scale
        self.count = self.linear.outputs // self.width

    def __call__(self, states: Tensor, tokens: Sequence[int]) -> Tensor:
        states, last = floats(states), integers(tokens)
        if states.shape != (len(last), self.width):
            raise ValueError(f"hidden states {tuple(states.shape)} for {len(last)} rows of width {self.width}")
        vectors = torch.empty(len(states), self.count, self.width)
        self.engine.library.specdec_heads(
            self.engine.pointer,
            self.linear.pointer,
            len(states),
            self.width,
            address(states),
            self.embeddings,
            self.scale,
            start(last),
            address(vectors),
        )
        return vectors


class NativeBeginning:
    """`LoadedModel.beginning`."""

    def __init__(self, engine: Engine, query: Tensor, weight: Tensor, bias: Tensor):
        if weight.dim() != 2 or query.shape != weight.shape[1:] or bias.shape != weight.shape[:1]:
            raise ValueError(f"weights of a beginning do not fit: {[tuple(each.shape) for each in (query, weight, bias)]}")
        self.engine, self.width, self._kept = engine, len(bias), [floats(each) for each in (query, weight, bias)]
        self._weights = [address(each) for each in self._kept]

    def __call__(self, encoded: Tensor) -> Tensor:
        encoded, state = floats(encoded), torch.empty(self.width)
        if encoded.shape[1:] != self._kept[0].shape:
            raise ValueError(f"an encoder's output {tuple(encoded.shape)} for a query of {tuple(self._kept[0].shape)}")
        self.engine.library.specdec_begin(
            self.engine.pointer, *self._weights, self.width, address(encoded), *encoded.shape, address(state)
        )
        return state


class CpuModel:
    """A `Transformer` on the kernels, with another's ``encoder`` and ``projection`` if given."""

    recordings, runner = 0, CpuRunner
    device = torch.device("cpu")

    def __init__(
        self,
        model: Transformer,
        engine: Engine,
        dtype: str,
        encoder: CpuEncoder | None = None,
        projection: NativeLinear | None = None,
    ):
        decoder = model.decoder
        self.spec, self.engine, self.dtype = model.spec, engine, dtype
        self.encoder = encoder or CpuEncoder(engine, model.encoder, dtype)
        packed = partial(NativeLinear, dtype=dtype, library=engine.library)
        projection = projection or packed(decoder.projection, decoder.bias)
        successor = decoder.successor
        gate = packed(successor.gate.weight, successor.gate.bias) if successor else None
        self.stack = stack_of(engine, decoder, dtype, projection, gate, screen_of(decoder, dtype, engine.library))
        self.memory = packed(decoder.memory.weight, decoder.memory.bias) if decoder.memory else None
        self.layers, self.width, self.entry = len(decoder.layers), decoder.width, 2 * decoder.side.key_width
        self.successor, self.copy = decoder.successor, decoder.copy
        self.source_embedding = model.encoder.embedding
        self.source_vocabulary, self.target_vocabulary = len(self.source_embedding.tokens), len(decoder.embedding.tokens)
        self.vocabulary = None if decoder.vocabulary is None else decoder.vocabulary.tolist()  # the token of each logit
        self.token_ids = None if self.vocabulary is None else integers(self.vocabulary)  # the same for the kernels
        self.logits, self.gates, self.features, self.attention, self.block = (Buffer() for _ in range(5))

    @cached_property
    def target_embeddings(self) -> Tensor:
        """A copy if they are stored in another data type than float32."""
        return floats(self.stack.tables[0])

    def start(self, rows: int) -> SlottedState:
        layers = self.layers + (self.copy is not None)
        like = torch.empty(0)
        cache, sources = (KVCache(count, self.entry, like, zeroed=False) for count in (self.layers, layers))
        return SlottedState(cache, Sources(sources, self._remember))

    def bytes_for(self, source: int, target: int) -> int:
        return (source + target) * self.layers * self.entry * 4  # entries are float32

    def _remember(self, source: Source, numbers: Sequence[int], cache: KVCache, slots: Sequence[int]) -> None:
        """See `Remember`. The source copy's keys and values are a last layer."""
        if self.memory is None:
            return
        encoded, lengths = source.encoded_by(self.encoder), [source.sizes[number] for number in numbers]
        cache.reserve(max(slots) + 1, max(lengths))
        rows = self.engine.library.rows("RememberRow", sentence=numbers, slot=slots, length=lengths)
        self.engine.library.specdec_remember(
            self.engine.pointer,
            self.stack.pointer,
            self.memory.pointer,
            len(slots),
            source.longest,
            start(rows),
            address(encoded),
            self.entry,
            *cache.layout,
        )
        if self.copy is not None:
            cache.put(slots, self.source_embedding.copied(source.tokens[list(numbers)], self.copy), self.layers)

    def encode(self, source: Source) -> Tensor:
        return source.encoded_by(self.encoder)

    def linear(self, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
        return partial(NativeLinear(weight, bias, self.dtype, self.engine.library), self.engine)

    def heads(self, weight: Tensor, bias: Tensor, reads_token: bool) -> NativeHeads:
        return NativeHeads(self, weight, bias, reads_token)

    def beginning(self, query: Tensor, weight: Tensor, bias: Tensor) -> NativeBeginning:
        return NativeBeginning(self.engine, query, weight, bias)

    def read(self, state: SlottedState, reading: Reading) -> CausalPass:
        """Without ``guesses``: drafts of the kernels are on the host."""
        state.encode()
        return CausalPass(self, state, reading)

    def read_block(self, state: SlottedState, prefix: Prefix, lengths: Sequence[int]) -> BlockPass:
        state.encode()
        return BlockPass(self, state, prefix, lengths)


def stack_of(
    engine: Engine,
    side: Encoder | Decoder,
    dtype: str,
    projection: NativeLinear | None = None,
    gate: NativeLinear | None = None,
    screen: Screen | None = None,
) -> Stack:
    """An encoder or decoder of `transformer.py` on the kernels."""
    embedding, cap = side.embedding, side.cap if isinstance(side, Decoder) else None
    stack = Stack(
        engine,
        side.side,
        embedding.tokens,
        embedding.positions,
        rotation=side.rotation,
        zero_start=embedding.zero_start,
        embedding_norm=embedding.norm,
        last_norm=side.norm,
        projection=projection,
        cap=cap,
        gate=gate,
        screen=screen,
    )
    keys = side.memory_turns if isinstance(side, Decoder) else []
    for layer, cross_keys in zip_longest(side.layers, keys):
        add_layer(stack, layer, cross_keys, dtype)
    mapped.unload()
    return stack


def add_layer(stack: Stack, layer: Layer, cross_keys: Turn | None, dtype: str) -> None:
    linears: dict[str, Linear | None] = {
        "qkv": layer.qkv,
        "out": layer.out,
        "cross_query": layer.cross_query,
        "cross_out": layer.cross_out,
        "fc1": layer.fc1,
        "fc2": layer.fc2,
        "gate": layer.gate,
    }
    norms = dict[str, Norm | None]()
    for prefix, around in (("", layer.around), ("cross_", layer.cross_around), ("final_", layer.final_around)):
        norms |= zip((f"{prefix}norm", f"{prefix}after_norm"), around.norms if around else ())
    turns = zip(("query", "key", "cross_query", "cross_key"), (*layer.turns, layer.cross_turn, cross_keys))
    norms |= {f"{name}_norm": each.norm for name, each in turns if each}
    packed = {
        name: NativeLinear(each.weight, each.bias, dtype, stack.library) if each else None for name, each in linears.items()
    }
    stack.add_layer(packed, norms, layer.attention.relative, layer.entries)


def screen_of(decoder: Decoder, dtype: str, library: Library) -> Screen | None:
    """Of an int4 drafter with a large output layer. At width 512 a trained one (V 6,583) drafts as it would by exact logits; at
    width 256 2 % of the tokens are others."""
    if dtype != "int4" or len(decoder.projection) <= 4096 or decoder.width < 512:
        return None
    return Screen(decoder.projection, decoder.bias, decoder.width // 4 // TILE * TILE, library)
