"""The drafter's model: attention, positions, source copy, dropout in both passes, and the two checkpoint forms."""

import pytest
import torch
from conftest import make_batch, make_drafter, make_verifier

from specdec_plugins.decoding.networks.masking import mask_blocks

PAD, MASK = 1, 3


def inputs(source_lengths=(7, 4, 5), target_lengths=(6, 8, 2), starts=(2, 5, 0), block_size=4, left=True):
    source = make_batch(list(source_lengths), left=left, seed=1)
    block = mask_blocks(make_batch(list(target_lengths), seed=2), torch.tensor(starts), block_size, PAD, MASK)
    return source, block


def logits_of(model):
    source, block = inputs()
    return model(source, None, block.prev_target)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("learned", [True, False])
def test_left_and_right_padded_source_agree(copy, learned):
    model = make_drafter(src_embedding_copy=copy, encoder_learned_pos=learned, decoder_learned_pos=learned)
    left, block = inputs(left=True)
    right, _ = inputs(left=False)
    torch.testing.assert_close(
        model(left, None, block.prev_target, block.masked), model(right, None, block.prev_target, block.masked)
    )


def test_batch_neighbours_do_not_matter():
    model = make_drafter()
    source, block = inputs(left=False)
    logits = model(source, None, block.prev_target)
    for row, (source_length, width) in enumerate([(7, 6), (4, 9), (5, 4)]):
        alone = model(source[row : row + 1, :source_length], None, block.prev_target[row : row + 1, :width])
        torch.testing.assert_close(logits[row : row + 1, :width], alone)


def test_every_position_sees_every_other():
    model = make_drafter()
    source, block = inputs((7,), (9,), (3,))
    base = model(source, None, block.prev_target)[0]
    for changed in range(block.prev_target.size(1)):
        other = block.prev_target.clone()
        other[0, changed] = 10 if other[0, changed] != 10 else 11
        moved = (model(source, None, other)[0] - base).abs().amax(-1) > 1e-9
        assert moved.all(), f"position {changed} is not seen everywhere"


def test_masked_logits_are_rows_of_all_logits():
    model = make_drafter()
    source, block = inputs()
    torch.testing.assert_close(model(source, None, block.prev_target, block.masked), logits_of(model)[block.masked])


@pytest.mark.parametrize("scaled", [True, False])
def test_source_copy_equals_loops(scaled):
    model = make_drafter(no_scale_embedding=not scaled)
    source, block = inputs()
    encoder_out = model.encoder(source)
    positions = model.decoder.embed_positions(block.prev_target)
    copied = model.decoder.copy_source(positions, encoder_out)
    table, scale = model.encoder.embed_tokens.weight, 4.0 if scaled else 1.0  # sqrt(16)
    source_positions = model.encoder.embed_positions(source)
    for row in range(source.size(0)):
        real = source[row].ne(PAD)
        embeddings = table[source[row][real]] * scale
        keys = embeddings + source_positions[row][real]
        for target in range(block.prev_target.size(1)):
            query = model.decoder.copy_attn.weight @ positions[row, target]
            weights = torch.stack([query @ key for key in keys]).softmax(0)
            torch.testing.assert_close(copied[row, target], weights.to(embeddings) @ embeddings, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copy", [True, False])
def test_positions_enter_before_every_layer(copy):
    """The bottom input is the embedding, or at mask symbols the copied source; positions are added to every layer's."""
    model = make_drafter(src_embedding_copy=copy, decoder_layers=3)
    source, block = inputs()
    seen = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda module, args, output: seen.append((args[0], output[0])))
    model(source, None, block.prev_target)
    positions = model.decoder.embed_positions(block.prev_target)
    bottom = 4.0 * model.decoder.embed_tokens(block.prev_target)
    if copy:
        copied = model.decoder.copy_source(positions, model.encoder(source))
        bottom = torch.where(block.prev_target.eq(MASK)[..., None], copied, bottom)
    previous = bottom.transpose(0, 1)
    for layer_input, layer_output in seen:
        torch.testing.assert_close(layer_input, previous + positions.transpose(0, 1))
        previous = layer_output


def test_both_passes_drop_out_the_same_units():
    model = make_drafter(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1).train()
    source, block = inputs()
    first_pass = []

    def glance(logits):
        first_pass.append(logits)
        torch.rand(100)  # random numbers that glancing draws must not change the second pass's dropout
        return block.prev_target, block.masked

    torch.manual_seed(5)
    logits = model(source, None, block.prev_target, block.masked, glance)
    assert logits.requires_grad and not first_pass[0].requires_grad and first_pass[0].equal(logits.detach())
    torch.manual_seed(6)
    assert not model(source, None, block.prev_target, block.masked).equal(logits), "dropout is off"


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("copy", [True, False])
def test_every_parameter_gets_a_gradient(share, copy):
    """Distributed training without unused parameters requires it, also if no sentence has a prefix."""
    model = make_drafter(share_all_embeddings=share, src_embedding_copy=copy).train()
    source, block = inputs(starts=(0, 0, 0))
    model(source, None, block.prev_target, block.masked, lambda logits: (block.prev_target, block.masked)).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def without_marker(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "block_format"}


def test_checkpoint_without_marker_is_the_original_form():
    scaled, unscaled = make_drafter(seed=1), make_drafter(seed=2, no_scale_embedding=True)
    weights = without_marker(scaled)
    unscaled.load_state_dict(weights, strict=True)
    original = make_drafter(seed=3)
    original.load_state_dict(weights, strict=True)
    expected = logits_of(unscaled)
    torch.testing.assert_close(logits_of(original), expected)
    assert not torch.allclose(logits_of(scaled), expected)

    # saved again, it keeps the original form
    again = make_drafter(seed=4)
    again.load_state_dict(original.state_dict(), strict=True)
    torch.testing.assert_close(logits_of(again), expected)


def test_checkpoint_with_marker_keeps_its_scale():
    saved, loaded = make_drafter(seed=1), make_drafter(seed=2)
    loaded.load_state_dict(without_marker(make_drafter(seed=3)))  # in the original form first
    loaded.load_state_dict(saved.state_dict(), strict=True)
    torch.testing.assert_close(logits_of(loaded), logits_of(saved))


def test_marker_of_a_later_version_is_refused():
    state = make_drafter().state_dict()
    state["block_format"] = torch.tensor([3])
    with pytest.raises(ValueError, match=r"format 3.*reads formats 1 and 2"):
        make_drafter().load_state_dict(state)


def test_parameter_names_are_fairseqs_plus_copy_attn():
    verifier, _ = make_verifier()
    extra = set(make_drafter().state_dict()) - set(verifier.state_dict())
    assert extra == {"decoder.copy_attn.weight", "block_format", "block_verifier"}
    assert set(verifier.state_dict()) <= set(make_drafter().state_dict())


def test_low_precision_runs():
    for dtype in (torch.bfloat16, torch.float16):
        source, block = inputs()
        logits = make_drafter(dtype=dtype)(source, None, block.prev_target, block.masked)
        assert logits.dtype == dtype and logits.isfinite().all()


def test_unsupported_settings_are_refused_together():
    changes = {"no_token_positional_embeddings": True, "no_cross_attention": True, "decoder_embed_dim": 8}
    with pytest.raises(ValueError, match=r"--no-token-positional-embeddings.*--no-cross-attention.*embed-dim.*differ"):
        make_drafter(**changes, share_all_embeddings=False)


def test_trains_under_torch_ddp(tmp_path):
    """Without a search for unused parameters, as in fairseq: a parameter without gradient fails the second step."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(make_drafter(dropout=0.1).train(), find_unused_parameters=False)
        source, block = inputs(starts=(0, 0, 0))
        for _ in range(3):
            loss = model(source, None, block.prev_target, masked=block.masked, glance=lambda _: (block.prev_target, block.masked))
            loss.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
