"""The Containerfile, the systemd unit and the recipe for conda-forge: what they run exists. What is checked of wheels.

`test_container.py` builds the image.
"""

import hashlib
import json
import re
import shlex
import subprocess
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader

import pytest
from conftest import ROOT, run_python

from specdec_plugins import __version__
from specdec_plugins.commands import serve
from specdec_plugins.decoding.options import KERNELS

DEPLOY = ROOT / "docs" / "deploy"
CONTAINER = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
UNIT = (DEPLOY / "specdec-serve.service").read_text()
RECIPE = DEPLOY / "conda-forge" / "recipe.yaml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def options_of(arguments, tmp_path):
    """The command's options; the configuration, which is on another machine, is a file here."""
    config = tmp_path / "serve.toml"
    config.write_text('port = 5000\n[model.demo]\nfolder = "data/demo.en-de"\n')
    return serve.parser().parse_args([str(config) if each.endswith("/serve.toml") else each for each in arguments])


def test_the_container_starts_the_server(tmp_path):
    entry, usual, health = (json.loads(re.search(rf"{name} (\[.*\])", CONTAINER)[1]) for name in ("ENTRYPOINT", "\nCMD", " CMD"))
    assert entry[0] == "specdec-serve" and re.search(r"^USER [1-9]", CONTAINER, re.M)
    options = options_of([*entry[1:], *usual], tmp_path)
    assert serve.check(options) == [] and options.host == "0.0.0.0"
    port = re.search(r"EXPOSE (\d+)", CONTAINER)[1]
    assert int(port) == options.port and f":{port}/health" in health[-1]
    compile(health[-1], "HEALTHCHECK", "exec")


def test_the_container_copies_and_installs_what_there_is():
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINER, re.M):
        assert all((ROOT / each).exists() for each in sources.split())
    assert "fairseq" not in re.sub(r"#.*", "", CONTAINER)
    extras = re.search(r'"\.\[(.*?)\]"', CONTAINER)[1].split(",")
    assert {*extras} <= {*PROJECT["project"]["optional-dependencies"]}


def test_the_unit_starts_the_server(tmp_path):
    program, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", UNIT, re.M)[1])
    options = options_of(arguments, tmp_path)
    assert program.endswith("/specdec-serve") and serve.check(options) == []
    stopping = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)[1])
    assert stopping > options.grace  # otherwise systemd kills what SIGTERM lets finish
    state = re.search(r"^StateDirectory=(.*)$", UNIT, re.M)[1]
    assert options.glossaries == f"/var/lib/{state}"  # all that it may write


def read_yaml(path):
    return pytest.importorskip("yaml").safe_load(path.read_text())


def requirement(text):
    """A requirement's name and versions, of pip or conda: both take - for _ in names."""
    name, versions = re.fullmatch(r"([\w.-]+)\s*(.*)", text).groups()
    return name.lower().replace("_", "-"), versions


def test_the_recipe_is_that_of_pyproject():
    recipe, project = read_yaml(RECIPE), PROJECT["project"]
    assert recipe["context"] == {"version": __version__, "python_min": project["requires-python"].removeprefix(">=")}
    assert recipe["package"] == {"name": project["name"], "version": "${{ version }}"}
    python, *run = recipe["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert [*map(requirement, run)] == [*map(requirement, project["dependencies"])]
    assert {*map(requirement, PROJECT["build-system"]["requires"])} <= {*map(requirement, recipe["requirements"]["host"])}
    commands = dict(each.split(" = ") for each in recipe["build"]["python"]["entry_points"])
    assert commands == project["scripts"]
    about = recipe["about"]
    assert (about["license"], [about["license_file"]]) == (project["license"], project["license-files"])
    assert about["summary"] == project["description"]


def test_the_recipe_looks_for_every_kernel():
    (contents,) = (test["package_contents"]["files"] for test in read_yaml(RECIPE)["tests"] if "package_contents" in test)
    files = [name for each in contents for name in (each["then"] if isinstance(each, dict) else [each])]
    assert files == [f"**/_kernels_{name}.so" for name in KERNELS]


def test_what_the_recipe_tests_passes():
    (script,) = (test for test in read_yaml(RECIPE)["tests"] if "script" in test)
    assert script["script"][-1] == f"python {script['files']['recipe'][0]}"
    assert " generic " in run_python(RECIPE.parent / script["files"]["recipe"][0]).stdout


def test_the_release_puts_the_checksum_into_the_recipe(tmp_path):
    (step,) = (step for step in read_yaml(RELEASE)["jobs"]["build"]["steps"] if "recipe" in step.get("name", ""))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "specdec_seq2seq-1.tar.gz").write_bytes(b"content")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, check=True)
    released = read_yaml(tmp_path / "dist" / "recipe.yaml")
    assert released["source"].pop("sha256") == hashlib.sha256(b"content").hexdigest()
    recipe = read_yaml(RECIPE)
    assert recipe["source"].pop("sha256") == "0" * 64 and released == recipe


def test_a_wheel_that_would_not_run_is_found(tmp_path):
    check = SourceFileLoader("check_wheels", str(ROOT / ".ci" / "check-wheels")).load_module()

    def found(tag="py3-none-manylinux_2_28_x86_64", kernels=KERNELS, needs="manylinux_2_17_x86_64", libraries=()):
        wheel = tmp_path / f"specdec_seq2seq-0.3.0-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            for name in kernels:
                file.writestr(f"specdec_plugins/decoding/backends/cpu/_kernels_{name}.so", b"")
        return [*check.faults(wheel, {"sym_tag": needs, "external_libs": dict.fromkeys(libraries)})]

    assert found() == found("py3-none-musllinux_1_2_x86_64", needs="musllinux_1_1_x86_64", libraries=["libc.so"]) == []
    assert found(kernels=KERNELS[1:]) == [f"has the kernels {', '.join(KERNELS[1:])}, not {', '.join(KERNELS)}"]
    for needs in ("manylinux_2_34_x86_64", "manylinux_3_1_x86_64", "musllinux_1_1_x86_64", "linux_x86_64"):
        assert found(needs=needs) == [f"needs {needs}"]
    assert found(libraries=["libstdc++.so.6"]) == ["needs libstdc++.so.6"]
    for tag in ("cp311-cp311-manylinux_2_28_x86_64", "py3-none-linux_x86_64", "py3-none-any"):
        assert found(tag) == ["has another tag than py3-none-manylinux or -musllinux"]
    check.MOST = 10
    assert found()[0].endswith("bytes, more than 10")
