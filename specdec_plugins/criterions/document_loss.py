"""``--criterion document_loss``: the recipe that turns a verifier of sentences into one of long documents.

A plain Transformer hardly learns on documents of thousands of tokens, as attention has too many places to go (Bao et al. 2021,
arXiv 2105.14761). The model stays as it is; training changes in three ways:

* Guided attention: a loss, -log of the attention that falls on the own sentence and its neighbours, here and on the other side.
  While attention strays, it is damped elsewhere, so that the model goes on translating meanwhile. Sentences end with a full stop;
  a document whose two sides have different numbers of them is guided within its sides only.
* Shifted positions: half of the rows train as if far into a document, because positions that training never shows are noise to
  absolute embeddings, and long documents cost most (Kiyono et al. 2021, arXiv 2109.05644).
* Repetition noise: the prefix repeats itself here and there. Greedy decoding degenerates into repetition loops; a document goes
  on behind them, and the model has to find its place again by what it has translated, not by positions.

B batch, S source and T target symbols (padding included), R sampled queries, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.modules import MultiheadAttention, SinusoidalPositionalEmbedding
from torch import Tensor, nn

from specdec_plugins.criterions.verifier_loss import AS_IN_TRAINING, VerifierLoss

GUIDANCE = 1.0  # weight of the attention loss next to cross-entropy
SENTENCE_END = "."
FIRST = ("encoder.layers.0.", "decoder.layers.0.")  # free: they only see positions, which do not tell sentences apart
NEIGHBOURS = 1  # sentences to either side; the own one alone was too narrow
QUERIES = 128  # of each document, sampled at every pass: all of them would cost as much as a layer
MEMORY = 50  # updates over which the attention that strays is averaged
DAMPING = 5  # nats taken from the logits of distant positions, for each nat of attention loss

SHIFTED = 0.5  # share of the rows that are moved
# Standard deviation of the target's shift, in roots of the source's: sentences of n tokens whose translations differ by d from
# their mean length let the sides drift apart by d / sqrt(n) of it.
DRIFT = 0.3

LONGEST = 3  # symbols in a repetition
MOST = 64  # repetitions of it
GROWTH = 8  # a batch grows wider by at most one part in so many


@dataclass
class DocumentLossConfig(LabelSmoothedCrossEntropyCriterionConfig):
    repetition_noise: float = field(
        default=2.0,
        metadata={"help": "repetition loops per thousand symbols of the prefix, from which to learn to go on; 0: none"},
    )


@register_criterion("document_loss", dataclass=DocumentLossConfig)
class DocumentLoss(VerifierLoss):
    """`VerifierLoss` on documents; validation is plain cross-entropy. The average of stray attention starts anew on resuming."""

    def __init__(
        self, task, sentence_avg, label_smoothing, ignore_prefix_size=0, report_accuracy=False, repetition_noise=2.0
    ):  # fmt: skip
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.repetition_noise = repetition_noise
        self.ends = sentence_ends(task.source_dictionary, task.target_dictionary)
        self.steps, self.straying = 0, 1.0

    def compute(self, model, sample, reduce):
        if not model.training:
            return super().compute(model, sample, reduce)
        if self.repetition_noise:
            sample = self.with_noise(model, sample)
        source, prefix = (sample["net_input"][side] for side in ("src_tokens", "prev_output_tokens"))
        attention = GuidedAttention(model, source, prefix, self.padding_idx, self.ends, DAMPING * self.straying)
        symbols = source.ne(self.padding_idx), prefix.ne(self.padding_idx)
        with shifted_positions(model, *symbols, SHIFTED), attention.watch():
            loss, sample_size, log = super().compute(model, sample, reduce)
        guidance = attention.loss()
        self.steps += 1
        self.straying += (float(guidance.detach()) - self.straying) / min(self.steps, MEMORY)
        guidance = guidance * sample_size
        return loss + GUIDANCE * guidance, sample_size, log | {"guidance": guidance.detach()}

    def with_noise(self, model, sample):
        inputs = sample["net_input"]
        prefix, target = with_repetitions(
            inputs["prev_output_tokens"], sample["target"], self.repetition_noise / 1000, self.padding_idx,
            {self.task.target_dictionary.eos(), self.ends[1]}, model.max_decoder_positions(),
        )  # fmt: skip
        return {**sample, "target": target, "net_input": {**inputs, "prev_output_tokens": prefix}}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        super().reduce_metrics(logging_outputs)
        if guided := [log for log in logging_outputs if "guidance" in log]:
            size = sum(log["sample_size"] for log in guided)
            metrics.log_scalar("guidance", sum(log["guidance"] for log in guided) / size, size, round=3)


def sentence_ends(source: Dictionary, target: Dictionary) -> tuple[int, int]:
    """The symbols that end a sentence. Raises ValueError if a dictionary has none."""
    if any(SENTENCE_END not in dictionary for dictionary in (source, target)):
        raise ValueError(f"--criterion document_loss tells sentences by their '{SENTENCE_END}', which a dictionary lacks")
    return source.index(SENTENCE_END), target.index(SENTENCE_END)


# ---- guided attention


class GuidedAttention:
    """What the attention layers of a model attend to in one forward pass, and the loss for it."""

    def __init__(self, model: nn.Module, source: Tensor, prefix: Tensor, padding: int, ends: tuple[int, int], damping: float):
        """Guide attention on a batch.

        Args:
            model: fairseq's Transformer.
            source, prefix: (B, S) and (B, T) int64, what encoder and decoder read. padding: the symbol that fills them.
            ends: the symbols that end a sentence, of the source and of the target.
            damping: nats taken from the logits of distant positions.
        """
        while isinstance(inner := getattr(model, "module", None), nn.Module):  # as fairseq wraps it for several GPUs
            model = inner
        self.layers = {
            name: layer
            for name, layer in model.named_modules()
            if isinstance(layer, MultiheadAttention) and not name.startswith(FIRST)
        }
        self.symbols = {"encoder": source.ne(padding), "decoder": prefix.ne(padding)}
        source_ends, target_ends = source.eq(ends[0]), prefix.eq(ends[1])
        # The decoder that reads the end of one sentence predicts the beginning of the next.
        self.sentences = {"encoder": source_ends.cumsum(1) - source_ends.long(), "decoder": target_ends.cumsum(1)}
        self.unlike = source_ends.sum(1) != target_ends.sum(1)
        self.damping = damping
        self.inputs: dict[str, tuple[Tensor, Tensor]] = {}
        self.masks: dict[tuple[str, bool], Tensor] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keep the inputs of every attention layer that runs meanwhile, and damp distant positions."""

        def keep(name: str):
            def hook(layer, args, kwargs):
                self.inputs[name] = kwargs["query"], kwargs["key"]
                if not self.damping:
                    return None
                kind = name.split(".")[0], layer.self_attention
                if kind not in self.masks:
                    rows = torch.arange(kwargs["query"].size(0), device=kwargs["query"].device)
                    visible, near = self.visible_and_near(name, rows)
                    mask = torch.where(near, 0.0, -self.damping).masked_fill(~visible, -torch.inf)
                    self.masks[kind] = mask[0] if len(mask) == 1 else mask.repeat_interleave(layer.num_heads, 0)
                return args, kwargs | {"attn_mask": self.masks[kind]} | AS_IN_TRAINING

            return hook

        hooks = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in self.layers.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def visible_and_near(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the queries ``rows`` (R,) of a layer see, and what of it is near: (B, 1 or R, S) and (B, R, S) bool."""
        side = name.split(".")[0]
        within = self.layers[name].self_attention
        keys = side if within else "encoder"
        visible = self.symbols[keys][:, None]
        if within and side == "decoder":
            visible = visible & (torch.arange(visible.size(2), device=rows.device) <= rows[:, None])
        near = (self.sentences[side][:, rows, None] - self.sentences[keys][:, None]).abs() <= NEIGHBOURS
        return visible, visible & (near if within else near | self.unlike[:, None, None])

    def loss(self) -> Tensor:
        """Mean of -log(attention to what is near) over layers, heads and sampled queries, in nats."""
        losses = []
        for name, (query, key) in self.inputs.items():
            layer = self.layers[name]
            rows = torch.randint(query.size(0), (min(query.size(0), QUERIES),), device=query.device)
            heads = (query.size(1), -1, layer.num_heads, layer.head_dim)
            queries = layer.q_proj(query[rows]).transpose(0, 1).reshape(heads).transpose(1, 2) * layer.scaling
            keys = layer.k_proj(key).transpose(0, 1).reshape(heads).transpose(1, 2)
            logits = queries @ keys.transpose(2, 3)  # (B, H, R, S)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            visible, near = (mask[:, None] for mask in self.visible_and_near(name, rows))
            everywhere = logits.masked_fill(~visible, -torch.inf).logsumexp(3)
            strayed = everywhere - logits.masked_fill(~near, -torch.inf).logsumexp(3)  # (B, H, R)
            symbols = self.symbols[name.split(".")[0]][:, None, rows]
            losses.append(strayed[symbols.expand_as(strayed)].mean())
        return torch.stack(losses).mean()


# ---- shifted positions


def shifts(source: Tensor, target: Tensor, most: tuple[int, int], share: float) -> tuple[Tensor, Tensor]:
    """Draw how far each row is moved: not at all, or uniformly as far as there is room.

    Args:
        source, target: (B, S) and (B, T) bool, true where there is a symbol and no padding.
        most: positions that the model has for a source and for a target. share: of the rows that are moved.

    Returns: of the source and of the target, (B,) int64. A target's is the source's in proportion to the batch's lengths.
    """
    lengths, target_lengths = source.sum(1), target.sum(1)
    moved = torch.rand(lengths.shape, device=lengths.device) < share
    source_shift = (torch.rand(lengths.shape, device=lengths.device) * (most[0] - lengths + 1).clamp(min=0)).long() * moved
    drift = torch.randn(lengths.shape, device=lengths.device) * source_shift.sqrt() * DRIFT
    target_shift = (source_shift * (target_lengths.sum() / lengths.sum()) + drift).long()
    return source_shift, target_shift.minimum(most[1] - target_lengths).clamp(min=0)


@contextmanager
def shifted_positions(model: FairseqEncoderDecoderModel, source: Tensor, target: Tensor, share: float) -> Iterator[None]:
    """Move rows by `shifts` in forward passes of fairseq's Transformer. Raises ValueError if its positions are learned."""

    def shift(symbols: Tensor, by: Tensor):
        def embed(table, _, output):
            return table.weights[table.padding_idx + (symbols.cumsum(1) + by[:, None]) * symbols]

        return embed

    tables = [side.embed_positions for side in (model.encoder, model.decoder)]
    if not all(isinstance(table, SinusoidalPositionalEmbedding) for table in tables):
        raise ValueError("--criterion document_loss needs sinusoidal positions, a Transformer's default")
    source_most, target_most = (table.weights.size(0) - table.padding_idx - 1 for table in tables)
    hooks = [
        table.register_forward_hook(shift(symbols, by))
        for table, symbols, by in zip(tables, (source, target), shifts(source, target, (source_most, target_most), share))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ---- repetition noise


def repeated(row: Sequence[int], rate: float, kept: set[int], most: int, random: Random) -> tuple[list[int], list[bool]]:
    """Draw where a row repeats itself.

    Args:
        row: symbols. rate: loops expected per symbol. kept: symbols that are not repeated. most: symbols of the result.

    Returns: the index in ``row`` of each symbol of the result, as 0, 1, 2, 1, 2, 3; and whether what follows it is to be
        predicted, which is not the case within a repetition.
    """
    indices, predicted = [], []
    room = most - len(row)
    for index in range(len(row)):
        indices.append(index)
        predicted.append(True)
        if random.random() < rate:
            again = range(max(index + 1 - random.randint(1, LONGEST), 0), index + 1)
            times = min(int(MOST ** random.random()), room // len(again))
            if times > 0 and kept.isdisjoint(row[again.start : again.stop]):
                indices += list(again) * times
                predicted += [False] * (len(again) * times - 1) + [True]
                room -= len(again) * times
    return indices, predicted


def with_repetitions(
    prefix: Tensor, target: Tensor, rate: float, padding: int, kept: set[int], most: int
) -> tuple[Tensor, Tensor]:
    """A batch with repetition noise, drawn by torch's seed.

    Args:
        prefix, target: (B, T) int64, what the decoder reads and predicts, filled on the right with ``padding``.
        rate: repetition loops expected per symbol. kept: symbols that are not repeated. most: symbols that a row may have.

    Returns: new tensors (B, the longest row); what is not to be predicted is padding in the target.
    """
    most = min(prefix.size(1) + prefix.size(1) // GROWTH, most)
    random = Random(int(torch.randint(1 << 62, ())))
    rows = [
        repeated(row[:length], rate, kept, most, random)
        for row, length in zip(prefix.tolist(), prefix.ne(padding).sum(1).tolist())
    ]
    shape = len(rows), max(len(indices) for indices, _ in rows)
    read, due = prefix.new_full(shape, padding), target.new_full(shape, padding)
    for row, (indices, predicted) in enumerate(rows):
        read[row, : len(indices)] = prefix[row, indices]
        due[row, : len(indices)] = target[row, indices].masked_fill(~torch.tensor(predicted, device=target.device), padding)
    return read, due
