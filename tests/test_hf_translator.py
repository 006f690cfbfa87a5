"""Text through imported models: languages per request, the pipeline's call, sources that are too long, the command."""

import hf_text
import pytest
import torch
from conftest import transformers

from specdec_plugins.commands import datastore, import_model, translate
from specdec_plugins.options import CallOptions
from specdec_plugins.translator import SourceTooLong, Translator
from specdec_plugins.whole_lines import read_line

pytest.importorskip("transformers", reason="compares with transformers")
pytest.importorskip("sentencepiece")
SMALL = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "init_std": 0.5,
}
LINES = ["The quick brown fox", "", "Le chat est assis.", "Ein Hund läuft über die Straße", "日本語 の 犬"]


def saved(folder, make, kind, name, **options):
    """A folder with a random model. Returns its tokenizer and model of transformers."""
    config = make(folder, **options)
    tokenizer = transformers().AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(1)
    start = config["pad_token_id"] if kind == "marian" else config["eos_token_id"]
    settings = getattr(transformers(), f"{name}Config")(
        **SMALL, **{**config, "decoder_start_token_id": start, "forced_eos_token_id": None}
    )
    model = getattr(transformers(), "MarianMTModel" if kind == "marian" else f"{name}ForConditionalGeneration")(settings).eval()
    model.generation_config.max_length = 24
    model.save_pretrained(folder)
    return tokenizer, model.double()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "m2m100"
    return folder, *saved(folder, hf_text.m2m100, "m2m_100", "M2M100")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "marian"
    return folder, *saved(folder, hf_text.marian, "marian", "Marian", model_max_length=12)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A T5 that knows tasks by their prefixes."""
    folder = tmp_path_factory.mktemp("hf") / "t5"
    config = hf_text.t5(folder, model_max_length=80)
    named = {
        "translation_en_to_de": {"prefix": "translate English to German: "},
        "translation_en_to_fr": {"prefix": "translate English to French: "},
    }
    torch.manual_seed(2)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "initializer_factor": 3.0}
    library = transformers()
    settings = library.T5Config(**sizes, **{**config, "task_specific_params": named})
    model = library.T5ForConditionalGeneration(settings).eval()
    model.generation_config.max_length = 12
    model.save_pretrained(folder)
    return folder, library.AutoTokenizer.from_pretrained(folder), model.double()


@pytest.mark.parametrize("options", [{"strategy": "ar"}, {"draft_with": "ngram", "block_size": 4}], ids=str)
def test_tasks_by_language_and_by_prefix(tasks, options):
    folder, tokenizer, model = tasks
    translator = Translator.from_pretrained(folder, dtype="float64", **options)
    prefixes = {
        "": {},
        "translate English to German: ": {"source_lang": "en", "target_lang": "deu"},
        "translate English to French: ": {"target_lang": "fr"},
        "summarize: ": {"prefix": "summarize: "},
    }
    for prefix, asked in prefixes.items():
        wanted = [by_transformers(tokenizer, model, prefix + line if line else "") for line in LINES]
        found = translator.translate(LINES, **asked)
        assert [each.text for each in found] == wanted
        assert found[0].source_tokens == tokenizer.convert_ids_to_tokens(tokenizer(LINES[0])["input_ids"][:-1])
        assert "".join(translator.stream_text(LINES[0], **asked)) == wanted[0]
    assert len({tuple(each.text for each in translator.translate(LINES[:1], **asked)) for asked in prefixes.values()}) > 1
    found = translator.translate([LINES[0]], prefix="summarize: ", alignments=True, word_scores=True)[0]
    assert found.alignment.source == [(0, 3), (4, 9), (10, 15), (16, 19)]  # words of the text alone
    with pytest.raises(ValueError, match="a prefix of 2,000 characters"):
        translator.translate(LINES, prefix="x" * 2000)


def test_a_prefix_counts_in_the_length_of_a_source(tasks):
    folder, tokenizer, _ = tasks
    translator = Translator.from_pretrained(folder, strategy="ar", prefix="summarize: ")
    line = " ".join(LINES * 2)
    wanted = tokenizer("summarize: " + line, truncation=True)["input_ids"]
    assert read_line(translator, line, CallOptions(too_long="truncate")).ids == wanted and len(wanted) == 80


def test_a_folder_keeps_its_prefix(tasks, tmp_path, capfd):
    folder, tokenizer, model = tasks
    arguments = [str(folder), "--prefix", "summarize: "]
    assert import_model.main([*arguments, "--output", str(tmp_path / "made")]) == 0
    assert import_model.main([*arguments, "--check"]) == 2 and "--prefix requires --output" in capfd.readouterr().err
    wanted = by_transformers(tokenizer, model, f"summarize: {LINES[0]}")
    (tmp_path / "in").write_text(LINES[0] + "\n", encoding="utf-8")
    more = ["--strategy", "ar", "--quiet", str(tmp_path / "in")]
    for given in (["--model", str(tmp_path / "made")], ["--model", str(folder), "--prefix", "summarize: "]):
        assert translate.main([*given, *more]) == 0
        assert capfd.readouterr().out == f"{wanted}\n"
    assert translate.main(["--model", "data/demo.en-de", "--prefix", "x", *more]) != 0
    assert "--prefix is not supported by codec fairseq-bpe" in capfd.readouterr().err


def by_transformers(tokenizer, model, line, source=None, target=None, **more):
    if not line:
        return ""
    if source:
        tokenizer.src_lang, more["forced_bos_token_id"] = source, tokenizer.get_lang_id(target)
    return tokenizer.decode(model.generate(**tokenizer(line, return_tensors="pt"), **more)[0], skip_special_tokens=True)


@pytest.mark.parametrize("options", [{"strategy": "ar"}, {"draft_with": "ngram", "block_size": 4}], ids=str)
def test_several_languages_in_one_batch(many, options):
    folder, tokenizer, model = many
    translator = Translator.from_pretrained(folder, dtype="float64", **options)
    pairs = [("en", "de"), ("en", "fr"), ("fr", "en"), ("de", "fr"), ("ja", "de")]
    expected = [by_transformers(tokenizer, model, line, *pair) for line, pair in zip(LINES, pairs)]
    sources, targets = zip(*pairs)
    found = translator.translate(LINES, source_lang=sources, target_lang=targets)
    assert [each.text for each in found] == expected and len(set(expected)) == len(LINES)
    assert [each.tokens[0] for each in found if each.tokens] == ["__de__", "__en__", "__fr__", "__de__"]
    assert found[0].source_tokens == tokenizer.convert_ids_to_tokens(tokenizer(LINES[0])["input_ids"][1:-1])
    streamed = translator.stream(
        LINES, buffer_size=2, source_lang=list(sources), target_lang=["deu", "fra_Latn", "eng", "fr", "de"]
    )
    assert [each.text for each in streamed] == expected
    pieces = list(translator.stream_text(LINES[2], source_lang="fr", target_lang="en"))
    assert "".join(pieces) == expected[2]
    tokens = " ".join(found[2].source_tokens)
    again = translator.translate([tokens], tokenized=True, source_lang="fr", target_lang="en")[0]
    assert again.tokens == found[2].tokens
    with pytest.raises(ValueError, match="5 sentences, but 2 languages"):
        translator.translate(LINES, source_lang=["en", "fr"], target_lang="de")
    with pytest.raises(ValueError, match="needs a source language"):
        translator.translate(LINES, target_lang="de")


def test_the_call_of_the_pipeline(many, one):
    folder, tokenizer, model = many
    translator = Translator.from_pretrained(folder, dtype="float64", strategy="ar")
    expected = [{"translation_text": by_transformers(tokenizer, model, line, "en", "de")} for line in LINES[::2]]
    assert translator(LINES[::2], src_lang="en", tgt_lang="de") == expected
    assert translator(LINES[0], src_lang="en", tgt_lang="de") == expected[:1]
    for length in (2, 3, 7):
        short = by_transformers(tokenizer, model, LINES[0], "en", "de", max_length=length)
        assert translator(LINES[0], src_lang="en", tgt_lang="de", max_length=length) == [{"translation_text": short}]
    folder, tokenizer, model = one
    pair = Translator.from_pretrained(folder, dtype="float64", strategy="ar")
    assert pair("A fox.") == pair("A fox.", src_lang="en") == [{"translation_text": by_transformers(tokenizer, model, "A fox.")}]


def test_sources_beyond_the_tokenizers_length(one):
    """``model_max_length`` counts eos."""
    folder, tokenizer, _ = one
    translator = Translator.from_pretrained(folder, strategy="ar")
    line = " ".join(LINES)
    truncated = tokenizer(line, truncation=True)["input_ids"]
    assert len(truncated) == 12 < len(tokenizer(line)["input_ids"])
    count = len(tokenizer(line)["input_ids"]) - 1
    with pytest.raises(SourceTooLong, match=f"{count} tokens, and the models read at most 11"):
        translator.translate([line])
    source = read_line(translator, line, CallOptions(too_long="truncate"))
    assert source.ids == truncated and source.shortened
    assert translator.translate([line], too_long="skip")[0].text == ""


def test_documents_in_several_languages(many):
    folder, _, _ = many
    translator = Translator.from_pretrained(folder, strategy="ar", windows="sentence", max_len_b=12)
    plain = Translator.from_pretrained(folder, strategy="ar", max_len_b=12)
    texts, languages = ["A fox. A dog runs.", "Le chat. Il dort."], ["en", "fr"]
    found = translator.translate(texts, source_lang=languages, target_lang=languages[::-1])
    for text, each, source, target in zip(texts, found, languages, languages[::-1]):
        first, second = text.split(". ")
        parts = plain.translate([f"{first}.", second], source_lang=source, target_lang=target)
        assert each.text == " ".join(part.text for part in parts if part.text)


def test_a_datastore_of_a_multilingual_model(many, tmp_path, capfd):
    folder, made = many[0], tmp_path / "made"
    (tmp_path / "fr").write_text("Le chat est assis.\n", encoding="utf-8")
    (tmp_path / "de").write_text("Ein Hund läuft.\n", encoding="utf-8")
    arguments = ["--model", str(folder), "--output", str(made), "--source", str(tmp_path / "fr"), str(tmp_path / "de")]
    assert datastore.main(arguments) == 1 and "needs a source language" in capfd.readouterr().err
    assert datastore.main([*arguments, "-s", "fr", "-t", "de"]) == 0
    options = {"threads": 1, "draft_with": "retrieval", "datastore": str(made)}
    drafted, plain = (Translator.from_pretrained(folder, **each) for each in (options, {"threads": 1, "strategy": "ar"}))
    texts = [each("Le chat est assis.", "fr", "de") for each in (drafted, plain)]
    assert texts[0] == texts[1]


def test_the_command(many, tmp_path, capfd):
    folder = many[0]
    (tmp_path / "in").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    arguments = ["--model", str(folder), "--strategy", "ar", "--quiet", str(tmp_path / "in")]
    assert translate.main([*arguments, "--source-lang", "eng_Latn", "-t", "deu"]) == 0
    text = capfd.readouterr().out
    plain = Translator.from_pretrained(folder, strategy="ar")
    assert text.splitlines() == [each.text for each in plain.translate(LINES, source_lang="en", target_lang="de")]
    assert translate.main([*arguments, "--source-lang", "en"]) == 1
    assert "needs a target language (target_lang, --target-lang)" in capfd.readouterr().err
    assert translate.main([*arguments, "-s", "en", "-t", "xx"]) == 1
    error = capfd.readouterr().err
    assert "the model's target languages are" in error and "'xx' is none of them" in error and error.count("\n") == 1
