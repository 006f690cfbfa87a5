"""Pairs of lines: read, counted, written, and changed in several processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path

from specdec_plugins.commands.progress import bar
from specdec_plugins.text.lines import read_lines
from specdec_plugins.workers import Workers

CHUNK = 500  # sentence pairs per task of a worker process
Pair = tuple[str, ...]  # a source and a target line; in monolingual text only the source line


def find_text(prefix: str, lang: str) -> Path:
    """Return the path of ``PREFIX.LANG`` or ``PREFIX.LANG.gz``."""
    plain = Path(f"{prefix}.{lang}")
    for path in (plain, Path(f"{plain}.gz")):
        if path.is_file():
            return path
    raise ValueError(f"{plain}: no such file, with or without .gz")


def count_lines(paths: list[Path]) -> int:
    """Read parallel files and return their number of lines. Raises ValueError if they are empty, unequal or not text."""
    counts = [sum(1 for _ in progress(read_lines(path), path.name)) for path in paths]
    for path, count in zip(paths, counts):
        if count == 0:
            raise ValueError(f"{path}: the file is empty")
    if counts[0] != counts[-1]:
        raise ValueError(f"{paths[0]} has {counts[0]:,} lines but {paths[1]} has {counts[1]:,}")
    return counts[0]


def write_pairs(paths: list[Path], pairs: Iterable[Pair]) -> int:
    """Write sentence pairs to new files, one per language, creating their folders. Returns the number of pairs."""
    written = 0
    with ExitStack() as stack:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        streams = [stack.enter_context(open(path, "w", encoding="utf-8", newline="\n")) for path in paths]
        for pair in pairs:
            for stream, line in zip(streams, pair):
                stream.write(f"{line}\n")
            written += 1
    return written


def reason_to_drop(pair: Pair, max_length: int, max_ratio: float) -> str | None:
    """Why a pair of BPE lines is unfit for training, or None. Lengths are in subwords; 0 is no limit."""
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
    """Iterate with a progress bar, in a terminal."""
    return bar(items, desc=name, total=total, unit="", unit_scale=True, leave=False)


def squeeze(line: str) -> str:
    """Separate tokens by single spaces, whatever white space the text has."""
    return " ".join(line.split())


def of_chunk(functions: Sequence[Callable[[str], str]], number: int) -> Callable[[Iterable[Pair]], list[Pair]]:
    """Applies each side's function to the pairs of a chunk, in worker process ``number``."""
    return lambda pairs: [tuple(function(line) for function, line in zip(functions, pair)) for pair in pairs]


def map_pairs(functions: Sequence[Callable[[str], str]], pairs: Iterable[Pair], workers: int) -> Iterator[Pair]:
    """Yield the pairs in order, with each side's function applied. Uses `workers` processes for more than a chunk of pairs."""
    waiting = iter(pairs)
    chunks = iter(lambda: list(islice(waiting, CHUNK)), [])
    first = next(chunks, [])
    if workers == 1 or len(first) < CHUNK:
        yield from chain.from_iterable(map(of_chunk(functions, 0), chain([first], chunks)))
        return
    with Workers(workers, partial(of_chunk, functions)) as processes:
        yield from chain.from_iterable(processes.map(chain([first], chunks)))
