"""Decoding on a GPU, with CUDA graphs: ``pytest -m gpu``, which needs torch but not fairseq.

Elsewhere the same tests run on a CPU, with tapes in place of CUDA graphs.
"""

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from conftest import ROOT
from random_pair import Shape, random_pair
from support import EOS, Lengths, decode
from tapes import Tapes, Transfers

from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER, GRAPH_BYTES, Eager, Recorder, cuda_graphs
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import load_pair
from specdec_plugins.decoding.loading import COPY, DRAFT_VOCABULARY, SUCCESSOR, drafter_shapes
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import load_folder, with_drafter
from specdec_plugins.formats.spec import DrafterModel

DTYPES = ["float32", pytest.param("float16", marks=pytest.mark.long), "bfloat16"]
# Nats that rounding may move the difference of two logits by: some units in the last place of a logit of 16.
ROUNDING = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
GPU_ONLY = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU_ONLY)])
def device(request):
    return request.param


def recorder(device, **options):
    return Tapes(**options) if device == "cpu" else Recorder(cuda_graphs(device), **options)


class Rounding(Eager):
    """Runs passes eagerly, but in the sizes of recordings, so that they round alike."""

    round = Recorder.round


# ---- pairs


@cache
def tiny(code):
    """A random pair; the drafter ``code``, unless it is `glide`, has the verifier's layers, so a causal one predicts the next
    token."""
    shape = Shape(layers=2, drafter_layers=2, width=32, inner=64, heads=4, vocabulary=60, drafted=0.8)
    verifier, drafter = random_pair(shape)
    generator = torch.Generator().manual_seed(2)
    moved = {name: each for name, each in verifier.tensors.items() if name.startswith("decoder.") and each.dim() == 1}
    for name, each in moved.items():  # so that not every token follows itself for ever
        moved[name] = each + torch.randn(each.shape, generator=generator)
    verifier = replace(verifier, tensors={**verifier.tensors, **moved})
    if code == "glide":
        return verifier, drafter
    options = {"source_copy": True} if code == "block" else {"successor_width": 16}
    width = verifier.spec.decoder.width
    named = {COPY: (width, width)} if code == "block" else {f"{SUCCESSOR}.out.weight": (width, 16)}
    shapes = drafter_shapes({name: torch.empty(size) for name, size in named.items()}, width)
    own = {name: torch.randn(size, generator=generator) / 32 for name, size in shapes.items()}
    own |= {DRAFT_VOCABULARY: drafter.tensors[DRAFT_VOCABULARY]} if code == "block_causal" else {}
    return verifier, DrafterModel(code, {**verifier.tensors, **own}, verifier.spec, options, 8)


def tiny_sources(count):
    generator = torch.Generator().manual_seed(5)
    sizes = torch.randint(1, 34, (count,), generator=generator).tolist()
    return [[*torch.randint(4, 60, (size,), generator=generator).tolist(), EOS] for size in sizes]


@cache
def demo(code):
    pytest.importorskip("safetensors", reason="the shipped pair needs safetensors")
    pair = with_drafter(load_folder(ROOT / "data" / "demo.en-de"), code)
    lines = (ROOT / "data" / "demo.bpe").read_text(encoding="utf-8").splitlines()
    return (pair.verifier, pair.drafter), [[*pair.source.ids(line.split()), pair.verifier.spec.symbols.eos] for line in lines]


def loaded(pair, device, dtype, runner):
    """Verifier and drafter of a pair, as roles on PyTorch."""
    completed = drafters.as_transformer(pair[1], pair[0])
    verifier, drafter = (TorchModel(each, runner) for each in load_pair(pair[0], completed, device, getattr(torch, dtype)))
    return ModelVerifier(verifier), drafters.find(pair[1].code).build(pair[1], drafter, verifier)


def tokens(hypotheses):
    return [hypothesis.tokens for hypothesis in hypotheses]


# ---- recordings


RECORDED = [("block", "float32"), ("block_causal", "bfloat16"), ("glide", "float32")]  # a tape is slow; a GPU takes them all
OTHERS = sorted(set(product(("block", "block_causal", "glide"), ("float32", "float16", "bfloat16"))) - set(RECORDED))


@pytest.mark.parametrize(("code", "dtype"), [*RECORDED, *(pytest.param(*each, marks=pytest.mark.long) for each in OTHERS)])
def test_recorded_passes_are_eager_passes(code, dtype, device):
    """Tokens and scores, plain and drafted, in batches that grow and shrink again."""
    count, most = (10, 20) if device == "cuda" else (6, 12)
    sources, limits = tiny_sources(count), [4 + 3 * index % most for index in range(count)]
    found = []
    for runner in (Rounding(), recorder(device)):
        roles = loaded(tiny(code), device, dtype, runner)
        found.append(
            [
                decode(*roles, sources, limits, block, rows, device=device)
                for block, rows in ((5, 1), ([3, 0, 7], 9), (0, 4), (5, 1))
            ]
        )
    assert runner.record is not None and len(runner.known) > 10, "it gave up recording"
    for (eager, counts), (recorded, others) in zip(*found):
        assert tokens(recorded) == tokens(eager) and counts.lengths == others.lengths and counts.accepted == others.accepted
        for one, two in zip(eager, recorded):
            assert one.token_scores == pytest.approx(two.token_scores, abs=1e-4)
    assert code != "block_causal" or sum(counts.accepted for _, counts in found[0]) > 20


def test_recordings_leave_when_memory_is_short(device):
    """Including a recording that the GPU is about to replay."""
    sources, limits = tiny_sources(6), [12] * 6
    expected = tokens(
        decode(*loaded(tiny("block_causal"), device, "float32", Rounding()), sources, limits, 4, 4, device=device)[0]
    )
    runner = recorder(device, most=2 * GRAPH_BYTES)
    roles = loaded(tiny("block_causal"), device, "float32", runner)
    for _ in range(2):
        assert tokens(decode(*roles, sources, limits, 4, 4, device=device)[0]) == expected
    assert runner.record is not None and len(runner.known) <= 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_what_cannot_be_recorded_runs_eagerly(caplog):
    """A pass that reads a number cannot be recorded; decoding continues without recordings."""
    device = "cuda"

    def function(x):
        return {"y": x * x.sum().item()}

    runner, before = recorder(device), torch.cuda.current_stream()
    with torch.inference_mode():  # as the engine does; older versions of PyTorch cannot record in both ways in one process
        for number in range(3):
            assert (
                runner.run(function, {"x": torch.full((2,), float(number), device=device)})["y"].tolist() == [2.0 * number**2] * 2
            )
    assert len(caplog.records) == 1 and "without CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == before and not torch.cuda.is_current_stream_capturing()


# ---- exactness


def test_in_float64_the_output_is_that_of_a_cpu(device):
    count = 12 if device == "cuda" else 6
    sources, limits = tiny_sources(count), [4 + 3 * index % 20 for index in range(count)]
    plain = loaded(tiny("block_causal"), "cpu", "float64", EAGER)
    expected = tokens(decode(*plain, sources, limits, 0, 8)[0])
    roles = loaded(tiny("block_causal"), device, "float64", recorder(device))
    for block, rows in ((0, 1), (5, 1), (0, 12), (5, 12), ([1, 0, 9], 7)):
        assert tokens(decode(*roles, sources, limits, block, rows, device=device)[0]) == expected


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [("float32", 1), ("bfloat16", 32)]
    + [
        pytest.param(*each, marks=pytest.mark.long)
        for each in (("float32", 32), ("bfloat16", 1), ("float16", 1), ("float16", 32))
    ],
)
@pytest.mark.parametrize("code", ["glide", "block_causal"])
def test_exact_decoding_is_ar_decoding(dtype, rows, code, device):
    """Except at near ties: a wider pass rounds differently."""
    pair, sources = demo(code)
    sources = sources * (rows // 16 or 1) if device == "cuda" else sources[::4]
    limits = [60] * len(sources)
    roles = loaded(pair, device, dtype, recorder(device) if device == "cuda" else EAGER)
    plain = tokens(decode(*roles, sources, limits, 0, rows, device=device)[0])
    judge, differing = loaded(pair, "cpu", "float64", EAGER)[0], 0
    for block in (1, 4, 8):
        drafted, stats = decode(*roles, sources, limits, block, rows, device=device)
        for source, one, two in zip(sources, plain, tokens(drafted)):
            differing += one != two
            assert one == two or gap(judge, source, one, two) <= ROUNDING[dtype]
        assert stats.accepted > 0.4 * stats.committed, "drafts of the shipped pair are mostly accepted"
    print(f"{device}, {code}, {dtype}, batches of {rows}: {differing} of {3 * len(sources)} outputs differ from ar, at ties")


def gap(verifier, source, one, two):
    """Where two outputs first differ: the worse token's distance from the verifier's best, in nats, by float64 scores."""
    one, two = [*one, EOS], [*two, EOS]
    same = next(place for place, (a, b) in enumerate(zip(one, two)) if a != b)
    state = verifier.start(1)
    verifier.admit(state, Source([source], verifier.model.spec.symbols))
    read = [verifier.model.spec.symbols.start, *one[:same]]
    logits = tensor(verifier.model.read(state, Reading([read], [0], [same])).logits())[0, -1]
    return (logits.max() - logits[[one[same], two[same]]].min()).item()


# ---- waiting


@contextmanager
def waits(device):
    """Yields a function that returns the number of host waits so far: on a GPU, as PyTorch reports them."""
    if device == "cpu":
        with Transfers() as mode:
            yield lambda: mode.count
        return
    with ExitStack() as stack:
        seen = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        stack.callback(torch.cuda.set_sync_debug_mode, before)
        torch.cuda.set_sync_debug_mode("warn")
        yield lambda: sum("synchronizing CUDA operation" in str(each.message) for each in seen)


def test_waits_are_counted(device):
    """Without which the next test could not fail."""
    x = torch.ones(3, device=device)
    with waits(device) as count:
        before = count()
        x.tolist()
        assert count() == before + 1
        if x.sum() > 0:
            assert count() == before + 2
        after = count()
        (x + 1).clone()
        torch.tensor([1, 2]).to(device, non_blocking=True)
        assert count() == after


@pytest.mark.parametrize("code", ["block", "block_causal", "glide"])
@pytest.mark.parametrize(("block", "beta"), [([0], 1), ([5], 1), ([5], 3), ([0, 0, 5, 0], 1)])
def test_an_iteration_waits_once(code, block, beta, device):
    """For the verdict, also where requests join and leave, and some are encoded for the drafter only after they have moved.
    On a GPU recordings wait, too: memory grows in the first run, the second run records, the third replays."""
    verifier, drafter = loaded(tiny(code), device, "float32", recorder(device) if device == "cuda" else EAGER)
    for _ in range(3 if device == "cuda" else 1):
        rule, lengths = TopBetaTau(beta, 2.0), Lengths(block)
        session = Session(Roles(drafter, verifier, rule, lengths), BoundedAdmission(4), 4, device=device)
        for index, source in enumerate(tiny_sources(12)):
            session.submit(Request(index, source, 6 + index % 5, no_repeat=index % 3))
        counts = []
        with waits(device) as count:
            while not session.idle:
                before = count()
                session.step()
                counts.append(count() - before)
        del session  # its caches are for the next one, with what was recorded on them
    assert len(counts) > 5 and set(counts) == {1}


def test_a_gpu_books_its_time(device):
    """The phases add up to the run's time."""
    roles = loaded(tiny("block_causal"), device, "float32", recorder(device))
    _, stats = decode(*roles, tiny_sources(12), [12] * 12, 4, 4, device=device)
    assert {name for name, seconds in stats.seconds.items() if seconds > 0} >= {"encoding", "drafting", "verifying"}
