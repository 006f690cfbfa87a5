"""A translation model on disk: verifier, drafter, dictionaries and BPE codes, as one folder or as parts by path.

A model folder holds ``model.json``, the dictionaries and codes, and the weights in safetensors. ``model.json`` keeps the settings
of both models in fairseq's words, so a folder and a pair of fairseq checkpoints are read by the same code. A tensor that a
model has twice (``aliases``) or that the drafter has in common with the verifier (``shared``) is stored once.
"""

import argparse
import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.formats import fairseq as checkpoint
from specdec_plugins.formats.fairseq import Checkpoint, CheckpointError
from specdec_plugins.text.vocabulary import Vocabulary

FORMAT = 1
MAX_JSON_BYTES = 1_000_000
# What of fairseq's settings says how a model computes; the rest tells of its training.
MODEL_SETTINGS = (
    "arch", "activation_fn", "max_source_positions", "max_target_positions", "no_scale_embedding",
    "layernorm_embedding", "src_embedding_copy", "successor_width", "share_all_embeddings", "share_decoder_input_output_embed",
    "no_token_positional_embeddings", "no_decoder_final_norm", "adaptive_input", "adaptive_softmax_cutoff",
    "cross_self_attention", "no_cross_attention", "quant_noise_pq", "scale_attn", "scale_fc", "scale_heads",
    "scale_resids", "full_context_alignment", "pooler_activation_fn",
    *(f"{side}_{name}" for side in ("encoder", "decoder") for name in (
        "embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before", "learned_pos",
    )),
    "decoder_input_dim", "decoder_output_dim",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A verifier (`checkpoint.load`'s dictionary), the drafter if there is one, and what turns text into their tokens."""

    name: str
    verifier: Checkpoint
    drafter: Checkpoint | None
    source: Vocabulary
    target: Vocabulary
    source_lang: str
    target_lang: str
    codes: Path | None
    block_size: int  # drafted tokens an iteration, if nobody says otherwise: what the drafter was trained with


def load_folder(folder: str | os.PathLike[str]) -> Pair:
    """Read a model folder. Raises ValueError naming the file at fault."""
    folder = Path(folder)
    description = folder / "model.json"
    try:
        if description.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"{description}: larger than {MAX_JSON_BYTES:,} bytes")
        content = json.loads(description.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"{description}: format {content['format']}; this version reads format {FORMAT}")
        source_lang, target_lang = content["source_lang"], content["target_lang"]
        files = {name: _inside(folder, content[name]) for name in ("source_dict", "target_dict")}
        codes = _inside(folder, content["codes"]) if content["codes"] else None
        block_size = int(content["block_size"])
        verifier = _load_model(folder, content["verifier"], {})
        drafter = content["drafter"] and _load_model(folder, content["drafter"], verifier["model"])
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: not a model folder (no {Path(error.filename).name} in it)") from None
    except NotADirectoryError:
        raise ValueError(f"{folder}: not a model folder (not a folder)") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{description}: damaged or not ours ({type(error).__name__}: {error})") from None
    pair = Pair(
        str(folder), verifier, drafter or None, Vocabulary(files["source_dict"]), Vocabulary(files["target_dict"]),
        str(source_lang), str(target_lang), codes, block_size,
    )  # fmt: skip
    return _checked(pair)


def load_parts(
    verifier: str, drafter: str | None, data: str, source_lang: str | None, target_lang: str | None, codes: str | None
) -> Pair:
    """Read fairseq checkpoints with the dictionaries of a binarised data folder. Raises ValueError with what does not fit."""
    model = checkpoint.load(verifier)
    settings = checkpoint.task_settings(model)
    source_lang = source_lang or settings.get("source_lang")
    target_lang = target_lang or settings.get("target_lang")
    if not source_lang or not target_lang:
        raise ValueError(f"{verifier} does not say its languages: give --source-lang and --target-lang")
    draft_model = checkpoint.load(drafter) if drafter else None
    block_size = int(checkpoint.task_settings(draft_model).get("block_size") or 25) if draft_model else 0
    source, target = (Vocabulary(Path(data) / f"dict.{lang}.txt") for lang in (source_lang, target_lang))
    pair = Pair(
        verifier, model, draft_model, source, target, source_lang, target_lang, Path(codes) if codes else None, block_size
    )
    return _checked(pair)


def save_folder(pair: Pair, folder: str | os.PathLike[str], half: bool = False) -> dict[str, int]:
    """Write a model folder, whole or not at all; with ``half`` in float16. Returns the size in bytes of each file.

    Raises ValueError if the folder exists, or a weight leaves float16's range.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already")
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        files = {"source_dict": f"dict.{pair.source_lang}.txt", "target_dict": f"dict.{pair.target_lang}.txt"}
        shutil.copyfile(pair.source.path, temporary / files["source_dict"])
        shutil.copyfile(pair.target.path, temporary / files["target_dict"])
        if pair.codes:
            shutil.copyfile(pair.codes, temporary / "codes")
        verifier = _save_model(temporary, "verifier", pair.verifier, {}, half)
        drafter = _save_model(temporary, "drafter", pair.drafter, pair.verifier["model"], half) if pair.drafter else None
        content = {
            "format": FORMAT, "source_lang": pair.source_lang, "target_lang": pair.target_lang, **files,
            "codes": "codes" if pair.codes else None, "block_size": pair.block_size, "verifier": verifier, "drafter": drafter,
        }  # fmt: skip
        (temporary / "model.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir())}


def _save_model(folder: Path, name: str, model: Checkpoint, others: Mapping[str, Tensor], half: bool) -> dict[str, Any]:
    """Write ``name``.safetensors, and return the model's entry in ``model.json``."""
    from safetensors.torch import save_file

    settings = vars(checkpoint.model_args(model))
    first: dict[tuple, str] = {}  # by the memory of a tensor, the first name it goes by
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    shared: list[str] = []
    for key, tensor in model["model"].items():
        twin = others.get(key)
        original = first.setdefault((tensor.data_ptr(), tensor.shape), key)
        if twin is not None and twin.shape == tensor.shape and torch.equal(twin, tensor):
            shared.append(key)
        elif original != key and original in stored:
            aliases[key] = original
        else:
            stored[key] = tensor.half() if half and tensor.is_floating_point() else tensor.clone()
            if stored[key].is_floating_point() and not stored[key].isfinite().all():
                raise ValueError(f"{name}: {key} has numbers that are not finite{' in float16' if half else ''}")
    file = f"{name}.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, folder / file)
    kept = {key: settings[key] for key in MODEL_SETTINGS if settings.get(key) is not None}
    kept["arch"] = settings.get("arch") or settings.get("_name")
    return {"weights": file, "settings": kept, "aliases": aliases, "shared": shared}


def _load_model(folder: Path, entry: Mapping[str, Any], others: Mapping[str, Tensor]) -> Checkpoint:
    """A model as `checkpoint.load` would give it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = _inside(folder, entry["weights"])
    if not path.exists():  # safetensors' own error does not say which file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        weights: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file, or a damaged one ({error})") from None
    # Tied tensors must be one in every dtype, so halves are widened before they are tied.
    weights = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in weights.items()}
    weights.update({key: others[key] for key in entry["shared"]})
    weights.update({key: weights[original] for key, original in entry["aliases"].items()})
    return {"model": weights, "args": argparse.Namespace(**entry["settings"]), "cfg": None}


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; a description from outside must not point elsewhere."""
    if Path(name).name != name or name == "..":
        raise ValueError(f"{folder / 'model.json'}: '{name}' is not the name of a file in the folder")
    return folder / name


def _checked(pair: Pair) -> Pair:
    """The pair, if its dictionaries fit its models."""
    faults = []
    dictionaries = {"source": pair.source, "target": pair.target}
    for role, model in (("verifier", pair.verifier), ("drafter", pair.drafter)):
        if model is None:
            continue
        args = checkpoint.model_args(model)
        block = (getattr(args, "arch", None) or getattr(args, "_name", None)) in checkpoint.DRAFTERS
        if block != (role == "drafter"):
            faults.append(f"the {role} is {'a' if block else 'no'} block drafter")
        for side, half in (("source", "encoder"), ("target", "decoder")):
            embedding, vocabulary = model["model"].get(f"{half}.embed_tokens.weight"), dictionaries[side]
            if embedding is not None and embedding.size(0) != len(vocabulary):
                faults.append(f"{vocabulary.path} has {len(vocabulary):,} entries, the {role}'s {half} {embedding.size(0):,}")
        marks = (model.get("task_state") or {}).get("dictionaries")
        for side, mark in zip(("source", "target"), marks or ()):
            if mark != dictionaries[side].fingerprint():
                faults.append(f"the {role} was trained with another {side} dictionary than {dictionaries[side].path}")
    if faults:
        raise CheckpointError(f"{pair.name}: " + "; ".join(faults))
    return pair
