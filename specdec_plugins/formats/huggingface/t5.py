"""T5 (1.0, 1.1, LM-adapted, Flan, ByT5, MADLAD-400), mT5 and UMT5, as transformers computes them: facts from the modelling files
of version 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from specdec_plugins.formats.arrays import Tensors
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import DECODER, ENCODER, PROJECTION, Reader, activation_of, checked, tied
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import (
    MAX_TABLE,
    Attention,
    Embedding,
    FeedForward,
    ModelSpec,
    Norm,
    Output,
    Relative,
    SideSpec,
)

POSITIONS = 8_192  # T5 has no position table to bound lengths; this many tokens fit in memory
# transformers' names for the parts of a layer, in order, and for their tensors.
MODULES = {"self_attn": "SelfAttention", "encoder_attn": "EncDecAttention", "final": "DenseReluDense"}
ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
FEED = {False: {"wi": "fc1", "wo": "fc2"}, True: {"wi_0": "fc1", "wi_1": "gate", "wo": "fc2"}}  # by gated
# In some checkpoints. Cross-attention has no positions, so transformers ignores it as well.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
BIAS = "self_attn.relative.weight"


@dataclass(frozen=True)
class Family(Reader):
    activation: str = "gated-gelu"
    shares_bias: bool = True  # all layers of a side have the first one's
    scales: bool = True  # hidden states before the output projection, unless the config says otherwise
    start: int | None = 0  # what the decoder reads first, where no config says
    others: tuple[str, ...] = ()  # further classes under which it is published

    @property
    def names(self) -> tuple[str, ...]:
        return (*super().names, *self.others)

    def defaults(self, config: Asked) -> Mapping[str, Any]:
        return {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": self.start}

    def model_of(self, config: Asked, generation: Generation, weights: Tensors) -> Model | None:
        spec, size = spec_of(self, config, generation), config.whole("vocab_size", least=1)
        return None if config.faults else checked(spec, canonical(spec, self, weights), (size, size), config)


FAMILIES = {
    "t5": Family("T5ForConditionalGeneration", "relu", start=None, others=("T5WithLMHeadModel",)),
    "mt5": Family("MT5ForConditionalGeneration", scales=False),
    "umt5": Family("UMT5ForConditionalGeneration", shares_bias=False),
}


def spec_of(family: Family, config: Asked, generation: Generation) -> ModelSpec:
    """Raises ValueError for values that no model has."""
    width, inner, heads, head = (config.whole(name, least=1) for name in ("d_model", "d_ff", "num_heads", "d_kv"))
    layers = config.whole("num_layers", least=1)
    buckets, distance = (
        config.whole(f"relative_attention_{name}", usual) for name, usual in (("num_buckets", 32), ("max_distance", 128))
    )
    attention = Attention(heads, head_width=head, scale=1.0, bias=False, relative=Relative(buckets, distance))
    encoder = SideSpec(
        layers, width, attention, feed_forward(family, config, inner), min(POSITIONS, max(1, MAX_TABLE // max(width, head))),
        Embedding(offset=None), Norm(rms=True, eps=config.number("layer_norm_epsilon", 1e-6, 1.0), bias=False), "before", True,
    )  # fmt: skip
    if config.flag("is_encoder_decoder", True) is False:
        config.refuse("is_encoder_decoder", "true")
    unknown = next(token for token in (2, 0) if token != generation.symbols.eos)  # MADLAD's is 0, where others have pad
    decoder = replace(encoder, layers=config.whole("num_decoder_layers", layers, least=1))
    output = Output(scale=width**-0.5 if scales(family, config) else 1.0)
    return ModelSpec(encoder, decoder, output, **generation.fields(unknown), float16=False)


def scales(family: Family, config: Asked) -> bool:
    """Whether the config asks to scale hidden states. T5 1.0 has tied embeddings and scales; its successors say that they are
    not tied. A config saved by version 5 says that they are, whatever the weights, and has a setting."""
    return family.scales and config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))


def feed_forward(family: Family, config: Asked, inner: int) -> FeedForward:
    """By ``feed_forward_proj``, such as ``relu`` or ``gated-gelu``; what transformers saves beside it has precedence."""
    asked = config.word("feed_forward_proj", family.activation)
    gate, _, name = asked.rpartition("-")
    if gate not in ("", "gated"):
        config.refuse("feed_forward_proj", "an activation function, perhaps after 'gated-'")
    usual = "gelu_new" if asked == "gated-gelu" else name
    return FeedForward(
        inner, activation_of(config.word("dense_act_fn", usual)), config.flag("is_gated_act", bool(gate)), bias=False
    )


def canonical(spec: ModelSpec, family: Family, weights: Tensors) -> Tensors:
    """Tensors by canonical names, tied ones the same object; unknown ones keep their names, and are refused.

    The config's word on tying does not count: in all of these families transformers ties the embeddings and the output
    projection, unless the file has different ones.
    """
    ours = names_of(spec, family)
    tensors = {ours.get(name, name): tensor for name, tensor in weights.items() if name != UNUSED}
    tensors |= tied(tensors, [ENCODER, DECODER, PROJECTION], tensors.pop("shared.weight", None))
    for side in ("encoder", "decoder") if family.shares_bias else ():
        if (first := tensors.get(f"{side}.layers.0.{BIAS}")) is not None:
            tensors |= dict.fromkeys((f"{side}.layers.{layer}.{BIAS}" for layer in range(getattr(spec, side).layers)), first)
    return tensors


def names_of(spec: ModelSpec, family: Family) -> dict[str, str]:
    """The canonical name of each tensor of the layers, by theirs."""
    found = {}
    for side in ("encoder", "decoder"):
        found[f"{side}.final_layer_norm.weight"] = f"{side}.layer_norm.weight"
        parts = [part for part in MODULES if side == "decoder" or part != "encoder_attn"]
        stack: SideSpec = getattr(spec, side)
        for layer, (place, part) in product(range(stack.layers), enumerate(parts)):
            theirs, ours = f"{side}.block.{layer}.layer.{place}.", f"{side}.layers.{layer}."
            found[f"{theirs}layer_norm.weight"] = f"{ours}{part}_layer_norm.weight"
            names = FEED[stack.feed_forward.gated] if part == "final" else ATTENTION
            own = ours if part == "final" else f"{ours}{part}."
            found |= {f"{theirs}{MODULES[part]}.{name}.weight": f"{own}{each}.weight" for name, each in names.items()}
            if part == "self_attn" and not (layer and family.shares_bias):
                found[f"{theirs}SelfAttention.relative_attention_bias.weight"] = f"{ours}{BIAS}"
    return found
