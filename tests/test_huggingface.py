"""Models that transformers made, at random: logits and greedy outputs are its own, with drafts and in every data type."""

import json
import random
import shutil
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import hf_text
import pytest
import torch
from conftest import transformers
from safetensors.torch import load_file, save_file
from support import long_but

from specdec_plugins.commands import import_model, progress, translate
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.values import Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.huggingface import read_model
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.measure.certificate import LINES
from specdec_plugins.model.spec import OutputRules
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
OPUS = {"bad_words_ids": [[SIZE - 1]], "renormalize_logits": True, "num_beams": 4}
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
}
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
    return [each.tokens for each in Engine(pair, Settings(threads=1, **{"beam": 1, **settings})).generate(sources)]


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
        wanted = model(**padded(sources, model.config.pad_token_id), decoder_input_ids=padded(targets, 3)["input_ids"]).logits
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
    pair, sources = pair_of(read_model(folder)[0]), sources_of(model, 4)
    rules, ties = pair.verifier.spec.outputs, 0
    spec = replace(pair.verifier.spec, outputs=replace(rules, early_stopping=stopping))
    pair = replace(pair, verifier=replace(pair.verifier, spec=spec))
    for beam, lenpen in ((2, None), (4, 0.6), (5, 1.4)):
        options = {"early_stopping": {"true": True, "false": False}.get(stopping, "never")}
        penalty = {} if lenpen is None else {"length_penalty": lenpen}
        wanted = searched(model, sources, beam, 2, **options, **penalty)
        engine = Engine(pair, Settings(threads=1, strategy="ar", dtype="float64", beam=beam, nbest=2, lenpen=lenpen))
        outputs = engine.generate(sources, batch_size=3)
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
    moved = {id(each): each + 0.05 * torch.randn(each.shape, generator=generator).to(each) for each in model.tensors.values()}
    return DrafterModel("small", {name: moved[id(each)] for name, each in model.tensors.items()}, model.spec, block_size=4)


@pytest.mark.parametrize("dtype", long_but(("float64", "float32", "bfloat16", "int8"), "float64", "int8"))
def test_drafts_change_no_output(case, dtype):
    """Whatever drafts, and on the kernels in each data type."""
    model, folder = case
    sources, ours = sources_of(model, 24, longest=9), read_model(folder)[0]
    pair, how = pair_of(ours), {"dtype": dtype, "no_repeat_ngram_size": 3, "max_len_b": 20, "beam": 1}
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


PUBLISHED = {  # the tokenizer, the class, the start token, languages
    "marian": (hf_text.marian, "Marian", "<pad>", ()),
    "m2m100": (hf_text.m2m100, "M2M100", "</s>", ("en", "de")),
    "nllb": (hf_text.nllb, "M2M100", "</s>", ("fra_Latn", "deu_Latn")),
    "mbart": (hf_text.mbart, "MBart", "de_DE", ("fr_XX", "de_DE")),
    "mbart50": (partial(hf_text.mbart, fifty=True), "MBart", "</s>", ("fr_XX", "pl_PL")),
    "pegasus": (hf_text.pegasus, "Pegasus", "<pad>", ()),
    "bart": (hf_text.bart, "Bart", "</s>", ()),
}


@pytest.fixture(scope="module", params=long_but(PUBLISHED, "nllb"))
def published(request, tmp_path_factory):
    """The folder of a model with its tokenizer, and the languages to ask for."""
    tokenizer, kind, start, languages = PUBLISHED[request.param]
    path = tmp_path_factory.mktemp("published") / "model"
    config = {name: value for name, value in tokenizer(path).items() if name != "model_type"}
    start = transformers().AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(start)
    bans = {"bad_words_ids": [[config["pad_token_id"]]], "no_repeat_ngram_size": 2, "num_beams": 4}
    config |= {"decoder_start_token_id": start, "max_position_embeddings": 128}
    made(kind, config, bans).float().save_pretrained(path)
    return path, languages


def test_an_imported_folder_is_certified(published, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    folder, languages = published
    output, options = tmp_path / "ours", [word for pair in zip(("-s", "-t"), languages) for word in pair]
    assert import_model.main([str(folder), "--output", str(output), "--check", *options]) == 0
    said, shown = capsys.readouterr()
    certificate = json.loads((output / "certificate.json").read_text())
    lines = certificate["lines"]
    assert "loading transformers and the model" in shown and f"comparing line {lines} of {lines} with transformers; 00:" in shown
    assert f"source token ids: {lines} of {lines}" in said and certificate["sources"] == lines
    assert certificate["texts"] >= lines - 2  # a random M2M100 says ids past its vocabulary
    assert certificate["logits"] < 1e-3 and all(each["margin"] < 1e-3 for each in certificate["differences"])
    assert certificate["outputs"] + len(certificate["differences"]) == lines
    assert (
        f"outputs of 4 beams (float32): {certificate['searched']} of {lines} lines" in said
        and certificate["searched"] > lines - 4
    )
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
            assert {each.dtype for each in found.tensors.values()} == {torch.float16}
        else:
            assert all(torch.equal(tensor, known[name]) for name, tensor in found.tensors.items())


def test_weights_that_the_config_ties_but_the_file_does_not_stay_apart(plain, tmp_path):
    folder, model = plain
    shutil.copytree(folder, tmp_path / "apart")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + 1
    save_file(tensors, tmp_path / "apart" / "model.safetensors", metadata={"format": "pt"})
    theirs = type(model).from_pretrained(tmp_path / "apart")
    found = read_model(tmp_path / "apart")[0].tensors
    assert torch.equal(found["decoder.output_projection.weight"], theirs.lm_head.weight)
    assert found["encoder.embed_tokens.weight"] is found["decoder.embed_tokens.weight"]


def test_a_model_published_without_its_projection_has_the_embedding(plain, tmp_path):
    """As BART itself: names without ``model.``, and another class."""
    folder, model = plain
    model.model.save_pretrained(tmp_path)
    shutil.copy(folder / "generation_config.json", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BartModel"]
    found, known = (read_model(each)[0].tensors for each in (tmp_path, folder))
    assert found.keys() | {"decoder.output_projection.bias"} == known.keys()
    assert all(torch.equal(tensor, known[name]) for name, tensor in found.items())


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
    (changed("config.json", model_type="t5"), "model_type 't5' is not supported; available: marian, m2m_100, bart, mbart"),
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
    (ASKS(eos_token_id=[2, 3]), "eos_token_id is [2, 3], not one token"),
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
    shutil.copytree(plain[0], tmp_path / "folder")
    change(tmp_path / "folder")
    with pytest.raises(ValueError) as error:
        read_model(tmp_path / "folder")
    assert message in str(error.value) and str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1500 and "a pickle ran" not in capfd.readouterr().out


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


def test_limits_on_new_tokens_precede_the_others(plain, tmp_path):
    """As in `generate`, whatever the other limits are."""
    for new, old in ((4, 9), (9, 4)):
        path = tmp_path / f"{new}"
        shutil.copytree(plain[0], path)
        ASKS(min_new_tokens=new, min_length=old, max_new_tokens=new + 11, max_length=old + 11)(path)
        rules = read_model(path)[0].spec.outputs
        assert (rules.min_length, rules.limit) == (new, new + 11 - rules.ends)
