"""A translation model on disk: verifier, drafter, dictionaries and BPE codes, as one folder or as parts by path.

A model folder holds ``model.json`` (`Description`), dictionaries and codes, and the weights in safetensors by canonical names.
Tensors are stored once: one that a model has twice is in ``aliases``, one that the drafter has in common with the verifier in
``shared``, and a sinusoidal position table, which is computed, in ``sinusoidal``. A folder names code and never carries any.

Folders of format 1 hold fairseq's settings and names, and are read by the code that reads its checkpoints.
"""

import argparse
import dataclasses
import errno
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.formats import checkpoint, fairseq
from specdec_plugins.formats.description import (
    FORMAT,
    Description,
    DescriptionOfFormat1,
    DrafterEntry,
    EntryOfFormat1,
    VerifierEntry,
    read_description,
    read_json,
)
from specdec_plugins.formats.errors import brief, listed
from specdec_plugins.formats.files import whole
from specdec_plugins.formats.spec import (
    WEIGHT_DTYPES,
    DrafterModel,
    Model,
    aligned,
    fingerprint,
    own_shapes,
    sinusoidal_tables,
    tensor_faults,
    tensor_shapes,
)
from specdec_plugins.text.tokenizers import BYTE_LEVEL, TOKENIZERS
from specdec_plugins.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)
MAX_NAME_BYTES = 255
MAX_TEXT_BYTES = 100_000_000  # of a dictionary or BPE codes


@dataclass(frozen=True)
class Pair:
    """A verifier, the drafter if there is one, and what turns text into their tokens."""

    name: str
    verifier: Model
    drafter: DrafterModel | None
    source: Vocabulary
    target: Vocabulary
    source_lang: str
    target_lang: str
    codes: Path | None
    tokenizer: str = TOKENIZERS[0]

    @property
    def block_size(self) -> int:
        """Drafted tokens an iteration unless asked otherwise: what the drafter was trained with; 0 without one."""
        return self.drafter.block_size if self.drafter else 0


def load_folder(folder: str | os.PathLike[str]) -> Pair:
    """Read a model folder. Raises ValueError naming the file at fault."""
    folder = Path(folder)
    path = folder / "model.json"
    try:
        described = read_description(path)
        files = described.source_dict, described.target_dict, described.codes
        source, target, codes = (_inside(folder, name, MAX_TEXT_BYTES) if name else None for name in files)
        if source is None or target is None:
            raise ValueError(f"{path}: a dictionary has no name")
        if isinstance(described, Description):
            (verifier, drafter), tokenizer = _load_models(folder, described), described.tokenizer
        else:
            (verifier, drafter), tokenizer = _load_models_of_format_1(folder, described), TOKENIZERS[0]
        languages = described.source_lang, described.target_lang
        pair = Pair(str(folder), verifier, drafter, Vocabulary(source), Vocabulary(target), *languages, codes, tokenizer)
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: not a model folder (no {Path(error.filename).name} in it)") from None
    except NotADirectoryError:
        raise ValueError(f"{folder}: not a model folder (not a folder)") from None
    return _checked(pair)


def load_parts(
    verifier: str, drafter: str | None, data: str, source_lang: str | None, target_lang: str | None, codes: str | None
) -> Pair:
    """Read fairseq checkpoints with the dictionaries of a binarised data folder. Raises ValueError with what does not fit."""
    files = {"verifier": checkpoint.load(verifier)} | ({"drafter": checkpoint.load(drafter)} if drafter else {})
    settings = checkpoint.task_settings(files["verifier"])
    source_lang = source_lang or settings.get("source_lang")
    target_lang = target_lang or settings.get("target_lang")
    if not source_lang or not target_lang:
        raise ValueError(f"{verifier} does not say its languages: give --source-lang and --target-lang")
    source, target = (Vocabulary(Path(data) / f"dict.{lang}.txt") for lang in (source_lang, target_lang))
    faults, models = [], {}
    for role, path in (("verifier", verifier), ("drafter", drafter)):
        if not path:
            continue
        models[role] = fairseq.read(files[role], path)
        marks = (files[role].get("task_state") or {}).get("dictionaries")
        for side, dictionary, mark in zip(("source", "target"), (source, target), marks or ()):
            if mark != dictionary.fingerprint():
                faults.append(f"the {role} was trained with another {side} dictionary than {dictionary.path}")
    model, drafting = _roles(verifier, models["verifier"], models.get("drafter"))
    languages, tokenizer = (source_lang, target_lang), recorded_tokenizer(Path(data))
    if tokenizer == BYTE_LEVEL:  # its texts begin with this symbol
        model = dataclasses.replace(model, spec=dataclasses.replace(model.spec, forced=(Vocabulary.BEGIN,)))
    return _checked(
        Pair(verifier, model, drafting, source, target, *languages, Path(codes) if codes else None, tokenizer), faults
    )


def recorded_tokenizer(data: Path) -> str:
    """The tokeniser that a data folder was prepared with: ``prepare.json`` says so, beside the binarised data or in it.

    Moses where nothing is said. Raises ValueError naming the file if it cannot be read.
    """
    for path in (data / "prepare.json", data.parent / "prepare.json"):
        if path.is_file():
            name = read_json(path).get("tokenizer", TOKENIZERS[0])
            if name not in TOKENIZERS:
                raise ValueError(f"{path}: tokenizer '{name}'; available: {', '.join(TOKENIZERS)}")
            return name
    return TOKENIZERS[0]


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
        names = f"dict.{pair.source_lang}.txt", f"dict.{pair.target_lang}.txt", "codes" if pair.codes else None
        for name, path in zip(names, (pair.source.path, pair.target.path, pair.codes)):
            if name and path:
                shutil.copyfile(path, temporary / name)
        stored = _store(temporary, "verifier", pair.verifier, {}, half)
        del stored["shared"]
        verifier = VerifierEntry(spec=pair.verifier.spec, **stored)
        drafter = None
        if (model := pair.drafter) is not None:
            drafter = DrafterEntry(
                spec=model.spec, code=model.code, block_size=model.block_size, options=model.options, verifier=model.verifier,
                **_store(temporary, "drafter", model, pair.verifier.tensors, half),
            )  # fmt: skip
        described = Description(FORMAT, pair.source_lang, pair.target_lang, *names, verifier, drafter, pair.tokenizer)
        text = json.dumps(dataclasses.asdict(described), indent=1)
        (temporary / "model.json").write_text(f"{text}\n", encoding="utf-8")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir())}


def _store(folder: Path, name: str, model: Model | DrafterModel, others: Mapping[str, Tensor], half: bool) -> dict[str, Any]:
    """Write ``name``.safetensors; returns what ``model.json`` says about the tensors."""
    from safetensors.torch import save_file

    first: dict[tuple, str] = {}  # by the memory of a tensor, the first name it goes by
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    shared, computed = [], []
    tables = sinusoidal_tables(model.spec)
    for key, tensor in model.tensors.items():
        twin, table = others.get(key), tables.get(key)
        original = first.setdefault((tensor.data_ptr(), tensor.shape), key)
        if table is not None and table.shape == tensor.shape and torch.equal(table, tensor):
            computed.append(key)
        elif twin is not None and twin.shape == tensor.shape and torch.equal(twin, tensor):
            shared.append(key)
        elif original != key and original in stored:
            aliases[key] = original
        else:
            stored[key] = tensor.half() if half and tensor.is_floating_point() else tensor.clone()
            if stored[key].is_floating_point() and not stored[key].isfinite().all():
                raise ValueError(f"{name}: {key} has numbers that are not finite{' in float16' if half else ''}")
    file = f"{name}.safetensors"
    with whole(folder / file) as temporary:
        save_file({key: tensor.contiguous() for key, tensor in stored.items()}, temporary)
    return {"weights": file, "aliases": aliases, "shared": tuple(shared), "sinusoidal": tuple(computed)}


def _inside(folder: Path, name: str, most: int | None = None) -> Path:
    """A file of the folder, which a description from outside must not leave, of at most so many bytes."""
    if Path(name).name != name or name == ".." or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{folder / 'model.json'}: {name!r:.80} is not the name of a file in the folder")
    path = folder / name
    if not path.is_file():  # safetensors' own error does not say which file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if most is not None and path.stat().st_size > most:
        raise ValueError(f"{path}: larger than {most:,} bytes")
    return path


def _load_models(folder: Path, described: Description) -> tuple[Model, DrafterModel | None]:
    entry, drafting = described.verifier, described.drafter
    verifier = Model(entry.spec, _load_tensors(folder, "verifier", entry, {}))
    if drafting is None:
        return verifier, None
    _refuse_own_code(folder, drafting.code)
    tensors = _load_tensors(folder, "drafter", drafting, verifier.tensors)
    return verifier, DrafterModel(drafting.code, tensors, drafting.spec, drafting.options, drafting.block_size, drafting.verifier)


def _refuse_own_code(folder: Path, code: str) -> None:
    """Raise ValueError if a drafter's ``module:object`` would be imported from the folder, as it can be where Python looks for
    modules in the folder or above it. A folder names code, and does not bring it. Nothing is imported here."""
    module, separator, _ = code.partition(":")
    package, *below = module.split(".")
    found = importlib.util.find_spec(package) if separator and package else None
    for place in (found.origin, *(found.submodule_search_locations or ())) if found else ():
        if place and Path(place, *below).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{folder / 'model.json'}: drafter '{code}' would be code of the folder itself, which is not run")


def _load_tensors(
    folder: Path, role: str, entry: VerifierEntry | DrafterEntry, others: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A model's tensors, checked against its spec before they are read; as they are stored."""
    path = _inside(folder, entry.weights)
    faults: list[str] = []
    tables = sinusoidal_tables(entry.spec)
    shared = entry.shared if isinstance(entry, DrafterEntry) else ()
    given = _stored_shapes(path)
    for names, known, what in (
        (shared, tensor_shapes(others), "shared"),
        (entry.sinusoidal, tensor_shapes(tables), "sinusoidal"),
    ):
        faults += [f"{what}: {name} is none" for name in names if name not in known]
        faults += [f"{what}: {name} is there twice" for name in names if name in given]
        given |= {name: known[name] for name in names if name in known}
    for name, original in entry.aliases.items():
        if name in given or original not in given or original in entry.aliases:
            faults.append(f"aliases: {name} for {original}")
    given |= {name: given[original] for name, original in entry.aliases.items() if original in given}
    if entry.spec is not None and not faults:
        # What a drafter has of its own is for its code to check.
        more = own_shapes(entry.spec, given) if isinstance(entry, DrafterEntry) else {}
        faults += tensor_faults(entry.spec, given, more)
    if faults:
        raise ValueError(f"{folder}: {role}: {listed(faults, '; ')}")
    weights = _read_tensors(path)
    if entry.spec is None:  # for code that computes with them as they are
        weights = {name: tensor.float() if tensor.dtype in WEIGHT_DTYPES else tensor for name, tensor in weights.items()}
    weights |= {name: others[name] for name in shared} | {name: tables[name] for name in entry.sinusoidal}
    return weights | {name: weights[original] for name, original in entry.aliases.items()}


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a safetensors file's tensors, without reading them. Raises ValueError naming the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dictionary
    except SafetensorError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: not a readable safetensors file, or a damaged one ({brief(error)})")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file's tensors, as they are stored and mapped into memory."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise unreadable(path, error) from None
    return {name: aligned(tensor) for name, tensor in stored.items()}


def _load_models_of_format_1(folder: Path, described: DescriptionOfFormat1) -> tuple[Model, DrafterModel | None]:
    verifier = _load_checkpoint(folder, described.verifier, {})
    model = fairseq.read(verifier, f"{folder}: verifier")
    drafting = None
    if described.drafter is not None:
        drafting = fairseq.read(_load_checkpoint(folder, described.drafter, verifier["model"]), f"{folder}: drafter")
    first, second = _roles(str(folder), model, drafting)
    return first, second and dataclasses.replace(second, block_size=described.block_size)


def _load_checkpoint(folder: Path, entry: EntryOfFormat1, others: Mapping[str, Tensor]) -> checkpoint.Checkpoint:
    """A model of a folder of format 1 as `checkpoint.load` would give it."""
    weights = _read_tensors(_inside(folder, entry.weights))
    try:
        weights.update({key: others[key] for key in entry.shared})
        weights.update({key: weights[original] for key, original in entry.aliases.items()})
    except KeyError as error:
        raise ValueError(f"{folder / 'model.json'}: there is no tensor {error}") from None
    return {"model": weights, "args": argparse.Namespace(**entry.settings), "cfg": None}


def _roles(name: str, verifier: Model | DrafterModel, drafter: Model | DrafterModel | None) -> tuple[Model, DrafterModel | None]:
    """The two, if each is what its role needs. Raises CheckpointError."""
    if isinstance(verifier, DrafterModel) or isinstance(drafter, Model):
        faults = ["the verifier is a block drafter"] if isinstance(verifier, DrafterModel) else []
        faults += ["the drafter is no block drafter"] if isinstance(drafter, Model) else []
        raise checkpoint.CheckpointError(f"{name}: {'; '.join(faults)}")
    return verifier, drafter


def _checked(pair: Pair, faults: list[str] | None = None) -> Pair:
    """The pair, if its dictionaries fit its models. Warns of a drafter that was trained for another verifier."""
    faults = list(faults or ())
    for role, model in (("verifier", pair.verifier), ("drafter", pair.drafter)):
        if model is None or model.spec is None:
            continue
        for half, vocabulary in (("encoder", pair.source), ("decoder", pair.target)):
            embedding = model.tensors.get(f"{half}.embed_tokens.weight")
            if embedding is not None and len(embedding) != len(vocabulary):
                faults.append(f"{vocabulary.path} has {len(vocabulary):,} entries, the {role}'s {half} {len(embedding):,}")
        symbols = (*dataclasses.astuple(model.spec.symbols), *model.spec.forced, *model.spec.suppressed)
        if max(symbols) >= len(pair.target):
            faults.append(
                f"the {role}'s symbols go up to {max(symbols):,}, and {pair.target.path} has {len(pair.target):,} entries"
            )
    if faults:
        raise checkpoint.CheckpointError(f"{pair.name}: " + "; ".join(faults))
    if pair.drafter is not None and pair.drafter.verifier not in (None, fingerprint(pair.verifier)):
        log.warning("%s: the drafter was trained for another verifier: fewer of its tokens will be accepted", pair.name)
    return pair
