"""The tokenizer classes of transformers that codecs know: their files, frames, special tokens and settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Settings that would change a text's tokens, and the values that do not.
USUAL: dict[str, tuple[Any, ...]] = {
    "sp_model_kwargs": ({}, None),
    "split_special_tokens": (False,),
    "truncation_side": ("right",),
    "errors": ("replace",),
    "do_lower_case": (False,),
    "add_bos_token": (False,),
    "add_eos_token": (False,),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False,),
}
# By ``model_type``, where no file names the tokenizer's class.
CLASSES = {
    "marian": "MarianTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "mbart": "MBartTokenizer",
    "bart": "BartTokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "t5gemma": "GemmaTokenizer",
}
NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # special tokens, in the order in which missing ones get numbers
DEFAULTS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}


@dataclass(frozen=True)
class Family:
    """A tokenizer class: its codec, how it frames a source, and its files by role."""

    codec: str
    frame: str
    roles: Mapping[str, str]
    family: str = ""  # of tokenizer-json
    code: str = ""  # language tokens; the group is the language
    named: tuple[str, ...] = NAMED  # special tokens that it always has ..
    defaults: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)  # .. and what they are
    others: Mapping[str, str] = field(default_factory=dict)  # files where there is no tokenizer.json
    flags: tuple[str, ...] = ()  # settings that are true, among those of `USUAL` that others have not


JSON, REGION = {"tokenizer": "tokenizer.json"}, r"([a-z]{2,3}_[A-Z]{2})"
MODEL = {"model": "sentencepiece.bpe.model"}
BART = Family("tokenizer-json", "bos text eos", JSON, "bart", others={"vocabulary": "vocab.json", "merges": "merges.txt"})
FILE = Family("tokenizer-json", "text eos", JSON, "file", named=("eos", "unk", "pad"))
FAMILIES = {
    "MarianTokenizer": Family(
        "sentencepiece", "target text eos", {"source": "source.spm", "target": "target.spm", "vocabulary": "vocab.json"},
        code=r">>(.+)<<", named=("eos", "unk", "pad"),
    ),
    "M2M100Tokenizer": Family(
        "sentencepiece", "source text eos",
        {"source": "sentencepiece.bpe.model", "target": "sentencepiece.bpe.model", "vocabulary": "vocab.json"},
        code=r"__(\w+)__", named=("bos", "eos", "unk", "sep", "pad"),
    ),
    "NllbTokenizer": Family("tokenizer-json", "source text eos", JSON, "nllb", r"([a-z]{3}_[A-Z][a-z]{3})"),
    "MBartTokenizer": Family("tokenizer-json", "text eos source", JSON, "mbart", REGION, others=MODEL),
    "MBart50Tokenizer": Family("tokenizer-json", "source text eos", JSON, "mbart50", REGION, others=MODEL),
    "PegasusTokenizer": Family(
        "tokenizer-json", "text eos", JSON, "pegasus", named=("eos", "unk", "pad"), others={"model": "spiece.model"}
    ),
    "BartTokenizer": BART, "RobertaTokenizer": BART,
    "T5Tokenizer": Family(
        "tokenizer-json", "text eos", JSON, "t5", named=("eos", "unk", "pad"), others={"model": "spiece.model"}
    ),
    "GemmaTokenizer": Family(
        "tokenizer-json", "bos text", JSON, "gemma", named=("pad", "eos", "bos", "unk"),
        defaults={"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}, flags=("add_bos_token",),
    ),
    "ByT5Tokenizer": Family("byt5", "text eos", {}, named=("pad", "eos", "unk")),
    "TokenizersBackend": FILE, "PreTrainedTokenizer": FILE,
}  # fmt: skip
MAX_SENTINELS = 10_000
SENTINELS = {"T5Tokenizer": 100, "ByT5Tokenizer": 125}  # tokens <extra_id_N>, where no file says how many
TAG = re.compile(r"<2([a-z]{2,3}(?:_[A-Za-z]{2,4})*)>")  # MADLAD's target languages
PAIR = re.compile(r"translation_([a-z]{2,3})_to_([a-z]{2,3})")  # T5's translation tasks
