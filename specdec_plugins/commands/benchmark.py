"""The command ``specdec-benchmark``: how fast each way to decode is, in one run, on the same tokens.

Every system lives in a process of its own and decodes by turns with the others, so that a machine whose speed drifts is fair to
all, nobody's idle threads are in another's way, and memory can be told apart. Times are of decoding alone: sources are
tokenised before, outputs are put together after. Each system runs with the number of threads that is best for it.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_plugins.decoding.values import Hypothesis
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.translator import Translator

SYSTEMS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar", "specdec", "specdec-tolerant", "drafter")
DTYPES = ("float32", "bfloat16", "int8")
ON_GPUS = ("float32", "bfloat16", "float16")
DRAFTERLESS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar")
PILOT = 48  # sentences to warm up with, and to find the best number of threads


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-benchmark", usage="%(prog)s --model DIR --input FILE [option ...]", allow_abbrev=False,
        description="Measure the ways to decode: tokens a second, latency, acceptance, memory, and whether outputs differ.",
        epilog="The last line on stdout is JSON with everything measured. ctranslate2 and plots need: pip install specdec[bench]",
    )  # fmt: skip
    p.add_argument("--model", required=True, metavar="DIR", help="model folder")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--reference", metavar="FILE", help="reference translations, for BLEU")
    p.add_argument("--sentences", type=int, metavar="N", help="only the first N")
    p.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME", help=", ".join(SYSTEMS))
    p.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    p.add_argument("--dtypes", nargs="+", metavar="T", help=f"{', '.join(DTYPES)}; on a GPU {', '.join(ON_GPUS)} (default: all)")
    p.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32, 128], metavar="N")
    p.add_argument("--threads", nargs="+", type=int, metavar="N", help="numbers to choose from (default: 1, 2, 4 .. all cores)")
    p.add_argument("--block-sizes", nargs="+", default=["auto"], metavar="K", help="of specdec: numbers, auto (default: auto)")
    p.add_argument("--beta", type=int, default=3, help="of specdec-tolerant (default: 3)")
    p.add_argument("--tau", type=float, default=1.0, help="of specdec-tolerant, nats (default: 1)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    p.add_argument("--plot", metavar="FILE.png", help="draw tokens a second against batch size")
    return p


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        check(options)
        run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"specdec-benchmark: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nspecdec-benchmark: stopped", file=sys.stderr)
        return 130
    return 0


def check(options: argparse.Namespace) -> None:
    """Raise ValueError for a number that cannot be."""
    for name in ("sentences", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)} is less than 1")
    available = DTYPES if getattr(options, "device", "cpu") == "cpu" else ON_GPUS
    options.dtypes = options.dtypes or list(available)
    for dtype in options.dtypes:
        if dtype not in available:
            raise ValueError(f"--dtypes: no '{dtype}' here. Available: {', '.join(available)}")
    for block in options.block_sizes or []:
        if block != "auto" and not (block.isdecimal() and int(block)):
            raise ValueError(f"--block-sizes: '{block}' is neither a number over 0 nor auto")
    for name in ("batch_sizes", "threads"):
        if min(getattr(options, name) or [1]) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: {min(getattr(options, name))} is less than 1")
    if getattr(options, "plot", None) and not find_spec("matplotlib"):
        raise ValueError("--plot needs matplotlib, which is not installed: pip install 'specdec[bench]'")


# ---- the systems, each in its process


@dataclass(frozen=True)
class System:
    """One way to decode. ``name`` is what tables call it."""

    strategy: str
    dtype: str
    block: str | None = None  # None: the model's, or of no use
    beta: int = 1
    tau: float | None = None  # nats; None: exact, or of no use
    device: str = "cpu"

    @property
    def name(self) -> str:
        if self.strategy.startswith("fairseq") and self.dtype == "float32":
            return self.strategy
        tolerance = "" if self.tau is None else f" beta={self.beta} tau={self.tau:g}"
        return f"{self.strategy} {self.dtype}" + (f" K={self.block}" if self.block else "") + tolerance


@dataclass(frozen=True)
class Run:
    """One pass over the text: seconds in all and by sentence (at batch size 1), outputs in subwords, and what was counted."""

    seconds: float
    latencies: list[float]
    outputs: list[list[str]]
    shares: dict[str, float]  # seconds drafting, verifying, encoding, elsewhere
    mean_accepted_length: float
    acceptance_by_position: list[float]
    lengths: dict[int, int]  # passes by draft length
    accepted_lengths: dict[int, int]  # passes, counted once per row in the batch, by the tokens that they committed


class Engine:
    """Our strategies, and fairseq's generator."""

    def __init__(self, system: System, pair: "Pair", threads: int):
        from specdec_plugins.settings import Settings
        from specdec_plugins.translator import Translator

        settings: dict[str, Any] = {"strategy": system.strategy.split("-")[0], "dtype": system.dtype}
        settings.update(threads=threads, device=system.device)
        if system.strategy == "fairseq-beam5":
            settings["beam"] = 5
        if system.tau is not None:
            settings.update(beta=system.beta, tau=system.tau)
        if system.block:
            settings["block_size"] = system.block if system.block == "auto" else int(system.block)
        self.translator = Translator(pair, Settings(**settings))
        self.weights = tensor_bytes(vars(self.translator).get("roles"))  # before there are buffers

    def decode(self, sources: Sequence[list[int]], batch_size: int) -> Run:
        stats = self.translator.stats
        before, passes, lengths = dict(stats.seconds), (stats.committed, stats.iterations), Counter(stats.lengths)
        hypotheses: list[Hypothesis] = []
        latencies = []
        began = time.perf_counter()
        if batch_size == 1:
            for source in sources:
                start = time.perf_counter()
                hypotheses += self.translator.translate_tokens([source], 1)
                latencies.append(time.perf_counter() - start)
        else:
            hypotheses += self.translator.translate_tokens(sources, batch_size)
        seconds = time.perf_counter() - began
        offered, passed = [0] * 64, [0] * 64
        committed: Counter[int] = Counter()
        for step in (step for hypothesis in hypotheses for step in hypothesis.steps):
            committed[step.accepted + (step.own is not None)] += 1
            for position in range(min(64, len(step.drafted))):
                offered[position] += 1
                passed[position] += step.accepted > position
        return Run(
            seconds, latencies, [self.translator.words(hypothesis.tokens) for hypothesis in hypotheses],
            {name: stats.seconds[name] - before[name] for name in before if name != "text"},
            (stats.committed - passes[0]) / max(1, stats.iterations - passes[1]),
            [passes / offers for passes, offers in zip(passed, offered) if offers],
            dict(sorted((stats.lengths - lengths).items())), dict(sorted(committed.items())),
        )  # fmt: skip

    def memory(self, sources: Sequence[list[int]], batch_size: int) -> dict[str, int]:
        """Bytes of the weights, and of keys and values when the longest sources have been decoded together."""
        if self.translator.settings.strategy == "fairseq":
            return {}
        from specdec_plugins.decoding.loop import speculative_decode
        from specdec_plugins.decoding.stats import DecodeStats
        from specdec_plugins.decoding.values import Request

        states = []

        def watched(role: Any) -> Any:
            def start(rows: int) -> Any:
                states.append(role.start(rows))
                return states[-1]

            methods = {name: getattr(role, name) for name in ("admit", "propose", "score") if hasattr(role, name)}
            return SimpleNamespace(start=start, **methods)

        longest = sorted(sources, key=len)[-batch_size:]
        requests = [Request(index, source, self.translator.limit(len(source))) for index, source in enumerate(longest)]
        drafter, verifier, rule, length = self.translator.roles
        roles = watched(drafter), watched(verifier), rule, length
        for _ in speculative_decode(*roles, requests, len(requests), DecodeStats(), device=self.translator.settings.device):
            pass
        return {"weights": self.weights, "caches": tensor_bytes(states)}


class CTranslate2:
    """The same verifier, converted; greedy, with fairseq's limit on the length."""

    def __init__(self, system: System, pair: "Pair", threads: int):
        if not find_spec("ctranslate2"):
            raise ValueError("ctranslate2 is not installed: pip install 'specdec[bench]'")
        import ctranslate2
        import torch

        self.pair = pair
        with tempfile.TemporaryDirectory() as folder:
            convert(pair, Path(folder))
            device = torch.device(system.device)
            self.translator = ctranslate2.Translator(
                f"{folder}/converted", device=device.type, device_index=device.index or 0, compute_type=system.dtype,
                inter_threads=1, intra_threads=threads,
            )  # fmt: skip

    def decode(self, sources: Sequence[list[int]], batch_size: int) -> Run:
        tokens = [self.pair.source.decode(source[:-1]).split() for source in sources]
        choices = {"beam_size": 1, "max_decoding_length": 200}
        found, latencies = [], []
        began = time.perf_counter()
        if batch_size == 1:
            for source in tokens:
                start = time.perf_counter()
                found += self.translator.translate_batch([source], **choices)
                latencies.append(time.perf_counter() - start)
        else:
            found = self.translator.translate_batch(tokens, max_batch_size=batch_size, **choices)
        seconds = time.perf_counter() - began
        return Run(seconds, latencies, [each.hypotheses[0] for each in found], {}, 1.0, [], {}, {})

    def memory(self, sources: Sequence[list[int]], batch_size: int) -> dict[str, int]:
        """It does not tell."""
        return {}


def convert(pair: "Pair", folder: Path) -> None:
    """Write the verifier for CTranslate2 into ``folder/converted``, by way of a fairseq checkpoint."""
    import shutil

    import torch
    from ctranslate2.converters import FairseqConverter
    from fairseq.models import ARCH_CONFIG_REGISTRY

    from specdec_plugins.formats.checkpoint import allow_fairseq_types
    from specdec_plugins.formats.fairseq import checkpoint_of

    checkpoint = checkpoint_of(pair.verifier)
    args = checkpoint["args"]
    args.task, args.left_pad_source, args.left_pad_target = "translation", True, False
    args.source_lang, args.target_lang = "source", "target"
    ARCH_CONFIG_REGISTRY[args.arch](args)
    for side, vocabulary in (("source", pair.source), ("target", pair.target)):
        shutil.copyfile(vocabulary.path, folder / f"dict.{side}.txt")
    allow_fairseq_types()
    torch.save(checkpoint, folder / "model.pt")
    FairseqConverter(str(folder / "model.pt"), str(folder)).convert(str(folder / "converted"))


def tensor_bytes(*things: Any) -> int:
    """Bytes of all the tensors, and weights on the kernels, that some objects hold, each counted once."""
    import torch

    total, seen, waiting = 0, set(), list(things)
    while waiting:
        thing = waiting.pop()
        storage = thing.untyped_storage() if isinstance(thing, torch.Tensor) else None
        key = storage.data_ptr() if storage else id(thing)
        if key in seen or isinstance(thing, type):
            continue
        seen.add(key)
        if storage:
            total += storage.nbytes()
        elif isinstance(thing, list | tuple):
            waiting += thing
        elif isinstance(thing, dict):
            waiting += thing.values()
        elif hasattr(thing, "__dict__"):
            waiting.append(vars(thing))
            total += getattr(thing, "weight_bytes", 0)  # of a product on the kernels
    return total


def peak_memory(device: str = "cpu") -> int:
    """The most bytes that this process had in memory, or PyTorch on a GPU. On Linux ru_maxrss is at least what its parent had, so
    it comes last."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def serve(connection: Connection, system: System, model: str, sources: list[list[int]]) -> None:
    """A worker: answers (decode or memory, threads, batch size, number of sentences), or sends an error, until there is None."""
    import logging

    import torch

    from specdec_plugins.formats.folder import load_folder

    logging.disable(logging.WARNING)  # fairseq tells of packages that nobody asked for
    try:
        pair = load_folder(model)
        built: dict[int, Engine | CTranslate2] = {}
        while (order := connection.recv()) is not None:
            task, threads, batch_size, count = order
            if threads not in built:
                built.clear()
                torch.set_num_threads(threads)
                built[threads] = (CTranslate2 if system.strategy == "ctranslate2" else Engine)(system, pair, threads)
            connection.send(getattr(built[threads], task)(sources[:count], batch_size))
        connection.send(peak_memory(system.device))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):  # nobody asks any more
        pass
    except (ValueError, ImportError, RuntimeError) as error:
        connection.send(error)


class Worker:
    def __init__(self, system: System, model: str, sources: list[list[int]]):
        context = get_context("spawn")
        self.system = system
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, system, model, sources), daemon=True)
        self.process.start()
        theirs.close()

    def decode(self, threads: int, batch_size: int, count: int) -> Run:
        return self._ask(("decode", threads, batch_size, count))

    def memory(self, threads: int, batch_size: int, count: int) -> dict[str, int]:
        return self._ask(("memory", threads, batch_size, count))

    def end(self) -> int:
        """Stop it. Returns its peak memory in bytes."""
        peak = self._ask(None)
        self.process.join()
        return peak

    def _ask(self, order):
        try:
            self.connection.send(order)
            answer = self.connection.recv()
        except (EOFError, BrokenPipeError):
            raise ValueError(f"{self.system.name}: its process died") from None
        if isinstance(answer, Exception):
            raise ValueError(f"{self.system.name}: {answer}")
        return answer


# ---- the run


def run(options: argparse.Namespace) -> None:
    """Measure, and print the tables and the JSON line."""
    import torch

    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    pair = load_folder(options.model)
    if pair.drafter is None:
        options.systems = [name for name in options.systems if name in DRAFTERLESS]
    reader = Translator(pair, Settings(strategy="ar", threads=1))
    text = read(reader, options.input, options.reference, options.sentences)
    tolerance = {"beta": options.beta, "tau": options.tau}
    systems = [
        System(name, dtype, block, device=options.device, **(tolerance if name == "specdec-tolerant" else {}))
        for name in options.systems
        for dtype in (options.dtypes if options.device != "cpu" or not name.startswith("fairseq") else ["float32"])
        for block in (options.block_sizes if name == "specdec" else [None])
    ]
    plan = Plan(options.model, systems, options.batch_sizes, options.threads or thread_choices(options.device), options.rounds)
    measured, _ = measure(plan, text.sources, lambda what, share: say(what))
    say("")

    baseline = next((each for each in measured if each.system.name == "ar float32"), measured[0])
    rows = []
    for each in measured:
        row = summarise(each, baseline.runs[0].outputs)
        if text.references:
            row["bleu"], signature = bleu([reader.text(tokens) for tokens in each.runs[0].outputs], text.references)
        rows.append(row)
    print(table(rows, options.batch_sizes))
    gpu = {} if options.device == "cpu" else {"gpu": torch.cuda.get_device_name(options.device)}
    signed = {
        **machine(),
        **gpu,
        "block_size": pair.block_size,
        "model": options.model,
        "input": options.input,
        "sentences": len(text.sources),
    }
    result = {"benchmark": "specdec-benchmark", "rows": rows, "rounds": options.rounds, "signature": signed}
    if text.references:
        result["bleu_signature"] = signature
    print(json.dumps(result), flush=True)
    if options.plot:
        plot(rows, options.plot)


@dataclass(frozen=True)
class Text:
    """What is translated, in tokens with eos; lines with nothing in them are left out."""

    sources: list[list[int]]
    references: list[str] | None


def read(reader: "Translator", source: str, reference: str | None, count: int | None) -> Text:
    """The first ``count`` lines. Raises ValueError if there is not a reference for each."""
    from specdec_plugins.text.lines import read_lines

    lines = list(read_lines(Path(source)))[:count]
    references = list(read_lines(Path(reference)))[:count] if reference else None
    if references is not None and len(references) != len(lines):
        raise ValueError(f"{source} has {len(lines):,} lines and {reference} has {len(references):,}")
    sources = [reader._encode(index, line, False, "error").tokens for index, line in enumerate(lines)]
    kept = [index for index, tokens in enumerate(sources) if len(tokens) > 1]
    if not kept:
        raise ValueError(f"{source}: nothing to translate")
    return Text([sources[index] for index in kept], [references[index] for index in kept] if references else None)


def thread_choices(device: str = "cpu") -> list[int]:
    if device != "cpu":
        return [1]
    cores = len(os.sched_getaffinity(0))
    return sorted({*(1 << n for n in range(cores.bit_length()) if 1 << n <= cores), cores})


@dataclass(frozen=True)
class Plan:
    """What is measured in one interleaved run."""

    model: str
    systems: Sequence[System]
    batch_sizes: Sequence[int]
    threads: Sequence[int]  # to choose from
    rounds: int


@dataclass(frozen=True)
class Measured:
    """What one system did at one batch size."""

    system: System
    batch_size: int
    threads: int
    runs: list[Run]
    memory: dict[str, int]  # bytes: weights and caches of our own strategies, and the process's peak


def measure(plan: Plan, sources: list[list[int]], progress: Callable[[str, float], None]) -> tuple[list[Measured], list[str]]:
    """Run the systems by turns, by batch size. Returns also why some were left out; raises ValueError if none is left.

    ``progress`` is told what is being done, and what share of everything is.
    """
    steps = itertools.count()
    total = len(plan.systems) * (1 + len(plan.batch_sizes) * plan.rounds)
    workers: dict[System, Worker] = {}
    threads: dict[tuple[System, int], int] = {}
    left_out = []
    for system in plan.systems:
        progress(f"loading {system.name}, and finding its best number of threads", next(steps) / total)
        worker = Worker(system, plan.model, sources)
        try:
            best = {(system, size): best_threads(worker, plan.threads, size) for size in plan.batch_sizes}
        except ValueError as error:
            say("")
            print(f"left out: {error}", file=sys.stderr)
            left_out.append(str(error))
            continue
        workers[system] = worker
        threads |= best
    if not workers:
        raise ValueError("no system is left")

    runs: dict[tuple[System, int], list[Run]] = {key: [] for key in threads}
    for batch_size in plan.batch_sizes:
        for number in range(plan.rounds):
            for system, worker in workers.items():
                progress(f"batch size {batch_size}, round {number + 1} of {plan.rounds}: {system.name}", next(steps) / total)
                worker.decode(threads[system, batch_size], batch_size, PILOT)  # warm
                runs[system, batch_size].append(worker.decode(threads[system, batch_size], batch_size, len(sources)))
    memory = {key: workers[key[0]].memory(threads[key], key[1], len(sources)) for key in runs}
    peaks = {system: worker.end() for system, worker in workers.items()}
    return [
        Measured(system, size, threads[system, size], runs[system, size], {**memory[system, size], "peak": peaks[system]})
        for size, system in itertools.product(plan.batch_sizes, workers)
    ], left_out


def best_threads(worker: Worker, numbers: Sequence[int], batch_size: int) -> int:
    """The number of threads that decodes some sentences fastest, the best of four times by turns; a first one does not count."""
    rounds = [[worker.decode(number, batch_size, max(PILOT, batch_size)).seconds for number in numbers] for _ in range(5)]
    fastest = list(map(min, zip(*rounds[1:])))
    return numbers[fastest.index(min(fastest))]


def say(what: str) -> None:
    """Progress, on one line of a terminal; elsewhere a line each."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr, flush=True)


def summarise(measured: Measured, expected: list[list[str]]) -> dict[str, Any]:
    """One line of the table: medians over the rounds."""
    system, batch_size, found = measured.system, measured.batch_size, measured.runs
    seconds = statistics.median(run.seconds for run in found)
    first = found[0]
    tokens = sum(len(output) + 1 for output in first.outputs)  # with eos, as each system must say it
    spent = sum(first.shares.values()) or 1.0
    row: dict[str, Any] = {
        "system": system.name, "strategy": system.strategy, "dtype": system.dtype, "block_size": system.block,
        "beta": system.beta, "tau": system.tau, "batch_size": batch_size, "threads": measured.threads,
        "lengths": first.lengths, "accepted_lengths": first.accepted_lengths,
        "tokens_per_second": round(tokens / seconds), "sentences_per_second": round(len(first.outputs) / seconds, 1),
        "seconds": [round(run.seconds, 4) for run in found], "tokens": tokens,
        "mean_accepted_length": round(first.mean_accepted_length, 3),
        "acceptance_by_position": [round(rate, 3) for rate in first.acceptance_by_position],
        "time_shares": {name: round(value / spent, 3) for name, value in first.shares.items()},
        "identical": sum(ours == theirs for ours, theirs in zip(first.outputs, expected)), "of": len(expected),
        "peak_memory_mib": round(measured.memory["peak"] / 2**20),
        **{f"{name}_mib": round(measured.memory[name] / 2**20, 2) for name in ("weights", "caches") if name in measured.memory},
    }  # fmt: skip
    if batch_size == 1:
        ordered = sorted(statistics.median(times) for times in zip(*(run.latencies for run in found)))
        for percent in (50, 95, 99):
            row[f"latency_p{percent}_ms"] = round(1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)
    return row


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    return round(metric.corpus_score(hypotheses, [references]).score, 2), str(metric.get_signature())


def table(rows: list[dict[str, Any]], batch_sizes: Sequence[int]) -> str:
    """For people: a block a batch size, the fastest first."""
    lines = []
    width = max(25, *(len(row["system"]) for row in rows))
    for batch_size in batch_sizes:
        titles = ["tokens/s", "spread", "threads", "tokens/pass", "identical", *["BLEU"] * ("bleu" in rows[0]), "peak MiB"]
        titles += ["p50", "p95", "p99 ms"] * (batch_size == 1)
        lines.append(f"batch size {batch_size:<{width - 11}}" + "".join(f"{title:>12}" for title in titles))
        chosen = [row for row in rows if row["batch_size"] == batch_size]
        for row in sorted(chosen, key=lambda row: -row["tokens_per_second"]):
            spread = (max(row["seconds"]) - min(row["seconds"])) / statistics.median(row["seconds"])
            values = [
                f"{row['tokens_per_second']:,}", f"{spread:.0%}", f"{row['threads']}", f"{row['mean_accepted_length']:.2f}",
                f"{row['identical'] / row['of']:.1%}", *[f"{row['bleu']:.2f}" for _ in range("bleu" in row)],
                f"{row['peak_memory_mib']:,}",
            ]  # fmt: skip
            values += [f"{row[f'latency_p{percent}_ms']:.2f}" for percent in (50, 95, 99) if batch_size == 1]
            lines.append(f"{row['system']:{width}}" + "".join(f"{value:>12}" for value in values))
        lines.append("")
    return "\n".join(lines)


def cpu_name() -> str:
    """What the processor calls itself; nothing where Linux does not tell."""
    if not os.path.exists("/proc/cpuinfo"):
        return ""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    versions = {}
    for package in ("torch", "fairseq-fixed", "fairseq", "ctranslate2"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
        **versions,
    }  # fmt: skip


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Tokens a second against batch size, a panel a data type, a line a system; told apart without colour, too."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    dtypes = [dtype for dtype in (*DTYPES, "float16") if any(row["dtype"] == dtype for row in rows)]
    kinds = list(dict.fromkeys((row["strategy"], row["block_size"]) for row in rows))
    sizes = sorted({row["batch_size"] for row in rows})
    figure, panels = pyplot.subplots(
        len(dtypes), figsize=(6, 0.8 + 3.2 * len(dtypes)), layout="constrained", squeeze=False, sharey=True
    )
    lines: dict[str, Any] = {}
    for dtype, axes in zip(dtypes, panels[:, 0]):
        looks = zip(kinds, itertools.cycle("osD^v<>PX*"), itertools.cycle(("-", "--", "-.", ":")))
        for number, (kind, marker, style) in enumerate(looks):
            chosen = [row for row in rows if (row["strategy"], row["block_size"]) == kind and row["dtype"] == dtype]
            if chosen:
                points = zip(*((row["batch_size"], row["tokens_per_second"]) for row in chosen))
                name = kind[0] + (f" K={kind[1]}" if kind[1] and kind[1] != "auto" else "")
                (lines[name],) = axes.plot(*points, style, marker=marker, color=f"C{number}", label=name)
        axes.set(xscale="log", yscale="log", ylabel="tokens a second (log)", title=dtype)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        low, high = axes.get_ylim()
        ticks = [step * 10**power for power in range(7) for step in (1, 2, 5) if low <= step * 10**power <= high]
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("batch size (sentences)")
    figure.legend(lines.values(), lines, loc="outside lower left", ncols=3, fontsize=9)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
