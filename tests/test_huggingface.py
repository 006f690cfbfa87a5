"""Models that transformers made, at random: logits and greedy outputs are its own, with drafts and in every data type."""

import json
import random
import re
import shutil
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import hf_text
import numpy as np
import pytest
import torch
from conftest import ROOT, transformers
from naive import untrained_glide
from safetensors.torch import load_file, save_file
from support import long_but

from specdec_plugins.commands import import_model, progress, translate
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.arrays import tensor, tensors
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.formats.huggingface import FAMILIES, read_model, t5, task_of
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import ACTIVATIONS
from specdec_plugins.formats.huggingface.generation import HONOURED, NEUTRAL, WITHOUT_EFFECT, generation_of
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.measure import certificate
from specdec_plugins.measure.certificate import LINES
from specdec_plugins.model.spec import Local, OutputRules
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.translator import Translator

SIZE = 48
SMALL = {
    "vocab_size": SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
}
MARIAN = {**SMALL, "pad_token_id": SIZE - 1, "decoder_start_token_id": SIZE - 1, "eos_token_id": 0, "forced_eos_token_id": 0}
PEGASUS = {**SMALL, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
T5 = {
    "vocab_size": SIZE,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "initializer_factor": 0.5,
}
OPUS = {"bad_words_ids": [[SIZE - 1]], "renormalize_logits": True, "num_beams": 4}
GEMMA_SIDE = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "max_position_embeddings": 200,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "sliding_window": 21,
}
OTHER_SIDE = {
    **GEMMA_SIDE,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "attention_bias": True,
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    "hidden_activation": "silu",
}
GEMMA = {"vocab_size": SIZE, "encoder": GEMMA_SIDE, "decoder": GEMMA_SIDE}
GEMMA2_SIDE = {
    **GEMMA_SIDE,
    "final_logit_softcapping": None,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}


def gemma2(changes, encoder=None):
    """The config of T5Gemma 2, with a tiny vision tower. A token that sources have ends an image."""
    text = {**GEMMA2_SIDE, **changes, **(encoder or {})}
    images = {"vision_config": {**VISION, "patch_size": 4}, "mm_tokens_per_image": 4, "eoi_token_index": 20}
    return {"encoder": {"text_config": text, **images}, "decoder": {**GEMMA2_SIDE, **changes}}


def gemma_sides(kind, **changes):
    """The sides of a T5Gemma's config; none for other models."""
    side = {**GEMMA_SIDE, **changes}
    return {"T5Gemma": {"encoder": side, "decoder": side}, "T5Gemma2": gemma2(changes)}.get(kind, {})


SCALED = {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "untied": True}  # as T5 1.1 is published
CASES = {  # class, changes of its config, generation config
    "marian": ("Marian", {"activation_function": "swish", "scale_embedding": True}, OPUS),
    "marian, separate": ("Marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": SIZE}, OPUS),
    "marian, other sizes": (
        "Marian",
        {
            "share_encoder_decoder_embeddings": False,
            "vocab_size": SIZE + 5,
            "decoder_vocab_size": SIZE,
            "activation_function": "gelu_new",
        },
        OPUS,
    ),
    "marian, separate, untied": (
        "Marian",
        {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": SIZE,
            "tie_word_embeddings": False,
            "activation_function": "relu",
        },
        OPUS,
    ),
    "m2m100": ("M2M100", {}, {"forced_bos_token_id": 7, "suppress_tokens": [1]}),
    "m2m100, untied": (
        "M2M100",
        {"tie_word_embeddings": False, "scale_embedding": False, "activation_function": "silu"},
        {"suppress_tokens": [1]},
    ),
    "bart": ("Bart", {}, {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "no_repeat_ngram_size": 3, "min_length": 6}),
    "bart, scaled, untied": ("Bart", {"scale_embedding": True, "tie_word_embeddings": False}, {"suppress_tokens": [5, 9]}),
    "mbart": ("MBart", {"decoder_start_token_id": 2, "scale_embedding": True}, {"forced_bos_token_id": 40, "num_beams": 5}),
    "mbart, language first": ("MBart", {"decoder_start_token_id": 41}, {"no_repeat_ngram_size": 2, "min_new_tokens": 3}),
    "pegasus": ("Pegasus", {"scale_embedding": True}, {"min_length": 4, "length_penalty": 0.8, "num_beams": 8}),
    "pegasus, unscaled": ("Pegasus", {"activation_function": "relu"}, {"begin_suppress_tokens": [1]}),
    "t5": ("T5", {}, {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True, "no_repeat_ngram_size": 3}),
    "t5 1.1": ("T5", {**GATED, "d_kv": 8, "num_layers": 3, "num_decoder_layers": 1}, {"suppress_tokens": [7]}),
    "t5 1.1, tied": ("T5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-silu"}, {"forced_bos_token_id": 9}),
    "t5, scaled, untied": (
        "T5",
        {"feed_forward_proj": "gelu", "untied": True, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
        {"min_length": 4},
    ),
    "madlad": ("T5", {**GATED, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 1}, {}),
    "mt5": ("MT5", GATED, {"num_beams": 3}),
    "mt5, tied": ("MT5", {"feed_forward_proj": "relu", "layer_norm_epsilon": 1e-3}, {"no_repeat_ngram_size": 2}),
    "umt5": ("UMT5", GATED, {"num_beams": 2, "length_penalty": 1.5}),
    "t5gemma": ("T5Gemma", {"decoder": {**GEMMA_SIDE, "num_hidden_layers": 3, "hidden_size": 64}}, {}),
    "t5gemma, no caps, untied": (
        "T5Gemma",
        {"tie_word_embeddings": False, "encoder": OTHER_SIDE, "decoder": OTHER_SIDE},
        {"num_beams": 3},
    ),
    "t5, several ends": ("T5", {}, {"eos_token_id": [9, 1, 30], "min_length": 3, "begin_suppress_tokens": [1, 9, 30]}),
    "t5gemma, several ends": ("T5Gemma", {}, {"eos_token_id": [1, 7], "bad_words_ids": [[7], [8]]}),
    "t5gemma2": ("T5Gemma2", gemma2({}, {"sliding_window": 10}), {"num_beams": 2}),
    "t5gemma2, deep, untied": (
        "T5Gemma2",
        {
            "tie_word_embeddings": False,
            **gemma2(
                {
                    **OTHER_SIDE,
                    "final_logit_softcapping": 5.0,
                    "rope_parameters": {"full_attention": SCALED, "sliding_attention": {"rope_theta": 30.0}},
                    "num_hidden_layers": 3,
                    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
                }
            ),
        },
        {"no_repeat_ngram_size": 3, "num_beams": 3},
    ),
    "t5gemma2, six layers": (
        "T5Gemma2",
        gemma2({"layer_types": None, "sliding_window": 4}, {"num_hidden_layers": 7, "num_key_value_heads": 4}),
        {"eos_token_id": [1, 7]},
    ),
    "umt5, tied": ("UMT5", {"feed_forward_proj": "gated-relu", "num_heads": 3, "d_kv": 32}, {"begin_suppress_tokens": [1]}),
}
QUICK = [
    name
    for name, (kind, *_) in CASES.items()
    if "T5" not in kind or name in ("t5 1.1", "umt5", "t5gemma", "t5gemma2", "t5, several ends")
]
BASES = {"Marian": MARIAN, "Pegasus": PEGASUS, "T5": T5, "MT5": T5, "UMT5": T5, "T5Gemma": GEMMA, "T5Gemma2": {}}
NAMES = {"Marian": "MarianMTModel"}


def made(kind, changes, generation, seed=0, length=24):
    """A random model of transformers in float64, every weight of which matters."""
    library, changes = transformers(), {**BASES.get(kind, SMALL), **changes}
    untied = changes.pop("untied", False)
    config = getattr(library, f"{kind}Config")(**changes)
    torch.manual_seed(seed)
    model = getattr(library, NAMES.get(kind, f"{kind}ForConditionalGeneration"))(config).double().eval()
    if untied:  # version 5 ties them, whatever the config says
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    fixed = ["inv_freq", "embed_scale", "vision_tower"] + ["embed_positions"] * (kind not in ("Bart", "MBart"))
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if not any(part in name for part in fixed):
                cross = any(each in name for each in ("encoder_attn", "EncDecAttention", "cross_attn"))
                each.add_((0.1 if "bias" in name or each.dim() < 2 else 0.6 if cross else 0.3) * torch.randn_like(each))
            if "post_" in name:  # what T5Gemma's layers add, beside large embeddings
                each.add_(5)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, config.eos_token_id] += 1
    model.generation_config.update(max_length=length, **generation)
    return model


@pytest.mark.parametrize("kind, changes", [("Marian", {"scale_embedding": True}), ("Marian", {}), ("M2M100", {}), ("Bart", {})])
def test_models_grow_to_twice_the_width_and_compute_the_same(kind, changes):
    from families import widened  # of benchmarks/

    small = made(kind, changes, {})
    large = widened(small).eval()
    if kind == "M2M100":
        for side in (small.model.encoder, small.model.decoder, large.model.encoder, large.model.decoder):
            side.embed_positions.weights.zero_()  # sines do not grow
    source, target = torch.randint(3, SIZE - 6, (2, 3, 7))
    with torch.inference_mode():
        expected, found = (model(source, decoder_input_ids=target).logits for model in (small, large))
    assert large.config.d_model == 2 * small.config.d_model and expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.fixture(scope="module", params=long_but(CASES, *QUICK))
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
    """The outputs of `generate` without start token and what ends them."""
    rows = model.generate(**padded(sources, model.config.pad_token_id), num_beams=1, do_sample=False, **options).tolist()
    eos = model.generation_config.eos_token_id
    return [certificate.ended(row[1:], eos if isinstance(eos, list) else [eos]) for row in rows]


def decoded(pair, sources, **settings):
    return [each.tokens for each in Engine(pair, Settings(threads=1, **{"beam": 1, **settings})).generate(sources)]


def start_of(model):
    start = getattr(model.config, "decoder_start_token_id", None)
    return model.config.bos_token_id if start is None else start


def excused(model, source, one, other):
    """Whether two outputs differ first where two of the best logits are closer than `generate`'s float32 can tell."""
    common = next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    ids = torch.tensor([[start_of(model), *one[:common]]])
    with torch.no_grad():
        best = model(**padded([source], 0), decoder_input_ids=ids).logits[0, -1].topk(5).values
    return (best[:-1] - best[1:]).min() < 1e-5


def test_logits_are_those_of_transformers(case):
    model, folder = case
    ours = TorchModel(load_pair(read_model(folder)[0], None, dtype=torch.float64)[0])
    sources, rng = sources_of(model, 6), random.Random(1)
    targets = [rng.choices(range(2, SIZE - 1), k=rng.randrange(9)) for _ in sources]
    if ours.spec.decoder.embedding.offset is None:  # beyond the last bucket of a relative bias
        sources.append(rng.choices(range(3, SIZE - 6), k=160))
        targets.append(rng.choices(range(3, SIZE - 1), k=150))
    targets = [[start_of(model), *(token for token in row if token != model.config.pad_token_id)] for row in targets]
    with torch.no_grad():
        wanted = model(**padded(sources, model.config.pad_token_id), decoder_input_ids=padded(targets, 3)["input_ids"]).logits
    ends = [ours.spec.symbols.eos, *ours.spec.ends]  # exchange their logits: the first has the largest
    wanted[..., ends] = wanted[..., ends].sort(-1, descending=True).values
    verifier = ModelVerifier(ours)
    state = verifier.start(len(sources))
    verifier.admit(state, Source(sources, ours.spec.symbols))
    found = tensor(ours.read(state, Reading(targets, [0] * len(targets))).logits())
    for row, target in enumerate(targets):
        assert (found[row, : len(target)] - wanted[row, : len(target)]).abs().max() < 1e-9


def test_greedy_outputs_are_those_of_generate(case):
    model, folder = case
    sources, pair = sources_of(model, 20), pair_of(read_model(folder)[0])
    ends = pair.verifier.spec.outputs.ends
    for settings, options in (
        ({}, {}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        (
            {"no_repeat_ngram_size": 3, "max_len_b": 7, "min_len": 2},
            {"no_repeat_ngram_size": 3, "max_length": 8 + ends, "min_length": 3},
        ),
    ):
        wanted = generated(model, sources, **options)
        found = decoded(pair, sources, strategy="ar", dtype="float64", **settings)
        assert not options or len({tuple(row) for row in wanted}) > 5
        assert all(one == other or excused(model, *rows) for rows in zip(sources, wanted, found) for one, other in [rows[1:]])


def searched(model, sources, beam, nbest, **options):
    """The n-best lists of `generate`: tokens without start token and eos, and scores. Each source alone: none is padded."""
    eos, pad, found = model.config.eos_token_id, model.config.pad_token_id, []
    for source in sources:
        how = {
            "num_beams": beam,
            "num_return_sequences": nbest,
            "output_scores": True,
            "return_dict_in_generate": True,
            **options,
        }
        out = model.generate(**padded([source], pad), do_sample=False, **how)
        scored = []
        for row, score, steps in zip(
            out.sequences.tolist(), out.sequences_scores.tolist(), (out.beam_indices >= 0).sum(1).tolist()
        ):
            row = row[1 : 1 + steps]
            scored.append((row[: row.index(eos)] if eos in row else row, score))
        found.append(scored)
    return found


@pytest.mark.parametrize("stopping", long_but(["false", "true", "never"], "never"))
def test_searches_are_those_of_generate(case, stopping):
    model, folder = case
    pair, sources = pair_of(read_model(folder)[0]), sources_of(model, 2, longest=9)
    if pair.verifier.spec.ends:
        for more in ({"beam": 2}, {"sampling": True}):
            with pytest.raises(ValueError, match="several tokens end its outputs, which only greedy decoding supports"):
                Engine(pair, Settings(threads=1, strategy="ar", **more))
        return
    rules, ties = pair.verifier.spec.outputs, 0
    spec = replace(pair.verifier.spec, outputs=replace(rules, early_stopping=stopping))
    pair = replace(pair, verifier=replace(pair.verifier, spec=spec))
    for beam, lenpen in ((4, 0.6), (5, 1.4)):
        options = {"early_stopping": {"true": True, "false": False}.get(stopping, "never")}
        penalty = {} if lenpen is None else {"length_penalty": lenpen}
        wanted = searched(model, sources, beam, 2, **options, **penalty)
        engine = Engine(pair, Settings(threads=1, strategy="ar", dtype="float64", beam=beam, nbest=2, lenpen=lenpen))
        outputs = engine.generate(sources, batch_size=2)
        for number, theirs in enumerate(wanted):
            ours = [(each.tokens, each.score) for each in outputs if each.index == number]
            if [tokens for tokens, _ in ours] != [tokens for tokens, _ in theirs]:
                assert abs(ours[0][1] - theirs[0][1]) < 1e-5, (number, beam, lenpen, ours, theirs)
                ties += 1
                continue
            assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-5)
    assert ties <= 1


def test_without_drafts_the_beam_is_the_models(plain, caplog):
    pair = pair_of(read_model(plain[0])[0])
    for expected, settings in (
        (4, {"strategy": "ar"}),
        (4, {}),
        (None, {"draft_with": "ngram"}),
        (None, {"strategy": "ar", "beam": 1}),
        (2, {"strategy": "ar", "beam": 2}),
        (3, {"draft_with": "ngram", "beam": 3}),
        (None, {"strategy": "ar", "sampling": True}),
    ):
        caplog.clear()
        beam = Engine(pair, Settings(threads=1, **settings)).beam
        assert (beam and beam.size) == expected
        said = "searching with them; beam 1 is greedy" if beam else "decoding with drafts is greedy; beam 4 searches"
        noted = "beam" not in settings and "sampling" not in settings
        assert (f"random asks for 4 beams: {said}" in caplog.text) == noted


def nearly(model, seed=0):
    """A drafter that mostly agrees with a model: the same with other last bits."""
    generator = torch.Generator().manual_seed(seed)
    given = tensors(model.tensors)
    moved = {id(each): each + 0.05 * torch.randn(each.shape, generator=generator).to(each) for each in given.values()}
    return DrafterModel("small", {name: moved[id(each)] for name, each in given.items()}, model.spec, block_size=4)


@pytest.mark.parametrize("dtype", long_but(("float64", "float32", "bfloat16", "int8"), "int8"))
def test_drafts_change_no_output(case, dtype):
    """Whatever drafts, and on the kernels in each data type."""
    model, folder = case
    sources, ours = sources_of(model, 8, longest=9), read_model(folder)[0]
    pair, how = pair_of(ours), {"dtype": dtype, "no_repeat_ngram_size": 3, "max_len_b": 20, "beam": 1}
    plain = decoded(pair, sources, strategy="ar", **how)
    for drafter in ({"draft_with": "ngram"}, {"draft_with": "recycling", "tree": 6}, {"draft_with": "lookahead"}):
        assert decoded(pair, sources, block_size=4, **drafter, **how) == plain
    for drafter, least in ((nearly(ours), 4), (untrained_glide(ours), 0)):
        engine = Engine(pair_of(ours, drafter), Settings(threads=1, block_size=3, **how))
        assert [each.tokens for each in engine.generate(sources)] == plain
        assert engine.stats.accepted > least  # drafters know no bans
    previous = Engine(pair, Settings(threads=1, draft_with="previous", block_size=5, **how))
    requests = [previous.request(n, each, hint=plain[n - 1][1:]) for n, each in enumerate(sources)]
    assert {each.index: each.tokens for each in previous.decode(requests, 4, None)} == dict(enumerate(plain))


# ---- whole folders: with text


PUBLISHED = {  # the tokenizer, the class, the start token, languages
    "marian": (hf_text.marian, "Marian", "<pad>", ()),
    "m2m100": (hf_text.m2m100, "M2M100", "</s>", ("en", "de")),
    "nllb": (hf_text.nllb, "M2M100", "</s>", ("fra_Latn", "deu_Latn")),
    "mbart": (hf_text.mbart, "MBart", "de_DE", ("fr_XX", "de_DE")),
    "mbart50": (partial(hf_text.mbart, fifty=True), "MBart", "</s>", ("fr_XX", "pl_PL")),
    "pegasus": (hf_text.pegasus, "Pegasus", "<pad>", ()),
    "bart": (hf_text.bart, "Bart", "</s>", ()),
    "t5": (hf_text.t5, "T5", "<pad>", ("en", "de")),
    "mt5": (partial(hf_text.t5, model_only=True, extra_ids=0), "MT5", "<pad>", ()),
    "umt5": (hf_text.umt5, "UMT5", "<pad>", ()),
    "madlad": (partial(hf_text.t5, madlad=True, unknown=2), "T5", "<unk>", (None, "deu")),
    "byt5": (hf_text.byt5, "T5", "<pad>", ()),
    "t5gemma": (hf_text.gemma, "T5Gemma", "<bos>", ()),
    "t5gemma2": (hf_text.gemma, "T5Gemma2", "<bos>", ()),
}
TASKS = {  # as T5's config names them
    "summarization": {"prefix": "summarize: ", "num_beams": 4},
    "translation_en_to_de": {"prefix": "translate English to German: "},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}


@pytest.fixture(scope="module", params=long_but(PUBLISHED, "nllb", "t5"))
def published(request, tmp_path_factory):
    """The folder of a model with its tokenizer, and the languages to ask for."""
    tokenizer, kind, start, languages = PUBLISHED[request.param]
    path = tmp_path_factory.mktemp("published") / "model"
    config = {name: value for name, value in tokenizer(path).items() if name != "model_type"}
    start = transformers().AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(start)
    bans = {"bad_words_ids": [[config["pad_token_id"]]], "no_repeat_ngram_size": 2, "num_beams": 4}
    config |= {"decoder_start_token_id": start} | ({} if "T5" in kind else {"max_position_embeddings": 128})
    config |= {"task_specific_params": TASKS} if request.param == "t5" else {}
    config |= gemma_sides(kind, vocab_size=config["vocab_size"], max_position_embeddings=400)
    made(kind, config, bans).float().save_pretrained(path)
    return path, languages


def test_an_imported_folder_is_certified(published, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    (few := tmp_path / "lines").write_text("".join(f"{line}\n" for line in [*read_lines(LINES)][::3]), encoding="utf-8")
    monkeypatch.setattr(certificate, "LINES", few)
    folder, languages = published
    output, options = tmp_path / "ours", [word for pair in zip(("-s", "-t"), languages) if pair[1] for word in pair]
    assert import_model.main([str(folder), "--output", str(output), "--check", *options]) == 0
    said, shown = capsys.readouterr()
    found = json.loads((output / "certificate.json").read_text())
    lines = found["lines"]
    assert (
        "loading transformers and the model" in shown and f"comparing line {lines} of {lines} with transformers; 0:00:" in shown
    )
    assert f"source token ids: {lines} of {lines}" in said and found["sources"] == lines
    assert found["texts"] >= lines - 2  # a random M2M100 says ids past its vocabulary
    assert found["logits"] < 1e-3 and all(each["margin"] < 1e-3 for each in found["differences"])
    assert found["outputs"] + len(found["differences"]) == lines
    assert f"outputs of 4 beams (float32): {found['searched']} of {lines} lines" in said and found["searched"] > lines - 4
    pairs = [Translator.from_pretrained(str(each), beam=1, threads=1, dtype="float64") for each in (folder, output)]
    lines = list(read_lines(LINES))[:9]
    texts = [[each["translation_text"] for each in pair(lines, *languages)] for pair in pairs]
    assert texts[0] == texts[1] and len(set(texts[0])) > 5
    drafted = Translator.from_pretrained(str(folder), drafter=str(output), threads=1, dtype="float64", block_size=3)
    assert [each["translation_text"] for each in drafted(lines, *languages)] == texts[0]
    assert drafted.stats.accepted > 20 and drafted.engine.drafter_name == "small"
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    command = ["--model", folder, "--drafter", output, *options, tmp_path / "text", "-o", tmp_path / "out", "--quiet"]
    assert translate.main([*map(str, command), "--threads", "1"]) == 0
    assert len((tmp_path / "out").read_text().split("\n")) == 10


def test_what_stands_in_place_of_the_pipelines_runs(tmp_path, monkeypatch, capsys):
    """The examples of the manual, each in three lines, with tiny models of the names in them."""
    made_of = {
        "opus-mt-en-de": (hf_text.marian, "Marian"),
        "bart-large-cnn": (hf_text.bart, "Bart"),
        "flan-t5-base": (hf_text.t5, "T5"),
    }
    text = (
        (ROOT / "docs/bring-your-huggingface-model.md").read_text(encoding="utf-8").partition("## In place of the pipelines")[2]
    )
    examples = re.findall(r"```python\n(.*?)```", text.partition("\n## ")[0], re.S)
    monkeypatch.setattr("specdec_plugins.formats.hub.find", lambda name: tmp_path / str(name).split("/")[-1])
    for example, (name, (tokenizer, kind)) in zip(examples, made_of.items(), strict=True):
        config = {key: value for key, value in tokenizer(tmp_path / name).items() if key != "model_type"}
        if kind == "Marian":
            config["decoder_start_token_id"] = config["pad_token_id"]
        limits = {} if kind == "T5" else {"max_position_embeddings": 128}
        made(kind, {**config, **limits}, {"num_beams": 2}).float().save_pretrained(tmp_path / name)
        assert name in example and len([*filter(None, example.split("\n"))]) == 3
        exec(compile(example, name, "exec"), {})
        assert capsys.readouterr().out.strip()


SUMMARIES = {
    "prefix": "summarize: ",
    "early_stopping": True,
    "length_penalty": 2.0,
    "max_length": 200,
    "min_length": 30,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
}


def test_a_folder_of_one_task_has_its_settings(tmp_path, capsys):
    """As t5-small's config names them, over those of the whole model."""
    tokenizer = {name: value for name, value in hf_text.t5(tmp_path / "t5").items() if name != "model_type"}
    odd = {"max_new_tokens": 7, "num_beams": 1, "min_new_tokens": 2}
    tasks = {"summarization": SUMMARIES, "odd": odd, "wrong": {"do_sample": True, "x": 1, "num_beams": "2", "prefix": 3}}
    given = {"num_beams": 2, "length_penalty": 0.5, "min_length": 4}
    made("T5", {**tokenizer, "task_specific_params": tasks}, given).float().save_pretrained(tmp_path / "t5")
    arguments = [str(tmp_path / "t5"), "--output", str(tmp_path / "out"), "--task"]
    assert import_model.main([*arguments, "summarization"]) == 0
    pair = load_folder(tmp_path / "out")
    assert pair.verifier.spec.outputs == OutputRules("huggingface", False, 199, 29, 3, 4, 2.0, "true")
    assert pair.codec.decode(pair.codec.encode("The dog").ids).startswith("summarize: The")
    rules = load_folder(tmp_path / "t5").verifier.spec.outputs
    assert task_of(tmp_path / "t5", "odd", rules) == (OutputRules("huggingface", False, 7, 2, 0, 1, 0.5), None)
    for task, message in (
        ("translation", "task 'translation' has no settings; these have: odd, summarization, wrong"),
        ("wrong", "prefix is 3, not a word; config.json: do_sample True is not supported; only False; 'x' is not a setting of"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            task_of(tmp_path / "t5", task, rules)
    assert import_model.main([*arguments, "summarization", "--check"]) == 2
    assert "--task cannot be combined with --check" in capsys.readouterr().err
    assert import_model.main([str(tmp_path / "out"), "--output", str(tmp_path / "more"), "--task", "odd"]) == 1
    assert "tasks are those of a Hugging Face folder's config.json" in capsys.readouterr().err


def test_a_smaller_model_needs_the_same_vocabulary(tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, codes in zip(folders, ((), (">>fra<<",))):
        config = {name: value for name, value in hf_text.marian(folder, codes=codes).items() if name != "model_type"}
        made("Marian", {**config, "decoder_start_token_id": config["pad_token_id"]}, {}).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"cannot draft for .*one: it has another source vocabulary and another target"):
        Translator.from_pretrained(str(folders[0]), drafter=str(folders[1]))


def test_a_check_without_transformers_says_so(plain, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert import_model.main([str(plain[0]), "--check"]) == 1
    assert capsys.readouterr().err.startswith("specdec-import: error: --check compares with transformers, which is not installed")
    assert import_model.main([str(plain[0])]) == 2 and "--output is missing" in capsys.readouterr().err


# ---- files


def test_a_folder_without_a_drafter_is_decoded_plainly(published, caplog):
    folder, languages = published
    with caplog.at_level("WARNING"):
        texts = Translator.from_pretrained(str(folder), threads=1)("a b c", *languages)
    assert "has no drafter; decoding without drafts" in caplog.text
    assert texts == Translator.from_pretrained(str(folder), strategy="ar", threads=1)("a b c", *languages)
    with pytest.raises(ValueError, match="tree is not supported by strategy ar"):
        Translator.from_pretrained(str(folder), tree=4)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A small BART: its folder, model and state."""
    folder, model = tmp_path_factory.mktemp("plain"), made("Bart", {}, {"num_beams": 4, "length_penalty": 2.0})
    model.save_pretrained(folder)
    return folder, model


def test_weights_are_found_in_every_kind_of_file(plain, tmp_path):
    """PyTorch's files, new and old, shards of both kinds, half precision, and tied tensors that stay one tensor."""
    folder, model = plain
    known, spec = read_model(folder)[0].tensors, read_model(folder)[0].spec
    state, config = model.state_dict(), (folder / "config.json").read_text()
    names = sorted(state)
    kinds = {
        "zip": lambda to: torch.save(state, to / "pytorch_model.bin"),
        "old": lambda to: torch.save(state, to / "pytorch_model.bin", _use_new_zipfile_serialization=False),
        "half": lambda to: deepcopy(model).half().save_pretrained(to),
        "shards": lambda to: model.save_pretrained(to, max_shard_size="40KB"),
        "bin shards": lambda to: (
            [
                torch.save({name: state[name] for name in part}, to / f"pytorch_model-{n}.bin")
                for n, part in enumerate((names[:9], names[9:]))
            ]
            + [
                (to / "pytorch_model.bin.index.json").write_text(
                    json.dumps({"weight_map": {name: f"pytorch_model-{int(n >= 9)}.bin" for n, name in enumerate(names)}})
                )
            ]
        ),
    }
    for kind, save in kinds.items():
        to = tmp_path / kind
        to.mkdir()
        (to / "config.json").write_text(config)
        shutil.copy(folder / "generation_config.json", to)
        save(to)
        found = read_model(to)[0]
        assert found.tensors.keys() == known.keys() and found.spec == spec
        tied = [found.tensors[name] for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight")]
        assert tied[0] is tied[1] is found.tensors["decoder.embed_tokens.weight"]
        if kind == "half":
            assert {each.dtype for each in found.tensors.values()} == {np.dtype(np.float16)}
        else:
            assert all(np.array_equal(tensor, known[name]) for name, tensor in found.tensors.items())


def test_weights_that_the_config_ties_but_the_file_does_not_stay_apart(plain, tmp_path):
    folder, model = plain
    shutil.copytree(folder, tmp_path / "apart")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + 1
    save_file(tensors, tmp_path / "apart" / "model.safetensors", metadata={"format": "pt"})
    theirs = type(model).from_pretrained(tmp_path / "apart")
    found = read_model(tmp_path / "apart")[0].tensors
    assert np.array_equal(found["decoder.output_projection.weight"], theirs.lm_head.weight.detach())
    assert found["encoder.embed_tokens.weight"] is found["decoder.embed_tokens.weight"]


def test_a_model_published_without_its_projection_has_the_embedding(plain, tmp_path):
    """As BART itself: names without ``model.``, and another class."""
    folder, model = plain
    model.model.save_pretrained(tmp_path)
    shutil.copy(folder / "generation_config.json", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BartModel"]
    found, known = (read_model(each)[0].tensors for each in (tmp_path, folder))
    assert found.keys() | {"decoder.output_projection.bias"} == known.keys()
    assert all(np.array_equal(tensor, known[name]) for name, tensor in found.items())


class Runs:
    def __reduce__(self):
        return print, ("a pickle ran",)


def changed(name, **values):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-99])


def pickled(content):
    def change(folder):
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return change


def indexed(content):
    def change(folder):
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        (folder / "model.safetensors.index.json").write_text(content)

    return change


ASKS = partial(changed, "generation_config.json")
HOSTILE = [
    (cut, "model.safetensors: not a readable safetensors file"),
    (pickled({"x": Runs()}), "pytorch_model.bin: refused: "),
    (pickled([1]), "pytorch_model.bin: no weights by name"),
    (pickled({"x": 1}), "the weight 'x' is not a tensor but int"),
    (pickled({"x": torch.ones(1).expand(1 << 40)}), "the weight 'x' has more elements than memory"),
    (indexed('{"weight_map": {"a": "../outside.safetensors"}}'), "'../outside.safetensors' is not a file in the folder"),
    (indexed('{"weight_map": [1]}'), "no 'weight_map' of file names"),
    (indexed("{"), "model.safetensors.index.json: damaged or not ours"),
    (lambda folder: (folder / "model.safetensors").unlink(), "no weights in it; expected model.safetensors or pytorch_model.bin"),
    (lambda folder: (folder / "config.json").write_text("["), "config.json: damaged or not ours"),
    (lambda folder: (folder / "generation_config.json").write_bytes(b"\xff"), "generation_config.json: damaged or not ours"),
    (
        changed("config.json", model_type="longt5"),
        "model_type 'longt5' is not supported (the nearest that is: t5); available: marian, m2m",
    ),
    (changed("config.json", model_type="x"), "model_type 'x' is not supported; available: marian, m2m_100, bart"),
    (changed("config.json", model_type=["bart"]), "model_type ['bart'] is not supported"),
    (changed("config.json", architectures=["BartForSequenceClassification"]), "bart needs BartForConditionalGeneration"),
    (changed("config.json", d_model=10**9), "wider than 65,536"),
    (changed("config.json", decoder_ffn_dim=65_568), "decoder: more than 1,000 layers, or wider than 65,536"),
    (changed("config.json", d_model="32"), "d_model is '32', not a whole number"),
    (changed("config.json", d_model=None), "config.json: no 'd_model'"),
    (changed("config.json", d_model=64), "weights of another shape"),
    (changed("config.json", encoder_layers=10**6), "more than 1,000 layers"),
    (changed("config.json", encoder_layers=3), "missing weights: encoder.layers.2."),
    (changed("config.json", decoder_layers=1), "weights without a place here: decoder.layers.1."),
    (changed("config.json", max_position_embeddings=10**12), "max_position_embeddings is 1000000000000"),
    (changed("config.json", max_position_embeddings=41), "decoder.embed_positions.weight (42, 32), not (43, 32)"),
    (changed("config.json", vocab_size=SIZE + 1), f"has {SIZE} tokens, not the config's {SIZE + 1}"),
    (changed("config.json", encoder_attention_heads=5), "5 heads do not divide a width of 32"),
    (changed("config.json", activation_function="tanh"), "activation function 'tanh'; available: relu, gelu"),
    (changed("config.json", scale_embedding="yes"), "scale_embedding is 'yes', neither true nor false"),
    (changed("config.json", normalize_before=True), "normalize_before True is not what BartForConditionalGeneration computes"),
    (ASKS(eos_token_id=[2, "x"]), "eos_token_id is [2, 'x'], not a list of tokens"),
    (ASKS(eos_token_id=[2, SIZE]), f"ending token {SIZE} is outside the vocabulary of {SIZE} tokens"),
    (ASKS(eos_token_id=[2, 3], forced_bos_token_id=3), "forced_bos_token_id is 3, a token that ends"),
    (ASKS(eos_token_id=[2, 3], begin_suppress_tokens=[2]), "begin_suppress_tokens [2] is not supported; only eos, [2, 3]"),
    (ASKS(decoder_start_token_id=SIZE), f"start token {SIZE} is outside the vocabulary of {SIZE} tokens"),
    (ASKS(bad_words_ids=[[3, 4]]), "bad_words_ids [[3, 4]] is not supported; only a list of single tokens"),
    (ASKS(bad_words_ids=[[SIZE]]), f"suppressed token {SIZE} is outside"),
    (ASKS(suppress_tokens=[2]), "suppress_tokens [2] is not supported; only tokens other than eos"),
    (ASKS(max_length=0), "max_length is 0, not a whole number from 3"),
    (ASKS(num_beams=10**9), "num_beams is 1000000000, not a whole number from 1 to 1,000"),
    (ASKS(length_penalty=1e300), "length_penalty is 1e+300, not a number from -30 to 30"),
    (ASKS(forced_eos_token_id=5), "forced_eos_token_id 5 is not supported; only eos, 2"),
    (ASKS(forced_bos_token_id=2), "forced_bos_token_id is 2, a token that ends"),
    (ASKS(early_stopping="soon"), "early_stopping 'soon' is not supported"),
    (ASKS(early_stopping=1), "generation_config.json: early_stopping 1 is not supported; only true, false or never"),
    (ASKS(no_repeat_ngram_size=1), "no_repeat_ngram_size 1 is not supported"),
    (
        ASKS(do_sample=True, repetition_penalty=1.2, novel_setting=3),
        "do_sample True is not supported; only False; generation_config.json: repetition_penalty 1.2 is not supported; only 1; "
        "generation_config.json: unknown setting 'novel_setting'",
    ),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_hostile_folder_is_refused_in_one_line(plain, tmp_path, capfd, change, message):
    refused(plain[0], tmp_path / "folder", change, message)
    assert "a pickle ran" not in capfd.readouterr().out


def refused(original, folder, change, message):
    """A changed copy of a folder is refused in one line with this message."""
    shutil.copytree(original, folder)
    change(folder)
    with pytest.raises(ValueError) as error:
        read_model(folder)
    assert message in str(error.value) and str(folder) in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1500


def saved(tmp_path_factory, *case):
    """The folder of a small model."""
    folder = tmp_path_factory.mktemp("model")
    made(*case).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small_t5(tmp_path_factory):
    return saved(tmp_path_factory, "T5", {}, {})


def renamed(old, new):
    def change(folder):
        path = folder / "model.safetensors"
        save_file({name.replace(old, new): each for name, each in load_file(path).items()}, path, metadata={"format": "pt"})

    return change


BIAS = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
HOSTILE_T5 = [
    (changed("config.json", d_kv=None), "config.json: no 'd_kv'"),
    (changed("config.json", d_kv=8), "weights of another shape: encoder.layers.0.self_attn.q_proj.weight (64, 32), not (32, 32)"),
    (changed("config.json", d_kv=10**5), "wider than 65,536"),
    (changed("config.json", num_heads=0), "num_heads is 0, not a whole number from 1"),
    (changed("config.json", num_layers=3), "missing weights: encoder.layers.2."),
    (changed("config.json", num_decoder_layers=1), "weights without a place here: decoder.block.1."),
    (changed("config.json", num_decoder_layers=10**8), "more than 1,000 layers"),
    (changed("config.json", is_gated_act=True), "encoder.layers.0.gate.weight"),
    (changed("config.json", feed_forward_proj="fast-relu"), "feed_forward_proj 'fast-relu' is not supported; only an activation"),
    (changed("config.json", dense_act_fn="tanh"), "activation function 'tanh'; available: relu, gelu"),
    (changed("config.json", relative_attention_num_buckets=30), "a relative bias of 30 buckets up to a distance of 128"),
    (changed("config.json", relative_attention_max_distance=10**9), "up to a distance of 1,000,000,000"),
    (changed("config.json", layer_norm_epsilon=0), "a norm's eps is 0"),
    (changed("config.json", is_encoder_decoder=False), "is_encoder_decoder False is not supported; only true"),
    (changed("config.json", scale_decoder_outputs=1), "scale_decoder_outputs is 1, neither true nor false"),
    (changed("config.json", architectures=["T5EncoderModel"]), "t5 needs T5ForConditionalGeneration"),
    (changed("config.json", vocab_size=SIZE - 1), f"has {SIZE} tokens, not the config's {SIZE - 1}"),
    (renamed(BIAS, "x"), "missing weights: decoder.layers.0.self_attn.relative.weight, decoder.layers.1."),
    (renamed("decoder.block.1.layer.0.SelfAttention.q.weight", BIAS.replace("block.0", "block.1")), "missing weights"),
    (renamed("shared.weight", "x"), "missing weights: encoder.embed_tokens.weight"),
    (ASKS(decoder_start_token_id=SIZE), f"start token {SIZE} is outside the vocabulary"),
]


def within(side, **values):
    def change(folder):
        path = folder / "config.json"
        content = json.loads(path.read_text())
        content[side] |= values
        path.write_text(json.dumps(content))

    return change


HOSTILE_GEMMA = [
    (changed("config.json", encoder=None), "config.json: no 'encoder' with its sizes"),
    (changed("config.json", decoder=[1]), "config.json: no 'decoder' with its sizes"),
    (within("encoder", head_dim=None), "config.json: no 'head_dim'"),
    (within("encoder", head_dim=7), "rotary positions of heads of width 7"),
    (within("decoder", num_key_value_heads=3), "3 key-value heads do not divide 4 heads"),
    (within("decoder", num_hidden_layers=5, layer_types=None), "missing weights: decoder.layers.3."),
    (within("decoder", num_hidden_layers=5), "for each of 5 layers"),
    (within("decoder", layer_types=["chunked_attention"]), "is not supported; only full_attention and sliding_attention"),
    (within("decoder", sliding_window=0), "sliding_window is 0, not a whole number from 1"),
    (within("decoder", rope_parameters={"rope_type": "yarn", "rope_theta": 9.0}), "only the rope_type 'default'"),
    (within("decoder", rope_parameters=3), "only the rope_type 'default' and a rope_theta"),
    (within("decoder", rope_parameters=None, rope_scaling={"factor": 2}), "rope_scaling {'factor': 2} is not"),
    (within("encoder", rope_parameters={"rope_theta": 0.5}), "rotary positions with a theta of 0.5"),
    (within("encoder", attn_logit_softcapping=-1), "the cap of scores: a factor of -1.0"),
    (within("encoder", query_pre_attn_scalar="x"), "query_pre_attn_scalar is 'x', not a whole number"),
    (within("encoder", attention_bias=True), "missing weights: encoder.layers.0.self_attn.q_proj.bias"),
    (within("encoder", hidden_activation="quick_gelu"), "activation function 'quick_gelu'; available: relu, gelu"),
    (within("decoder", vocab_size=SIZE + 1), f"decoder.embed_tokens.weight has {SIZE} tokens, not the config's {SIZE + 1}"),
    (ASKS(eos_token_id=[*range(1, 18)]), "ends beside eos, 1: at most 15, each another token"),
]


@pytest.fixture(scope="module")
def small_gemma(tmp_path_factory):
    return saved(tmp_path_factory, *CASES["t5gemma"])


@pytest.mark.parametrize(("change", "message"), HOSTILE_GEMMA, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_hostile_t5gemma_is_refused_in_one_line(small_gemma, tmp_path, change, message):
    refused(small_gemma, tmp_path / "folder", change, message)


def test_windows_of_a_t5gemma(small_gemma, tmp_path):
    """An encoder's are inclusive in both directions; by default, every second layer sees all positions."""
    shutil.copytree(small_gemma, tmp_path / "folder")
    sides = read_model(tmp_path / "folder")[0].spec
    assert (sides.encoder.local, sides.decoder.local) == (Local((0,), 22, 21), Local((0, 2), 21))
    assert (sides.encoder.max_positions, sides.decoder.max_positions) == (200, 200)
    within("encoder", layer_types=["full_attention"] * 2)(tmp_path / "folder")
    within("decoder", layer_types=None)(tmp_path / "folder")
    sides = read_model(tmp_path / "folder")[0].spec
    assert (sides.encoder.local, sides.decoder.local) == (None, Local((0, 2), 21))


@pytest.mark.parametrize(("change", "message"), HOSTILE_T5, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_hostile_t5_is_refused_in_one_line(small_t5, tmp_path, change, message):
    refused(small_t5, tmp_path / "folder", change, message)


def test_t5_overflows_float16(small_t5):
    pair = pair_of(read_model(small_t5)[0])
    with pytest.raises(ValueError, match="float16: this model's hidden states exceed its range; use bfloat16 or float32"):
        Engine(pair, Settings(threads=1, dtype="float16", strategy="ar"))


T5_CONFIGS = [  # as published by their authors, and as saved by versions 4 and 5
    {},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": True, "scale_decoder_outputs": False},
    {"tie_word_embeddings": False, "scale_decoder_outputs": True},
    {"scale_decoder_outputs": False, "feed_forward_proj": "relu"},
    {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
    {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True, "layer_norm_epsilon": 1e-5},
    {"feed_forward_proj": "gelu"},
    {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 16, "relative_attention_max_distance": 64},
]


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5"])
@pytest.mark.parametrize("given", T5_CONFIGS, ids=str)
def test_settings_of_t5_are_read_as_transformers_reads_them(tmp_path, kind, given):
    model_type = kind.lower()
    content = {"model_type": model_type, **{name: value for name, value in T5.items() if name != "initializer_factor"}, **given}
    (tmp_path / "config.json").write_text(json.dumps(content))
    theirs = transformers().AutoConfig.from_pretrained(tmp_path)
    config = Asked.read(tmp_path / "config.json")
    config.values = {**FAMILIES[model_type].defaults(config), **config.values}
    spec = t5.spec_of(FAMILIES[model_type], config, generation_of(config, config, False))
    assert not config.faults
    scaled = kind != "MT5" and theirs.scale_decoder_outputs
    assert spec.output.scale == (theirs.d_model**-0.5 if scaled else 1)
    assert spec.encoder.feed_forward.activation == ACTIVATIONS[theirs.dense_act_fn]
    assert spec.encoder.feed_forward.gated == theirs.is_gated_act
    assert (spec.encoder.layers, spec.decoder.layers) == (theirs.num_layers, theirs.num_decoder_layers)
    relative = spec.encoder.attention.relative
    assert (relative.buckets, relative.distance) == (
        theirs.relative_attention_num_buckets,
        theirs.relative_attention_max_distance,
    )
    assert spec.encoder.norm.eps == theirs.layer_norm_epsilon
    assert (spec.symbols.pad, spec.symbols.eos, spec.symbols.start) == (theirs.pad_token_id, theirs.eos_token_id, 0)


def test_settings_without_a_file_of_their_own_count(plain, tmp_path):
    """As before version 4.27: in config.json."""
    shutil.copytree(plain[0], tmp_path / "folder")
    (tmp_path / "folder" / "generation_config.json").unlink()
    old = {
        "max_length": 142,
        "min_length": 56,
        "no_repeat_ngram_size": 3,
        "num_beams": 4,
        "length_penalty": 2.0,
        "early_stopping": True,
        "force_bos_token_to_be_generated": True,
    }
    changed("config.json", **old)(tmp_path / "folder")
    spec = read_model(tmp_path / "folder")[0].spec
    assert spec.outputs == OutputRules("huggingface", True, 140, 55, 3, 4, 2.0, "true") and spec.forced == (0,)


def test_every_setting_of_generate_is_known():
    """To be honoured, refused, or without effect here."""
    assert vars(transformers().GenerationConfig()).keys() <= HONOURED | WITHOUT_EFFECT | NEUTRAL.keys()


def test_limits_on_new_tokens_precede_the_others(plain, tmp_path):
    """As in `generate`, whatever the other limits are."""
    for new, old in ((4, 9), (9, 4)):
        path = tmp_path / f"{new}"
        shutil.copytree(plain[0], path)
        ASKS(min_new_tokens=new, min_length=old, max_new_tokens=new + 11, max_length=old + 11)(path)
        rules = read_model(path)[0].spec.outputs
        assert (rules.min_length, rules.limit) == (new, new + 11 - rules.ends)
