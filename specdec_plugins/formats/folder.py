"""A model on disk: verifier, drafter and codec, in one folder or as separate files.

A model folder contains ``model.json`` (`Description`), the codec's files, and the weights in safetensors by canonical names. Each
tensor is stored once: ``aliases`` are a model's tied tensors, ``shared`` the drafter's that equal the verifier's, and
``sinusoidal`` the position tables, which are computed. A folder names code but never contains any.

Folders of format 1 contain fairseq's settings and names, and are read like its checkpoints.
"""

import argparse
import errno
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specdec_plugins.formats import checkpoint, description, drafter_folder, fairseq, hub, huggingface, packed, spec, tensors
from specdec_plugins.formats.arrays import WEIGHT_DTYPES, Arrays, Lazy, Tensors, address, array, equal
from specdec_plugins.formats.code import refuse_own_code
from specdec_plugins.formats.description import CodecEntry, Description, DrafterEntry, VerifierEntry, codec_entry
from specdec_plugins.formats.errors import listed
from specdec_plugins.formats.files import AnyPath, is_file_name, write_json
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import Heads
from specdec_plugins.text.codec import Codec, CodecConfig, open_codec
from specdec_plugins.text.huggingface import TokenizerFolder
from specdec_plugins.text.tokenizers import BYTE_LEVEL
from specdec_plugins.text.vocabulary import SPECIAL, Vocabulary

log = logging.getLogger(__name__)
MAX_NAME_BYTES = 255
MAX_CODEC_BYTES = 100_000_000  # per file of a codec
SMALL_BLOCK = 8  # longest draft of a smaller model: each token costs a pass of it


@dataclass(frozen=True)
class Pair:
    """A verifier, its drafter if any, and their codec with its configuration. ``others`` are drafters that may take its place."""

    name: str
    verifier: Model
    drafter: DrafterModel | None
    codec: Codec
    config: CodecConfig
    alignment: Heads | None = None  # the verifier's heads that align best; None: not measured
    others: tuple[DrafterModel, ...] = ()
    fingerprint: str | None = None  # of the verifier as its folder says; None: unknown

    @classmethod
    def open(cls, verifier: Model, drafter: DrafterModel | None, config: CodecConfig) -> "Pair":
        """The pair with its codec opened. Raises ValueError for damaged codec files."""
        return cls(hub.title(config.folder), verifier, drafter, open_codec(config, verifier.spec.symbols), config)

    @property
    def mark(self) -> str:
        """The verifier's fingerprint, computed if the folder does not say it."""
        return self.fingerprint or spec.fingerprint(self.verifier)

    @property
    def source(self) -> Vocabulary:
        return self.codec.source

    @property
    def target(self) -> Vocabulary:
        return self.codec.target

    @property
    def drafters(self) -> tuple[DrafterModel, ...]:
        """All, of different codes."""
        return (() if self.drafter is None else (self.drafter,)) + self.others

    def drafting(self, drafter: DrafterModel) -> "Pair":
        """The pair with this drafter, in place of one of the same code; the one it had is another."""
        others = tuple(each for each in self.drafters if each.code != drafter.code)
        return replace(self, drafter=drafter, others=others)

    @property
    def block_size(self) -> int:
        """The drafter's draft length in training; 0 without a drafter."""
        return self.drafter.block_size if self.drafter else 0


def load_folder(folder: AnyPath, device: str = "cpu") -> Pair:
    """Read a model folder or a Hugging Face folder, which may be one of the Hub (`hub.py`). Of several drafters that for the
    ``device`` drafts. Raises ValueError naming the file at fault."""
    folder = hub.find(folder)
    path = folder / "model.json"
    try:
        if huggingface.is_huggingface(folder):
            return _load_huggingface(folder)
        described = description.read_description(path)
        codec = described.codec
        refuse_own_code(folder, "codec", codec.name)
        files = {role: _inside(folder, name, MAX_CODEC_BYTES) for role, name in codec.files.items()}
        load = _load_models if isinstance(described, Description) else _load_models_of_format_1
        verifier, drafters = load(folder, described)  # type: ignore[arg-type]
        languages = described.source_lang, described.target_lang
        pair = Pair.open(verifier, None, CodecConfig(codec.name, str(folder), files, *languages, codec.options))
        mark = described.verifier.fingerprint if isinstance(described, Description) else None
        pair = replace(pair, alignment=described.alignment, others=drafters, fingerprint=mark)
        pair = pair.drafting(drafter_folder.default(drafters, device)) if drafters else pair
        return _checked(pair)
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: not a model folder (no {Path(error.filename).name} in it)") from None
    except NotADirectoryError:
        raise ValueError(f"{folder}: not a model folder (not a folder)") from None


def _load_huggingface(folder: Path) -> Pair:
    model, settings = huggingface.read_model(folder)
    tokenizer = TokenizerFolder(folder, settings)
    entry = tokenizer.entry()
    if tokenizer.forces_language:  # requests choose the language; the config's is only the default
        model = replace(model, spec=replace(model.spec, forced=()))
    files = {role: _inside(folder, name, MAX_CODEC_BYTES) for role, name in entry.files.items()}
    config = CodecConfig(entry.name, str(folder), files, *tokenizer.languages(), entry.options)
    return _checked(Pair.open(model, None, config))


def with_prefix(pair: Pair, prefix: str) -> Pair:
    """A pair of an imported model whose sources begin with this text. Raises ValueError."""
    options = {name: value for name, value in pair.config.options.items() if name != "prefixes"} | {"prefix": prefix}
    return Pair.open(pair.verifier, pair.drafter, replace(pair.config, options=options))


def for_task(pair: Pair, folder: Path, task: str) -> Pair:
    """A pair of an imported model with what its Hugging Face ``folder`` asks for in one of its tasks. Raises ValueError."""
    if not huggingface.is_huggingface(folder):
        raise ValueError(f"{folder}: tasks are those of a Hugging Face folder's config.json")
    rules, prefix = huggingface.task_of(folder, task, pair.verifier.spec.outputs)
    spec = replace(pair.verifier.spec, outputs=rules)
    pair = replace(pair, verifier=replace(pair.verifier, spec=spec))
    return pair if prefix is None else with_prefix(pair, prefix)


def with_drafter(pair: Pair, folder: AnyPath, device: str = "cpu") -> Pair:
    """The pair with the one of its drafters of this name, or with that of another folder, which may be one of the Hub: a drafter
    folder or a model folder. A model that has no drafter, a smaller one with the same vocabulary, drafts itself. Raises
    ValueError."""
    if own := [each for each in pair.drafters if each.code == folder]:
        return pair.drafting(own[0])
    found = hub.find_drafter(folder)
    if entries := drafter_folder.drafters_in(found):
        drafter = _load_drafter(found, drafter_folder.default(entries, device), pair.verifier)
        return _checked(replace(pair, drafter=drafter, others=()), name=hub.title(str(found)))
    other = load_folder(found)
    if other.drafter is not None:  # of format 1
        return _checked(replace(pair, drafter=other.drafter, others=()), name=other.name)
    faults = [
        f"another {side} vocabulary"
        for side in ("source", "target")
        if getattr(pair, side).fingerprint() != getattr(other, side).fingerprint()
    ]
    if other.verifier.spec.symbols != pair.verifier.spec.symbols:
        faults.append("other special tokens")
    if faults:
        raise ValueError(f"{folder}: cannot draft for {pair.name}: it has {' and '.join(faults)}")
    drafter = DrafterModel("small", other.verifier.tensors, other.verifier.spec, block_size=SMALL_BLOCK)
    return replace(pair, drafter=drafter, others=())


def load_parts(
    verifier: str, drafter: str | None, data: str, source_lang: str | None, target_lang: str | None, codes: str | None
) -> Pair:
    """Read fairseq checkpoints with the dictionaries of a binarised data folder. Raises ValueError if they do not fit."""
    paths = {"verifier": verifier} | ({"drafter": drafter} if drafter else {})
    files = {role: checkpoint.load(path) for role, path in paths.items()}
    settings = checkpoint.task_settings(files["verifier"])
    source_lang = source_lang or settings.get("source_lang")
    target_lang = target_lang or settings.get("target_lang")
    for lang in (source_lang, target_lang):
        if lang and (not isinstance(lang, str) or len(lang) > MAX_NAME_BYTES // 4):
            raise ValueError(f"{verifier}: its languages are {lang!r:.80}, which is no language's code")
    if not source_lang or not target_lang:
        raise ValueError(f"{verifier} does not name its languages; give --source-lang and --target-lang")
    models = {role: fairseq.read(files[role], path) for role, path in paths.items()}
    model, drafting = _roles(verifier, models["verifier"], models.get("drafter"))
    tokenizer = description.recorded_tokenizer(Path(data))
    if tokenizer == BYTE_LEVEL:  # its texts begin with <s>
        model = replace(model, spec=replace(model.spec, forced=(SPECIAL.index("<s>"),)))
    source, target = (str(Path(data) / f"dict.{lang}.txt") for lang in (source_lang, target_lang))
    entry = codec_entry(tokenizer, source, target, codes)
    text = {role: Path(path) for role, path in entry.files.items()}
    pair = Pair.open(model, drafting, CodecConfig(entry.name, verifier, text, source_lang, target_lang, entry.options))
    faults = []
    for role, content in files.items():
        marks = (content.get("task_state") or {}).get("dictionaries")
        for side, vocabulary, mark in zip(("source", "target"), (pair.source, pair.target), marks or ()):
            if mark != vocabulary.fingerprint():
                faults.append(f"the {role} was trained with another {side} dictionary than {vocabulary.path}")
    return _checked(pair, faults)


def save_folder(pair: Pair, folder: AnyPath, half: bool = False, only: str | None = None) -> dict[str, int]:
    """Write a model folder atomically, with ``half`` in float16. Of the verifier's layers it has only the matrices that are
    packed in the data type ``only``, if that is given, or if the pair has no others. Returns the size of each file in bytes.

    Raises ValueError if the folder exists or a weight is not finite.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} already exists")
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        config = pair.config
        codec = CodecEntry(config.name, _copy(config.files, temporary), config.options)
        verifier, known = pair.verifier, any(each.verifier is not None for each in pair.drafters)
        panels = verifier.packed
        if only:
            layers = {names[0] for names in packed.joined(verifier.spec)}
            panels = {only: {name: each for name, each in panels[only].items() if name in layers}}
            lazy = packed.matrices(verifier.spec, spec.tensor_shapes(verifier.tensors), panels[only], only)
            verifier = replace(verifier, tensors={**verifier.tensors, **lazy}, packed=panels)
        stored = _store(temporary, "verifier", verifier, {}, half)
        del stored["shared"]
        mark = pair.mark if known or only else pair.fingerprint
        files = {dtype: f"verifier.{dtype}.safetensors" for dtype in panels}
        for dtype, name in files.items():
            packed.write(temporary / name, panels[dtype])
        entry = VerifierEntry(spec=verifier.spec, fingerprint=mark, packed=files, **stored)
        drafters = [  # tensors shared with the verifier stay shared, and become its rounded ones
            _store_drafter(temporary, f"drafter{f'-{number}' * (number > 1)}", each, pair.verifier, half)
            for number, each in enumerate(pair.drafters if pair.drafter else (), 1)
        ]
        drafter, others = (drafters[0], tuple(drafters[1:])) if drafters else (None, ())
        languages = config.source_lang, config.target_lang
        described = Description(description.FORMAT, *languages, codec, entry, drafter, others, alignment=pair.alignment)
        write_json(temporary / "model.json", asdict(described))
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir())}


def save_drafter(drafter: DrafterModel, verifier: Model, record: drafter_folder.Record, folder: Path) -> None:
    """Write a drafter into a folder of its own, with what is recorded of its training."""
    folder.mkdir(parents=True, exist_ok=True)
    drafter_folder.write_description(folder, _store_drafter(folder, "drafter", drafter, verifier, half=False), record)


def replace_drafter(drafter: DrafterModel, verifier: Model, folder: Path) -> None:
    """Write a drafter, without a record, into a folder of its own in place of the one there: all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        present = drafter_folder.read(folder).drafter.weights
    except (FileNotFoundError, ValueError):
        present = ""
    names = [name for name in ("drafter", "drafter-2") if f"{name}.safetensors" != present]
    drafter_folder.write_description(folder, _store_drafter(folder, names[0], drafter, verifier, half=False), None)
    if present in ("drafter.safetensors", "drafter-2.safetensors"):
        (folder / present).unlink(missing_ok=True)


def _store_drafter(folder: Path, name: str, drafter: DrafterModel, verifier: Model, half: bool) -> DrafterEntry:
    return DrafterEntry(**_facts(drafter), **_store(folder, name, drafter, verifier.tensors, half))


def _facts(drafter: DrafterModel | DrafterEntry) -> dict[str, Any]:
    """What a drafter and its entry have in common."""
    return {name: getattr(drafter, name) for name in ("code", "spec", "options", "block_size", "verifier", "devices")}


def _copy(files: Mapping[str, Path], folder: Path) -> dict[str, str]:
    """Copy a codec's files into a folder. Returns their names by role: BPE codes become ``codes``, others keep their names."""
    names: dict[str, str] = {}
    taken: dict[str, Path | None] = {"model.json": None}
    for role, path in files.items():
        name = role if role == "codes" else path.name
        if taken.get(name, path) != path or name.endswith(".safetensors"):
            name = f"{role}.{name}"
        shutil.copyfile(path, folder / name)
        names[role], taken[name] = name, path
    return names


def _store(folder: Path, name: str, model: Model | DrafterModel, others: Mapping[str, Any], half: bool) -> dict[str, Any]:
    """Write ``name``.safetensors, without lazy arrays. Returns the entries of ``model.json`` about the tensors."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}  # a tensor's first name, by its memory
    stored, aliases, shared, computed = Tensors(), dict[str, str](), list[str](), list[str]()
    tables = spec.sinusoidal_tables(model.spec)
    for key, given in model.tensors.items():
        if isinstance(given, Lazy):
            continue
        tensor, twin, table = array(given), others.get(key), tables.get(key)
        original = first.setdefault((address(tensor), tensor.shape), key)
        if table is not None and equal(table, tensor):
            computed.append(key)
        elif twin is not None and equal(twin, tensor):
            shared.append(key)
        elif original != key and original in stored:
            aliases[key] = original
        else:
            stored[key] = tensor
    file = f"{name}.safetensors"
    tensors.write(folder / file, stored, half)
    return {"weights": file, "aliases": aliases, "shared": tuple(shared), "sinusoidal": tuple(computed)}


def _inside(folder: Path, name: str, most: int | None = None) -> Path:
    """A file of the folder, of at most ``most`` bytes. Names must not lead out of the folder."""
    if not is_file_name(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{folder / 'model.json'}: {name!r:.80} is not the name of a file in the folder")
    path = folder / name
    if not path.is_file():  # safetensors' own error does not say which file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if most is not None and path.stat().st_size > most:
        raise ValueError(f"{path}: larger than {most:,} bytes")
    return path


def _load_models(folder: Path, described: Description) -> tuple[Model, tuple[DrafterModel, ...]]:
    entry = described.verifier
    files = {dtype: packed.read(_inside(folder, name)) for dtype, name in entry.packed.items()}
    weights = _load_tensors(folder, "verifier", entry, {}, files)
    mark = entry.fingerprint if any(isinstance(each, Lazy) for each in weights.values()) else None
    verifier = Model(entry.spec, weights, files, mark)
    return verifier, tuple(_load_drafter(folder, each, verifier) for each in described.drafters)


def _load_drafter(folder: Path, entry: DrafterEntry, verifier: Model) -> DrafterModel:
    refuse_own_code(folder, "drafter", entry.code)
    weights = _load_tensors(folder, "drafter", entry, verifier.tensors, {})
    return DrafterModel(tensors=weights, **_facts(entry))


def _load_tensors(
    folder: Path, role: str, entry: VerifierEntry | DrafterEntry, others: Arrays, panels: Mapping[str, Arrays]
) -> dict[str, Any]:
    """A model's tensors as stored, checked against its spec before they are read. Matrices that are stored as packed ``panels``
    only are lazy."""
    from safetensors import safe_open

    path = _inside(folder, entry.weights)
    faults: list[str] = []
    tables = spec.sinusoidal_tables(entry.spec)
    shared = entry.shared if isinstance(entry, DrafterEntry) else ()
    with tensors.readable(path), safe_open(path, framework="np") as file:
        given = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    for names, known, what in (
        (shared, spec.tensor_shapes(others), "shared"),
        (entry.sinusoidal, spec.tensor_shapes(tables), "sinusoidal"),
    ):
        faults += [f"{what}: unknown tensor {name}" for name in names if name not in known]
        faults += [f"{what}: {name} is also stored" for name in names if name in given]
        given |= {name: known[name] for name in names if name in known}
    for name, original in entry.aliases.items():
        if name in given or original not in given or original in entry.aliases:
            faults.append(f"aliases: {name} for {original}")
    given |= {name: given[original] for name, original in entry.aliases.items() if original in given}
    lazy: dict[str, Lazy] = {}
    if panels and isinstance(entry, VerifierEntry):
        known_shapes = spec.shapes(entry.spec, 0, 0)
        for dtype in (each for each in packed.BYTES if each in panels):  # the more exact one first
            lazy = {**packed.matrices(entry.spec, known_shapes, panels[dtype], dtype), **lazy}
        lazy = {name: each for name, each in lazy.items() if name not in given}
        given |= spec.tensor_shapes(lazy)
    if entry.spec is not None and not faults:
        # A drafter's own tensors are checked by its code.
        more = spec.own_shapes(entry.spec, given) if isinstance(entry, DrafterEntry) else {}
        faults += spec.tensor_faults(entry.spec, given, more)
    if faults:
        raise ValueError(f"{folder}: {role}: {listed(faults, '; ')}")
    weights = tensors.read(path)
    if entry.spec is None:  # the drafter's code computes with them directly
        weights |= {name: each.astype(np.float32) for name, each in weights.items() if each.dtype in WEIGHT_DTYPES}
    weights |= {name: others[name] for name in shared} | {name: tables[name] for name in entry.sinusoidal}
    return weights | lazy | {name: weights[original] for name, original in entry.aliases.items()}


def _load_models_of_format_1(folder: Path, described: description.DescriptionOfFormat1) -> tuple[Model, tuple[DrafterModel, ...]]:
    verifier = _load_checkpoint(folder, described.verifier, {})
    model = fairseq.read(verifier, f"{folder}: verifier")
    drafting = None
    if described.drafter is not None:
        drafting = fairseq.read(_load_checkpoint(folder, described.drafter, verifier["model"]), f"{folder}: drafter")
    first, second = _roles(str(folder), model, drafting)
    return first, () if second is None else (replace(second, block_size=described.block_size),)


def _load_checkpoint(folder: Path, entry: description.EntryOfFormat1, others: Arrays) -> checkpoint.Checkpoint:
    """A model in a folder of format 1, as `checkpoint.load` would return it."""
    weights = tensors.read(_inside(folder, entry.weights))
    try:
        weights.update({key: others[key] for key in entry.shared})
        weights.update({key: weights[original] for key, original in entry.aliases.items()})
    except KeyError as error:
        raise ValueError(f"{folder / 'model.json'}: unknown tensor {error}") from None
    return {"model": weights, "args": argparse.Namespace(**entry.settings), "cfg": None}


def _roles(name: str, verifier: Model | DrafterModel, drafter: Model | DrafterModel | None) -> tuple[Model, DrafterModel | None]:
    """Both models, if they fit their roles. Raises CheckpointError."""
    if isinstance(verifier, DrafterModel) or isinstance(drafter, Model):
        faults = ["the verifier is a block drafter"] if isinstance(verifier, DrafterModel) else []
        faults += ["the drafter is not a block drafter"] if isinstance(drafter, Model) else []
        raise checkpoint.CheckpointError(f"{name}: {'; '.join(faults)}")
    return verifier, drafter


def _checked(pair: Pair, faults: Sequence[str] = (), name: str = "") -> Pair:
    """The pair, if its vocabularies fit its models. Warns about drafters that were trained for another verifier than
    this; ``name`` is the drafter's folder, if not the pair's."""
    faults = list(faults)
    models: list[tuple[str, Model | DrafterModel]] = [("verifier", pair.verifier), *(("drafter", each) for each in pair.drafters)]
    for role, model in models:
        if model.spec is None:
            continue
        for half, side in (("encoder", "source"), ("decoder", "target")):
            vocabulary: Vocabulary = getattr(pair.codec, side)
            embedding = model.tensors.get(f"{half}.embed_tokens.weight")
            if embedding is not None and len(embedding) != len(vocabulary):
                where = vocabulary.path or f"the {side} vocabulary"
                faults.append(f"{where} has {len(vocabulary):,} entries, the {role}'s {half} {len(embedding):,}")
        faults += [f"the {role}'s {fault}" for fault in spec.symbol_faults(model.spec, len(pair.source), len(pair.target))]
    if pair.alignment is not None:
        faults += [f"alignment: {fault}" for fault in pair.alignment.faults(pair.verifier.spec.decoder)]
    if faults:
        raise checkpoint.CheckpointError(f"{name or pair.name}: " + "; ".join(faults))
    marked = [each for each in pair.drafters if each.verifier is not None]
    mark = pair.mark if marked else None
    for each in marked:
        if each.verifier != mark:
            which = f"{name or pair.name}: the drafter{f' {each.code}' if pair.others else ''}"
            log.warning("%s was trained for another verifier: fewer of its tokens will be accepted", which)
    return pair
