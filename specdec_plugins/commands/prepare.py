"""Turn parallel text into a data set that fairseq can train on: tokenise, apply BPE, clean, binarise.

``specdec-prepare --source-lang en --target-lang de --train corpus/train --output DIR`` fills the folder with, for every split
(``train``, ``valid``, ``test``, ``test1``, ...) and language:

    raw/      the text as it came, plain, one sentence a line
    tok/      the same, tokenised (by Moses, which normalises it, too)
    codes     the BPE codes, joint for both languages
    bpe/      the subwords; sentence pairs that make poor training data are left out of ``train`` here
    bin/      what fairseq loads, for either direction, with one dictionary for both languages
    prepare.json, preprocess.log

With ``--mono FILE --codes FILE`` it takes source text without a translation, which a verifier is to translate, as far as
``bpe/mono.LANG``.

The work is a chain of steps. A step writes under ``.partial`` and moves its finished files into place, then leaves a record
in ``.steps`` with a key made of everything its output depends on; a later run skips the steps whose record still fits.
This file knows the text pipeline and the command line of fairseq-preprocess, and imports neither fairseq nor torch.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

from specdec_plugins.commands.progress import bar
from specdec_plugins.commands.runner import Parser, run_command
from specdec_plugins.cpus import usable_cpus
from specdec_plugins.extras import install_command
from specdec_plugins.formats import files
from specdec_plugins.settings import MOST, MOST_THREADS, Fault
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.restyle import restyle
from specdec_plugins.text.tokenizers import BYTE_LEVEL, TOKENIZERS, load_codes, load_tokenizer
from specdec_plugins.workers import Workers

CLEANED = ("train", "mono")  # splits that lose pairs unfit for training
LIBRARIES = ("sacremoses", "subword-nmt"), ("tokenizers",)  # that text goes through; those of byte-level BPE
CHUNK = 500  # sentence pairs handed to a worker process at once
Pair = tuple[str, ...]  # a source and a target line; of text without translation only the source line
Counts = dict[str, int]


# ---- pairs of lines


def find_text(prefix: str, lang: str) -> Path:
    """Return the path of ``PREFIX.LANG`` or ``PREFIX.LANG.gz``."""
    plain = Path(f"{prefix}.{lang}")
    for path in (plain, Path(f"{plain}.gz")):
        if path.is_file():
            return path
    raise ValueError(f"{plain}: no such file, nor with .gz")


def count_lines(paths: list[Path]) -> int:
    """Read parallel files through and return their number of lines. Raises when they are empty, unequal or not text."""
    counts = [sum(1 for _ in progress(read_lines(path), path.name)) for path in paths]
    for path, count in zip(paths, counts):
        if count == 0:
            raise ValueError(f"{path}: the file is empty")
    if counts[0] != counts[-1]:
        raise ValueError(f"{paths[0]} has {counts[0]:,} lines but {paths[1]} has {counts[1]:,}")
    return counts[0]


def read_pairs(paths: list[Path]) -> Iterator[Pair]:
    """Yield the sentence pairs of parallel files."""
    return zip(*map(read_lines, paths), strict=True)


def write_pairs(paths: list[Path], pairs: Iterable[Pair]) -> int:
    """Write sentence pairs to new files, one a language, making their folders; return the number of pairs."""
    written = 0
    with ExitStack() as stack:
        streams = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            streams.append(stack.enter_context(open(path, "w", encoding="utf-8", newline="\n")))
        for pair in pairs:
            for stream, line in zip(streams, pair):
                stream.write(f"{line}\n")
            written += 1
    return written


def reason_to_drop(pair: Pair, max_length: int, max_ratio: float) -> str | None:
    """Say why a pair of BPE lines is unfit for training, or None. Lengths are in subwords; a limit of 0 is no limit."""
    lengths = [len(line.split()) for line in pair]
    shorter, longer = min(lengths), max(lengths)
    if shorter == 0:
        return "empty"
    if max_length and longer > max_length:
        return "too long"
    if max_ratio and longer > max_ratio * shorter:
        return "ratio"
    return None


def progress(items: Iterable, name: str, total: int | None = None) -> Iterable:
    """Show a bar on stderr while iterating, if that is a terminal."""
    return bar(items, desc=name, total=total, unit="", unit_scale=True, leave=False)


# ---- work on pairs in several processes


class PairTokenizer:
    """Tokenise sentence pairs, a share of them restyled; a callable that worker processes can be given."""

    def __init__(self, name: str, langs: Pair, restyled: float):
        self.tokenizers, self.restyled = [load_tokenizer(name, lang) for lang in langs], restyled

    def __call__(self, pair: Pair) -> Pair:
        if self.restyled:
            source, target = pair
            pair = restyle(source, target, self.restyled)
        return tuple(tokenizer.tokenize(line) for tokenizer, line in zip(self.tokenizers, pair))


class PairBpe:
    """Apply BPE to tokenised pairs; a callable that worker processes can be given."""

    def __init__(self, tokenizer: str, codes: Path):
        self.bpe = load_codes(tokenizer, codes)

    def __call__(self, pair: Pair) -> Pair:
        return tuple(map(self.bpe.apply, pair))


def squeeze(pair: Pair) -> Pair:
    """Leave single spaces between tokens, also where the text has other white space."""
    return tuple(" ".join(line.split()) for line in pair)


class OfChunk:
    """A function of a pair, applied to the pairs of a chunk; made in a worker process, which is given its number."""

    def __init__(self, function: Callable[[Pair], Pair], number: int):
        self.function = function

    def __call__(self, pairs: list[Pair]) -> list[Pair]:
        return [self.function(pair) for pair in pairs]


def map_pairs(function: Callable[[Pair], Pair], pairs: Iterable[Pair], workers: int) -> Iterator[Pair]:
    """Yield `function` of every pair, in order, computed by `workers` processes if there are more than a chunk of pairs."""
    waiting = iter(pairs)
    first = list(islice(waiting, CHUNK))
    if workers == 1 or len(first) < CHUNK:
        yield from map(function, chain(first, waiting))
        return
    chunks = chain([first], iter(lambda: list(islice(waiting, CHUNK)), []))
    with Workers(workers, partial(OfChunk, function)) as processes:
        yield from chain.from_iterable(processes.map(chunks))


# ---- steps that can be resumed


def digest(*parts: Any) -> str:
    """Return the sha256 of JSON-able values, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def move(new: Path, old: Path) -> None:
    """Put a finished file or folder into its place."""
    old.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir():
        shutil.rmtree(old)
    os.replace(new, old)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with files.whole(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Preparation:
    """One run: what comes in, read through and found sound, and the steps that are made of it.

    The ``make_`` methods write under the folder that they are given and return counts worth telling.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.output = options, options.output
        self.langs: Pair = (options.source_lang,) if options.mono else (options.source_lang, options.target_lang)
        prefixes = {"train": options.train, "valid": options.valid and [options.valid]}
        prefixes |= {f"test{number or ''}": [prefix] for number, prefix in enumerate(options.test or [])}
        self.inputs: dict[str, list[list[Path]]] = {  # split -> its parts -> the files of the two languages
            split: [[find_text(prefix, lang) for lang in self.langs] for prefix in parts]
            for split, parts in prefixes.items()
            if parts
        }
        if options.mono:
            self.inputs["mono"] = [[options.mono]]
        self.lines: Counts = {split: sum(map(count_lines, parts)) for split, parts in self.inputs.items()}
        files = [path for parts in self.inputs.values() for paths in parts for path in paths]
        files += [path for path in (options.codes, options.dict) if path]
        self.hashes = {str(path): file_digest(path) for path in files}
        self.counts: dict[str, Counts] = {}  # step -> what it counted
        self.refuse_to_drop_splits()

    def take_steps(self) -> None:
        """Take every step, each with a key that covers the steps before it."""
        options = self.options
        how: list[Any] = [self.langs, options.tokenized, options.bpe_applied]
        if (options.tokenizer, options.restyle) != ("moses", 0):  # as older data sets were made, before they said so
            how += [options.tokenizer, options.restyle]
        text_keys = {
            split: digest(*how, [self.hashes[str(path)] for path in chain(*parts)]) for split, parts in self.inputs.items()
        }
        if not options.bpe_applied:
            for split, key in text_keys.items():
                folders = ["tok"] if options.tokenized else ["raw", "tok"]
                files = [file for folder in folders for file in self.files(folder, split)]
                self.step(f"tok {split}", key, files, partial(self.make_tok, split))
        codes_key = digest(self.hashes.get(str(options.codes)) or [text_keys.get("train"), options.bpe_operations])
        if not options.bpe_applied:
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
        """Make `results`, paths under the output folder, unless they were made with this `key` before; tell what was counted.

        `make` writes them under the folder that it is given. When it fails, nothing that was there has changed.
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
            record.unlink(missing_ok=True)  # until it is written again the step counts as undone
            for result in results:
                move(unfinished / result, self.output / result)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        record.parent.mkdir(exist_ok=True)
        write_json(record, {"key": key, "counts": self.counts[name]})
        print(f"{name}: " + ", ".join(f"{number:,} {what}" for what, number in self.counts[name].items()), flush=True)

    def refuse_to_drop_splits(self) -> None:
        """Raise when the folder holds a data set with other languages or more splits, which this run would destroy."""
        record = self.output / "prepare.json"
        if record.exists():
            try:
                made = json.loads(record.read_text(encoding="utf-8"))
                lost = sorted(set(made["lines"]) - set(self.lines))
                other = made["languages"] != list(self.langs)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{record}: damaged or not ours ({type(error).__name__}: {error})") from None
            if other or lost:
                held = f"{'-'.join(made['languages'])} {', '.join(made['lines'])}"
                raise ValueError(f"--output {self.output}: it holds {held}, which this command would lose; name another folder")

    def files(self, folder: str, split: str) -> list[str]:
        """Return the two file names of a split, relative to the output folder."""
        return [f"{folder}/{split}.{lang}" for lang in self.langs]

    def read(self, split: str, folder: str | None = None) -> Iterable[Pair]:
        """Return the pairs of a split: as a step wrote them to `folder`, or as they came in."""
        parts = [[self.output / file for file in self.files(folder, split)]] if folder else self.inputs[split]
        return progress(chain.from_iterable(map(read_pairs, parts)), split, self.lines[split])

    def make_tok(self, split: str, folder: Path) -> Counts:
        """Write tok/, and raw/ unless the text came tokenised."""
        tok = [folder / file for file in self.files("tok", split)]
        if self.options.tokenized:
            return {"pairs": write_pairs(tok, map(squeeze, self.read(split)))}
        raw = [folder / file for file in self.files("raw", split)]
        write_pairs(raw, self.read(split))
        restyled = self.options.restyle if split == "train" else 0
        tokenize = PairTokenizer(self.options.tokenizer, self.langs, restyled)
        pairs = map_pairs(tokenize, self.read(split), self.options.workers)
        return {"pairs": write_pairs(tok, pairs)}

    def make_codes(self, folder: Path) -> Counts:
        """Write codes: those given, or learned from both sides of the tokenised training text."""
        if self.options.codes:
            load_codes(self.options.tokenizer, self.options.codes)  # raises unless it is such a file
            shutil.copyfile(self.options.codes, folder / "codes")
        elif self.options.tokenizer == BYTE_LEVEL:
            from specdec_plugins.text.byte_level import learn_codes as learn_byte_level

            # The library learns in threads, and is then used in forked processes, which is no fault: they start none.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
            learn_byte_level(chain.from_iterable(self.read("train", "tok")), self.options.bpe_operations, folder / "codes")
        else:
            words = Counter(word for pair in self.read("train", "tok") for line in pair for word in line.split())
            learn_codes(words, self.options.bpe_operations, folder / "codes")
        return {"operations": sum(not line.startswith("#version") for line in read_lines(folder / "codes"))}

    def make_bpe(self, split: str, folder: Path) -> Counts:
        """Write bpe/: all pairs of a valid or test split, those fit for training of the others."""
        pairs: Iterable[Pair]
        if self.options.bpe_applied:
            pairs = map(squeeze, self.read(split))
        else:
            pairs = map_pairs(
                PairBpe(self.options.tokenizer, self.output / "codes"), self.read(split, "tok"), self.options.workers
            )
        dropped: Counts = dict.fromkeys(("empty", "too long", "ratio"), 0)
        if split in CLEANED:
            pairs = keep_fit(pairs, self.options.max_length, self.options.max_ratio, dropped)
        kept = write_pairs([folder / file for file in self.files("bpe", split)], pairs)
        if kept == 0:
            raise ValueError(f"{split}: cleaning removed every pair; see --max-length and --max-ratio")
        if split not in CLEANED:
            return {"pairs": kept}
        return {"pairs kept": kept} | {f"removed ({reason})": count for reason, count in dropped.items()}

    def make_bin(self, folder: Path) -> Counts:
        """Write bin/ by fairseq-preprocess, whose report goes to preprocess.log."""
        command = ["--source-lang", self.langs[0], "--target-lang", self.langs[1], "--joined-dictionary"]
        command += ["--destdir", str(folder.resolve() / "bin"), "--workers", str(self.options.workers)]
        if self.options.tokenizer == BYTE_LEVEL and not (self.options.dict or self.options.bpe_applied):
            from specdec_plugins.text.byte_level import read_codes

            # All subwords, of which the training text may lack some: nothing is unknown.
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
            # in the folder itself, because fairseq would split a path with a comma in it
            result = subprocess.run(
                [sys.executable, "-m", "fairseq_cli.preprocess", *command],
                cwd=self.output, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
        if result.returncode:
            last = (log.read_text(encoding="utf-8", errors="replace").strip() or "no message").splitlines()[-1]
            raise ValueError(f"fairseq-preprocess failed: {last} (see {log})")
        (folder / "bin" / "preprocess.log").unlink(missing_ok=True)  # fairseq's own copy of the report
        return {"dictionary entries": sum(1 for _ in read_lines(folder / "bin" / f"dict.{self.langs[0]}.txt"))}

    def summary(self) -> dict[str, Any]:
        """Return what prepare.json tells: how the data set came about."""
        options = {name: value for name, value in vars(self.options).items() if name not in ("output", "workers")}
        return {
            "languages": list(self.langs),
            "tokenizer": self.options.tokenizer,
            "lines": self.lines,
            "counts": self.counts,
            "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
            "sha256": self.hashes,
            "versions": {name: version(name) for name in LIBRARIES[self.options.tokenizer == BYTE_LEVEL]},
        }


def keep_fit(pairs: Iterable[Pair], max_length: int, max_ratio: float, dropped: Counts) -> Iterator[Pair]:
    """Yield the pairs fit for training, counting the others in `dropped` by reason."""
    for pair in pairs:
        if reason := reason_to_drop(pair, max_length, max_ratio):
            dropped[reason] += 1
        else:
            yield pair


def learn_codes(words: Counter[str], operations: int, codes: Path) -> None:
    """Learn BPE codes from counted words and write them to a file."""
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = lambda items: progress(items, "codes")  # its own bar would fill log files
    entries = [f"{word} {count}" for word, count in words.items()]
    try:
        with open(codes, "w", encoding="utf-8") as stream:
            learn_bpe.learn_bpe(entries, stream, operations, is_dict=True)
    except ValueError:  # from max() of nothing
        raise ValueError(f"--bpe-operations {operations}: the training text is too small for so many") from None


# ---- command line


def parser() -> Parser:
    p = Parser("specdec-prepare", description="Prepare parallel text for fairseq.")
    add = p.add_argument
    add("--source-lang", required=True, metavar="LANG")
    add("--target-lang", required=True, metavar="LANG")
    add(
        "--train",
        metavar="PREFIX[,...]",
        type=comma_separated,
        help="training text PREFIX.LANG or PREFIX.LANG.gz; parts are joined",
    )
    add("--valid", metavar="PREFIX", help="validation text")
    add("--test", metavar="PREFIX[,...]", type=comma_separated, help="test sets: test, test1, ...")
    add("--mono", type=Path, metavar="FILE", help="instead of these: source text still to be translated; needs --codes")
    add("--output", required=True, type=Path, metavar="DIR", help="folder to fill")
    bpe = p.add_mutually_exclusive_group()
    bpe.add_argument("--bpe-operations", type=whole, default=32000, metavar="N", help="learn this many (default %(default)s)")
    bpe.add_argument("--codes", type=Path, metavar="FILE", help="use these BPE codes instead of learning them")
    bpe.add_argument("--bpe-applied", action="store_true", help="the text is subwords already: only clean and binarise it")
    add("--tokenizer", choices=TOKENIZERS, default="moses",
        help="moses; reversible for text with code in it; byte-level for GPT-2's and BART's BPE, whose vocab.bpe is a file for "
        "--codes (default %(default)s)")  # fmt: skip
    add("--restyle", type=share, default=0, metavar="X",
        help="put backticks around code in this share of training pairs, curly apostrophes in as many (default 0)")  # fmt: skip
    add("--tokenized", action="store_true", help="the text is tokenised already")
    add("--dict", type=Path, metavar="FILE", help="use this fairseq dictionary, as well as its --codes")
    add("--dict-size", type=whole, metavar="N", help="keep only the N most frequent subwords")
    add("--max-length", type=partial(whole, least=0), metavar="N",
        help="longest training sentence in subwords, 0 for any (default 175; any with --bpe-applied)")  # fmt: skip
    add("--max-ratio", type=float, metavar="X",
        help="greatest length ratio of a training pair, 0 for any (default 1.5; any with --bpe-applied)")  # fmt: skip
    add(
        "--workers",
        type=partial(whole, most=MOST_THREADS),
        default=usable_cpus(),
        metavar="N",
        help="processes (default %(default)s)",
    )
    return p


def check(options: argparse.Namespace) -> list[Fault]:
    """Every way in which the options do not go together."""
    faults: list[Fault] = []
    splits = options.train or options.valid or options.test
    if options.source_lang == options.target_lang:
        faults.append(("source_lang", "and --target-lang are the same"))
    if options.mono and (splits or not options.codes):
        faults.append(("mono", "goes with --codes, and without --train, --valid and --test"))
    if not (splits or options.mono):
        faults.append(("train", "is missing, and there is nothing to prepare: give --train, --valid or --test"))
    if splits and not options.train and not (options.dict and (options.codes or options.bpe_applied)):
        faults.append(("dict", "is needed without --train, and either --codes or --bpe-applied"))
    if options.dict and not (options.codes or options.bpe_applied):
        faults.append(("dict", "needs the --codes it was made with, or --bpe-applied"))
    if options.restyle and (options.tokenized or options.bpe_applied or options.mono):
        faults.append(("restyle", "is for raw text in two languages"))
    if options.dict_size and (options.dict or options.mono or options.tokenizer == BYTE_LEVEL):
        faults.append(("dict_size", "has no use where all symbols are given: with --dict, --mono, and byte-level BPE"))
    if options.max_ratio is not None and not options.max_ratio >= 0:
        faults.append(("max_ratio", f"{options.max_ratio} is negative or no number"))
    return faults


def comma_separated(value: str) -> list[str]:
    """Parse a list."""
    return value.split(",")


def whole(value: str, least: int = 1, most: int = MOST) -> int:
    """Parse a whole number from `least` to `most`."""
    if not re.fullmatch("[0-9]{1,10}", value) or not least <= int(value) <= most:
        raise argparse.ArgumentTypeError(f"{value[:40]!r} is not a whole number from {least} to {most:,}")
    return int(value)


def share(value: str) -> float:
    """Parse a share of which two fit into a whole."""
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number <= 0.5:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number from 0 to 0.5")
    return number


def run(options: argparse.Namespace) -> None:
    """Prepare a data set. Raises ValueError or OSError, with a message for the user, before anything half-made is left."""
    if not find_spec("fairseq_cli"):  # said now, not after hours of work
        raise ImportError(f"fairseq, which binarises the text, is not installed: {install_command('train')}")
    if options.max_length is None:
        options.max_length = 0 if options.bpe_applied else 175
    if options.max_ratio is None:
        options.max_ratio = 0.0 if options.bpe_applied else 1.5
    Preparation(options).take_steps()


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return run_command(parser(), argv, run, check, resumption="; the same command goes on from here")


if __name__ == "__main__":
    sys.exit(main())
