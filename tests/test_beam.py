"""Beam search in sessions, on both backends."""

import math
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, make_verifier
from naive import repeating
from reference import encode, greedy, sampled
from support import EOS, SHAPES, SYMBOLS, WORDS, Lengths, Tilted, load, make_tilt, sentences, tilted_verifier
from tapes import Tapes
from test_beam_rules import TIE, naive_fairseq, naive_huggingface, searched
from test_kernels import on_kernels, wide_verifier
from test_session import KERNELS

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.passes import TorchPass
from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.options import Beam, Sampling
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.search.beam import Search
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Draft
from specdec_plugins.decoding.verifier import ModelVerifier, Unverified, accept_all
from specdec_plugins.translator import Translator

BACKENDS = pytest.mark.parametrize("backend", ["torch", pytest.param("kernels", marks=KERNELS)])


@BACKENDS
def test_candidates_are_the_best_allowed_tokens(backend):
    """Against a full log-softmax with each constraint spelled out; rows without a beam get nothing."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for vocabulary in (5, 24, 700):
        rows, constraints = 9, Constraints(SYMBOLS, suppressed=(0, 4))
        kinds = [None, Beam(1), Beam(3, unk_penalty=0.7), Beam(5, unk_penalty=-1e6), Beam(4, "huggingface", renormalize=True)]
        beams = [*(rng.choice(kinds) for _ in range(rows - 1)), Beam(2)]
        room, minimum = [rng.choice([0, 1, 7]) for _ in beams], [rng.choice([0, 0, 2]) for _ in beams]
        outputs = [[rng.randrange(3, 5 if row % 2 else vocabulary) for _ in range(9)] for row in range(rows)]
        repeats = [Repeats(rng.choice([0, 1, 2, 3]), output) for output in outputs]
        logits = 3 * torch.randn(rows, 2, vocabulary, generator=generator)
        bounds = Bounds(constraints, room, minimum, rng.choice([None, repeats]))
        if backend == "torch":
            done = TorchPass(SimpleNamespace(executor=EAGER), {"logits": logits.clone()})
        else:
            done = CpuPass.of(on_kernels(wide_verifier())[0], logits.clone())
        found = done.rank(Draft([[] for _ in beams]), bounds, beams)
        assert torch.equal(tensor(done.logits()), logits)  # restored
        for row, (beam, every) in enumerate(zip(beams, found)):
            assert len(every) == (beam is not None)
            if beam is None:
                continue
            (ranked,) = every
            values = logits[row, 0].double().tolist()
            again = repeating(outputs[row], repeats[row].size) if bounds.repeats else set()
            banned = {0, 1, 4, *again, *([EOS] if minimum[row] else [])} if room[row] else {*range(vocabulary)} - {EOS}
            allowed = [-math.inf if token in banned else value for token, value in enumerate(values)]
            allowed[3] -= beam.unk_penalty if room[row] else 0
            among = allowed if beam.renormalize and room[row] else values
            total = math.log(sum(math.exp(value) for value in among if value > -math.inf)) if max(among) > -math.inf else 0
            expected = sorted((-value, token) for token, value in enumerate(allowed) if value > -math.inf)[: 2 * beam.size]
            usable = [(token, score) for token, score in zip(*ranked) if score > -math.inf]
            assert [token for token, _ in usable] == [token for _, token in expected]
            assert [score for _, score in usable] == pytest.approx([-value - total for value, _ in expected], abs=1e-4, rel=1e-6)


# ---- sessions


class Scored:
    """Log-probabilities of the token after each prefix, for the searches of test_beam_rules.py, under a request's constraints.

    ``logits(prefix)`` are the model's. Forced tokens are the only ones at their positions.
    """

    def __init__(self, logits, request):
        self.logits, self.request, self.known = logits, request, {}

    def constrained(self, prefix, how):
        prefix = tuple(prefix)
        if prefix not in self.known:
            self.known[prefix] = self._constrained(list(prefix), how)
        return self.known[prefix]

    def _constrained(self, prefix, how):
        request = self.request
        values = self.logits(prefix).double()
        allowed = values.clone()
        banned = [SYMBOLS.pad, *repeating(prefix, request.no_repeat)]
        allowed[banned] = -math.inf
        if len(prefix) < request.min_length:
            allowed[EOS] = -math.inf
        if len(prefix) >= how.limit:
            allowed[:] = -math.inf
            allowed[EOS] = values[EOS]
        forced = request.forced[len(prefix) : len(prefix) + 1]
        scores = allowed - (allowed if how.beam.renormalize else values).logsumexp(0)
        if forced:
            own = 0.0 if how.beam.rules == "huggingface" else scores[forced[0]].item()
            scores[:] = -math.inf
            scores[forced[0]] = own
        scores[SYMBOLS.mask] -= how.beam.unk_penalty
        return scores.numpy()


NAIVE = {"fairseq": naive_fairseq, "huggingface": naive_huggingface}
KINDS = [
    Beam(1),
    Beam(2, nbest=2),
    Beam(4, length_penalty=0.6, nbest=3),
    Beam(5, length_penalty=1.4),
    Beam(8, nbest=8),
    Beam(3, unk_penalty=0.5, nbest=3),
    Beam(4, "huggingface", nbest=4),
    Beam(2, "huggingface", early_stopping="true"),
    Beam(5, "huggingface", early_stopping="never", renormalize=True, nbest=2),
]


def requests_of(count, seed, greedy=True):
    """Requests with beams of all kinds, limits and constraints; ``greedy`` and sampled ones among them."""
    rng, found = random.Random(seed), []
    for index, source in enumerate(sentences(count, seed)):
        limit, kind = rng.choice([1, 3, 6, 9, 12]), rng.randrange(4) if greedy else 2
        sampling = Sampling(0.8, top_k=9) if kind == 0 else None
        options = {"beam": rng.choice(KINDS), "no_repeat": rng.choice([0, 0, 0, 2]), "min_length": rng.choice([1, 1, 4])}
        if limit > 3 and rng.random() < 0.3:
            options["forced"] = [rng.randrange(4, WORDS) for _ in range(rng.randint(1, 2))]
        plain = {"sampling": sampling, "seeds": [index, index + 7][: 1 + (kind == 0)], "scores": index % 3 > 0}
        found.append(Request(index, source, limit, **(options if kind > 1 else plain)))
    return found


class Planned(Lengths):
    """A search has one step, whatever its rows."""

    def update(self, outcome):
        self.passes += 1
        assert 0 < len(outcome.steps) <= len(outcome.plan.lengths)


def session_of(verifier, rows, drafter=None, lengths=(0,), constraints=None):
    roles = Roles(drafter or NoDrafter(), verifier, TopBetaTau(), Planned(list(lengths), ragged=True))
    return Session(roles, BoundedAdmission(rows), rows, constraints, stats=DecodeStats())


def outputs_by(hypotheses):
    return {(each.index, each.output): (each.tokens, each.token_scores, each.score) for each in hypotheses}


def rounded(outputs):
    """PyTorch's rounding depends on the batch."""
    return {
        key: (tokens, pytest.approx(scores), score and pytest.approx(score)) for key, (tokens, scores, score) in outputs.items()
    }


def expected_of(logits, request, margin=TIE):
    """(tokens, score) of each output by the naive search, and whether it depends on a tie."""
    how, table = Search(request.beam, EOS, request.limit), Scored(logits, request)
    found = NAIVE[request.beam.rules](table, how)[: request.beam.nbest]
    outputs = [([token for token in tokens if token != EOS], score) for tokens, score in found]
    return outputs, searched(table, how)[1] < margin


@pytest.fixture(scope="module")
def world():
    """A verifier in fairseq's form and as a role, and its tilt."""
    model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    tilt = make_tilt(3, -1.0)
    return model.double(), tilted_verifier(load((model.double(), args))[0], tilt), tilt


def check_against_naive(model, tilt, requests, found):
    """Every output of a session in float64 is the oracle's. Returns how many are beams'."""
    found, beams = outputs_by(found), 0
    for request in requests:
        encoder_out = encode(model, request.tokens)
        if request.beam is None:
            source, limit, how = request.tokens, request.limit, request.sampling
            said = [sampled(model, source, limit, how, seed, tilt) for seed in request.seeds] if how else None
            said = said or [greedy(model, source, limit, tilt)]
            assert [found.pop((request.index, n))[0] for n in range(len(said))] == said
            continue
        expected, _ = expected_of(lambda prefix, out=encoder_out: raw(model, out, prefix, tilt), request)
        for number, (tokens, score) in enumerate(expected):
            own, parts, whole = found.pop((request.index, number))
            assert own == tokens, request
            assert whole == pytest.approx(score, abs=1e-6)
            length = len(tokens) + 1
            assert sum(parts) / length**request.beam.length_penalty == pytest.approx(score, abs=1e-6)
            beams += 1
    assert not found
    return beams


@torch.no_grad()
def raw(model, encoder_out, prefix, tilt):
    """Logits without any constraint."""
    return model.decoder(torch.tensor([[EOS, *prefix]]), encoder_out=encoder_out)[0][0, -1] + tilt[len(prefix)]


@pytest.mark.parametrize("rows", [8, pytest.param(21, marks=pytest.mark.long)])
def test_greedy_sampled_and_beam_requests_share_sessions(world, rows):
    model, verifier, tilt = world
    requests = requests_of(24 if rows == 8 else 120, 5)
    assert check_against_naive(model, tilt, requests, session_of(verifier, rows).run(requests)) > 12


def test_recorded_passes_search_alike():
    """With tapes in place of CUDA graphs."""
    model, args = make_verifier(words=WORDS, **SHAPES["post-norm"])
    tapes, tilt, requests = Tapes(), make_tilt(9, -1.0), requests_of(16, 9)
    verifier = tilted_verifier(load((model.double(), args), runner=tapes)[0], tilt)
    assert check_against_naive(model.double(), tilt, requests, session_of(verifier, 13).run(requests)) and tapes.recordings


def streamed(session, streams, done):
    """The commits of a step. Adds them to the streams by output, and outputs, which must be what was streamed, to ``done``."""
    commits = session.step()
    for request, output, tokens, scores, whole, _ in commits:
        stream = streams.setdefault((request, output), ([], []))
        stream[0].extend(tokens), stream[1].extend(scores)
        if whole:
            assert stream == (whole.tokens, whole.token_scores or [])
            done.append(whole)
    return commits


def test_what_is_streamed_of_a_search_is_its_best_output(world):
    """And cancelling others, which leave in the middle, changes nothing."""
    _, verifier, _ = world
    requests = requests_of(20, 7)
    expected = outputs_by(session_of(verifier, 40).run(requests))
    session, rng, streams, done, early = session_of(verifier, 12), random.Random(1), {}, [], 0
    for request in requests:
        session.submit(request)
    cancelled = set()
    while not session.idle:
        for commit in streamed(session, streams, done):
            early += bool(commit.tokens) and commit.finished is None and requests[commit.request].beam is not None
        assert session.prefix.reserved <= 12 and len(session.prefix) <= session.prefix.reserved
        if rng.random() < 0.4:
            index = rng.randrange(20)
            if session.prefix.group(index):
                found, request = session.cancel(index), requests[index]
                assert request.beam is None or 1 <= len(found) <= request.beam.nbest
                cancelled.add(index)
    assert early > 10 and cancelled
    kept = {key: output for key, output in outputs_by(done).items() if key[0] not in cancelled}
    assert kept == rounded({key: output for key, output in expected.items() if key[0] not in cancelled})
    assert session.stats.committed == session.stats.own_tokens > 0


@KERNELS
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long), "int8"])
def test_on_the_kernels_a_search_is_the_naive_one_on_their_scores_in_any_batch(dtype):
    model = Tilted(on_kernels(wide_verifier(), dtype=dtype)[0], make_tilt(4, -1.0))
    verifier, requests = ModelVerifier(model), requests_of(12, 8, greedy=False)
    found = outputs_by(session_of(verifier, 23).run(requests))
    for request in requests:
        alone = outputs_by(session_of(verifier, request.rows).run([request]))
        assert alone == {key: output for key, output in found.items() if key[0] == request.index}

        def logits(prefix, source=request.tokens):
            state = model.start(1)
            state.admit(Source([source], SYMBOLS))
            return tensor(model.read(state, Reading([[EOS, *prefix]], [0])).logits())[0, -1].clone()

        expected, tied = expected_of(logits, request, 1e-4)
        assert tied or [tokens for tokens, _ in expected] == [alone[request.index, n][0] for n in range(len(expected))]
        if not tied:
            assert [alone[request.index, n][2] for n in range(len(expected))] == pytest.approx([s for _, s in expected], abs=1e-4)


def test_a_beam_of_one_is_greedy(world):
    _, verifier, _ = world
    plain = [Request(index, source, 9) for index, source in enumerate(sentences(8, 3))]
    expected = [each.tokens for each in session_of(verifier, 1).run(plain)]
    for beam in (Beam(1), Beam(1, "huggingface"), Beam(1, "huggingface", early_stopping="true")):
        found = session_of(verifier, 1).run([Request(each.index, each.tokens, 9, beam=beam) for each in plain])
        assert [each.tokens for each in found] == expected


def test_impossible_searches_are_refused(world):
    _, verifier, _ = world
    session = session_of(verifier, 3)
    for wrong, message in [
        ({"beam": 4}, "beam is 4, not a Beam"),
        ({"beam": Beam(2), "sampling": Sampling()}, "sampling"),
        ({"beam": Beam(2), "seeds": [1, 2]}, "several seeds"),
        ({"beam": Beam(4)}, "4 live hypotheses need as many rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            session.submit(Request(0, [5, EOS], 9, **wrong))
    session = Session(Roles(NoDrafter(), Unverified(), accept_all, Lengths([0])), BoundedAdmission(4), 4)
    with pytest.raises(ValueError, match="needs a verifier"):
        session.submit(Request(0, [5, EOS], 9, beam=Beam(2)))


# ---- the shipped pair, against fairseq's generator

LINES = [
    "A dog runs.",
    "Two men in red shirts stand beside a small yellow boat on the lake.",
    "The zzyzx plays with an old xylophone!",
    "A girl",
    "People walk past shops and houses in a busy street while it rains.",
    "An older woman sells fruit.",
]


def translated(lines, batch_size, **settings):
    how = {"dtype": "float64", "beam": 5, "nbest": 3, "max_len_b": 24, **settings}
    translator = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), **how)
    return translator.translate(lines, batch_size=batch_size)


def compare_with_fairseq(lines, batch_size, beam, lenpen, nbest):
    how = {"beam": beam, "lenpen": lenpen, "nbest": nbest}
    ours, theirs = (translated(lines, batch_size, strategy=strategy, **how) for strategy in ("ar", "fairseq"))
    for start in range(0, len(ours), nbest):
        group, others = ours[start : start + nbest], theirs[start : start + nbest]
        scores = [each.score for each in others]
        assert [each.score for each in group] == pytest.approx(scores, abs=TIE)
        if min((one - other for one, other in pairwise(scores)), default=1) > TIE:
            assert [each.text for each in group] == [each.text for each in others]
        for one, other in zip(group, others):
            assert sum(one.token_scores) / len(one.token_scores) ** lenpen == pytest.approx(one.score, abs=1e-6)
            assert one.text != other.text or one.token_scores == pytest.approx(other.token_scores, abs=TIE)


def test_searches_on_the_shipped_pair_are_fairseqs():
    compare_with_fairseq(LINES, 4, 4, 0.6, 3)


@pytest.mark.long
@pytest.mark.parametrize("beam, lenpen", [(2, 1.0), (4, 1.4), (5, 1.0), (8, 0.6)])
def test_many_searches_on_the_shipped_pair_are_fairseqs(beam, lenpen, monkeypatch):
    """Of float64 logarithms: fairseq takes them in float32, which torch with AVX2 rounds by up to 1.04e-5 here."""
    monkeypatch.setattr("fairseq.utils.log_softmax", lambda logits, dim, onnx_trace=False: torch.log_softmax(logits, dim))
    lines = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()[:100]
    compare_with_fairseq(lines, 16, beam, lenpen, 2)


def test_beams_in_commands_and_streams():
    found = translated(LINES[:3], 2, strategy="ar", dtype="float32")
    assert [each.sample for each in found] == [0, 1, 2] * 3
    folder, how = str(ROOT / "data" / "demo.en-de"), {"strategy": "ar", "beam": 5, "max_len_b": 24}
    translator = Translator.from_pretrained(folder, **how)
    assert ["".join(translator.stream_text(line)) for line in LINES[:3]] == [each.text for each in found[::3]]
    windows = Translator.from_pretrained(
        str(ROOT / "data" / "demo.en-de"), strategy="ar", beam=5, max_len_b=24, windows="sentence"
    )
    assert windows.translate([" ".join(LINES[:2])])[0].text == f"{found[0].text} {found[3].text}"
