"""What a new user meets first: refusals that come at once, runs that are interrupted, commands that are given in errors."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

from specdec_plugins import extras
from specdec_plugins.commands import translate
from specdec_plugins.commands.translation import files

PAIR = str(ROOT / "data" / "demo.en-de")


def test_an_interrupted_run_says_how_many_files_it_wrote(tmp_path, capfd, monkeypatch):
    paths = [tmp_path / f"{number}.md" for number in range(3)]
    for path in paths:
        path.write_text("A dog.\n\nA cat.\n", encoding="utf-8")
    write = files.File.write

    def interrupted(file, least):
        if file.name == str(paths[2]):
            raise KeyboardInterrupt
        return write(file, least)

    monkeypatch.setattr(files.File, "write", interrupted)
    options = ["--model", PAIR, *map(str, paths), "-o", f"{tmp_path}/out/", "--buffer-size", "2"]
    assert translate.main(options) == 130
    assert capfd.readouterr().err == "specdec-translate: stopped (files written: 2 of 3)\n"


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_commands_in_errors_install_from_the_checkout(extra, tmp_path, monkeypatch):
    """From any folder, into this environment; an installed copy says where to run its command."""
    *setting, python, _, _, _, _, constraints, _, package = shlex.split(extras.install_command(extra))
    assert Path(python).exists() and Path(constraints).is_file() and package == f"{ROOT}[{extra}]"
    assert setting == [f"PIP_BUILD_CONSTRAINT={constraints}"] * (extra == "train")
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    copy = extras.install_command(extra)
    assert copy.startswith("in the checkout of SpecDec: ") and copy.endswith(f'pip install -c constraints.txt ".[{extra}]"')


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
