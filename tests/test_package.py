"""Who imports whom: one way, without circles; fairseq only on its own side; importing does nothing, and commands start fast."""

import ast
import json
from collections import defaultdict
from pathlib import Path

import pytest
from conftest import ROOT, run_python

PACKAGE = ROOT / "specdec_plugins"
FAIRSEQ_SIDE = ("models", "criterions", "tasks")
# What the files of a part of the package may import, inside functions too: itself, and these.
MAY_IMPORT = {
    "text": (
        "extras",
        "formats.arrays",
        "formats.code",
        "formats.description",
        "formats.errors",
        "formats.spec",
        "formats.strict",
        "model",
    ),
    "cpus": (),
    "settings": ("cpus", "decoding.options"),
    "options": ("settings", "text"),
    "workers": (),
    "extras": (),
    "model": ("decoding.options",),
    "formats": ("text", "model", "decoding.options"),
    "decoding": (
        "model",
        "formats.arrays",
        "formats.spec",
        "formats.positions",
        "formats.code",
        "formats.files",
        "formats.errors",
        "formats.tensors",
        "cpus",
    ),
    "training": ("decoding", "formats", "model", "text", "settings", "commands.runner", "commands.ready", *FAIRSEQ_SIDE),
    "files": ("text", "extras"),
    "units": ("text", "translations", "translator"),
    "documents": ("decoding", "text", "translations", "translator"),
    "annotation": ("decoding", "text", "translations", "translator"),
    "terms": ("decoding", "protection", "text", "translations", "translator"),
    "protection": ("files", "text", "translations", "translator", "units"),
    "translations": ("decoding", "text"),
    "assignment": ("decoding", "formats", "model", "settings"),
    "engine": ("assignment", "decoding", "formats", "model", "settings", "translations", "measure.fairseq_generator"),
    "translator": (
        "annotation",
        "decoding",
        "documents",
        "engine",
        "formats",
        "options",
        "protection",
        "settings",
        "terms",
        "text",
        "translations",
    ),
    "serving": ("decoding", "engine", "files", "options", "settings", "text", "translations", "translator", "units"),
    "corpora": ("cpus", "formats.errors", "formats.files", "text", "workers"),
    "measure": ("decoding", "formats", "model", "text", "cpus", "engine", "settings", "translator", "workers"),
    "commands": (
        "decoding",
        "files",
        "formats",
        "text",
        "units",
        "cpus",
        "settings",
        "translations",
        "translator",
        "workers",
        "measure",
        "training",
        "serving",
        "corpora",
    ),
    "models": ("decoding", "formats", "training", "criterions"),
    "criterions": ("decoding.networks", "formats", "training"),
    "tasks": ("decoding", "formats", "model", "text", "training", "models", "criterions"),
    "__init__": ("serving.translator", "translator"),
}


def imports(path: Path, everywhere: bool) -> set[str]:
    """The package's modules that a file imports: at its top, or everywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if everywhere else top_level(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("specdec_plugins"):
            found |= {f"{node.module}.{each.name}" for each in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names if each.name.startswith("specdec_plugins.")}
    return {name.removeprefix("specdec_plugins.") for name in found if name != "specdec_plugins"} & set(MODULES)


def top_level(tree: ast.Module):
    """The statements that run on import; those under ``if TYPE_CHECKING`` do not."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.Try) else [node]


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    part = next(name for name in (".".join(module.split(".")[:2]), module.split(".")[0]) if name in MAY_IMPORT)
    allowed = (part, "extras", *MAY_IMPORT[part])
    for other in imports(MODULES[module], everywhere=True):
        fits = any(other == name or other.startswith(f"{name}.") or name.startswith(f"{other}.") for name in allowed)
        assert fits, f"{module} imports {other}"


def test_imports_have_no_circles():
    graph = {module: imports(path, everywhere=False) - {module} for module, path in MODULES.items()}

    def reachable(start):
        seen, todo = set(), [start]
        while todo:
            for other in graph[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {module: reachable(module) for module in graph}
    circles = defaultdict(set)
    for module in graph:
        if module in reached[module]:
            circles[module] = {other for other in reached[module] if module in reached[other]}
    assert not circles


def test_every_part_has_its_rule():
    assert {module.split(".")[0] for module in MODULES} <= {*MAY_IMPORT, "specdec_plugins", ""}


def test_importing_the_package_does_nothing():
    code = "import sys; before = set(sys.modules); import specdec_plugins; print(sorted(set(sys.modules) - before))"
    assert run_python("-c", code).stdout == "['specdec_plugins']\n"


def test_no_fairseq_outside_its_side():
    """In one process, everything that does not belong to fairseq's side."""
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
