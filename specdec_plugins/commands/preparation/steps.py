"""The steps of a preparation, which can be resumed.

A step writes under ``.partial``, moves its files into place and records a key of all that its output depends on in ``.steps``; a
later run skips steps whose key still matches. fairseq-preprocess runs as a command.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from specdec_plugins.commands.preparation.pairs import (
    Pair,
    count_lines,
    find_text,
    map_pairs,
    progress,
    reason_to_drop,
    squeeze,
    write_pairs,
)
from specdec_plugins.formats import files
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.restyle import restyle
from specdec_plugins.text.tokenizers import BYTE_LEVEL, load_codes, load_tokenizer

CLEANED = ("train", "mono")  # splits from which unfit pairs are removed
Counts = dict[str, int]


def digest(*parts: Any) -> str:
    """The sha256 of JSON-able values, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def move(new: Path, old: Path) -> None:
    """Move a finished file or folder into place."""
    old.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir():
        shutil.rmtree(old)
    os.replace(new, old)


def write_json(path: Path, value: Any) -> None:
    files.write(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


class Preparation:
    """One run: the validated inputs, and the steps. A ``make_`` method writes under the folder it gets and returns counts."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.output = options, options.output
        self.langs: Pair = (options.source_lang,) if options.mono else (options.source_lang, options.target_lang)
        prefixes = {"train": options.train, "valid": options.valid and [options.valid]}
        prefixes |= {f"test{number or ''}": [prefix] for number, prefix in enumerate(options.test or [])}
        self.inputs: dict[str, list[list[Path]]] = {  # split -> parts -> files, one per language
            split: [[find_text(prefix, lang) for lang in self.langs] for prefix in parts]
            for split, parts in prefixes.items()
            if parts
        }
        if options.mono:
            self.inputs["mono"] = [[options.mono]]
        self.lines: Counts = {split: sum(map(count_lines, parts)) for split, parts in self.inputs.items()}
        given = [path for parts in self.inputs.values() for path in chain(*parts)]
        self.hashes = {str(path): file_digest(path) for path in (*given, options.codes, options.dict) if path}
        self.counts: dict[str, Counts] = {}  # by step
        self.refuse_to_drop_splits()

    def take_steps(self) -> None:
        """Take every step. Each step's key covers the steps before it."""
        options = self.options
        # As older data sets record them: False stands for a former option, and these defaults are absent.
        how: list[Any] = [self.langs, False, options.bpe_applied]
        if (options.tokenizer, options.restyle) != ("moses", 0):
            how += [options.tokenizer, options.restyle]
        text_keys = {
            split: digest(*how, [self.hashes[str(path)] for path in chain(*parts)]) for split, parts in self.inputs.items()
        }
        codes_key = digest(self.hashes.get(str(options.codes)) or [text_keys.get("train"), options.bpe_operations])
        if not options.bpe_applied:
            for split, key in text_keys.items():
                made = self.files("tok", split) + self.files("raw", split)
                self.step(f"tok {split}", key, made, partial(self.make_tok, split))
            self.step("codes", codes_key, ["codes"], self.make_codes)
        bpe_keys = {
            split: digest(key, codes_key, (options.max_length, options.max_ratio) if split in CLEANED else None)
            for split, key in text_keys.items()
        }
        for split, key in bpe_keys.items():
            self.step(f"bpe {split}", key, self.files("bpe", split), partial(self.make_bpe, split))
        if not options.mono:
            bin_key = digest(bpe_keys, self.hashes.get(str(options.dict)), options.dict_size)
            self.step("bin", bin_key, ["bin"], self.make_bin)
        write_json(self.output / "prepare.json", self.summary())

    def step(self, name: str, key: str, results: list[str], make: Callable[[Path], Counts]) -> None:
        """Make `results`, paths under the output folder, unless they exist with this `key`; print the counts.

        `make` writes them under the folder it gets. If it fails, existing files are unchanged.
        """
        record, unfinished = self.output / ".steps" / f"{name.replace(' ', '.')}.json", self.output / ".partial"
        made = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        if made.get("key") == key and all((self.output / result).exists() for result in results):
            self.counts[name] = made["counts"]
            print(f"{name}: done", flush=True)
            return

        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            self.counts[name] = make(unfinished)
            record.unlink(missing_ok=True)  # until it is rewritten, the step counts as not done
            for result in results:
                move(unfinished / result, self.output / result)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        record.parent.mkdir(exist_ok=True)
        write_json(record, {"key": key, "counts": self.counts[name]})
        print(f"{name}: " + ", ".join(f"{number:,} {what}" for what, number in self.counts[name].items()), flush=True)

    def refuse_to_drop_splits(self) -> None:
        """Raise ValueError if the folder holds other languages or more splits, which this run would destroy."""
        record = self.output / "prepare.json"
        if not record.exists():
            return
        try:
            made = json.loads(record.read_text(encoding="utf-8"))
            lost = made["languages"] != list(self.langs) or set(made["lines"]) - set(self.lines)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{record}: damaged or not ours ({type(error).__name__}: {error})") from None
        if lost:
            held = f"{'-'.join(made['languages'])} {', '.join(made['lines'])}"
            raise ValueError(f"--output {self.output}: it holds {held}, which this command would lose; name another folder")

    def files(self, folder: str, split: str) -> list[str]:
        """The files of a split, relative to the output folder."""
        return [f"{folder}/{split}.{lang}" for lang in self.langs]

    def read(self, split: str, folder: str | None = None) -> Iterable[Pair]:
        """The pairs of a split: from a step's `folder`, or from the input."""
        parts = [[self.output / file for file in self.files(folder, split)]] if folder else self.inputs[split]
        pairs = (zip(*map(read_lines, paths), strict=True) for paths in parts)
        return progress(chain.from_iterable(pairs), split, self.lines[split])

    def make_tok(self, split: str, folder: Path) -> Counts:
        """Write raw/ and tok/."""
        write_pairs([folder / file for file in self.files("raw", split)], self.read(split))
        pairs = self.read(split)
        if split == "train" and self.options.restyle:
            pairs = (restyle(source, target, self.options.restyle) for source, target in pairs)
        functions = [load_tokenizer(self.options.tokenizer, lang).tokenize for lang in self.langs]
        pairs = map_pairs(functions, pairs, self.options.workers)
        return {"pairs": write_pairs([folder / file for file in self.files("tok", split)], pairs)}

    def make_codes(self, folder: Path) -> Counts:
        """Write codes: the given ones, or codes learned from both sides of the tokenised training text."""
        if self.options.codes:
            load_codes(self.options.tokenizer, self.options.codes)  # validates the file
            shutil.copyfile(self.options.codes, folder / "codes")
        elif self.options.tokenizer == BYTE_LEVEL:
            from specdec_plugins.text.byte_level import learn_codes as learn_byte_level

            # The library learns in threads and warns about later forks, which are safe: the children start no threads.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
            learn_byte_level(chain.from_iterable(self.read("train", "tok")), self.options.bpe_operations, folder / "codes")
        else:
            words = Counter(word for pair in self.read("train", "tok") for line in pair for word in line.split())
            learn_codes(words, self.options.bpe_operations, folder / "codes")
        return {"operations": sum(not line.startswith("#version") for line in read_lines(folder / "codes"))}

    def make_bpe(self, split: str, folder: Path) -> Counts:
        """Write bpe/: every pair of a valid or test split; of the others those fit for training."""
        if self.options.bpe_applied:
            pairs = map_pairs([squeeze] * len(self.langs), self.read(split), 1)
        else:
            apply = load_codes(self.options.tokenizer, self.output / "codes").apply
            pairs = map_pairs([apply] * len(self.langs), self.read(split, "tok"), self.options.workers)
        dropped: Counts = dict.fromkeys(("empty", "too long", "ratio"), 0)

        def fit(pair: Pair) -> bool:
            if reason := reason_to_drop(pair, self.options.max_length, self.options.max_ratio):
                dropped[reason] += 1
            return reason is None

        chosen = filter(fit, pairs) if split in CLEANED else pairs
        kept = write_pairs([folder / file for file in self.files("bpe", split)], chosen)
        if kept == 0:
            raise ValueError(f"{split}: cleaning removed every pair; see --max-length and --max-ratio")
        if split not in CLEANED:
            return {"pairs": kept}
        return {"pairs kept": kept} | {f"removed ({reason})": count for reason, count in dropped.items()}

    def make_bin(self, folder: Path) -> Counts:
        """Write bin/ with fairseq-preprocess; its report goes to preprocess.log."""
        command = ["--source-lang", self.langs[0], "--target-lang", self.langs[1], "--joined-dictionary"]
        command += ["--destdir", str(folder.resolve() / "bin"), "--workers", str(self.options.workers)]
        if self.options.tokenizer == BYTE_LEVEL and not (self.options.dict or self.options.bpe_applied):
            from specdec_plugins.text.byte_level import read_codes

            # All subwords, even those absent from the training text, so that nothing is unknown.
            every = folder.resolve() / "dict.txt"
            every.write_text("".join(f"{number} 1\n" for number in range(len(read_codes(self.output / "codes")[0]))))
            command += ["--srcdict", str(every)]
        if self.options.dict:
            command += ["--srcdict", str(self.options.dict.resolve())]
        if self.options.dict_size:
            command += ["--nwordssrc", str(self.options.dict_size)]
        for name in ("train", "valid", "test"):
            if splits := [f"bpe/{split}" for split in self.lines if split.startswith(name)]:
                command += [f"--{name}pref", ",".join(splits)]
        log = self.output / "preprocess.log"
        with open(log, "w", encoding="utf-8") as stream:
            # run in the folder, because fairseq splits paths at commas
            result = subprocess.run(
                [sys.executable, "-m", "fairseq_cli.preprocess", *command],
                cwd=self.output,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        if result.returncode:
            last = (log.read_text(encoding="utf-8", errors="replace").strip() or "no message").splitlines()[-1]
            raise ValueError(f"fairseq-preprocess failed: {last} (see {log})")
        (folder / "bin" / "preprocess.log").unlink(missing_ok=True)  # fairseq's own copy of the report
        return {"dictionary entries": sum(1 for _ in read_lines(folder / "bin" / f"dict.{self.langs[0]}.txt"))}

    def summary(self) -> dict[str, Any]:
        """The content of prepare.json: how the data set was made."""
        libraries = ("tokenizers",) if self.options.tokenizer == BYTE_LEVEL else ("sacremoses", "subword-nmt")
        options = {name: value for name, value in vars(self.options).items() if name not in ("output", "workers")}
        return {
            "languages": list(self.langs),
            "tokenizer": self.options.tokenizer,
            "lines": self.lines,
            "counts": self.counts,
            "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
            "sha256": self.hashes,
            "versions": {name: version(name) for name in libraries},
        }


def learn_codes(words: Counter[str], operations: int, codes: Path) -> None:
    """Learn BPE codes from word counts and write them to a file."""
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = lambda items: progress(items, "codes")  # its own bar would fill log files
    entries = [f"{word} {count}" for word, count in words.items()]
    try:
        with open(codes, "w", encoding="utf-8") as stream:
            learn_bpe.learn_bpe(entries, stream, operations, is_dict=True)
    except ValueError:  # from max() of nothing
        raise ValueError(f"--bpe-operations {operations}: the training text is too small for this many") from None
