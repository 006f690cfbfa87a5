"""Translate with random weights, plainly and with drafts: the package's kernels load, and give the same output."""

import tempfile
from pathlib import Path

import numpy as np

from specdec_plugins import Translator
from specdec_plugins.decoding.compiled import available
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.spec import Model, shapes
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, SideSpec
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import CodecConfig

SIDE = SideSpec(2, 64, Attention(4), FeedForward(128), 64, Embedding(8.0, 2))
SPEC = ModelSpec(SIDE, SIDE)
SYMBOLS = [letter + end for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("@@", "")]
SIZE = 4 + len(SYMBOLS)  # with the special tokens

assert available(), "no kernels"
random = np.random.default_rng(1)
tensors = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes(SPEC, SIZE, SIZE).items()}
with tempfile.TemporaryDirectory() as name:
    dictionary, codes = Path(name, "dict.txt"), Path(name, "codes")
    dictionary.write_text("".join(f"{symbol} 1\n" for symbol in SYMBOLS), encoding="utf-8")
    codes.write_text("d o\n", encoding="utf-8")
    config = CodecConfig("fairseq-bpe", name, {"source": dictionary, "target": dictionary, "codes": codes}, "en", "de")
    pair = Pair.open(Model(SPEC, tensors), None, config)
    settings = Settings(strategy="ar", dtype="int8"), Settings(draft_with="lookahead", dtype="int8")
    plain, drafted = (Translator(pair, each).translate(["a dog runs", "snow"]) for each in settings)
print(*available(), [each.text for each in plain])
assert all(each.tokens for each in plain)
assert [each.tokens for each in plain] == [each.tokens for each in drafted]
assert sum(each.iterations for each in drafted) < sum(each.iterations for each in plain), "no draft was accepted"
