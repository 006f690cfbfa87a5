"""Make a block drafter's initial checkpoint from a verifier's: the library behind ``encoder_initial.py``.

The drafter's encoder and shared embeddings are the verifier's, so that before the first update it computes the
verifier's encoder function; the decoder starts fresh, or from the verifier's with ``--init-decoder``. The result is
a complete checkpoint, which ``fairseq-train`` restores strictly (``--finetune-from-model`` or ``--restore-file``).
"""

import argparse
import copy
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from specdec_plugins.extras import needed

# What two Transformers must have in common for the weights of one half to mean the same in the other.
HALF_SETTINGS = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")
COMMON_SETTINGS = ("activation_fn", "no_scale_embedding", "layernorm_embedding")

Origins = dict[str, str]  # parameter name -> "copied", "converted" or "fresh"


@dataclass(frozen=True)
class Options:
    verifier: str
    output: str
    data: str | None
    init_decoder: bool
    seed: int
    drafter: list[str]  # options of --arch block that override the verifier's settings


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="encoder_initial.py",
        description="Make a block drafter's initial checkpoint from a verifier.",
        epilog="Any other option is one of the drafter's, as for fairseq-train: --arch block_causal or block (the default), "
        "--freeze-encoder, --decoder-layers N, --successor-width R (block_causal), --src-embedding-copy and --apply-bert-init "
        "(block), or fairseq's own, such as --encoder-learned-pos; what is not given is as in the verifier.",
        allow_abbrev=False,
    )
    parser.add_argument("--verifier", required=True, metavar="PT", help="fairseq checkpoint of the verifier")
    parser.add_argument("--output", required=True, metavar="PT", help="where the drafter's initial checkpoint goes")
    parser.add_argument("--data", metavar="DIR", help="binarised data of the drafter, to check its dictionaries")
    parser.add_argument("--init-decoder", action="store_true", help="start the decoder from the verifier's, too")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed of what starts fresh")
    known, drafter = parser.parse_known_args(argv)
    if not 0 <= known.seed < 2**63:
        parser.error(f"--seed {known.seed} is not from 0 to 2^63 - 1")
    try:
        origins, sizes = run(Options(**vars(known), drafter=drafter))
    except (ValueError, OSError) as error:
        print(f"encoder_initial.py: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(origins, sizes)))
    print(f"wrote {known.output}")
    return 0


def run(options: Options) -> tuple[Origins, dict[str, int]]:
    """Write the initial checkpoint; returns each parameter's origin and number of elements.

    Raises ValueError with every reason at once if verifier and drafter do not fit.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # importing it reports optional packages that are missing

    import torch

    from specdec_plugins.formats import checkpoint

    verifier = checkpoint.load(options.verifier)
    verifier_args = checkpoint.model_args(verifier)
    args = drafter_args(verifier_args, options.drafter)
    weights = verifier["model"]
    if "encoder.layers.0.self_attn.q_proj.weight" not in weights or not hasattr(verifier_args, "decoder_layers"):
        raise ValueError(f"{options.verifier} is not a fairseq Transformer with an encoder")
    faults = misfits(verifier_args, args, options.init_decoder)
    dictionaries, dictionary_faults = load_dictionaries(verifier, weights, options.data)
    if faults or dictionary_faults:
        raise ValueError(f"{options.verifier} cannot start this drafter: " + "; ".join(faults + dictionary_faults))

    torch.manual_seed(options.seed)
    drafter = architectures()[args.arch][0].build_model(args, dictionaries)
    origins = copy_weights(drafter, weights, verifier_args, options.init_decoder)
    state = drafter.state_dict()
    mark_verifier(state, verifier)
    checkpoint.save(complete_checkpoint(verifier, args, state), options.output)
    return origins, {name: tensor.numel() for name, tensor in drafter.named_parameters()}


def mark_verifier(state: dict[str, Any], verifier: dict[str, Any]) -> None:
    """Write down in a drafter's weights which verifier they are for, if it is one that the engine computes."""
    import torch

    from specdec_plugins.formats import fairseq
    from specdec_plugins.formats.spec import Model, fingerprint

    try:
        model = fairseq.read(verifier, "verifier")
    except ValueError:
        return  # it trains all the same
    if isinstance(model, Model):
        state["block_verifier"] = torch.tensor(list(bytes.fromhex(fingerprint(model))), dtype=torch.uint8)


def architectures() -> dict[str, tuple[Any, Callable[[argparse.Namespace], None]]]:
    """The drafters that ``--arch`` can name: model and defaults."""
    from specdec_plugins.models.block import BlockDrafterModel, block_architecture
    from specdec_plugins.models.block_causal import CausalBlockDrafterModel, block_causal_architecture

    return {
        "block": (BlockDrafterModel, block_architecture),
        "block_causal": (CausalBlockDrafterModel, block_causal_architecture),
    }


def drafter_args(verifier_args: argparse.Namespace, overrides: list[str]) -> argparse.Namespace:
    """The drafter's model settings: the verifier's, with ``overrides`` from the command line on top."""
    parser = argparse.ArgumentParser(prog="encoder_initial.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", default="block", choices=list(architectures()))
    arch = parser.parse_known_args(overrides)[0].arch
    model, complete = architectures()[arch]
    model.add_args(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only what was given overrides
    given = vars(parser.parse_args(overrides))
    args = argparse.Namespace(**{**vars(verifier_args), **given, "arch": arch, "_name": arch})
    complete(args)
    return args


def misfits(verifier: argparse.Namespace, drafter: argparse.Namespace, init_decoder: bool) -> list[str]:
    """Every reason why the verifier's weights would not mean the same in the drafter."""
    from specdec_plugins.models.block import refuse_unsupported

    faults = []

    def compare(setting: str) -> None:
        ours, theirs = getattr(drafter, setting, None), getattr(verifier, setting, None)
        if (ours or False) != (theirs or False):
            faults.append(f"{setting.replace('_', '-')} is {theirs} in the verifier, {ours} in the drafter")

    for setting in COMMON_SETTINGS:
        compare(setting)
    for half in ("encoder", "decoder") if init_decoder else ("encoder",):
        for setting in HALF_SETTINGS:
            compare(f"{half}_{setting}")
        learned = f"{half}_learned_pos"
        if getattr(verifier, learned, False) and not getattr(drafter, learned, False):
            faults.append(f"{learned.replace('_', '-')} is True in the verifier, False in the drafter")
    compare("encoder_layers")
    if drafter.decoder_layers > verifier.decoder_layers and init_decoder:
        faults.append(f"--init-decoder: {drafter.decoder_layers} layers from a verifier that has {verifier.decoder_layers}")
    if drafter.share_all_embeddings and not getattr(verifier, "share_all_embeddings", False):
        faults.append("share-all-embeddings is False in the verifier, True in the drafter")
    for half, limit in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        ours, theirs = getattr(drafter, limit), getattr(verifier, limit)
        if getattr(verifier, f"{half}_learned_pos", False) and (half == "encoder" or init_decoder) and ours > theirs:
            faults.append(f"{limit.replace('_', '-')} is {theirs} in the verifier, {ours} in the drafter")
    if getattr(drafter, "successor_width", 0) < 0:
        faults.append(f"successor-width is {drafter.successor_width}")
    try:
        refuse_unsupported(drafter)
    except ValueError as error:
        faults.append(str(error))
    return faults


def load_dictionaries(verifier, weights, data: str | None) -> tuple[SimpleNamespace, list[str]]:
    """Source and target dictionary for the drafter, as ``build_model`` wants them, and what is wrong with them.

    With ``data`` they are read from there and held against the verifier's: its embedding's rows and, where its own
    data folder can still be read, symbol by symbol. Without, stand-ins of the right size serve to build the model.
    """
    with needed("train", "an initial drafter"):
        from fairseq.data import Dictionary
        from fairseq.data.data_utils import infer_language_pair

    from specdec_plugins.formats import checkpoint

    task = checkpoint.task_settings(verifier)
    names = task.get("source_lang"), task.get("target_lang")
    if data is not None and None in names:  # fairseq does not write down a pair that it was not told
        names = infer_language_pair(data)
        if None in names:
            raise ValueError(f"{data}: no binarised data of a language pair in it")
    languages = dict(zip(("source", "target"), names))
    rows = {
        "source": weights["encoder.embed_tokens.weight"].size(0),
        "target": weights["decoder.embed_tokens.weight"].size(0),
    }
    loaded, faults = {}, []
    for side, language in languages.items():
        if data is None:
            loaded[side] = Dictionary()
            for index in range(len(loaded[side]), rows[side]):
                loaded[side].add_symbol(f"symbol{index}")
            continue
        path = os.path.join(data, f"dict.{language}.txt")
        loaded[side] = Dictionary.load(path)
        own_path = os.path.join(str(task.get("data")).split(os.pathsep)[0], f"dict.{language}.txt")
        if len(loaded[side]) != rows[side]:
            faults.append(f"{path} has {len(loaded[side])} symbols, the verifier {rows[side]}")
        elif os.path.exists(own_path) and Dictionary.load(own_path).symbols != loaded[side].symbols:
            faults.append(f"{path} and the verifier's {own_path} have different symbols")
    return SimpleNamespace(source_dictionary=loaded["source"], target_dictionary=loaded["target"]), faults


def copy_weights(drafter, weights: dict[str, Any], verifier_args: argparse.Namespace, init_decoder: bool) -> Origins:
    """Fill ``drafter`` in place from the verifier's ``weights``; returns where each parameter came from."""
    import torch

    from specdec_plugins.decoding.networks.decoder import decoder_layer_map, rename_layer

    kept = decoder_layer_map(len(drafter.decoder.layers), verifier_args.decoder_layers)
    origins: Origins = {}
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():  # a shared embedding once, by its encoder name
            in_encoder = name.startswith("encoder.")
            wanted = in_encoder or init_decoder
            source = name if in_encoder else rename_layer(name, kept)
            if wanted and source in weights:
                value, origin = weights[source], "copied"
                if name.endswith("embed_positions.weight"):
                    value = value[: parameter.size(0)]
            elif wanted and name.endswith("embed_positions.weight"):
                value, origin = sinusoidal_table(parameter), "converted"
            elif in_encoder:
                raise ValueError(f"the verifier has no {name}")
            else:
                origins[name] = "fresh"
                continue
            parameter.copy_(value)
            origins[name] = origin
    return origins


def sinusoidal_table(learned):
    """The sinusoidal positions that a verifier without learned ones adds, in the shape of a ``learned`` table (P, D)."""
    from fairseq.modules import SinusoidalPositionalEmbedding

    rows, width = learned.shape
    pad = 1  # fairseq's padding index, the row below which positions start
    return SinusoidalPositionalEmbedding.get_embedding(rows, width, pad)


def complete_checkpoint(verifier: dict[str, Any], args: argparse.Namespace, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of a model that has not been trained: what fairseq restores, and nothing of the verifier's run."""
    from specdec_plugins.formats import checkpoint

    task = {"_name": "translation_lev_modified", "noise": "block_mask"}
    criterion = {"_name": "glat_loss" if args.arch == "block" else "block_loss", "label_smoothing": 0.0}
    settings: dict[str, Any] = {"args": None, "cfg": None}
    if verifier.get("args") is not None:
        old = {**vars(verifier["args"]), **vars(args), "task": task["_name"], "noise": task["noise"]}
        settings["args"] = argparse.Namespace(**{**old, "criterion": criterion["_name"]})
    else:
        settings["cfg"] = copy.deepcopy(dict(verifier["cfg"]))
        settings["cfg"].update(model=args, task={**dict(verifier["cfg"]["task"]), **task}, criterion=criterion)
    return {**checkpoint.untrained(), **settings, "model": state}


def table(origins: Origins, sizes: dict[str, int]) -> Iterator[str]:
    """Lines that say how many parameters of each part were copied, converted, or start fresh."""
    parts: dict[tuple[str, str], int] = {}
    for name, origin in origins.items():
        part = ".".join(name.split(".")[: 3 if ".layers." in name else 2])
        parts[part, origin] = parts.get((part, origin), 0) + sizes[name]
    width = max(len(part) for part, _ in parts)
    yield f"{'part':<{width}}  {'origin':<9}  {'parameters':>12}"
    for (part, origin), size in parts.items():
        yield f"{part:<{width}}  {origin:<9}  {size:>12,}"
