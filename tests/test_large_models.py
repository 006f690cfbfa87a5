"""Models larger than memory would hold twice: read as stored, packed in pieces, released when read."""

from dataclasses import replace

import pytest
import torch
from random_pair import Shape, random_pair

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats import files, spec
from specdec_plugins.formats.files import Mapped, unload


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_embeddings_are_read_as_stored(stored, dtype, monkeypatch):
    """Neither their data type nor packing weights in many pieces changes an output, bit for bit."""
    pair = random_pair(Shape(layers=1, drafter_layers=1, width=64, inner=96, heads=2, vocabulary=75))
    narrow = [
        {name: each.to(stored) if each.is_floating_point() else each for name, each in model.tensors.items()} for model in pair
    ]
    narrow[0]["encoder.embed_tokens.weight"][7] *= (
        1e-4  # subnormal in float16; it is the decoder's and the output layer's as well
    )
    found = []
    for pieces in (1 << 22, 200):
        monkeypatch.setattr(binding, "WIDENED", pieces)
        for kept in (stored, torch.float32):
            models = [
                replace(model, tensors={name: each.to(kept) if each.dtype == stored else each for name, each in tensors.items()})
                for model, tensors in zip(pair, narrow)
            ]
            drafter, verifier = assemble(*models, dtype=dtype, threads=1)
            assert verifier.model.stack.tables[0].dtype.name == str(kept).removeprefix("torch.")
            requests = [Request(number, [4, 7, 30 + number, 2], 20, scores=True) for number in range(3)]
            session = speculative_decode(Roles(drafter, verifier, TopBetaTau(), FixedLength(5)), requests, 3, DecodeStats())
            found.append(sorted((each.index, each.tokens, each.token_scores) for each in session))
    assert all(each == found[0] for each in found)


def test_projections_of_one_product_may_have_several_data_types():
    """NumPy has no common type of float16 and bfloat16."""
    mixed, _ = random_pair(Shape(layers=1, drafter_layers=1, width=64, inner=96, heads=2, vocabulary=75))
    kinds = {"q": torch.bfloat16, "k": torch.float16, "v": torch.float32}
    stored = {
        name: each.to(kinds.get(name.split(".")[-2][0], torch.float32) if "_attn." in name else torch.float32)
        for name, each in mixed.tensors.items()
    }
    found = []
    for tensors in (stored, {name: each.float() for name, each in stored.items()}):
        drafter, verifier = assemble(replace(mixed, tensors=tensors), None, threads=1)
        requests = [Request(0, [4, 7, 30, 2], 20, scores=True)]
        (each,) = speculative_decode(Roles(drafter, verifier, TopBetaTau(), FixedLength(0)), requests, 1, DecodeStats())
        found.append((each.tokens, each.token_scores))
    assert found[0] == found[1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_part_of_a_weight_is_checked(dtype, bad, monkeypatch):
    weight = torch.full((40, 50), 6e4).to(dtype)  # the sum overflows in float16
    assert spec.weight_fault(weight) is None
    for place in (0, 1234, 1999):
        faulty = weight.clone()
        faulty.view(-1)[place] = bad
        monkeypatch.setattr(spec, "PART", 128)
        assert spec.weight_fault(faulty) == "has values that are not finite"


def test_mapped_files_are_unloaded_while_they_are_read(monkeypatch):
    unloaded = []
    monkeypatch.setattr("specdec_plugins.formats.files.unload", lambda addresses: unloaded.append(sorted(addresses)))
    mapped = Mapped()
    for address in (10, 20, 30):
        mapped.read(address, Mapped.MOST // 2)
    assert unloaded == [[10, 20]]


def test_only_files_of_weights_are_unloaded(tmp_path):
    """A tensor's memory may become that of a library, whose pages must stay: they hold more than its file."""
    found = {}
    for name in ("weights", "library"):
        path = tmp_path / name
        path.write_bytes(bytes(1 << 16))
        found[name] = torch.from_file(str(path), shared=False, size=1 << 16, dtype=torch.uint8)
        found[name].fill_(7)  # of private pages
    files.mapping(tmp_path / "weights")
    unload(each.data_ptr() for each in found.values())
    assert not found["weights"].any() and found["library"].eq(7).all()
    found.clear()
    unload([])
    assert str(tmp_path / "weights") not in files._mapped, "the maps would be read for it at every load"
