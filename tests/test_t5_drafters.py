"""Drafters of models like T5, from a published folder to outputs: trained ones, and a smaller model of the family."""

from collections import Counter
from itertools import chain

import hf_text
import pytest
from conftest import transformers
from support import long_but
from test_huggingface import gemma_sides, made

from specdec_plugins.commands import draft, import_model
from specdec_plugins.translator import Translator

pytest.importorskip("transformers", reason="compares with transformers")
LINES, TEXT = hf_text.lines(12, seed=5), hf_text.lines(400)
FAMILIES = {"t5": (hf_text.t5, "T5"), "t5gemma": (hf_text.gemma, "T5Gemma"), "t5gemma2": (hf_text.gemma, "T5Gemma2")}


def published(folder, tokenizer, kind, seed=0, ending=False, **changes):
    """A random model with its tokenizer, as transformers saves it. With ``ending``, tokens that it likes end its outputs."""
    config = {name: value for name, value in tokenizer(folder).items() if name != "model_type"}
    config |= gemma_sides(kind, vocab_size=config["vocab_size"])
    start = {"decoder_start_token_id": transformers().AutoTokenizer.from_pretrained(folder).pad_token_id}
    model = made(kind, {**config, **start, **changes}, {}, seed).float()
    model.save_pretrained(folder)
    if ending:
        plain = Translator.from_pretrained(folder, strategy="ar", threads=1)
        endless = [{*each.tokens[2:]} - {0, 1, 2} for each in plain.engine.generate(plain.encode(TEXT))]
        ends = [1]
        while len(ends) < 16 and any(endless):
            ends.append(Counter(chain.from_iterable(endless)).most_common(1)[0][0])
            endless = [tokens for tokens in endless if ends[-1] not in tokens]
        model.generation_config.eos_token_id = ends
        model.generation_config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", long_but(FAMILIES, "t5"))
def test_a_drafter_trained_on_the_models_own_outputs(family, tmp_path):
    """Of `glide`, which reads keys without positions and adds its bias, or rotated keys: outputs stay the model's."""
    folder, text = published(tmp_path / "model", *FAMILIES[family], ending=True), tmp_path / "text"
    text.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    how = ["--updates", "30", "--precision", "float32", "--threads", "1"]
    assert draft.main([str(folder), "--sources", str(text), "--output", str(tmp_path / "out"), *how]) == 0
    accepted = {}
    for dtype in ("float64", "float32", "bfloat16", "int8"):
        plain = Translator.from_pretrained(folder, strategy="ar", dtype=dtype, threads=1)
        drafting = Translator.from_pretrained(tmp_path / "out", dtype=dtype, threads=1, block_size=4)
        assert drafting.engine.drafter_name == "glide"
        wanted, found = (each.translate(LINES, batch_size=5) for each in (plain, drafting))
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        accepted[dtype] = drafting.stats.mean_accepted_length
    assert min(accepted.values()) > 1.1


def test_a_smaller_t5_drafts_for_a_larger_one(tmp_path, capsys):
    """Of the same vocabulary, imported or as published; another vocabulary is refused."""
    large = published(tmp_path / "large", hf_text.t5, "T5", num_layers=3, d_model=64)
    published(tmp_path / "small", hf_text.t5, "T5", seed=1, num_layers=1)
    other = published(tmp_path / "other", lambda folder: hf_text.t5(folder, madlad=True), "T5")
    assert import_model.main([str(tmp_path / "small"), "--output", str(tmp_path / "imported")]) == 0
    for dtype in ("float64", "float32", "bfloat16", "int8"):
        wanted = Translator.from_pretrained(large, strategy="ar", dtype=dtype, threads=1).translate(LINES)
        for folder in ("small", "imported"):
            drafting = Translator.from_pretrained(large, drafter=str(tmp_path / folder), dtype=dtype, threads=1, block_size=3)
            assert [each.tokens for each in drafting.translate(LINES)] == [each.tokens for each in wanted]
            assert drafting.engine.drafter_name == "small" and drafting.stats.drafted
    with pytest.raises(ValueError, match=f"{other}: cannot draft for .*large: it has another source vocabulary"):
        Translator.from_pretrained(large, drafter=str(other))
