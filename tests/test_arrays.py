"""Tensors as NumPy arrays and back: the same memory, values, rounding and faults as PyTorch's, and models read without it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT, run_python
from fuzz_folders import build_huggingface
from naive import random_model
from safetensors.torch import load_file, save_file
from test_formats import PLAIN, SIZE

from specdec_plugins.decoding.backends.torch.arrays import tensor, tensors
from specdec_plugins.formats import spec
from specdec_plugins.formats import tensors as files
from specdec_plugins.formats.arrays import address, array, arrays, equal, float16
from specdec_plugins.formats.files import unload
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import all_finite, close, fingerprint, storage_fault, weight_fault

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [
    *FLOATS,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_ways_share_memory(dtype):
    whole = torch.randn(3, 4).to(dtype)
    for given in (whole, whole.T[1:], whole[1, 1], whole[:0]):
        there = array(given)
        assert address(there) == given.data_ptr() or not there.size
        assert there.shape == given.shape and there.dtype.name == str(given.dtype).removeprefix("torch.")
        back = tensor(there)
        assert (
            back.dtype == dtype
            and (back.stride() == given.stride() or not there.size)
            and torch.equal(back.double(), given.double())
        )
        assert array(there) is there and tensor(given) is given
    parameter = torch.nn.Parameter(torch.ones(2)) if dtype == torch.float32 else None
    assert parameter is None or array(parameter).tolist() == [1, 1]


def test_an_array_that_may_not_be_written_to_is_copied(recwarn):
    constant = np.frombuffer(np.float32([1, 2]).tobytes(), np.float32)
    assert tensor(constant).tolist() == [1, 2] and not recwarn.list


def test_tied_tensors_are_one_object_both_ways():
    table = torch.randn(4, 3)
    found = arrays({"a": table, "b": table[:], "c": table[:2], "d": table.T, "e": table.clone()})
    assert found["a"] is found["b"] and len({id(each) for each in found.values()}) == 4
    back = tensors(found)
    assert back["a"] is back["b"] and len({id(each) for each in back.values()}) == 4


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_to_float16_is_pytorchs(dtype):
    """Of every bit pattern of 16 bits, and of numbers between two of them, which float64 must not round twice otherwise."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    if dtype.itemsize == 2:
        given = every.view(dtype)
    else:
        near = every.view(torch.float16).to(dtype)
        given = torch.cat([near, near * (1 + 2**-11), near * (1 + 2**-11 + 2**-40), near * 3, near * 1e10])
    given = given[~given.isnan()]
    assert np.array_equal(float16(array(given)).view(np.uint16), given.half().view(torch.uint16).numpy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_finite(dtype):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    values = every.view(dtype) if dtype.itemsize == 2 else every.view(torch.float16).to(dtype)
    for value in (*values[::997], *torch.tensor([0.0, -0.0, torch.finfo(dtype).max, -torch.finfo(dtype).max], dtype=dtype)):
        for others in (-1.0, 1.0):
            one = torch.full((5,), others).to(dtype)
            one[3] = value
            assert all_finite(one) == bool(one.isfinite().all()), value
    for bad in (float("inf"), float("-inf"), float("nan")):
        assert not all_finite(torch.tensor([1.0, bad, -1.0], dtype=dtype))
    assert all_finite(torch.zeros(0, dtype=dtype))


def test_equal_and_close_are_pytorchs():
    one = torch.randn(5, 6)
    for other in (one, one.clone(), one.half(), one.bfloat16(), one.double(), one[:2], one + 1, one * float("nan")):
        same = one.shape == other.shape and torch.equal(one.double(), other.double())
        assert equal(array(one), array(other)) == same
        near = one.shape == other.shape and torch.allclose(other.float(), one, rtol=0, atol=spec.HALF)
        assert close(array(other), array(one)) == near
    assert not equal(np.ones(3, np.float16) / 3, array(torch.ones(3, dtype=torch.bfloat16) / 3))


FAULTS = {
    "is not a tensor but list": [1.0],
    "is sparse, not a dense tensor": torch.eye(3).to_sparse(),
    "is without data, not a dense tensor": torch.empty(3, device="meta"),
    "is quantised, not a dense tensor": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "has more elements than memory": torch.ones(1).expand(1 << 40),
    "is int64, not float16, bfloat16, float32 or float64": torch.arange(3),
    "is complex64, not float16, bfloat16, float32 or float64": torch.ones(3, dtype=torch.complex64),
    "is float8_e4m3fn, not float16, bfloat16, float32 or float64": torch.ones(3).to(torch.float8_e4m3fn),
    "has values that are not finite": torch.tensor([1.0, float("nan")]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_those_of_arrays_and_tensors(fault):
    given = FAULTS[fault]
    assert weight_fault(given) == fault
    if "float32" in fault and "float8" not in fault:
        assert weight_fault(given.numpy()) == fault


def test_arrays_within_memory_have_no_fault():
    whole = np.ones((6, 4), np.float32)
    for each in (whole, whole.T, whole[::2, 1:], whole[:0], whole[:, None], np.ones((), np.float32)):
        assert storage_fault(each) is None
    assert storage_fault(np.broadcast_to(whole, (3, 6, 4))) == "has more elements than memory"


# ---- safetensors


def test_a_file_is_what_safetensors_reads(tmp_path):
    path = tmp_path / "x.safetensors"
    given = {f"{n}.{part}": torch.randn(n + 1, 3).to(dtype) for n, dtype in enumerate(DTYPES) for part in "ab"}
    given |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(3.5), "float8": torch.ones(3).to(torch.float8_e4m3fn)}
    save_file(given, path, metadata={"format": "pt"})
    found, expected = files.read(path), load_file(path)
    assert [*found] == [*expected]
    for name, each in expected.items():
        raw = each.contiguous().reshape(-1).view(torch.uint8).numpy()
        assert found[name].shape == each.shape and found[name].dtype.name == str(each.dtype).removeprefix("torch.")
        assert np.array_equal(found[name].reshape(-1).view(np.uint8), raw)
    found["scalar"][...] = 0  # copy on write
    assert files.read(path)["scalar"] == 3.5


def test_files_that_were_read_are_unloaded(tmp_path):
    """Changes to private pages are lost with them."""
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(5000), "b": torch.ones(5000)}, path)
    found = files.read(path)
    for each in found.values():
        each[...] = 7
    unload([address(found["b"])])
    assert all((each == 1).all() for each in found.values())


def test_an_unknown_data_type_is_refused_by_name(tmp_path):
    path = tmp_path / "x.safetensors"
    header = json.dumps({"alien": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match=r"x\.safetensors: the weight alien has the data type F8_E8M0, which is not supported"):
        files.read(path)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_and_tensors_are_written_alike(tmp_path, dtype, half):
    given = {"a": torch.randn(5, 3).to(dtype), "b": torch.randn(4, 6).to(dtype).T, "c": torch.arange(3), "d": torch.ones(2) > 0}
    for name, each in (("tensors", given), ("arrays", arrays(given))):
        files.write(tmp_path / name, each, half)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "arrays").read_bytes()
    for name, each in load_file(tmp_path / "arrays").items():
        assert torch.equal(each, given[name].half() if half and given[name].is_floating_point() else given[name])


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_fingerprint_does_not_depend_on_the_type_of_tensors(dtype):
    model = random_model(PLAIN, SIZE, SIZE)
    given = {name: each.to(dtype) for name, each in model.tensors.items()}
    assert fingerprint(replace(model, tensors=given)) == fingerprint(replace(model, tensors=arrays(given)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_array_is_one_tensor(dtype):
    table, constant = torch.randn(4, 3).to(dtype), np.frombuffer(bytes(8), np.float32)
    given = {"a": table, "b": table, "c": torch.arange(3)}
    found = tensors({**arrays(given), "d": constant})
    assert all(torch.equal(found[name], each) for name, each in given.items()) and found["a"].data_ptr() == found["b"].data_ptr()
    found["d"] += 1
    assert found["d"].tolist() == [1, 1] and not constant.any()


# ---- without PyTorch

WITHOUT = """
import sys
sys.modules["torch"] = None
from specdec_plugins.formats.files import unload
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.formats.spec import extended, fingerprint
from specdec_plugins.formats import tensors
from specdec_plugins.text import alignment
from specdec_plugins import cpus
import argparse
import json
pair, *folders = sys.argv[1:]
found = {pair: [load_folder(pair).verifier, load_folder(pair).drafter]}
found |= {folder: [load_folder(folder).verifier] for folder in folders}
extended(found[pair][0], 2000)
print(json.dumps({folder: [[fingerprint(model), sorted({str(each.dtype) for each in model.tensors.values()})] for model in models]
                  for folder, models in found.items()}))
"""


def test_models_are_read_without_pytorch(tmp_path):
    kinds = {"safetensors": torch.bfloat16, "pickled": torch.float32, "half": torch.float16}
    for kind, dtype in kinds.items():
        folder = tmp_path / kind
        build_huggingface(folder)
        given = {name: each.to(dtype) for name, each in load_file(folder / "model.safetensors").items()}
        save_file(given, folder / "model.safetensors")
        if kind == "pickled":
            torch.save(given, folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
    names = [str(ROOT / "data" / "demo.en-de"), *(str(tmp_path / kind) for kind in kinds)]
    found = json.loads(run_python("-c", WITHOUT, *names).stdout)
    pair = load_folder(names[0])
    models = [[pair.verifier, pair.drafter], *([load_folder(tmp_path / kind).verifier] for kind in kinds)]
    assert [[mark for mark, _ in found[name]] for name in names] == [[*map(fingerprint, each)] for each in models]
    assert [found[name][0][1] for name in names[1:]] == [["bfloat16"], ["float32"], ["float16"]]


def test_what_needs_pytorch_says_so(tmp_path):
    """fairseq's checkpoints, in one line that names the extra."""
    torch.save({"model": {"a": torch.ones(2)}}, tmp_path / "x.pt")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from specdec_plugins.formats.checkpoint import load\n"
        "try: load(Path(sys.argv[1]))\n"
        "except ImportError as error: print(error)"
    )
    lines = run_python("-c", program, str(tmp_path / "x.pt")).stdout.splitlines()
    assert (
        len(lines) == 1
        and "x.pt: a fairseq checkpoint needs a package that is not installed" in lines[0]
        and "[torch]" in lines[0]
    )


def test_nothing_in_formats_imports_torch_at_its_top():
    program = (
        "import sys, pkgutil, importlib\n"
        "import specdec_plugins.formats as formats\n"
        "for each in pkgutil.walk_packages(formats.__path__, 'specdec_plugins.formats.'): importlib.import_module(each.name)\n"
        "import specdec_plugins.text.alignment\n"
        "print('torch' in sys.modules)"
    )
    assert run_python("-c", program).stdout.split() == ["False"]
