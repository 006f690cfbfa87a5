#!/usr/bin/env python3
"""Seconds and peak memory of loading a large model and decoding with it, beside a process that only imports NumPy.

    benchmarks/memory.py [--dtypes int8 float32] [--packed] [--layers 12 --width 1024 --inner 4096 --heads 16 --vocabulary 256206]

The model has random weights, is stored in float16, and decodes one sentence. "Packed" are the weights as the kernels read them;
with --packed they are also stored so.
The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.commands import pack  # noqa: E402

SIZES = {"layers": 12, "width": 1024, "inner": 4096, "heads": 16, "vocabulary": 256206}

# Runs in a process of its own. Peaks are those of the operating system, mapped files included.
PROBE = """
import json, re, sys, time
from pathlib import Path
import numpy
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
bare = peak()
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import Settings
began = time.perf_counter()
engine = Engine(load_folder(sys.argv[1]), Settings(strategy="ar", dtype=sys.argv[2], max_len_b=20))
loaded, seconds = peak(), time.perf_counter() - began
engine.generate([[*range(4, 28), 2]], 1)
model = engine.roles.verifier.model
linears = [*model.encoder.stack.linears, *model.stack.linears, model.stack.output.linear, model.memory]
packed = sum(linear.weight_bytes for linear in linears) / 2**20
print(json.dumps({"packed": packed, "bare": bare, "loaded": loaded, "decoded": peak(), "seconds": seconds}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["int8", "float32"])
    parser.add_argument("--packed", action="store_true", help="also load a folder that specdec-pack --dtype made")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        write_folder(options, Path(place))
        cases = [("model", dtype) for dtype in options.dtypes]
        if options.packed:
            stored = [dtype for dtype in options.dtypes if dtype in ("int8", "int4")]
            status = pack.main(["--verifier", f"{place}/model", "--half", "--dtype", *stored, "--output", f"{place}/packed"])
            if status:
                return status
            cases += [("packed", dtype) for dtype in stored]
        for folder, dtype in cases:
            command = [sys.executable, "-c", PROBE, f"{place}/{folder}", dtype]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            row = json.loads(done.stdout)
            rows.append({"folder": folder, "dtype": dtype, **row})
            print(
                f"{folder} {dtype}: loaded in {row['seconds']:.1f} s; packed {row['packed']:,.0f} MiB; "
                f"peak {row['loaded']:,.0f} MiB when loaded, {row['decoded']:,.0f} after decoding; "
                f"NumPy alone {row['bare']:,.0f}",
                flush=True,
            )
    print(json.dumps({"benchmark": "memory", "rows": rows}))
    return 0


def write_folder(options: argparse.Namespace, place: Path) -> None:
    """A model folder in float16, in ``place``."""
    from random_pair import Shape, random_pair

    from specdec_plugins.formats.folder import Pair, save_folder
    from specdec_plugins.text.codec import CodecConfig
    from specdec_plugins.text.vocabulary import SPECIAL

    words = "".join(f"w{number} 1\n" for number in range(options.vocabulary - len(SPECIAL)))
    (place / "dict.txt").write_text(words, encoding="utf-8")
    files = dict.fromkeys(("source", "target"), place / "dict.txt")
    shape = Shape(options.layers, 0, options.width, options.inner, options.heads, options.vocabulary)
    verifier, _ = random_pair(shape)
    save_folder(Pair.open(verifier, None, CodecConfig("fairseq-bpe", "random", files, "xa", "xb")), place / "model", half=True)


if __name__ == "__main__":
    sys.exit(main())
