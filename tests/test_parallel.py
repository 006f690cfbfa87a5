"""Several ranks give what one process gives, and end when one of them does."""

import itertools
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support import Lengths, Tilted, check_balance

from specdec_plugins.commands import translate
from specdec_plugins.commands.runner import REMOVED
from specdec_plugins.decoding import drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.assembly import assemble_part
from specdec_plugins.decoding.backends.reading import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.parallel import obstacles
from specdec_plugins.decoding.backends.torch.transformer import Transformer, load_pair
from specdec_plugins.decoding.drafters import PairFacts
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.options import Budget, Sampling, Tree
from specdec_plugins.decoding.ranks import LedAdmission, LedController, RankLost, Ranks, all_ranks, part
from specdec_plugins.decoding.roles import NoDrafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Request, Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.measure.random_pair import Shape, random_pair
from specdec_plugins.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DEATH = 10.0  # seconds in which a run ends when a rank dies, of which less than one is not due to a busy machine
TORCHRUN = 40.0  # and those in which torchrun then ends: it gives the ranks 30
NEAR = 1e-5  # a near-tie: nats between two tokens, in float64, of which float32 may take either
COMMAND = "--model", "data/demo.en-de", "--tokenized", "--quiet"

# ---- ranks


def serve(rank, size, port, connection, function, arguments):
    """A rank, as torchrun would start it."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    connection.send(function(*arguments))


@contextmanager
def started(size, function, *arguments):
    """The processes of so many ranks that call a function, and the pipes that their results come by."""
    context = multiprocessing.get_context("forkserver")  # which imports these once
    context.set_forkserver_preload(["pytest", "specdec_plugins.translator", "specdec_plugins.measure.random_pair"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    given = [(rank, size, port, sender, function, arguments) for rank, (_, sender) in enumerate(pipes)]
    ranks = [context.Process(target=serve, args=each, daemon=True) for each in given]
    try:
        for process, (_, sender) in zip(ranks, pipes):
            process.start()
            sender.close()
        yield ranks, [receiver for receiver, _ in pipes]
    finally:
        for process in ranks:
            process.kill()
            process.join()


def results_of(size, function, *arguments):
    """What a function returns on each of so many ranks."""
    with started(size, function, *arguments) as (_, pipes):
        assert all(pipe.poll(300) for pipe in pipes)
        return [pipe.recv() for pipe in pipes]


# ---- models

EVEN = Shape(
    layers=2, drafter_layers=1, width=16, inner=24, heads=4, vocabulary=24, successor_width=7, block_size=4, positions=64
)
UNEVEN = replace(EVEN, width=20, inner=27, heads=5, vocabulary=23, successor_width=0)  # of 2 ranks, and of 4


def pair_of(shape, seed, twins=False, copying=False):
    """A pair every weight of which matters. With ``twins`` each token after the symbols has one that means next to the same; with
    ``copying`` the drafter is the published one, with source copy."""
    generator = torch.Generator().manual_seed(seed)
    verifier, drafter = random_pair(shape, seed)
    moved = {}
    for tensor in [*verifier.tensors.values(), *drafter.tensors.values()]:
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
            if twins and tensor.shape == (shape.vocabulary, shape.width):
                rows = moved[id(tensor)]
                rows[5::2] = rows[4:-1:2] * (1 + 2e-7)
    verifier, drafter = (
        replace(model, tensors={name: moved[id(tensor)] for name, tensor in model.tensors.items()})
        for model in (verifier, drafter)
    )
    if copying:
        tensors = {name: tensor for name, tensor in drafter.tensors.items() if "successor" not in name}
        tensors["decoder.copy_attn.weight"] = torch.randn(shape.width, shape.width, generator=generator)
        drafter = DrafterModel("block", tensors, drafter.spec, {"source_copy": True}, shape.block_size)
    return verifier, drafter


def tilt_of(shape, seed, twins):
    """See `make_tilt`; twins are tilted alike."""
    tilt = 2 * torch.randn(shape.positions, shape.vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tilt[:, 2] += 1.0
    if twins:
        tilt[:, 5::2] = tilt[:, 4:-1:2]
    return tilt


@dataclass(frozen=True)
class Case:
    """What is decoded, and how; ``drafter`` is None, "model", "source copy" or one without weights."""

    shape: Shape = EVEN
    seed: int = 0
    drafter: str | None = "model"
    drafter_ranks: int = 1
    sampling: Sampling | None = None
    tree: int | None = None
    dtype: str = "float64"
    twins: bool = False
    count: int = 6


class Erratic(Lengths):
    """Plans that no two processes share."""

    def __init__(self, tree):
        chance = random.Random(time.time_ns() + os.getpid())
        super().__init__((chance.randrange(5) for _ in itertools.count()), tree=tree and Tree(tree))


def sources_of(case):
    chance = random.Random(case.seed)
    return [[*(chance.randrange(4, case.shape.vocabulary) for _ in range(chance.randrange(9))), 2] for _ in range(case.count)]


def decode(case, ranks=None):
    """Of each source the tokens, the scores and, on one rank and on many, the same steps where nothing is planned at random.

    One process plans 3 tokens a pass, and ranks what comes to the mind of rank 0.
    """
    verifier, drafter = pair_of(case.shape, case.seed, case.twins, case.drafter == "source copy")
    weights = drafter if case.drafter in ("model", "source copy") else None
    if ranks is None:
        models = load_pair(verifier, weights, dtype=getattr(torch, case.dtype))
        verifying = ModelVerifier(TorchModel(models[0]))
        build = drafters.find(weights.code).build if weights else lambda *_: NoDrafter()
        inner = drafting = build(weights, models[1] and TorchModel(models[1]), verifying.model)
    else:
        drafting, verifying = assemble_part(ranks, case.drafter_ranks, verifier, weights, "cpu", case.dtype)
        inner = drafting.drafter if weights else drafting
    whole = verifying.model
    tilt = tilt_of(case.shape, case.seed, case.twins)
    verifying.model = Tilted(whole, tilt)
    if hasattr(inner, "model"):
        inner.model = Tilted(inner.model, tilt)
    if case.drafter in ("window", "ngram"):
        facts = PairFacts(verifier.spec.symbols, [], "", case.shape.vocabulary, verifier=verifying.model, budget=Budget(4, 1))
        facts = replace(facts, copies=range(case.shape.vocabulary))
        drafting = drafters.without_weights(case.drafter, facts)
    controller = Lengths([3], tree=case.tree and Tree(case.tree))
    admission = BoundedAdmission(4)
    if ranks is not None:
        controller, admission = LedController(Erratic(case.tree), ranks), LedAdmission(admission, ranks)
    requests = [
        Request(index, tokens, 9, sampling=case.sampling, seeds=[case.seed + index])
        for index, tokens in enumerate(sources_of(case))
    ]
    stats = DecodeStats()
    session = Session(drafting, verifying, TopBetaTau(), controller, admission, 4, stats=stats)
    found = sorted(session.run(requests), key=lambda hypothesis: hypothesis.index)
    if not case.tree:
        check_balance(stats, found)
    width = session.verifying.cache.data.size(3)
    return [(each.tokens, each.token_scores) for each in found], stats.accepted, width


def decode_all(cases):
    return [decode(case, all_ranks()) for case in cases]


COUPLED, REJECTION = Sampling(), Sampling(rule="rejection")
CASES = [
    Case(drafter=None),
    Case(UNEVEN, 1, drafter=None),
    Case(),
    Case(UNEVEN, 1),
    Case(drafter_ranks=2),
    Case(seed=2, tree=6),
    Case(seed=3, sampling=COUPLED),
    Case(UNEVEN, 4, sampling=COUPLED, drafter_ranks=2),
    Case(drafter="source copy"),
    Case(seed=5, drafter="window"),
    Case(seed=6, drafter="ngram"),
]


def check(cases, size):
    """Every rank has the tokens of one process and the scores of all others, and its part of the cache."""
    ranks, drafts_passed = results_of(size, decode_all, cases), 0
    for number, case in enumerate(cases):
        expected, *_ = decode(case)
        found = [results[number] for results in ranks]
        assert all(each[:2] == found[0][:2] for each in found), case  # the same bits
        outputs, accepted, _ = found[0]
        assert [tokens for tokens, _ in outputs] == [tokens for tokens, _ in expected], case
        for (_, one), (_, other) in zip(outputs, expected):
            assert one == pytest.approx(other, abs=1e-9)
        drafts_passed += accepted
        head = 2 * case.shape.width // case.shape.heads
        heads = [len(range(*part(case.shape.heads, rank, size))) for rank in range(size)]
        assert [each[2] for each in found] == [head * count for count in heads] and sum(heads) == case.shape.heads
    assert drafts_passed > 0


FOUR_RANKS = pytest.param(4, [CASES[1], CASES[2], CASES[7]], marks=pytest.mark.long)


@pytest.mark.parametrize("size, cases", [(1, CASES[2:3]), (2, CASES), FOUR_RANKS])
def test_ranks_give_the_tokens_of_one(size, cases):
    check(cases, size)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_give_the_tokens_of_one_of_many_models(size):
    how = [{"drafter": None}, {}, {"drafter_ranks": 2}, {"sampling": COUPLED}, {"tree": 7}]
    seeds = range(10, 10 + 12 // size)  # ranks beyond the cores take much longer
    check([Case(shape, seed, **each) for seed in seeds for shape in (EVEN, UNEVEN) for each in how], size)


# ---- rejection sampling: what is drawn depends on the plan, so ranks draft as one process does


def decode_rejecting(case):
    ranks = all_ranks() if "RANK" in os.environ else None
    verifier, drafter = pair_of(case.shape, case.seed)
    assembled = assemble_part(ranks, case.drafter_ranks, verifier, drafter, "cpu", case.dtype) if ranks else None
    if assembled is None:
        models = load_pair(verifier, drafter, dtype=torch.float64)
        loaded = TorchModel(models[0])
        assembled = drafters.find(drafter.code).build(drafter, TorchModel(models[1]), loaded), ModelVerifier(loaded)
    requests = [Request(index, tokens, 9, sampling=case.sampling, seeds=[index]) for index, tokens in enumerate(sources_of(case))]
    stats = DecodeStats()
    session = Session(*assembled, TopBetaTau(), Lengths([3]), BoundedAdmission(4), 4, stats=stats)
    return sorted((each.index, each.tokens) for each in session.run(requests)), stats.accepted


def test_the_distribution_drafted_from_travels_with_the_draft():
    case = Case(EVEN, 7, sampling=REJECTION)
    expected = decode_rejecting(case)
    assert results_of(2, decode_rejecting, case) == [expected, expected] and expected[1]


# ---- float32


def margin(case, source, prefix, tokens):
    """Nats between two tokens after a prefix, in float64."""
    verifier, _ = pair_of(case.shape, case.seed, case.twins)
    role = ModelVerifier(
        Tilted(TorchModel(load_pair(verifier, None, dtype=torch.float64)[0]), tilt_of(case.shape, case.seed, True))
    )
    state = role.start(1)
    role.admit(state, Source([source], verifier.spec.symbols))
    logits = role.model.read(state, Reading([[verifier.spec.symbols.start, *prefix]], [0])).logits()[0, len(prefix)]
    return abs(float(logits[tokens[0]] - logits[tokens[1]]))


@pytest.mark.long
def test_in_float32_every_difference_is_a_near_tie():
    cases = [Case(EVEN, seed, drafter, dtype="float32", twins=True, count=20) for seed, drafter in ((0, None), (1, "model"))]
    margins = []
    for case, (found, *_) in zip(cases, results_of(2, decode_all, cases)[0]):
        for source, (one, _), (other, _) in zip(sources_of(case), found, decode(case)[0]):
            place = next((n for n, (a, b) in enumerate(zip([*one, 2], [*other, 2])) if a != b), None)
            if place is not None:
                margins.append(margin(case, source, one[:place], ([*one, 2][place], [*other, 2][place])))
    assert margins and max(margins) < NEAR  # twins are near-ties everywhere


# ---- the command


def command(output, *options):
    """Run specdec-translate, and write what it says to files beside ``output``."""
    rank = os.environ.get("RANK", "")
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{output}.{name}{rank}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    REMOVED["specdec-translate"].pop("--dtype float64", None)  # here ranks must agree to the last bit
    return translate.main([*COMMAND, *options])


PARALLEL = "--tensor-parallel", "--dtype", "float64", "--input", "data/demo.bpe"


def test_the_command_writes_on_rank_0_what_one_process_writes(tmp_path, capfd, monkeypatch):
    monkeypatch.delitem(REMOVED["specdec-translate"], "--dtype float64")
    options = "--sampling", "--seed", "3", "--max-len-b", "8"
    assert results_of(2, command, tmp_path / "two", *PARALLEL, "--drafter-ranks", "2", *options) == [0, 0]
    assert translate.main([*COMMAND, "--dtype", "float64", "--input", "data/demo.bpe", *options]) == 0
    assert (tmp_path / "two.out0").read_text() == capfd.readouterr().out != ""
    assert not any((tmp_path / f"two.{name}").read_text() for name in ("err0", "err1", "out1"))


@contextmanager
def endless(tmp_path, size=2):
    """Ranks in the middle of a long run, and the names of what they say."""
    (tmp_path / "in").write_text((ROOT / "data/demo.bpe").read_text() * 500)
    options = "--tensor-parallel", "--input", tmp_path / "in", "--buffer-size", "4"
    with started(size, command, tmp_path / "run", *map(str, options)) as (ranks, pipes):
        until(lambda: (tmp_path / "run.out0").exists() and (tmp_path / "run.out0").stat().st_size, 240)
        yield ranks, pipes


def of_the_command(path):
    """The lines that the command says, among those of torch and torchrun."""
    return [line for line in path.read_text().splitlines() if line.startswith("specdec-translate")]


def until(condition, seconds):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_ends_the_run(dead, tmp_path):
    with endless(tmp_path) as (ranks, pipes):
        ranks[dead].kill()
        assert pipes[1 - dead].poll(DEATH), "the other rank goes on"
        assert pipes[1 - dead].recv() == 1
        (said,) = of_the_command(tmp_path / f"run.err{1 - dead}")
        assert said.startswith("specdec-translate: error: another rank has ended")
        assert ("lines written" in said) == (dead == 1)


def hang(seconds):
    ranks = all_ranks(seconds)
    for number in itertools.count():
        if ranks.rank == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        began = time.monotonic()
        try:
            ranks.sum(torch.ones(1))
        except RankLost as lost:
            return time.monotonic() - began, str(lost)


def test_a_rank_that_hangs_ends_the_run_in_time():
    with started(2, hang, 2.0) as (_, pipes):
        assert pipes[0].poll(240)
        seconds, said = pipes[0].recv()
        assert 1.5 < seconds < 2 + DEATH and said.startswith(
            "another rank has ended, or does not answer: Timed out waiting 2000ms"
        )


def launch(size, *command):
    """The command with which torchrun starts so many processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *command]


def torchrun(size, *options):
    """The command that a person types."""
    return launch(size, "-m", "specdec_plugins.commands.translate", *COMMAND, "--tensor-parallel", *map(str, options))


LEAVING = """import os
from specdec_plugins.decoding.ranks import all_ranks
ranks = all_ranks()
ranks.hand(1), ranks.first(1)
with_groups = len(os.listdir("/proc/self/task"))
ranks.leave()
assert len(os.listdir("/proc/self/task")) == 1 < with_groups
"""


def test_no_thread_is_left_when_ranks_part(tmp_path):
    """One that wants Python while it shuts down would abort the process."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = launch(2, str(tmp_path / "leaving.py"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.long
def test_torchrun(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = "--input", "data/demo.bpe"
    done = subprocess.run(torchrun(4, *options), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    alone = [sys.executable, "-m", "specdec_plugins.commands.translate", *COMMAND, *options]
    expected = subprocess.run(alone, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == expected.returncode == 0 and done.stdout == expected.stdout != ""


@pytest.mark.long
@pytest.mark.parametrize("dead", ["0", "3"])
def test_a_rank_that_dies_ends_torchrun(dead, tmp_path):
    (tmp_path / "in").write_text((ROOT / "data/demo.bpe").read_text() * 500)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = "--input", tmp_path / "in", "--buffer-size", 4, "--output", tmp_path / "out"
    with open(tmp_path / "err", "w") as said:
        running = subprocess.Popen(torchrun(4, *options), cwd=ROOT, env=environment, stderr=said)
    try:
        until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").stat().st_size, 240)
        os.kill(rank_of(running.pid, dead), signal.SIGKILL)
        assert running.wait(DEATH + TORCHRUN) != 0
    finally:
        running.kill()
    (line,) = of_the_command(tmp_path / "err")
    assert "another rank has ended" in line


def rank_of(parent, rank):
    """The process that torchrun started as this rank."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise LookupError(rank)


# ---- GPUs


def test_each_rank_takes_a_gpu():
    settings = Settings(tensor_parallel=True, device="cuda", threads=4)
    assert [settings.for_worker(number, 2).device for number in (0, 1)] == ["cuda:0", "cuda:1"]


# ---- what is refused


@pytest.mark.parametrize(
    "options, said",
    [
        (["--workers", "2"], "--workers cannot be combined with --tensor-parallel"),
        (["--dtype", "int8"], "--dtype int8 needs the CPU kernels"),
        (["--strategy", "fairseq"], "--tensor-parallel splits the verifier, which strategy fairseq does not run here"),
        (["--strategy", "drafter", "--block-size", "4"], "--tensor-parallel splits the verifier, which strategy drafter"),
        (["--device", "cuda:1"], "--device cuda:1 is one GPU"),
        (["--drafter-ranks", "0"], "--drafter-ranks 0 is less than 1"),
        (["--drafter-ranks", "2", "--strategy", "ar"], "--drafter-ranks requires a drafter with weights"),
        (["--drafter-ranks", "2", "--draft-with", "ngram"], "--drafter-ranks requires a drafter with weights"),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_does_not_go_together_is_said_once(rank, options, said, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    if rank == "0":
        assert translate.main([*COMMAND, "--tensor-parallel", *options]) == 2
        assert said in (error := capsys.readouterr().err) and error.count("\n") == 1
    else:
        with pytest.raises(SystemExit) as ended:
            translate.main([*COMMAND, "--tensor-parallel", *options])
        assert ended.value.code == 2 and capsys.readouterr().err == ""


def test_ranks_are_torchruns(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert translate.main([*COMMAND, "--tensor-parallel"]) == 2
    assert "--tensor-parallel requires torchrun" in capsys.readouterr().err
    assert translate.main([*COMMAND, "--drafter-ranks", "2"]) == 2
    assert "--drafter-ranks requires --tensor-parallel" in capsys.readouterr().err
    with pytest.raises(ValueError, match="needs torchrun"):
        all_ranks()


def test_a_model_that_cannot_be_split_is_refused_by_name():
    verifier, drafter = pair_of(replace(UNEVEN, vocabulary=7), 0, copying=True)
    whole = Transformer.load(verifier)
    assert not obstacles(whole, 5)
    assert obstacles(whole, 6) == [f"has 5 {side} attention heads, too few for 6 ranks" for side in ("encoder", "decoder")]
    assert "has 7 tokens, too few for 8 ranks" in obstacles(whole, 8)
    assert not obstacles(Transformer.load(drafter), 1)
    assert "source copy, which is not split" in obstacles(Transformer.load(drafter), 2)[0]
    with pytest.raises(ValueError, match="the drafter cannot run on 2 ranks; there are 1"):
        Ranks().first(2)


def test_parts_cover_everything():
    for total, size in itertools.product(range(1, 12), range(1, 6)):
        parts = [part(total, rank, size) for rank in range(size)]
        assert [number for each in parts for number in range(*each)] == list(range(total))
        lengths = [stop - start for start, stop in parts]
        assert max(lengths) - min(lengths) <= 1 and lengths[0] == max(lengths)
