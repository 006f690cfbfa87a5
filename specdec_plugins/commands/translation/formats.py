"""The output formats of ``specdec-translate``.

``format(number, outputs, reference)`` returns the line or lines of a sentence's outputs, one or several samples, without the last
line end; ``number`` counts from 0, as in fairseq.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_plugins.translator import Translation

Format = Callable[[int, Sequence["Translation"], str | None], str]
FORMATS = ("text", "fairseq", "json")


def make_format(options: argparse.Namespace, join: Callable[[Sequence[str]], str]) -> Format:
    """The function of ``--format``; ``join`` makes words of subwords for ``--remove-bpe``."""
    if options.format == "json":
        return partial(as_json, verified=options.strategy != "drafter")
    if options.format == "fairseq":
        return partial(as_fairseq, join=join if options.remove_bpe else " ".join)
    return lambda number, outputs, reference: "\n".join(output.text for output in outputs)


def as_json(number: int, outputs: Sequence["Translation"], reference: str | None, verified: bool) -> str:
    """A JSON object an output; the score in nats, or null for a draft that no verifier has scored.

    ``iterations``, ``drafted`` and ``accepted`` tokens are those of this output alone; ``drafter`` is null where none drafts.
    """
    records = [
        {
            "id": number, **({"sample": output.sample} if len(outputs) > 1 else {}), "text": output.text, "tokens": output.tokens,
            "score": output.score if output.token_scores and verified else None,
            "drafter": output.drafter, "iterations": output.iterations, "drafted": output.drafted, "accepted": output.accepted,
            "accepted_lengths": output.accepted_lengths,
        }
        for output in outputs
    ]  # fmt: skip
    return "\n".join(json.dumps(record, ensure_ascii=False) for record in records)


def as_fairseq(number: int, outputs: Sequence["Translation"], reference: str | None, join: Callable[[Sequence[str]], str]) -> str:
    """The lines of fairseq-generate: S, T if there is a reference, and for each output H, D and P; scores to base 2."""
    lines = [f"S-{number}\t{join(outputs[0].source_tokens)}"]
    if reference is not None:
        lines.append(f"T-{number}\t{reference}")
    for output in outputs:
        score = output.score / math.log(2)
        lines += [
            f"H-{number}\t{score}\t{join(output.tokens)}",
            f"D-{number}\t{score}\t{output.text}",
            f"P-{number}\t{' '.join(f'{token / math.log(2):.4f}' for token in output.token_scores)}",
        ]
    return "\n".join(lines)
