"""The output formats of ``specdec-translate``.

``format(number, result, reference)`` returns a line or more without the last line end; ``number`` counts from 0, as in fairseq.
"""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_plugins.translator import Translation

Format = Callable[[int, "Translation", str | None], str]
FORMATS = ("text", "fairseq", "json")
LAST_LINE = {"text": b"", "fairseq": b"P-", "json": b""}  # how the last line of a sentence begins


def make_format(options: argparse.Namespace) -> Format:
    """The function of ``--format``."""
    if options.format == "json":
        return partial(as_json, verified=options.strategy != "drafter")
    if options.format == "fairseq":
        return partial(as_fairseq, remove_bpe=options.remove_bpe)
    return lambda number, result, reference: result.text


def as_json(number: int, result: "Translation", reference: str | None, verified: bool) -> str:
    """One JSON object; the score in nats, or null for a draft that no verifier has scored."""
    record = {
        "id": number, "text": result.text, "tokens": result.tokens,
        "score": result.score if result.token_scores and verified else None,
        "iterations": result.iterations, "accepted_lengths": result.accepted_lengths,
    }  # fmt: skip
    return json.dumps(record, ensure_ascii=False)


def as_fairseq(number: int, result: "Translation", reference: str | None, remove_bpe: bool) -> str:
    """The lines of fairseq-generate: S, T if there is a reference, H, D and P; scores to base 2."""

    def joined(tokens: list[str]) -> str:
        line = " ".join(tokens)
        return line.replace("@@ ", "") if remove_bpe else line

    score = result.score / math.log(2)
    lines = [
        f"S-{number}\t{joined(result.source_tokens)}",
        *([] if reference is None else [f"T-{number}\t{reference}"]),
        f"H-{number}\t{score}\t{joined(result.tokens)}",
        f"D-{number}\t{score}\t{result.text}",
        f"P-{number}\t{' '.join(f'{token / math.log(2):.4f}' for token in result.token_scores)}",
    ]
    return "\n".join(lines)
