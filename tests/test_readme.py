"""The documents: their Python examples print what is shown, their links lead somewhere, the tree of files is true."""

import contextlib
import io
import re

import pytest
from conftest import ROOT

from specdec_plugins import Translator
from specdec_plugins.commands.translate import parser

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md", ROOT / "data" / "README.md"])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in zip(NAMES, DOCUMENTS)}
UNLISTED = ("help", "help_all", "version")
EXAMPLES = [
    (name, code, shown)
    for name in NAMES
    for code, shown in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXTS[name], re.S)
]


def run(name: str, code: str) -> tuple[str, dict]:
    """What an example prints, and its names."""
    names: dict = {"__name__": "example"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, name, "exec"), names)
    return printed.getvalue(), names


def test_there_are_examples():
    assert {name for name, _, _ in EXAMPLES} == {"README.md", "docs/translate.md", "docs/drafters.md"}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_python_examples_print_what_is_shown(number, monkeypatch):
    name, code, shown = EXAMPLES[number]
    monkeypatch.chdir(ROOT)
    assert run(name, code)[0] == shown


def test_a_drafter_of_ones_own_drafts_and_leaves_the_output(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = run(*next((name, code) for name, code, _ in EXAMPLES if "class Memory" in code))[1]
    lines = names["lines"]
    plain = Translator.from_pretrained("data/demo.en-de", strategy="ar").translate(lines, batch_size=1)
    assert [result.tokens for result in names["translator"].translate(lines)] == [result.tokens for result in plain]
    assert names["translator"].stats.accepted > 0


def test_the_manual_names_every_option_of_translate_and_no_other():
    options = [each.option_strings for each in parser()._actions if each.option_strings and each.dest not in UNLISTED]
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", TEXTS["docs/translate.md"].partition("## Model folders")[0]))
    assert [names for names in options if not named & set(names)] == []
    assert {name for name in named if name.startswith("--")} <= {name for names in options for name in names}


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings_of_the_project(name):
    folder, faults = (ROOT / name).parent, []
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        file, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        path = (folder / file).resolve() if file else ROOT / name
        known = path.is_relative_to(ROOT) and path.exists()
        if not known or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            faults.append(target)
    assert not faults


def tree() -> list[str]:
    """The paths of the tree of files in CONTRIBUTING.md."""
    block = re.search(r"## Where things go\n\n(.*?)\n\n", TEXTS["CONTRIBUTING.md"], re.S)
    assert block
    folders, paths = [""], []
    for line in block[1].splitlines():
        entry = line[4:]
        depth = (len(entry) - len(entry.lstrip())) // 2
        names = re.split(r"\s{2,}", entry.strip())[0].split()
        paths += ["".join([*folders[1 : depth + 1], each]) for each in names]
        folders[depth + 1 :] = [names[-1]]
    return paths


def test_the_tree_of_files_is_true():
    """Everything in it exists, and it has every folder of the package and every file of the engine."""
    paths = tree()
    assert [path for path in paths if not (ROOT / path).exists()] == []
    package = ROOT / "specdec_plugins"
    there = {f"{path.parent.relative_to(ROOT)}/" for path in package.glob("*/__init__.py")}
    there |= {str(path.relative_to(ROOT)) for path in (package / "decoding").glob("[!_]*.py")}
    there |= {f"{path.parent.relative_to(ROOT)}/" for path in (package / "decoding").glob("*/__init__.py")}
    assert there <= set(paths)
