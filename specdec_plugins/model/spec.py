"""An encoder-decoder Transformer described by its parts: values that compose.

Readers in ``formats/`` know what a family of models fixes. The layer loops know how parts are computed:
`decoding/backends/torch/transformer.py`, ``csrc/forward.h``.

D width, H heads, G key-value heads, K width of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specdec_plugins.decoding.options import Beam

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swish")
NORMS = ("before", "after", "both")
# Beyond known models; a tiny file must not claim all memory. The widest, T5-11B, has 65,536; int4 products wrap above 75,000.
MAX_LAYERS, MAX_WIDTH, MAX_POSITIONS, MAX_TABLE, MAX_SCALE = 1_000, 1 << 16, 1 << 20, 1 << 25, 1e6
MAX_BUCKETS = 1 << 12  # of a relative bias, and the largest distance with a bucket of its own

MAX_ENDS = 15  # tokens that end an output, beside eos
MAX_HEADS = 63  # of a layer that can be chosen: the kernels' bits
HUGE = 1 << 31  # bounds numbers whose sums must fit into the kernels' 64 bits


@dataclass(frozen=True)
class Norm:
    """Layer norm (Ba et al. 2016), or with ``rms`` a division by the root mean square alone (Zhang and Sennrich 2019)."""

    rms: bool = False
    eps: float = 1e-5
    bias: bool = True

    def faults(self) -> Iterator[str]:
        if not 0 < self.eps <= 1:
            yield f"a norm's eps is {self.eps}"


@dataclass(frozen=True)
class Relative:
    """A bias of attention scores, learned by head for each bucket of distances (T5, Raffel et al. 2020).

    Half of the buckets are single distances, the others grow logarithmically up to ``distance``, beyond which there is one. An
    encoder has one half of all buckets for positions ahead.
    """

    buckets: int = 32
    distance: int = 128

    def faults(self) -> Iterator[str]:
        if not 4 <= self.buckets <= MAX_BUCKETS or self.buckets % 4 or not self.buckets < self.distance <= MAX_BUCKETS:
            yield f"a relative bias of {self.buckets:,} buckets up to a distance of {self.distance:,}"


@dataclass(frozen=True)
class Rotary:
    """Queries and keys are rotated by their positions: number i of a head's first half with number i of its second half, by the
    position times theta^(-2 i / K) / factor (Su et al. 2021)."""

    theta: float = 10_000.0
    factor: float = 1.0

    def faults(self) -> Iterator[str]:
        if not 1 < self.theta <= 1e9:
            yield f"rotary positions with a theta of {self.theta}"
        if not 0 < self.factor <= MAX_SCALE:
            yield f"rotary positions with a factor of {self.factor}"


@dataclass(frozen=True)
class Local:
    """Some ``layers`` attend within a window: to ``before`` positions up to a token's own, in an encoder to ``after`` more behind
    it. ``rotary``: the positions of these layers; None: as in the others."""

    layers: tuple[int, ...]
    before: int
    after: int = 0
    rotary: Rotary | None = None

    def faults(self, layers: int) -> Iterator[str]:
        """``layers``: of the side."""
        if not self.layers or [*self.layers] != sorted({*self.layers}) or not 0 <= self.layers[0] <= self.layers[-1] < layers:
            yield f"windows of layers {self.layers!s:.80}, of {layers:,}"
        if not (1 <= self.before < HUGE and 0 <= self.after < HUGE):
            yield f"windows of {self.before:,} positions and {self.after:,} after them"
        if self.rotary is not None:
            yield from self.rotary.faults()


@dataclass(frozen=True)
class Attention:
    """``relative`` and ``rotary`` apply to self-attention only, everything else to cross-attention as well.

    ``merged``: a decoder's layers have no cross-attention; self-attention's softmax is over the source's keys as well, which the
    same projections make of the encoder's output (T5Gemma 2, Zhang et al. 2025).
    """

    heads: int  # H
    key_heads: int | None = None  # G, each shared by H / G query heads (Ainslie et al. 2023); None: H
    head_width: int | None = None  # K; None: D / H
    scale: float | None = None  # of scores; None: 1 / sqrt(K)
    bias: bool = True  # of projections
    head_norm: Norm | None = None  # of each head's query and key
    cap: float | None = None  # scores s become cap tanh(s / cap)
    relative: Relative | None = None
    rotary: Rotary | None = None
    merged: bool = False


@dataclass(frozen=True)
class FeedForward:
    """fc2(activation(fc1(x))), or if ``gated`` fc2(activation(fc1(x)) * gate(x)) (Shazeer 2020)."""

    width: int
    activation: str = "relu"  # one of `ACTIVATIONS`
    gated: bool = False
    bias: bool = True


@dataclass(frozen=True)
class Embedding:
    """What a token's vector goes through before the first layer: scale, added position, norm."""

    scale: float = 1.0
    offset: int | None = 0  # the first token's row in the position table; None without a table
    norm: bool = False


@dataclass(frozen=True)
class SideSpec:
    """An encoder or a decoder."""

    layers: int
    width: int  # D
    attention: Attention
    feed_forward: FeedForward
    max_positions: int  # most tokens that it reads
    embedding: Embedding = Embedding()
    norm: Norm = Norm()
    norms: str = "after"  # the residual sum, "before" each part of a layer, or "both" before a part and after it, before the sum
    final_norm: bool = False  # after the last layer
    local: Local | None = None  # layers that do not see all positions

    def local_at(self, layer: int) -> Local | None:
        return self.local if self.local is not None and layer in self.local.layers else None

    def rotary_at(self, layer: int) -> Rotary | None:
        local = self.local_at(layer)
        return (local and local.rotary) or self.attention.rotary

    @property
    def head_width(self) -> int:  # K
        given = self.attention.head_width
        return self.width // max(1, self.attention.heads) if given is None else given

    @property
    def key_heads(self) -> int:  # G
        given = self.attention.key_heads
        return self.attention.heads if given is None else given

    @property
    def query_width(self) -> int:  # H K
        return self.attention.heads * self.head_width

    @property
    def key_width(self) -> int:  # G K; values are as wide
        return self.key_heads * self.head_width

    def faults(self, least: int = 1) -> Iterator[str]:
        """``least``: layers."""
        attention, embedding, feed = self.attention, self.embedding, self.feed_forward
        given = [self.width, attention.heads, self.key_heads, self.head_width, feed.width, self.max_positions]
        if min(given) < 1 or self.layers < least or (embedding.offset or 0) < 0:
            yield "layers, heads, widths and positions are at least 1, and the offset of positions 0"
            return
        yield from self._size_faults()
        for what, value in (("embeddings", embedding.scale), ("scores", attention.scale), ("the cap of scores", attention.cap)):
            if value is not None and not 0 < value <= MAX_SCALE:
                yield f"{what}: a factor of {value}"
        if feed.activation not in ACTIVATIONS:
            yield f"activation function '{feed.activation}'; available: {', '.join(ACTIVATIONS)}"
        if self.norms not in NORMS:
            yield f"norms '{self.norms}'; available: {', '.join(NORMS)}"
        for part in (self.norm, attention.head_norm, attention.relative, attention.rotary):
            if part is not None:
                yield from part.faults()
        if self.local is not None:
            yield from self.local.faults(self.layers)

    def _size_faults(self) -> Iterator[str]:
        attention, feed, rows = self.attention, self.feed_forward, self.max_positions + (self.embedding.offset or 0)
        if attention.head_width is None and self.width % attention.heads:
            yield f"{attention.heads} heads do not divide a width of {self.width}"
        if attention.heads % self.key_heads:
            yield f"{self.key_heads} key-value heads do not divide {attention.heads} heads"
        if (attention.rotary or (self.local and self.local.rotary)) and self.head_width % 2:
            yield f"rotary positions of heads of width {self.head_width}"
        if self.layers > MAX_LAYERS or max(self.width, feed.width, self.query_width) > MAX_WIDTH:
            yield f"more than {MAX_LAYERS:,} layers, or wider than {MAX_WIDTH:,}"
        elif rows > MAX_POSITIONS or rows * max(self.width, self.head_width) > MAX_TABLE:
            yield f"{rows:,} positions of width {self.width:,}"


@dataclass(frozen=True)
class Output:
    """Logits of the last hidden state."""

    bias: bool = False
    scale: float = 1.0  # of the hidden state, after its norm
    cap: float | None = None  # logits x become cap tanh(x / cap)

    def faults(self) -> Iterator[str]:
        if not 0 < self.scale <= MAX_SCALE or not (self.cap is None or 0 < self.cap <= MAX_SCALE):
            yield f"outputs scaled by {self.scale} and capped at {self.cap}"


@dataclass(frozen=True)
class Symbols:
    """Special token ids. The defaults are those of fairseq's dictionaries."""

    pad: int = 1
    eos: int = 2
    start: int = 2  # what the decoder reads before the first token
    mask: int = 3  # drafters read it for unknown tokens; ``<unk>``, as published


@dataclass(frozen=True)
class Heads:
    """The cross-attention heads whose attention, summed, aligns an output token with its source.

    ``reading``: the attention of the step that reads the token, in place of that of the step that predicts it.
    """

    layer: int
    heads: tuple[int, ...]
    reading: bool = False

    def faults(self, decoder: SideSpec) -> Iterator[str]:
        known = decoder.attention.heads
        if not 0 <= self.layer < decoder.layers:
            yield f"layer {self.layer:,} of a decoder of {decoder.layers:,}"
        if not self.heads or len(set(self.heads)) < len(self.heads) or not {*range(min(known, MAX_HEADS))} >= {*self.heads}:
            yield f"heads {self.heads!s:.80} of a layer of {known:,}"

    @classmethod
    def usual(cls, decoder: SideSpec) -> "Heads":
        """For a model whose heads nobody has measured: all of the last layer but one (Garg et al. 2019)."""
        return cls(max(0, decoder.layers - 2), tuple(range(min(decoder.attention.heads, MAX_HEADS))))


@dataclass(frozen=True)
class OutputRules:
    """How outputs end by default, as ``library`` ends them: the user's settings replace the numbers.

    With ``huggingface``, pad is an ordinary token, the start token counts in n-grams, and forced tokens count in lengths. Of the
    last four, greedy decoding uses none.
    """

    library: str = "fairseq"
    ends: bool = True  # an output at the limit ends with eos
    limit: int | None = None  # most tokens before eos; None: the engine's default
    min_length: int = 1  # tokens before eos may follow
    no_repeat: int = 0  # no n-gram of this size twice; 0: no ban
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: str = "false"
    renormalize: bool = False

    def __post_init__(self) -> None:
        self.beam()  # raises ValueError for its own fields
        if not 1 <= (1 if self.limit is None else self.limit) < HUGE or not all(
            0 <= n < HUGE for n in (self.min_length, self.no_repeat)
        ):
            raise ValueError(f"lengths of outputs from {self.min_length:,} to {self.limit} tokens, n-grams of {self.no_repeat:,}")

    def beam(self) -> Beam:
        """The beam search that the model asks for."""
        return Beam(
            self.beams, self.library, self.length_penalty, early_stopping=self.early_stopping, renormalize=self.renormalize
        )


@dataclass(frozen=True)
class ModelSpec:
    """An encoder-decoder Transformer."""

    encoder: SideSpec
    decoder: SideSpec
    output: Output = Output()
    zero_start: bool = False  # the start token's embedding is replaced by zeros
    symbols: Symbols = Symbols()
    forced: tuple[int, ...] = ()  # every output begins with these tokens
    suppressed: tuple[int, ...] = ()  # no output contains these tokens; nor pad, by fairseq's rules
    # An output ends with eos or one of these: the largest of their logits counts as eos's. Greedy decoding only.
    ends: tuple[int, ...] = ()
    outputs: OutputRules = OutputRules()
    float16: bool = True  # whether hidden states stay within its range

    @property
    def all_ends(self) -> tuple[int, ...]:
        """The tokens that end an output, eos first, where there are several."""
        return (self.symbols.eos, *self.ends) if self.ends else ()

    def __post_init__(self) -> None:
        """Raise ValueError with every fault."""
        faults = [f"encoder: {fault}" for fault in self.encoder.faults()]
        faults += [f"decoder: {fault}" for fault in self.decoder.faults(least=0)]  # a drafter's: heads on hidden states
        faults += self.output.faults()
        if self.output.scale != 1 and not self.decoder.final_norm:
            faults.append("outputs are scaled after the decoder's final norm, which it lacks")
        if self.encoder.attention.merged:
            faults.append("encoder: merged attention, which needs a source")
        if self.decoder.attention.merged and self.encoder.width != self.decoder.width:
            faults.append(f"merged attention of width {self.decoder.width:,} to a source of width {self.encoder.width:,}")
        if self.decoder.attention.merged and self.decoder.attention.relative:
            faults.append("decoder: merged attention with a relative bias")
        symbols = self.symbols
        if min(symbols.pad, symbols.eos, symbols.start, symbols.mask, *self.forced, *self.suppressed, *self.ends) < 0:
            faults.append("special tokens must not be negative")
        if len({*self.all_ends}) < len(self.all_ends) or len(self.ends) > MAX_ENDS:
            faults.append(f"ends beside eos, {symbols.eos}: at most {MAX_ENDS}, each another token, not {self.ends!s:.80}")
        if faults:
            raise ValueError("; ".join(faults))
