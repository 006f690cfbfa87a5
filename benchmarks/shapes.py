#!/usr/bin/env python3
"""Estimate what speculation brings at another model shape than the shipped pair's, before such a pair is trained.

    benchmarks/shapes.py [--dtypes float32 int8] [--layers 6 --width 512 --inner 2048 --heads 8 --vocabulary 32000]

Models with random weights do the work of a trained pair: passes, the choice of drafted tokens and the rule are computed as in
decoding, but the number of accepted tokens is drawn from the shipped pair's acceptance by position (decoding.jsonl), and outputs
have a fixed length. So speeds are those of a pair of this shape whose drafts are accepted as often. CTranslate2 and fairseq
decode the same sources, to the same length, with the same verifier; CTranslate2 is left out if it is not installed. Each system
runs in a process of its own; rounds are interleaved. The last line is JSON.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.measure.systems import DTYPES, convert  # noqa: E402

if TYPE_CHECKING:
    from specdec_plugins.decoding.prefix import Prefix
    from specdec_plugins.decoding.roles import Acceptance, Controller
    from specdec_plugins.decoding.values import Draft, Verdict

SOURCE, OUTPUT = 25, 28  # tokens of a sentence, eos included
DRAFTED = 0.41  # of the vocabulary, as in the pair that ships
EOS, OTHER = 2, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "int8"], choices=DTYPES)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--drafter-layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--block-sizes", nargs="+", default=["4", "8", "12", "auto"], metavar="K")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    options = parser.parse_args()
    if not find_spec("ctranslate2"):
        print("ctranslate2 is not installed, and is left out: pip install 'specdec[bench]'", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        make_pair(options, Path(folder))
        rows = measure(options, folder)
    signature = {**machine(), **vars(options)}
    print(json.dumps({"benchmark": "shapes", "rows": rows, "signature": signature}))
    return 0


def make_pair(options: argparse.Namespace, folder: Path) -> None:
    """Checkpoints of a verifier and a causal block drafter with fairseq's initial weights, and a dictionary."""
    import torch
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel, base_architecture

    from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY
    from specdec_plugins.formats import checkpoint
    from specdec_plugins.training.initialise import architectures

    dictionary = Dictionary()
    for number in range(options.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    for language in ("xa", "xb"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    shape: dict[str, Any] = {"share_all_embeddings": True, "source_lang": "xa", "target_lang": "xb", "block_size": 8}
    for side in ("encoder", "decoder"):
        shape |= {
            f"{side}_embed_dim": options.width, f"{side}_ffn_embed_dim": options.inner, f"{side}_layers": options.layers,
            f"{side}_attention_heads": options.heads,
        }  # fmt: skip
    drafter_class, complete = architectures()["block_causal"]
    changes = {"arch": "block_causal", "decoder_layers": options.drafter_layers, "successor_width": 128}
    torch.manual_seed(1)
    encoder: dict[str, torch.Tensor] = {}
    drafted = {DRAFT_VOCABULARY: torch.arange(int(DRAFTED * options.vocabulary))}
    for name, args, model_class, fill, more in (
        ("verifier", argparse.Namespace(**shape, arch="transformer"), TransformerModel, base_architecture, {}),
        ("drafter", argparse.Namespace(**{**shape, **changes}), drafter_class, complete, drafted),
    ):
        fill(args)
        weights = model_class.build_model(args, task).state_dict()
        encoder = encoder or {
            key: tensor for key, tensor in weights.items() if key.startswith("encoder.") or "embed_tokens" in key
        }
        shared = {key: tensor for key, tensor in encoder.items() if key in weights}
        projection = {"decoder.output_projection.weight": encoder["encoder.embed_tokens.weight"]}
        checkpoint.save({"args": args, "model": {**weights, **shared, **projection, **more}}, folder / f"{name}.pt")


class Replayed:
    """A rule that is computed, and whose verdict is then replaced by one drawn from a trained pair's acceptance."""

    def __init__(self, rule: "Acceptance", shares: list[float]):
        """``shares``: by position, of the drafts that passed up to there, the part that passes there, too."""
        self.rule, self.shares, self.random = rule, shares, random.Random(1)

    def __call__(self, scores: Any, draft: "Draft", prefix: "Prefix") -> "Verdict":
        verdict = self.rule(scores, draft, prefix)
        counts = []
        for tokens in draft.tokens:
            count = 0
            while count < len(tokens) and self.random.random() < self.shares[min(count, len(self.shares) - 1)]:
                count += 1
            counts.append(count)
        own = [OTHER if room - count > 0 else EOS for room, count in zip(prefix.room, counts)]
        return replace(
            verdict, accepted=counts, own=own, scores=[[0.0] * (count + 1) for count in counts], cut=[False] * len(counts)
        )


Decode = Callable[[list[list[int]], int], tuple[float, int, float]]  # sources, batch size: seconds, tokens, tokens a pass
decode: Decode


def prepare(folder: str, system: str, dtype: str, kind: str, threads: int) -> None:
    """Make ``decode``, in a process of its own."""
    import logging

    import torch

    logging.disable(logging.WARNING)
    from specdec_plugins.formats.folder import load_parts

    global decode
    torch.set_num_threads(threads)
    pair = load_parts(f"{folder}/verifier.pt", f"{folder}/drafter.pt", folder, "xa", "xb", None)
    decode = {"ctranslate2": ctranslate2, "fairseq": fairseq}.get(system, ours)(pair, dtype, kind, threads)


def run(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
    return decode(sources, batch_size)


def fairseq(pair: Any, dtype: str, kind: str, threads: int) -> Decode:
    import torch

    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.decoding.values import Request
    from specdec_plugins.measure.fairseq_generator import FairseqGenerator

    generator = FairseqGenerator(pair.verifier, 1, torch.device("cpu"), getattr(torch, dtype))

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        stats, requests = DecodeStats(), [Request(number, source, OUTPUT - 1) for number, source in enumerate(sources)]
        began = time.perf_counter()
        list(generator.decode(requests, batch_size, None, 0, OUTPUT - 1, stats))
        return time.perf_counter() - began, stats.committed, 1.0

    return decode


def ctranslate2(pair: Any, dtype: str, kind: str, threads: int) -> Decode:
    import ctranslate2

    with tempfile.TemporaryDirectory() as place:
        convert(pair, Path(place))
        translator = ctranslate2.Translator(
            f"{place}/converted", device="cpu", compute_type=dtype, inter_threads=1, intra_threads=int(kind)
        )

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        tokens = [pair.source.decode(source[:-1]).split() for source in sources]
        began = time.perf_counter()
        # An output's eos is no token here, and makes its last pass.
        found = translator.translate_batch(
            tokens, max_batch_size=batch_size, beam_size=1, min_decoding_length=OUTPUT - 1, max_decoding_length=OUTPUT - 1
        )
        return time.perf_counter() - began, sum(len(each.hypotheses[0]) + 1 for each in found), 1.0

    return decode


def ours(pair: Any, dtype: str, block: str, threads: int) -> Decode:
    from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
    from specdec_plugins.decoding.assembly import assemble
    from specdec_plugins.decoding.constraints import Constraints
    from specdec_plugins.decoding.control.fixed import FixedLength
    from specdec_plugins.decoding.control.throughput import Throughput
    from specdec_plugins.decoding.loop import speculative_decode
    from specdec_plugins.decoding.stats import DecodeStats
    from specdec_plugins.decoding.values import Request

    drafter, verifier = assemble(pair.verifier, pair.drafter if block != "0" else None, "cpu", dtype, threads)
    controller: Controller = Throughput(pair.block_size) if block == "auto" else FixedLength(int(block))
    replayed, constraints = Replayed(TopBetaTau(), acceptance()), Constraints.of(pair.verifier.spec)

    def decode(sources: list[list[int]], batch_size: int) -> tuple[float, int, float]:
        stats, requests = DecodeStats(), [Request(number, source, OUTPUT - 1) for number, source in enumerate(sources)]
        began = time.perf_counter()
        groups = [[request] for request in requests] if batch_size == 1 else [requests]
        for group in groups:
            list(speculative_decode(drafter, verifier, replayed, controller, group, batch_size, stats, constraints))
        return time.perf_counter() - began, stats.committed, stats.mean_accepted_length

    return decode


def acceptance() -> list[float]:
    """The shipped pair's acceptance by position, for the longest block that was measured."""
    for line in (ROOT / "benchmarks" / "decoding.jsonl").read_text().splitlines():
        found = json.loads(line)
        if found["benchmark"] == "decoding acceptance":
            return max((row for row in found["rows"] if row["successor"]), key=lambda row: row["block_size"])["by_position"]
    raise ValueError("no acceptance in benchmarks/decoding.jsonl")


def measure(options: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    chance = random.Random(2)
    sources = [[*(chance.randrange(4, options.vocabulary) for _ in range(SOURCE - 1)), EOS] for _ in range(options.sentences)]
    rows = []
    for dtype in options.dtypes:
        systems = [("ar", "0"), *(("specdec", block) for block in options.block_sizes)]
        if find_spec("ctranslate2"):  # with 1 thread, too, which can be faster
            systems += [("ctranslate2", str(threads)) for threads in sorted({1, options.threads})]
        systems += [("fairseq", str(options.threads))] if dtype == "float32" else []
        workers = [
            ProcessPoolExecutor(1, get_context("spawn"), prepare, (folder, system, dtype, kind, options.threads))
            for system, kind in systems
        ]
        for worker in workers:
            worker.submit(run, sources[:4], 1).result()
        for size in options.batch_sizes:
            found: list[list[tuple[float, int, float]]] = [[] for _ in systems]
            for number in range(options.rounds + 1):
                for worker, results in zip(workers, found):
                    results += [worker.submit(run, sources, size).result()][: number > 0]  # the first round warms up
            for (system, kind), results in zip(systems, found):
                speed = statistics.median(tokens / seconds for seconds, tokens, _ in results)
                ratio = statistics.median(mine[1] / mine[0] / (plain[1] / plain[0]) for mine, plain in zip(results, found[0]))
                name = "block_size" if system in ("ar", "specdec") else "threads"
                row = {
                    "system": system, name: kind, "dtype": dtype, "batch_size": size, "tokens_per_second": round(speed, 1),
                    "times_ar": round(ratio, 2), "tokens_a_pass": round(results[-1][2], 2),
                }  # fmt: skip
                rows.append(row)
                print(
                    f"{dtype:8} batch {size:3} {system:12}{kind:5} {speed:8.0f} tokens/s {ratio:6.2f} x ar  "
                    f"{results[-1][2]:5.2f} tokens a pass", flush=True,
                )  # fmt: skip
        for worker in workers:
            worker.shutdown()
    return rows


if __name__ == "__main__":
    sys.exit(main())
