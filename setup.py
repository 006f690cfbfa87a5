"""Install SpecDec: ``pip install -e .`` (README.md says how to keep fairseq's build from fetching a second torch)."""

import platform
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent

# The CPU kernels, compiled once per instruction set; at run time the best one that the CPU supports is used. Where they do not
# compile, PyTorch computes alone.
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
X86 = {"amx": [*AVX512, "-mamx-tile", "-mamx-int8"], "avx512": AVX512, "avx2": AVX2}
INSTRUCTION_SETS = {**(X86 if platform.machine() in ("x86_64", "AMD64") else {}), "generic": []}
KERNELS_SOURCE = Path("specdec_plugins/decoding/backends/cpu/csrc")
KERNELS = [
    Extension(
        f"specdec_plugins.decoding.backends.cpu._kernels_{name}",
        [str(KERNELS_SOURCE / "api.cpp")],
        depends=sorted(str(path.relative_to(HERE)) for path in (HERE / KERNELS_SOURCE).glob("*.h")),
        extra_compile_args=["-std=c++20", "-O3", "-pthread", *flags],
        language="c++",
        optional=True,
    )
    for name, flags in INSTRUCTION_SETS.items()
]

setup(
    name="specdec",
    version="0.2.0",
    description="Speculative decoding for fairseq translation models",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    ext_modules=KERNELS,
    packages=find_packages(include=["specdec_plugins", "specdec_plugins.*"]),
    package_data={
        "specdec_plugins.commands": ["templates/*"],
        "specdec_plugins.measure": ["templates/*"],
        "specdec_plugins.training.presets": ["*.json", "recipes/*.json"],
    },
    install_requires=[
        # fairseq's own release does not import on Python 3.11 and later; fairseq-fixed is the same code that does.
        'fairseq-fixed>=0.12.3.1; python_version >= "3.11"',
        'fairseq>=0.12.2; python_version < "3.11"',
        "jinja2>=3.0",
        "numpy>=1.22",
        "sacrebleu>=2.3",
        "sacremoses>=0.1",
        "safetensors>=0.4",
        "subword-nmt>=0.3.8",
        "tabulate>=0.10",
        "torch>=2.6",
        "tqdm>=4.60",
    ],
    extras_require={
        "bench": ["ctranslate2>=4.5", "matplotlib>=3.8"],
        "comet": ["unbabel-comet>=2.2"],
        "summarisation": ["rouge-score>=0.1.2", "tokenizers>=0.20"],
        "dev": ["mypy", "pytest", "pytest-xdist", "rouge-score>=0.1.2", "ruff", "tokenizers>=0.20"],
    },
    entry_points={
        "console_scripts": [
            "specdec-average = specdec_plugins.commands.average:main",
            "specdec-benchmark = specdec_plugins.commands.benchmark:main",
            "specdec-datastore = specdec_plugins.commands.datastore:main",
            "specdec-pack = specdec_plugins.commands.pack:main",
            "specdec-prepare = specdec_plugins.commands.prepare:main",
            "specdec-report = specdec_plugins.commands.report:main",
            "specdec-score = specdec_plugins.commands.score:main",
            "specdec-translate = specdec_plugins.commands.translate:main",
        ]
    },
)
