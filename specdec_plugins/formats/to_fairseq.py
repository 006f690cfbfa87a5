"""A neutral model as fairseq's checkpoint, for its own generator and for converters. Never imports fairseq."""

import argparse
import math
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import Tensors, array, arrays, equal
from specdec_plugins.formats.checkpoint import Checkpoint
from specdec_plugins.formats.fairseq import ACTIVATIONS, OFFSET, PAD
from specdec_plugins.formats.spec import Model, sides, sinusoidal_table
from specdec_plugins.model.spec import Attention, FeedForward, ModelSpec, Norm, Output, Symbols


def checkpoint_of(model: Model) -> Checkpoint:
    """The checkpoint of ``--arch transformer`` for a model. Raises ValueError for what fairseq's Transformer does not compute."""
    from specdec_plugins.decoding.backends.torch.arrays import tensors as as_tensors

    spec, tensors = model.spec, arrays({name: array(each) for name, each in model.tensors.items()})
    first, prenorm = spec.encoder, {side: side.norms == "before" for side in (spec.encoder, spec.decoder)}
    if faults := fairseq_faults(spec):
        raise ValueError("fairseq's Transformer does not compute " + "; ".join(faults))
    embedding = tensors["decoder.embed_tokens.weight"]
    tied = same(tensors["decoder.output_projection.weight"], embedding)
    args: dict[str, Any] = {
        "arch": "transformer",
        "activation_fn": {canonical: name for name, canonical in reversed(ACTIVATIONS.items())}[first.feed_forward.activation],
        "max_source_positions": spec.encoder.max_positions,
        "max_target_positions": spec.decoder.max_positions,
        "no_scale_embedding": first.embedding.scale == 1.0,
        "layernorm_embedding": first.embedding.norm,
        "no_decoder_final_norm": prenorm[spec.decoder] and not spec.decoder.final_norm,
        "share_decoder_input_output_embed": tied,
        "share_all_embeddings": tied and same(tensors["encoder.embed_tokens.weight"], embedding),
        "decoder_input_dim": spec.decoder.width,
        "decoder_output_dim": spec.decoder.width,
    }
    # A version 1 encoder has no norm after its last layer.
    version = np.array([3.0 if first.final_norm or not prenorm[first] else 1.0], np.float32)
    weights: Tensors = {**tensors, "encoder.version": version}
    weights["decoder.version"] = np.array([3.0], np.float32)
    for name, side in sides(spec).items():
        positions = f"{name}.embed_positions.weight"
        weights[positions], table = weights[positions][: side.max_positions + OFFSET], sinusoidal_table(side)
        learned = table is None or not same(weights[positions], table)
        if not learned:
            del weights[positions]  # fairseq computes it
        args |= {
            f"{name}_embed_dim": side.width,
            f"{name}_ffn_embed_dim": side.feed_forward.width,
            f"{name}_layers": side.layers,
            f"{name}_attention_heads": side.attention.heads,
            f"{name}_normalize_before": prenorm[side],
            f"{name}_learned_pos": learned,
        }
    return {"args": argparse.Namespace(**args), "cfg": None, "model": as_tensors(weights)}


def fairseq_faults(spec: ModelSpec) -> list[str]:
    """The features of a spec that fairseq's Transformer does not compute."""
    symbols, both = spec.symbols, (spec.encoder, spec.decoder)
    activations = {side.feed_forward.activation for side in both}
    unlike = {
        "the activation swish": "swish" in activations,  # its own fails
        "two activations": len(activations) > 1,
        "an output bias": spec.output.bias,
        "a zero embedding at the start": spec.zero_start,
        f"a start token that is not eos ({symbols.start})": symbols.start != symbols.eos,
        f"pad and eos as {symbols.pad} and {symbols.eos}": (symbols.pad, symbols.eos) != (PAD, Symbols().eos),
        "forced or suppressed tokens": bool(spec.forced or spec.suppressed),
        "several tokens that end outputs": bool(spec.ends),
        "the ends of outputs by other rules than its own": spec.outputs.library != "fairseq",
        "an embedding norm on one side": spec.encoder.embedding.norm != spec.decoder.embedding.norm,
        "scaled or capped logits": replace(spec.output, bias=False) != Output(),
    }
    scales = {side.embedding.scale / math.sqrt(side.width) for side in both}
    plain = {side.embedding.scale for side in both} == {1.0}
    unlike["embeddings scaled by neither 1 nor the root of their width"] = scales != {1.0} and not plain
    for name, side in sides(spec).items():
        offset = side.embedding.offset
        unlike[f"positions of the {name} from row {offset} on" if offset is not None else f"no positions of the {name}"] = (
            offset != OFFSET
        )
        unlike[f"a norm after the {name}'s last layer with norms after each part"] = side.final_norm and side.norms == "after"
        usual = Attention(side.attention.heads), FeedForward(side.feed_forward.width, side.feed_forward.activation), Norm()
        parts = side.attention, side.feed_forward, side.norm
        unlike[f"the {name}'s attention, feed-forward layers or norms"] = (
            parts != usual or side.norms == "both" or bool(side.local)
        )
    return [what for what, is_so in unlike.items() if is_so]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tensors are equal in value, as the first one's data type rounds them."""
    return one is other or equal(one, other.astype(one.dtype))
