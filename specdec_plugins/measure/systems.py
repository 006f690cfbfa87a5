"""The measured systems, as loaded in a process: our strategies, fairseq's generator, CTranslate2.

Only decoding is timed: sources are token ids, and outputs are assembled afterwards.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_plugins.extras import needed
from specdec_plugins.measure.machine import Mix

if TYPE_CHECKING:
    from specdec_plugins.decoding.requests import Hypothesis
    from specdec_plugins.formats.folder import Pair

SYSTEMS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar", "specdec", "specdec-tolerant", "drafter")
DRAFTERLESS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar")
DTYPES = ("float32", "bfloat16", "int8", "int4")
OURS = "int4"  # a data type that no peer has
KINDS = ("latency", "throughput")
GPU_DTYPES = ("float32", "bfloat16", "float16")
POSITIONS = 64  # of a draft, counted separately
Sources = Sequence[list[int]]  # token ids with eos


@dataclass(frozen=True)
class System:
    """One way to decode."""

    strategy: str
    dtype: str
    block: str | None = None  # tokens, or auto; None: the model's, or not used
    beta: int = 1
    tau: float | None = None  # nats; None: exact, or not used
    device: str = "cpu"
    kernels: str | None = None  # the instruction set that our kernels are compiled for; None: the best

    @property
    def name(self) -> str:
        if self.strategy.startswith("fairseq") and self.dtype == "float32":
            return self.strategy
        tolerance = "" if self.tau is None else f" beta={self.beta} tau={self.tau:g}"
        return f"{self.strategy} {self.dtype}" + (f" K={self.block}" if self.block else "") + tolerance


@dataclass(frozen=True)
class Run:
    """One pass over the sources: seconds in total and per sentence (latency), outputs in subwords, counts, memory."""

    seconds: float
    latencies: list[float]
    outputs: list[list[str]]
    phases: Counter[str] = field(default_factory=Counter)  # seconds drafting, verifying, encoding, elsewhere
    drafted: Counter[int] = field(default_factory=Counter)  # tokens by position in the draft
    accepted: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # passes by draft length
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # row passes by committed tokens
    peak: int = 0  # bytes of memory so far
    kernels: str | None = None  # that ran; None: others' code

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per row pass, with the verifier's own; 1.0 where passes are unknown."""
        passes = self.accepted_lengths.total()
        return sum(length * number for length, number in self.accepted_lengths.items()) / passes if passes else 1.0

    @property
    def acceptance_by_position(self) -> list[float]:
        return [self.accepted[position] / number for position, number in sorted(self.drafted.items())]


class Order(NamedTuple):
    """A task for a process: decode some of its sources."""

    kind: str  # latency: one call per sentence; throughput: one call for all
    batch_size: int
    sources: list[int]  # indices
    start: float = 0.0  # time.monotonic, shared by all processes; nobody starts earlier


class OwnSystem:
    """Our strategies, and fairseq's generator."""

    def __init__(self, system: System, pair: "Pair", mix: Mix, sources: Sources):
        from specdec_plugins.settings import Settings
        from specdec_plugins.translator import engine_of

        settings: dict[str, Any] = {
            "strategy": system.strategy.split("-")[0],
            "dtype": system.dtype,
            "threads": mix.threads,
            "device": system.device,
        }
        if settings["strategy"] != "fairseq":
            settings["kernels"] = system.kernels
        if system.strategy != "drafter":
            settings["beam"] = 5 if system.strategy == "fairseq-beam5" else 1
        if system.tau is not None:
            settings.update(beta=system.beta, tau=system.tau)
        if system.block:
            settings["block_size"] = system.block if system.block == "auto" else int(system.block)
        self.sources, self.engine = sources, engine_of(pair, Settings(**settings))
        self.kernels = kernels.library.name if (kernels := self.engine.kernels) else None

    def decode(self, order: Order) -> Run:
        self.engine.take_stats()
        sources = [self.sources[index] for index in order.sources]
        seconds, latencies, hypotheses = timed(self.engine.generate, sources, order)
        stats = self.engine.take_stats()
        outputs = [self.engine.pair.target.tokens(hypothesis.tokens) for hypothesis in hypotheses]
        drafted, accepted, committed = count_steps(hypotheses)
        return Run(
            seconds,
            latencies,
            outputs,
            Counter(stats.seconds),
            drafted,
            accepted,
            stats.lengths,
            committed,  # type: ignore[arg-type]
            kernels=self.kernels,
        )


class CTranslate2:
    """The same verifier, converted; greedy, with fairseq's length limit. Its workers are translators in one process, which share
    a text's batches, sorted by length."""

    def __init__(self, system: System, pair: "Pair", mix: Mix, sources: Sources):
        limit_peers(system.kernels)
        self.sources = [pair.source.tokens(source[:-1]) for source in sources]
        self.translator = ctranslate2_of(pair, system.dtype, mix.threads, mix.workers, system.device)

    def decode(self, order: Order) -> Run:
        def translate(batch: list[list[str]], size: int) -> list[Any]:
            return self.translator.translate_batch(batch, max_batch_size=size, beam_size=1, max_decoding_length=200)

        seconds, latencies, found = timed(translate, [self.sources[index] for index in order.sources], order)
        return Run(seconds, latencies, [each.hypotheses[0] for each in found])


def timed(
    decode: Callable[[list[Any], int], list[Any]], sources: list[Any], order: Order
) -> tuple[float, list[float], list[Any]]:
    """Seconds since the order's start (late workers lose time), seconds per source (latency), and the outputs."""
    outputs, latencies = [], []
    time.sleep(max(0.0, order.start - time.monotonic()))
    if order.kind == "throughput":
        outputs = decode(sources, order.batch_size)
    else:
        for source in sources:
            began = time.perf_counter()
            outputs += decode([source], 1)
            latencies.append(time.perf_counter() - began)
    return time.monotonic() - order.start, latencies, outputs


def count_steps(hypotheses: Iterable["Hypothesis"]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Drafted and accepted tokens by position in the draft, and steps by committed tokens."""
    drafted, accepted, committed = Counter[int](), Counter[int](), Counter[int]()
    for step in (step for hypothesis in hypotheses for step in hypothesis.steps):
        committed[step.accepted + (step.own is not None)] += 1
        drafted.update(range(min(POSITIONS, len(step.drafted))))
        accepted.update(range(min(POSITIONS, step.accepted)))
    return drafted, accepted, committed


# What keeps other programs from using more than AVX2: CTranslate2 and its products (MKL, oneDNN), Marian
PEERS_ON_AVX2 = {
    "CT2_FORCE_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "INTGEMM_CPUID": "AVX2",
}


def limit_peers(kernels: str | None) -> None:
    """Keep CTranslate2 and Marian, which this process has not loaded yet, to AVX2 if our kernels are."""
    if kernels == "avx2":
        os.environ.update(PEERS_ON_AVX2)


def ctranslate2_of(pair: "Pair", dtype: str, threads: int, workers: int = 1, device: str = "cpu") -> Any:
    """CTranslate2's translator with the pair's verifier; ``threads`` for each of its ``workers``. Raises ValueError for int4."""
    if dtype == OURS:
        raise ValueError(f"ctranslate2 {dtype}: it has no such weights")
    with needed("bench", "system ctranslate2"):
        import ctranslate2
    import torch

    place = torch.device(device)
    with tempfile.TemporaryDirectory() as folder:
        convert(pair, Path(folder))
        return ctranslate2.Translator(
            f"{folder}/converted",
            device=place.type,
            device_index=place.index or 0,
            compute_type=dtype,
            inter_threads=workers,
            intra_threads=threads,
        )


def convert(pair: "Pair", folder: Path) -> None:
    """Write the verifier for CTranslate2 to ``folder/converted``, via a fairseq checkpoint."""
    from ctranslate2.converters import FairseqConverter

    with needed("train", "converting for CTranslate2"):
        from fairseq.models import ARCH_CONFIG_REGISTRY

    from specdec_plugins.formats.checkpoint import allow_fairseq_types, save
    from specdec_plugins.formats.to_fairseq import checkpoint_of
    from specdec_plugins.text.vocabulary import SPECIAL

    content = checkpoint_of(pair.verifier)
    args = content["args"]
    args.task, args.left_pad_source, args.left_pad_target = "translation", True, False
    args.source_lang, args.target_lang = "source", "target"
    ARCH_CONFIG_REGISTRY[args.arch](args)
    for side, vocabulary in (("source", pair.source), ("target", pair.target)):
        symbols = vocabulary.symbols[len(SPECIAL) :]
        text = "".join(f"{symbol} 1 #fairseq:overwrite\n" for symbol in symbols)
        (folder / f"dict.{side}.txt").write_text(text, encoding="utf-8")
    allow_fairseq_types()
    save(content, folder / "model.pt")
    FairseqConverter(str(folder / "model.pt"), str(folder)).convert(str(folder / "converted"))
