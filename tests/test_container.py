"""The Containerfile's steps, run as root in a root file system of Debian: the image builds, and serves as podman would run it."""

import faulthandler
import json
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import ROOT

FILE = ROOT / "docs" / "deploy" / "Containerfile"
CACHE = ROOT / "build" / "debootstrap"  # Debian's packages
SUITE = "bookworm"  # has the Python of the Containerfile
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = "debootstrap", "ip", "nsenter", "setpriv", "unshare"
# Mounts and processes end with this one, however that ends.
ISOLATED = "setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"
NAMESPACES = "--mount", "--pid", "--net", "--root", "--wd"
WITHOUT_RIGHTS = "setpriv", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"
REQUEST = """
import json, urllib.request
address, headers = "http://127.0.0.1:5000/v1/translate", {"Content-Type": "application/json"}
request = urllib.request.Request(address, b'{"text": "A dog runs."}', headers)
print(json.load(urllib.request.urlopen(request))["results"][0]["outputs"][0]["text"])
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    *(pytest.mark.skipif(not shutil.which(tool), reason=f"needs {tool}") for tool in TOOLS),
]


@dataclass
class Image:
    """What a stage has so far: its files, and how it runs programs."""

    root: Path
    folder: str = "/"
    user: str = "0:0"
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    said: dict[str, str] = field(default_factory=dict)  # instructions that only `run` obeys

    def within(self, path: str) -> Path:
        return self.root / os.path.join(self.folder, path).lstrip("/")

    def build(self, command: str) -> None:
        """Run a command with the network and the proxies of this process, as podman does, and its settings of pip."""
        mounts = f"mount -t proc proc {self.root}/proc; mount --bind {CACHE} {self.root}/var/cache/apt/archives"
        given = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name.startswith("PIP_")}
        given["CFLAGS"] = "-O1 -g0"  # compiles in 0.4 (generic) to 0.7 (avx512) of the time of -O3
        inside = f"cd {self.folder} && {command}"
        shell = f"set -e; {mounts}; exec chroot {self.root} /bin/sh -ec {shlex.quote(inside)}"
        done = subprocess.run([*ISOLATED, "sh", "-c", shell], env=given | self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"

    def run(self, models: Path) -> subprocess.Popen:
        """Start the image as the Containerfile's head does: read-only, /tmp in memory, no capabilities, /models read-only."""
        user, group = self.user.split(":")
        (self.root / "models").mkdir()
        mounts = [
            "ip link set lo up",
            f"mount --bind {self.root} {self.root}",
            f"mount --bind {models} {self.root}/models",
            f"mount -t proc proc {self.root}/proc",
            f"mount -t tmpfs tmpfs {self.root}/tmp",
            f"mount -o remount,bind,ro {self.root}/models",
            f"mount -o remount,bind,ro {self.root}",
        ]
        command = [*WITHOUT_RIGHTS, f"--reuid={user}", f"--regid={group}", *self.array("ENTRYPOINT"), *self.array("CMD")]
        shell = f"set -e; {'; '.join(mounts)}; exec chroot {self.root} {shlex.join(command)}"
        with open(self.root.with_suffix(".log"), "wb") as log:
            return subprocess.Popen([*ISOLATED, "--net", "sh", "-c", shell], env=self.environment, stdout=log, stderr=log)

    def array(self, name: str) -> list[str]:
        return json.loads(self.said[name])


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.M))
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest


def debian(folder: Path) -> Path:
    """Files of the image that the Containerfile begins with, as Debian has them."""
    CACHE.mkdir(parents=True, exist_ok=True)
    root = folder / "debian"
    packages = "--include=ca-certificates,python3-venv,python-is-python3"
    command = ["debootstrap", "--variant=minbase", f"--cache-dir={CACHE}", packages, SUITE, root]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (root / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    for name in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if os.path.exists(name):
            shutil.copyfile(name, root / name.lstrip("/"))
    return root


def built(folder: Path, base: Path) -> Image:
    """Obey the Containerfile. Returns its last stage."""
    stages: dict[str, Image] = {}
    for name, rest in instructions():
        if name == "FROM":
            source, _, title = rest.partition(" AS ")
            version = re.fullmatch(r"docker\.io/library/python:(\d+\.\d+)-slim", source)
            assert version and (base / f"usr/bin/python{version[1]}").exists(), f"{SUITE} is no stand-in for {source}"
            image = stages[title] = Image(folder / f"stage{len(stages)}")
            subprocess.run(["cp", "-a", base, image.root], check=True)
        elif name == "RUN":
            image.build(rest)
        elif name == "COPY":
            *sources, target = rest.split()
            origin = ROOT
            if sources[0].startswith("--from="):
                origin = stages[sources.pop(0).partition("=")[2]].root
            copy([origin / each.lstrip("/") for each in sources], image.within(target), target.endswith("/"))
        elif name == "WORKDIR":
            image.folder = rest
            image.within("").mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            for key, _, value in (each.partition("=") for each in shlex.split(rest)):
                image.environment[key] = string.Template(value).substitute(image.environment)
        elif name == "USER":
            image.user = rest
        else:
            assert name in ("EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", ""), name
            image.said[name] = rest
    return image


def copy(sources: list[Path], target: Path, into: bool) -> None:
    """Like COPY: the content of a folder, or files."""
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source, target / source.name if into else target)


@pytest.fixture
def image(tmp_path_factory) -> Iterator[Image]:
    faulthandler.cancel_dump_traceback_later()  # three minutes of processor time, on a busy machine more than tests may take
    folder = tmp_path_factory.mktemp("container")
    try:
        yield built(folder, debian(folder))
    finally:
        shutil.rmtree(folder)


def test_the_image_has_all_kernels_and_serves(image, tmp_path):
    kernels = "specdec_plugins/decoding/backends/cpu"
    found = image.root.glob(f"opt/specdec/lib/python*/site-packages/{kernels}/_kernels_*.so")
    assert {path.name for path in found} == {path.name for path in (ROOT / kernels).glob("_kernels_*.so")} != set()
    assert not [*image.root.glob("usr/bin/*g++*"), *image.root.glob("opt/specdec/bin/pip*")]
    shutil.copytree(ROOT / "data" / "demo.en-de", tmp_path / "demo.en-de")
    (tmp_path / "serve.toml").write_text('port = 5000\n[model.demo]\nfolder = "/models/demo.en-de"\n')
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    server = image.run(tmp_path)
    try:
        children, end = Path(f"/proc/{server.pid}/task/{server.pid}/children"), time.monotonic() + 120
        while not (pid := children.read_text().strip()):  # unshare has yet to fork
            assert server.poll() is None and time.monotonic() < end, image.root.with_suffix(".log").read_text()
            time.sleep(0.05)

        def execute(command: list[str]) -> subprocess.CompletedProcess:
            entered = ["nsenter", f"--target={pid}", *NAMESPACES, *command]
            return subprocess.run(entered, env=image.environment, capture_output=True, text=True, timeout=60)

        health = json.loads(image.said["HEALTHCHECK"].partition("CMD ")[2])
        while (checked := execute(health)).returncode:
            assert server.poll() is None and time.monotonic() < end, image.root.with_suffix(".log").read_text() + checked.stderr
            time.sleep(0.5)
        assert image.said["EXPOSE"] == "5000"
        assert execute(["python", "-c", REQUEST]).stdout == "Ein Hund rennt.\n"
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^Uid:(\t10001){4}$", status, re.M) and re.search(r"^CapBnd:\t0+$", status, re.M)
        os.kill(int(pid), signal.Signals[image.said["STOPSIGNAL"]])
        assert server.wait(60) == 0, image.root.with_suffix(".log").read_text()
    finally:
        server.kill()
        server.wait()
