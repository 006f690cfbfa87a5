"""The codec of a local Hugging Face folder, from its tokenizer files. Their contents are honoured or refused by name."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specdec_plugins.formats.description import CodecEntry, read_json
from specdec_plugins.formats.errors import brief
from specdec_plugins.text.byt5 import FIRST, NAMES
from specdec_plugins.text.framed import Added, TextOptions
from specdec_plugins.text.sentencepiece import load_model, read_added, read_numbers
from specdec_plugins.text.tokenizer_classes import CLASSES, FAMILIES, MAX_SENTINELS, NAMED, PAIR, SENTINELS, TAG, USUAL

UNLIMITED = 1_000_000  # model_max_length from here on means none


class TokenizerFolder:
    """A folder's tokenizer files; ``config`` is its ``config.json`` under ``generation_config.json``. Raises ValueError."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        self.folder, self.config = folder, config
        self.path = folder / "tokenizer_config.json"
        self.settings = self.read("tokenizer_config.json")
        kind = config.get("model_type")
        usual = "NllbTokenizer" if kind == "m2m_100" and not (folder / "vocab.json").is_file() else CLASSES.get(str(kind))
        name = self.settings.get("tokenizer_class") or config.get("tokenizer_class") or usual
        self.name = "TokenizersBackend" if kind == "umt5" else str(name).removesuffix("Fast")  # it has no class of its own
        if self.name not in FAMILIES:
            raise ValueError(f"{folder}: tokenizer '{brief(name)}' is not supported; these are: {', '.join(FAMILIES)}")
        self.family = FAMILIES[self.name]
        wrong = [
            f"{key} {brief(self.settings[key], 40)}"
            for key, good in (USUAL | dict.fromkeys(self.family.flags, (True,))).items()
            if self.settings.get(key, good[0]) not in good
        ]
        if wrong:
            raise ValueError(f"{self.path}: not supported: {', '.join(wrong)}")
        if "added_tokens_decoder" not in self.settings:
            self.settings |= self.read("special_tokens_map.json")

    def entry(self) -> CodecEntry:
        """The codec."""
        options = json.loads(json.dumps(asdict(self.options)))
        usual = {each.name: each.default for each in fields(TextOptions)}
        return CodecEntry(
            self.family.codec, self.files, {key: value for key, value in options.items() if value not in (usual[key], [], {})}
        )

    @property
    def forces_language(self) -> bool:
        """Whether the codec begins outputs with a language token that requests choose. ``forced_bos_token_id`` is then only the
        default, no part of the model."""
        return "source" in self.options.frame.split() and not self.options.fixed_target

    def languages(self) -> tuple[str, str]:
        """The source and target languages of requests that name none; empty where each request must."""
        given = ("source_lang", "target_lang") if self.name == "MarianTokenizer" else ("src_lang", "tgt_lang")
        source, target = (self.settings.get(name) or "" for name in given)
        if not isinstance(source, str) or not isinstance(target, str):
            raise ValueError(f"{self.path}: {' and '.join(given)} are no languages' codes")
        numbers = {number: code for code, number in self.options.languages.items()}
        first = self.config.get("decoder_start_token_id" if self.options.fixed_target else "forced_bos_token_id")
        return source, numbers.get(first, target) if isinstance(first, int) else target

    @cached_property
    def files(self) -> dict[str, str]:
        """The codec's files by role. Raises ValueError if one is missing."""
        files = dict(self.family.roles)
        if self.settings.get("separate_vocabs"):
            files["target_vocabulary"] = "target_vocab.json"
        if "tokenizer" in files and not (self.folder / "tokenizer.json").is_file():
            files = dict(self.family.others) or files
        if missing := sorted({name for name in files.values() if not (self.folder / name).is_file()}):
            raise ValueError(f"{self.folder}: no {' and no '.join(missing)} in it, which {self.name} needs")
        return files

    @cached_property
    def options(self) -> TextOptions:
        files, family, own = self.files, self.family, self.settings
        size = self.number("vocab_size")
        target_size = self.number("decoder_vocab_size", size) if "target_vocabulary" in files else size
        numbers = read_numbers(self.folder / files["vocabulary"], size) if "vocabulary" in files else {}
        if self.name == "ByT5Tokenizer":
            numbers = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{name: number for number, name in enumerate(NAMES, FIRST)}}
        added, named = self.added(numbers)
        ids = {each.content: each.id for each in added}
        coded = numbers if self.name == "MarianTokenizer" and "target_vocabulary" not in files else ids
        languages = {match[1]: number for token, number in coded.items() if (match := re.fullmatch(family.code, token))}
        if "source" in family.frame and not languages:
            raise ValueError(f"{self.folder}: its tokenizer has no language tokens among its special tokens")
        if lost := [named[name] for name in ("unk", *self.ends) if named[name] not in ids]:
            raise ValueError(f"{self.folder}: its special token '{brief(lost[0], 40)}' has the number of another token")
        unknown, eos, *bos = (ids[named[name]] for name in ("unk", *self.ends))
        legacy = self.name == "NllbTokenizer" and own.get("legacy_behaviour") is True
        try:
            return TextOptions(
                size,
                target_size,
                "text eos source" if legacy else family.frame,
                unknown,
                eos,
                bos[0] if bos else None,
                family.family,
                own.get("add_prefix_space") is True,
                tuple(added),
                languages,
                self.name == "MBartTokenizer" and self.config.get("decoder_start_token_id") in languages.values(),
                self.max_length(512 if self.name == "MarianTokenizer" else None),
                own.get("clean_up_tokenization_spaces") is True and family.family not in ("nllb", "bart"),  # not done after BPE
                prefixes=self.prefixes(),
            )
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None

    def prefixes(self) -> dict[str, str]:
        """The text that begins a source, by language: T5's tasks, or MADLAD's tags."""
        tasks = self.config.get("task_specific_params")
        found = {}
        for task, own in tasks.items() if isinstance(tasks, dict) else ():
            prefix, pair = own.get("prefix") if isinstance(own, dict) else None, PAIR.fullmatch(task)
            if pair and isinstance(prefix, str):
                found[" ".join(pair.groups())] = prefix
        if found or self.name != "T5Tokenizer":
            return found
        if "model" in self.files:
            model = load_model(self.folder / self.files["model"])
            pieces = map(TAG.fullmatch, model.id_to_piece(list(range(len(model)))))
            return {piece[1]: f"{piece[0]} " for piece in pieces if piece}
        text = (self.folder / self.files["tokenizer"]).read_text(encoding="utf-8")
        return {code: f"<2{code}> " for code in re.findall(f'"{TAG.pattern}"', text)}

    @property
    def ends(self) -> tuple[str, ...]:
        """The named tokens that end a source, and begin it."""
        return {"bart": ("sep", "cls"), "gemma": ("eos", "bos")}.get(self.family.family, ("eos",))

    def added(self, numbers: Mapping[str, int]) -> tuple[list[Added], dict[str, str]]:
        """Tokens that text may contain verbatim, and the named special ones. Those without a number follow the vocabulary."""
        tokens: dict[int, Added] = {}
        if "tokenizer" in self.files:
            tokens = self.listed(self.added_in_json())
        elif "model" in self.files:
            pass
        elif "added_tokens_decoder" in self.settings:
            tokens = self.listed(self.settings["added_tokens_decoder"])
        else:
            plain = self.read("added_tokens.json")
            tokens = {self.index(number): self.token(content, special=False) for content, number in plain.items()}
        keys = [key for key in self.settings if key.endswith("_token") and key not in USUAL]  # not flags such as add_bos_token
        own = {key.removesuffix("_token"): self.settings[key] for key in keys if self.settings[key]}
        given = {key: self.token(value) for key, value in own.items()}
        named = {name: self.family.defaults[name] for name in self.family.named} | {
            key: each.content for key, each in given.items()
        }
        more = self.settings.get("extra_special_tokens") or self.settings.get("additional_special_tokens") or []
        if not isinstance(more, list | dict):
            raise ValueError(f"{self.path}: its special tokens are not a list")
        extra = [self.token(each) for each in (more.values() if isinstance(more, dict) else more)]
        ordered = [name for name in NAMED if name in named] + [name for name in named if name not in NAMED]
        special = [given.get(name, Added(named[name], 0)) for name in ordered]
        if self.name == "ByT5Tokenizer":  # whose class makes tokens of strings, and sentinels, in this way
            special = [
                each if isinstance(own.get(name), dict) else replace(each, lstrip=True, rstrip=True)
                for name, each in zip(ordered, special)
            ]
            extra = extra or [Added(f"<extra_id_{number}>", 0) for number in range(self.sentinels)]
        special += extra
        if "tokenizer" in self.files:
            return self.checked(tokens, [*given.values(), *extra], named), named
        if "model" in self.files:
            return self.beside_pieces(named, [each.content for each in extra], given), named
        known = {token.content: number for number, token in tokens.items()}
        following = len({*numbers, *known})
        for token in special:
            if token.content not in known:
                known[token.content] = numbers.get(token.content, following)
                following += known[token.content] == following
                tokens[known[token.content]] = token
        skipped = {each.content for each in special}
        return [replace(each, id=number, special=each.content in skipped) for number, each in tokens.items()], named

    def beside_pieces(self, named: Mapping[str, str], extra: list[str], given: Mapping[str, Added]) -> list[Added]:
        """The added tokens for a SentencePiece model, which has none of its own, numbered as transformers does."""
        if self.name == "PegasusTokenizer":
            masks = [
                self.settings.get(key, usual) for key, usual in (("mask_token", "<mask_1>"), ("mask_token_sent", "<mask_2>"))
            ]
            unused = [f"<unk_{n}>" for n in range(2, self.index(self.settings.get("offset", 103)))]
            names = [named["pad"], named["eos"], *(self.token(mask).content for mask in masks if mask), *unused, named["unk"]]
            return [Added(name, number) for number, name in enumerate(names)]
        if self.name == "T5Tokenizer":
            path = self.folder / self.files["model"]
            model, found = load_model(path), {name: Added(name, number, special) for number, name, special in read_added(path)}
            numbers = {name: model.piece_to_id(name) for name in named.values()}
            found |= {name: Added(name, number) for name, number in numbers.items() if model.id_to_piece(number) == name}
            if not any("<extra_id_" in name for name in found):
                last = len(model) + self.sentinels - 1
                found |= {name: Added(name, last - n) for n in range(self.sentinels) for name in [f"<extra_id_{n}>"]}
            return [*found.values()]
        codes = [content for content in extra if re.fullmatch(self.family.code, content)]
        first = [named[name] for name in ("bos", "pad", "eos", "unk")]
        usual = Added(named["mask"], 0, lstrip=True)  # as the class makes it of a string
        mask = given["mask"] if isinstance(self.settings.get("mask_token"), dict) else usual
        after = len(first) + len(load_model(self.folder / self.files["model"])) - 3  # without <unk>, <s> and </s>
        return [
            *(Added(name, number) for number, name in enumerate(first)),
            *(Added(code, after + number) for number, code in enumerate(codes)),
            replace(mask, id=after + len(codes)),
        ]

    @property
    def sentinels(self) -> int:
        """How many tokens ``<extra_id_N>`` there are."""
        count = self.index(self.settings.get("extra_ids", SENTINELS[self.name]))
        if count > MAX_SENTINELS:
            raise ValueError(f"{self.path}: extra_ids {count:,}; at most {MAX_SENTINELS:,}")
        return count

    def checked(self, tokens: dict[int, Added], special: list[Added], named: Mapping[str, str]) -> list[Added]:
        """The added tokens of tokenizer.json, which the other files must agree with."""
        if "added_tokens_decoder" in self.settings:
            others = self.listed(self.settings["added_tokens_decoder"])
            if wrong := [number for number in {*tokens, *others} if tokens.get(number) != others.get(number)]:
                raise ValueError(f"{self.path}: added token {min(wrong)} is not the one in tokenizer.json")
        known = {each.content for each in tokens.values()}
        needed = [*(each.content for each in special), *(named[name] for name in ("unk", *self.ends))]
        if missing := [content for content in needed if content not in known]:
            raise ValueError(f"{self.folder / 'tokenizer.json'}: '{brief(missing[0], 40)}' is not one of its added tokens")
        skipped = {*named.values()}
        return [replace(each, id=number, special=each.special or each.content in skipped) for number, each in tokens.items()]

    def added_in_json(self) -> dict[str, Any]:
        """The added tokens of tokenizer.json by number, without parsing the rest, which may be 30 MB."""
        path = self.folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            at = text.index("[", text.index('"added_tokens"'))
            return {str(each["id"]): each for each in json.JSONDecoder().raw_decode(text, at)[0]}
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: no tokenizer with added tokens, or a damaged one ({brief(error)})") from None

    def listed(self, tokens: Any) -> dict[int, Added]:
        """Tokens with their flags by number."""
        if not isinstance(tokens, dict):
            raise ValueError(f"{self.path}: its added tokens are not an object")
        return {self.index(number): self.token(token, special=False) for number, token in tokens.items()}

    def token(self, value: Any, special: bool = True) -> Added:
        """A token, a string or an object in JSON; its number is set later."""
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str) or not content:
            raise ValueError(f"{self.path}: {brief(repr(value), 80)} is not a token")
        flags = value if isinstance(value, dict) else {}
        if flags.get("single_word"):
            raise ValueError(f"{self.path}: token '{brief(content, 40)}' has single_word, which is not supported")
        given = (flags.get(name) is True for name in ("special", "lstrip", "rstrip", "normalized"))
        own = Added(content, 0, *given)
        return replace(own, special=True) if special else own

    def max_length(self, usual: int | None) -> int | None:
        """Source tokens at most, special ones included."""
        value = self.settings.get("model_max_length", usual)
        unlimited = value is None or (isinstance(value, int | float) and value >= UNLIMITED)
        return None if unlimited else self.index(value)

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

    def read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return read_json(path) if path.is_file() else {}
