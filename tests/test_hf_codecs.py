"""Codecs of Hugging Face folders against ``transformers``: ids, text, languages, streams, damaged files."""

import json
import os
import random
import re
import shutil
import sys
from itertools import islice
from pathlib import Path

import hf_text
import pytest

from specdec_plugins.extras import install_command
from specdec_plugins.model.spec import Symbols
from specdec_plugins.text.codec import CodecConfig, NoLanguage, open_codec
from specdec_plugins.text.framed import languages_of
from specdec_plugins.text.huggingface import TokenizerFolder
from specdec_plugins.text.languages import language
from specdec_plugins.text.lines import read_lines

transformers = pytest.importorskip("transformers", reason="compares with transformers")
pytest.importorskip("sentencepiece")
CORPORA = Path(os.environ.get("SPECDEC_CORPORA", "none"))
KINDS = {
    "marian": (hf_text.marian, {}),
    "marian-many": (hf_text.marian, {"kind": "bpe", "codes": (">>fra<<", ">>deu<<", ">>xyz<<")}),
    "marian-separate": (hf_text.marian, {"separate": True}),
    "m2m100": (hf_text.m2m100, {}),
    "marian-clean": (hf_text.marian, {"clean_up_tokenization_spaces": True}),
    "nllb": (hf_text.nllb, {}),
    "nllb-legacy": (hf_text.nllb, {"legacy": True, "table": False, "clean_up_tokenization_spaces": True}),
    "mbart": (hf_text.mbart, {}),
    "mbart50": (hf_text.mbart, {"fifty": True}),
    "pegasus": (hf_text.pegasus, {}),
    "pegasus-plain": (hf_text.pegasus, {"table": False}),
    "bart": (hf_text.bart, {}),
    "mbart-model": (hf_text.mbart, {"model_only": True}),
    "mbart50-model": (hf_text.mbart, {"fifty": True, "model_only": True}),
    "pegasus-model": (hf_text.pegasus, {"model_only": True}),
    "bart-files": (hf_text.bart, {"files": True, "add_prefix_space": True}),
    "t5": (hf_text.t5, {}),
    "t5-plain": (hf_text.t5, {"table": False, "clean_up_tokenization_spaces": True}),
    "t5-model": (hf_text.t5, {"model_only": True}),
    "mt5-model": (hf_text.t5, {"model_only": True, "extra_ids": 0}),
    "madlad": (hf_text.t5, {"madlad": True}),
    "umt5": (hf_text.umt5, {}),
    "gemma": (hf_text.gemma, {}),
    "gemma-old": (hf_text.gemma, {"old": True}),
    "byt5": (hf_text.byt5, {}),
    "byt5-old": (hf_text.byt5, {"old": True}),
}
LANGUAGES = {
    "m2m100": ("fr", "de"),
    "mbart": ("fr_XX", "de_DE"),
    "mbart50": ("fr_XX", "pl_PL"),
    "nllb": ("fra_Latn", "deu_Latn"),
    "nllb-legacy": ("zho_Hans", "deu_Latn"),
    "mbart-model": ("fr_XX", "de_DE"),
    "mbart50-model": ("fr_XX", "pl_PL"),
}
ASKED = LANGUAGES | {"madlad": (None, "de")}


def open_folder(folder, config):
    tokenizer = TokenizerFolder(folder, config)
    entry = tokenizer.entry()
    files = {role: folder / name for role, name in entry.files.items()}
    symbols = Symbols(config["pad_token_id"], config["eos_token_id"], config["pad_token_id"], 1)
    return open_codec(CodecConfig(entry.name, str(folder), files, *tokenizer.languages(), entry.options), symbols)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By kind: the folder, its config, its codec and its tokenizer by transformers."""
    made = {}

    def folder(kind):
        if kind not in made:
            path, (make, options) = tmp_path_factory.mktemp(kind) / "model", KINDS[kind]
            config = make(path, **options)
            reference = path / "reference" if (path / "reference").is_dir() else path
            tokenizer = transformers.AutoTokenizer.from_pretrained(reference)
            if kind in LANGUAGES:
                tokenizer.src_lang, tokenizer.tgt_lang = LANGUAGES[kind]
            made[kind] = path, config, open_folder(path, config), tokenizer
        return made[kind]

    return folder


def differing(codec, tokenizer, lines, languages):
    """Lines with other ids. Version 5 takes 2 for T5's unknown token, which in MADLAD is 0, and 2 is </s>."""
    prefix, known = codec.prefix(*languages), codec.options.unknown
    pairs = ((line, codec.encode(line, *languages).ids, tokenizer(prefix + line)["input_ids"]) for line in lines if line)
    return [
        line
        for line, ours, theirs in pairs
        if len(ours) != len(theirs)
        or not all(one == other or (one, other, prefix) == (known, 2, "<2de> ") for one, other in zip(ours, theirs))
    ]


@pytest.mark.parametrize("count", [500, pytest.param(4_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(folders, kind, count):
    """Lines of many scripts with control characters, odd white space, emoji and special tokens; and targets."""
    _, _, codec, tokenizer = folders(kind)
    languages = ASKED.get(kind, (None, None))
    assert differing(codec, tokenizer, hf_text.lines(count), languages) == []
    frame = codec.encode("", *languages)
    before = frame.before - len(codec.tokens_of_prefix(codec.prefix(*languages)))
    for line in hf_text.lines(count // 10, seed=2):
        target = tokenizer(text_target=line)["input_ids"]
        assert (
            line == ""
            or kind == "madlad"
            or codec.encode_target(line, languages[1]) == target[before : len(target) - frame.after]
        ), line


@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_output_tokens(folders, kind):
    """In order, without overlap, inside the text; of words that the text has verbatim, exactly theirs."""
    _, _, codec, _ = folders(kind)
    for line in ["The quick brown fox", *hf_text.lines(100, seed=3)]:
        ids = codec.encode_target(line, ASKED.get(kind, (None, None))[1]) if line else []
        text = codec.decode(ids)
        spans = codec.spans(text, ids)
        assert len(spans) == len(ids) and all(0 <= first <= end <= len(text) for first, end in spans)
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))  # noqa: RUF007
        if line == "The quick brown fox":
            assert "".join(text[first:end] for first, end in spans) == text.replace(" ", "")


@pytest.mark.parametrize("kind", ["nllb", "mbart", "mbart50", "pegasus", "bart", "t5"])
def test_folders_of_version_4(folders, tmp_path, kind):
    """Whose tokenizer.json has another pipeline and limits, and whose other files list the added tokens."""
    folder, config, _, _ = folders(kind)
    shutil.copytree(folder, tmp_path / "old")
    content = json.loads((folder / "tokenizer.json").read_text())
    table = [each for each in (content["normalizer"] or {}).get("normalizers", []) if each["type"] == "Precompiled"]
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    content |= {
        "normalizer": {"type": "Sequence", "normalizers": [*table, strip, {"type": "Lowercase"}]},
        "pre_tokenizer": None,
        "truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
        "decoder": None,
    }
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = {str(each.pop("id")): each for each in json.loads(json.dumps(content["added_tokens"]))}
    for more in ({"added_tokens_decoder": added}, {}):
        hf_text.write(tmp_path / "old", tokenizer=content, tokenizer_config=settings | more)
        hf_text.write(tmp_path / "old", special_tokens_map={"eos_token": "</s>", "unk_token": added_as(added, "<unk>")})
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
        codec, languages = open_folder(tmp_path / "old", config), ASKED.get(kind, (None, None))
        if kind in LANGUAGES:
            tokenizer.src_lang = languages[0]
        assert differing(codec, tokenizer, hf_text.lines(200, seed=5), languages) == []
    first = next(iter(added))
    wrong = settings | {"added_tokens_decoder": {**added, first: {**added[first], "lstrip": True}}}
    hf_text.write(tmp_path / "old", tokenizer_config=wrong)
    with pytest.raises(ValueError, match=f"added token {first} is not the one in tokenizer.json"):
        open_folder(tmp_path / "old", config)


def added_as(added, content):
    return next(each for each in added.values() if each["content"] == content)


@pytest.mark.skipif(not CORPORA.is_dir(), reason="SPECDEC_CORPORA names no folder of corpora")
@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_real_text(folders, kind):
    _, _, codec, tokenizer = folders(kind)
    for path in ("wmt-news/wmt22.de", "docs-en-fr/valid.fr"):
        assert differing(codec, tokenizer, list(islice(read_lines(CORPORA / path), 200)), ASKED.get(kind, (None, None))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_transformers(folders, kind):
    """Any tokens, special ones skipped; and in steps, whose deltas concatenate to the text."""
    _, _, codec, tokenizer = folders(kind)
    rng = random.Random(kind)
    outputs = [rng.choices(range(len(codec.target)), k=rng.randrange(40)) for _ in range(200)]
    outputs += [codec.encode_target(line, ASKED.get(kind, (None, None))[1]) for line in hf_text.lines(100, seed=3)]
    for ids in outputs:
        text = codec.decode(ids)
        assert text == tokenizer.decode(ids, skip_special_tokens=True), ids
        decoder, told, at = codec.decoder(), "", 0
        while at < len(ids):
            size = rng.choice([0, 1, 1, 2, 5])
            told += decoder.push(ids[at : at + size])
            at += size
        assert told + decoder.finish() == text, ids


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_and_frames(folders, kind):
    _, _, codec, _ = folders(kind)
    languages = ASKED.get(kind, (None, None))
    for line in [*hf_text.TRAINING[:12], *hf_text.lines(200, seed=4)]:
        encoded = codec.encode(line, *languages)
        assert len(encoded.offsets) == len(encoded.ids) and encoded.framed(encoded.text) == encoded.ids
        assert all(0 <= first <= end <= len(line) for first, end in encoded.offsets)
    line = "The quick brown fox"
    covered = {at for span in codec.encode(line, *languages).offsets for at in range(*span)}
    assert covered == {at for at, character in enumerate(line) if character != " "}


def test_marian_languages(folders, tmp_path):
    """The target's language token begins the text, by option or in the text itself."""
    codec = folders("marian-many")[2]
    tagged = codec.encode(">>fra<< The dog").ids
    assert codec.encode(" The dog", target_lang="fr").ids == codec.encode(" The dog", target_lang="fra_Latn").ids == tagged
    with pytest.raises(ValueError, match="'nld' is none of them"):
        codec.encode("The dog", target_lang="nld")
    pair = folders("marian")[2]
    assert pair.encode("a", "en", "deu").ids == pair.encode("a").ids
    with pytest.raises(ValueError, match="target languages are de; 'fr' is none of them"):
        pair.encode("a", "en", "fr")
    config = hf_text.marian(tmp_path / "group", source_lang="gem", target_lang="en")
    assert open_folder(tmp_path / "group", config).encode("a", "de", "en").ids  # one of the Germanic languages


def test_languages_by_prefix(folders, tmp_path):
    """T5's tasks and MADLAD's tags; tokens of the prefix are special, as language tokens are."""
    codec, tokenizer = folders("madlad")[2:]
    tagged = tokenizer("<2fr> The dog")["input_ids"]
    assert codec.encode("<2fr> The dog").ids == codec.encode("The dog", "en", "fra").ids == tagged
    assert codec.encode("The dog", target_lang="heb").ids == tokenizer("<2iw> The dog")["input_ids"]
    assert codec.encode("The dog", target_lang="zho").ids == tokenizer("<2zh> The dog")["input_ids"]
    encoded = codec.encode("The dog", target_lang="fr")
    assert codec.target.tokens(encoded.ids[: encoded.before]) == ["▁", "<2fr>"]
    assert encoded.text == codec.encode_target("The dog") and encoded.offsets[:3] == [(0, 0), (0, 0), (0, 1)]
    with pytest.raises(NoLanguage, match="needs a target language"):
        codec.encode("The dog")
    with pytest.raises(ValueError, match=r"target languages are de, en, fr, iw, ndc_ZW, zh, zh_Latn; 'nl' is none of them"):
        codec.encode("The dog", target_lang="nl")
    assert languages_of(codec, codec.config) == (["und"], ["de", "en", "fr", "iw", "ndc_ZW", "zh", "zh_Latn"])

    folder, config, plain, tokenizer = folders("t5")
    tasks = {
        f"translation_{source}_to_{target}": {"prefix": f"translate {source.upper()} to {target}: "}
        for source, target in (("en", "de"), ("en", "fr"), ("ro", "fr"))
    }
    codec = open_folder(folder, {**config, "task_specific_params": {**tasks, "summarization": {"prefix": "s: "}, "x": 1}})
    german = "translate EN to de: "
    for asked, prefix in {
        (None, None): "",
        ("en", "de"): german,
        (None, "deu"): german,
        ("ron", "fr"): "translate RO to fr: ",
        ("eng_Latn", "fra"): "translate EN to fr: ",
    }.items():
        assert codec.encode(" The dog", *asked).ids == tokenizer(f"{prefix} The dog")["input_ids"]
        assert codec.encode("The dog", *asked).text == plain.encode("The dog").text
    with pytest.raises(ValueError, match="the languages that the model translates into de are en; 'fr' is none of them"):
        codec.encode("The dog", "fr", "de")
    with pytest.raises(NoLanguage):
        codec.encode("The dog", "en")
    assert languages_of(codec, codec.config) == (["en", "ro"], ["de", "fr"])
    assert languages_of(plain, plain.config) == (["und"], ["und"])
    for own in (codec.with_prefix("summarize: "), plain.with_prefix("summarize: ")):
        assert own.encode("The dog").ids == tokenizer("summarize: The dog")["input_ids"]
        assert own.encode("The dog", "en", "de").ids == own.encode("The dog").ids
    with pytest.raises(ValueError, match="a prefix of 1,001 characters; at most 1,000"):
        codec.with_prefix("x" * 1001)


@pytest.mark.parametrize("kind", ["t5", "umt5", "byt5", "bart"])
def test_a_prefix_changes_no_other_token(folders, kind):
    """Whatever text follows, sources are what transformers makes of prefix and text; offsets are those of the text."""
    _, _, codec, tokenizer = folders(kind)
    for prefix in ("summarize: ", "<x>", "a\u0301 ", " "):
        own = codec.with_prefix(prefix)
        for line in hf_text.lines(60, seed=7):
            encoded = own.encode(line)
            assert line == "" or encoded.ids == tokenizer(prefix + line)["input_ids"]
            assert encoded.framed(encoded.text) == encoded.ids and len(encoded.offsets) == len(encoded.ids)
            assert all(0 <= first <= end <= len(line) for first, end in encoded.offsets)


@pytest.mark.parametrize("kind", LANGUAGES)
def test_languages_of_a_request(folders, kind):
    codec, tokenizer = folders(kind)[2:]
    source, target = LANGUAGES[kind]
    for code in (source, target):
        tokenizer.src_lang = code
        assert codec.encode("a b", code, target).ids == tokenizer("a b")["input_ids"]
        assert codec.encode("a", source, code).forced == (codec.options.languages[code],)
    tokenizer.src_lang = source
    assert tokenizer.convert_ids_to_tokens(codec.options.languages[target]).strip("_") == target
    with pytest.raises(NoLanguage, match="needs a target language"):
        codec.encode("a", source)


def test_default_languages(tmp_path):
    """Of the tokenizer, of ``forced_bos_token_id``, and of mBART-25's start token, which fixes the target."""
    config = hf_text.nllb(tmp_path / "nllb", src_lang="fra_Latn")
    codec = open_folder(tmp_path / "nllb", config)
    german = codec.options.languages["deu_Latn"]
    assert TokenizerFolder(tmp_path / "nllb", {**config, "forced_bos_token_id": german}).languages() == ("fra_Latn", "deu_Latn")
    assert codec.encode("a", target_lang="de").ids == codec.encode("a", "fr", "fra").ids
    assert TokenizerFolder(tmp_path / "nllb", config).forces_language
    config = hf_text.mbart(tmp_path / "mbart")
    romanian = open_folder(tmp_path / "mbart", config).options.languages["ro_RO"]
    config["decoder_start_token_id"] = romanian
    codec = open_folder(tmp_path / "mbart", config)
    assert codec.encode("a", "en").forced == codec.encode("a", "en", "ro").forced == ()
    assert not TokenizerFolder(tmp_path / "mbart", config).forces_language
    with pytest.raises(ValueError, match="target languages are ro_RO; 'de' is none of them"):
        codec.encode("a", "en", "de")


def test_codes_of_other_standards():
    nllb = """
        fra_Latn arb_Arab acm_Arab zho_Hans zho_Hant pes_Arab prs_Arab swh_Latn deu_Latn kas_Arab kas_Deva
    """.split()
    for asked, code in {
        "fr": "fra_Latn",
        "fra": "fra_Latn",
        "FR": "fra_Latn",
        "sw": "swh_Latn",
        "zh-Hant": "zho_Hant",
        "de_DE": "deu_Latn",
        "kas_deva": "kas_Deva",
        "arb": "arb_Arab",
    }.items():
        assert language(asked, nllb, "languages") == code
    for asked, several in {"zh": "zho_Hans or zho_Hant", "fa": "pes_Arab or prs_Arab", "ar": "acm_Arab or arb_Arab"}.items():
        with pytest.raises(ValueError, match=f"may be {several}"):
            language(asked, nllb, "languages")
    assert language("fra_Latn", ["en", "fr"], "them") == language("fra", ["en_XX", "fr"], "them") == "fr"
    assert language("eng_Latn", ["en_XX", "fr_XX"], "them") == "en_XX"
    with pytest.raises(ValueError, match="the nearest are fra_Latn"):
        language("fra_Cyrl", nllb, "languages")
    with pytest.raises(ValueError, match="and 1 more; 'xx' is none of them"):
        language("xx", [f"a{n:02}" for n in range(13)], "languages")


def test_tokens_that_folders_add(folders, tmp_path):
    """Flags, tokens beyond the vocabulary, and tokens without a special meaning."""
    token = {"content": "<x>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    config = hf_text.marian(tmp_path / "m", additional_special_tokens=["<y>"])
    size = config["vocab_size"]
    added = {
        "1": {**token, "content": "<unk>", "lstrip": False},
        "0": {**token, "content": "</s>", "lstrip": False},
        str(size): token,
        str(size + 1): {**token, "content": "Dog", "special": False, "rstrip": True},
    }
    settings = {"source_lang": "en", "target_lang": "de", "added_tokens_decoder": added, "extra_special_tokens": ["<y>", "The"]}
    hf_text.write(tmp_path / "m", tokenizer_config=settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    codec = open_folder(tmp_path / "m", {**config, "vocab_size": size + 4})
    for line in ["a <x> b", "a  <x>  Dog  b<y>The fox", "<x>", "Dog Dog", "Thefox <unk> <pad> </s>"]:
        ids = tokenizer(line)["input_ids"]
        assert codec.encode(line).ids == ids and codec.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    with pytest.raises(ValueError, match=rf"'<x>' \({size}\) is outside the vocabulary of {size} tokens"):
        open_folder(tmp_path / "m", config)
    hf_text.write(tmp_path / "m", tokenizer_config={**settings, "added_tokens_decoder": {"0": {**token, "single_word": True}}})
    with pytest.raises(ValueError, match="single_word, which is not supported"):
        open_folder(tmp_path / "m", config)


# ---- damaged and hostile folders


def damaged(data, rng):
    """Cut, overwritten, replaced or with foreign bytes."""
    kind, at = rng.randrange(4), rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return rng.randbytes(rng.randrange(300))
    if kind == 2:
        return data[:at] + rng.randbytes(rng.randrange(1, 30)) + data[at:]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 20)):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("times", [8, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", ["marian", "m2m100", "nllb", "mbart50-model", "pegasus", "bart-files", "madlad", "t5-model", "umt5", "byt5-old"]
)
def test_damaged_files_are_refused_in_one_line(folders, tmp_path, capfd, kind, times):
    folder, config, _, _ = folders(kind)
    rng, languages, refused = random.Random(kind), ASKED.get(kind, (None, None)), 0
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != "config.json")
    for number in range(times):
        own = tmp_path / str(number)
        own.mkdir()
        for name in names:
            (own / name).write_bytes((folder / name).read_bytes())
        broken = own / rng.choice(names)
        broken.write_bytes(damaged(broken.read_bytes(), rng))
        try:
            codec = open_folder(own, config)
            for line in hf_text.lines(5, seed=number):
                codec.decode(codec.encode(line, *languages).ids)
        except ValueError as error:
            refused += 1
            assert str(own) in str(error) and "\n" not in str(error) and len(str(error)) < 600
    assert refused and capfd.readouterr().err == ""


TOKEN = {"content": "<x>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "tokenizer_config",
            {"tokenizer_class": "FSMTTokenizer"},
            "tokenizer 'FSMTTokenizer' is not supported; these are: Marian",
        ),
        ("tokenizer_config", {"sp_model_kwargs": {"enable_sampling": True}}, "not supported: sp_model_kwargs"),
        ("tokenizer_config", {"truncation_side": "left", "do_lower_case": True}, "truncation_side left, do_lower_case True"),
        ("tokenizer_config", {"model_max_length": -3}, "-3 is not a token's number or a length"),
        ("tokenizer_config", {"model_max_length": 2}, "max_length 2 leaves no room"),
        ("tokenizer_config", {"eos_token": ["</s>"]}, "is not a token"),
        ("tokenizer_config", {"unk_token": "<none>"}, r"'unknown' \(\d+\) is outside the vocabulary"),
        ("tokenizer_config", {"extra_special_tokens": 3}, "special tokens are not a list"),
        ("tokenizer_config", {"added_tokens_decoder": {"99999999": TOKEN}}, "outside the vocabulary"),
        ("tokenizer_config", {"added_tokens_decoder": {"9" * 5000: TOKEN}}, "is not a token's number"),
        ("tokenizer_config", {"added_tokens_decoder": [TOKEN]}, "added tokens are not an object"),
        ("tokenizer_config", {"source_lang": ["en"]}, "no languages' codes"),
        ("tokenizer_config", {"separate_vocabs": True}, "no target_vocab.json in it, which MarianTokenizer needs"),
        ("vocab", {"a": 10**30}, "'a' has the number 1000"),
        ("vocab", {"a": -1}, "'a' has the number -1"),
        ("vocab", {"a": "1"}, "'a' has the number '1'"),
        ("vocab", ["a"], "not an object that numbers pieces"),
        ("vocab", {}, "not an object that numbers pieces"),
    ],
)
def test_files_with_other_contents(folders, tmp_path, name, content, message):
    folder, config, _, _ = folders("marian")
    shutil.copytree(folder, tmp_path / "m")
    hf_text.write(tmp_path / "m", **{name: content})
    with pytest.raises(ValueError, match=message) as refused:
        open_folder(tmp_path / "m", config)
    assert str(tmp_path) in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "kind, content, message",
    [
        ("t5-model", {"extra_ids": -1}, "-1 is not a token's number or a length"),
        ("t5-model", {"extra_ids": 10**8}, "extra_ids 100,000,000; at most 10,000"),
        ("t5-model", {"extra_ids": 101}, r"'<extra_id_0>' \((\d+)\) is outside the vocabulary"),
        ("t5-model", {"unk_token": "[UNK]"}, r"its special token '\[UNK\]' has the number of another token"),
        ("byt5-old", {"extra_ids": 200, "additional_special_tokens": []}, "is outside the vocabulary of 384 tokens"),
        ("byt5-old", {"pad_token": {"content": "<pad>", "single_word": True}}, "single_word, which is not supported"),
        ("umt5", {"eos_token": "<pad>"}, "eos is 0 in the tokenizer and 1 in the model"),
    ],
)
def test_tokenizers_of_t5_with_other_contents(folders, tmp_path, kind, content, message):
    folder, config, _, _ = folders(kind)
    shutil.copytree(folder, tmp_path / "m")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "m" / "special_tokens_map.json").unlink(missing_ok=True)
    hf_text.write(tmp_path / "m", tokenizer_config={**settings, **content})
    with pytest.raises(ValueError, match=message) as refused:
        open_folder(tmp_path / "m", config)
    assert str(tmp_path) in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize("kind, frame", [("umt5", "text eos"), ("gemma", "bos text")])
def test_a_template_of_the_file_is_checked(folders, tmp_path, kind, frame):
    """Where version 5 takes it from there."""
    folder, config, _, _ = folders(kind)
    shutil.copytree(folder, tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    hf_text.write(tmp_path / "m", tokenizer={**content, "post_processor": None})
    with pytest.raises(ValueError, match=rf"tokenizer.json: its template is not supported; only '{frame}'"):
        open_folder(tmp_path / "m", config)


@pytest.mark.parametrize("kind, package", [("marian", "sentencepiece"), ("nllb", "tokenizers")])
def test_a_missing_package_is_named(folders, monkeypatch, kind, package):
    folder, config, _, _ = folders(kind)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="run: " + re.escape(install_command("hf"))):
        open_folder(folder, config)
