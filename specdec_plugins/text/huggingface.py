"""The codec of a local Hugging Face folder, from its tokenizer files. Their contents are honoured or refused by name."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specdec_plugins.formats.description import CodecEntry, read_json
from specdec_plugins.formats.errors import brief
from specdec_plugins.text.framed import Added, TextOptions
from specdec_plugins.text.sentencepiece import read_numbers

NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # special tokens, in the order in which missing ones get numbers
# By ``model_type``, where no file names the tokenizer's class.
CLASSES = {"marian": "MarianTokenizer", "m2m_100": "M2M100Tokenizer", "mbart": "MBartTokenizer", "bart": "BartTokenizer",
           "pegasus": "PegasusTokenizer"}  # fmt: skip
UNLIMITED = 1_000_000  # model_max_length from here on means none
# Settings that would change a text's tokens, and the values that do not.
USUAL: dict[str, tuple[Any, ...]] = {
    "sp_model_kwargs": ({}, None), "split_special_tokens": (False,), "truncation_side": ("right",), "errors": ("replace",),
    "do_lower_case": (False,), "add_bos_token": (False,), "add_eos_token": (False,),
}  # fmt: skip


def codec_entry(folder: Path, config: Mapping[str, Any]) -> CodecEntry:
    """The codec for a model's folder; ``config`` is its ``config.json`` under ``generation_config.json``.

    Where the entry's options have languages and the frame has the source's, the codec forces the target's language token: then
    ``forced_bos_token_id`` is only its default (`default_languages`) and no part of the model. Raises ValueError.
    """
    return _Folder(Path(folder), config).entry()


def default_languages(folder: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """The source and target languages of requests that name none; empty where each request must."""
    return _Folder(Path(folder), config).languages()


@dataclass(frozen=True)
class Family:
    """How a tokenizer class frames a source, and where it finds its parts."""

    codec: str
    frame: str
    roles: Mapping[str, str]  # file names by role
    code: re.Pattern[str] | None = None  # of language tokens; its group is the language


FAMILIES = {
    "MarianTokenizer": Family(
        "sentencepiece", "target text eos", {"source": "source.spm", "target": "target.spm", "vocabulary": "vocab.json"},
        re.compile(r">>(.+)<<"),
    ),
    "M2M100Tokenizer": Family(
        "sentencepiece", "source text eos",
        {"source": "sentencepiece.bpe.model", "target": "sentencepiece.bpe.model", "vocabulary": "vocab.json"},
        re.compile(r"__(\w+)__"),
    ),
}  # fmt: skip


class _Folder:
    """A folder's tokenizer files, read once."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        self.folder, self.config = folder, config
        self.path = folder / "tokenizer_config.json"
        self.settings = read_json(self.path) if self.path.is_file() else {}
        model = config.get("model_type")
        name = self.settings.get("tokenizer_class") or config.get("tokenizer_class") or CLASSES.get(str(model))
        if model == "m2m_100" and not (folder / "vocab.json").is_file():
            name = name or "NllbTokenizer"
        self.name = str(name).removesuffix("Fast")
        if self.name not in FAMILIES:
            raise ValueError(f"{folder}: tokenizer '{brief(name)}' is not supported; these are: {', '.join(FAMILIES)}")
        self.family = FAMILIES[self.name]
        wrong = [
            f"{key} {brief(self.settings[key])}" for key, usual in USUAL.items() if self.settings.get(key, usual[0]) not in usual
        ]
        if wrong:
            raise ValueError(f"{self.path}: not supported: {', '.join(wrong)}")

    def entry(self) -> CodecEntry:
        files = dict(self.family.roles)
        if self.settings.get("separate_vocabs"):
            files["target_vocabulary"] = "target_vocab.json"
        if missing := sorted({name for name in files.values() if not (self.folder / name).is_file()}):
            raise ValueError(f"{self.folder}: no {' and no '.join(missing)} in it, which {self.name} needs")
        options = json.loads(json.dumps(asdict(self.options(files))))
        usual = {each.name: each.default for each in fields(TextOptions)}
        return CodecEntry(
            self.family.codec, files, {key: value for key, value in options.items() if value not in (usual[key], [], {})}
        )

    def options(self, files: Mapping[str, str]) -> TextOptions:
        source_size = self.number("vocab_size")
        target_size = self.number("decoder_vocab_size", source_size) if "target_vocabulary" in files else source_size
        numbers = read_numbers(self.folder / files["vocabulary"], source_size)
        added, named = self.added(numbers)
        ids = {each.content: each.id for each in added}
        codes = numbers if self.name == "MarianTokenizer" else ids
        if "target_vocabulary" in files:
            codes = {}
        if named["unk"] not in numbers:
            raise ValueError(f"{self.folder}: the unknown token '{brief(named['unk'])}' is not in {files['vocabulary']}")
        return TextOptions(
            source_size, target_size, self.family.frame, ids[named["unk"]], ids[named["eos"]], added=tuple(added),
            languages=self.codes(codes), max_length=self.max_length(512 if self.name == "MarianTokenizer" else None),
            clean_up=self.settings.get("clean_up_tokenization_spaces") is True,
        )  # fmt: skip

    def codes(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """The languages among tokens, by code."""
        assert self.family.code is not None
        found = ((self.family.code.fullmatch(token), number) for token, number in numbers.items())
        return {match[1]: number for match, number in found if match}

    def added(self, numbers: Mapping[str, int]) -> tuple[list[Added], dict[str, str]]:
        """Tokens that text may contain verbatim, and the named special ones. Those without a number follow the vocabulary."""
        settings = dict(self.settings)
        if "added_tokens_decoder" in settings:
            listed_tokens = self.object(settings["added_tokens_decoder"], "added_tokens_decoder").items()
            tokens = {self.index(number): self.token(token, special=False) for number, token in listed_tokens}
        else:
            path = self.folder / "special_tokens_map.json"
            settings |= read_json(path) if path.is_file() else {}
            path = self.folder / "added_tokens.json"
            plain = read_json(path) if path.is_file() else {}
            tokens = {self.index(number): self.token(content, special=False) for content, number in plain.items()}
        named = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
        if self.name != "MarianTokenizer":
            named |= {"bos": "<s>", "sep": "</s>"}
        own = {
            key.removesuffix("_token"): value for key, value in settings.items() if key.endswith("_token") and value is not None
        }
        given = {key: self.token(value) for key, value in own.items()}
        named = {**named, **{key: each.content for key, each in given.items()}}
        names = [*NAMED, *(key for key in named if key not in NAMED)]
        special = {each.content: each for each in given.values()}
        more = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
        more = [self.token(each) for each in (more.values() if isinstance(more, dict) else self.sequence(more, "special tokens"))]
        ordered = [special.get(named[key], Added(named[key], 0)) for key in names if key in named] + more
        known = {token.content: number for number, token in tokens.items()}
        following = len({*numbers, *known})
        for token in ordered:
            if token.content not in known:
                known[token.content] = numbers.get(token.content, following)
                following += known[token.content] == following
                tokens[known[token.content]] = token
        skipped = {each.content for each in ordered}
        found = [
            Added(each.content, number, each.content in skipped, each.lstrip, each.rstrip) for number, each in tokens.items()
        ]
        return found, named

    def token(self, value: Any, special: bool = True) -> Added:
        """A special token, a string or an object in JSON; its number is set later."""
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str) or not content:
            raise ValueError(f"{self.path}: {brief(repr(value), 80)} is not a token")
        flags = value if isinstance(value, dict) else {}
        if flags.get("single_word"):
            raise ValueError(f"{self.path}: token '{brief(content, 40)}' has single_word, which is not supported")
        return Added(content, 0, special, flags.get("lstrip") is True, flags.get("rstrip") is True)

    def languages(self) -> tuple[str, str]:
        named = [self.settings.get(key) for key in ("source_lang", "target_lang")]
        if self.name != "MarianTokenizer":
            named = [self.settings.get(key) for key in ("src_lang", "tgt_lang")]
        source, target = (each if isinstance(each, str) and len(each) < 40 else "" for each in named)
        return source, target

    def max_length(self, usual: int | None) -> int | None:
        """Source tokens at most, special ones included."""
        value = self.settings.get("model_max_length", usual)
        if value is None or (isinstance(value, (int, float)) and value >= UNLIMITED):
            return None
        return self.index(value)

    def number(self, key: str, usual: int | None = None) -> int:
        value = self.config.get(key, usual)
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.folder / 'config.json'}: {key} is {value!r:.40}")
        return value

    def index(self, value: Any) -> int:
        """A number that JSON may hold as a string."""
        text = str(value)
        if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise ValueError(f"{self.path}: {brief(repr(value), 40)} is not a token's number or a length")
        return int(text)

    def object(self, value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{self.path}: {name} is not an object")
        return value

    def sequence(self, value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{self.path}: {name} are not a list")
        return value
