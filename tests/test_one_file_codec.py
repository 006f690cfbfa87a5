"""A codec that is one file outside the project: a model with it is packed, loaded and decoded, with nothing edited."""

import json
import string
from dataclasses import replace

import pytest
from random_pair import Shape, random_pair

from specdec_plugins.documents import windows_of
from specdec_plugins.formats.folder import Pair, load_folder, save_folder
from specdec_plugins.model.spec import Symbols
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig
from specdec_plugins.translator import Translator

CHARACTERS = string.ascii_lowercase + " ~é"
LANGUAGES = ["xb", "xc"]
SYMBOLS = Symbols(pad=17, eos=0, start=9, mask=4)
TEXTS = ["a small text", "x", "", "one more, and longer", "été"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder of format 3 with random weights, whose ends come at some time."""
    folder = tmp_path_factory.mktemp("codec")
    (folder / "letters.txt").write_text(CHARACTERS, encoding="utf-8")
    size = len(CHARACTERS) + 4 + len(LANGUAGES)
    verifier, drafter = random_pair(Shape(1, 1, 32, 64, 2, size, block_size=3, positions=64), seed=3)
    verifier = replace(verifier, spec=replace(verifier.spec, symbols=SYMBOLS))
    files, options = {"characters": folder / "letters.txt"}, {"languages": LANGUAGES}
    save_folder(
        Pair.open(verifier, drafter, CodecConfig("one_file_codec:Characters", "it", files, "xa", "xb", options)), folder / "pair"
    )
    return folder / "pair"


def test_the_folder_names_the_codec(folder):
    description = json.loads((folder / "model.json").read_text())
    assert description["format"] == 4 and description["codec"] == {
        "name": "one_file_codec:Characters",
        "files": {"characters": "letters.txt"},
        "options": {"languages": LANGUAGES},
    }
    assert (folder / "letters.txt").read_text(encoding="utf-8") == CHARACTERS
    assert load_folder(folder).codec.encode("été").ids[-1] == SYMBOLS.eos


@pytest.mark.parametrize("options", [{}, {"block_size": 3}, {"draft_with": "ngram"}, {"dtype": "float64"}])
def test_decodes_exactly(folder, options):
    """Its own special ids and its language token hold with every strategy and on both backends."""
    plain = Translator.from_pretrained(folder, strategy="ar", dtype=options.get("dtype", "float32"), max_len_b=40)
    expected = plain.translate(TEXTS)
    found = Translator.from_pretrained(folder, max_len_b=40, **options).translate(TEXTS)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.text for each in found] == [each.text for each in expected]
    assert all(each.tokens[0] == "<xb>" for each in expected if each.source_tokens) and expected[2].tokens == []
    special = {"PAD", "START", "MASK", "EOS"}
    assert all(not special & set(each.text) for each in expected) and len({each.text for each in expected}) > 2


def test_streams(folder):
    """The language token is forced, and says nothing; every later pass tells its text at once."""
    translator = Translator.from_pretrained(folder, block_size=3, max_len_b=40)
    for text in TEXTS:
        deltas = list(translator.stream_text(text))
        assert "".join(deltas) == translator.translate([text])[0].text and all(deltas)


def test_hints_windows_and_limits(folder):
    translator = Translator.from_pretrained(folder, strategy="ar", windows="sentence", max_len_b=10)
    text = "it is so. no it is. ja."
    assert "".join(translator.translate([text])[0].source_tokens) == "".join(
        translator.pair.source.tokens([token for part in windows_of(translator, text, False) for token in part])
    )
    with pytest.raises(ValueError, match="over 63 tokens"):
        Translator(load_folder(folder), Settings(strategy="ar")).translate(["a" * 1000])
