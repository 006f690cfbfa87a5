"""The optimiser muon: orthogonalised updates, Adam for all else, resumed training."""

import argparse
import math

import pytest
import torch
from test_training import losses, train, weights

from specdec_plugins.tasks.muon import FairseqMuon
from specdec_plugins.tasks.plateau import Plateau, PlateauConfig
from specdec_plugins.training.drafting import learning_rate
from specdec_plugins.training.muon import MOMENTUM, UPDATE_SIZE, Muon, is_hidden, orthogonalise

ADAM = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}
CONFIG = argparse.Namespace(lr=[0.01], adam_betas="(0.9, 0.98)", adam_eps=1e-8, weight_decay=0.0)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 64, 16), (2, 16, 64)])
def test_orthogonalised_matrices_keep_their_directions(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, singular, v = torch.linalg.svd(matrices, full_matrices=False)
    assert singular.max() / singular.min() > 2
    found = orthogonalise(matrices)
    inner = u.mT @ found @ v.mT  # diagonal, with the new singular values
    made = inner.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(inner, torch.diag_embed(made), atol=1e-6)
    seen = singular > 0.02 * matrices.norm(dim=(1, 2))[:, None]  # five steps do not raise the faintest ones all the way
    assert seen.float().mean() > 0.8 and made[seen].min() > 0.6 and made.max() < 1.3


@pytest.mark.parametrize("has", [True, False])
def test_bfloat16_where_products_may_be(monkeypatch, has):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has)
    matrices = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(1))
    exact, before = orthogonalise(matrices), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        rounded, double = orthogonalise(matrices), orthogonalise(matrices.double())
    finally:
        torch.set_float32_matmul_precision(before)
    assert rounded.dtype == torch.float32 and torch.equal(rounded, rounded.bfloat16().float()) is has
    assert not has or not torch.equal(rounded, exact)
    assert torch.dist(rounded, exact) < 0.03 * exact.norm()
    assert torch.dist(double, exact) < 1e-4 * exact.norm()


def test_hidden_matrices_are_recognised_by_shape():
    for shape, hidden in {(256, 256): True, (256, 1024): True, (1024, 256): True, (8000, 256): False, (256,): False}.items():
        assert is_hidden(torch.empty(shape)) == hidden


def test_steps_are_those_of_the_papers():
    generator = torch.Generator().manual_seed(2)
    hidden, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((8, 4), (5,)))
    expected, adam = hidden.clone(), other.clone().requires_grad_()
    theirs = torch.optim.AdamW([adam], **ADAM)
    ours = Muon([hidden], [other], **ADAM)
    momentum = torch.zeros_like(hidden)
    for _ in range(5):
        gradients = [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in (hidden, other)]
        hidden.grad, other.grad, adam.grad = *gradients, gradients[1].clone()
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradients[0]
        update = orthogonalise((MOMENTUM * momentum + (1 - MOMENTUM) * gradients[0])[None])[0]
        expected = expected * (1 - ADAM["lr"] * ADAM["weight_decay"]) - ADAM["lr"] * UPDATE_SIZE * math.sqrt(8) * update
        ours.step(), theirs.step()
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(other, adam.detach(), rtol=1e-6, atol=1e-8)


def test_state_is_saved_and_loaded():
    def optimiser():
        generator = torch.Generator().manual_seed(3)
        params = [torch.randn(shape, generator=generator) for shape in ((4, 4), (40, 4), (4,))]
        return params, FairseqMuon(CONFIG, params)

    def run(params, built, steps):
        for step in steps:
            for number, each in enumerate(params):
                each.grad = torch.randn(each.shape, generator=torch.Generator().manual_seed(10 * step + number))
            built.step()

    (whole, first), (half, second), (again, third) = (optimiser() for _ in range(3))
    run(whole, first, range(6))
    run(half, second, range(3))
    for old, new in zip(half, again):
        new.copy_(old)
    third.load_state_dict(second.state_dict())
    run(again, third, range(3, 6))
    assert all(torch.equal(one, other) for one, other in zip(whole, again))


def test_the_learning_rate_is_that_of_specdec_draft():
    optimiser = FairseqMuon(CONFIG, [torch.empty(4, 4)])
    made = Plateau(PlateauConfig(warmup_updates=4, total_num_update=20, lr=[0.01]), optimiser)
    rates = [optimiser.get_lr(), *(made.step_update(update) for update in range(1, 21))]
    assert rates == [learning_rate(0.01, 4, update, update / 20) for update in range(21)]
    assert rates[0] == 0.0025 and rates[3] == rates[12] == 0.01 and rates[16] == pytest.approx(0.005) and rates[20] == 0


def test_flattened_parameters_are_refused():
    with pytest.raises(ValueError, match="--fp16-no-flatten-grads"):
        FairseqMuon(CONFIG, [torch.empty(1000)])


@pytest.mark.long
def test_a_resumed_training_equals_an_unbroken_one(toy_data, tmp_path):
    recipe = """
        --task translation --arch transformer --share-all-embeddings --criterion verifier_loss --optimizer muon --lr 0.003
        --lr-scheduler polynomial_decay --total-num-update 8
    """.split()
    logs, _ = train(toy_data, tmp_path / "whole", recipe=recipe, updates=8)
    for updates in (4, 8):
        train(toy_data, tmp_path / "parts", recipe=recipe, updates=updates)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)
    assert losses(logs)[-1] < losses(logs)[0]
