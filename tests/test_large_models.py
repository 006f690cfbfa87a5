"""Models larger than memory would hold twice: read as stored, packed in pieces, released when read, hashed once."""

from dataclasses import replace

import pytest
import torch
from conftest import ROOT
from random_pair import Shape, random_pair

from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import assemble
from specdec_plugins.decoding.backends.cpu import binding
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Request
from specdec_plugins.formats import folder as folders
from specdec_plugins.formats import spec
from specdec_plugins.formats.files import Mapped
from specdec_plugins.formats.folder import load_folder, save_folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_embeddings_are_read_as_stored(stored, dtype, monkeypatch):
    """Neither their data type nor packing weights in many pieces changes an output, bit for bit."""
    pair = random_pair(Shape(layers=1, drafter_layers=1, width=64, inner=96, heads=2, vocabulary=75, successor_width=32))
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
            assert verifier.model.stack.tables[0].dtype == kept
            requests = [Request(number, [4, 7, 30 + number, 2], 20) for number in range(3)]
            session = speculative_decode(drafter, verifier, TopBetaTau(), FixedLength(5), requests, 3, DecodeStats())
            found.append(sorted((each.index, each.tokens, each.token_scores) for each in session))
    assert all(each == found[0] for each in found)


def test_weights_are_hashed_when_a_folder_is_written_and_not_when_it_is_loaded(tmp_path, monkeypatch):
    save_folder(load_folder(ROOT / "data" / "demo.en-de"), tmp_path / "copy")
    mark = spec.fingerprint(load_folder(tmp_path / "copy").verifier)
    monkeypatch.setattr(spec, "fingerprint", lambda model: pytest.fail("hashed"))
    described = tmp_path / "copy" / "model.json"
    text = described.read_text()
    assert mark in text
    load_folder(tmp_path / "copy")
    described.write_text(text.replace(f'"fingerprint": "{mark}"', f'"fingerprint": "{"0" * 64}"'))
    said = []
    monkeypatch.setattr(folders.log, "warning", lambda text, *more: said.append(text % more))
    load_folder(tmp_path / "copy")
    assert len(said) == 1 and "another verifier" in said[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", spec.WEIGHT_DTYPES)
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
