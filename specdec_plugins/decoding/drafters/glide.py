"""An autoregressive drafter on the verifier's KV cache, one pass per token (after GLIDE, Du et al. 2024, arXiv 2402.02082).

A thin decoder reads the last committed token, then its own draft. Its layers attend to the keys and values that the verifier has
cached of earlier tokens and of the source. Those of drafted tokens are written where the verification that follows overwrites
them. So the drafter has no cache, reads no committed token twice, and projects nothing of the source.

B sentences, A blocks per sentence, K block size, T prefix positions, D width.
"""

from dataclasses import dataclass, replace

from specdec_plugins.decoding.backends import LoadedModel, Reading, RowState
from specdec_plugins.decoding.drafters import after_the_last, draft_in_turn, joined, kept, options_of, over_the_verifier
from specdec_plugins.decoding.drafters.block import loaded, within_positions
from specdec_plugins.decoding.loading import shallower, spread
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, InTurn, Traits
from specdec_plugins.decoding.values import Array, DeviceDraft, Distribution, Draft, Plan
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec

# A pass over one token takes the time of reading the weights; int4 changes the acceptance by less than measurements show.
KERNELS = "int4"
HOST = ("encoder_attn.k_proj.", "encoder_attn.k_norm.", "encoder_attn.v_proj.")  # what the verifier has computed for a layer


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
    decoder, feed = shallower(verifier.decoder, layers), verifier.decoder.feed_forward
    feed = replace(feed, width=min(feed.width, decoder.width))
    return replace(verifier, decoder=replace(decoder, feed_forward=feed))


@dataclass
class GlideState:
    """``cache`` belongs to the verifier, which moves its rows."""

    cache: RowState

    def select(self, order: list[int]) -> None:
        return None


class GlideDrafter(Drafter):
    def __init__(self, model: LoadedModel):
        self.model, self.on_device = model, model.on_device
        self.traits = Traits(needs_verifier=True, confident=not self.on_device)

    def start(self, rows: int, shared: RowState) -> GlideState:
        return GlideState(shared)

    def recipe(self) -> InTurn:
        return InTurn(self.model)

    def propose(self, state: GlideState, prefix: Prefix, plan: Plan) -> Draft:
        if self.on_device:
            draft = self._on_device(state, prefix, plan)
        else:
            draft = draft_in_turn(prefix, plan, after_the_last(self.model, state.cache, confident=plan.least > 0), self.model.xp)
        return within_positions(draft, prefix, self.model)

    def _on_device(self, state: GlideState, prefix: Prefix, plan: Plan) -> Draft:
        """All rows draft the longest length, so that no token has to reach the host. A pass reads the tokens before it again: on
        a GPU it takes the time of launching it, and guesses follow a token of the host."""
        places, one = list(map(len, prefix.outputs)), Plan([1] * len(prefix))
        guesses: list[Array] = []  # (R, 1) each
        parts: list[Distribution] = []
        for drafted in range(max(plan.lengths)):
            before = self.model.xp.concatenate(guesses, 1) if guesses else None
            done = self.model.read(state.cache, Reading([[token] for token in prefix.last], places, guesses=before))
            ahead = prefix.ahead([[prefix.symbols.mask] * drafted] * len(prefix))
            chosen = done.with_logits(done.logits()[:, -1:]).choose(ahead, one)
            assert chosen.guesses is not None, "on the device"
            guesses.append(chosen.guesses.clone())  # the next recorded pass overwrites it
            if chosen.distribution is not None:
                parts.append(kept(chosen.distribution))
        return DeviceDraft(self.model.xp.concatenate(guesses, 1), plan.lengths, prefix.symbols.eos, joined(parts, self.model.xp))


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
