"""The input of ``specdec-score``: plain text, output of fairseq-generate, or JSON lines of ``specdec-translate``."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from specdec_plugins.text.bpe import has_subwords, remove_bpe
from specdec_plugins.text.lines import read_lines

MAX_LINES = 1_000_000  # a longer file is a training corpus

FAIRSEQ_LINE = re.compile(r"[STHD]-([0-9]{1,9})\t")
# What Moses produces, and what it never does. Only commas and full stops: French has spaces before other marks.
TOKENISED = re.compile(r" [,.](?: |$)|&(?:apos|quot|amp|lt|gt|#91|#93|#124);| @-@ ")
PLAIN = re.compile(r"\w[,!?](?: |$)|\w{4}\.$")


@dataclass(frozen=True)
class Text:
    """Sentences and their line numbers. ``kind``: plain, json, or the letter of fairseq's lines."""

    path: str
    kind: str
    lines: list[str]
    numbers: list[int]

    def at(self, index: int) -> str:
        """The place of a sentence, for messages."""
        return f"{self.path}, line {self.numbers[index]}"


def read(path: str, kinds: str, tokenized: bool, join_subwords: bool) -> Text:
    """Read plain text, JSON lines, or the first of ``kinds`` present in fairseq's output. Raises ValueError for bad input.

    ``tokenized`` takes the tokens of JSON lines, not the text; ``join_subwords`` joins subwords to words.
    """
    content = list(enumerate(islice(read_lines(path), MAX_LINES + 1), 1))
    if len(content) > MAX_LINES:
        raise ValueError(f"{path}, line {MAX_LINES + 1}: too long for a test set")
    if not any(line.strip() for _, line in content):
        raise ValueError(f"{path} is empty")
    if content[0][1].startswith('{"'):
        kind = "json"
        sentences = in_order(path, "id ", (record(path, *each, tokenized) for each in content))
    elif letters := {line[0] for _, line in content if FAIRSEQ_LINE.match(line)}:
        kind = next((kind for kind in kinds if kind in letters), "")
        if not kind:
            raise ValueError(f"{path} has no {' or '.join(kinds)} lines")
        chosen = (each for each in content if each[1].startswith(kind) and FAIRSEQ_LINE.match(each[1]))
        sentences = in_order(path, f"{kind}-", (labelled(path, *each) for each in chosen))
    else:
        kind, sentences = "plain", content
    if join_subwords:
        sentences = [(number, remove_bpe(line)) for number, line in sentences]
    for number, line in sentences:
        if has_subwords(line):
            raise ValueError(f"{path}, line {number}: BPE left in the text ('@@ '): --remove-bpe joins it")
    return Text(path, kind, [line for _, line in sentences], [number for number, _ in sentences])


def labelled(path: str, number: int, line: str) -> tuple[int, int, str]:
    """Index, line number and sentence of a line of fairseq's output; in H and D lines the sentence follows a score."""
    fields = line.split("\t", 2 if line[0] in "HD" else 1)
    if line[0] in "HD" and len(fields) < 3:
        raise ValueError(f"{path}, line {number}: not index, score and text, as fairseq's H and D lines are")
    return int(fields[0][2:]), number, fields[-1]


def record(path: str, number: int, line: str, tokenized: bool) -> tuple[int, int, str]:
    """Id, line number and sentence of a JSON line of specdec-translate."""
    try:
        fields = json.loads(line)
        index, text = fields["id"], " ".join(fields["tokens"]) if tokenized else fields["text"]
        if isinstance(index, int) and isinstance(text, str):
            return index, number, text
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path}, line {number}: not JSON of specdec-translate (id, text, tokens)")


def in_order(path: str, name: str, sentences: Iterable[tuple[int, int, str]]) -> list[tuple[int, str]]:
    """Sort (index, line number, sentence) by index. Raises ValueError for a missing or repeated index."""
    by_index: dict[int, tuple[int, str]] = {}
    for index, number, line in sentences:
        if index in by_index:
            raise ValueError(f"{path}, line {number}: {name}{index} a second time, after line {by_index[index][0]}")
        by_index[index] = number, line
    missing, last = next((index for index in range(len(by_index)) if index not in by_index), None), max(by_index)
    if missing is not None:
        raise ValueError(f"{path}, line {by_index[last][0]}: {name}{last}, but {name}{missing} is missing")
    return [by_index[index] for index in range(len(by_index))]


def same_length(text: Text, reference: Text) -> None:
    """Raise ValueError if the numbers of sentences differ."""
    short, long = sorted((text, reference), key=lambda each: len(each.lines))
    if len(short.lines) < len(long.lines):
        counts = f"{short.path} has {len(short.lines)} and {long.path} has {len(long.lines)}"
        raise ValueError(f"{long.at(len(short.lines))}: one sentence too many: {counts}")


def wrong_tokenisation(text: Text, tokenized: bool) -> str | None:
    """A warning if the text looks tokenised, or with ``tokenized`` not tokenised."""
    sign, what = (
        (PLAIN, "not tokenised, but --tokenized takes it as it is")
        if tokenized
        else (TOKENISED, "tokenised, but sacreBLEU expects plain text (detokenise it, or use --tokenized)")
    )
    suspects = [index for index, line in enumerate(text.lines) if sign.search(line)]
    if len(suspects) * 10 > len(text.lines):  # any text may have a few such lines
        return f"{text.at(suspects[0])}: looks {what}"
    return None
