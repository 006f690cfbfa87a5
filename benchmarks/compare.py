"""Is this checkout as fast as another commit? Interleaved runs of both, paired by round.

    python benchmarks/compare.py --base e860a30 --model data/demo.en-de --input TEXT [--sentences 200] [--rounds 15]

Every cell (data type, strategy, batch size) decodes the same sentences with both checkouts in turn, in alternating order. Its
figure is the median of the rounds' ratios, base seconds over ours (above 1: this checkout is faster), with a bootstrap interval.
The last line has the geometric mean over cells; the status is 1 if outputs differ. Each checkout compiles its kernels and runs in
its own processes. Sentences are split into subwords once, so that times are those of decoding calls. Nothing else should run.
"""

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.decoding.options import KERNELS  # noqa: E402 - of this checkout

DTYPES, STRATEGIES, BATCH_SIZES = ("int8", "float32"), ("ar", "specdec", "specdec-8"), (1, 8, 32)

# Runs in either checkout, so it uses only what every commit offers. A strategy's number is its block size.
WORKER = """
import inspect, json, sys, time
from pathlib import Path
from specdec_plugins import Translator
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.settings import Settings
subwords = {"bpe" if "bpe" in inspect.signature(Translator.translate).parameters else "tokenized": True}
model, dtype, strategy, threads, kernels = sys.argv[1:6]
name, _, block = strategy.partition("-")
more = {"block_size": int(block)} if block else {}
if kernels and hasattr(Settings, "kernels"):
    more["kernels"] = kernels
elif kernels:
    binding.VARIANTS = (kernels,)
translator = Translator.from_pretrained(model, strategy=name, dtype=dtype, threads=int(threads) or None, **more)
lines = json.loads(sys.stdin.readline())
def decode(first, count, batch_size):
    began = time.perf_counter()
    chosen = lines[first:first + count]
    if batch_size == 1:
        results = [result for line in chosen for result in translator.translate([line], batch_size=1, **subwords)]
    else:
        results = translator.translate(chosen, batch_size=batch_size, **subwords)
    return time.perf_counter() - began, [result.text for result in results]
try:
    from specdec_plugins.decoding.compiled import library as of
    library = of(kernels or None)
except ImportError:
    library = binding.library()
print(json.dumps(library and Path(library._name).name.split(".")[0].removeprefix("_kernels_")), flush=True)
for order in sys.stdin:
    print(json.dumps(decode(*json.loads(order))), flush=True)
"""


class Worker:
    """A process that decodes with one checkout, data type and strategy."""

    def __init__(self, root: Path, options: argparse.Namespace, dtype: str, strategy: str, lines: list[str]):
        command = [
            sys.executable,
            "-c",
            WORKER,
            str(Path(options.model).resolve()),
            dtype,
            strategy,
            str(options.threads or 0),
            options.kernels or "",
        ]
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.kernels = self.ask(lines)

    def ask(self, order):
        self.send(order)
        return self.receive()

    def send(self, order) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def receive(self):
        assert self.process.stdout
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"compare.py: error: the process of {self.process.args!r} ended")
        return json.loads(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    p.add_argument("--base", required=True, metavar="COMMIT", help="what to compare with")
    p.add_argument("--model", default=str(ROOT / "data/demo.en-de"), metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--sentences", type=int, default=200, metavar="N", help="a round decodes so many (default: 200)")
    p.add_argument("--rounds", type=int, default=15, metavar="N", help="(default: 15)")
    p.add_argument("--threads", type=int, metavar="N")
    p.add_argument("--kernels", choices=KERNELS, help="of both, for an instruction set (default: the best of each, if the same)")
    p.add_argument("--dtypes", nargs="+", default=DTYPES)
    p.add_argument("--strategies", nargs="+", default=STRATEGIES, help="ar, specdec, specdec-K (blocks of K)")
    p.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES)
    p.add_argument("--json", metavar="FILE", help="write every ratio")
    return p


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        check_out(options.base, base)
        found, differing = measure(base, options, subwords(options))
    for cell, ratios in found.items():
        low, high = interval(ratios)
        others = f"   {differing[cell]} of {options.sentences * options.rounds} outputs differ" if differing[cell] else ""
        print(f"{cell:<28} {statistics.median(ratios):.3f}   95 % interval {low:.3f} to {high:.3f}{others}")
    mean = math.exp(statistics.mean(math.log(statistics.median(ratios)) for ratios in found.values()))
    print(f"{'geometric mean':<28} {mean:.3f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"base": options.base, "ratios": found}) + "\n", encoding="utf-8")
    if any(differing.values()):
        sys.exit(1)


def check_out(commit: str, folder: Path) -> None:
    """A commit of this repository in a folder, its kernels compiled."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "--quiet", commit], cwd=folder, check=True)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def subwords(options: argparse.Namespace) -> list[str]:
    """The input's lines as the model's subwords."""
    from specdec_plugins import Translator

    translator = Translator.from_pretrained(options.model, strategy="ar", dtype="float32")
    lines = Path(options.input).read_text(encoding="utf-8").splitlines()
    return [" ".join(result.source_tokens) for result in translator.translate(lines)]


def measure(base: Path, options: argparse.Namespace, lines: list[str]) -> tuple[dict[str, list[float]], Counter[str]]:
    """By cell, the ratio of each round, and how many outputs differ."""
    found, differing = dict[str, list[float]](), Counter[str]()
    for dtype, strategy in itertools.product(options.dtypes, options.strategies):
        workers = [Worker(root, options, dtype, strategy, lines) for root in (base, ROOT)]
        try:
            check_kernels([worker.kernels for worker in workers])
            for batch_size in options.batch_sizes:
                cell = f"{dtype} {strategy} batch {batch_size}"
                for worker in workers:
                    worker.ask([0, options.sentences, batch_size])  # warm
                found[cell] = []
                for number in range(options.rounds):
                    order = [number * options.sentences % max(1, len(lines) - options.sentences), options.sentences, batch_size]
                    answers = {index: workers[index].ask(order) for index in ((0, 1) if number % 2 else (1, 0))}
                    differing[cell] += sum(one != other for one, other in zip(answers[0][1], answers[1][1], strict=True))
                    found[cell].append(answers[0][0] / answers[1][0])
        finally:
            for worker in workers:
                worker.close()
    return found, differing


def check_kernels(names: list[str | None]) -> None:
    """Raises SystemExit unless both checkouts run on kernels for the same instruction set."""
    base, ours = (name or "no kernels" for name in names)
    if base != ours:
        sys.exit(f"compare.py: error: the base runs on {base}, this checkout on {ours}; name one instruction set by --kernels")


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """The bootstrap's 95 % interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


if __name__ == "__main__":
    main()
