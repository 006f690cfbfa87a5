"""specdec-benchmark on the pair that ships: what it counts is right, and it says plainly what it cannot run."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, run_python

from specdec_plugins.commands import benchmark
from specdec_plugins.measure.runs import read_text
from specdec_plugins.measure.systems import System
from specdec_plugins.translator import Translator

PAIR = str(ROOT / "data" / "demo.en-de")
LINES = ["A man is riding a horse.", "", "Two dogs are playing in the snow.", "A woman is reading a book on a bench in the park."]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_what_it_counts(text):
    reference = text.with_name("reference.txt")
    exact = Translator.from_pretrained(PAIR, strategy="specdec", block_size=4)
    found = exact.translate(LINES)
    reference.write_text("\n".join(result.text for result in found) + "\n", encoding="utf-8")
    run = run_python(
        "-m", "specdec_plugins.commands.benchmark", "--model", PAIR, "--input", text, "--reference", reference,
        "--systems", "ar", "specdec", "--dtypes", "float32", "int8", "--batch-sizes", "1", "3", "--rounds", "1",
        "--block-sizes", "4", "--threads", "1",
    )  # fmt: skip
    *_, last = run.stdout.splitlines()
    result = json.loads(last)
    assert run.stdout.count("batch size ") == 2 and result["signature"]["sentences"] == 3
    rows = {(row["system"], row["batch_size"]): row for row in result["rows"]}
    assert len(rows) == 8
    for (name, batch_size), row in rows.items():
        assert row["of"] == 3 and row["tokens_per_second"] > 0 and row["peak_memory_mib"] > 50
        assert ("latency_p99_ms" in row) == (batch_size == 1)
        assert row["peak_memory_mib"] > row["weights_mib"] + row["caches_mib"] and row["caches_mib"] > 0
        counts = {int(length): passes for length, passes in row["accepted_lengths"].items()}
        assert sum(length * passes for length, passes in counts.items()) == row["tokens"]
        assert row["mean_accepted_length"] == round(row["tokens"] / sum(counts.values()), 3)
        if "float32" in name:
            assert row["identical"] == 3 and row["bleu"] == 100.0
            assert row["tokens"] == sum(len(translation.token_scores) for translation in found)
        if name.startswith("specdec"):
            assert sum(row["lengths"].values()) > 0 and set(row["lengths"]) == {"4"}
        else:
            assert row["mean_accepted_length"] == 1.0 and row["acceptance_by_position"] == []
    ours, theirs = (rows[f"ar {dtype}", 1] for dtype in ("int8", "float32"))
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in exact.pair.verifier.tensors.values()}
    numbers = sum(sizes.values())  # embeddings stay in float32, and the output projection has its own copy
    assert numbers < ours["weights_mib"] * 2**20 < 3 * numbers and 4 * numbers < theirs["weights_mib"] * 2**20 < 6 * numbers
    assert rows["ar float32", 3]["caches_mib"] == pytest.approx(3 * theirs["caches_mib"], abs=0.02)
    row = rows["specdec float32 K=4", 1]
    assert row["mean_accepted_length"] == round(exact.stats.mean_accepted_length, 3)
    steps = [step for translation in found for step in translation.steps if step.drafted]
    assert row["acceptance_by_position"][0] == round(sum(step.accepted > 0 for step in steps) / len(steps), 3)
    assert row["latency_p50_ms"] <= row["latency_p95_ms"] <= row["latency_p99_ms"]


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--rounds", "0"], "--rounds 0 is less than 1", 2),
        (["--batch-sizes", "4", "0"], "--batch-sizes 0 is less than 1", 2),
        (["--block-sizes", "many"], "--block-sizes 'many' is neither a number over 0 nor auto", 2),
        (["--dtypes", "float16"], "--dtypes float16 is not available there: float32, bfloat16, int8", 2),
        (["--device", "cuda", "--dtypes", "int8"], "--dtypes int8 is not available there: float32, bfloat16, float16", 2),
        (["--model", "nowhere"], "nowhere: not a model folder", 1),
        (["--input", "nowhere.txt"], "nowhere.txt: No such file or directory", 1),
    ],
)
def test_bad_options(options, message, status, text, capsys):
    assert benchmark.main(["--model", PAIR, "--input", str(text), *options]) == status
    error = capsys.readouterr().err
    assert error.startswith("specdec-benchmark: error: ") and message in error and error.count("\n") == 1


def test_a_line_that_is_too_long_is_named(text, capsys):
    text.write_text(text.read_text() + "word " * 2000 + "\n", encoding="utf-8")
    assert benchmark.main(["--model", PAIR, "--input", str(text)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"specdec-benchmark: error: {text}, line 5: ") and "tokens, and the models read at most" in error


def test_systems_that_cannot_run_are_left_out(text, capsys, monkeypatch):
    """The messages come from the systems' own processes."""
    unknown = [System("ar", "int9"), System("magic", "int8")]
    monkeypatch.setattr(benchmark, "systems_of", lambda options, drafter: unknown)
    assert benchmark.main(["--model", PAIR, "--input", str(text)]) == 1
    error = capsys.readouterr().err
    assert "left out: ar int9: dtype 'int9' is unknown; available: float32, " in error
    assert "left out: magic int8: strategy 'magic' is unknown; available: specdec, " in error
    assert error.endswith("specdec-benchmark: error: no system is left\n")


def test_peak_memory_is_not_the_parent_s():
    code = "from specdec_plugins.measure.machine import peak_memory; print(peak_memory())"
    parent = f"import subprocess, sys; held = b'x' * 2**29; subprocess.run([sys.executable, '-c', {code!r}])"
    assert 2**22 < int(run_python("-c", parent).stdout) < 2**28


def test_the_demo_in_bpe_is_the_demo():
    """For machines without a tokeniser; ``--bpe`` reads it."""
    reader = Translator.from_pretrained(PAIR, strategy="ar")
    text, bpe = (str(ROOT / "data" / name) for name in ("demo.txt", "demo.bpe"))
    found = read_text(reader, bpe, None, None, bpe=True).sources
    assert found == read_text(reader, text, None, None).sources and len(found) == 16


def gpu_script(*arguments, **environment):
    return subprocess.run(
        [str(ROOT / "benchmarks" / "gpu.sh"), *map(str, arguments)], capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": "", **environment},
    )  # fmt: skip


def test_the_gpu_script_says_what_it_needs(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    for arguments, message in (
        ([], "name a folder for the results"),
        ([tmp_path / "out", "--device", "tpu"], "no device named 'tpu'. Available: cuda, cpu"),
        ([tmp_path / "out", "--text", "nowhere.txt"], "--text nowhere.txt: no such file"),
        ([tmp_path, "--device", "cpu"], f"{tmp_path} has results already"),
        ([tmp_path / "out"], "torch sees no CUDA device"),
    ):
        if message != "torch sees no CUDA device" or not torch.cuda.is_available():
            found = gpu_script(*arguments, "--python", sys.executable)
            assert found.returncode == 1 and found.stderr.startswith(f"gpu.sh: {message}") and found.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("bare", [True, False])
def test_the_gpu_script_on_a_cpu(tmp_path, bare):
    """All its parts, in small; on a ``bare`` machine what needs fairseq is left out."""
    hidden = tmp_path / "hidden"
    for name in ("fairseq", "ctranslate2", "sacremoses", "subword_nmt", "sacrebleu", "jinja2") if bare else ():
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text(f"raise ImportError('{name} is hidden')\n")
    found = gpu_script(tmp_path / "out", "--device", "cpu", "--python", sys.executable, PYTHONPATH=str(hidden))
    assert found.returncode == 0, found.stdout + found.stderr
    *measured, summary = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    parts = {row["part"]: row["result"] for row in summary["rows"]}
    assert parts.pop("training") == ("left out: there is no fairseq" if bare else "passed")
    assert set(parts.values()) == {"passed"} and list(parts) == ["tests", "latency-float32", "shape-float32"]
    assert [each["benchmark"] for each in measured] == ["specdec-benchmark", "shapes"]
    for each in measured:
        systems = {row.get("strategy") or row["system"] for row in each["rows"]}
        assert systems - {"ctranslate2"} == ({"ar", "specdec"} if bare else {"ar", "specdec", "fairseq"})
        assert each["signature"]["torch"] and ("commit" in each["signature"] or "code" in each["signature"])
