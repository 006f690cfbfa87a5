#!/usr/bin/env python3
"""BLEU by document of a long-document verifier, compared with translation sentence by sentence.

    benchmarks/documents.py --model DIR --source valid.en --reference valid.de [--pair data/demo.en-de] [--captions 1 8 64]

Consecutive captions are joined to documents, as by data/long.sh, and translated greedily by the verifier in DIR. For comparison
the same captions are translated one at a time, by this verifier and by the pair that it was trained on from, and joined (BLEU of
documents is higher than that of sentences, because n-grams across sentences count). All sizes have the same captions. The last
line is JSON.
"""

import argparse
import json
import math
import sys
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "data")]

from long_captions import PAIR, in_order  # noqa: E402

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402


def translate(model: str, dtype: str, lines: list[str]) -> list[str]:
    """Greedy translations of at most 1.5 times the source's tokens plus 50."""
    translator = Translator.from_pretrained(model, strategy="ar", dtype=dtype, max_len_a=1.5, max_len_b=50)
    return [translation.text for translation in translator.stream(lines, batch_size=16)]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--model", required=True, metavar="DIR", help="the verifier of documents, packed")
    p.add_argument("--pair", default=str(PAIR), metavar="DIR", help="the pair that it goes on from (default %(default)s)")
    p.add_argument("--source", required=True, metavar="FILE")
    p.add_argument("--reference", required=True, metavar="FILE")
    p.add_argument("--captions", nargs="+", type=int, default=[1, 2, 8, 16, 32, 64, 192], metavar="N", help="in a document")
    p.add_argument("--dtype", default="int8")
    options = p.parse_args()
    pairs = list(zip(read_lines(options.source), read_lines(options.reference), strict=True))
    pairs = pairs[: len(pairs) // math.lcm(*options.captions) * math.lcm(*options.captions)]
    sources, references = map(list, zip(*in_order(pairs, 1)))
    alone = {name: translate(name, options.dtype, sources) for name in (options.model, options.pair)}
    rows = []
    for size in options.captions:
        documents, wanted = map(list, zip(*in_order(pairs, size)))
        outputs = {"by document": translate(options.model, options.dtype, documents)}
        for name, lines in zip(("its sentences", "the pair's sentences"), alone.values()):
            outputs[name] = [" ".join(lines[at : at + size]) for at in range(0, len(lines), size)]
        bleu = {name: BLEU().corpus_score(lines, [wanted]) for name, lines in outputs.items()}
        scores = {name: score.score for name, score in bleu.items()}
        rows.append({"captions": size, **scores, "brevity penalty": bleu["by document"].bp})
        print(rows[-1], file=sys.stderr, flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=("d", ".1f", ".1f", ".1f", ".2f")))
    signature = {**machine(), "model": Path(options.model).name, "source": Path(options.source).name, "captions": len(references)}
    print(json.dumps({"benchmark": "documents", "rows": rows, "signature": {**signature, "dtype": options.dtype}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
