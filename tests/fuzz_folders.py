"""Mutate model folders, checkpoints, dictionaries, codes and datastores: each loads and decodes, or is refused in one line.

    python tests/fuzz_folders.py --count 10000 --seed 0

``make sanitize`` runs it under AddressSanitizer. Seed and number determine a case. A crash or a hang ends the program; the
last line of its output names the case, which ``--first N --count 1`` repeats.
"""

import argparse
import faulthandler
import json
import logging
import math
import random
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from naive import altered, random_model
from safetensors.torch import load_file, save_file

from specdec_plugins.commands.card import write_card
from specdec_plugins.commands.packing import packed
from specdec_plugins.decoding.backends.torch.arrays import tensors
from specdec_plugins.decoding.datastore import Datastore
from specdec_plugins.decoding.drafters import glide
from specdec_plugins.decoding.drafters.eagle import shape as eagle_shape
from specdec_plugins.decoding.loading import COPY, DRAFT_VOCABULARY
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.drafter_folder import NAME, Record, read, read_record
from specdec_plugins.formats.folder import Pair, load_folder, load_parts, save_drafter, save_folder, with_drafter
from specdec_plugins.formats.huggingface import FAMILIES, t5, t5gemma, t5gemma2
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.generation import generation_of
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.formats.to_fairseq import checkpoint_of
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, SideSpec, Symbols
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.translator import Translator

WIDTH, WORDS = 32, 36
SIZE = WORDS + 4
SIDE = SideSpec(1, WIDTH, Attention(2), FeedForward(WIDTH), 30, Embedding(math.sqrt(WIDTH), 2))
PLAIN = ModelSpec(SIDE, SIDE)
MARIAN = altered(
    PLAIN,
    activation="swish",
    output_bias=True,
    zero_start=True,
    symbols=Symbols(pad=SIZE - 1, eos=0, start=SIZE - 1, mask=1),
    suppressed=(SIZE - 1,),
)
PATIENCE = 60  # seconds a case may take, many times what it does
LINES = ["w1 w2 w3", "w4 w35"]
LONGEST_ERROR = 2000


# ---- what is mutated

KINDS = ("marian", "causal", "glide", "packed", "rounded", "block", "hydra", "eagle", "several", "alone", "first")
RECORD = Record(
    model="org/pair", source_lang="xa", target_lang="xb", multilingual=False, data="text", data_sha256="0" * 64, trained=90,
    held_out=10, updates=9, seed=1, precision="float32", tokens_per_pass=2.5, acceptance=(0.5, 0.25), gain={"1": 1.5},
    dtype="int8", threads=1, machine={"cpu": "one", "cores": 2}, command=("specdec-draft", "org/pair"), specdec="0.3.0",
)  # fmt: skip


def tensors_of(model: Model) -> dict[str, torch.Tensor]:
    return {name: each.float() for name, each in tensors(model.tensors).items()}


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def successor() -> dict[str, torch.Tensor]:
    parts = ("from_feature.weight", "from_feature.bias", "from_token.weight", "out.weight")
    return random_tensors({f"decoder.successor.{part}": (WIDTH,) if "bias" in part else (WIDTH, WIDTH) for part in parts})


def drafters_by_name() -> dict[str, DrafterModel]:
    """A drafter of each kind, for a verifier with the symbols of fairseq."""
    block = tensors_of(random_model(PLAIN, SIZE, SIZE, seed=1))
    layers = tensors_of(random_model(eagle_shape(PLAIN, 1), SIZE, SIZE, seed=2))
    layers = {name: each for name, each in layers.items() if name.startswith("decoder.layers.")}
    begins = {"beginning.query": (WIDTH,), "beginning.out.weight": (WIDTH, WIDTH), "beginning.out.bias": (WIDTH,)}
    heads = {"heads.weight": (2 * WIDTH, 2 * WIDTH), "heads.bias": (2 * WIDTH,), **begins}
    eagle = random_tensors({"join.weight": (WIDTH, 2 * WIDTH), "join.bias": (WIDTH,), "unknown": (WIDTH,)})
    names, width = torch.tensor([*range(8), 9, 13, 21, SIZE - 1]), {"successor_width": WIDTH}
    thin = {name: each for name, each in layers.items() if not glide.hosted(name)}
    return {
        "causal": DrafterModel("block_causal", {**block, **successor(), DRAFT_VOCABULARY: names}, PLAIN, width, 4),
        "block": DrafterModel("block", {**block, **random_tensors({COPY: (WIDTH, WIDTH)})}, PLAIN, {"source_copy": True}, 4),
        "hydra": DrafterModel("hydra", {**random_tensors(heads), **successor()}, None, {"heads": 2, **width}, 3),
        "eagle": DrafterModel("eagle", {**eagle, **layers}, None, {}, 3),
        "glide": DrafterModel("glide", {**thin, DRAFT_VOCABULARY: names}, None, {"layers": 1}, 4),
    }


def build(folder: Path) -> None:
    """A folder of each kind under ``folder``, one of format 1, and ``parts``: a checkpoint, dictionaries, codes, a datastore."""
    parts = folder / "parts"
    parts.mkdir()
    for lang in ("xa", "xb"):
        (parts / f"dict.{lang}.txt").write_text("".join(f"w{number} 1\n" for number in range(WORDS)))
    (parts / "codes").write_text("#version: 0.2\nw 1\nw 2</w>\nw1 2</w>\n")
    files = {"source": parts / "dict.xa.txt", "target": parts / "dict.xb.txt", "codes": parts / "codes"}
    plain, marian = (Model(spec, tensors_of(random_model(spec, SIZE, SIZE))) for spec in (PLAIN, MARIAN))
    pair = Pair.open(plain, None, CodecConfig("fairseq-bpe", "mine", files, "xa", "xb", {"tokenizer": "moses"}))
    save_folder(replace(pair, verifier=marian), folder / "marian", half=True)
    for name, drafter in drafters_by_name().items():
        save_folder(replace(pair, drafter=drafter), folder / name)
    first, second = drafters_by_name()["glide"], replace(drafters_by_name()["causal"], devices=("cuda",))
    save_folder(replace(pair, drafter=first, others=(second,)), folder / "several")
    pair_of_panels = packed(replace(pair, drafter=first), ("int8", "int4"), None, (None, None))
    save_folder(pair_of_panels, folder / "packed")
    save_folder(pair_of_panels, folder / "rounded", only="int4")
    save_drafter(first, plain, RECORD, folder / "alone")
    verifier = checkpoint.untrained() | checkpoint_of(plain)
    vars(verifier["args"]).update(source_lang="xa", target_lang="xb")
    checkpoint.save(verifier, parts / "verifier.pt")
    first = folder / "first"
    shutil.copytree(parts, first, ignore=lambda *_: ["verifier.pt"])
    save_file({name: tensor.contiguous().clone() for name, tensor in verifier["model"].items()}, first / "verifier.safetensors")
    entry = {"weights": "verifier.safetensors", "settings": vars(verifier["args"]), "aliases": {}, "shared": []}
    described = {
        "format": 1,
        "source_lang": "xa",
        "target_lang": "xb",
        "source_dict": "dict.xa.txt",
        "target_dict": "dict.xb.txt",
        "codes": "codes",
        "block_size": 4,
        "verifier": entry,
        "drafter": None,
    }
    (first / "model.json").write_text(json.dumps(described))
    build_huggingface(folder / "huggingface")
    build_pickled(folder / "huggingface", folder / "pickled")
    build_t5(folder / "t5")
    build_t5gemma(folder / "t5gemma", folder / "t5")
    build_t5gemma(folder / "t5gemma2", folder / "t5", second=True)
    torch.manual_seed(0)
    sentences = [tuple(random.Random(n).choices(range(4, SIZE), k=4) for n in (number, -number)) for number in range(9)]
    store = Datastore.of_pairs(sentences, 2, SIZE)
    store.save(str(parts / "datastore"), pair.target.fingerprint(), pair.source.fingerprint())


def build_huggingface(folder: Path) -> None:
    """A BART as published: config, generation config, weights, tokenizer files."""
    folder.mkdir()
    side = altered(SIDE, embedding_norm=True, embedding_scale=1.0)
    model = random_model(altered(PLAIN, encoder=side, decoder=side, activation="gelu"), SIZE, SIZE)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in tensors_of(model).items()}
    tensors["lm_head.weight"] = tensors.pop("model.decoder.output_projection.weight")
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    sizes = {
        f"{name}_{what}": value
        for name in ("encoder", "decoder")
        for what, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", WIDTH))
    }
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "w",
        "\u0120",
        *"0123456789",
        *(f"w{number}" for number in range(SIZE - 17)),
        "<mask>",
    ]
    contents = {
        "config": {
            "model_type": "bart",
            "architectures": ["BartForConditionalGeneration"],
            "d_model": WIDTH,
            "vocab_size": SIZE,
            "max_position_embeddings": 30,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
            **sizes,
        },
        "generation_config": {
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "max_length": 20,
            "bad_words_ids": [[1]],
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
            "length_penalty": 2.0,
            "early_stopping": True,
        },
        "tokenizer_config": {"tokenizer_class": "BartTokenizer", "model_max_length": 30},
        "vocab": {token: number for number, token in enumerate(tokens)},
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"w {number}\n" for number in range(10)))


def build_pickled(published: Path, folder: Path) -> None:
    """The same with PyTorch's file of weights."""
    shutil.copytree(published, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def build_t5(folder: Path) -> None:
    """A T5 1.1 as published, with a tokenizer.json and tasks."""
    folder.mkdir()
    generation = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "max_length": 20, "num_beams": 2}
    config = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": WIDTH, "d_kv": 16, "d_ff": WIDTH,
        "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": SIZE, "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": False, "is_encoder_decoder": True,
        "task_specific_params": {"translation_en_to_de": {"prefix": "w1 w2 "}},
    }  # fmt: skip
    asked = Asked(folder / "config.json", config)
    family = FAMILIES["t5"]
    spec = t5.spec_of(family, asked, generation_of(Asked(asked.path, generation), asked, True))
    names = {ours: theirs for theirs, ours in t5.names_of(spec, family).items()}
    names |= {"encoder.embed_tokens.weight": "shared.weight", "decoder.output_projection.weight": "lm_head.weight"}
    tensors = {names[name]: tensor for name, tensor in tensors_of(random_model(spec, SIZE, SIZE)).items() if name in names}
    save_file(tensors, folder / "model.safetensors")
    special = ["<pad>", "</s>", "<unk>"]
    pieces = [*special, "\u2581", "w", *"0123456789", *(f"\u2581w{number}" for number in range(SIZE - 16)), "<extra_id_0>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    contents = {
        "config": config,
        "generation_config": generation,
        "tokenizer_config": {"tokenizer_class": "T5Tokenizer", "extra_ids": 1, "model_max_length": 30},
        "tokenizer": {
            "version": "1.0",
            "normalizer": None,
            "pre_tokenizer": metaspace,
            "decoder": metaspace,
            "post_processor": None,
            "added_tokens": [{"id": pieces.index(name), "content": name, **flags} for name in (*special, "<extra_id_0>")],
            "model": {"type": "Unigram", "unk_id": 2, "vocab": [[piece, -float(n)] for n, piece in enumerate(pieces)]},
        },
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def build_t5gemma(folder: Path, other: Path, second: bool = False) -> None:
    """A T5Gemma as published, with the tokenizer.json of ``other``: the first version, with several tokens that end outputs, or
    the ``second``."""
    folder.mkdir()
    side = {
        "vocab_size": SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,  # so that the kernels run it
        "query_pre_attn_scalar": 16,
        "max_position_embeddings": 30,
        "sliding_window": 30,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "layer_types": ["sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    encoder: dict = side
    if second:
        side |= {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
        side["rope_parameters"] = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
        }
        encoder = {"text_config": side, "eoi_token_index": 5}
    config = {
        "model_type": "t5gemma2" if second else "t5gemma",
        "architectures": [f"T5Gemma{2 * second or ''}ForConditionalGeneration"],
        "encoder": encoder,
        "decoder": side,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "vocab_size": SIZE,
    }
    generation = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1 if second else [1, 7], "max_length": 20}
    asked = Asked(folder / "config.json", config)
    reader = t5gemma2 if second else t5gemma
    spec = reader.spec_of(asked, generation_of(Asked(asked.path, generation), asked, True))
    stored = {"model.encoder.embed_tokens.eoi_embedding": torch.ones(WIDTH)} if second else {}
    for name, tensor in tensors_of(random_model(spec, SIZE, SIZE)).items():
        theirs = name.replace("coder.layer_norm.", "coder.norm.")
        for before, after in t5gemma.NAMES.items():
            theirs = theirs.replace(f".{after}", f".{before}")
        if name != "decoder.output_projection.weight":
            stored[f"model.{theirs}"] = tensor - 1 if "norm" in name else tensor
    save_file(stored, folder / "model.safetensors")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    for number, name in enumerate(("<pad>", "<eos>", "<bos>")):
        tokenizer["added_tokens"][number] |= {"content": name, "id": number}
        tokenizer["model"]["vocab"][number][0] = name
    tokenizer["model"]["vocab"][3][0] = "<unk>"
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "content": "<unk>", "id": 3})
    tokenizer["model"]["unk_id"] = 3
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, bos, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    settings = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}
    for name, content in (
        ("config", config),
        ("generation_config", generation),
        ("tokenizer_config", settings),
        ("tokenizer", tokenizer),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))


# ---- mutations: each changes files of a folder, and returns what it did

NUMBERS = (0, 1, -1, 2, 3, 4, SIZE - 1, SIZE, SIZE + 1, 31, 33, 1 << 20, 1 << 31, 1 << 32, 1 << 62, 1 << 63, -(1 << 63), 10**20,
           10**400, 0.5, 1e308, -1e308, 1e-310, math.nan, math.inf, -math.inf)  # fmt: skip
VALUES = (*NUMBERS, "", "x", "../x", "x" * 5000, "\0", "\ud800", "w1", "zz", None, True, False, [], {}, [0], [-1], [SIZE], ["x"],
          {"x": 1})  # fmt: skip
DTYPES = [
    getattr(torch, name) for name in "int8 uint8 int32 int64 float16 bfloat16 float64 bool complex64 float8_e4m3fn uint16".split()
]


def places_in(value, path=()):
    """The paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places_in(each, (*path, key))


def edit(content, rng: random.Random) -> str:
    """Change a JSON value somewhere inside."""
    path = rng.choice([*places_in(content)])
    within = content
    for key in path[:-1]:
        within = within[key]
    how, value = rng.choice(("set", "set", "set", "set", "delete", "add", "near")), rng.choice(VALUES)
    if how == "delete":
        del within[path[-1]]
    elif how == "add" and isinstance(within, dict):
        within[rng.choice(("x", *content))] = value
    elif how == "near" and type(within[path[-1]]) in (int, float):
        value = within[path[-1]] = within[path[-1]] * rng.choice((1, 2, -1)) + rng.choice((-1, 0, 1, 5))
    else:
        within[path[-1]] = value
    return f"{how} {path} {value!r:.40}"


def json_edit(folder: Path, rng: random.Random) -> str:
    path = rng.choice([*folder.glob("*.json")])
    content = json.loads(path.read_text())
    done = edit(content, rng)
    path.write_text(json.dumps(content))
    return done


def raw_edit(folder: Path, rng: random.Random) -> str:
    """Change bytes of any file, or cut it."""
    path = rng.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    how = rng.choice(("flip", "flip", "cut", "append", "zero", "insert"))
    at = rng.choice((rng.randrange(len(data) + 1), rng.randrange(min(len(data), 400) + 1)))
    some = bytes(rng.choices(range(256), k=rng.randrange(1, 9)))
    if how == "flip":
        data[at : at + len(some)] = some
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at : at + 64] = bytes(64)
    else:
        data[at if how == "insert" else len(data) : at] = some
    path.write_bytes(data)
    return f"{how} {path.name} at {at}"


def text_edit(folder: Path, rng: random.Random) -> str:
    """Change lines of a dictionary or of codes."""
    path = rng.choice([*folder.glob("dict.*"), folder / "codes"])
    lines = path.read_text().split("\n")
    at = rng.randrange(len(lines))
    line = rng.choice(
        (
            "",
            "w1",
            "w1 2",
            "w1 -2",
            "#version: 9.9",
            "#version:",
            "#version: x",
            "#version: 0.1",
            " ",
            "a b c",
            "\t\t",
            "w\u2028 3",
            "1 1 #fairseq:overwrite",
            "@@ 1",
            "x" * 3000,
            "\u00e9 \u0301",
            "\ufeff",
        )
    )
    lines[at : at + rng.randrange(3)] = [line] * rng.randrange(3)
    path.write_text("\n".join(lines))
    return f"{path.name} line {at}: {line!r:.40}"


def header_edit(folder: Path, rng: random.Random) -> str:
    """Change the header of a safetensors file, or where its data lie."""
    path = rng.choice([path for path in folder.iterdir() if path.suffix == ".safetensors" or path.name == "datastore"])
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    how = rng.choice(("shift", "dtype", "shape", "rename", "edit", "split"))
    if how == "dtype":
        dtypes = ("F32", "F16", "I32", "I64", "U8", "I8", "BOOL", "F8_E4M3", "F8_E8M0", "C64", "U16", "X")
        header[name]["dtype"] = rng.choice(dtypes)
    elif how == "shape":
        shape = header[name]["shape"]
        shapes = (shape[::-1], [math.prod(shape)], [1, *shape], [*shape, 1], [], [0], [-1], [1 << 62, 4])
        header[name]["shape"] = rng.choice(shapes)
    elif how == "rename":
        header[rng.choice(("x", DRAFT_VOCABULARY, *header))] = header.pop(name)
    elif how == "edit":
        edit(header, rng)
    text = json.dumps(header).encode() + b" " * (rng.randrange(8) if how == "shift" else 0)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return f"{path.name} {how} {name}"


def spoiled(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Another tensor in the place of one."""
    how = rng.choice(("number", "number", "dtype", "dtype", "shape", "order"))
    if how == "dtype":
        return tensor.to(rng.choice(DTYPES))
    if how == "shape":
        return tensor[: rng.randrange(len(tensor) + 1)].clone() if tensor.dim() else tensor[None].clone()
    if how == "order":
        return tensor.flip(0) if tensor.dim() else tensor
    changed = tensor.clone()
    numbers = NUMBERS if tensor.is_floating_point() else [n for n in NUMBERS if isinstance(n, int) and abs(n) < 1 << 31]
    if changed.numel():
        number = rng.choice(numbers)
        changed.view(-1)[rng.randrange(changed.numel()) : rng.choice((None, changed.numel()))] = float(min(number, 10**300))
    return changed


def tensor_edit(folder: Path, rng: random.Random) -> str:
    """Change a tensor of a file of weights, more often a small one, or one of whole numbers."""
    path = rng.choice([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    names = [name for name, tensor in tensors.items() if not tensor.is_floating_point() and rng.random() < 0.5]
    name = rng.choice(names or list(tensors))
    tensors[name] = spoiled(tensors[name], rng)
    if path.suffix == ".safetensors":
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    return f"{path.name} {name} {tensors[name].dtype} {tuple(tensors[name].shape)}"


def checkpoint_edit(folder: Path, rng: random.Random) -> str:
    """Change a checkpoint's settings or weights."""
    path = folder / "verifier.pt"
    content = checkpoint.load(path)
    if rng.random() < 0.3:
        settings = vars(content["args"])
        name = rng.choice([*settings, "x", "encoder_x"])
        settings[name] = rng.choice(VALUES)
        done = f"args.{name} {settings[name]!r:.40}"
    elif rng.random() < 0.2:
        name = rng.choice([*content, "cfg"])
        content[name] = rng.choice((*VALUES, {"model": 1}, {"task": [1]}, {"dictionaries": 3}, argparse.Namespace()))
        done = f"{name} {content[name]!r:.40}"
    else:
        weights = content["model"]
        name = rng.choice([*weights, "block_format", "block_verifier", "encoder.version"])
        old = weights.get(name, torch.ones(3))
        kinds: list[Callable] = [
            lambda: spoiled(old, rng),
            lambda: rng.choice(VALUES),
            lambda: old.to_sparse(),
            lambda: old.to("meta"),
            lambda: torch.quantize_per_tensor(old.float(), 0.1, 0, torch.qint8),
            lambda: torch.zeros(1).expand(old.shape),
            lambda: torch.nested.nested_tensor([old]),
            lambda: torch.zeros(1, 1).expand(1 << 20, 1 << 20),
        ]
        weights[name] = rng.choice(kinds)()
        done = f"model.{name} {type(weights[name]).__name__}"
    torch.save(content, path)
    return done


FOLDER_EDITS = (json_edit, json_edit, json_edit, tensor_edit, tensor_edit, header_edit, text_edit, raw_edit)
PARTS_EDITS = (checkpoint_edit, checkpoint_edit, header_edit, text_edit, raw_edit)


# ---- a case


def settings_for(rng: random.Random, datastore: Path | None, drafts: bool) -> Settings:
    options: dict = {"dtype": rng.choice(("float32", "float32", "int8", "int4", "bfloat16")), "threads": 1, "max_len_b": 12}
    options["strategy"] = "specdec" if drafts else "ar"
    if datastore is not None and rng.random() < 0.6:
        options |= {"strategy": "specdec", "draft_with": "retrieval", "datastore": str(datastore)}
    if options["strategy"] == "specdec":
        options["block_size"] = rng.choice((1, 3, "auto"))
        options |= {"tree": 4, "block_size": 3} if rng.random() < 0.15 and not datastore else {}
    if rng.random() < 0.4:
        if options["strategy"] == "specdec" and "tree" not in options:
            options["rule"] = rng.choice(("coupled", "rejection"))
        options |= {"sampling": True, "top_k": rng.choice((0, 5)), "top_p": rng.choice((1.0, 0.9))}
    return Settings(**options)


def attempt(folder: Path, rng: random.Random, base: Path) -> str:
    """Load a folder and decode with it; returns ``decoded``, or the error's line. A drafter's folder drafts for a model of
    ``base``, and its card is written."""
    try:
        if (folder / "verifier.pt").exists():
            datastore = folder / "datastore"
            pair = load_parts(str(folder / "verifier.pt"), None, str(folder), None, None, str(folder / "codes"))
        elif (folder / NAME).exists():
            write_card(folder, read(folder).drafter, read_record(folder))
            pair, datastore = with_drafter(load_folder(base / "block"), folder), None
        else:
            pair, datastore = load_folder(folder, rng.choice(("cpu", "cuda"))), None
        translator = Translator(pair, settings_for(rng, datastore, pair.drafter is not None))
        results = translator.translate(LINES, tokenized=rng.random() < 0.5)
    except (ValueError, OSError) as error:
        line = str(error)
        assert "\n" not in line and 0 < len(line) <= LONGEST_ERROR, f"not one line: {line!r:.3000}"
        return line
    assert len(results) == len(LINES)
    return "decoded"


def run(base: Path, number: int, seed: int, work: Path) -> tuple[str, str]:
    """Case ``number``: what was done, and what came of it."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice((*KINDS, "pickled", *["parts", "huggingface", "t5", "t5gemma", "t5gemma2"] * 2))
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base / kind, work)
    edits = PARTS_EDITS if kind == "parts" else FOLDER_EDITS
    done = [kind]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            done.append(rng.choice(edits)(work, rng))
        except Exception as error:  # of an edit of what an edit has left
            done.append(f"no edit ({type(error).__name__})")
    description = "; ".join(done)
    print(f"\r{number}: {description[:200]}", end="", file=sys.stderr, flush=True)
    return description, attempt(work, rng, base)


def main(first: int, count: int, seed: int) -> int:
    logging.disable(logging.WARNING)
    results: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        for number in range(first, first + count):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            description, result = run(Path(folder), number, seed, Path(folder, "case"))
            results["decoded" if result == "decoded" else "refused"] += 1
            if count == 1:
                print(f"\n{description}\n{result}")
    faulthandler.cancel_dump_traceback_later()
    print(f"\n{count:,} cases of seed {seed}: {results['decoded']:,} decoded, {results['refused']:,} refused in one line")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(main(**vars(parser.parse_args())))
