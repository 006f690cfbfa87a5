"""The Containerfile and the systemd unit: what they run exists. The image itself is not built here."""

import json
import re
import shlex

from conftest import ROOT

from specdec_plugins.commands import serve

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
