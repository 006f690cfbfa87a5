#!/usr/bin/env python3
"""Estimate the gain of speculation at another model shape than the shipped pair's, before training such a pair.

    benchmarks/shapes.py [--device cuda] [--dtypes float16] [--layers 6 --width 512 --inner 2048 --heads 8 --vocabulary 32000]
    benchmarks/shapes.py --shape madlad [--dtypes int8 --threads 1 --batch-sizes 1 --systems ours ctranslate2]

Models with random weights do all the work of a trained pair. Their output layer is made so that drafts are as often right, and as
sure of it, as the demo pair's (widths of 256 and more), and outputs have a fixed length: speeds are those of a pair of this shape
whose drafts are as good. `--shape` names T5's of known sizes. CTranslate2, Marian and fairseq, where installed, decode the same
sources to the same length with a verifier of the same shape. Each system runs in its own process, in turn. `ar` always runs, as
other figures are relative to it; where memory is short, measure the others in several runs (`--systems marian`). On a CPU `ar` at
batch size 1 also says what it reads: the weights of its passes, and what the same threads read of other memory at best. The last
line is JSON.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.options import KERNELS  # noqa: E402
from specdec_plugins.decoding.roles import Roles  # noqa: E402
from specdec_plugins.measure.machine import bandwidth, machine  # noqa: E402
from specdec_plugins.measure.systems import DTYPES, GPU_DTYPES, OURS, ctranslate2_of, limit_peers  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_plugins.decoding.backends.cpu.binding import Stack
    from specdec_plugins.decoding.roles import Controller
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.formats.spec import DrafterModel, Model

SOURCE, OUTPUT = 25, 28  # tokens of a sentence, eos included
EOS, FIRST = 2, 4  # FIRST: the first token that is a word
# Systems, and the packages that each needs. CTranslate2 reads the model as a fairseq checkpoint.
SYSTEMS: dict[str, list[str]] = {
    "ours": [],
    "ctranslate2": ["ctranslate2", "fairseq"],
    "marian": ["pymarian"],
    "fairseq": ["fairseq"],
}
T5_SYSTEMS: dict[str, list[str]] = {"ours": [], "ctranslate2": ["ctranslate2"]}
# The demo pair's drafted tokens (calibration.py, test2016, int8): how many, their mean probability, the share that is right
TOKENS = [
    (708, 0.371, 0.394),
    (954, 0.601, 0.584),
    (1344, 0.811, 0.743),
    (1160, 0.942, 0.901),
    (1006, 0.982, 0.958),
    (2041, 0.996, 0.987),
    (6759, 0.9995, 0.999),
]
# T5 1.1's parts in the sizes of Flan-T5 base and MADLAD-400 3B, and roughly the 13,000 tokens that a language's text has
SHAPES: dict[str, dict[str, Any]] = {
    "t5-base": {"layers": 12, "width": 768, "inner": 2048, "heads": 12, "head": 64, "vocabulary": 32_128, "drafted": 0.41},
    "madlad": {"layers": 32, "width": 1024, "inner": 8192, "heads": 16, "head": 128, "vocabulary": 256_000, "drafted": 0.05},
}
# By beam: how often all survivors of a pass's first, second, .. step are drafted nodes, given that those before it were
REPLAYED = {2: [0.71, 0.52, 0.57, 0.53, 0.56], 4: [0.45, 0.37, 0.45, 0.39], 5: [0.35, 0.33, 0.33, 0.47], 8: [0.26, 0.23, 0.35]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N")
    parser.add_argument(
        "--dtypes", nargs="+", choices=sorted({*DTYPES, *GPU_DTYPES}), help="default: float32 and int8, or float16"
    )
    parser.add_argument("--shape", choices=SHAPES, help="sets the following")
    parser.add_argument("--head", type=int, metavar="WIDTH", help="of a head (default: width / heads)")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--drafter-layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument(
        "--drafted", type=float, default=0.41, help="share of the vocabulary that is drafted; of a multilingual model's far less"
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="ours: drafts; `ar` always runs")
    parser.add_argument("--block-sizes", nargs="+", default=["4", "8", "12", "auto"], metavar="K")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--beam", type=int, choices=[1, *REPLAYED], default=1, help="beam search, ours alone")
    parser.add_argument("--sentences", type=int, default=64, help="at least as many as the batch size are decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--kernels", choices=KERNELS, help="ours; avx2 limits the others, too (default: each one's best)")
    parser.set_defaults(**SHAPES.get(parser.parse_known_args()[0].shape, {}))
    options = parser.parse_args()
    needed = T5_SYSTEMS if options.shape else SYSTEMS
    options.systems = [system for system in options.systems if system in needed]
    known = DTYPES if options.device == "cpu" else GPU_DTYPES
    options.dtypes = options.dtypes or (["float32", "int8"] if options.device == "cpu" else ["float16"])
    if wrong := [dtype for dtype in options.dtypes if dtype not in known]:
        parser.error(f"--dtypes {wrong[0]} is not available on {options.device}: {', '.join(known)}")
    for system in [*options.systems]:
        if missing := [package for package in needed[system] if find_spec(package) is None]:
            print(f"left out: {system}, which needs {' and '.join(missing)} (extras: train, bench)", file=sys.stderr)
            options.systems.remove(system)
    signature = {**vars(options), **machine(options.device, options.kernels)}
    rows = measure(options)
    print(json.dumps({"benchmark": "shapes", "rows": rows, "signature": signature}))
    return 0


def make_pair(options: argparse.Namespace, folder: Path) -> "Pair":
    """A verifier and the drafter `glide` with random weights, the same in every process, and a dictionary in ``folder``."""
    from random_pair import Shape, random_pair

    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.text.codec import CodecConfig
    from specdec_plugins.text.vocabulary import SPECIAL

    words = "".join(f"w{number} 1\n" for number in range(options.vocabulary - len(SPECIAL)))
    (folder / "dict.txt").write_text(words, encoding="utf-8")
    files = dict.fromkeys(("source", "target"), folder / "dict.txt")
    shape = Shape(
        options.layers,
        options.drafter_layers,
        options.width,
        options.inner,
        options.heads,
        options.vocabulary,
        options.drafted,
        head=options.head,
        t5=options.shape is not None,
        alike=True,
    )
    return Pair.open(*random_pair(shape), CodecConfig("fairseq-bpe", "random", files, "xa", "xb"))


def predictable(pair: "Pair") -> tuple["Model", "DrafterModel"]:
    """The pair with weights by which each token has a fixed successor, and the drafter knows as many as `TOKENS` says.

    Layers add nothing to a token's embedding (products with zeros take as long as others), and the last norm leaves the verifier
    one half of it, the drafter the other. So half a row of the output layer is the embedding of the token before it; the other
    half is that of the token after which the drafter expects it, times what gives the probability.
    """
    import torch

    from specdec_plugins.decoding.loading import DRAFT_VOCABULARY

    verifier, drafter = pair.verifier, pair.drafter
    assert drafter is not None
    chance, table = random.Random(3), verifier.tensors["decoder.embed_tokens.weight"]
    size, half = len(drafter.tensors.get(DRAFT_VOCABULARY, table)), table.size(1) // 2
    sharpness = 2.0  # of logits, so that the verifier is sure
    lean = 4.0  # of the output layer towards the drafter's half, so that a screen of it sees that half
    found = chance.choices(TOKENS, [count for count, *_ in TOKENS], k=size - FIRST)
    expected = torch.arange(FIRST, size).roll(-1)  # each token's successor
    wrong = torch.tensor([chance.random() >= share for *_, share in found])
    expected[wrong] = expected[wrong].roll(1)
    # Of a position's normalised embedding, a third is the position, if any; the other logits are normally distributed.
    spec = verifier.spec.decoder
    strength, others = (
        (table.size(1) / (4 if spec.embedding.offset is None else 6)) ** 0.5 * sharpness,
        math.log(size) + sharpness**2 / 4,
    )
    factor = torch.tensor([(others + math.log(sure / (1 - sure))) / strength for _, sure, _ in found])
    output = table.clone()
    output[FIRST:size, :half] = table[FIRST:size, :half].roll(1, 0)
    output[:, :half] /= lean
    output[expected, half:] = table[FIRST:size, half:] * factor[:, None]

    def plain(tensors: "Mapping[str, Tensor]", layers: int, seen: slice, weight: float) -> dict[str, "Tensor"]:
        adds, last = (".out_proj.weight", ".fc2.weight"), f"layers.{layers - 1}.final_layer_norm"
        norm = f"decoder.{'layer_norm' if spec.final_norm else last}.weight"
        zeros = {id(each): torch.zeros_like(each) for name, each in tensors.items() if name.endswith(adds) or name == norm}
        made = {name: zeros.get(id(each), each) for name, each in tensors.items()}
        made[norm][seen] = weight
        return made

    tensors = plain(verifier.tensors, verifier.spec.decoder.layers, slice(half), sharpness * lean)
    own = plain(drafter.tensors, drafter.options["layers"], slice(half, None), sharpness)
    return replace(verifier, tensors={**tensors, "decoder.output_projection.weight": output}), replace(drafter, tensors=own)


def replaying(shares: list[float]) -> Callable:
    """`replay` of beam searches, in which a trained pair's share of steps finds all its survivors drafted. Only those that are
    no drafted nodes are the random pair's own."""
    from specdec_plugins.decoding.search import step
    from specdec_plugins.decoding.search.beam import Beams
    from specdec_plugins.decoding.trees import ROOT, parents_of

    chance = random.Random(1)

    def replay(search: Any, beams: Any, rows: Any, ranked: Any, draft: Any) -> Any:
        read, depth = [(row, ROOT) for row in rows], 0
        nodes = [(row, *each) for row in rows for each in enumerate(zip(parents_of(draft, row), draft.tokens[row]))]
        while True:
            after = step(search, beams, [ranked[row][node + 1] for row, node in read])
            if after.over:
                return after, read[:1]
            places = {place: rank for rank, place in enumerate(read)}
            drafted = [(places[row, parent], row, node, token) for row, node, (parent, token) in nodes if (row, parent) in places]
            drafted = drafted[: len(after.live)]
            if len(drafted) < len(after.live) or chance.random() >= shares[min(depth, len(shares) - 1)]:
                return after, [read[parent] for parent in after.parents]
            live = tuple(beams.live[parent].then(token, -1.0) for parent, _, _, token in drafted)
            beams = Beams(live, after.finished, tuple(parent for parent, *_ in drafted))
            read, depth = [(row, node) for _, row, node, _ in drafted], depth + 1

    return replay


Decode = Callable[[list[list[int]], int], tuple[float, int, float]]  # sources, batch size: seconds, tokens, tokens per pass
decode: Decode
read = 0  # bytes of weights in a pass of one row; 0: unknown


def prepare(options: argparse.Namespace, system: str, dtype: str, kind: str) -> None:
    """Build ``decode`` in its own process."""
    import logging

    import torch

    logging.disable(logging.WARNING)
    global decode
    limit_peers(options.kernels)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        pair = make_pair(options, Path(folder))
        decode = {"ctranslate2": ctranslate2, "fairseq": fairseq, "marian": marian}.get(system, ours)(pair, dtype, kind, options)


def run(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
    return decode(sources, batch_size)


def reads() -> int:
    return read


def fairseq(pair: "Pair", dtype: str, kind: str, options: argparse.Namespace) -> Decode:
    import torch

    from specdec_plugins.decoding.options import Beam
    from specdec_plugins.decoding.requests import Request
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.fairseq_engine import FairseqGenerator

    generator = FairseqGenerator(pair.verifier, options.device, getattr(torch, dtype))

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        stats, requests = DecodeStats(), [Request(number, source, OUTPUT - 1) for number, source in enumerate(sources)]
        began = time.perf_counter()
        list(generator.decode(requests, Beam(1), batch_size, None, (0, OUTPUT - 1), stats))
        return time.perf_counter() - began, stats.committed, 1.0

    return decode


def ctranslate2(pair: "Pair", dtype: str, kind: str, options: argparse.Namespace) -> Decode:
    if options.shape:
        from ctranslate2_t5 import ctranslate2_t5_of

        translator = ctranslate2_t5_of(pair.verifier, pair.source.symbols, dtype, int(kind))
    else:
        translator = ctranslate2_of(pair, dtype, int(kind), device=options.device)
    vocabulary = pair.source  # the pair is not kept

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        tokens = [vocabulary.tokens(source[:-1]) for source in sources]
        began = time.perf_counter()
        # An output's eos is no token here, and makes its last pass.
        found = translator.translate_batch(
            tokens, max_batch_size=batch_size, beam_size=1, min_decoding_length=OUTPUT - 1, max_decoding_length=OUTPUT - 1
        )
        return time.perf_counter() - began, sum(len(each.hypotheses[0]) + 1 for each in found), 1.0

    return decode


def marian(pair: "Pair", dtype: str, kind: str, options: argparse.Namespace) -> Decode:
    from marian_model import marian_of

    # Its token 0 ends outputs: banned, they end at a limit that counts the source's eos.
    translate = marian_of(pair.verifier, dtype, int(kind), (0,), (OUTPUT - 1) / SOURCE, options.kernels)

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        began = time.perf_counter()
        found = translate(sources, batch_size)
        return time.perf_counter() - began, sum(len(output) + 1 for output in found), 1.0

    return decode


def ours(pair: "Pair", dtype: str, block: str, options: argparse.Namespace) -> Decode:
    from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
    from specdec_plugins.decoding.assembly import assemble
    from specdec_plugins.decoding.constraints import Constraints
    from specdec_plugins.decoding.control.fixed import FixedLength
    from specdec_plugins.decoding.control.throughput import Throughput
    from specdec_plugins.decoding.loop import speculative_decode
    from specdec_plugins.decoding.options import Beam
    from specdec_plugins.decoding.requests import Request
    from specdec_plugins.decoding.search import groups
    from specdec_plugins.decoding.stats import DecodeStats

    device, beam, shortest = options.device, None, 1
    if options.beam > 1:
        beam, shortest, groups.replay = Beam(options.beam), OUTPUT - 1, replaying(REPLAYED[options.beam])
    made = (pair.verifier, pair.drafter) if beam else predictable(pair)
    known = int(options.drafted * options.vocabulary) - FIRST  # tokens with a successor
    drafter, verifier = assemble(made[0], made[1] if block != "0" else None, device, dtype, options.threads, options.kernels)
    if block == "0" and (stack := getattr(verifier.model, "stack", None)):
        global read
        read = weight_bytes(stack)
    controller: Controller = FixedLength(0 if block == "auto" else int(block))
    if block == "auto":
        controller = Throughput(pair.block_size, confident=drafter.traits.confident, searches=beam is not None)
    rule, constraints = TopBetaTau(), Constraints.of(pair.verifier.spec)

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        stats = DecodeStats()
        begin = [() if beam else (FIRST + source[0] % known,) for source in sources]
        requests = [Request(n, source, OUTPUT - 1, shortest, begin[n], beam=beam) for n, source in enumerate(sources)]
        began = time.perf_counter()
        rows = batch_size * options.beam
        list(speculative_decode(Roles(drafter, verifier, rule, controller), requests, rows, stats, constraints, device))
        return time.perf_counter() - began, stats.committed, stats.mean_accepted_length

    return decode


def weight_bytes(stack: "Stack") -> int:
    """The weights that a pass of one row reads, those of a screened output layer in four bits."""
    projection = stack.output.linear
    assert projection is not None, "a decoder"
    read = projection.outputs * projection.inputs // 2 if stack.output.plane else projection.weight_bytes
    return sum(linear.weight_bytes for linear in stack.linears) + read


def systems_of(dtype: str, options: argparse.Namespace) -> list[tuple[str, str]]:
    """The measured systems: `ar` first, each with its block size or its number of threads."""
    on_cpu, asked = options.device == "cpu", options.systems
    systems = [("ar", "0"), *(("specdec", block) for block in options.block_sizes if "ours" in asked)]
    peers = [system for system in asked if system != "ours"]
    if dtype == OURS and peers:
        print(f"left out: {', '.join(peers)} {dtype}: no such weights", file=sys.stderr)
    if options.beam > 1 or dtype == OURS:
        return systems
    if "ctranslate2" in asked:  # with 1 thread, too, which can be faster
        systems += [("ctranslate2", str(threads)) for threads in sorted({1, options.threads} if on_cpu else {1})]
    if "marian" in asked and on_cpu and dtype != "bfloat16":
        systems.append(("marian", "1"))
    if "fairseq" in asked and (dtype == "float32" or not on_cpu):
        systems.append(("fairseq", str(options.threads)))
    return systems


def reading(row: dict[str, Any], size: int, passes: float, threads: int) -> str:
    """What so many ``passes`` a second over ``size`` bytes take of this machine's bandwidth, in words and in ``row``."""
    found = {number: round(bandwidth(number) / 1e9, 1) for number in sorted({1, threads})}
    row |= {"pass_bytes": size, "gigabytes_per_second": round(size * passes / 1e9, 3), "bandwidth": found}
    one = f", {found[1]:.0f} with one thread" if threads > 1 else ""
    return f"a pass reads {size / 1e6:,.0f} MB: {size * passes / 1e9:.0f} of {found[threads]:.0f} GB/s{one}"


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    chance = random.Random(2)
    count = max(options.sentences, *options.batch_sizes)
    every = [[*(chance.randrange(4, options.vocabulary) for _ in range(SOURCE - 1)), EOS] for _ in range(count)]
    rows = []
    for dtype in options.dtypes:
        systems, workers = [], []
        for system, kind in systems_of(dtype, options):
            worker = ProcessPoolExecutor(1, get_context("spawn"), prepare, (options, system, dtype, kind))
            try:
                worker.submit(run, every[:4], 1).result()
            except Exception as error:  # a library that does not load there; the process may be gone
                if system in ("ar", "specdec"):
                    raise
                print(f"left out: {system} {dtype}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            systems.append((system, kind))
            workers.append(worker)
        for size in options.batch_sizes:
            sources = every[: max(options.sentences, size)]
            found: list[list[tuple[float, int, float]]] = [[] for _ in systems]
            for number in range(options.rounds + 1):
                for worker, results in zip(workers, found):
                    results += [worker.submit(run, sources, size).result()][: number > 0]  # the first round warms up
            for (system, kind), results in zip(systems, found):
                speed = statistics.median(tokens / seconds for seconds, tokens, _ in results)
                ratio = statistics.median(mine[1] / mine[0] / (plain[1] / plain[0]) for mine, plain in zip(results, found[0]))
                name = "block_size" if system in ("ar", "specdec") else "threads"
                row = {
                    "system": system,
                    name: kind,
                    "dtype": dtype,
                    "batch_size": size,
                    "tokens_per_second": round(speed, 1),
                    "times_ar": round(ratio, 2),
                    "tokens_a_pass": round(results[-1][2], 2),
                }
                rows.append(row)
                print(
                    f"{dtype:8} batch {size:3} {system:12}{kind:5} {speed:8.0f} tokens/s {ratio:6.2f} x ar  "
                    f"{results[-1][2]:5.2f} tokens per pass",
                    flush=True,
                )
                if system == "ar" and size == 1 and (weights := workers[0].submit(reads).result()):
                    print(f"{dtype:8} {reading(row, weights, speed / results[-1][2], options.threads)}", flush=True)
        for worker in workers:
            worker.shutdown()
    return rows


if __name__ == "__main__":
    sys.exit(main())
