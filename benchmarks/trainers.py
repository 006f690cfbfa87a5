#!/usr/bin/env python3
"""specdec-draft beside train.sh --verifier: the same sources, seed, precision and updates; tokens a pass on other lines.

    benchmarks/trainers.py data/docs.en-fr --sources train.en.gz --test test.en --updates 1200 [--seeds 1 2] [--output FOLDER]

Both run for each seed, in turn, and continue if they are there already. fairseq (extra `train`) is needed.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.commands.evaluation import Evaluator  # noqa: E402
from specdec_plugins.cpus import usual_threads  # noqa: E402
from specdec_plugins.formats.folder import load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--sources", required=True)
    p.add_argument("--test", required=True, help="lines to measure on; those of the sources are left out")
    p.add_argument("--lines", type=int, default=1000, help="of them, at most")
    p.add_argument("--updates", type=int, default=1200)
    p.add_argument("--seeds", type=int, nargs="+", default=[1])
    p.add_argument("--output", type=Path, default=Path("runs/trainers"))
    options = p.parse_args()
    sources = {*read_lines(options.sources)}
    lines = [line for line in dict.fromkeys(read_lines(options.test)) if line.strip() and line not in sources][: options.lines]
    precision = "bf16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    for seed in options.seeds:
        rows, tokens = [], list[float]()
        for trainer in ("specdec-draft", "train.sh"):
            output, began = options.output / f"{trainer}-{seed}", time.monotonic()
            common = ["--sources", options.sources, "--output", output, "--updates", options.updates, "--seed", seed]
            command = [sys.executable, "-m", "specdec_plugins.commands.draft", options.model]
            if trainer == "train.sh":
                command = [ROOT / "train.sh", "--device", "cpu", "--verifier", options.model]
            subprocess.run([*map(str, [*command, *common, "--precision", precision])], check=True, cwd=ROOT, stdout=sys.stderr)
            seconds = time.monotonic() - began
            pair = load_folder(output / "model" if trainer == "train.sh" else output)
            assert pair.drafter is not None, "as just made"
            found = Evaluator(pair, usual_threads(), (None, None)).evaluate(pair.drafter, lines)
            tokens.append(found.tokens)
            acceptance = [round(each, 3) for each in found.acceptance]
            rows.append({"trainer": trainer, "tokens": round(found.tokens, 3), "acceptance": acceptance, "s": round(seconds)})
        ratio = round(tokens[0] / tokens[1], 4)
        how = {"updates": options.updates, "seed": seed, "precision": precision, "lines": len(lines)}
        print(json.dumps({"benchmark": "trainers", **how, "ratio": ratio, "rows": rows, "signature": machine("cpu")}), flush=True)


if __name__ == "__main__":
    main()
