"""A verifier grown to twice the width and half as many layers again: the start of a large one."""

import grown
import numpy as np
import pytest
import torch
from conftest import make_verifier
from naive import logits
from test_formats import state_of

from specdec_plugins.formats import fairseq

SIDE = {"normalize_before": True, "layers": 4}
SHAPE = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}


def small(**changes):
    return fairseq.read(state_of(*make_verifier(**SHAPE, **changes)), "small")


@pytest.mark.parametrize("tied", [True, False])
def test_it_computes_the_same(tied):
    tying = {} if tied else {"share_all_embeddings": False, "share_decoder_input_output_embed": False}
    model = small(encoder_learned_pos=True, decoder_learned_pos=True, **tying)
    large = fairseq.read(grown.grown(model, 1), "large")
    for side in ("encoder", "decoder"):
        before, after = (getattr(each.spec, side) for each in (model, large))
        assert (after.width, after.layers) == (2 * before.width, before.layers + len(grown.INSERTED))
        assert (after.attention.heads, after.head_width) == (2 * before.attention.heads, before.head_width)
    for source, target in ([5, 9, 4, 2], [2, 7, 8]), ([6, 2], [2, 11, 5, 9, 7]):
        torch.testing.assert_close(logits(large, source, target), logits(model, source, target), atol=2e-5, rtol=1e-5)


def test_copies_differ_and_positions_are_its_own():
    """Or both would learn the same."""
    model = small()
    first, again, other = (fairseq.read(grown.grown(model, seed), "large").tensors for seed in (1, 1, 2))
    weight = np.asarray(first["encoder.layers.0.fc1.weight"])
    assert np.abs(weight[:, ::2] - weight[:, 1::2]).mean() > 0.2 * np.abs(weight).mean()
    assert np.abs(weight[::2] - weight[1::2]).mean() > 0.2 * np.abs(weight).mean()
    assert np.array_equal(weight, again["encoder.layers.0.fc1.weight"])
    assert not np.array_equal(weight, other["encoder.layers.0.fc1.weight"])
    positions = first["encoder.embed_positions.weight"]
    assert not np.array_equal(positions[:, ::2], positions[:, 1::2])
