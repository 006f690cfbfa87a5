"""Models of the Hub by name, fetched from a stand-in server: which files, which revision, from the cache, and what goes wrong."""

import json
import shutil
import sys
from pathlib import Path

import hf_text
import numpy as np
import pytest
import torch
from conftest import ROOT, run_forked, run_python
from hub_server import Hub
from test_hf_translator import saved

from specdec_plugins.formats import hub
from specdec_plugins.formats.folder import load_folder, save_folder

pytest.importorskip("huggingface_hub", reason="needs the extra hf")
LINE, FILE = "The quick brown fox", str(ROOT / "data" / "demo.txt")
NOT_THERE = "not in the cache of huggingface_hub, or not whole"
READ = ["config.json", "generation_config.json", "source.spm", "target.spm", "tokenizer_config.json", "vocab.json"]
JUNK = ("README.md", "tf_model.h5", "rust_model.ot", "flax_model.msgpack", "model.onnx", "onnx/model.safetensors", "code.py")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server, and its models: with safetensors, pickled, in shards, a folder of ours, gated."""
    folder, server = tmp_path_factory.mktemp("hub"), Hub()
    marian = folder / "marian"
    marian.mkdir()
    _, model = saved(marian, hf_text.marian, "marian", "Marian")
    for name in JUNK:
        (marian / name).parent.mkdir(exist_ok=True)
        (marian / name).write_bytes(b"x" * 1000)
    torch.save(model.float().state_dict(), marian / "pytorch_model.bin")
    pickled, sharded, other = (shutil.copytree(marian, folder / name) for name in ("pickled", "sharded", "other"))
    (pickled / "model.safetensors").unlink()
    model.save_pretrained(sharded, max_shard_size="20KB")
    (sharded / "model.safetensors").unlink(missing_ok=True)
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight.mul_(3)
    model.save_pretrained(other)
    save_folder(load_folder(marian), folder / "ours")
    (folder / "ours" / "README.md").write_text("ours")
    (folder / "empty").mkdir()
    (folder / "empty" / "README.md").write_text("nothing")
    for name in ("marian", "pickled", "sharded", "ours", "empty"):
        server.publish(f"org/{name}", folder / name)
    server.publish("org/moving", marian)
    server.publish("org/marian", other, "v1")
    server.publish("org/closed", marian)
    server.gated.add("org/closed")
    server.folder = folder
    yield server
    server.shutdown()


def run(name, environment, status=0, fresh=False, **more):
    """What specdec-translate says of a model before it loads it: its error, or the folder that it takes. A fresh process shows
    that torch is not needed; a fork is sooner there."""
    code = f"from specdec_plugins.formats import hub; print(hub.find({name!r}))"
    if status:
        arguments = ["--model", name, "-i", FILE]
        code = f"from specdec_plugins.commands import translate; raise SystemExit(translate.main({arguments}))"
    environment = {**environment, **more}
    if fresh:
        result = run_python(
            "-c",
            f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}",
            check=False,
            **environment,
        )
        assert result.stdout.endswith("False\n")
        result.stdout = result.stdout.removesuffix("False\n")
    else:
        result = run_forked(executed, code, **environment)
    said = result.stderr.splitlines()
    assert result.returncode == status, said
    if not status:
        return Path(result.stdout.strip())
    assert said[-1].startswith("specdec-translate: error: ") and "Traceback" not in said
    return said[-1]


def executed(code):
    """With huggingface_hub imported anew, as it reads the environment then."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    exec(code, {})


def same(folder, other):
    """Whether two folders have one model: its weights, and what its codec makes of a line."""
    one, two = load_folder(folder), load_folder(other)
    weights = one.verifier.tensors.keys() == two.verifier.tensors.keys() and all(
        np.array_equal(tensor, two.verifier.tensors[name]) for name, tensor in one.verifier.tensors.items()
    )
    return weights and one.codec.encode(LINE).ids == two.codec.encode(LINE).ids


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_the_files_that_are_needed_are_fetched_once(served, environment):
    """Then the cache answers: without a server, offline, and for a commit."""
    folder = run("org/marian", environment, fresh=True)
    assert sorted(served.asked) == names(folder) == sorted([*READ, "model.safetensors"])
    assert same(folder, served.folder / "marian")
    served.asked.clear()
    commit = served.repositories["org/marian"][0]["main"]
    assert run("org/marian", environment) == folder and not served.asked
    assert run(f"org/marian@{commit}", environment, HF_HUB_OFFLINE="1") == folder
    assert run("org/marian", environment, HF_HUB_OFFLINE="1") == folder
    assert run("org/marian", environment, HF_ENDPOINT="http://127.0.0.1:9") == folder and not served.asked
    other = run("org/marian@v1", environment)
    assert same(other, served.folder / "other") and not same(other, folder)
    assert run("org/marian@v1", environment, HF_HUB_OFFLINE="1") == other


def test_a_branch_that_moves_is_followed(served, environment):
    before = run("org/moving", environment)
    served.publish("org/moving", served.folder / "other")
    after = run("org/moving", environment)
    assert same(before, served.folder / "marian") and same(after, served.folder / "other")
    assert run("org/moving", environment, HF_HUB_OFFLINE="1") == after


@pytest.mark.parametrize("name", ["pickled", "sharded", "ours"])
def test_weights_in_other_forms(served, environment, name):
    """Pickled ones only where there are no others; shards with their index; a model folder's own names."""
    folder = run(f"org/{name}", environment)
    weights = ["pytorch_model.bin"]
    if name == "sharded":
        weights = [path.name for path in (served.folder / name).glob("model*.safetensors*")]
        assert len(weights) > 2
    expected = [*READ, *weights] if name != "ours" else [each for each in names(served.folder / "ours") if each != "README.md"]
    assert sorted(served.asked) == names(folder) == sorted(expected)
    assert same(folder, served.folder / "marian") and run(f"org/{name}", environment, HF_HUB_OFFLINE="1") == folder


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("org/none", {}, "org/none: no such folder, and no such model on the Hugging Face Hub, or a private one"),
        ("org/marian@v9", {}, "org/marian@v9: the model has no such revision"),
        ("org/closed", {}, "org/closed: ask for access on the model's page"),
        ("org/marian", {"HF_HUB_OFFLINE": "1"}, f"org/marian: {NOT_THERE}, and HF_HUB_OFFLINE is set"),
        ("org/marian", {"HF_ENDPOINT": "http://127.0.0.1:9"}, f"org/marian: {NOT_THERE}, and the Hub cannot be reached: "),
        ("org/empty", {}, "org/empty: the repository has neither config.json nor model.json"),
        ("data/demo.en-dee", {}, "data/demo.en-dee: no such folder"),
        ("../x", {}, "../x: no such folder"),
        ("marian", {}, "marian: no such folder; a model of the Hugging Face Hub is named ORG/NAME"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(environment, name, more, said):
    assert said in run(name, environment, 1, name == "org/none", **more)


def test_a_download_that_broke_off_is_completed(served, environment):
    """Offline a part of a model is refused; online the rest is fetched, and nothing else."""
    folder = run("org/marian", environment)
    (folder / "model.safetensors").resolve().unlink()
    (folder / "model.safetensors").unlink()
    assert f"org/marian@{folder.name}: {NOT_THERE}" in run("org/marian", environment, status=1, HF_HUB_OFFLINE="1")
    served.asked.clear()
    assert run("org/marian", environment) == folder and served.asked == ["model.safetensors"]


def test_a_command_and_python(served, environment, tmp_path):
    imported = ["org/marian", "--output", str(tmp_path / "mine")]
    code = (
        "from specdec_plugins import Translator\n"
        "from specdec_plugins.commands import import_model\n"
        f"plain = Translator.from_pretrained({str(served.folder / 'marian')!r}, threads=1).translate([{LINE!r}])[0].text\n"
        f"assert Translator.from_pretrained('org/marian', threads=1).translate([{LINE!r}])[0].text == plain\n"
        "Translator.from_pretrained('org/marian', 'org/marian@v1', threads=1)\n"
        f"assert import_model.main({imported}) == 0\n"
    )
    result = run_forked(executed, code, **environment)
    assert result.returncode == 0 and "Fetching" not in result.stderr, result.stderr
    assert same(tmp_path / "mine", served.folder / "marian")


@pytest.mark.long
@pytest.mark.parametrize("command", ["translate", "corpus", "benchmark", "serve", "import_model"])
def test_commands(served, environment, command, tmp_path):
    """Each loads the model by its name; workers take the folder that the command found."""
    output, text = tmp_path / "out", tmp_path / "text"
    text.write_text(f"{LINE}\n" * 3)
    arguments = {
        "translate": ("-i", text, "-o", output, "--workers", 2),
        "corpus": (text, "--output", output, "--workers", 2),
        "benchmark": ("--input", text, "--systems", "ar", "--dtypes", "float32", "--measure", "latency", "--rounds", 1),
        "serve": ("--port", 0, "--draft-with", "nothing"),
        "import_model": ("--output", output, "--check", text),
    }[command]
    model = ["org/marian"] if command == "import_model" else ["--model", "org/marian"]
    status = int(command == "serve")  # it checks the model first, then the drafter
    found = run_python("-m", f"specdec_plugins.commands.{command}", *model, *arguments, check=False, **environment)
    assert found.returncode == status, found.stderr
    assert "model.safetensors" in served.asked
    if command == "benchmark":
        assert json.loads(found.stdout.splitlines()[-1])["signature"]["model"] == "org/marian"
    elif command == "import_model":
        assert json.loads((output / "certificate.json").read_text())["outputs"] > 0
        assert same(output, served.folder / "marian")
    elif not status:
        lines = output if output.is_file() else output / "part-00000.txt"
        assert lines.read_text().count("\n") == 3
        assert "org/marian has no drafter" in found.stderr


def test_names():
    """A server names models without organisation and revision; other machines get the commit."""
    folder = str(ROOT / "data" / "demo.en-de")
    assert hub.short("Helsinki-NLP/opus-mt-en-de@v1") == "opus-mt-en-de" and hub.short(folder) == "demo.en-de"
    assert (
        hub.title("/c/hub/models--org--a--b/snapshots/abc") == "org/a--b"
        and hub.title(folder) == folder
        and hub.title("x") == "x"
    )
    assert hub.pinned("org/name@v1", "/cache/snapshots/abc") == "org/name@abc" and hub.pinned(folder, folder) == folder


def test_without_huggingface_hub_the_error_gives_the_commands(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError) as error:
        hub.find("Helsinki-NLP/opus-mt-en-de@v1")
    download, imported = (
        "hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de",
        "specdec-import opus-mt-en-de --output opus-mt-en-de.specdec",
    )
    said = str(error.value)
    assert said.index("[hf]") < said.index(download) < said.index(imported)
