"""Who imports whom: one way, without circles; fairseq only on its own side; importing does nothing, and commands start fast."""

import ast
import json
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT, run_python

PACKAGE = ROOT / "specdec_plugins"
FAIRSEQ_SIDE = ("models", "criterions", "tasks")
# What the files of each part may import beside itself and `extras`, in functions and for type checking too; lower parts first.
MAY_IMPORT = {
    "extras": "",
    "cpus": "",
    "workers": "",
    "fields": "",
    "model": "",
    "decoding": "model cpus extras",
    "settings": "cpus decoding fields",
    "text": "model",
    "formats": "text model",
    "files": "text",
    "options": "fields settings text",
    "translations": "decoding text",
    "assignment": "decoding extras fields formats settings",
    "sessions": "decoding",
    "engine": "assignment decoding formats model sessions settings translations",
    "fairseq_engine": "assignment decoding engine formats model settings",
    "interfaces": "engine options text translations",
    "annotation": "decoding interfaces options text translations",
    "whole_lines": "annotation decoding interfaces options text translations",
    "documents": "decoding interfaces options sessions text translations whole_lines",
    "units": "interfaces text translations",
    "protection": "files interfaces options settings text translations units",
    "terms": "decoding interfaces options protection text translations",
    "rewriters": "documents interfaces options protection settings terms text translations whole_lines",
    "translator": "decoding engine fairseq_engine fields formats options rewriters sessions settings text translations "
    "whole_lines",
    "training": "decoding engine formats model settings",
    "serving": "decoding engine fields files formats options sessions settings text training translations translator "
    "units workers",
    "corpora": "cpus formats text workers",
    "measure": "cpus decoding engine formats settings text translator workers",
    "criterions": "decoding training",
    "models": "decoding formats training",
    "tasks": "criterions decoding formats model models text training",
    "commands": "corpora cpus decoding fields files formats measure models options serving settings text training translations "
    "translator units whole_lines workers",
    "__init__": "serving translator",
}
UPWARDS = {  # and what else: modules that would not have to lie where they do
    ("model", "decoding.options"): "a model names its beam search",
    ("formats", "decoding.options"): "limits of searches",
    ("formats", "decoding.backends.torch.arrays"): "weights of fairseq's checkpoints are tensors",
    ("decoding", "formats.spec"): "a spec and its tensors, whatever file they came from",
    ("decoding", "formats.arrays"): "tensors as arrays",
    ("decoding", "formats.packed"): "panels as the kernels pack them",
    ("decoding", "formats.tensors"): "datastores are files of arrays",
    ("text", "formats.arrays"): "attention as arrays",
    ("decoding", "formats.positions"): "tables computed from a spec",
    ("decoding", "formats.code"): "finds an object by its name",
    ("decoding", "formats.files"): "checks and maps files of numbers; datastores are such",
    ("decoding", "formats.errors"): "how errors quote names",
    ("text", "formats.code"): "finds an object by its name",
    ("text", "formats.errors"): "how errors quote names",
    ("text", "formats.strict"): "checks types of JSON",
    ("text", "formats.description"): "the codec's entry in a model folder",
}
# Modules of one backend, or of one kind of drafter, that name each other's classes for type checking.
NAMED = {
    ("decoding.networks.decoder", "decoding.networks.drafter_code"),
    ("decoding.backends.cpu.passes", "decoding.backends.cpu.model"),
    ("decoding.backends.cpu.rules", "decoding.backends.cpu.model"),
}


@cache
def imports(path: Path) -> set[str]:
    """The package's modules that a file imports, anywhere in it."""
    found, here = set(), path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = ".".join([*here[: -node.level], node.module]) if node.level else node.module
            module = module.removeprefix("specdec_plugins.")
            found |= {name if name in MODULES else module for name in (f"{module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name.removeprefix("specdec_plugins.") for each in node.names}
    return found & {*MODULES}


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")
}


def part_of(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    part = part_of(module)
    for other in imports(MODULES[module]):
        fits = part_of(other) in (part, "extras", *MAY_IMPORT[part].split()) or (part, other) in UPWARDS
        assert fits, f"{module} imports {other}"


def test_parts_are_in_order_and_import_all_that_they_may():
    parts, found = [*MAY_IMPORT], {(part_of(module), other) for module, path in MODULES.items() for other in imports(path)}
    for number, (part, others) in enumerate(MAY_IMPORT.items()):
        assert {*others.split()} <= {*parts[:number]}, part
        assert {*others.split()} <= {part_of(other) for one, other in found if one == part}, part
    assert {*UPWARDS} <= found and {part_of(module) for module in MODULES} - {"specdec_plugins", ""} == {*parts}


def test_imports_have_no_circles():
    graph = {
        module: {other for other in imports(path) - {module} if (module, other) not in NAMED} for module, path in MODULES.items()
    }
    assert all(other in imports(MODULES[module]) for module, other in NAMED)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_only_tables_have_a_layout_of_their_own():
    """All else is ruff's to lay out. To add one, expand another."""
    folders = ("specdec_plugins", "tests", "benchmarks", "data")
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sum(text.count("# fmt:" + mark) for text in texts for mark in (" skip", " off")) <= 40


def test_importing_the_package_does_nothing():
    code = "import sys; before = set(sys.modules); import specdec_plugins; print(sorted(set(sys.modules) - before))"
    assert run_python("-c", code).stdout == "['specdec_plugins']\n"


def test_no_fairseq_outside_its_side():
    """In one process, everything that does not belong to fairseq's side."""
    pytest.importorskip("torch")
    names = [f"specdec_plugins.{module}" for module in MODULES if module.split(".")[0] not in (*FAIRSEQ_SIDE, "__init__")]
    names = [name for name in names if not name.endswith("__main__")]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint('fairseq' in sys.modules)"
    assert run_python("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "command", ["prepare", "average", "translate", "pack", "score", "serve", "benchmark", "draft", "encoder_initial.py"]
)
def test_help_imports_nothing_heavy(command):
    script = [command] if command.endswith(".py") else ["-m", f"specdec_plugins.commands.{command}"]
    loaded = run_python("-X", "importtime", *script, "--help")
    assert "usage:" in loaded.stdout
    modules = {line.rpartition("|")[2].strip() for line in loaded.stderr.splitlines()}
    assert not modules & {"fairseq", "torch", "matplotlib", "ctranslate2", "sacrebleu", "sacremoses"}


@pytest.mark.long
def test_the_first_translation_takes_little_beside_numpy():
    """Bounds with room for a busy machine: the promise is 0.35 s, and 120 MB in all; see `benchmarks/startup.py`."""
    found = json.loads(run_python("benchmarks/startup.py", "--rounds", 3).stdout.splitlines()[-1])
    assert found["more_cpu_seconds"] < 12 * found["numpy_cpu_seconds"] and found["more_peak_mib"] < 120
