"""The CPU kernels, and the tag of wheels that have them. pyproject.toml has everything else."""

import copy
import hashlib
import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent

# The CPU kernels, compiled once per instruction set; at run time the best one that the CPU supports is used. Where they do not
# compile, PyTorch computes alone.
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
X86 = {
    "amx": [*AVX512, "-mamx-tile", "-mamx-int8"],
    "avx512": AVX512,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx2": AVX2,
}
INSTRUCTION_SETS = {**(X86 if platform.machine() in ("x86_64", "AMD64") else {}), "generic": []}


def runnable():
    """The kernels that this CPU can run, best first."""
    flags = {"amx": "amx_int8", "avx512": "avx512_vnni", "avxvnni": "avx_vnni", "avx2": "avx2"}
    own = Path("/proc/cpuinfo").read_text().split() if os.path.exists("/proc/cpuinfo") else ()
    return [name for name in INSTRUCTION_SETS if flags.get(name) in own or name == "generic"]


# SPECDEC_KERNELS: "best" compiles the best two that this CPU runs, as an old compiler may lack the first; "runnable" all of them.
WANTED = {"best": runnable()[:2], "runnable": runnable()}.get(os.environ.get("SPECDEC_KERNELS", ""), INSTRUCTION_SETS)
# Python's own flags ask for debug information, a quarter of the time; flags of your own may want it. With -O1 among them, as for
# sanitizers, few optimisations follow: with all of them it takes two and a half times as long.
OWN = os.environ.get("CFLAGS", "")
USUAL = ["-O1" if "-O1" in OWN else "-O3", *([] if OWN else ["-g0"])]
KERNELS_SOURCE = Path("specdec_plugins/decoding/backends/cpu/csrc")
PATHS = sorted(path for path in (HERE / KERNELS_SOURCE).rglob("*") if path.suffix in (".h", ".cpp"))
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in PATHS)).hexdigest()[:16]  # as compiled.py compares
KERNELS = [
    Extension(
        f"specdec_plugins.decoding.backends.cpu._kernels_{name}",
        [str(KERNELS_SOURCE / "api.cpp")],
        depends=[str(path.relative_to(HERE)) for path in PATHS],
        define_macros=[("SPECDEC_SOURCES", f'"{SOURCES}"')],
        extra_compile_args=["-std=c++20", "-ffp-contract=off", "-pthread", *USUAL, *flags],
        language="c++",
        optional=True,
    )
    for name, flags in INSTRUCTION_SETS.items()
    if name in WANTED
]


class Build(build_ext):
    """Kernels have one source, so each gets a folder for its object file: they are compiled in parallel. They use nothing of
    Python's, so their names have no Python version."""

    def build_extension(self, ext):
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def copy_extensions_to_source(self):
        for earlier in (HERE / KERNELS_SOURCE.parent).glob("_kernels_*.cpython-*.so"):  # named so before 0.3.0
            earlier.unlink()
        super().copy_extensions_to_source()


class Wheel(bdist_wheel):
    """One wheel for every Python: kernels are called through ctypes. ``--plat-name`` names another platform than this machine."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=KERNELS,
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    options={"build_ext": {"parallel": os.cpu_count()}},
)
