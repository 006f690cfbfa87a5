"""The command ``encoder_initial.py``: make the initial checkpoint of ``--arch block`` from a verifier's.

The drafter's encoder and shared embeddings are copied from the verifier, so its encoder initially computes the same function; the
decoder is fresh. The checkpoint is complete: ``fairseq-train`` restores it strictly (``--finetune-from-model`` or
``--restore-file``).
"""

import argparse
import copy
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import Parser, command, whole
from specdec_plugins.extras import needed
from specdec_plugins.fields import Fault
from specdec_plugins.formats.errors import printable

# Settings that two Transformers must share for an encoder's weights to mean the same in both.
SETTINGS = tuple(
    """
    activation_fn no_scale_embedding layernorm_embedding encoder_embed_dim encoder_ffn_embed_dim encoder_attention_heads
    encoder_normalize_before encoder_layers
""".split()
)

REQUIRED = ("encoder.layers.0.self_attn.q_proj.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


class InitialParser(Parser):
    """Collects options that it does not know in ``drafter``: they are the drafter's."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[override]
        options, drafter = self.parse_known_args(args, namespace)
        return argparse.Namespace(**vars(options), drafter=drafter)


def parser() -> Parser:
    p = InitialParser(
        prog="encoder_initial.py",
        description="Make a block drafter's initial checkpoint from a verifier.",
        epilog="Further options are the drafter's, as for fairseq-train --arch block: --src-embedding-copy, --apply-bert-init, "
        "or fairseq's own, such as --decoder-layers N and --encoder-learned-pos. Defaults are the verifier's settings.",
    )
    add = p.add_argument
    add("--verifier", required=True, metavar="PT", help="fairseq checkpoint of the verifier")
    add("--output", required=True, metavar="PT", help="the drafter's initial checkpoint")
    add("--data", metavar="DIR", help="binarised data of the drafter, to check its dictionaries")
    add("--seed", type=whole, default=1, metavar="N", help="random seed of fresh parameters")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    if not 0 <= options.seed < 2**63:
        yield "seed", f"{options.seed} is not from 0 to 2^63 - 1"


def run(options: argparse.Namespace) -> None:
    """Write the initial checkpoint and print where its parameters come from. Raises ValueError naming every misfit."""
    ready.readable(options.verifier)
    ready.folder(options.data)
    ready.writable(options.output, parents=True)
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import reports missing optional packages

    import torch

    from specdec_plugins.formats import checkpoint, fairseq
    from specdec_plugins.formats.spec import Model, fingerprint
    from specdec_plugins.models.block import BlockDrafterModel

    verifier = checkpoint.load(options.verifier)
    verifier_args = checkpoint.model_args(verifier)
    args = drafter_args(verifier_args, options.drafter)
    weights = verifier["model"]
    if not {*REQUIRED} <= {*weights} or not hasattr(verifier_args, "decoder_layers"):
        raise ValueError(f"{options.verifier} is not a fairseq Transformer with an encoder")
    dictionaries, faults = load_dictionaries(verifier, options.data)
    if faults := misfits(verifier_args, args) + faults:
        raise ValueError(f"{options.verifier} cannot initialise this drafter: " + "; ".join(faults))

    torch.manual_seed(options.seed)
    try:
        drafter = BlockDrafterModel.build_model(args, dictionaries)
    except AssertionError as error:  # such as heads that do not divide the width
        raise ValueError(f"fairseq cannot build this drafter: {error}") from None
    origins = copy_weights(drafter, weights)
    state = drafter.state_dict()
    with suppress(ValueError):  # a verifier that the engine does not support can still train a drafter
        model = fairseq.read(verifier, "verifier")
        if isinstance(model, Model):
            state["block_verifier"] = torch.tensor(list(bytes.fromhex(fingerprint(model))), dtype=torch.uint8)
    checkpoint.save(complete_checkpoint(verifier, args, state), options.output)
    print(f"{printable(options.output)}: {', '.join(f'{count:,} parameters {origin}' for origin, count in origins.items())}")


def drafter_args(verifier_args: argparse.Namespace, overrides: list[str]) -> argparse.Namespace:
    """The drafter's model settings: the verifier's, with ``overrides`` from the command line."""
    from specdec_plugins.models.block import BlockDrafterModel, block_architecture

    parser = Parser("encoder_initial.py", add_help=False)
    BlockDrafterModel.add_args(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only given options override
    given = vars(parser.parse_args(overrides))
    args = argparse.Namespace(**{**vars(verifier_args), **given, "arch": "block", "_name": "block"})
    block_architecture(args)
    return args


def misfits(verifier: argparse.Namespace, drafter: argparse.Namespace) -> list[str]:
    """Every reason why the verifier's weights would not mean the same in the drafter."""
    from specdec_plugins.models.block import refuse_unsupported

    different = [name for name in SETTINGS if (getattr(drafter, name, None) or False) != (getattr(verifier, name, None) or False)]
    if getattr(verifier, "encoder_learned_pos", False):
        different += ["encoder_learned_pos"] * (not getattr(drafter, "encoder_learned_pos", False))
        different += ["max_source_positions"] * (drafter.max_source_positions > verifier.max_source_positions)
    if drafter.share_all_embeddings and not getattr(verifier, "share_all_embeddings", False):
        different.append("share_all_embeddings")
    pairs = ((name.replace("_", "-"), getattr(verifier, name, None), getattr(drafter, name, None)) for name in different)
    faults = [f"{name} is {theirs} in the verifier, {ours} in the drafter" for name, theirs, ours in pairs]
    try:
        refuse_unsupported(drafter)
    except ValueError as error:
        faults.append(str(error))
    return faults


def load_dictionaries(verifier: dict[str, Any], data: str | None) -> tuple[SimpleNamespace, list[str]]:
    """Source and target dictionary of the drafter, in the form that ``build_model`` takes, and what is wrong with them.

    Read from ``data``, they must have a symbol per row of the verifier's embeddings and, if its own data folder still exists, the
    same symbols. Without ``data``, placeholders of the right size serve to build the model.
    """
    with needed("train", "an initial drafter"):
        from fairseq.data import Dictionary
        from fairseq.data.data_utils import infer_language_pair

    from specdec_plugins.formats import checkpoint

    task = checkpoint.task_settings(verifier)
    names = task.get("source_lang"), task.get("target_lang")
    if data is not None and None in names:  # fairseq does not record languages that it inferred
        names = infer_language_pair(data)
        if None in names:
            raise ValueError(f"{data} contains no binarised data of a language pair")
    loaded, faults = [], []
    for half, language in zip(("encoder", "decoder"), names):
        rows = verifier["model"][f"{half}.embed_tokens.weight"].size(0)
        if data is None:
            dictionary = Dictionary()
            for index in range(len(dictionary), rows):
                dictionary.add_symbol(f"symbol{index}")
        else:
            path, own = (
                os.path.join(folder, f"dict.{language}.txt") for folder in (data, str(task.get("data")).split(os.pathsep)[0])
            )
            dictionary = Dictionary.load(path)
            if len(dictionary) != rows:
                faults.append(f"{path} has {len(dictionary)} symbols, the verifier {rows}")
            elif os.path.exists(own) and Dictionary.load(own).symbols != dictionary.symbols:
                faults.append(f"{path} and the verifier's {own} have different symbols")
        loaded.append(dictionary)
    return SimpleNamespace(source_dictionary=loaded[0], target_dictionary=loaded[1]), faults


def copy_weights(drafter, weights: dict[str, Any]) -> Counter[str]:
    """Fill ``drafter`` in place from the verifier's ``weights``; counts the numbers copied, converted and left fresh."""
    import torch
    from fairseq.modules import SinusoidalPositionalEmbedding

    origins = Counter[str]()
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():  # a shared embedding appears once, by its encoder name
            positions = name.endswith("embed_positions.weight")
            if not name.startswith("encoder."):
                origins["fresh"] += parameter.numel()
                continue
            if name in weights:
                value, origin = weights[name], "copied"
                if positions:
                    value = value[: parameter.size(0)]
            elif positions:  # the verifier's are sinusoidal; 1 is fairseq's padding index
                value, origin = SinusoidalPositionalEmbedding.get_embedding(*parameter.shape, 1), "converted"
            else:
                raise ValueError(f"the verifier has no {name}")
            if value.shape != parameter.shape:
                raise ValueError(
                    f"the verifier's {name} is {tuple(value.shape)}, not {tuple(parameter.shape)} as its settings say"
                )
            parameter.copy_(value)
            origins[origin] += parameter.numel()
    return origins


def complete_checkpoint(verifier: dict[str, Any], args: argparse.Namespace, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of an untrained model that fairseq restores, without the state of the verifier's training."""
    from specdec_plugins.formats import checkpoint

    task = {"_name": "translation_lev_modified", "noise": "block_mask"}
    criterion = {"_name": "glat_loss", "label_smoothing": 0.0}
    settings: dict[str, Any] = {"args": None, "cfg": None}
    if verifier.get("args") is not None:
        old = {**vars(verifier["args"]), **vars(args), "task": task["_name"], "noise": task["noise"]}
        settings["args"] = argparse.Namespace(**{**old, "criterion": criterion["_name"]})
    else:
        settings["cfg"] = copy.deepcopy(dict(verifier["cfg"]))
        settings["cfg"].update(model=args, task={**dict(verifier["cfg"]["task"]), **task}, criterion=criterion)
    return {**checkpoint.untrained(), **settings, "model": state}


main = command(parser, run, check)
