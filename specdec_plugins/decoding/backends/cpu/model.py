"""A Transformer's passes on the CPU kernels: one native call a pass, or a pass with what is asked of it.

Nothing is padded, starting a pass costs microseconds, and each position's result is, bit for bit, the same whatever is computed
beside it. Weights are held in float32, bfloat16 or int8; everything else is float32.

B rows, Q tokens read, W of them with a prediction, S source positions, D width, V vocabulary.
"""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.cache import KVCache
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
from specdec_plugins.decoding.backends.cpu.state import SlottedState
from specdec_plugins.decoding.backends.torch.model import CANDIDATES
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Encoder, Linear, Norm, Transformer
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Source, Tolerance, Verdict

__all__ = ["DTYPES", "CpuModel", "load", "obstacles"]


def obstacles(model: Transformer) -> list[str]:
    """Why the kernels do not compute a model; empty if they do."""
    decoder = model.decoder
    faults = [] if library() else ["they were not compiled for this machine"]
    widths = {model.encoder.embedding.tokens.size(1), decoder.width}
    widths |= {layer.fc1.weight.size(0) for layer in (*model.encoder.layers, *decoder.layers)}
    widths |= {decoder.successor.tokens.size(1)} if decoder.successor else set()
    if any(width % TILE for width in widths):
        faults.append(f"widths {', '.join(map(str, sorted(widths)))}, and they compute multiples of {TILE}")
    return faults


def load(verifier: Transformer, drafter: Transformer | None, dtype: str, threads: int) -> tuple["CpuModel", "CpuModel | None"]:
    """Both models on one team of threads; an encoder or output projection that they share stays shared."""
    engine = Engine(threads)
    first = CpuModel(verifier, engine, dtype)
    if drafter is None:
        return first, None
    encoder = first.encoder if drafter.encoder is verifier.encoder else None
    projection = first.stack.projection if drafter.decoder.projection is verifier.decoder.projection else None
    return first, CpuModel(drafter, engine, dtype, encoder, projection)


class CpuEncoder:
    """As `Encoder`."""

    def __init__(self, engine: Engine, encoder: Encoder, activation: str, dtype: str):
        self.width = encoder.embedding.tokens.size(1)
        self.stack = stack_of(engine, encoder, activation, dtype)

    def __call__(self, source: Source) -> Tensor:
        """(B, S, D); undefined past a sentence's end."""
        sentences, stack = source.sentences, self.stack
        output = torch.empty(len(sentences), source.longest, self.width)
        numbers = integers(starts(sentences), *sentences)
        stack.library.specdec_encode(
            stack.engine.pointer, stack.pointer, len(sentences), source.longest, start(numbers), address(output)
        )
        return output


class CpuModel:
    """A `Transformer` whose passes the kernels compute; with ``encoder`` and ``projection``, one that uses another's."""

    def __init__(
        self, model: Transformer, engine: Engine, dtype: str, encoder: CpuEncoder | None = None,
        projection: NativeLinear | None = None,
    ):  # fmt: skip
        decoder, activation = model.decoder, model.spec.activation
        self.spec, self.engine = model.spec, engine
        self.encoder = encoder or CpuEncoder(engine, model.encoder, activation, dtype)
        projection = projection or NativeLinear(decoder.projection, decoder.bias, dtype)
        successor = decoder.successor
        gate = NativeLinear(successor.gate.weight, successor.gate.bias, dtype) if successor else None
        self.stack = stack_of(engine, decoder, activation, dtype, projection, gate)
        self.memory = NativeLinear(decoder.memory.weight, decoder.memory.bias, dtype)
        self.layers, self.width = len(decoder.layers), decoder.width
        self.successor, self.copy = decoder.successor, decoder.copy
        self.source_embedding, self.target_embeddings = model.encoder.embedding, decoder.embedding.tokens
        self.features_wanted = False  # a drafter that reads the verifier's hidden states sets this; passes then keep them
        # The tokens that the numbers of the logits are, if a drafter drafts only some.
        self.vocabulary = None if decoder.vocabulary is None else decoder.vocabulary.tolist()
        self.logits, self.gates, self.features, self.block = Buffer(), Buffer(), Buffer(), Buffer()

    # ---- what a row keeps

    def start(self, rows: int) -> SlottedState:
        """A state without rows."""
        layers = self.layers + (self.copy is not None)  # the source copy's entries are a last layer
        like = torch.empty(0)
        cache, sources = (KVCache(count, 2 * self.width, like, zeroed=False) for count in (self.layers, layers))
        return SlottedState(cache, sources, self._remember)

    def bytes_for(self, source: int, target: int) -> int:
        return (source + target) * self.layers * 2 * self.width * 4  # entries are float32

    def _remember(self, source: Source, numbers: Sequence[int], cache: KVCache, slots: Sequence[int]) -> None:
        """Write what belongs to some sentences of a source: cross-attention entries, and keys and values of the source copy."""
        encoded, lengths = source.encoded_by(self.encoder), [source.sizes[number] for number in numbers]
        cache.reserve(max(slots) + 1, max(lengths))
        given = integers(numbers, slots, lengths)
        self.engine.library.specdec_remember(
            self.engine.pointer, self.memory.pointer, len(slots), source.longest, start(given), address(encoded), 2 * self.width,
            *cache.layout,
        )  # fmt: skip
        if self.copy is not None:
            embedding = self.source_embedding
            tokens = source.tokens[list(numbers)]
            embedded = embedding.embed(tokens)  # (N, S, D)
            keys = (embedded + embedding.place(torch.arange(tokens.size(1)).expand_as(tokens))) @ self.copy  # W p . k = p . (k W)
            cache.put(slots, torch.cat([keys, embedded], -1)[None], self.layers)

    # ---- passes

    def read(
        self, state: SlottedState, tokens: Sequence[Sequence[int]], positions: Sequence[int], firsts: Sequence[int] | None = None,
        guesses: Tensor | None = None,
    ) -> "CpuPass":  # fmt: skip
        """See `LoadedModel.read`. Drafts of the kernels are on the host: there are no ``guesses``."""
        state.encode()
        return CausalPass(self, state, tokens, positions, firsts)

    def read_block(self, state: SlottedState, prefix: Prefix, lengths: Sequence[int]) -> "CpuPass":
        """See `LoadedModel.read_block`."""
        state.encode()
        return BlockPass(self, state, prefix, lengths)


def stack_of(
    engine: Engine, side: Encoder | Decoder, activation: str, dtype: str, projection: NativeLinear | None = None,
    gate: NativeLinear | None = None,
) -> Stack:  # fmt: skip
    """An encoder or decoder of `transformer.py` on the kernels."""
    embedding = side.embedding
    stack = Stack(
        engine, embedding.tokens, embedding.positions, heads=side.heads, activation=activation, prenorm=side.layers[0].prenorm,
        scale=embedding.scale, offset=embedding.offset, zero_start=embedding.zero_start, embedding_norm=pair(embedding.norm),
        last_norm=pair(side.norm), projection=projection, gate=gate,
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


class CpuPass:
    """A pass that runs when its results are asked for. They stand until the model's next pass."""

    def __init__(self, model: CpuModel, rows: int, width: int):
        self.model, self.rows, self.width = model, rows, width
        self._logits: Tensor | None = None
        self._gates: Tensor | None = None
        self._features: Tensor | None = None

    @classmethod
    def of(cls, model: CpuModel, logits: Tensor) -> "CpuPass":
        """A pass whose logits (B, W, V) were computed elsewhere."""
        done = cls(model, *logits.shape[:2])
        done._logits = logits.contiguous()
        return done

    def run(self) -> None:
        """Compute the pass alone."""
        raise NotImplementedError

    def logits(self) -> Tensor:
        if self._logits is None:
            self.run()
        assert self._logits is not None
        return self._logits

    def features(self) -> Tensor:
        """Raises RuntimeError if the model was not told to keep them: see `CpuModel.features_wanted`."""
        self.logits()
        if self._features is None:
            raise RuntimeError("hidden states were not kept: set the model's features_wanted before decoding")
        return self._features

    def with_logits(self, logits: Tensor) -> "CpuPass":
        """The same pass with other logits."""
        self.logits()
        self._logits = logits.contiguous()
        return self

    def choose(self, prefix: Prefix, lengths: Sequence[int]) -> Draft:
        model, symbols, logits = self.model, prefix.symbols, self.logits()
        numbers = integers(lengths, (not output for output in prefix.outputs))
        chosen = array("q", bytes(8 * self.rows * self.width))
        model.engine.library.specdec_choose(
            model.engine.pointer, address(logits), self.rows, self.width, logits.size(2), symbols.pad, symbols.eos,
            start(numbers),
            address(self._gates), 0 if self._gates is None else self._gates.size(2), *successor_tables(model), start(chosen),
        )  # fmt: skip
        return self.drafted(chosen, lengths)

    def drafted(self, chosen: array, lengths: Sequence[int]) -> Draft:
        """The chosen numbers of logits as tokens, of each row as many as it wanted."""
        tokens, width, names = chosen.tolist(), self.width, self.model.vocabulary
        if names is not None:
            return Draft([[names[n] for n in tokens[row * width : row * width + k]] for row, k in enumerate(lengths)])
        return Draft([tokens[row * width : row * width + k] for row, k in enumerate(lengths)])

    def judge(self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance]) -> Verdict:
        judging = Judging(self.rows, self.width, tolerances)
        numbers = integers(starts(draft.tokens), *judging_options(bounds, tolerances), *draft.tokens)
        logits, engine = self.logits(), self.model.engine
        engine.library.specdec_judge(
            engine.pointer, address(logits), self.rows, self.width, logits.size(2), start(numbers), *judging.arguments(bounds)
        )
        return judging.verdict()


class CausalPass(CpuPass):
    """Each row's tokens, read after those in its cache."""

    def __init__(
        self, model: CpuModel, state: SlottedState, tokens: Sequence[Sequence[int]], positions: Sequence[int],
        firsts: Sequence[int] | None,
    ):  # fmt: skip
        sizes = list(map(len, tokens))
        width = max(sizes) if firsts is None else max(size - first for size, first in zip(sizes, firsts))
        super().__init__(model, len(tokens), width)
        self.state, self.tokens, self.positions, self.firsts = state, tokens, positions, firsts
        state.cache.reserve(state.targets.bound, max(map(int.__add__, positions, sizes)))

    def _caches(self) -> tuple[int, ...]:
        """Where the entries of the target and of the source are."""
        return *self.state.cache.layout, *self.state.sources.layout

    def _results(self) -> tuple[int, int | None, int | None]:
        """Make the results' tensors; returns where logits, gates and features go."""
        model, shape = self.model, (self.rows, self.width)
        self._logits, logits = model.logits.view(*shape, model.stack.vocabulary)
        gates = features = None
        if model.stack.gate:
            self._gates, gates = model.gates.view(*shape, model.stack.gate.outputs)
        if model.features_wanted:
            self._features, features = model.features.view(*shape, model.width)
        return logits, gates, features

    def run(self) -> None:
        state = self.state
        numbers = integers(
            starts(self.tokens), self.positions, self.firsts or [0] * self.rows, state.slots, state.source_slots, state.lengths,
            *self.tokens,
        )  # fmt: skip
        stack = self.model.stack
        stack.library.specdec_read(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), *self._results()
        )

    def choose(self, prefix: Prefix, lengths: Sequence[int]) -> Draft:
        """In one call with the pass, if that has not run."""
        if self._logits is not None or self.model.features_wanted:
            return super().choose(prefix, lengths)
        state, model, symbols = self.state, self.model, prefix.symbols
        numbers = integers(
            starts(self.tokens), self.positions, self.firsts or [0] * self.rows, state.slots, state.source_slots, state.lengths,
            lengths, (not output for output in prefix.outputs), *self.tokens,
        )  # fmt: skip
        logits, gates, _ = self._results()
        chosen = array("q", bytes(8 * self.rows * self.width))
        model.stack.library.specdec_propose(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), *self._caches(), logits, gates,
            symbols.pad, symbols.eos,
            *successor_tables(model), start(chosen),
        )  # fmt: skip
        return self.drafted(chosen, lengths)

    def judge(self, draft: Draft, bounds: Bounds, tolerances: Sequence[Tolerance]) -> Verdict:
        """In one call with the pass, if that has not run and has read just each row's last token and its draft."""
        if self._logits is not None or self.firsts is not None or self.model.features_wanted:
            return super().judge(draft, bounds, tolerances)
        state = self.state
        judging = Judging(self.rows, self.width, tolerances)
        numbers = integers(
            starts(self.tokens), self.positions, state.slots, state.source_slots, state.lengths,
            *judging_options(bounds, tolerances), *self.tokens,
        )  # fmt: skip
        logits, _, _ = self._results()
        stack = self.model.stack
        stack.library.specdec_verify(
            stack.engine.pointer, stack.pointer, self.rows, self.width, start(numbers), *self._caches(), logits,
            *judging.arguments(bounds),
        )  # fmt: skip
        return judging.verdict()


class BlockPass(CpuPass):
    """Each row's prefix and masks, which all attend to each other."""

    def __init__(self, model: CpuModel, state: SlottedState, prefix: Prefix, lengths: Sequence[int]):
        super().__init__(model, len(prefix), max(lengths))
        self.state, self.prefix, self.lengths = state, prefix, lengths

    def run(self) -> None:
        model, state, outputs = self.model, self.state, self.prefix.outputs
        longest = max(len(output) + length for output, length in zip(outputs, self.lengths))
        scratch, scratch_address = model.block.view(state.targets.bound, longest, 2 * model.width)
        self._logits, logits = model.logits.view(self.rows, self.width, model.stack.vocabulary)
        copied = None if model.copy is None else address(state.sources.data[model.layers])
        numbers = integers(starts(outputs), self.lengths, state.slots, state.source_slots, state.lengths, *outputs)
        model.stack.library.specdec_draft(
            model.engine.pointer, model.stack.pointer, self.rows, self.width, start(numbers), self.prefix.symbols.mask,
            scratch_address, scratch.stride(0),
            *state.sources.layout, copied, logits,
        )  # fmt: skip


class Judging:
    """Room for a verdict on a batch of drafts, and where the native side writes it."""

    def __init__(self, rows: int, width: int, tolerances: Sequence[Tolerance]):
        self.rows, self.width = rows, width
        self.tau = array("d", [tolerance.tau for tolerance in tolerances])
        self.judged, self.scores = array("q", bytes(24 * rows)), array("f", bytes(4 * rows * width))

    def arguments(self, bounds: Bounds) -> tuple[int, ...]:
        symbols = bounds.constraints.symbols
        self.suppressed = suppressed = integers(bounds.constraints.suppressed)
        return (
            symbols.pad,
            symbols.eos,
            len(suppressed),
            start(suppressed),
            start(self.tau),
            start(self.judged),
            start(self.scores),
        )

    def verdict(self) -> Verdict:
        rows, width = self.rows, self.width
        judged, scores = self.judged.tolist(), self.scores.tolist()
        counts = judged[:rows]
        parts = [scores[row * width : row * width + count + 1] for row, count in enumerate(counts)]
        return Verdict(counts, judged[rows : 2 * rows], parts, list(map(bool, judged[2 * rows :])))


def judging_options(bounds: Bounds, tolerances: Sequence[Tolerance]) -> tuple:
    """The options by row that the native rule reads, in its order."""
    betas = [tolerance.beta for tolerance in tolerances]
    return betas, bounds.room, bounds.minimum, starts(bounds.forced), *bounds.forced


def successor_tables(model: CpuModel) -> tuple[int | None, int | None, int]:
    """The successor network's tables, and how many candidates it chooses among."""
    successor = model.successor
    candidates = min(CANDIDATES, model.stack.vocabulary)
    return (None, None, candidates) if successor is None else (address(successor.tokens), address(successor.out), candidates)
