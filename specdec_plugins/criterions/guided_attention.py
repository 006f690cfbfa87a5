"""Attention is taught to stay near its sentence, so that a model of sentences becomes one of long documents.

A plain Transformer hardly learns on documents of thousands of tokens, as attention has too many places to go (Bao et al. 2021,
arXiv 2105.14761, who give every sentence its own attention). Here the model stays as it is, and a loss holds it: -log of the
attention that falls into the own sentence and its neighbours, and into those of the same numbers on the other side. While
attention strays, what strays is damped, so that a model that translates sentences goes on to do so meanwhile.

Sentences are told by the full stop at their end. A document whose two sides have different numbers of them is guided within its
sides only.

B batch, T queries, S keys, C width, H heads, R sampled queries.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

SENTENCE_END = "."
FIRST = ("encoder.layers.0.", "decoder.layers.0.")  # has only positions to go by, which do not tell one sentence from the next
NEIGHBOURS = 1  # sentences to either side: the first layer tells nearness by positions, and not yet sentences by their ends
QUERIES = 128  # of each document, drawn anew at every pass: weights of all pairs of positions would cost as much as a layer

# Arguments with which fairseq's attention to the source, written for decoding, takes masks and kernels as the others do.
AS_IN_TRAINING = {"static_kv": False, "need_weights": False, "need_head_weights": False}


def sentence_ends(source: Dictionary, target: Dictionary) -> tuple[int, int]:
    """The symbols that end a sentence. ValueError if a dictionary has none."""
    if any(SENTENCE_END not in dictionary for dictionary in (source, target)):
        raise ValueError(f"--guided-attention and --stutters tell sentences by their '{SENTENCE_END}', which a dictionary lacks")
    return source.index(SENTENCE_END), target.index(SENTENCE_END)


class GuidedAttention:
    """What the attention layers of a model attend to in one forward pass, and the loss that it gives."""

    def __init__(self, model: nn.Module, source: Tensor, prefix: Tensor, padding: int, ends: tuple[int, int], damping: float):
        """Guide attention on a batch.

        Args:
            model: fairseq's Transformer.
            source, prefix: (B, S) and (B, T) int64, what encoder and decoder read. padding: the symbol that fills them.
            ends: the symbols that end a sentence, of the source and of the target.
            damping: nats taken from the logits of what is not near.
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
        """Keep the inputs of every attention layer that runs meanwhile, and damp what they attend to elsewhere."""

        def keep(name: str):
            def hook(layer, args, kwargs):
                self.inputs[name] = kwargs["query"], kwargs["key"]
                if not self.damping:
                    return None
                kind = name.split(".")[0], layer.self_attention
                if kind not in self.masks:
                    seen, near = self.places(name, torch.arange(kwargs["query"].size(0), device=kwargs["query"].device))
                    mask = torch.where(near, 0.0, -self.damping).masked_fill(~seen, -torch.inf)
                    self.masks[kind] = mask[0] if len(mask) == 1 else mask.repeat_interleave(layer.num_heads, 0)
                return args, kwargs | {"attn_mask": self.masks[kind]} | AS_IN_TRAINING

            return hook

        hooks = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in self.layers.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def places(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the queries ``rows`` (R,) of a layer see, and what of it is near: (B, 1 or R, S) and (B, R, S) bool."""
        side = name.split(".")[0]
        within = self.layers[name].self_attention
        keys = side if within else "encoder"
        seen = self.symbols[keys][:, None]
        if within and side == "decoder":
            seen = seen & (torch.arange(seen.size(2), device=rows.device) <= rows[:, None])
        near = (self.sentences[side][:, rows, None] - self.sentences[keys][:, None]).abs() <= NEIGHBOURS
        return seen, seen & (near if within else near | self.unlike[:, None, None])

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
            seen, near = (places[:, None] for places in self.places(name, rows))
            everywhere = logits.masked_fill(~seen, -torch.inf).logsumexp(3)
            strayed = everywhere - logits.masked_fill(~near, -torch.inf).logsumexp(3)  # (B, H, R)
            symbols = self.symbols[name.split(".")[0]][:, None, rows]
            losses.append(strayed[symbols.expand_as(strayed)].mean())
        return torch.stack(losses).mean()
