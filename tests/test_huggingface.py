"""Models that transformers made, at random: logits and greedy outputs are its own, with drafts and in every data type."""

import json
import random
from types import SimpleNamespace

import hf_text
import pytest
import torch
from conftest import transformers
from support import long_but

from specdec_plugins.commands import import_model
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.transformer import load_pair
from specdec_plugins.decoding.values import Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.huggingface import read_model
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.measure.certificate import LINES
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.translator import Translator

SIZE = 48
SMALL = {
    "vocab_size": SIZE, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 32, "max_position_embeddings": 40,
}  # fmt: skip
MARIAN = {**SMALL, "pad_token_id": SIZE - 1, "decoder_start_token_id": SIZE - 1, "eos_token_id": 0, "forced_eos_token_id": 0}
PEGASUS = {**SMALL, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
OPUS = {"bad_words_ids": [[SIZE - 1]], "renormalize_logits": True, "num_beams": 4}
CASES = {  # class, changes of its config, generation config
    "marian": ("Marian", {"activation_function": "swish", "scale_embedding": True}, OPUS),
    "marian, separate": ("Marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": SIZE}, OPUS),
    "marian, other sizes": ("Marian", {"share_encoder_decoder_embeddings": False, "vocab_size": SIZE + 5,
                                       "decoder_vocab_size": SIZE, "activation_function": "gelu_new"}, OPUS),
    "marian, separate, untied": ("Marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": SIZE,
                                            "tie_word_embeddings": False, "activation_function": "relu"}, OPUS),
    "m2m100": ("M2M100", {}, {"forced_bos_token_id": 7, "suppress_tokens": [1]}),
    "m2m100, untied": ("M2M100", {"tie_word_embeddings": False, "scale_embedding": False, "activation_function": "silu"},
                        {"suppress_tokens": [1]}),
    "bart": ("Bart", {}, {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "no_repeat_ngram_size": 3, "min_length": 6}),
    "bart, scaled, untied": ("Bart", {"scale_embedding": True, "tie_word_embeddings": False}, {"suppress_tokens": [5, 9]}),
    "mbart": ("MBart", {"decoder_start_token_id": 2, "scale_embedding": True}, {"forced_bos_token_id": 40, "num_beams": 5}),
    "mbart, language first": ("MBart", {"decoder_start_token_id": 41}, {"no_repeat_ngram_size": 2, "min_new_tokens": 3}),
    "pegasus": ("Pegasus", {"scale_embedding": True}, {"min_length": 4, "length_penalty": 0.8, "num_beams": 8}),
    "pegasus, unscaled": ("Pegasus", {"activation_function": "relu"}, {"begin_suppress_tokens": [1]}),
}  # fmt: skip
BASES = {"Marian": MARIAN, "Pegasus": PEGASUS}
NAMES = {"Marian": "MarianMTModel"}


def made(kind, changes, generation, seed=0, length=24):
    """A random model of transformers in float64, every weight of which matters."""
    library = transformers()
    config = getattr(library, f"{kind}Config")(**{**BASES.get(kind, SMALL), **changes})
    torch.manual_seed(seed)
    model = getattr(library, NAMES.get(kind, f"{kind}ForConditionalGeneration"))(config).double().eval()
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if "embed_positions" not in name or kind in ("Bart", "MBart"):
                each.add_(
                    (0.1 if "bias" in name or each.dim() < 2 else 0.6 if "encoder_attn" in name else 0.3) * torch.randn_like(each)
                )
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, config.eos_token_id] += 1
    model.generation_config.update(max_length=length, **generation)
    return model


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A model of transformers, and the folder that it was saved to."""
    folder = tmp_path_factory.mktemp("model")
    model = made(*CASES[request.param])
    model.save_pretrained(folder)
    return model, folder


def sources_of(model, count=12, seed=0, longest=12):
    rng, config = random.Random(seed), model.config
    usable = [token for token in range(3, config.vocab_size - 6) if token not in (config.pad_token_id, config.eos_token_id)]
    return [[*rng.choices(usable, k=rng.randrange(1, longest)), config.eos_token_id] for _ in range(count)]


def padded(rows, pad):
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def pair_of(verifier, drafter=None):
    """A pair without text."""
    sides = [
        Vocabulary([*map(str, range(len(verifier.tensors[f"{side}.embed_tokens.weight"])))], 3) for side in ("encoder", "decoder")
    ]
    codec = SimpleNamespace(source=sides[0], target=sides[1])
    return Pair("random", verifier, drafter, codec, CodecConfig("none", "random", {}, "", ""))


def generated(model, sources, **options):
    """The outputs of `generate` without start token and eos."""
    rows = model.generate(**padded(sources, model.config.pad_token_id), num_beams=1, do_sample=False, **options).tolist()
    eos = model.config.eos_token_id
    return [row[1 : row.index(eos, 1) if eos in row[1:] else None] for row in rows]


def decoded(pair, sources, **settings):
    return [each.tokens for each in Engine(pair, Settings(threads=1, **settings)).generate(sources)]


def excused(model, source, one, other):
    """Whether two outputs differ first where two of the best logits are closer than `generate`'s float32 can tell."""
    common = next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    ids = torch.tensor([[model.config.decoder_start_token_id, *one[:common]]])
    with torch.no_grad():
        best = model(**padded([source], 0), decoder_input_ids=ids).logits[0, -1].topk(5).values
    return (best[:-1] - best[1:]).min() < 1e-5


def test_logits_are_those_of_transformers(case):
    model, folder = case
    ours = TorchModel(load_pair(read_model(folder)[0], None, dtype=torch.float64)[0])
    sources, rng = sources_of(model, 6), random.Random(1)
    targets = [rng.choices(range(2, SIZE - 1), k=rng.randrange(9)) for _ in sources]
    targets = [
        [model.config.decoder_start_token_id, *(token for token in row if token != model.config.pad_token_id)] for row in targets
    ]
    with torch.no_grad():
        wanted = model(
            **padded(sources, model.config.pad_token_id), decoder_input_ids=padded(targets, 3)["input_ids"]
        ).logits  # fmt: skip
    verifier = ModelVerifier(ours)
    state = verifier.start(len(sources))
    verifier.admit(state, Source(sources, ours.spec.symbols))
    found = ours.read(state, Reading(targets, [0] * len(targets))).logits()
    for row, target in enumerate(targets):
        assert (found[row, : len(target)] - wanted[row, : len(target)]).abs().max() < 1e-9


def test_greedy_outputs_are_those_of_generate(case):
    model, folder = case
    sources, pair = sources_of(model, 40), pair_of(read_model(folder)[0])
    ends = pair.verifier.spec.outputs.ends
    for settings, options in (
        ({}, {}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"no_repeat_ngram_size": 3, "max_len_b": 7, "min_len": 2},
         {"no_repeat_ngram_size": 3, "max_length": 8 + ends, "min_length": 3}),
    ):  # fmt: skip
        wanted = generated(model, sources, **options)
        found = decoded(pair, sources, strategy="ar", dtype="float64", **settings)
        assert not options or len({tuple(row) for row in wanted}) > 5
        assert all(one == other or excused(model, *rows) for rows in zip(sources, wanted, found) for one, other in [rows[1:]])


def nearly(model, seed=0):
    """A drafter that mostly agrees with a model: the same with other last bits."""
    generator = torch.Generator().manual_seed(seed)
    moved = {id(each): each + 0.05 * torch.randn(each.shape, generator=generator).to(each) for each in model.tensors.values()}
    return DrafterModel("small", {name: moved[id(each)] for name, each in model.tensors.items()}, model.spec, block_size=4)


@pytest.mark.parametrize("dtype", long_but(("float64", "float32", "bfloat16", "int8"), "float64", "int8"))
def test_drafts_change_no_output(case, dtype):
    """Whatever drafts, and on the kernels in each data type."""
    model, folder = case
    sources, ours = sources_of(model, 24, longest=9), read_model(folder)[0]
    pair, how = pair_of(ours), {"dtype": dtype, "no_repeat_ngram_size": 3, "max_len_b": 20}
    plain = decoded(pair, sources, strategy="ar", **how)
    for drafter in ({"draft_with": "ngram"}, {"draft_with": "recycling", "tree": 6}, {"draft_with": "lookahead"}):
        assert decoded(pair, sources, block_size=4, **drafter, **how) == plain
    engine = Engine(pair_of(ours, nearly(ours)), Settings(threads=1, block_size=3, **how))
    assert [each.tokens for each in engine.generate(sources)] == plain
    assert engine.stats.accepted > 20  # drafters know no bans
    previous = Engine(pair, Settings(threads=1, draft_with="previous", block_size=5, **how))
    requests = [previous.request(n, each, hint=plain[n - 1][1:]) for n, each in enumerate(sources)]
    assert {each.index: each.tokens for each in previous.decode(requests, 7, None)} == dict(enumerate(plain))


# ---- whole folders: with text


@pytest.fixture(scope="module", params=["marian", "m2m100"])
def folder(request, tmp_path_factory):
    """A model with its tokenizer, as published."""
    kind = {"marian": "Marian", "m2m100": "M2M100"}[request.param]
    path = tmp_path_factory.mktemp("published") / "model"
    config = getattr(hf_text, request.param)(path)
    names = ("vocab_size", "pad_token_id", "eos_token_id")
    start = config["pad_token_id" if kind == "Marian" else "eos_token_id"]
    changes = {**{name: config[name] for name in names}, "decoder_start_token_id": start, "max_position_embeddings": 128}
    bans = {"bad_words_ids": [[config["pad_token_id"]]], "no_repeat_ngram_size": 2, "num_beams": 4}
    made(kind, changes, bans).float().save_pretrained(path)
    return path


def test_an_imported_folder_is_certified(folder, tmp_path, capsys):
    output, languages = tmp_path / "ours", [] if (folder / "source.spm").exists() else ["-s", "en", "-t", "de"]
    assert import_model.main([str(folder), "--output", str(output), "--check", *languages]) == 0
    said = capsys.readouterr().out
    certificate = json.loads((output / "certificate.json").read_text())
    lines = certificate["lines"]
    assert f"source token ids: {lines} of {lines}" in said and certificate["sources"] == lines
    assert certificate["texts"] >= lines - 2  # a random M2M100 says ids past its vocabulary
    assert certificate["logits"] < 1e-4 and all(each["margin"] < 1e-4 for each in certificate["differences"])
    assert certificate["outputs"] + len(certificate["differences"]) == lines
    pairs = [Translator.from_pretrained(str(each), strategy="ar", threads=1, dtype="float64") for each in (folder, output)]
    texts = [[each["translation_text"] for each in pair(LINES.split("\n")[:9], *languages[1::2])] for pair in pairs]
    assert texts[0] == texts[1] and len(set(texts[0])) > 5
    drafted = Translator.from_pretrained(str(folder), drafter=str(output), threads=1, dtype="float64", block_size=3)
    assert [each["translation_text"] for each in drafted(LINES.split("\n")[:9], *languages[1::2])] == texts[0]
    assert drafted.stats.accepted > 20 and drafted.engine.drafter_name == "small"
