"""``--criterion document_loss``: turns a verifier of sentences into one of long documents.

Plain training fails on documents of thousands of tokens, because attention has too many positions to choose from (Bao et al.
2021, arXiv 2105.14761). The model is unchanged; training differs in three ways:

* Guided attention: a loss, -log of the attention mass on a query's own sentence and its neighbours, on both sides. While that
  loss is high, attention elsewhere is damped, so that the model keeps translating. Sentences end with a full stop; if the sides
  of a document have different numbers of sentences, only self-attention is guided.
* Shifted positions: half of the rows train at positions far into a document. Absolute embeddings of unseen positions are noise,
  and long documents are costly to train on (Kiyono et al. 2021, arXiv 2109.05644).
* Repetition noise: prefixes contain repetition loops. Greedy decoding degenerates into such loops, and the model learns to
  continue after them, finding its place from the translated text rather than from positions.

B batch, S source and T target tokens (padding included), R sampled queries, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
FIRST = ("encoder.layers.0.", "decoder.layers.0.")  # not guided: their inputs do not reveal sentence boundaries
NEIGHBOURS = 1  # sentences to either side; 0 was too narrow
QUERIES = 128  # sampled per document and pass; using all would cost as much as a layer
MEMORY = 50  # updates over which the guidance loss is averaged
DAMPING = 5  # nats subtracted from the logits of distant positions, per nat of guidance loss

SHIFTED = 0.5  # fraction of rows that are shifted
# Standard deviation of the target's shift over the square root of the source's: if sentences of n tokens have translations whose
# length deviates by d from the mean, the sides drift apart by d / sqrt(n) of that root.
DRIFT = 0.3

LONGEST = 3  # tokens in a repetition
MOST = 64  # repetitions in a loop
GROWTH = 8  # noise widens a batch by at most 1 / GROWTH


@dataclass
class DocumentLossConfig(LabelSmoothedCrossEntropyCriterionConfig):
    repetition_noise: float = field(
        default=2.0,
        metadata={"help": "repetition loops per thousand prefix tokens, after which the model learns to continue; 0: none"},
    )


@register_criterion("document_loss", dataclass=DocumentLossConfig)
class DocumentLoss(VerifierLoss):
    """`VerifierLoss` on documents; validation is plain cross-entropy. Resuming resets the average of the guidance loss."""

    def __init__(self, task, sentence_avg, label_smoothing, ignore_prefix_size=0, report_accuracy=False, repetition_noise=2.0):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.repetition_noise = repetition_noise
        self.ends = sentence_ends(task.source_dictionary, task.target_dictionary)
        self.steps, self.average = 0, 1.0

    def compute(self, model, sample, reduce):
        if not model.training:
            return super().compute(model, sample, reduce)
        if self.repetition_noise:
            sample = self.with_noise(model, sample)
        source, prefix = (sample["net_input"][side] for side in ("src_tokens", "prev_output_tokens"))
        attention = GuidedAttention(model, source, prefix, self.padding_idx, self.ends, DAMPING * self.average)
        with shifted_positions(model, attention.tokens["encoder"], attention.tokens["decoder"], SHIFTED), attention.watch():
            loss, sample_size, log = super().compute(model, sample, reduce)
        guidance = attention.loss()
        self.steps += 1
        self.average += (float(guidance.detach()) - self.average) / min(self.steps, MEMORY)
        guidance = guidance * sample_size
        return loss + GUIDANCE * guidance, sample_size, log | {"guidance": guidance.detach()}

    def with_noise(self, model, sample):
        inputs = sample["net_input"]
        prefix, target = with_repetitions(
            inputs["prev_output_tokens"],
            sample["target"],
            self.repetition_noise / 1000,
            self.padding_idx,
            {self.task.target_dictionary.eos(), self.ends[1]},
            model.max_decoder_positions(),
        )
        return {**sample, "target": target, "net_input": {**inputs, "prev_output_tokens": prefix}}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        super().reduce_metrics(logging_outputs)
        if guided := [log for log in logging_outputs if "guidance" in log]:
            size = sum(log["sample_size"] for log in guided)
            metrics.log_scalar("guidance", sum(log["guidance"] for log in guided) / size, size, round=3)


def sentence_ends(source: Dictionary, target: Dictionary) -> tuple[int, int]:
    """The full stops of both dictionaries. Raises ValueError if one is missing."""
    if any(SENTENCE_END not in dictionary for dictionary in (source, target)):
        raise ValueError(f"--criterion document_loss splits sentences at '{SENTENCE_END}', which a dictionary lacks")
    return source.index(SENTENCE_END), target.index(SENTENCE_END)


# ---- guided attention


class GuidedAttention:
    """Records the inputs of a model's attention layers in one forward pass, and computes the guidance loss."""

    def __init__(self, model: nn.Module, source: Tensor, prefix: Tensor, padding: int, ends: tuple[int, int], damping: float):
        """Guide attention on a batch.

        Args:
            model: fairseq's Transformer.
            source, prefix: (B, S) and (B, T) int64, the inputs of encoder and decoder, filled with ``padding``.
            ends: the full stops of source and target.
            damping: nats subtracted from the logits of distant positions.
        """
        while isinstance(inner := getattr(model, "module", None), nn.Module):  # fairseq's wrappers for several GPUs
            model = inner
        self.layers = {
            name: layer
            for name, layer in model.named_modules()
            if isinstance(layer, MultiheadAttention) and not name.startswith(FIRST)
        }
        self.tokens = {"encoder": source.ne(padding), "decoder": prefix.ne(padding)}
        source_ends, target_ends = source.eq(ends[0]), prefix.eq(ends[1])
        # Reading the end of a sentence, the decoder predicts the beginning of the next one.
        self.sentences = {"encoder": source_ends.cumsum(1) - source_ends.long(), "decoder": target_ends.cumsum(1)}
        self.unequal = source_ends.sum(1) != target_ends.sum(1)
        self.damping = damping
        self.inputs: dict[str, tuple[Tensor, Tensor]] = {}
        self.masks: dict[tuple[str, bool], Tensor] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Within the context, record the inputs of every attention layer and damp distant positions."""

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

        with ExitStack() as hooks:
            for name, layer in self.layers.items():
                hooks.enter_context(layer.register_forward_pre_hook(keep(name), with_kwargs=True))
            yield

    def visible_and_near(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that queries ``rows`` (R,) of a layer see, and the near ones: (B, 1 or R, S) and (B, R, S) bool."""
        side = name.split(".")[0]
        within = self.layers[name].self_attention
        keys = side if within else "encoder"
        visible = self.tokens[keys][:, None]
        if within and side == "decoder":
            visible = visible & (torch.arange(visible.size(2), device=rows.device) <= rows[:, None])
        near = (self.sentences[side][:, rows, None] - self.sentences[keys][:, None]).abs() <= NEIGHBOURS
        return visible, visible & (near if within else near | self.unequal[:, None, None])

    def loss(self) -> Tensor:
        """Mean of -log(attention mass on near keys) over layers, heads and sampled queries, in nats."""
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
            total = logits.masked_fill(~visible, -torch.inf).logsumexp(3)
            loss = total - logits.masked_fill(~near, -torch.inf).logsumexp(3)  # (B, H, R)
            tokens = self.tokens[name.split(".")[0]][:, None, rows]
            losses.append(loss[tokens.expand_as(loss)].mean())
        return torch.stack(losses).mean()


# ---- shifted positions


def shifts(source: Tensor, target: Tensor, most: tuple[int, int], fraction: float) -> tuple[Tensor, Tensor]:
    """Draw shifts of source and target (B,) int64 for a ``fraction`` of the rows, uniform over the room left; 0 for the others.

    ``source`` (B, S) and ``target`` (B, T) are true at tokens; ``most`` are the model's positions on either side. A target's
    shift is its source's, scaled by the batch's length ratio, plus drift.
    """
    lengths, target_lengths = source.sum(1), target.sum(1)
    moved = torch.rand(lengths.shape, device=lengths.device) < fraction
    source_shift = (torch.rand(lengths.shape, device=lengths.device) * (most[0] - lengths + 1).clamp(min=0)).long() * moved
    drift = torch.randn(lengths.shape, device=lengths.device) * source_shift.sqrt() * DRIFT
    target_shift = (source_shift * (target_lengths.sum() / lengths.sum()) + drift).long()
    return source_shift, target_shift.minimum(most[1] - target_lengths).clamp(min=0)


@contextmanager
def shifted_positions(model: FairseqEncoderDecoderModel, source: Tensor, target: Tensor, fraction: float) -> Iterator[None]:
    """Shift rows by `shifts` in forward passes of fairseq's Transformer. Raises ValueError if its positions are learned."""

    def shift(tokens: Tensor, by: Tensor):
        def embed(table, _, output):
            return table.weights[table.padding_idx + (tokens.cumsum(1) + by[:, None]) * tokens]

        return embed

    tables = [side.embed_positions for side in (model.encoder, model.decoder)]
    if not all(isinstance(table, SinusoidalPositionalEmbedding) for table in tables):
        raise ValueError("--criterion document_loss requires sinusoidal positions, a Transformer's default")
    source_most, target_most = (table.weights.size(0) - table.padding_idx - 1 for table in tables)
    drawn = shifts(source, target, (source_most, target_most), fraction)
    with ExitStack() as hooks:
        for table, tokens, by in zip(tables, (source, target), drawn):
            hooks.enter_context(table.register_forward_hook(shift(tokens, by)))
        yield


# ---- repetition noise


def repeated(row: Sequence[int], rate: float, kept: set[int], most: int, random: Random) -> tuple[list[int], list[bool]]:
    """Draw a row's repetitions: ``rate`` loops per token, none of tokens in ``kept``, at most ``most`` tokens in the result.

    Returns the index in ``row`` of each token of the result, such as 0, 1, 2, 1, 2, 3, and whether to predict what follows it:
    false within a loop.
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
    """Prefix and target (B, T) int64, right-padded, with repetition noise from torch's seed; targets within a loop are padding.

    See `repeated` for ``rate``, ``kept`` and ``most``, the longest row that the model reads.
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
