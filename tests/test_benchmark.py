"""specdec-benchmark: what it counts and times is right, it compares each system's best, and says plainly what it cannot run."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, fast_python, run_python

from specdec_plugins.commands import benchmark
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.measure import machine, processes, runs, tables
from specdec_plugins.measure.machine import Mix, full_mixes, thread_choices
from specdec_plugins.measure.processes import RunningSystem, joined, split
from specdec_plugins.measure.runs import Plan, Workload, measure, read_text, summarise, workloads
from specdec_plugins.measure.systems import KINDS, CTranslate2, Order, OwnSystem, Run, System, timed
from specdec_plugins.settings import Settings
from specdec_plugins.translator import Translator

PAIR = str(ROOT / "data" / "demo.en-de")
LINES = ["A man is riding a horse.", "", "Two dogs are playing in the snow.", "A woman is reading a book on a bench in the park."]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.mark.long
def test_what_it_counts(text):
    reference = text.with_name("reference.txt")
    exact = Translator.from_pretrained(PAIR, strategy="specdec", block_size=4)
    found = exact.translate(LINES, scores=True)
    reference.write_text("\n".join(result.text for result in found) + "\n", encoding="utf-8")
    run = run_python(
        *"-m specdec_plugins.commands.benchmark --model".split(),
        PAIR,
        "--input",
        text,
        "--reference",
        reference,
        *"--systems ar specdec --dtypes float32 int8 --batch-sizes 1 3 --rounds 1 --block-sizes 4 --threads 1".split(),
    )
    *_, last = run.stdout.splitlines()
    result = json.loads(last)
    assert run.stdout.count("one sentence at a time") == 1 and run.stdout.count("tokens/s (workers x threads)") == 1
    assert result["signature"]["sentences"] == 3
    rows = {(row["system"], row["kind"], row["batch_size"]): row for row in result["rows"]}
    assert len(rows) == 12
    for (name, kind, _), row in rows.items():
        assert row["of"] == 3 and row["tokens_per_second"] > 0 and row["peak_memory_mib"] > 50 and row["differing"] == 0
        assert ("latency_p99_ms" in row) == (kind == "latency")
        assert (row["workers"], row["threads"]) == (1 if kind == "latency" else machine.usable_cpus(), 1)
        counts = {int(length): passes for length, passes in row["accepted_lengths"].items()}
        assert sum(length * passes for length, passes in counts.items()) == row["tokens"]
        assert row["mean_accepted_length"] == round(row["tokens"] / sum(counts.values()), 3)
        if "float32" in name:
            assert row["identical"] == 3 and row["bleu"] == 100.0
            assert row["tokens"] == sum(len(each.token_scores) for each in found)
        if name.startswith("specdec"):
            assert sum(row["lengths"].values()) > 0 and set(row["lengths"]) == {"4"}
        else:
            assert row["mean_accepted_length"] == 1.0 and row["acceptance_by_position"] == []
    alone, together = (rows["ar float32", kind, 1]["peak_memory_mib"] for kind in KINDS)
    workers = min(3, machine.usable_cpus())  # with a sentence or more each
    assert together == pytest.approx(workers * alone, rel=0.2)
    row = rows["specdec float32 K=4", "latency", 1]
    assert row["mean_accepted_length"] == round(exact.stats.mean_accepted_length, 3)
    steps = [step for translation in found for step in translation.steps if step.drafted]
    assert row["acceptance_by_position"][0] == round(sum(step.accepted > 0 for step in steps) / len(steps), 3)
    assert row["latency_p50_ms"] <= row["latency_p95_ms"] <= row["latency_p99_ms"]


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--rounds", "0"], "--rounds 0 is less than 1", 2),
        (["--batch-sizes", "4", "0"], "--batch-sizes 0 is less than 1", 2),
        (["--block-sizes", "many"], "--block-sizes 'many' is neither auto nor a number from 1", 2),
        (["--dtypes", "float16"], "--dtypes float16 is not available on cpu: float32, bfloat16, int8, int4", 2),
        (["--device", "cuda", "--dtypes", "int8"], "--dtypes int8 is not available on cuda: float32, bfloat16, float16", 2),
        (["--beta", "0"], "--beta 0 is less than 1", 2),
        (["--tau", "1", "inf"], "--tau inf is not a finite number from 0", 2),
        (["--model", "nowhere"], "nowhere: no such folder", 1),
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


@pytest.mark.long
def test_systems_that_cannot_run_are_left_out(text, capsys, monkeypatch):
    """The messages come from the systems' own processes."""
    unknown = [System("ar", "int9"), System("magic", "int8")]
    monkeypatch.setattr(benchmark, "systems_of", lambda options, drafter: unknown)
    assert benchmark.main(["--model", PAIR, "--input", str(text)]) == 1
    error = capsys.readouterr().err
    assert "left out: ar int9: dtype 'int9' is unknown; available: float32, " in error
    assert "left out: magic int8: strategy 'magic' is unknown; available: specdec, " in error
    assert error.endswith("specdec-benchmark: error: no system is left\n")


def test_int4_is_measured_without_peers(text):
    """If it is named. CTranslate2 says so before it converts the model."""
    pair = load_folder(PAIR)
    named, usual = (
        {system.name for system in benchmark.systems_of(benchmark.parser().parse_args(each), True)}
        for each in ([*"--model x --input y --dtypes int4".split()], [*"--model x --input y".split()])
    )
    assert {"ar int4", "specdec int4 K=auto", "ctranslate2 int4"} < named and not any("int4" in each for each in usual)
    sources = read_text(Translator(pair, Settings(threads=1)), str(text), None, None).sources
    found = [
        OwnSystem(System(name, "int4"), pair, Mix(1, 1), sources).decode(Order("throughput", 2, [0, 1, 2]))
        for name in ("ar", "specdec")
    ]
    assert found[0].outputs == found[1].outputs and len(found[0].outputs) == 3 and found[1].mean_accepted_length > 1.2
    with pytest.raises(ValueError, match="ctranslate2 int4: it has no such weights"):
        CTranslate2(System("ctranslate2", "int4"), pair, Mix(1, 1), sources)


@pytest.mark.long
def test_a_shape_in_int4_says_what_it_reads(tmp_path):
    """Random weights of a small shape: peers are left out, and `ar` is set beside the memory's bandwidth."""
    found = run_python(
        str(ROOT / "benchmarks/shapes.py"),
        *"--dtypes int4 --layers 2 --drafter-layers 1 --width 256 --inner 256 --heads 4 --vocabulary 1000 --sentences 2".split(),
        *"--rounds 1 --batch-sizes 1 --block-sizes 4 --threads 1 --systems ours ctranslate2".split(),
    )
    assert "left out: ctranslate2" in found.stderr
    plain, drafted = json.loads(found.stdout.splitlines()[-1])["rows"]
    assert (plain["system"], drafted["system"]) == ("ar", "specdec") and "bandwidth" not in drafted
    layers, output = 2 * 2048 * (256 * 9 // 16 + 8), 1024 * (256 + 8)  # int4 in groups, and int8
    assert plain["pass_bytes"] in (layers + 1000 * 256 // 2, layers + output)  # a screen reads four bits
    assert plain["gigabytes_per_second"] == pytest.approx(
        plain["pass_bytes"] * plain["tokens_per_second"] / 1e9, rel=0.05, abs=1e-3
    )
    said = rf"int4     a pass reads 1 MB: \d+ of {plain['bandwidth']['1']:.0f} GB/s\n"
    assert re.search(said, found.stdout) and plain["bandwidth"]["1"] > 0.2


def test_bandwidth_is_bytes_a_second(monkeypatch):
    """Of all threads' arrays together, in the fastest of five passes."""
    monkeypatch.setattr(machine, "READ", (1 << 20, 1 << 16))
    clock = iter([0.0, 2.0, 2.0, 2.5, 3.0, 5.0, 5.0, 6.0, 6.0, 9.0] * 2)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    assert machine.bandwidth(1) == (1 << 20) / 0.5 and machine.bandwidth(32) == 32 * (1 << 16) / 0.5


def test_peak_memory_is_not_the_parent_s():
    code = "from specdec_plugins.measure.machine import peak_memory; print(peak_memory())"
    parent = f"import subprocess, sys; held = b'x' * 2**29; subprocess.run([sys.executable, '-c', {code!r}])"
    assert 2**22 < int(run_python("-c", parent).stdout) < 2**28


def test_the_demo_in_bpe_is_the_demo(monkeypatch):
    """For machines without BPE libraries; ``--tokenized`` reads it."""
    text, bpe = (str(ROOT / "data" / name) for name in ("demo.txt", "demo.bpe"))
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "subword_nmt.apply_bpe", None)
        reader = Translator.from_pretrained(PAIR, strategy="ar")
        found = read_text(reader, bpe, None, None, tokenized=True).sources
    assert found == read_text(reader, text, None, None).sources and len(found) == 16


def gpu_script(*arguments, **environment):
    return subprocess.run(
        [str(ROOT / "benchmarks" / "gpu.sh"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHONPATH": "", **environment},
    )


@pytest.mark.long
def test_the_gpu_script_says_what_it_needs(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    for arguments, message in (
        ([], "name a folder for the results"),
        ([tmp_path / "out", "--device", "tpu"], "no device named 'tpu'. Available: cuda, cpu"),
        ([tmp_path / "out", "--text", "nowhere.txt"], "--text nowhere.txt: no such file"),
        ([tmp_path / "out", "--corpus", "nowhere"], "--corpus nowhere: no such folder"),
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
    python = sys.executable if bare else fast_python()
    found = gpu_script(tmp_path / "out", "--device", "cpu", "--python", python, PYTHONPATH=str(hidden))
    assert found.returncode == 0, found.stdout + found.stderr
    *measured, summary = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    parts = {row["part"]: row["result"] for row in summary["rows"]}
    assert parts.pop("training") == ("left out: there is no fairseq" if bare else "passed")
    assert set(parts.values()) == {"passed"} and list(parts) == ["tests", "latency-float32", "shape-float32"]
    assert [each["benchmark"] for each in measured] == ["specdec-benchmark", "shapes"]
    for each in measured:
        systems = {row.get("strategy") or row["system"] for row in each["rows"]}
        assert systems - {"ctranslate2", "marian"} == ({"ar", "specdec"} if bare else {"ar", "specdec", "fairseq"})
        assert each["signature"]["torch"] and ("commit" in each["signature"] or "code" in each["signature"])


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [
        (1, [1], [(1, 1)]),
        (2, [1, 2], [(2, 1), (1, 2)]),
        (6, [1, 2, 4, 6], [(6, 1), (3, 2), (1, 4), (1, 6)]),
        (8, [1, 2, 4, 8], [(8, 1), (4, 2), (2, 4), (1, 8)]),
    ],
)
def test_mixes_keep_all_cores_busy(cores, threads, expected, monkeypatch):
    monkeypatch.setattr(machine, "usable_cpus", lambda: cores)
    assert thread_choices() == threads and full_mixes(threads) == expected
    latency, throughput = workloads(["throughput", "latency"], [32], threads)
    assert latency == Workload("latency", 1, tuple(Mix(1, number) for number in threads))
    assert throughput == Workload("throughput", 32, tuple(Mix(*mix) for mix in expected))
    assert workloads(["latency"], [32], threads) == [latency]
    assert full_mixes(thread_choices("cuda"), "cuda") == [(1, 1)]


def test_parts_have_the_same_work():
    sources = [[0] * length for length in (3, 9, 1, 7, 8, 2, 4)]
    assert split(sources, 2) == [[1, 3, 0, 2], [4, 6, 5]]  # lengths 9 7 3 1 and 8 4 2
    assert split(sources, 1) == [[1, 4, 3, 6, 0, 5, 2]]
    assert split(sources[:2], 3) == [[1], [0]]


def test_runs_side_by_side_are_counted_as_one():
    first = Run(
        2.0, [], [["b"], ["d"]], *map(Counter, ({"drafting": 0.5}, {0: 10, 1: 4}, {0: 8, 1: 2}, {2: 4, 0: 1}, {1: 3, 3: 1}))
    )
    second = Run(3.0, [], [["a"]], *map(Counter, ({"drafting": 0.25, "verifying": 1.0}, {0: 10}, {0: 4}, {0: 2}, {1: 1})))
    run = joined([first, second], [[1, 3], [0]])
    assert run.seconds == 3.0 and run.outputs == [["a"], ["b"], ["d"]]
    assert run.phases == {"drafting": 0.75, "verifying": 1.0} and run.lengths == {0: 3, 2: 4}
    assert run.acceptance_by_position == [0.6, 0.5] and run.mean_accepted_length == 7 / 5


def test_time_runs_from_the_common_start():
    def decode(sources, batch_size):
        asked.append((len(sources), batch_size))
        return sources

    for kind, expected in (("throughput", [(3, 4)]), ("latency", [(1, 1)] * 3)):
        asked: list[tuple[int, int]] = []
        start = time.monotonic() + 0.05
        seconds, latencies, outputs = timed(decode, ["a", "b", "c"], Order(kind, 4, [0, 1, 2], start))
        assert time.monotonic() >= start and 0 <= seconds < time.monotonic() - start + 1e-6
        assert asked == expected and outputs == ["a", "b", "c"] and len(latencies) == (3 if kind == "latency" else 0)
    late, _, _ = timed(decode, ["a"], Order("throughput", 4, [0], time.monotonic() - 1))
    assert late >= 1  # who was not ready has lost the time


class Sleeper:
    """Serves orders in a process of its own: outputs name the process, and the second one takes longer."""

    def __init__(self, system, model, sources, mix, number):
        self.sources, self.number, self.mix = sources, number, mix

    def __call__(self, order):
        name = f"{self.number} {self.mix}"
        decode = partial(self.decode, name)
        seconds, latencies, outputs = timed(decode, [self.sources[index] for index in order.sources], order)
        return Run(seconds, latencies, outputs, peak=100 + self.number)

    def decode(self, name, sources, batch_size):
        time.sleep(0.2 * self.number)
        return [[name, str(len(source))] for source in sources]


@pytest.mark.long
def test_processes_begin_together_and_the_last_one_ends_the_run(monkeypatch):
    monkeypatch.setattr(processes, "SystemServer", Sleeper)
    sources = [[1] * length for length in (2, 5, 3)]
    running = RunningSystem(System("ar", "int8"), PAIR, sources, Mix(2, 3))
    try:
        run = running.decode("throughput", 8)
        assert run.outputs == [["0 1 x 3", "2"], ["0 1 x 3", "5"], ["1 1 x 3", "3"]]
        assert run.seconds >= 0.2 and run.peak == 201
        run = running.decode("latency", 1)
        assert run.outputs == [["0 1 x 3", "2"], ["0 1 x 3", "5"], ["0 1 x 3", "3"]] and len(run.latencies) == 3
        assert run.peak == 100
        assert len(running.decode("throughput", 8, count=1).outputs) == 2  # a sentence per worker
    finally:
        running.stop()
    running = RunningSystem(System("ctranslate2", "int8"), PAIR, sources, Mix(2, 3))
    try:
        assert running.decode("throughput", 8).outputs == [["0 2 x 3", "2"], ["0 2 x 3", "5"], ["0 2 x 3", "3"]]
    finally:
        running.stop()


class Fake:
    """A running system: `ar` is twice as fast with two workers, CTranslate2 with two threads, and its output depends on them."""

    log: list[tuple]

    def __init__(self, system, model, sources, mix):
        self.system, self.mix = system, mix

    def decode(self, kind, batch_size, count=None):
        workers = 1 if kind == "latency" else self.mix.workers
        if count is None:
            self.log.append((self.system.strategy, kind, batch_size, workers, self.mix.threads))
        peer = self.system.strategy == "ctranslate2"
        seconds = (4.0 if peer else 3.0) / (self.mix.threads if peer else workers) / batch_size
        outputs = [["Ein", "Hund", f"{workers}" if peer else "."], ["Zwei", "Hunde"]]
        return Run(seconds, [seconds / 4, seconds / 2] if kind == "latency" else [], outputs, accepted_lengths=Counter({1: 7}))

    def stop(self):
        pass


@pytest.fixture
def measured(monkeypatch):
    """Two systems on two cores, two rounds; and what was warned of."""
    monkeypatch.setattr(runs, "RunningSystem", Fake)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    monkeypatch.setattr(Fake, "log", [], raising=False)
    warnings: list[str] = []
    progress = SimpleNamespace(step=lambda what, done: None, say=warnings.append)
    plan = Plan(PAIR, [System("ctranslate2", "int8"), System("ar", "int8")], workloads(KINDS, [1, 8], [1, 2]), 2)
    found, left_out = measure(plan, [[5, 2], [6, 2]], progress)
    assert left_out == []
    return found, warnings


def test_each_system_counts_with_its_best_mix(measured):
    found, warnings = measured
    best = {(each.system.strategy, each.workload.kind, each.workload.batch_size): each.mix for each in found}
    assert best == {
        ("ctranslate2", "latency", 1): Mix(1, 2),
        ("ctranslate2", "throughput", 1): Mix(1, 2),
        ("ctranslate2", "throughput", 8): Mix(1, 2),
        ("ar", "latency", 1): Mix(1, 1),
        ("ar", "throughput", 1): Mix(2, 1),
        ("ar", "throughput", 8): Mix(2, 1),
    }
    turn = [(name, "throughput", 8, *mix) for name in ("ctranslate2", "ar") for mix in ((2, 1), (1, 2))]
    assert Fake.log[-8:] == turn * 2  # round by round
    assert warnings == ["ctranslate2 int8: 1 outputs depend on the mix of workers and threads"] * 2
    assert [each.differing for each in found] == [0, 0, 1, 0, 1, 0]
    row = summarise(found[-1], found[0].runs[0].outputs)
    assert (row["workers"], row["threads"], row["mixes"]) == (2, 1, {"2 x 1": 37, "1 x 2": 19})  # 7 tokens in 3/16 or 3/8 s


def test_tables_compare_the_best_of_each(measured):
    found, _ = measured
    rows = [summarise(each, found[0].runs[0].outputs) for each in found]
    signature = {"ctranslate2": "9"}
    assert cells(tables.latency(rows, signature))[2:] == [
        ["CTranslate2 9, greedy, int8", "750.0 ms", "975.0 ms", "995.0 ms", "4", "± 0%", "2", "1.00", "2.00"],
        ["`ar` int8", "1125.0 ms", "1462.5 ms", "1492.5 ms", "2", "± 0%", "1", "0.50", "1.00"],
    ]
    assert cells(tables.throughput(rows, signature))[2:] == [
        ["CTranslate2 9, greedy, int8", "4 (1 x 2)", "28 (1 x 2)"],
        ["`ar` int8", "5 (2 x 1)", "37 (2 x 1)"],
    ]
    assert cells(tables.TABLES["ctranslate2"](rows, signature))[2:] == [
        ["CTranslate2 9, greedy, int8", "1.00", "1.00"],
        ["`ar` int8", "1.25", "1.32"],
    ]
    other = [{**row, "dtype": "float32"} for row in rows if row["strategy"] == "ar"]
    assert "ctranslate2" not in tables.tables(other, signature)  # nothing to compare with in this data type


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, line by line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
