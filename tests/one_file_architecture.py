"""An architecture outside the package, in one file, that no reader knows: its weights by its own names, and what they mean.

`test_blocks.py` decodes with it on both backends.
"""

from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, Norm, Output, Relative, Rotary, SideSpec

RENAMED = {
    "att.query.": "self_attn.q_proj.",
    "att.key.": "self_attn.k_proj.",
    "att.value.": "self_attn.v_proj.",
    "att.back.": "self_attn.out_proj.",
    "att.by_distance": "self_attn.relative.weight",
    "look.query.": "encoder_attn.q_proj.",
    "look.key.": "encoder_attn.k_proj.",
    "look.value.": "encoder_attn.v_proj.",
    "look.back.": "encoder_attn.out_proj.",
    "in.": "fc1.",
    "gate.": "gate.",
    "back.": "fc2.",
    "words": "embed_tokens.weight",
    "blocks.": "layers.",
    "norm_a.": "self_attn_layer_norm.",
    "norm_b.": "encoder_attn_layer_norm.",
    "norm_c.": "final_layer_norm.",
    "norm_end.": "layer_norm.",
    "logits.": "output_projection.",
}


def spec_of(config):
    """An encoder with relative positions, a decoder with rotary ones and shared keys, gates, and RMS norms without biases."""
    common = {
        "width": config["width"],
        "max_positions": config["longest"],
        "embedding": Embedding(offset=None),
        "norm": Norm(rms=True, eps=1e-6, bias=False),
        "norms": "before",
        "final_norm": True,
        "feed_forward": FeedForward(config["inner"], "gelu_tanh", gated=True, bias=False),
    }
    heads = {"heads": config["heads"], "head_width": config["head"], "bias": False}
    encoder = SideSpec(layers=config["layers"], attention=Attention(**heads, scale=1.0, relative=Relative(8, 20)), **common)
    decoder = SideSpec(
        layers=config["layers"], attention=Attention(**heads, key_heads=config["heads"] // 2, cap=20.0, rotary=Rotary()), **common
    )
    return ModelSpec(encoder, decoder, Output(scale=config["width"] ** -0.5, cap=30.0))


def model_of(config, weights):
    """A `Model` of the architecture's config and weights."""
    tensors = {}
    for name, tensor in weights.items():
        for theirs, ours in RENAMED.items():
            name = name.replace(f".{theirs}", f".{ours}")
        tensors[name] = tensor
    return Model(spec_of(config), tensors)
