"""The systems that are measured, each in a process of its own: our strategies, fairseq's generator, CTranslate2.

A process of its own keeps one system's idle threads out of another's way, and its memory apart. Times are of decoding alone:
sources are token numbers, and outputs are put together afterwards. Loads torch only in those processes.
"""

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from specdec_plugins.measure.machine import peak_memory, tensor_bytes
from specdec_plugins.workers import Worker

if TYPE_CHECKING:
    from specdec_plugins.decoding.values import Hypothesis
    from specdec_plugins.formats.folder import Pair

SYSTEMS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar", "specdec", "specdec-tolerant", "drafter")
DRAFTERLESS = ("fairseq", "fairseq-beam5", "ctranslate2", "ar")
DTYPES = ("float32", "bfloat16", "int8")
GPU_DTYPES = ("float32", "bfloat16", "float16")
POSITIONS = 64  # of a draft, the first of which are counted one by one
Sources = Sequence[list[int]]  # token numbers with eos


@dataclass(frozen=True)
class System:
    """One way to decode. ``name`` is what tables call it."""

    strategy: str
    dtype: str
    block: str | None = None  # tokens, or auto; None: the model's, or not used
    beta: int = 1
    tau: float | None = None  # nats; None: exact, or not used
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
    shares: dict[str, float] = field(default_factory=dict)  # seconds drafting, verifying, encoding, elsewhere
    mean_accepted_length: float = 1.0
    acceptance_by_position: list[float] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)  # passes by draft length
    accepted_lengths: dict[int, int] = field(default_factory=dict)  # passes of a row, by the tokens that they committed


class Decoder(Protocol):
    """A loaded system.

    ``memory`` returns bytes of ``weights``, ``caches`` and, on a GPU, ``recordings``, or nothing where it cannot be known.
    """

    def decode(self, sources: Sources, batch_size: int) -> Run: ...

    def memory(self, sources: Sources, batch_size: int) -> dict[str, int]: ...


class SystemProcess:
    """A system in its process, as seen from the parent. Raises ValueError naming the system for whatever goes wrong there."""

    def __init__(self, system: System, model: str, sources: Sources):
        self.system = system
        self.worker = Worker(0, partial(SystemServer, system, model, sources))
        self.ready = False

    def decode(self, threads: int, batch_size: int, count: int) -> Run:
        """Decode the first ``count`` sources."""
        return self._ask(Order("decode", threads, batch_size, count))

    def memory(self, threads: int, batch_size: int, count: int) -> dict[str, int]:
        """Bytes of weights, caches and recorded passes."""
        return self._ask(Order("memory", threads, batch_size, count))

    def peak(self) -> int:
        """The most bytes that the process has held so far."""
        return self._ask(None)

    def stop(self) -> None:
        self.worker.stop()

    def _ask(self, order: "Order | None") -> Any:
        try:
            if not self.ready:
                self.worker.receive()
                self.ready = True
            return self.worker.ask(order)
        except ValueError as error:
            raise ValueError(f"{self.system.name}: {error}") from None


class Order(NamedTuple):
    """What a `SystemServer` is to do with its first ``sentences`` sources."""

    task: str  # decode or memory
    threads: int
    batch_size: int
    sentences: int


class SystemServer:
    """Answers orders in the process of a system. It is loaded again where another number of threads is asked for."""

    def __init__(self, system: System, model: str, sources: Sources, number: int):
        from specdec_plugins.formats.folder import load_folder

        logging.disable(logging.WARNING)  # fairseq warns of packages that are not needed here
        self.system, self.sources = system, sources
        self.pair = replace(load_folder(model), codes=None)  # sources are tokens already
        self.threads: int | None = None
        self.decoder: Decoder | None = None

    def __call__(self, order: Order | None) -> Any:
        """Do what is ordered; without an order tell the peak memory in bytes."""
        import torch

        if order is None:
            return peak_memory(self.system.device)
        try:
            if order.threads != self.threads or self.decoder is None:
                self.decoder = None  # frees its memory before the next one is built
                torch.set_num_threads(order.threads)
                build = CTranslate2 if self.system.strategy == "ctranslate2" else Engine
                self.decoder, self.threads = build(self.system, self.pair, order.threads), order.threads
            return getattr(self.decoder, order.task)(self.sources[: order.sentences], order.batch_size)
        except (ImportError, RuntimeError) as error:  # a data type or a device that the system lacks, or too little memory
            raise ValueError(str(error)) from None


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

    def decode(self, sources: Sources, batch_size: int) -> Run:
        self.translator.take_stats()
        seconds, latencies, hypotheses = timed(self.translator.translate_tokens, sources, batch_size)
        stats = self.translator.take_stats()
        rates, committed = count_steps(hypotheses)
        return Run(
            seconds, latencies, [self.translator.words(hypothesis.tokens) for hypothesis in hypotheses],
            {name: spent for name, spent in stats.seconds.items() if name != "text"}, stats.mean_accepted_length, rates,
            dict(sorted(stats.lengths.items())), committed,
        )  # fmt: skip

    def memory(self, sources: Sources, batch_size: int) -> dict[str, int]:
        """Bytes of the weights, of keys and values when the longest sources have been decoded together, and of recordings."""
        if self.translator.settings.strategy == "fairseq":
            return {}
        session = self.translator.session(batch_size)
        for index, source in enumerate(sorted(sources, key=len)[-batch_size:]):
            session.submit(self.translator.request(index, source))
        while not session.idle:
            session.step()
        runner = getattr(getattr(self.translator.roles.verifier, "model", None), "runner", None)
        held = getattr(runner, "held", None)  # 0: a GPU that runs eagerly
        recordings = {} if held is None else {"recordings": held}
        return {"weights": self.weights, "caches": tensor_bytes(session.verifying, session.drafting), **recordings}


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

    def decode(self, sources: Sources, batch_size: int) -> Run:
        tokens = [self.pair.source.decode(source[:-1]).split() for source in sources]

        def translate(batch: Sequence[list[str]], size: int) -> list[Any]:
            return self.translator.translate_batch(list(batch), max_batch_size=size, beam_size=1, max_decoding_length=200)

        seconds, latencies, found = timed(translate, tokens, batch_size)
        return Run(seconds, latencies, [each.hypotheses[0] for each in found])

    def memory(self, sources: Sources, batch_size: int) -> dict[str, int]:
        """It does not tell."""
        return {}


def timed(
    decode: Callable[[Sequence[Any], int], list[Any]], sources: Sequence[Any], batch_size: int
) -> tuple[float, list[float], list[Any]]:
    """Seconds in all, seconds of each source (only at batch size 1, where they are decoded one by one), and the outputs."""
    outputs, latencies = [], []
    began = time.perf_counter()
    if batch_size > 1:
        outputs = decode(sources, batch_size)
    else:
        for source in sources:
            start = time.perf_counter()
            outputs += decode([source], 1)
            latencies.append(time.perf_counter() - start)
    return time.perf_counter() - began, latencies, outputs


def count_steps(hypotheses: Iterable["Hypothesis"]) -> tuple[list[float], dict[int, int]]:
    """The acceptance rate by position in the draft, and the number of steps by the tokens that they committed."""
    offered, accepted, committed = [0] * POSITIONS, [0] * POSITIONS, Counter[int]()
    for step in (step for hypothesis in hypotheses for step in hypothesis.steps):
        committed[step.accepted + (step.own is not None)] += 1
        for position in range(min(POSITIONS, len(step.drafted))):
            offered[position] += 1
            accepted[position] += step.accepted > position
    rates = [passed / offers for passed, offers in zip(accepted, offered) if offers]
    return rates, dict(sorted(committed.items()))


def convert(pair: "Pair", folder: Path) -> None:
    """Write the verifier for CTranslate2 into ``folder/converted``, by way of a fairseq checkpoint."""
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
