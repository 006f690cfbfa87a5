"""Beam search in sessions, on both backends."""

import math
import random

import pytest
import torch
from naive import repeating
from support import EOS, SYMBOLS
from test_kernels import on_kernels, wide_verifier
from test_session import KERNELS

from specdec_plugins.decoding.backends.cpu.passes import CpuPass
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.judge import rank
from specdec_plugins.decoding.constraints import Bounds, Constraints, Repeats
from specdec_plugins.decoding.options import Beam

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
            found = rank(EAGER, logits, bounds, beams)
        else:
            done = CpuPass.of(on_kernels(wide_verifier())[0], logits.clone())
            found = done.rank(bounds, beams)
            assert torch.equal(done.logits(), logits)  # restored
        for row, (beam, ranked) in enumerate(zip(beams, found)):
            if beam is None:
                assert ranked == ([], [])
                continue
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
