"""An autoregressive drafter on the verifier's KV cache, one pass per token (after GLIDE, Du et al. 2024, arXiv 2402.02082).

A thin decoder reads the last committed token, then its own draft. Its layers attend to the keys and values that the verifier has
cached of earlier tokens and of the source. Those of drafted tokens are written where the verification that follows overwrites
them. So the drafter has no cache, reads no committed token twice, and projects nothing of the source.

B sentences, A blocks per sentence, K block size, T prefix positions, D width.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.backends import LoadedModel, RowState
from specdec_plugins.decoding.backends.cache import hide
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.layers import through, whole
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.transformer import spread
from specdec_plugins.decoding.drafters import after_the_last, draft_in_turn, joined, kept, over_the_verifier
from specdec_plugins.decoding.drafters.block import loaded, within_positions
from specdec_plugins.decoding.networks.decoder import adopt, decoder_of, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss, options_of
from specdec_plugins.decoding.networks.masking import ManyBlocks, training_blocks
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.recipes import InTurn
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import DeviceDraft, Distribution, Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec

# A pass over one token takes the time of reading the weights; int4 changes the acceptance by less than measurements show.
KERNELS = "int4"
HOST = ("encoder_attn.k_proj.", "encoder_attn.v_proj.")  # what the verifier has computed for a layer


def hosted(name: str) -> bool:
    """Whether a tensor is that of the verifier's layer whose cache is read."""
    return any(part in name for part in HOST)


@dataclass
class Options:
    length: int = 8  # K in training
    layers: int = 2
    dropout: float = 0.1  # of the embedded input


def shape(verifier: ModelSpec, layers: int) -> ModelSpec:
    """The verifier's, with fewer decoder layers, and feed-forward layers no wider than the others: a pass of one token costs what
    its weights cost."""
    decoder, feed = verifier.decoder, verifier.decoder.feed_forward
    feed = replace(feed, width=min(feed.width, decoder.width))
    return replace(verifier, decoder=replace(decoder, layers=layers, feed_forward=feed))


class Network(nn.Module):
    """The decoder's layers, which start as those of the verifier whose caches they read."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, (each for each in initial(self.spec, verifier) if not hosted(each[0])))

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of blocks of the target, each token after those before it: a sample of blocks in training, else all."""
        symbols = batch.symbols
        block = training_blocks(batch.target, self.options.length, symbols.pad, symbols.start, self.training)
        return block_loss(self.features(batch, block)[block.masked], block, batch.verifier, confident=self.training)

    def features(self, batch: Batch, block: ManyBlocks) -> Tensor:
        """(B, A, K, D) final hidden states of the blocks' predictions."""
        verifier = batch.verifier
        decoder = decoder_of(self, self.spec, verifier, verifier.spec.decoder.layers)
        encoded, hidden = verifier.encode(batch.source)
        caches = verifier.caches(batch.prefix, encoded, hidden)
        tokens, positions, seen = layout(batch.prefix, block, batch.symbols.pad)
        x = F.dropout(decoder.embedding(tokens, positions), self.options.dropout, self.training)  # (B, A K, D)
        own, sources = zip(*caches)
        before = torch.arange(batch.prefix.size(1), device=x.device)[None]
        context = whole(positions, hide(~seen, x.dtype)[:, None], sources, hidden, own, before)
        x = through(decoder.layers, x, context)
        return decoder.features(x).unflatten(1, block.masked.shape[1:])


def layout(prefix: Tensor, block: ManyBlocks, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and positions (B, A K) that the blocks are predicted from, and what each attends to, (B, A K, T + A K) bool: what
    the verifier has read of the prefix (B, T) before a block's first input, and earlier inputs of the block."""
    size, starts = block.block_size, block.starts
    positions = (starts[..., None] + block.offsets).flatten(1)
    tokens = F.pad(prefix, (0, size), value=pad).gather(1, positions)
    read = torch.arange(prefix.size(1), device=prefix.device) < starts.repeat_interleave(size, 1)[..., None]
    number = torch.arange(starts.size(1) * size, device=prefix.device)
    earlier = (number[:, None] >= number) & (number[:, None] // size == number // size)
    return tokens, positions, torch.cat([read, earlier.expand(len(prefix), -1, -1)], 2)


@dataclass
class GlideState:
    """``cache`` belongs to the verifier, which moves its rows."""

    cache: RowState

    def select(self, order: list[int]) -> None:
        return None


class GlideDrafter(Drafter):
    def __init__(self, model: LoadedModel):
        self.model, self.on_device = model, isinstance(model, TorchModel)
        self.traits = Traits(needs_verifier=True, confident=not self.on_device)

    def start(self, rows: int, shared: RowState) -> GlideState:
        return GlideState(shared)

    def recipe(self) -> InTurn:
        return InTurn(self.model)

    def propose(self, state: GlideState, prefix: Prefix, plan: Plan) -> Draft:
        if self.on_device:
            draft = self._on_device(state, prefix, plan)
        else:
            draft = draft_in_turn(prefix, plan, after_the_last(self.model, state.cache, confident=plan.least > 0))
        return within_positions(draft, prefix, self.model)

    def _on_device(self, state: GlideState, prefix: Prefix, plan: Plan) -> Draft:
        """All rows draft the longest length, so that no token has to reach the host. A pass reads the tokens before it again: on
        a GPU it takes the time of launching it, and guesses follow a token of the host."""
        places, one = list(map(len, prefix.outputs)), Plan([1] * len(prefix))
        guesses: list[Tensor] = []  # (R, 1) each
        parts: list[Distribution] = []
        for drafted in range(max(plan.lengths)):
            before = torch.cat(guesses, 1) if guesses else None
            done = self.model.read(state.cache, Reading([[token] for token in prefix.last], places, guesses=before))
            ahead = prefix.ahead([[prefix.symbols.mask] * drafted] * len(prefix))
            chosen = done.with_logits(done.logits()[:, -1:]).choose(ahead, one)
            assert chosen.guesses is not None, "on the device"
            guesses.append(chosen.guesses.clone())  # the next recorded pass overwrites it
            if chosen.distribution is not None:
                parts.append(kept(chosen.distribution))
        return DeviceDraft(torch.cat(guesses, 1), plan.lengths, prefix.symbols.eos, joined(parts))


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    """Of the verifier's shape, whatever spec the weights have, as passes read its cache."""
    hosts = verifier.spec.decoder.layers
    options = options_of(Options, weights.options)
    if options.layers > hosts:
        raise ValueError(f"drafter '{weights.code}' has {options.layers} layers, its verifier {hosts}")
    made = over_the_verifier(weights, verifier, shape(verifier.spec, options.layers))
    read = {
        name.replace(f".{host}.", f".{number}.", 1): tensor
        for number, host in enumerate(spread(options.layers, hosts))
        for name, tensor in verifier.tensors.items()
        if name.startswith(f"decoder.layers.{host}.") and hosted(name)
    }
    return replace(made, tensors={**made.tensors, **read}, hosts=hosts)


def build(weights: DrafterModel, model: LoadedModel | None, verifier: LoadedModel) -> GlideDrafter:
    return GlideDrafter(loaded(weights, model))
