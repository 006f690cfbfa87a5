"""From text to text: packing, strategies, formats, resuming, bad input. The models are random and tiny."""

import errno
import fcntl
import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, run_forked, run_python
from support import long_but

from specdec_plugins.commands import pack, translate
from specdec_plugins.commands.translation import answers
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.settings import MOST_THREADS, Settings
from specdec_plugins.text.bpe import Bpe
from specdec_plugins.text.vocabulary import Vocabulary
from specdec_plugins.translator import SourceTooLong, Translator


def flat(parts):
    return [str(item) for pair in parts.items() for item in pair]


def run(capfd, *arguments, status=0):
    """What the command says on stdout and stderr."""
    assert translate.main([str(argument) for argument in arguments]) == status, capfd.readouterr().err
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return out, err


def test_every_strategy_answers_every_line(folder, parts, source, lines, capfd):
    quick = ("--max-len-b", 12, "--quiet", "--input", source)
    expected, _ = run(capfd, "--model", folder, "--strategy", "ar", *quick)
    assert expected.count("\n") == len(lines)
    assert [not line for line in expected.split("\n")[:-1]] == [not line.strip() for line in lines]
    for choice in (["--batch-size", 1], ["--batch-size", 3], ["--max-tokens", 30], ["--buffer-size", 2], ["--block-size", 9]):
        assert run(capfd, "--model", folder, *choice, *quick)[0] == expected
    assert run(capfd, *flat(parts), *quick)[0] == expected
    for batch in (1, 4):
        assert run(capfd, "--model", folder, "--strategy", "fairseq", "--batch-size", batch, *quick)[0] == expected
    drafts, _ = run(capfd, "--model", folder, "--strategy", "drafter", *quick)
    assert drafts.count("\n") == len(lines) and drafts != expected


def test_tolerance_changes_the_output_only_within_its_bounds(folder, source, capfd):
    quick = ("--model", folder, "--max-len-b", 12, "--quiet", "--input", source)
    exact, _ = run(capfd, *quick)
    assert run(capfd, *quick, "--beta", 4, "--tau", 0)[0] == exact
    assert run(capfd, *quick, "--beta", 1000, "--tau", "inf")[0] != exact


def test_formats_agree(folder, source, lines, capfd):
    options = ("--model", folder, "--quiet", "--input", source, "--max-len-b", 12)
    plain = run(capfd, *options)[0].splitlines()
    records = [json.loads(line) for line in run(capfd, *options, "--format", "json")[0].splitlines()]
    assert [record["text"] for record in records] == plain
    assert [record["id"] for record in records] == list(range(len(lines)))
    for record in records:
        assert record["iterations"] == len(record["accepted_lengths"])
        assert sum(record["accepted_lengths"]) == len(record["tokens"]) + bool(record["text"])  # eos included
        assert bool(record["text"]) == (record["score"] is not None)
    rows = [line.split("\t") for line in run(capfd, *options, "--format", "fairseq", "--reference", source)[0].splitlines()]
    assert [row[0] for row in rows] == [f"{kind}-{number}" for number in range(len(lines)) for kind in "STHDP"]
    assert [row[2] for row in rows if row[0][0] == "D"] == plain
    assert [row[2].split() for row in rows if row[0][0] == "H"] == [record["tokens"] for record in records]
    for record, row in zip(records, (row for row in rows if row[0][0] == "H")):
        assert float(row[1]) == pytest.approx((record["score"] or 0) / 0.6931471805599453)


def test_json_names_the_drafter(folder, source, capfd):
    """And what of its drafts was accepted, sentence by sentence; nothing is drafted without one."""
    own = load_folder(folder).drafter.code
    for options, name in (
        (["--block-size", 3], own),
        (["--draft-with", "ngram", "--block-size", 3], "ngram"),
        (["--strategy", "ar"], None),
        (["--strategy", "fairseq"], None),
    ):
        choices = ("--model", folder, "--quiet", "--input", source, "--format", "json", "--max-len-b", 12, *options)
        records = [json.loads(line) for line in run(capfd, *choices)[0].splitlines()]
        assert {record["drafter"] for record in records} == {name}
        assert all(0 <= record["accepted"] <= record["drafted"] for record in records)
        assert any(record["drafted"] for record in records) == (name is not None)


def test_text_in_bpe(folder, toy_data, tmp_path, capfd):
    raw, bpe = toy_data / "raw" / "test.xa", toy_data / "bpe" / "test.xa"
    options = ("--model", folder, "--quiet", "--max-len-b", 12)
    records = [json.loads(line) for line in run(capfd, *options, "--input", raw, "--format", "json")[0].splitlines()]
    subwords = run(capfd, *options, "--input", bpe, "--tokenized")[0].splitlines()
    assert subwords == [" ".join(record["tokens"]) for record in records]
    joined = run(capfd, *options, "--input", bpe, "--tokenized", "--remove-bpe")[0].splitlines()
    assert joined == [f"{line} ".replace("@@ ", "").strip() for line in subwords]


def test_packing_keeps_the_function_and_stores_what_is_shared_once(folder, parts, tmp_path, source, capfd):
    pair = load_folder(folder)
    original = checkpoint.load(parts["--drafter"])["model"]
    assert all(np.array_equal(tensor, original[name]) for name, tensor in pair.drafter.tensors.items() if name in original)
    assert len(pair.drafter.tensors) >= len(original) - 6  # counters and marks, and what is computed
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert sizes["drafter.safetensors"] < 0.7 * sizes["verifier.safetensors"]
    roles = Translator.from_pretrained(folder).engine.roles
    assert roles.drafter.model.encoder is roles.verifier.model.encoder  # equal, so held and run once
    half = tmp_path / "half"
    assert pack.main([*flat(parts), "--output", str(half), "--half", "--block-size", "3"]) == 0
    assert load_folder(half).block_size == 3 and pair.block_size == 5
    assert (half / "verifier.safetensors").stat().st_size < 0.6 * sizes["verifier.safetensors"]
    capfd.readouterr()
    exact = run(capfd, "--model", half, "--strategy", "ar", "--quiet", "--input", source)[0]
    assert run(capfd, "--model", half, "--quiet", "--input", source)[0] == exact
    assert pack.main([*flat(parts), "--output", str(half)]) == 1
    assert "already exists" in capfd.readouterr().err


def test_packing_what_is_drafted(folder, parts, tmp_path, source, capfd):
    """The most frequent tokens of a text; exact output stays what it was, and nothing else is drafted."""
    target = load_folder(folder).target
    counts = {3 + 2 * number: 2**number for number in range(3, 10)}  # by token number; 8 of 1,016 are under one in a hundred
    text, packed = tmp_path / "text", tmp_path / "packed"
    text.write_text("\n".join(f"{target.symbols[number]} " * count for number, count in counts.items()) + "\n")
    assert pack.main([*flat(parts), "--output", str(packed), "--draft-vocabulary", str(text)]) == 0
    allowed = [0, 1, 2, 3, *list(counts)[1:]]
    assert load_folder(packed).drafter.tensors["decoder.draft_vocabulary"].tolist() == allowed
    capfd.readouterr()
    exact = run(capfd, "--model", folder, "--strategy", "ar", "--quiet", "--input", source)[0]
    assert run(capfd, "--model", packed, "--quiet", "--input", source)[0] == exact
    found = Translator.from_pretrained(packed, strategy="specdec", block_size=5).translate(source.read_text().splitlines())
    drafted = {token for translation in found for step in translation.steps for token in step.drafted}
    assert drafted and drafted <= set(allowed)

    def refused(*options, status=1):
        assert pack.main([*options, "--output", str(tmp_path / "none"), "--draft-vocabulary", str(text)]) == status
        assert not (tmp_path / "none").exists()
        return capfd.readouterr().err

    alone = flat({name: value for name, value in parts.items() if name != "--drafter"})
    assert "--draft-vocabulary requires --drafter" in refused(*alone, status=2)
    assert refused(*flat(parts), "--block-size", "0", status=2) == "specdec-pack: error: --block-size 0 is less than 1\n"
    text.write_text("A text without any BPE .\n")
    assert refused(*flat(parts)).startswith(f"specdec-pack: error: --draft-vocabulary {text}: ")
    text.write_text("\n")
    assert "has no tokens" in refused(*flat(parts))


def test_standard_input_and_output_without_fairseq(folder, lines, tmp_path, capfd, monkeypatch):
    text = "\n".join(lines).encode() + b"\n"
    code = f"""import sys
from specdec_plugins.commands import translate
status = translate.main(["--model", {str(folder)!r}])
sys.exit(status or [name for name in sys.modules if name.startswith("fairseq")] or None)"""
    result = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, cwd=ROOT, timeout=600)
    assert result.returncode == 0 and result.stdout.count(b"\n") == len(lines)
    assert b"greedy; block drafts" in result.stderr and b"\r" not in result.stderr  # a summary; no bar in a log
    unended = tmp_path / "unended"
    unended.write_bytes(text[:-1])
    with unended.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert run(capfd, "--model", folder, "--quiet") == (result.stdout.decode(), "")


def test_gzip_and_carriage_returns(folder, lines, tmp_path, source, capfd, monkeypatch):
    expected = run(capfd, "--model", folder, "--quiet", "--input", source)[0]
    packed = tmp_path / "source.gz"
    packed.write_bytes(gzip.compress("\r\n".join(lines).encode() + b"\r\n"))
    assert run(capfd, "--model", folder, "--quiet", "--input", packed)[0] == expected
    packed.write_bytes(packed.read_bytes()[:-9])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # then the lines are counted first
    assert f"{packed}: " in run(capfd, "--model", folder, "--input", packed, status=1)[1]


def stopped_after(monkeypatch, calls):
    """Let runs stop, as by Ctrl-C, instead of translating another buffer after so many."""
    answer, left = answers.Answerer.__call__, iter(range(calls))

    def stopping(self, buffer):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return answer(self, buffer)

    monkeypatch.setattr(answers.Answerer, "__call__", stopping)


@pytest.mark.parametrize(("form", "suffix"), [("text", ""), ("text", ".gz"), ("fairseq", ""), ("json", "")])
def test_resume_gives_the_file_of_an_unbroken_run(folder, source, tmp_path, capfd, form, suffix):
    options = ("--model", folder, source, "--quiet", "--format", form, "--max-len-b", 9, "--block-size", 3, "--buffer-size", 2)
    whole, part = tmp_path / f"whole{suffix}", tmp_path / f"part{suffix}"
    record = Path(f"{part}.resume")
    run(capfd, *options, "-o", whole)
    content = (gzip.decompress if suffix else bytes)(whole.read_bytes())
    for calls in (0, 1, 3):
        with pytest.MonkeyPatch.context() as monkeypatch:
            stopped_after(monkeypatch, calls)
            run(capfd, *options, "-o", part, status=130)
        with part.open("ab") as stream:
            stream.write(b"half a li")  # killed before the record was written
        done = run(capfd, *options, "-o", part, "--resume", status=0 if calls else 1)[1]
        if not calls:  # nothing was recorded, so those bytes may be anyone's
            assert done.startswith(f"specdec-translate: error: {part}: cannot be resumed, as {record} is missing")
            part.unlink()
            run(capfd, *options, "-o", part, "--resume")
        assert part.read_bytes() == whole.read_bytes() and record.exists()
        run(capfd, *options, "-o", part, "--resume")  # nothing is left to do
        assert part.read_bytes() == whole.read_bytes()
        run(capfd, *options, "-o", part)
        assert part.read_bytes() == whole.read_bytes() and not record.exists()
    assert content.count(b"\n") == (1 if form != "fairseq" else 4) * len(source.read_text().splitlines())


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_run_killed_at_its_first_line_can_be_resumed(folder, source, tmp_path, suffix):
    """A script that restarts it must not stop there: the record is there before the first line is."""
    output, whole = tmp_path / f"part{suffix}", tmp_path / f"whole{suffix}"
    options = ["--model", str(folder), "--input", str(source), "--buffer-size", "1", "--max-len-b", "9", "--quiet", "--output"]

    def killed():
        write = os.write

        def last(file, data):
            size = write(file, data)
            if os.path.exists(output) and os.path.samestat(os.fstat(file), os.stat(output)):
                os.kill(os.getpid(), signal.SIGKILL)
            return size

        os.write = last
        translate.main([*options, str(output)])

    assert run_forked(killed).returncode == -signal.SIGKILL and output.stat().st_size > 0
    assert translate.main([*options, str(output), "--resume"]) == 0
    assert translate.main([*options, str(whole)]) == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_run_that_writes_no_line_leaves_no_record(folder, source, tmp_path, capfd, monkeypatch):
    output, write = tmp_path / "out", os.write

    def full(file, data):
        if os.path.exists(output) and os.path.samestat(os.fstat(file), os.stat(output)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    assert "No space left" in run(capfd, "--model", folder, source, "--quiet", "-o", output, status=1)[1]
    assert not output.read_bytes() and not Path(f"{output}.resume").exists()


def test_resume_touches_no_file_of_another_run(folder, parts, source, lines, tmp_path, capfd):
    """Other options, another model, another input, a changed file, somebody's text, a false record: refused, nothing modified."""
    part, record = tmp_path / "part", tmp_path / "part.resume"
    options = ["--model", folder, "--quiet", "--max-len-b", 9, "--buffer-size", 2, "--threads", 1]
    other, longer = tmp_path / "other", tmp_path / "longer"
    other.write_text("\n".join(lines[::-1]) + "\n", encoding="utf-8")
    longer.write_text("\n".join([*lines, "more"]) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as monkeypatch:
        stopped_after(monkeypatch, 3)
        assert "(lines written: 6, to " in run(capfd, *options, source, "-o", part, status=130)[1]
    content, made = part.read_bytes(), record.read_text()

    def refused(said, *arguments, content=content, record_text=made):
        part.write_bytes(content)
        record.write_text(record_text) if record_text is not None else record.unlink()
        err = run(capfd, *arguments, "--resume", "-o", part, status=1)[1]
        assert err.startswith("specdec-translate: error: ") and said in err and err.count("\n") == 1
        assert part.read_bytes() == content and (record.read_text() if record.exists() else None) == record_text

    refused("made with --format text, not json", *options, source, "--format", "json")
    refused("made with --max-len-b 9, not 8", *options, source, "--max-len-b", 8)
    refused("made with --beta 1, not 2", *options, source, "--beta", 2, "--tau", 1)
    refused("made with another model", *flat(parts), "--quiet", "--max-len-b", 9, source)
    refused("made from another input than", *options, other)
    refused("changed since", *options, source, content=bytes([content[0] ^ 1]) + content[1:])
    refused("changed since", *options, source, content=content[:-1])
    refused("part.resume is missing", *options, source, content=b"somebody's text\n", record_text=None)
    for false in ("", "[]", "{}", '{"lines": "x"}', made.replace('"lines": 6', '"lines": "1e9"')):
        refused("part.resume: not a record of a run", *options, source, record_text=false)
    refused("another input", *options, source, record_text=made.replace('"lines": 6', '"lines": 5'))
    part.write_bytes(content)
    record.write_text(made)
    run(capfd, *options, longer, "--resume", "-o", part, "--batch-size", 3, "--threads", 2)  # these do not change the text
    assert part.read_bytes().startswith(content) and part.read_bytes().count(b"\n") == len(lines) + 1


def test_two_runs_do_not_write_one_file(folder, source, tmp_path, capfd):
    output = tmp_path / "out"
    with output.open("wb") as held:
        held.write(b"of another run\n")
        fcntl.flock(held, fcntl.LOCK_EX)
        for resume in ([], ["--resume"]):
            err = run(capfd, "--model", folder, source, "-o", output, *resume, status=1)[1]
            assert err == f"specdec-translate: error: {output}: another run is writing this file\n"
    assert output.read_bytes() == b"of another run\n"


def test_several_input_files(folder, lines, tmp_path, capfd):
    """One after the other; faults name the file and its line."""
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path, text in zip(paths, (lines[:3], [], lines[3:])):
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    quick = ("--model", folder, "--quiet", "--max-len-b", 9)
    whole = tmp_path / "whole"
    whole.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    expected = run(capfd, *quick, whole)[0]
    assert run(capfd, *quick, *paths, "--buffer-size", 2)[0] == run(capfd, *quick, "-i", whole)[0] == expected
    paths[2].write_text(f"{lines[3]}\n{'word ' * 500}\n", encoding="utf-8")
    assert f"{paths[2]}, line 2: 500 tokens" in run(capfd, *quick, *paths, status=1)[1].replace("over 99", "500")
    paths[2].write_bytes(b"good\ncaf\xe9\n")
    assert f"{paths[2]}, line 2: not UTF-8" in run(capfd, *quick, *paths, status=1)[1]
    assert f"{tmp_path / 'none'}: No such file" in run(capfd, *quick, paths[0], tmp_path / "none", status=1)[1]


def test_help_is_short(capsys):
    for option, most in (("--help", 20), ("--help-all", 70)):
        with pytest.raises(SystemExit) as ended:
            translate.parser().parse_args([option])
        shown = re.findall(r"^  (?:-\w(?: \w+)?, )?(--[\w-]+)", capsys.readouterr().out, re.M)
        assert ended.value.code == 0 and len(shown) <= most
        assert {"--model", "--strategy", "--block-size", "--beta", "--tau"} <= set(shown)
        assert ("--mbr" in shown) == (option == "--help-all")


def started(options, output):
    """The command, in a process group of its own, when it has written something."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec_plugins.commands.translate", *map(str, options)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while process.poll() is None and not (output.exists() and output.stat().st_size):
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("workers", long_but([1, 2], 1))
@pytest.mark.parametrize("signum, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_can_be_resumed(folder, source, tmp_path, signum, status, workers):
    many = tmp_path / "many"
    many.write_text(source.read_text(encoding="utf-8") * 4000, encoding="utf-8")
    output = tmp_path / "output"
    options = [
        "--model",
        folder,
        "--input",
        many,
        "--output",
        output,
        *"--buffer-size 16 --max-len-b 15 --workers".split(),
        workers,
    ]
    process = started(options, output)
    if signum == signal.SIGINT:  # from a terminal it comes to all
        os.killpg(process.pid, signum)
    else:
        process.send_signal(signum)
    _, err = process.communicate(timeout=600)
    assert process.returncode == status, err
    assert err.count("\n") == 1 and "stopped (lines written: " in err and "run it again with --resume to continue" in err
    done = output.read_bytes().count(b"\n")
    assert 0 < done < 12 * 4000 and f"{done:,}" in err
    head = many.read_text(encoding="utf-8").splitlines(keepends=True)[: done + 30]
    many.write_text("".join(head), encoding="utf-8")
    assert translate.main([*map(str, options), "--resume", "--quiet"]) == 0
    assert output.read_bytes().count(b"\n") == len(head)


@pytest.mark.long
def test_a_worker_that_dies_takes_nothing_with_it(folder, source, tmp_path, capfd):
    many = tmp_path / "many"
    many.write_text(source.read_text(encoding="utf-8") * 1000, encoding="utf-8")
    output, whole = tmp_path / "output", tmp_path / "whole"
    options = ["--model", folder, "--input", many, "--buffer-size", 16, "--max-len-b", 15]
    process = started([*options, "--output", output, "--workers", 2], output)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    os.kill(next(pid for pid in children if b"spawn_main" in named[pid]), signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1 and err.count("\n") == 1, err
    assert "error: a worker process died" in err and "with --resume to continue" in err
    done = output.read_bytes()
    lines = done.count(b"\n")
    assert f"(lines written: {lines:,}" in err
    run(capfd, *options, "--output", whole, "--quiet")
    assert whole.read_bytes().startswith(done) and done != whole.read_bytes()
    run(capfd, *options, "--output", output, "--resume", "--workers", 2, "--quiet")
    assert output.read_bytes() == whole.read_bytes()


@pytest.fixture
def fresh_attention():
    """PyTorch's attention as a process begins: the training plugin, which other tests load, switches a kernel of it off."""
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)
    yield
    torch.backends.cuda.enable_flash_sdp(before)


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "fairseq"])
def test_workers_write_what_one_process_writes(folder, source, lines, tmp_path, capfd, form, fresh_attention):
    options = ["--model", folder, "--input", source, "--format", form, "--buffer-size", 2, "--block-size", 3, "--max-len-b", 9]
    options += ["--reference", source] if form == "fairseq" else []
    # One thread for each process either way: these models are PyTorch's, which rounds otherwise with more of them.
    single, one = run(capfd, *options, "--trace", "--threads", 1)
    several, two = run(capfd, *options, "--trace", "--workers", 2, "--threads", 2)
    assert several == single
    if form == "fairseq":
        assert [line.split("\t")[0] for line in several.splitlines()] == [f"{k}-{n}" for n in range(len(lines)) for k in "STHDP"]
    timeless = [re.sub(r"time: .*|in [\d.]+ s: .*", "", err) for err in (one, two)]
    assert timeless[0] == timeless[1] and one.count("\noutput  ") == len(lines) and "9 outputs were cut" in one


@pytest.mark.long
def test_with_workers_only_they_load_torch(folder, source):
    code = f"""import sys
from specdec_plugins.commands import translate
print(translate.main(["--model", "{folder}", "--input", "{source}", "--max-len-b", "9", "--workers", "2"]))
print("torch" in sys.modules)"""
    assert run_python("-c", code).stdout.splitlines()[-2:] == ["0", "False"]


@pytest.mark.long
def test_workers_report_faults_as_one_process_does(folder, parts, lines, tmp_path, capfd):
    bad = tmp_path / "bad"
    text = "\n".join(lines[1:5]).encode()
    for line in list(BAD_LINES)[1:3]:  # a fault of the reading, and one that a worker finds
        bad.write_bytes(text + b"\n" + line + b"more\n")
        options = ("--model", folder, "--input", bad, "--buffer-size", 3, "--max-len-b", 9)
        assert run(capfd, *options, "--workers", 2, status=1) == run(capfd, *options, status=1)
    out = tmp_path / "out"
    out.write_text("kept")
    options = flat({**parts, "--drafter": parts["--verifier"], "--input": bad, "--output": out})
    alone = run(capfd, *options, status=1)
    assert run(capfd, *options, "--workers", 2, status=1) == alone and "not a block drafter" in alone[1]
    if torch.cuda.device_count() < 3:
        err = run(capfd, "--model", folder, "--input", bad, "--output", out, "--device", "cuda", "--workers", 3, status=1)[1]
        assert err.startswith("specdec-translate: error: device cuda:") and err.count("\n") == 1
    assert out.read_text() == "kept"  # nothing was begun


def test_shares_of_workers():
    four = [Settings(threads=6).for_worker(number, 4) for number in range(4)]
    assert four == [Settings(threads=1)] * 4
    assert Settings(threads=8, beta=2, tau=1.0).for_worker(1, 3) == Settings(threads=2, beta=2, tau=1.0)
    assert [Settings(device="cuda").for_worker(number, 2).device for number in range(2)] == ["cuda:0", "cuda:1"]
    assert Settings().for_worker(1, 2).threads == max(1, torch.get_num_threads() // 2)
    alone = Settings(device="cuda")
    assert alone.for_worker(0, 1) is alone


def test_memory_does_not_grow_with_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Bpe, "CACHED", 50)
    path = tmp_path / "many"
    options = ["--model", folder, "--input", path, "--output", tmp_path / "out", "--strategy", "ar", "--max-len-b", 1]
    options = [*map(str, options), "--buffer-size", "16", "--quiet"]

    def peak(count):
        path.write_text("".join(f"w{number:09}\n" for number in range(count)))
        tracemalloc.start()
        try:
            assert translate.main(options) == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, more = 128, 800
    peak(few + more)  # what is loaded once, some of it after a while, is loaded
    growth = peak(few + more) - peak(few)
    assert growth < 30 * more  # bytes; a line that is kept takes twice as many


def test_a_reader_that_leaves(folder, source):
    command = (
        f"{sys.executable} -m specdec_plugins.commands.translate --model {folder} --input {source} --buffer-size 1 | head -n 1"
    )
    result = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert result.stdout == "\n" and result.stderr == ""


BAD_LINES = {
    b"caf\xe9\n": "line 3: not UTF-8 (byte 4 of the line)",
    b"null\0byte\n": "line 3: contains a NUL byte, so it is not text",
    b"word " * 100_000 + b"\n": "line 3: over 99 tokens, and the models read at most 99",
    b"x" * 1_000_001 + b"\n": "line 3: longer than 1,000,000 bytes",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=["latin-1", "nul", "words", "bytes"])
def test_a_bad_line_ends_the_run_after_the_lines_before_it(folder, lines, line, tmp_path, capfd):
    path = tmp_path / "bad"
    path.write_bytes(f"{lines[1]}\n\n".encode() + line + b"more\n")
    out, err = run(capfd, "--model", folder, "--input", path, status=1)
    assert out.count("\n") == 2
    assert err.startswith(f"specdec-translate: error: {path}, {BAD_LINES[line]}") and err.count("\n") == 1
    assert "(lines written: 2, to stdout)" in err


def test_long_sources_can_be_cut_or_skipped(folder, lines, tmp_path, capfd):
    path = tmp_path / "long"
    path.write_text(f"{lines[1]}\n{'word ' * 100_000}\n{lines[2]}\n", encoding="utf-8")
    options = ("--model", folder, "--input", path, "--max-len-b", 9)
    out, err = run(capfd, *options, "--too-long", "skip")
    assert out.split("\n")[1] == "" and out.count("\n") == 3 and f"{path}, line 2: too long for the model, skipped" in err
    out, err = run(capfd, *options, "--too-long", "truncate")
    assert out.split("\n")[1] and out.count("\n") == 3 and f"{path}, line 2: too long for the model, cut" in err
    path.write_text(f"{'w' * 900_000}\n", encoding="utf-8")  # of a single word, which takes minutes to split
    assert "line 1: too long for the model, skipped" in run(capfd, *options, "--too-long", "skip")[1]
    assert "line 1: too long for the model, cut" in run(capfd, *options, "--too-long", "truncate")[1]
    with pytest.raises(SourceTooLong, match="over 99 tokens, and the models read at most 99") as error:
        Translator.from_pretrained(folder).translate(["one", "word " * 200])
    sent = pickle.loads(pickle.dumps(error.value))
    assert (sent.index, str(sent)) == (1, str(error.value))


def test_an_empty_file(folder, tmp_path, capfd):
    (tmp_path / "empty").touch()
    _, err = run(capfd, "--model", folder, "--input", tmp_path / "empty", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"" and err == f"specdec-translate: {tmp_path / 'empty'} is empty\n"


def test_cut_outputs_are_reported(folder, source, capfd):
    assert "9 outputs were cut by the length limit" in run(capfd, "--model", folder, "--input", source, "--max-len-b", 1)[1]


MISUSE = {
    "--block-size 0": "--block-size 0 is less than 1",
    "--beta 0": "--beta 0 is less than 1",
    "--beta 2 --tau -1": "--tau -1.0 is less than 0",
    "--beta 2 --tau nan": "--tau nan is not a number",
    "--beta 5": "--beta requires --tau: tolerance needs both, such as --beta 3 and --tau 1",
    "--tau 1": "--tau requires --beta over 1: tolerance needs both, such as --beta 3 and --tau 1",
    "--beta 99999999999999999999 --tau 1": "--beta 99,999,999,999,999,999,999 is more than 2,147,483,647",
    "--temperature 0.5": "--temperature requires --sampling",
    "--nbest 5": "--nbest 5 requires a --beam of at least 5, or --sampling",
    "--threads 100000 --workers 100000": (
        f"--threads 100,000 is more than {MOST_THREADS:,}; --workers 100,000 is more than {MOST_THREADS:,}"
    ),
    "--max-len-a 1e308": "--max-len-a 1e+308 is more than 1,000",
    "--min-len -3": "--min-len -3 is less than 0",
    "--tree 0": "--tree 0 is less than 1",
    "--strategy ar --tree 5": "--tree is not supported by strategy ar",
    "--tree 5 --block-size auto": "--tree cannot be combined with --block-size auto; give the longest path as --block-size",
    "--tree 5 --draft-with ngram": "--tree is not supported by ngram; use recycling or lookahead",
    "--strategy AR --beta 2 --block-size 3": (
        "--block-size is not supported by strategy ar; --beta is not supported by strategy ar"
    ),
    "--strategy fairseq --dtype auto": "--dtype auto is not supported by strategy fairseq",
    "--beam 5 --tree 9": "--tree cannot be combined with --beam",
    "--strategy drafter --beam 5": "--beam is not supported by strategy drafter",
    "--strategy ar --beam 3 --nbest 4": "--nbest 4 requires a --beam of at least 4, or --sampling",
    "--strategy ar --beam 3 --sampling": "--beam cannot be combined with --sampling",
    "--strategy ar --beam 3 --nbest 2 --windows 9": "--nbest of a --beam cannot be combined with --windows",
    "--strategy ar --lenpen 2": "--lenpen requires a --beam over 1",
    "--strategy ar --beam 2 --lenpen 40": "--lenpen 40.0 is more than 30.0",
    "--strategy ar --trace": "--trace requires drafts; strategy ar makes none",
    "--workers 0": "--workers 0 is less than 1",
    "--workers 2 --device cuda:1": "--device cuda:1 is one GPU; use --device cuda with --workers, which gives each its own",
    "--batch-size 0": "--batch-size 0 is less than 1",
    "--max-len-a inf": "--max-len-a inf is more than 1,000",
    "--max-len-b 0": "--max-len-b 0 leaves no room for an output, with 0.0 tokens per source token",
    "--resume": "--resume requires --output",
    "--verifier x --drafter x": "--model cannot be combined with --verifier",
    "--reference x": "--reference requires --format fairseq",
    "--input LICENSE --output LICENSE": "--output LICENSE is also an input",
    "--input x y": "--input cannot be combined with input files as arguments",
    "--strategy drafter --format fairseq": "--format fairseq requires scores, which strategy drafter does not produce",
    "--block-size 1000000": "--block-size 1,000,000 is more than 1,024",
    "--sampling --top-k 999999999999999999999": "--top-k 999,999,999,999,999,999,999 is more than 2,147,483,647",
    "--min-len 201": "--min-len 201 is more than --max-len-b, 200",
    "--no-repeat-ngram-size -1": "--no-repeat-ngram-size -1 is less than 0",
    "--no-repeat-ngram-size 3 --min-len 3 --strategy drafter": (
        "--min-len is not supported by strategy drafter; --no-repeat-ngram-size is not supported by strategy drafter"
    ),
    "--sampling --top-p 0": "--top-p 0.0 is not above 0",
    "--sampling --top-p 1.5": "--top-p 1.5 is more than 1",
    "--sampling --top-p nan": "--top-p nan is not a number",
    "--sampling --temperature -1": "--temperature -1.0 is not above 0",
    "--sampling --temperature inf": "--temperature inf is more than 1,000,000",
    "--sampling --top-k -3": "--top-k -3 is less than 0",
    "--sampling --num-samples 0": "--num-samples 0 is less than 1",
    "--sampling --nbest 0": "--nbest 0 is less than 1",
    "--sampling --mbr 1": "--mbr 1 is less than 2",
    "--sampling --mbr 4 --num-samples 2": "--num-samples cannot be combined with --mbr, which sets the number of samples",
    "--sampling --nbest 4 --num-samples 2": "--nbest cannot be combined with --num-samples or --mbr",
    "--sampling --beta 3": "--beta cannot be combined with --sampling",
    "--sampling --strategy fairseq": "--sampling is not supported by strategy fairseq",
    "--sampling --strategy ar --rule rejection": "--rule is not supported by strategy ar",
    "--sampling --strategy drafter --repetition-penalty 2": "--repetition-penalty is not supported by strategy drafter",
    "--windows 0": "--windows 0 is less than 1",
    "--windows words": "--windows 'words' is unknown; available: a number, sentence",
    "--windows 100 --input data/demo.txt": "--windows of 100 tokens: the models read at most 99",
    "--windows 90 --max-len-b 50": "--windows of 90 tokens: the length limit cuts their output to 50; raise --max-len-a",
    "--context 1": "--context requires --windows",
    "--windows 9 --context -1": "--context -1 is less than 0",
    "--windows 9 --strategy fairseq": "--windows is not supported by strategy fairseq",
    "--windows 9 --context 1 --strategy drafter": "--context is not supported by strategy drafter",
    "--windows 9 --too-long skip": "--too-long cannot be combined with --windows, which splits long sources",
    "--windows 9 --draft-with previous --hint x": "--windows cannot be combined with drafter previous, whose hints are for whole "
    "lines; --hint holds whole lines and cannot be combined with --windows",
    "--max-positions 0": "--max-positions 0 is less than 1",
    "--max-positions 200 --strategy fairseq": "--max-positions is not supported by strategy fairseq",
}


@pytest.mark.parametrize("options", MISUSE)
def test_options_that_cannot_be(folder, options, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    before = (ROOT / "setup.py").read_bytes()
    out, err = run(capfd, "--model", folder, *options.split(), status=2)
    assert err == f"specdec-translate: error: {MISUSE[options]}\n" and not out
    assert (ROOT / "setup.py").read_bytes() == before


def test_files_that_cannot_be(folder, parts, source, tmp_path, capfd):
    """Each fault in one line that names the file, whatever is wrong with it."""

    def error(*arguments):
        err = run(capfd, *arguments, "--input", source, status=1)[1]
        assert err.startswith("specdec-translate: error: ") and err.count("\n") == 1
        return err

    garbage, short = tmp_path / "garbage.pt", tmp_path / "short.pt"
    garbage.write_bytes(b"not a checkpoint")
    short.write_bytes(parts["--verifier"].read_bytes()[:5000])
    for bad in (garbage, short):
        assert f"{bad}: " in error(*flat({**parts, "--verifier": bad}))
        assert f"{bad}: " in error(*flat({**parts, "--drafter": bad}))
    missing = tmp_path / "missing"
    assert f"{missing}: No such file" in error(*flat({**parts, "--verifier": missing}))
    assert f"{missing}: no such folder" in error("--model", missing)
    assert "No such file" in error(*flat({**parts, "--codes": missing}))
    swapped = {**parts, "--verifier": parts["--drafter"], "--drafter": parts["--verifier"]}
    assert "the verifier is a block drafter; the drafter is not a block drafter" in error(*flat(swapped))
    one = tmp_path / "one"
    one.write_text("reference\n")
    assert f"{one} has only 1 lines" in error("--model", folder, "--format", "fairseq", "--reference", one)
    many = tmp_path / "many"
    many.write_text("reference\n" * 10_000)
    assert f"{many} has more lines than {source}" in error("--model", folder, "--format", "fairseq", "--reference", many)
    err = run(capfd, "--model", folder, "--input", missing, status=1)[1]
    assert err == f"specdec-translate: error: {missing}: No such file or directory\n"
    assert f"{missing}/out: No such file or directory" in error("--model", folder, "--output", missing / "out")
    assert "device tpu9" in error("--model", folder, "--device", "tpu9")

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "drafter.safetensors").write_bytes((folder / "drafter.safetensors").read_bytes()[:-9])
    assert f"{broken / 'drafter.safetensors'}: not a readable safetensors file" in error("--model", broken)
    for content in ("[]", "{", '{"format": 1}', '{"format": 9}'):
        (broken / "model.json").write_text(content)
        assert str(broken / "model.json") in error("--model", broken)
    description = json.loads((folder / "model.json").read_text())
    description["codec"]["files"]["codes"] = "../codes"
    (broken / "model.json").write_text(json.dumps(description))
    assert "not the name of a file in the folder" in error("--model", broken)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk(folder, source, tmp_path, capfd, monkeypatch):
    """The error says what was written: nothing to /dev/full, and whole lines where the disk fills up in the middle of one."""
    err = run(capfd, "--model", folder, "--input", source, "--output", "/dev/full", "--quiet", status=1)[1]
    assert err == "specdec-translate: error: /dev/full: No space left on device\n"
    options = ("--model", folder, source, "--quiet", "--max-len-b", 9, "--buffer-size", 4, "-o")
    whole, output, write = tmp_path / "whole", tmp_path / "out", os.write
    run(capfd, *options, whole)
    content = whole.read_bytes()
    room = [content.index(b"\n", len(content) // 2) + 5]  # bytes, which end within a line

    def full(file, data):
        if not os.path.exists(output) or not os.path.samestat(os.fstat(file), os.stat(output)):
            return write(file, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= (size := min(room[0], len(data)))
        return write(file, data[:size])

    monkeypatch.setattr(os, "write", full)
    err = run(capfd, *options, output, status=1)[1]
    kept = output.read_bytes()
    assert content.startswith(kept) and kept.endswith(b"\n")
    assert err == (
        f"specdec-translate: error: {output}: No space left on device (lines written: {kept.count(10)}, to {output}); "
        "run it again with --resume to continue\n"
    )
    monkeypatch.undo()
    run(capfd, *options, output, "--resume")
    assert output.read_bytes() == content


def test_a_signal_as_lines_are_written(folder, source, tmp_path, capfd, monkeypatch):
    """Whenever it comes, the file, the message and the record agree."""
    options = ("--model", folder, "--input", source, "--quiet", "--max-len-b", 9, "--buffer-size", 4, "--output")
    whole, output, write, written = tmp_path / "whole", tmp_path / "out", os.write, []
    run(capfd, *options, whole)

    def interrupted(file, data):
        size = write(file, data)
        if os.path.exists(output) and os.path.samestat(os.fstat(file), os.stat(output)):
            written.append(size)
            if len(written) == 2:
                raise KeyboardInterrupt
        return size

    monkeypatch.setattr(os, "write", interrupted)
    err = run(capfd, *options, output, status=130)[1]
    monkeypatch.undo()
    assert f"stopped (lines written: 4, to {output}); run it again with --resume to continue\n" in err
    assert output.read_bytes().count(b"\n") == 4
    run(capfd, *options, output, "--resume")
    assert output.read_bytes() == whole.read_bytes()


def test_dictionaries_that_differ(parts, source, tmp_path, capfd):
    data = tmp_path / "data"
    shutil.copytree(parts["--data"], data)
    text = (data / "dict.xb.txt").read_text(encoding="utf-8")
    (data / "dict.xb.txt").write_text(text + "another 1\n", encoding="utf-8")
    err = run(capfd, *flat({**parts, "--data": data}), "--input", source, status=1)[1]
    assert "the verifier's decoder" in err and "the drafter's decoder" in err and err.count("\n") == 1
    (data / "dict.xb.txt").write_text("".join(reversed(text.splitlines(keepends=True))), encoding="utf-8")
    drafter = checkpoint.load(parts["--drafter"])
    marks = [Vocabulary.read(parts["--data"] / f"dict.{lang}.txt").fingerprint() for lang in ("xa", "xb")]
    checkpoint.save({**drafter, "task_state": {"dictionaries": marks}}, tmp_path / "drafter.pt")
    err = run(capfd, *flat({**parts, "--data": data, "--drafter": tmp_path / "drafter.pt"}), "--input", source, status=1)[1]
    assert "the drafter was trained with another target dictionary" in err


def test_fingerprints_are_the_plugins(toy_data):
    from fairseq.data import Dictionary

    from specdec_plugins.text.vocabulary import fingerprint_of

    path = toy_data / "bin" / "dict.xa.txt"
    assert Vocabulary.read(path).fingerprint() == fingerprint_of(Dictionary.load(str(path)).symbols)


def test_trace_shows_every_draft(folder, source, lines, tmp_path, capfd):
    options = ("--model", folder, "--input", source, "--quiet", "--max-len-b", 9, "--format", "json", "--block-size", 3)
    out, err = run(capfd, *options, "--trace")
    records = [json.loads(line) for line in out.splitlines()]
    rows = [row.split() for row in re.findall(r"^ +\d+  (.*)$", err, re.MULTILINE)]
    assert [sum(not token.startswith("~") for token in row) for row in rows] == [
        length for record in records for length in record["accepted_lengths"]
    ]
    refused = sum(token.startswith("~") for row in rows for token in row)
    assert refused and refused == sum(record["drafted"] - record["accepted"] for record in records)  # a random drafter is refused
    assert len(rows) == sum(record["iterations"] for record in records) and err.count("\noutput  ") == len(lines)


def test_the_python_interface(folder, lines):
    translator = Translator.from_pretrained(folder, strategy="specdec", block_size=4, max_len_b=12, threads=1)
    results = translator.translate(lines, batch_size=4, scores=True)
    streamed = translator.stream(iter(lines), buffer_size=3, batch_size=2)
    assert [result.tokens for result in streamed] == [result.tokens for result in results]
    for line, result in zip(lines, results):
        assert bool(result.tokens) == bool(line.strip()) and result.iterations == len(result.accepted_lengths)
        assert len(result.token_scores) == (len(result.tokens) + 1 if result.tokens else 0) and result.score <= 0
        assert result.accepted == sum(result.accepted_lengths) - sum(step.own is not None for step in result.steps)
    stats = translator.stats
    assert (stats.drafted, stats.accepted) == tuple(
        2 * sum(getattr(result, name) for result in results) for name in ("drafted", "accepted")
    )
    assert stats.sentences == 2 * sum(bool(line.strip()) for line in lines)
    assert stats.committed == stats.accepted + stats.own_tokens == 2 * sum(len(result.token_scores) for result in results)
    symbols, eos = len(translator.pair.source.symbols), translator.encode(["a"])[0][-1]
    for source, options, said in (
        ([symbols, eos], {}, f"request 7: source has token ids outside the vocabulary of {symbols:,}"),
        ([4, eos], {"forced": [4, -1]}, "request 7: forced has token ids"),
        ([4, eos], {"hint": [10**6]}, "request 7: hint has token ids"),
        ([4] * 5000, {}, "4,999 tokens, and the models read at most"),
        ([], {}, "request 7: the source is empty"),
        ([4, eos], {"limit": 5000}, r"request 7: limit is 5000, not a whole number from 1 to [\d,]+"),
    ):
        with pytest.raises(ValueError, match=said):
            translator.engine.session(1).submit(translator.engine.request(7, source, **options))
    with pytest.raises(ValueError, match="request 1: the source is empty"):
        translator.engine.generate([[4, eos], []])
    with pytest.raises(ValueError, match=r"^a batch of 0 rows"):
        translator.engine.session(0)
    with pytest.raises(SourceTooLong) as error:
        list(translator.stream(["a"] * 3 + ["a " * 5000], buffer_size=3))
    assert error.value.index == 3
    for size in (4.0, np.int64(4)):
        with pytest.raises(ValueError, match=f"block_size {re.escape(repr(size))} is not an int"):
            Translator.from_pretrained(folder, block_size=size)
    with pytest.raises(ValueError, match="strategy 'magic' is unknown; available: specdec, ar, drafter, fairseq"):
        Translator.from_pretrained(folder, strategy="magic")
