"""The one file that knows fairseq's ``.pt`` format: safe loading, atomic saving, averaging.

Knows torch and the shape of fairseq's checkpoint dictionary, but never imports fairseq. A checkpoint is untrusted
input: it is read with ``weights_only`` on, and only fairseq's own plain containers are allow-listed.
"""

import argparse
import math
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from specdec_plugins.decoding.backends.torch.transformer import ACTIVATIONS, Config

Checkpoint = dict[str, Any]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and every fault found."""


def allow_fairseq_types() -> None:
    """Let ``torch.load(weights_only=True)`` read the containers in which fairseq stores a model's settings.

    None of them runs code when unpickled: a namespace and, in checkpoints of fairseq 1.0.0a0, omegaconf's nodes.
    """
    types: list[Any] = [argparse.Namespace]
    try:
        from omegaconf import DictConfig, ListConfig, nodes
        from omegaconf.base import ContainerMetadata, Metadata
    except ImportError:
        pass
    else:
        # The engine's side can do without omegaconf; what is not installed cannot be asked for either.
        from collections import defaultdict

        values = [nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode, nodes.IntegerNode, nodes.StringNode]
        types += [DictConfig, ListConfig, ContainerMetadata, Metadata, Any, dict, list, int, defaultdict, *values]
    torch.serialization.add_safe_globals(types)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a fairseq checkpoint onto the CPU.

    Raises CheckpointError for a missing, truncated, unsafe or foreign file.
    """
    allow_fairseq_types()
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: refused: {_refusal(error)}") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        # A cut or foreign file can fail at any step of reading; to the user every way means the same.
        raise CheckpointError(f"{path}: not a readable checkpoint, or a damaged one ({type(error).__name__})") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise CheckpointError(f"{path}: not a fairseq checkpoint (no 'model' in it)")
    if checkpoint.get("args") is None and checkpoint.get("cfg") is None:
        raise CheckpointError(f"{path}: not a fairseq checkpoint (neither 'args' nor 'cfg' in it)")
    return checkpoint


def _refusal(error: pickle.UnpicklingError) -> str:
    """The line of torch's message that names what the file asked to run, without its advice to run it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "global" in line.lower()), "it asks for more than weights and settings")


def model_args(checkpoint: Checkpoint) -> argparse.Namespace:
    """The model's settings as a namespace, whichever fairseq version wrote them."""
    settings = checkpoint["args"] if checkpoint.get("args") is not None else checkpoint["cfg"]["model"]
    return argparse.Namespace(**(vars(settings) if isinstance(settings, argparse.Namespace) else dict(settings)))


def task_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The task's settings (data folder, languages), whichever fairseq version wrote them."""
    return dict(vars(checkpoint["args"])) if checkpoint.get("args") is not None else dict(checkpoint["cfg"]["task"])


# Families whose forward the engine computes, by the first part of their --arch.
DRAFTERS = ("block", "block_causal")  # architectures that are drafters, and the files in `drafters/` that decode with them
ENGINE_ARCHITECTURES = ("transformer", "bart", "mbart", *DRAFTERS)
# Settings that change the function in a way that the engine does not compute, with the values that do not.
ENGINE_SETTINGS: dict[str, tuple[Any, ...]] = {
    "adaptive_input": (False,),
    "adaptive_softmax_cutoff": (None,),
    "cross_self_attention": (False,),
    "no_cross_attention": (False,),
    "no_token_positional_embeddings": (False,),
    "quant_noise_pq": (0,),
    "scale_attn": (False,),
    "scale_fc": (False,),
    "scale_heads": (False,),
    "scale_resids": (False,),
    "full_context_alignment": (False,),
}


def engine_model(checkpoint: Checkpoint, name: str) -> tuple[dict[str, torch.Tensor], Config]:
    """A checkpoint's weights in fairseq's present naming, and what the engine must know of its settings.

    ``name`` is what errors call it. Raises CheckpointError with all that the engine does not support.
    """
    args = vars(model_args(checkpoint))
    arch = str(args.get("arch") or args.get("_name") or "")
    faults = []
    if arch.split("_")[0] not in ENGINE_ARCHITECTURES or arch.startswith("transformer_lm"):
        faults.append(f"architecture '{arch}'; available: {', '.join(ENGINE_ARCHITECTURES)} and those named after them")
    for setting, harmless in ENGINE_SETTINGS.items():
        if args.get(setting) not in (None, *harmless):
            faults.append(f"--{setting.replace('_', '-')} {args[setting]}")
    activation = args.get("activation_fn") or "relu"
    if activation not in ACTIVATIONS:
        faults.append(f"--activation-fn {activation}; available: {', '.join(ACTIVATIONS)}")
    for part in ("input", "output"):
        width = args.get(f"decoder_{part}_dim")
        if width not in (None, args.get("decoder_embed_dim")):
            faults.append(f"--decoder-{part}-dim {width} with --decoder-embed-dim {args.get('decoder_embed_dim')}")
    needed = ("encoder_embed_dim", "decoder_embed_dim", "encoder_attention_heads", "decoder_attention_heads")
    faults += [f"no '{setting}' in its settings" for setting in needed if not args.get(setting)]
    if faults:
        raise CheckpointError(f"{name}: the engine does not support " + "; ".join(faults))

    weights = modern_names(checkpoint["model"])
    absent = [weight for weight in announced(args) if weight not in weights]
    if absent:
        raise CheckpointError(f"{name}: its settings announce weights that it has not: {', '.join(absent)}")
    form = int(weights["block_format"]) if "block_format" in weights else 1
    drafter = arch if arch in DRAFTERS else None
    if drafter and form not in (1, 2):
        raise CheckpointError(f"{name}: block drafter of format {form}; this version reads formats 1 and 2")
    unscaled = bool(args.get("no_scale_embedding")) or (drafter is not None and form == 1)
    return weights, Config(
        encoder_heads=int(args["encoder_attention_heads"]),
        decoder_heads=int(args["decoder_attention_heads"]),
        encoder_prenorm=bool(args.get("encoder_normalize_before")),
        decoder_prenorm=bool(args.get("decoder_normalize_before")),
        activation=activation,
        encoder_scale=1.0 if unscaled else math.sqrt(args["encoder_embed_dim"]),
        decoder_scale=1.0 if unscaled else math.sqrt(args["decoder_embed_dim"]),
        max_source_positions=int(args.get("max_source_positions") or 1024),
        max_target_positions=int(args.get("max_target_positions") or 1024),
        drafter=drafter,
    )


def announced(args: dict[str, Any]) -> Iterator[str]:
    """Weights that a model of these settings has beside those that every model has; by one each where they come in groups."""
    for side in ("encoder", "decoder"):
        if args.get(f"{side}_layers"):
            yield f"{side}.layers.{int(args[f'{side}_layers']) - 1}.fc1.weight"
        if args.get(f"{side}_learned_pos"):
            yield f"{side}.embed_positions.weight"
        if args.get("layernorm_embedding"):
            yield f"{side}.layernorm_embedding.weight"
    if args.get("share_decoder_input_output_embed") is False and not args.get("share_all_embeddings"):
        yield "decoder.output_projection.weight"


def modern_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names that fairseq 0.12 gives them; older versions named and packed some differently."""
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        side, _, rest = name.partition(".")
        number = re.fullmatch(r"(layers\.\d+)\.layer_norms\.(\d)\.(weight|bias)", rest)
        packed = re.fullmatch(r"(.*)in_proj_(weight|bias)", name)
        if number and side in norms:
            renamed[f"{side}.{number[1]}.{norms[side][int(number[2])]}.{number[3]}"] = tensor
        elif packed:
            for part, third in zip("qkv", tensor.chunk(3)):
                renamed[f"{packed[1]}{part}_proj.{packed[2]}"] = third
        elif name == "decoder.embed_out":
            renamed["decoder.output_projection.weight"] = tensor
        else:
            renamed[name] = tensor
    for side, first_with_norm in (("encoder", 2), ("decoder", 3)):
        # Before these versions nothing was normalised after the last layer, whatever the file holds.
        if float(weights.get(f"{side}.version", torch.ones(1)).flatten()[0]) < first_with_norm:
            renamed = {name: tensor for name, tensor in renamed.items() if not name.startswith(f"{side}.layer_norm.")}
    return renamed


def save(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint so that ``path`` is either absent, the old file or the whole new one."""
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        torch.save(checkpoint, temporary)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def average(paths: Sequence[str | os.PathLike[str]]) -> Checkpoint:
    """The mean of the weights of several checkpoints of one model, in the container of the last one.

    Floating-point tensors are summed in float64; counters and format markers are the last checkpoint's. Weights that
    share memory, as tied embeddings do, still share it. Optimizer state is dropped: it belongs to no average.
    """
    if not paths:
        raise ValueError("no checkpoints to average")
    sums: dict[str, torch.Tensor] = {}
    for path in paths:
        checkpoint = load(path)
        weights = checkpoint["model"]
        if sums and {name: tensor.shape for name, tensor in weights.items()} != {name: sums[name].shape for name in sums}:
            raise CheckpointError(f"{path}: not the same model as {paths[0]} (other parameter names or shapes)")
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double() if tensor.is_floating_point() else tensor
    means: dict[int, torch.Tensor] = {}  # by the memory of the last checkpoint's tensor
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = means.setdefault(tensor.data_ptr(), (sums[name] / len(paths)).to(tensor.dtype))
    return {**checkpoint, "last_optimizer_state": None}
