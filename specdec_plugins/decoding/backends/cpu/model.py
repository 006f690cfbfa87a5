"""A Transformer's passes on the CPU kernels.

Nothing is padded, starting a pass costs microseconds, and a position's result does not depend, bit for bit, on what else is in
the pass. Weights are float32, bfloat16, int8 or int4; everything else is float32.

B rows, Q tokens read, W of them with a prediction, S source positions, D width, V vocabulary.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu.arguments import address, floats, integers, start
from specdec_plugins.decoding.backends.cpu.binding import DTYPES, Engine, NativeLinear, Projection, Stack
from specdec_plugins.decoding.backends.cpu.passes import BlockPass, Buffer, CausalPass
from specdec_plugins.decoding.backends.cpu.runner import CpuRunner
from specdec_plugins.decoding.backends.cpu.state import KVCache, SlottedState
from specdec_plugins.decoding.backends.cpu.weights import Embeddings, Output, Rounded, Weights, plane_of, screen_of
from specdec_plugins.decoding.backends.state import Sources
from specdec_plugins.decoding.compiled import Library, library
from specdec_plugins.decoding.loading import SUCCESSOR, same_encoder
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.formats.arrays import addresses
from specdec_plugins.formats.files import unload
from specdec_plugins.formats.packed import TILE
from specdec_plugins.formats.spec import DrafterModel, Model

__all__ = ["DTYPES", "CpuModel", "load", "obstacles"]

LANES = 16  # of a vector


def obstacles(model: Model | DrafterModel) -> list[str]:
    """Why the kernels cannot run a Transformer; empty if they can."""
    assert model.spec is not None
    faults = [] if library() else ["they were not compiled for this machine; install a C++ compiler, then this package again"]
    sides = model.spec.encoder, model.spec.decoder
    widths = {width for side in sides for width in (side.width, side.query_width, side.key_width, side.feed_forward.width)}
    widths |= {model.tensors[name].shape[1] for name in (f"{SUCCESSOR}.out.weight",) if name in model.tensors}
    if any(width % TILE for width in widths):
        faults.append(f"widths {', '.join(map(str, sorted(widths)))} are not all multiples of {TILE}")
    heads = {side.head_width for side in sides if side.attention.head_norm}
    if any(width % LANES for width in heads):
        faults.append(f"normed heads of width {', '.join(map(str, sorted(heads)))} are no multiples of {LANES}")
    return faults


def load(
    verifier: Model | DrafterModel,
    drafter: DrafterModel | None,
    dtype: str,
    threads: int,
    drafting: str = "int8",
    library: Library | None = None,
) -> tuple["CpuModel", "CpuModel | None"]:
    """Both models (see `loading.checked`) on one team of threads, with the encoder or output projection that they share held
    once. ``dtype`` is the verifier's, ``drafting`` the drafter's. The kernels are ``library``, by default the best."""
    engine = Engine(threads, library)
    first, second = CpuModel(verifier, engine, dtype), None
    tensors = [*verifier.tensors.values()]
    if drafter is not None and drafter.spec is not None:
        second = beside(first, verifier, drafter, drafting)
        tensors += drafter.tensors.values()
    unload(addresses(tensors))
    return first, second


def beside(first: "CpuModel", verifier: Model | DrafterModel, drafter: DrafterModel, dtype: str) -> "CpuModel":
    """A drafter for a verifier that is loaded as ``first``, on the same team, sharing what `load` shares."""
    encoder = first.encoder if same_encoder(verifier, drafter) else None
    return CpuModel(drafter, first.engine, dtype, encoder, first)


class CpuEncoder:
    """A source of B sentences -> (B, S, D); positions past a sentence's end are undefined."""

    def __init__(self, weights: Weights):
        side = weights.spec.encoder
        self.width = side.width
        self.stack = weights.stack("encoder", weights.norm("encoder.layer_norm", side.norm) if side.final_norm else None)

    def __call__(self, source: Source) -> np.ndarray:
        sentences, stack = source.sentences, self.stack
        output = np.empty((len(sentences), source.longest, self.width), np.float32)
        lengths, tokens = integers(map(len, sentences)), integers(*sentences)
        stack.library.specdec_encode(
            stack.engine.pointer, stack.pointer, len(sentences), source.longest, start(lengths), start(tokens), address(output)
        )
        return output


class NativeHeads:
    """`LoadedModel.heads`. `drafts.py` reads the attributes."""

    def __init__(self, model: "CpuModel", weight: np.ndarray, bias: np.ndarray, reads_token: bool):
        if weight.ndim != 2 or len(weight) % model.width or weight.shape[1] != model.width * (1 + reads_token):
            raise ValueError(f"weights of heads are {tuple(weight.shape)}, which does not fit width {model.width}")
        self.engine, self.linear = model.engine, NativeLinear(weight, bias, model.kind, model.engine.library)
        self._table = model.target_embeddings if reads_token else None
        self.embeddings = address(self._table)
        self.width, self.scale = model.width, model.spec.decoder.embedding.scale
        self.count = self.linear.outputs // self.width

    def __call__(self, states: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        states, last = floats(states), integers(tokens)
        if states.shape != (len(last), self.width):
            raise ValueError(f"hidden states {tuple(states.shape)} for {len(last)} rows of width {self.width}")
        vectors = np.empty((len(states), self.count, self.width), np.float32)
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

    def __init__(self, engine: Engine, query: np.ndarray, weight: np.ndarray, bias: np.ndarray):
        if weight.ndim != 2 or query.shape != weight.shape[1:] or bias.shape != weight.shape[:1]:
            raise ValueError(f"weights of a beginning do not fit: {[tuple(each.shape) for each in (query, weight, bias)]}")
        self.engine, self.width, self._kept = engine, len(bias), [floats(each) for each in (query, weight, bias)]
        self._weights = [address(each) for each in self._kept]

    def __call__(self, encoded: np.ndarray) -> np.ndarray:
        encoded, state = floats(encoded), np.empty(self.width, np.float32)
        if encoded.shape[1:] != self._kept[0].shape:
            raise ValueError(f"an encoder's output {tuple(encoded.shape)} for a query of {tuple(self._kept[0].shape)}")
        self.engine.library.specdec_begin(
            self.engine.pointer, *self._weights, self.width, address(encoded), *encoded.shape, address(state)
        )
        return state


class CpuModel:
    """A Transformer on the kernels, with another's ``encoder``, and the output projection of ``other`` if it is the same."""

    recordings, runner, device, xp, on_device = 0, CpuRunner, "cpu", np, False

    def __init__(
        self,
        model: Model | DrafterModel,
        engine: Engine,
        dtype: str,
        encoder: CpuEncoder | None = None,
        other: "CpuModel | None" = None,
        rounded: Rounded | None = None,
    ):
        weights = Weights(model, engine, dtype, rounded)
        self.linears = weights.linears
        self.spec, self.engine, self.dtype, self.kind = weights.spec, engine, dtype, weights.kind
        self.encoder = encoder or CpuEncoder(weights)
        output = Output(weights)
        self.projected = None if output.vocabulary else output.weight  # (V, D)
        self.output_kind = kind = weights.output_kind
        same = other is not None and other.output_kind == kind and other.projected is output.weight
        if other and same:
            projection = other.stack.output.linear
        else:
            projection = weights.packed("decoder.output_projection", kind, [output.weight], output.bias)
        self.successor, self.copy = output.successor, output.copy
        self.vocabulary: list[int] | None = output.vocabulary
        self.stack: Stack = weights.stack(
            "decoder",
            output.norm,
            Projection(
                projection,
                self.spec.output.cap,
                self.successor and self.successor.gate,
                screen_of(output, kind, engine),
                None if weights.drafts or self.spec.ends else plane_of(projection, self.spec, kind),
                self.spec.all_ends if output.vocabulary is None else (),
            ),
        )
        side = self.spec.decoder
        self.layers, self.entry = side.layers, 2 * side.key_width
        self.width: int = side.width
        reader = "self_attn" if side.attention.merged else "encoder_attn"
        memory = [f"decoder.layers.{layer}.{reader}.{part}_proj" for layer in range(side.layers) for part in "kv"]
        self.memory = weights.linear(*memory) if memory and not weights.hosts else None  # (L 2 G K, D)
        self.sources = Embeddings(weights, "encoder")
        self.source_vocabulary, self.target_vocabulary = len(self.sources.tokens), len(weights("decoder.embed_tokens.weight"))
        self.token_ids: array[int] | None = None if self.vocabulary is None else integers(self.vocabulary)
        self.logits, self.gates, self.features, self.attention, self.block = (Buffer() for _ in range(5))

    @cached_property
    def target_embeddings(self) -> np.ndarray:
        """A copy if they are stored in another data type than float32."""
        return floats(self.stack.tables[0])

    def start(self, rows: int) -> SlottedState:
        layers = self.layers + (self.copy is not None)
        cache, sources = (KVCache(count, self.entry) for count in (self.layers, layers))
        return SlottedState(cache, Sources(sources, self._remember))

    def bytes_for(self, source: int, target: int) -> int:
        return (source + target) * self.layers * self.entry * 4  # entries are float32

    def array(self, values: Any) -> np.ndarray:
        return floats(values)

    def host(self, values: np.ndarray) -> np.ndarray:
        return values

    def _remember(self, source: Source, numbers: Sequence[int], cache: KVCache, slots: Sequence[int]) -> None:
        """See `Remember`. The source copy's keys and values are a last layer."""
        if self.memory is None:
            return
        encoded, lengths = source.made_by(self.encoder), [source.sizes[number] for number in numbers]
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
            cache.put(slots, self.sources.copied([source.sentences[number] for number in numbers], self.copy), self.layers)

    def encode(self, source: Source) -> np.ndarray:
        return source.made_by(self.encoder)

    def linear(self, weight: np.ndarray, bias: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return partial(NativeLinear(weight, bias, self.kind, self.engine.library), self.engine)

    def heads(self, weight: np.ndarray, bias: np.ndarray, reads_token: bool) -> NativeHeads:
        return NativeHeads(self, weight, bias, reads_token)

    def beginning(self, query: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> NativeBeginning:
        return NativeBeginning(self.engine, query, weight, bias)

    def read(self, state: SlottedState, reading: Reading) -> CausalPass:
        """Without ``guesses``: drafts of the kernels are on the host."""
        state.encode()
        return CausalPass(self, state, reading)

    def read_block(self, state: SlottedState, prefix: Prefix, lengths: Sequence[int]) -> BlockPass:
        state.encode()
        return BlockPass(self, state, prefix, lengths)
