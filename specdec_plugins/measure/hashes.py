"""Hashes of what the shipped pairs say in each data type, tokens and scores to the last bit: the same on every instruction set.

python -m specdec_plugins.measure.hashes    # write data/hashes.json anew, after a change of the kernels' arithmetic
"""

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.formats.files import write_json
from specdec_plugins.text.lines import read_lines

if TYPE_CHECKING:
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translation

DATA = Path(__file__).resolve().parent.parent.parent / "data"
SHIPPED = {"demo.en-de": "demo.txt", "docs.en-fr": "docs.txt"}  # pairs and their texts
HASHES = DATA / "hashes.json"
DTYPES = ("float32", "bfloat16", "int8")
DECODING: dict[str, dict[str, Any]] = {
    "ar": {"strategy": "ar"},
    "ar, beam 4": {"strategy": "ar", "beam": 4, "lenpen": 0.6},
    "specdec": {"strategy": "specdec"},
}
Hashes = dict[str, dict[str, str]]  # by data type and way to decode: of tokens and of scores


def of(results: Sequence["Translation"]) -> dict[str, str]:
    """The sha256 of the outputs' tokens, and of the bits of their scores."""
    own = [(*(each.token_scores or ()), each.score) for each in results]
    scores = b"".join(struct.pack(f"<{len(each)}d", *each) for each in own)
    tokens = json.dumps([each.tokens for each in results]).encode()
    return {"tokens": hashlib.sha256(tokens).hexdigest(), "scores": hashlib.sha256(scores).hexdigest()}


def hashes(pair: "Pair", lines: Sequence[str], kernels: str | None = None, dtypes: Sequence[str] = DTYPES) -> Hashes:
    """The hashes of a pair on the kernels for an instruction set, by default the best."""
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    return {
        f"{dtype} {name}": of(Translator(pair, Settings(dtype=dtype, kernels=kernels, **how)).translate(lines, scores=True))
        for dtype in dtypes
        for name, how in DECODING.items()
    }


def differences(found: Hashes, known: Hashes) -> Iterator[str]:
    """What differs, such as "int8 ar: scores"."""
    for name, own in found.items():
        different = [what for what, value in own.items() if known.get(name, {}).get(what) != value]
        if different:
            yield f"{name}: {' and '.join(different)}"


def known(model: str) -> Hashes:
    """The committed hashes of a shipped pair."""
    return json.loads(HASHES.read_text(encoding="utf-8"))[model]


def comparison(model: str, pair: "Pair", lines: Sequence[str]) -> str:
    """A line that says whether this machine gives the committed tokens and scores."""
    from specdec_plugins.decoding.compiled import library

    if (best := library()) is None:
        return (
            "No kernels were compiled for this machine, so tokens and scores may differ from other machines' in their last bits."
        )
    if different := list(differences(hashes(pair, lines), known(model))):
        return f"On this machine (kernels {best.name}) these differ from {HASHES.name}: {'; '.join(different)}."
    return (
        f"This machine (kernels {best.name}) gives the same tokens and scores as every other, to the last bit: "
        f"{', '.join(DTYPES)}; {'; '.join(DECODING)}."
    )


def main() -> int:
    from specdec_plugins.formats.folder import load_folder

    found = {model: hashes(load_folder(DATA / model), list(read_lines(DATA / text))) for model, text in SHIPPED.items()}
    write_json(HASHES, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
