"""Importing does nothing, commands start fast, and no file outside the fairseq side needs fairseq."""

import pytest
from conftest import run_python

FAIRSEQ_FREE = [
    "formats.spec",
    "formats.checkpoint",
    "formats.fairseq",
    "training.masking",
    "text.moses",
    "commands.prepare",
    "commands.average",
    "settings",
    "formats.folder",
    "commands.pack",
    "commands.score",
    "commands.translate",
    "translator",
]
FAIRSEQ_FREE += [
    "measure.fairseq_generator",
    "decoding.loop",
    "decoding.verifier",
    "decoding.schedule",
    "decoding.drafters.block",
]


def test_importing_the_package_does_nothing():
    code = "import sys; before = set(sys.modules); import specdec_plugins; print(sorted(set(sys.modules) - before))"
    assert run_python("-c", code).stdout == "['specdec_plugins']\n"


@pytest.mark.parametrize("module", FAIRSEQ_FREE)
def test_no_fairseq_outside_its_side(module):
    code = f"import sys, specdec_plugins.{module}; print('fairseq' in sys.modules)"
    assert run_python("-c", code).stdout == "False\n"


@pytest.mark.parametrize(
    "command",
    [
        *(
            ["-m", f"specdec_plugins.commands.{name}"]
            for name in ("prepare", "average", "translate", "pack", "score", "benchmark", "report")
        ),
        ["encoder_initial.py"],
    ],
)
def test_help_imports_nothing_heavy(command):
    loaded = run_python("-X", "importtime", *command, "--help")
    assert "usage:" in loaded.stdout
    modules = {line.rpartition("|")[2].strip() for line in loaded.stderr.splitlines()}
    assert not modules & {"fairseq", "torch", "matplotlib", "ctranslate2", "sacrebleu", "sacremoses"}
