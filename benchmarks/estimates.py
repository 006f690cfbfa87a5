#!/usr/bin/env python3
"""What `specdec-draft --estimate` expects of models, beside what their trained drafters then bring: gains over plain decoding.

    benchmarks/estimates.py data/demo.en-de data/docs.en-fr mine --sources TEXT [--sources TEXT ...]

Each model is a folder with a drafter; texts, which it was not trained on, are one for all, or one for each. Estimates know the
model and the text, not the drafter. A JSON line a model, then a table: expected, measured and their ratio.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.commands import draft  # noqa: E402
from specdec_plugins.commands.estimating import estimated  # noqa: E402
from specdec_plugins.commands.evaluation import Evaluator  # noqa: E402
from specdec_plugins.cpus import usual_threads  # noqa: E402
from specdec_plugins.formats.folder import load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--sources", required=True, action="append")
    p.add_argument("--lines", type=int, default=200, help="to measure on, at most")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int)
    p.add_argument("-s", "--source-lang")
    p.add_argument("-t", "--target-lang")
    options = p.parse_args()
    if len(options.sources) not in (1, len(options.models)):
        p.error("--sources: give one text, or one for each model")
    rows = []
    for number, model in enumerate(options.models):
        sources, pair = options.sources[number % len(options.sources)], load_folder(model)
        if pair.drafter is None:
            p.error(f"{model} has no drafter")
        usual = draft.parser().parse_args([model, "--estimate"])
        named = {name: getattr(options, name) for name in ("threads", "source_lang", "target_lang")}
        before = estimated(argparse.Namespace(**{**vars(usual), **named, "sources": sources}), pair)
        evaluator = Evaluator(pair, options.threads or usual_threads(), (options.source_lang, options.target_lang))
        lines = [line for line in read_lines(sources) if line.strip()][: options.lines]
        tokens = evaluator.evaluate(pair.drafter, lines).tokens
        rounds = [evaluator.measured(pair.drafter, lines) for _ in range(options.rounds)]
        row: dict[str, object] = {"model": pair.name, "tokens": [round(before.tokens, 2), round(tokens, 2)]}
        for size, expected in before.gains.items():
            found = [each[size] for each in rounds]
            gain = statistics.median(found)
            row[f"gain at {size}"] = [round(expected.gain, 3), round(gain, 3), round(expected.gain / gain, 3)]
            row[f"range at {size}"] = [round(min(found), 3), round(max(found), 3)]
        rows.append(row)
        print(json.dumps({"benchmark": "estimates", **row, "dtype": evaluator.dtype, "signature": machine("cpu")}), flush=True)
    print(tabulate([[str(value).strip("[]") for value in row.values()] for row in rows], [*rows[0]], tablefmt="github"))


if __name__ == "__main__":
    main()
