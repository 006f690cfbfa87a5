"""The Containerfile and the systemd unit: what they run exists; the image itself is not built here. What is checked of wheels."""

import json
import re
import shlex
import zipfile
from importlib.machinery import SourceFileLoader

from conftest import ROOT

from specdec_plugins.commands import serve
from specdec_plugins.decoding.options import KERNELS

DEPLOY = ROOT / "docs" / "deploy"
CONTAINER = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
UNIT = (DEPLOY / "specdec-serve.service").read_text()


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
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(extras) <= set(known)


def test_the_unit_starts_the_server(tmp_path):
    program, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", UNIT, re.M)[1])
    options = options_of(arguments, tmp_path)
    assert program.endswith("/specdec-serve") and serve.check(options) == []
    stopping = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)[1])
    assert stopping > options.grace  # otherwise systemd kills what SIGTERM lets finish
    state = re.search(r"^StateDirectory=(.*)$", UNIT, re.M)[1]
    assert options.glossaries == f"/var/lib/{state}"  # all that it may write


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
