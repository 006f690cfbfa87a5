"""int4 weights in groups: rounding for calibration text; linear layers stored packed, read again, and refused where damaged.

O outputs, I inputs, N rows.
"""

import json
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
from fuzz_folders import WIDTH, build
from test_kernels import variant  # noqa: F401

from specdec_plugins.commands import pack
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.backends.cpu import gptq, panels
from specdec_plugins.decoding.backends.cpu.binding import GROUPS, Engine, NativeLinear
from specdec_plugins.decoding.backends.cpu.model import CpuModel
from specdec_plugins.decoding.loading import checked
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.folder import load_folder, save_folder
from specdec_plugins.formats.packed import GROUP, TILE, TRAILER, Matrix, joined, unpacked
from specdec_plugins.formats.spec import fingerprint
from specdec_plugins.translator import Translator

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
LINES = ["w1 w2 w3", "w4 w35", "w3 w3 w9 w1 w0 w22", "w30"]


def correlated(rng, rows, inputs):
    """As layers' inputs are: a few directions have most of their length."""
    return (rng.normal(size=(rows, 8)) @ rng.normal(size=(8, inputs)) + 0.3 * rng.normal(size=(rows, inputs))).astype(np.float32)


def test_rounding_for_inputs_changes_outputs_less():
    rng = np.random.default_rng(0)
    weight, x, other = rng.normal(size=(48, 96)).astype(np.float32), correlated(rng, 400, 96), None
    held = x[300:]
    found, scales = gptq.rounded(weight, x[:300].T @ x[:300])
    steps = np.repeat(gptq.scales_of(weight), GROUP, 1)
    other = np.clip(np.rint(weight / steps), -8, 7) * steps
    errors = [np.square(held @ (each - weight).T).sum() for each in (found, other)]
    assert errors[0] < 0.3 * errors[1]
    whole = found.reshape(48, -1, GROUP) / scales[..., None]
    np.testing.assert_allclose(whole, np.rint(whole), atol=1e-4)
    assert np.rint(whole).min() == -8 and np.rint(whole).max() == 7


def test_rounding_inputs_that_are_always_zero():
    weight, moments = np.ones((2, 64), np.float32), np.zeros((64, 64), np.float32)
    weight[1] = 0
    found, scales = gptq.rounded(weight, moments)
    np.testing.assert_allclose(found, weight, rtol=0.01)
    assert (scales[1] == 1).all()


def test_kernels_take_rounded_weights_as_they_are(variant):  # noqa: F811
    rng = np.random.default_rng(1)
    weight, x = rng.normal(size=(45, 96)).astype(np.float32), np.eye(96, dtype=np.float32)
    found, scales = gptq.rounded(weight, np.eye(96))
    linear = NativeLinear(found, None, GROUPS, scales=scales)
    np.testing.assert_allclose(linear(Engine(1), x).T, found, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", ["int8", GROUPS])
@pytest.mark.parametrize("copied", [0, panels.COPIED])
def test_panels_make_the_same_layer(dtype, copied, variant, monkeypatch):  # noqa: F811
    monkeypatch.setattr(panels, "COPIED", copied)
    rng = np.random.default_rng(2)
    weight, bias, x = (rng.normal(size=shape).astype(np.float32) for shape in ((70, 96), 70, (5, 96)))
    linear = NativeLinear(weight, bias, dtype)
    stored = panels.panels_of(linear)
    again = panels.linear_of(stored, 70, 96, dtype)
    assert np.array_equal(again(Engine(1), x), linear(Engine(1), x)) and again.weight_bytes == linear.weight_bytes == len(stored)
    stored[:] = 0
    assert np.array_equal(again(Engine(1), x), linear(Engine(1), x)) == bool(copied)


@pytest.mark.parametrize("dtype", ["int8", GROUPS])
def test_untrusted_panels(dtype, variant):  # noqa: F811
    """Any weights are computed with, -128 among them; other sizes, and biases and scales that are not finite, are refused."""
    stored = panels.panels_of(NativeLinear(np.ones((40, 64), np.float32), np.ones(40, np.float32), dtype))
    wild = stored.copy()
    wild[: TILE * GROUP // 2] = 0
    assert np.isfinite(panels.linear_of(wild, 40, 64, dtype)(Engine(1), np.ones((3, 64), np.float32))).all()
    for shape in ((40, 32), (40, 96), (64 + TILE, 64), (32, 64)):
        with pytest.raises(ValueError, match=r"^is uint8 \(\d+,\), not uint8 \(\d+,\)$"):
            panels.linear_of(stored, *shape, dtype)
    for number in (np.inf, -np.inf, np.nan):
        for place in (-TRAILER, -4):
            bad = stored.copy()
            bad[place:][:4] = np.array([number], np.float32).view(np.uint8)
            with pytest.raises(ValueError, match=r"^has biases or scales that are not finite$"):
                panels.linear_of(bad, 40, 64, dtype)
    if dtype == "int8":
        bad = stored.copy()
        bad[-4:] = np.array([-1e-6], np.float32).view(np.uint8)
        with pytest.raises(ValueError, match=r"^has negative scales$"):
            panels.linear_of(bad, 40, 64, dtype)
    else:
        bad = stored.copy()
        bad[GROUP * TILE // 2 :][:2] = np.array([0x7F80], np.uint16).view(np.uint8)
        with pytest.raises(ValueError, match=r"^has scales that are not finite$"):
            panels.linear_of(bad, 40, 64, dtype)


@pytest.mark.parametrize("kind", ["int8", GROUPS])
def test_what_panels_stand_for(kind):
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(70, 96)).astype(np.float32)
    linear = NativeLinear(weight, None, kind)
    found = unpacked(panels.panels_of(linear), 96, "int4" if kind == GROUPS else kind)
    assert found.shape == (96, 96) and not found[70:].any()
    np.testing.assert_allclose(linear(Engine(1), np.eye(96, dtype=np.float32)).T, found[:70], rtol=1e-6, atol=1e-30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A pair as it is, and packed for both data types, calibrated."""
    base = tmp_path_factory.mktemp("packed")
    build(base)
    text = base / "text"
    text.write_text("\n".join(LINES) + "\n")
    options = ["--verifier", base / "several", "--dtype", "int8", "int4", "--calibrate", text, "--output", base / "calibrated"]
    assert pack.main([*map(str, options)]) == 0
    return base / "several", base / "calibrated"


def translated(folder, **settings):
    return Translator.from_pretrained(str(folder), threads=1, max_len_b=20, **settings).translate(LINES, scores=True)


def test_a_packed_folder_decodes_as_the_other(folders, caplog):
    plain, packed = folders
    assert [each.code for each in load_folder(packed).drafters] == [each.code for each in load_folder(plain).drafters]
    for dtype in ("float32", "int8"):
        assert translated(packed, strategy="ar", dtype=dtype) == translated(plain, strategy="ar", dtype=dtype)
    caplog.clear()
    found = translated(packed, strategy="ar", dtype="int4")
    assert not caplog.records
    assert found != translated(plain, strategy="ar", dtype="int4")
    assert [each.message for each in caplog.records] == [
        "int4 weights are rounded as they are; specdec-pack --dtype int4 --calibrate TEXT makes better ones"
    ]
    drafted = translated(packed, strategy="specdec", dtype="int4", block_size=3)
    assert [each.tokens for each in drafted] == [each.tokens for each in found]
    assert [each.token_scores for each in drafted] == [each.token_scores for each in found]


def test_a_packed_folder_is_copied_whole(folders, tmp_path):
    _, packed = folders
    assert pack.main(["--verifier", str(packed), "--dtype", "int8", "--output", str(tmp_path / "copy")]) == 0
    names = {"verifier.int8.safetensors", "verifier.int4.safetensors"}
    assert all((tmp_path / "copy" / name).read_bytes() == (packed / name).read_bytes() for name in names)
    assert json.loads((packed / "model.json").read_text())["verifier"]["packed"].keys() == {"int8", "int4"}


@pytest.fixture(scope="module")
def alone(folders, tmp_path_factory):
    """The packed folder without matrices of the layers but those in int4."""
    folder = tmp_path_factory.mktemp("alone") / "folder"
    assert pack.main(["--verifier", str(folders[1]), "--dtype", "int4", "--only", "--output", str(folder)]) == 0
    return folder


def test_projections_are_joined_as_the_kernels_do(alone):
    verifier, _ = checked(load_folder(alone).verifier, None)
    names = [projections[0] for projections in joined(verifier.spec)]
    assert {*names, "decoder.output_projection"} == CpuModel(verifier, Engine(1), "float32").linears.keys()
    lazy = {name for name, each in verifier.tensors.items() if isinstance(each, Matrix)}
    assert lazy == {f"{name}.weight" for names in joined(verifier.spec) for name in names}
    for each in (verifier.tensors[name] for name in lazy):
        layer = unpacked(each.panels, each.shape[1], each.kind)
        assert np.array_equal(each.read(), layer[each.first : each.first + len(each)])


def test_a_folder_of_packed_matrices_alone(folders, alone, tmp_path):
    """It decodes in its type as before, and in any other as a folder of the matrices that its own stand for."""
    _, packed = folders
    assert not (alone / "verifier.int8.safetensors").exists()
    assert (alone / "verifier.safetensors").stat().st_size < 0.6 * (packed / "verifier.safetensors").stat().st_size
    for dtype in ("int4", "auto"):
        assert translated(alone, strategy="ar", dtype=dtype) == translated(packed, strategy="ar", dtype="int4")
    pair = load_folder(alone)
    assert pair.mark == fingerprint(pair.verifier) == load_folder(folders[0]).mark
    whole = {name: array(each) for name, each in pair.verifier.tensors.items()}
    save_folder(replace(pair, verifier=replace(pair.verifier, tensors=whole, packed={}, mark=None)), tmp_path / "whole")
    for settings in ({"dtype": "float32"}, {"dtype": "int8"}, {"dtype": "float64"}, {"dtype": "float32", "strategy": "specdec"}):
        assert translated(alone, **{"strategy": "ar", **settings}) == translated(
            tmp_path / "whole", **{"strategy": "ar", **settings}
        )
    assert pack.main(["--verifier", str(alone), "--output", str(tmp_path / "copy")]) == 0
    for name in ("verifier.safetensors", "verifier.int4.safetensors", "model.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (alone / name).read_bytes()


def test_damage_to_matrices_that_are_there_once(alone, tmp_path):
    shutil.copytree(alone, tmp_path / "bad")
    path = tmp_path / "bad" / "verifier.int4.safetensors"
    good = path.read_bytes()
    size = struct.unpack("<Q", good[:8])[0]
    begin, end = json.loads(good[8 : 8 + size])["encoder.layers.0.fc1"]["data_offsets"]
    path.write_bytes(good[: 8 + size + end - 4] + np.array([np.inf], np.float32).tobytes() + good[8 + size + end :])
    for dtype in ("int4", "float32", "float64"):
        with pytest.raises(
            ValueError, match=r"^packed int4 weights: encoder.layers.0.fc1 has biases or scales that are not finite"
        ):
            translated(tmp_path / "bad", strategy="ar", dtype=dtype)
    path.write_bytes(good.replace(b"encoder.layers.0.fc1", b"encoder.layers.0.fcx"))
    with pytest.raises(ValueError, match=r"verifier: missing weights: encoder.layers.0.fc1.weight"):
        load_folder(tmp_path / "bad")
    assert begin < end


def damaged(packed, folder, change):
    """A copy of a packed folder, with the int8 file's header changed."""
    shutil.copytree(packed, folder)
    path = folder / "verifier.int8.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.update(other=header.pop("decoder.layers.0.fc2")), "decoder.layers.0.fc2 is missing"),
        (
            lambda header: header.update(other=header.pop("layout")),
            "int8.safetensors: packed by another version; pack the folder",
        ),
        (
            lambda header: header["decoder.layers.0.fc1"].update(dtype="I8"),
            r"decoder.layers.0.fc1 is int8 \(1280,\), not uint8 \(",
        ),
    ],
)
def test_damaged_folders_are_refused(folders, tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as error:
        translated(damaged(folders[1], tmp_path / "damaged", change), strategy="ar", dtype="int8")
    assert "\n" not in str(error.value)


def test_options(folders, tmp_path, capsys):
    plain, _ = folders
    empty = tmp_path / "empty"
    empty.write_text("\n")
    common = ["--verifier", str(plain), "--output", str(tmp_path / "new")]
    for options, status, message in (
        (["--only"], 2, "--only requires --dtype with one data type"),
        (["--dtype", "int8", "int4", "--only"], 2, "--only requires --dtype with one data type"),
        (["--dtype", "int8", "--calibrate", str(empty)], 2, "--calibrate requires --dtype int4"),
        (["--dtype", "int4", "--calibrate", str(empty)], 1, f"--calibrate {empty}: has no sentences"),
        (["--dtype", "int4", "--calibrate", str(tmp_path / "none")], 1, "No such file"),
    ):
        assert pack.main([*common, *options]) == status
        assert message in capsys.readouterr().err
    assert WIDTH == TILE and not (tmp_path / "new").exists()
