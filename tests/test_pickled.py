"""PyTorch's files of weights read without it, against `torch.load(weights_only=True)`: state dicts of every kind, mutated files,
and pickles that ask for more than weights."""

import io
import pickle
import random
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from specdec_plugins.formats import pytorch
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.spec import storage_fault

DTYPES = [getattr(torch, name) for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()]


def random_tensor(rng, dtype):
    shape = [rng.randrange(0, 5) for _ in range(rng.randrange(4))]
    made = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))).to(dtype)
    for _ in range(rng.randrange(3)):
        if made.dim() > 1 and rng.random() < 0.5:
            made = made.transpose(*rng.sample(range(made.dim()), 2))
        elif made.dim() and made.size(0) > 1:
            made = made[rng.randrange(2) :: rng.randrange(1, 3)]
    return made


def random_state(seed):
    """A state dict with views, tied storages, transposed and empty tensors, scalars and parameters."""
    rng = random.Random(seed)
    state = OrderedDict() if rng.random() < 0.8 else {}
    for number in range(rng.randrange(1, 12)):
        made = random_tensor(rng, rng.choice(DTYPES))
        state[f"layer.{number}.weight"] = nn.Parameter(made) if made.is_floating_point() and rng.random() < 0.2 else made
        if rng.random() < 0.3:
            state[f"tied.{number}"] = made
        if rng.random() < 0.3 and made.dim():
            state[f"part.{number}"] = made[1:]
    if type(state) is OrderedDict and rng.random() < 0.5:
        state._metadata = OrderedDict({"": {"version": 1}, "layer": {"version": 2}})  # as `state_dict` has it
    return state


def bits(array):
    return (array.shape, str(array.dtype), np.ascontiguousarray(array).reshape(-1).view(np.uint8).tobytes())


def same(found, expected):
    assert list(found) == list(expected)
    for name, each in expected.items():
        assert bits(found[name]) == bits(array(each)), name


OLD = {"_use_new_zipfile_serialization": False}  # as before 1.6


@pytest.mark.parametrize("how", [{}, OLD])
@pytest.mark.parametrize("seed", range(40))
def test_state_dicts_are_those_of_torch(tmp_path, seed, how):
    path = tmp_path / "pytorch_model.bin"
    torch.save(random_state(seed), path, **how)
    found = pytorch.read(path)
    same(found, torch.load(path, weights_only=True))
    assert not any(map(storage_fault, found.values()))


def test_a_module_with_its_versions(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    torch.save(model.state_dict(), path)
    same(pytorch.read(path), model.state_dict())


@pytest.mark.parametrize("how", [{}, OLD])
def test_views_of_one_storage_share_its_memory_and_strides(tmp_path, how):
    path, whole = tmp_path / "pytorch_model.bin", torch.arange(12.0).reshape(3, 4)
    torch.save({"whole": whole, "turned": whole.T, "part": whole[1:, 1:]}, path, **how)
    found = pytorch.read(path)
    assert all(np.shares_memory(found["whole"], each) for each in found.values())
    assert found["turned"].strides == (4, 16) and found["part"].tolist() == whole[1:, 1:].tolist()


def test_storages_at_any_byte(tmp_path):
    """A zip of another program may not align them."""
    path, odd = tmp_path / "pytorch_model.bin", tmp_path / "odd.bin"
    state = {"a": torch.randn(7), "b": torch.randn(3, 2, dtype=torch.float64)}
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(odd, "w") as other:
        for entry in archive.infolist():
            other.writestr(entry.filename, archive.read(entry))
    found = pytorch.read(odd)
    same(found, state)
    assert all(each.flags.aligned for each in found.values())


# ---- what is refused


class Runs:
    def __reduce__(self):
        return print, ("run",)


def archive(path, data, byteorder="little", compression=zipfile.ZIP_STORED, storages=None):
    with zipfile.ZipFile(path, "w", compression) as made:
        made.writestr("archive/data.pkl", data)
        made.writestr("archive/byteorder", byteorder)
        for key, content in (storages or {}).items():
            made.writestr(f"archive/data/{key}", content)
    return path


def tensor_pickle(offset=0, size=(2,), stride=(1,), count=2, dtype="FloatStorage", key="0", kind="storage", whole=()):
    """The pickle of one tensor, with any numbers."""

    class Place:
        pass

    class Tensor:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Place(), offset, size, stride, False, OrderedDict())

    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            return (kind, getattr(torch, dtype), key, "cpu", count, *whole) if isinstance(value, Place) else None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"x": Tensor()})
    return buffer.getvalue()


BOUNDS = {
    "negative offset": {"offset": -1},
    "offset": {"offset": 1},
    "huge offset": {"offset": 1 << 2000},
    "size": {"size": (3,)},
    "huge size": {"size": (1 << 62, 1 << 62), "stride": (0, 0)},
    "negative size": {"size": (-1,)},
    "negative stride": {"stride": (-1,)},
    "huge stride": {"stride": (1 << 62,)},
    "longer stride": {"stride": (1, 1)},
    "dimensions": {"size": (1,) * 40, "stride": (1,) * 40},
    "float": {"size": (2.0,)},
    "bool": {"size": (True,)},
    "text": {"size": "11"},
    "list": {"size": [2]},
    "storage": {"count": 3},
    "negative storage": {"count": -1},
    "huge storage": {"count": 1 << 1000},
    "complex": {"dtype": "ComplexFloatStorage"},
    "missing": {"key": "1"},
    "another kind": {"kind": "module"},
}


@pytest.mark.parametrize("case", BOUNDS)
def test_numbers_are_bounded(tmp_path, case):
    storages = {"0": np.float32([1, 2]).tobytes()}
    assert pytorch.read(archive(tmp_path / "good", tensor_pickle(), storages=storages))["x"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=str(tmp_path / "bad")):
        pytorch.read(archive(tmp_path / "bad", tensor_pickle(**BOUNDS[case]), storages=storages))


def test_an_expanded_tensor_is_a_fault_not_memory(tmp_path):
    path = archive(tmp_path / "x", tensor_pickle(size=(1 << 40,), stride=(0,)), storages={"0": bytes(8)})
    assert storage_fault(pytorch.read(path)["x"]) == "has more elements than memory"
    assert path.stat().st_size < 2000


def old(path, whole=(None,), keys=("0",), elements=2, facts=None, version=1001, **options):
    """A file in the format before 1.6, of two numbers."""
    parts = [0x1950A86A20F9469CFC6C, version, facts or {"protocol_version": 1001, "little_endian": True}]
    data = [pickle.dumps(each, 2) for each in parts]
    data += [
        tensor_pickle(whole=whole, **options),
        pickle.dumps([*keys], 2),
        struct.pack("<q", elements),
        np.float32([1, 2]).tobytes(),
    ]
    path.write_bytes(b"".join(data))
    return path


OLD_FAULTS = {
    "parts of others": ({"whole": (("0", 0, 2),)}, "refused: its storages are parts of others"),
    "big-endian": ({"facts": {"little_endian": False}}, "refused: .* big-endian"),
    "another version": ({"version": 1002}, "refused: its format"),
    "other keys": ({"keys": ["1"]}, "damaged"),
    "one key twice": ({"keys": ["0", "0"]}, "damaged"),
    "keys of another type": ({"keys": [0]}, "damaged"),
    "another size": ({"elements": 1}, "damaged"),
    "a size beyond the file": ({"elements": 3, "count": 3}, "damaged"),
    "a negative size": ({"elements": -1, "count": -1}, "damaged"),
    "outside": ({"offset": 1}, "damaged"),
}


@pytest.mark.parametrize("case", OLD_FAULTS)
def test_old_files_are_bounded(tmp_path, case):
    assert pytorch.read(old(tmp_path / "good"))["x"].tolist() == [1, 2]
    options, message = OLD_FAULTS[case]
    with pytest.raises(ValueError, match=f"bad: .*{message}"):
        pytorch.read(old(tmp_path / "bad", **options))


def test_storages_that_overlap_are_not_copied_many_times(tmp_path):
    """A hundred names of one record would take a hundred times its memory."""
    tensors = [tensor_pickle(size=(9,), count=2000, key=str(number)) for number in range(100)]
    data = b"\x80\x02}(" + b"".join(b"K%c" % number + each[2:-1] for number, each in enumerate(tensors)) + b"u."
    path = archive(tmp_path / "x", data, storages={str(number): bytes(8000) if number == 0 else b"" for number in range(100)})
    content = path.read_bytes()
    begin = content.index(b"PK\x01\x02")
    entries = content[begin:].split(b"PK\x01\x02")[1:]
    first = next(each for each in entries if each[42:].startswith(b"archive/data/0"))
    shared = [
        each[:4] + first[4:24] + each[24:38] + first[38:42] + each[42:] if each[42:].startswith(b"archive/data/") else each
        for each in entries
    ]
    path.write_bytes(content[:begin] + b"".join(b"PK\x01\x02" + each for each in shared))
    with pytest.raises(ValueError, match="storages larger than the file"):
        pytorch.read(path)


DEEP = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."
SQUARES = b"\x80\x02K\x01\x85" + b"".join(b"q%cK%c\x86h%ch%c\x86" % (n, 0, n, n) for n in range(100)) + b"."
REFUSED = {
    "another global": (pickle.dumps({"x": Runs()}, 2), r"refused: .*global __builtin__\.print"),
    "eval": (b"\x80\x02c__builtin__\neval\n(X\x01\x00\x00\x001tR.", "refused: "),
    "a module": (b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81.", "refused: "),
    "protocol 4": (pickle.dumps({"x": 1}, 4), "refused: "),
    "an instance": (b"\x80\x02(i__builtin__\nprint\n.", "refused: .* opcode INST"),
    "a call of a value": (b"\x80\x02K\x01)R.", "damaged"),
    "a call of a data type": (b"\x80\x02ctorch\nFloatStorage\n)R.", "damaged"),
    "attributes of a list": (b"\x80\x02]}b.", "damaged"),
    "memory of a place": (b"\x80\x02h\x07.", "damaged"),
    "nothing": (b"", "damaged"),
    "no end": (b"\x80\x02}", "damaged"),
    "an empty stack": (b"\x80\x02.", "damaged"),
    "no mark": (b"\x80\x02t.", "damaged"),
    "a mark above": (b"\x80\x02K\x01K\x02(\x86\x86t.", "damaged"),
    "unhashable names": (b"\x80\x02}]K\x01s.", "damaged"),
    "names of tuples": (b"\x80\x02}K\x01\x85K\x01s.", "damaged"),
    "a huge place": (b"\x80\x02}r\xff\xff\xff\xff(", "damaged"),
    "a long text": (b"\x80\x02X\xff\xff\xff\x7fabc.", "damaged"),
    "a tensor's sizes are a tensor": (tensor_pickle().replace(b"K\x02\x85", b"h\x00\x85"), "damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused(tmp_path, case, capsys):
    data, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        pytorch.read(archive(tmp_path / "x", data, storages={"0": bytes(8)}))
    assert str(tmp_path / "x") in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not capsys.readouterr().out


def test_nesting_costs_neither_the_stack_nor_time(tmp_path):
    pytorch.read(archive(tmp_path / "deep", DEEP))
    pytorch.read(archive(tmp_path / "squares", SQUARES))


def test_files_that_are_larger_compressed_or_big_endian_are_refused(tmp_path, monkeypatch):
    good = tensor_pickle()
    for message, options in (("big-endian", {"byteorder": "big"}), ("compressed", {"compression": zipfile.ZIP_DEFLATED})):
        with pytest.raises(ValueError, match=f"refused: .*{message}"):
            pytorch.read(archive(tmp_path / "x", good, storages={"0": bytes(8)}, **options))
    monkeypatch.setattr(pytorch, "MOST_BYTES", 500)
    with pytest.raises(ValueError, match="refused: its pickle is larger than 500 bytes"):
        pytorch.read(archive(tmp_path / "x", good + bytes(500), storages={"0": bytes(8)}))
    with pytest.raises(ValueError, match="refused: its directory is larger than 500 bytes"):
        pytorch.read(archive(tmp_path / "x", good, storages={str(number): b"" for number in range(50)}))


# ---- mutations


def mutated(rng, data):
    """A few bytes of a file changed, half of them in its pickle or directory; or a part removed, doubled or moved."""
    data = bytearray(data)
    begins = [data.find(b"\x80\x02"), data.rfind(b"PK\x01\x02")]
    kind = rng.randrange(6)
    if kind < 4:
        for _ in range(rng.choice([1, 1, 2, 5])):
            first = rng.choice([0, *begins, *begins])
            at = rng.randrange(first, min(len(data), first + 600))
            data[at] = rng.choice([rng.randrange(256), data[at] ^ 1 << rng.randrange(8), 0, 255, *b"().tRQsubq"])
    else:
        first = rng.randrange(len(data))
        part = data[first : first + rng.choice([1, 4, 30, 500])]
        if kind == 4:
            del data[first : first + len(part)]
        else:
            at = rng.choice([first, rng.randrange(len(data))])
            data[at:at] = part
    return bytes(data)


def load(path):
    try:
        return torch.load(path, weights_only=True)
    except Exception:
        return None


@pytest.mark.parametrize("how", [{}, OLD])
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_mutated_files_are_refused_or_what_torch_reads(tmp_path, first, how):
    """Whatever a file asks for, its tensors lie within it; where PyTorch reads them as well, they are equal."""
    read = 0
    for seed in range(first, first + 250):
        rng, path = random.Random(seed), tmp_path / f"{seed}.bin"
        buffer = io.BytesIO()
        torch.save(random_state(seed), buffer, **how)
        path.write_bytes(mutated(rng, buffer.getvalue()))
        try:
            found = pytorch.read(path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            continue
        views = {name: each for name, each in found.items() if isinstance(each, np.ndarray)} if type(found) is dict else {}
        dense = {name: each.tobytes() for name, each in views.items() if storage_fault(each) is None}  # within the file's memory
        expected = load(path)
        if not isinstance(expected, dict):
            continue
        read += 1
        assert {name for name, each in expected.items() if isinstance(each, torch.Tensor)} == {*views}
        for name, content in dense.items():
            other = array(expected[name])
            assert (views[name].shape, views[name].dtype, content) == (other.shape, other.dtype, other.tobytes()), (seed, name)
        path.unlink()
    assert read > 10
