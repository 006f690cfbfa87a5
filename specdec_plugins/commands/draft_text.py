"""The text that ``specdec-draft`` learns from: its lines, which of them are held out, and requests."""

import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.requests import Request
from specdec_plugins.options import CallOptions, LanguagePair
from specdec_plugins.text.lines import LineReader
from specdec_plugins.translations import SourceTooLong
from specdec_plugins.translator import Translator
from specdec_plugins.whole_lines import read_line

LEAST_LINES, MOST_LINES = 100, 2_000_000
HELD_OUT, MOST_HELD_OUT, LEAST_HELD_OUT = 20, 200, 10  # one line in so many, at most, at least
NAMED = 3  # lines of a text that an error names


class Text(NamedTuple):
    """Lines without repetitions, in random order; ``held`` are not trained on."""

    train: list[str]
    held: list[str]
    digest: str


def read_text(path: str, translator: Translator, languages: LanguagePair, skip: bool, seed: int) -> Text:
    """A text that fits. Raises ValueError naming the file, and lines that are too long unless they are to be skipped."""
    lines, long = dict[str, None](), list[int]()
    with LineReader(path) as reader:
        for line in reader:
            if reader.number > MOST_LINES:
                raise ValueError(f"{path}: more than {MOST_LINES:,} lines; a training of an hour sees about 300,000")
            if not line.strip() or line in lines:
                continue
            if too_long(translator, line, languages):
                long.append(reader.number)
            else:
                lines[line] = None
    if long and not skip:
        named = ", ".join(map(str, long[:NAMED])) + (f" and {len(long) - NAMED:,} more" if len(long) > NAMED else "")
        what = f"line {named} is" if len(long) == 1 else f"lines {named} are"
        most = translator.max_source - 1
        raise ValueError(f"{path}: {what} longer than the model reads ({most:,} tokens); shorten them or give --too-long skip")
    if len(lines) < LEAST_LINES:
        raise ValueError(
            f"{path}: {len(lines):,} different sentences are too few for a drafter; give {LEAST_LINES:,}, better 50,000"
        )
    translator.encode([next(iter(lines))], False, *languages)  # raises ValueError where a language is missing or unknown
    mixed = [*lines]
    random.Random(seed).shuffle(mixed)
    held = max(LEAST_HELD_OUT, min(MOST_HELD_OUT, len(mixed) // HELD_OUT))
    return Text(mixed[held:], mixed[:held], hashlib.sha256("\n".join(lines).encode()).hexdigest())


def too_long(translator: Translator, line: str, languages: LanguagePair) -> bool:
    if len(line.encode()) < translator.max_source - 64:  # a token seldom has less than a byte
        return False
    try:
        translator.encode([line], False, *languages)
    except SourceTooLong:
        return True
    return False


def requests_of(translator: Translator, lines: Sequence[str], languages: LanguagePair) -> list[Request]:
    """By the numbers of the lines; none for a line without tokens, or with more than the model reads after all."""
    sources = [read_line(translator, line, CallOptions(too_long="skip"), languages) for line in lines]
    engine = translator.engine
    return [engine.request(n, each.ids, forced=each.forced) for n, each in enumerate(sources) if each.text]
