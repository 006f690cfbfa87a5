"""The base install on CPUs: everything that decodes there works where PyTorch cannot be imported, with the same outputs."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from specdec_plugins import Translator
from specdec_plugins.decoding.compiled import library
from specdec_plugins.formats.folder import load_folder

LINES = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()[:6]
CASES = {
    "exact": {},
    "plain in float32": {"strategy": "ar", "dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "tolerant": {"beta": 3, "tau": 1.0},
    "sampled": {"sampling": True, "top_k": 8, "seed": 3},
    "rejection": {"sampling": True, "rule": "rejection", "seed": 3},
    "beams": {"beam": 4, "nbest": 2},
    "beams with drafts": {"beam": 4, "block_size": 4},
    "no repeats": {"no_repeat_ngram_size": 2},
    "n-grams": {"draft_with": "ngram"},
    "lookahead in trees": {"draft_with": "lookahead", "tree": 12},
    "recycling in trees": {"draft_with": "recycling", "tree": 8},
    "trees under rejection": {"draft_with": "recycling", "tree": 8, "sampling": True, "rule": "rejection", "seed": 3},
    "window": {"draft_with": "window", "block_size": 4},
    "drafter alone": {"strategy": "drafter"},
}
BLOCKED = """
import json, sys
sys.modules["torch"] = None  # every import of it fails
from test_without_pytorch import said
print(json.dumps(said()))
"""


def said():
    """Texts, scores and alignments in each case; refusals."""
    found = {}
    for name, settings in CASES.items():
        try:
            translator = Translator.from_pretrained(str(ROOT / "data" / "demo.en-de"), threads=1, **settings)
            results = translator.translate(
                LINES, **dict.fromkeys(("alignments", "scores"), settings.get("strategy") != "drafter")
            )
            found[name] = [(each.text, each.token_scores, each.alignment and each.alignment.pairs) for each in results]
        except (ValueError, ImportError) as error:
            found[name] = str(error)
    return found


def run(code, *arguments):
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=path, timeout=600)


@pytest.mark.skipif(not library(), reason="the kernels were not compiled for this machine")
def test_outputs_are_those_with_pytorch():
    """Bit for bit: texts, scores, alignments. A strategy that the pair's drafter does not have is refused alike."""
    done = run(BLOCKED)
    assert done.returncode == 0, done.stderr
    without, expected = json.loads(done.stdout), json.loads(json.dumps(said()))
    for name in CASES:
        assert without[name] == expected[name], name
    assert "drafter reads what the verifier computes" in without.pop("drafter alone")
    assert all(len(results) >= len(LINES) and results[0][0] for results in without.values())


def test_without_kernels_both_remedies_are_named():
    """A compiler for the kernels, or PyTorch in their place."""
    code = """import sys; sys.modules["torch"] = None
from specdec_plugins.decoding import compiled
compiled.VARIANTS = ()
from specdec_plugins.commands.translate import main
sys.exit(main())"""
    done = run(code, "--model", str(ROOT / "data" / "demo.en-de"))
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert (
        "without the CPU kernels (they were not compiled for this machine; install a C++ compiler" in line and "[torch]" in line
    )


@pytest.mark.parametrize(
    "options, said",
    [
        (["--device", "cuda"], "device cuda needs a package that is not installed"),
        (["--dtype", "float16"], "data type float16 on CPUs needs a package that is not installed"),
        (["--strategy", "fairseq"], "strategy fairseq needs a package that is not installed"),
    ],
)
def test_what_needs_pytorch_says_so(options, said):
    """In one line, with the command that installs it."""
    code = "import sys; sys.modules['torch'] = None\nfrom specdec_plugins.commands.translate import main\nsys.exit(main())"
    done = run(code, "--model", str(ROOT / "data" / "demo.en-de"), *options)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line and ("[train]" if "fairseq" in options else "[torch]") in line


def test_a_drafter_is_packed(tmp_path):
    """With the tokens that it may draft."""
    (tmp_path / "text").write_text("Ein Hund rennt .\n", encoding="utf-8")
    code = "import sys; sys.modules['torch'] = None\nfrom specdec_plugins.commands.pack import main\nsys.exit(main())"
    pair, options = str(ROOT / "data" / "demo.en-de"), ["--draft-vocabulary", str(tmp_path / "text"), "--output"]
    done = run(code, "--verifier", pair, "--drafter", pair, *options, str(tmp_path / "packed"))
    assert done.returncode == 0, done.stderr
    tensors = load_folder(tmp_path / "packed").drafter.tensors
    assert 4 < len(tensors["decoder.draft_vocabulary"]) <= 9
