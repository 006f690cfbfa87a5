"""What a new user meets first: refusals that come at once, runs that are interrupted, commands that are given in errors."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, run_python

from specdec_plugins import extras
from specdec_plugins.commands import benchmark, serve, translate
from specdec_plugins.commands.translation import files

PAIR = str(ROOT / "data" / "demo.en-de")


def test_an_interrupted_run_says_how_many_files_it_wrote(tmp_path, capfd, monkeypatch):
    paths = [tmp_path / f"{number}.md" for number in range(3)]
    for path in paths:
        path.write_text("A dog.\n\nA cat.\n", encoding="utf-8")
    write = files.File.write

    def interrupted(file, *options):
        if file.name == str(paths[2]):
            raise KeyboardInterrupt
        return write(file, *options)

    monkeypatch.setattr(files.File, "write", interrupted)
    options = ["--model", PAIR, *map(str, paths), "-o", f"{tmp_path}/out/", "--buffer-size", "2"]
    assert translate.main(options) == 130
    assert capfd.readouterr().err == "specdec-translate: stopped (files written: 2 of 3)\n"


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_commands_in_errors_install_an_extra(extra, tmp_path, monkeypatch):
    """From any folder, into this environment; an installed copy names the packages."""
    monkeypatch.setattr(extras, "ROOT", ROOT)  # these tests may run an installed copy: .ci/wheel
    *before, python, _, _, _, _, constraints, _, package = shlex.split(extras.install_command(extra))
    assert Path(python).exists() and Path(constraints).is_file() and package == f"{ROOT}[{extra}]"
    newer = [python, "-m", "pip", "install", "pip>=25.3", "&&", f"PIP_BUILD_CONSTRAINT={constraints}"]
    assert before == newer * (extra == "train")
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    python, _, _, _, *packages = shlex.split(extras.install_command(extra))
    assert python == sys.executable and [*map(sorted, packages)] == [*map(sorted, EXTRAS[extra])]  # the bounds in any order


def test_no_command_installs_the_package_by_a_name_that_no_index_has():
    """Pages and errors; the Makefile may, once the package is there."""
    files = [path for folder in ("", "docs", "benchmarks", "data") for path in (ROOT / folder).glob("*.md")]
    files += list((ROOT / "specdec_plugins").rglob("*.py"))
    assert [path for path in files if "specdec-seq2seq[" in path.read_text(encoding="utf-8")] == []


def test_every_extra_that_is_named_exists():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "specdec_plugins").rglob("*.py"))
    named = set(re.findall(r'(?:with needed|install_command)\("(\w+)"', sources.replace("'", '"')))
    assert named and named <= set(EXTRAS)
    files = [path for folder in ("", "docs", "benchmarks") for path in (ROOT / folder).glob("*.md")]
    pages = "".join(path.read_text(encoding="utf-8") for path in files)
    assert {each for names in re.findall(r'"\.\[([\w,]+)\]"', pages) for each in names.split(",")} <= set(EXTRAS)


# The commands, what they get (in a folder with text.txt, an empty folder and a folder that cannot be entered by name) and say.
MISSING = "No such file or directory"
NO_MODEL = "none: no such folder; a model of the Hugging Face Hub is named ORG/NAME"
GIVEN = ["--model", PAIR, "-i", "text.txt"]
REFUSED = [
    ("translate", ["--model", "none", "-i", "text.txt"], NO_MODEL),
    ("translate", ["--model", "empty", "-i", "text.txt"], "empty: not a model folder (no model.json in it)"),
    ("translate", ["--model", "text.txt", "-i", "text.txt"], "text.txt: not a model folder (not a folder)"),
    ("translate", ["--model", "lost", "-i", "text.txt"], "lost: not a model folder (no drafter.safetensors in it)"),
    ("translate", ["--model", "damaged", "-i", "text.txt"], "damaged/model.json: damaged or not ours"),
    ("translate", [*GIVEN, "--device", "tpu"], "device tpu: use cpu, cuda or cuda:N"),
    ("translate", [*GIVEN, "--kernels", "avx512"], "kernels for avx512 cannot run here: they were not compiled"),
    ("translate", ["--verifier", "none.pt", "--data", "empty", "--strategy", "ar"], f"none.pt: {MISSING}"),
    ("translate", ["--verifier", "text.txt", "--data", "none", "--strategy", "ar"], f"none: {MISSING}"),
    ("translate", ["--verifier", "text.txt", "--data", "text.txt", "--strategy", "ar"], "text.txt: Not a directory"),
    ("translate", ["--verifier", "text.txt", "--data", "empty", "--codes", "none", "--strategy", "ar"], f"none: {MISSING}"),
    ("translate", [*GIVEN, "--drafter", "none"], NO_MODEL.replace("model", "drafter")),
    ("translate", [*GIVEN, "--draft-with", "none"], "no drafter without weights is named 'none'; available: ngram, "),
    ("translate", [*GIVEN, "--draft-with", "none:X"], "drafter 'none:X': No module named 'none'"),
    ("translate", [*GIVEN, "--draft-with", "retrieval", "--datastore", "none"], f"none: {MISSING}"),
    ("translate", [*GIVEN, "--draft-with", "previous", "--hint", "none"], f"none: {MISSING}"),
    ("translate", [*GIVEN, "--glossary", "none"], f"none: {MISSING}"),
    ("translate", [*GIVEN, "--glossary", "text.txt"], "text.txt, line 1: not a source term and its translation"),
    ("translate", [*GIVEN, "--format", "fairseq", "--reference", "none"], f"none: {MISSING}"),
    ("translate", [*GIVEN, "-o", "none/out"], f"none/out: {MISSING}"),
    ("translate", [*GIVEN, "-o", "text.txt/out"], "text.txt/out: Not a directory"),
    ("translate", ["--model", PAIR, "text.txt", "-o", "text.txt/out/"], "text.txt/out/: Not a directory"),
    ("translate", ["--model", PAIR, "none.md", "-o", "out.md"], f"none.md: {MISSING}"),
    ("translate", ["--model", PAIR, "bad.json", "-o", "out.json"], "bad.json, line 1: not JSON"),
    ("corpus", ["none", "--model", PAIR, "--output", "out"], f"none: {MISSING}"),
    ("corpus", ["text.txt", "--model", "none", "--output", "out"], NO_MODEL),
    ("corpus", ["text.txt", "--model", PAIR, "--output", "text.txt"], "text.txt: Not a directory"),
    ("serve", ["--model", "none", "--port", "0"], NO_MODEL),
    ("serve", ["--model", PAIR, "--port", "BUSY"], "Address already in use; choose another --port"),
    ("serve", ["--model", PAIR, "--port", "0", "--host", "203.0.113.7"], "203.0.113.7:0: Cannot assign requested address"),
    ("serve", ["--model", PAIR, "--port", "0", "--keys", "none"], f"none: {MISSING}"),
    ("serve", ["--model", PAIR, "--port", "0", "--keys", "empty.txt"], "empty.txt: no keys; write one per line"),
    ("serve", ["--model", PAIR, "--port", "0", "--device", "tpu"], "device tpu: use cpu, cuda or cuda:N"),
    ("serve", ["--model", PAIR, "--port", "0", "--glossaries", "text.txt"], "text.txt: Not a directory"),
    ("serve", ["--model", PAIR, "--port", "0", "--draft-with", "none"], "no drafter without weights is named 'none'"),
    ("import_model", ["none", "--output", "out"], NO_MODEL),
    ("import_model", [PAIR, "--output", "empty"], "empty already exists"),
    ("import_model", [PAIR, "--output", "text.txt/out"], "text.txt/out: Not a directory"),
    ("import_model", [PAIR, "--check", "none"], f"none: {MISSING}"),
    ("benchmark", ["--model", "none", "--input", "text.txt"], NO_MODEL),
    ("benchmark", ["--model", PAIR, "--input", "none"], f"none: {MISSING}"),
    ("benchmark", ["--model", PAIR, "--input", "text.txt", "--device", "tpu"], "device tpu: use cpu, cuda or cuda:N"),
    ("benchmark", ["--model", PAIR, "--input", "text.txt", "--kernels", "avx512"], "kernels for avx512 cannot run here"),
    ("benchmark", ["--model", PAIR, "--input", "text.txt", "--reference", "none"], f"none: {MISSING}"),
    ("score", ["none", "--reference", "text.txt"], f"none: {MISSING}"),
    ("score", ["text.txt", "--reference", "none"], f"none: {MISSING}"),
    ("score", ["text.txt", "--reference", "text.txt", "--json", "none/out"], f"none/out: {MISSING}"),
    ("pack", ["--verifier", "none", "--data", "empty", "--output", "out"], f"none: {MISSING}"),
    ("pack", ["--verifier", "text.txt", "--data", "none", "--output", "out"], f"none: {MISSING}"),
    ("pack", ["--verifier", PAIR, "--drafter", "none", "--output", "out"], f"none: {MISSING}"),
    ("pack", ["--verifier", PAIR, "--output", "empty"], "empty already exists"),
    ("average", ["--inputs", "text.txt", "none", "--output", "out"], f"none: {MISSING}"),
    ("average", ["--inputs", "text.txt", "--output", "empty"], "empty: Is a directory"),
    ("datastore", ["--model", "none", "--output", "out", "text.txt"], NO_MODEL),
    ("datastore", ["--model", PAIR, "--output", "out", "none"], f"none: {MISSING}"),
    ("datastore", ["--model", PAIR, "--output", "empty", "text.txt"], "empty: Is a directory"),
    ("demo", ["--model", "none", "--input", "text.txt"], NO_MODEL),
    ("initialise", ["--verifier", "none", "--output", "out"], f"none: {MISSING}"),
    ("initialise", ["--verifier", "text.txt", "--data", "none", "--output", "out"], f"none: {MISSING}"),
]
# Runs commands in one process, in which importing torch, transformers or fairseq ends it.
RUNNER = """
import contextlib, importlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "fairseq"):
            sys.exit(f"{name} is imported for {command} {arguments}")

from specdec_plugins.decoding import compiled
compiled.library = lambda name=None, library=compiled.library: None if name == "avx512" else library(name)
compiled.FOLDER = compiled.Path("none")
found = []
for command, arguments in json.load(sys.stdin):
    module = importlib.import_module(f"specdec_plugins.commands.{command}")
    sys.meta_path.insert(0, Refuse())
    with contextlib.redirect_stderr(io.StringIO()) as err:
        status = module.main(arguments)
    del sys.meta_path[0]
    found.append([status, err.getvalue()])
print(json.dumps(found))
"""


@pytest.mark.parametrize("command", [translate, serve, benchmark])
def test_a_gpu_needs_a_torch_for_gpus(command, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(importlib.metadata, "version", {"torch": "2.13.0+cpu"}.get)
    model = ["--model", PAIR, "--device", "cuda"]
    more = ["--input", str(ROOT / "data" / "demo.txt")] if command is not serve else ["--port", "0"]
    assert command.main([*model, *more]) == 1
    assert ": error: device cuda: PyTorch is installed as its CPU build; install its CUDA build" in capsys.readouterr().err


def test_what_cannot_work_is_refused_before_anything_is_loaded(tmp_path):
    pytest.importorskip("fastapi")
    (tmp_path / "text.txt").write_text("A dog.\n")
    (tmp_path / "bad.json").write_text('{"a": "b",')
    (tmp_path / "empty.txt").write_text("# no key\n")
    (tmp_path / "empty").mkdir()
    for name in ("lost", "damaged"):
        shutil.copytree(PAIR, tmp_path / name)
    (tmp_path / "lost" / "drafter.safetensors").unlink()
    (tmp_path / "damaged" / "model.json").write_text("{")
    before = sorted(path.name for path in tmp_path.iterdir())
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        given = [[command, [port if each == "BUSY" else each for each in arguments]] for command, arguments, _ in REFUSED]
        result = subprocess.run(
            [sys.executable, "-c", RUNNER],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert result.returncode == 0, result.stderr
    for (command, arguments, said), (status, err) in zip(REFUSED, json.loads(result.stdout), strict=True):
        assert status == 1 and "error: " in err and said in err and err.count("\n") == 1, (command, arguments, err)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "command, arguments, status",
    [
        ("translate", [*GIVEN, "--beta", "0"], 2),
        ("translate", ["--model", PAIR, "-i", "none"], 1),
        ("translate", ["--model", "none", "-i", str(ROOT / "README.md")], 1),
        ("corpus", ["none", "--model", PAIR, "--output", "out"], 1),
        ("serve", ["--model", PAIR, "--port", "70000"], 2),
        ("serve", ["--model", PAIR, "--port", "BUSY"], 1),
        ("benchmark", ["--model", PAIR, "--input", "none"], 1),
        ("score", ["none", "--reference", "none"], 1),
        ("pack", ["--verifier", "none", "--data", "none", "--output", "out"], 1),
        ("average", ["--inputs", "none", "--output", "out"], 1),
        ("datastore", ["--model", PAIR, "--output", "out", "none"], 1),
        ("import_model", [PAIR], 2),
        ("prepare", ["--nonsense"], 2),
    ],
)
def test_a_process_that_refuses_imports_nothing_heavy(command, arguments, status, tmp_path):
    """From the first line of the command on, which the test above does not see."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        given = [str(busy.getsockname()[1]) if each == "BUSY" else each for each in arguments]
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", f"specdec_plugins.commands.{command}", *given],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert result.returncode == status, result.stderr[-500:]
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not imported & {
        "torch",
        "numpy",
        "fairseq",
        "transformers",
        "sacrebleu",
        "sacremoses",
        "fastapi",
        "uvicorn",
        "pyarrow",
    }


@pytest.mark.long
def test_transformers_imports_beside_fairseq():
    """In the environment of ``make install``, which removes the torchaudio that fairseq requires where it does not load."""
    run_python("-c", "import fairseq; from transformers import MarianMTModel")


COMPLETED = [
    ("translate", "specdec-translate --sou", ["--source-lang"]),
    ("translate", "specdec-translate --strategy ", ["specdec", "ar", "drafter", "fairseq"]),
    ("translate", "specdec-translate --draft-with re", ["recycling", "retrieval"]),
    ("translate", "specdec-translate --dtype int", ["int8", "int4"]),
    ("serve", "specdec-serve --dtype bf", ["bfloat16"]),
    ("benchmark", "specdec-benchmark --systems ct", ["ctranslate2"]),
    ("import_model", "specdec-import --ha", ["--half"]),
    ("prepare", "specdec-prepare --tokenizer byte", ["byte-level"]),
]


@pytest.mark.parametrize(("command", "line", "expected"), COMPLETED)
def test_completion(command, line, expected, tmp_path):
    """What a shell gets, by argcomplete's protocol."""
    pytest.importorskip("argcomplete")
    output = tmp_path / "completions"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\v",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(output),
        "_ARGCOMPLETE_SHELL": "zsh",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    result = run_python("-X", "importtime", "-m", f"specdec_plugins.commands.{command}", **environment)
    assert [each.partition(":")[0].strip() for each in output.read_text().split("\v")] == expected
    assert "| torch\n" not in result.stderr


def test_commands_do_not_import_argcomplete():
    loaded = run_python("-X", "importtime", "-m", "specdec_plugins.commands.translate", "--version").stderr
    assert "argcomplete" not in loaded and "huggingface_hub" not in loaded and "importlib.metadata" not in loaded
