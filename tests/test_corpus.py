"""Whole corpora: what shards concatenate to is specdec-translate's output, however a run is cut, spread, stopped and resumed."""

import errno
import fcntl
import json
import random
import shutil

import pytest
from fsspec.spec import AbstractBufferedFile

from specdec_plugins.commands import corpus, translate
from specdec_plugins.corpora import inputs, manifest, shard
from specdec_plugins.corpora.stores import contents, store
from specdec_plugins.formats import files
from specdec_plugins.text.compressed import compress, open_read

QUICK = ("--max-len-b", 9, "--quiet")
SAMPLES = ("--sampling", "--num-samples", 2, "--seed", 7)


@pytest.fixture(scope="module")
def text(toy_data):
    """Some 80 lines, among them equal and empty ones, a carriage return, and a last one without an end."""
    words = (toy_data / "raw" / "test.xa").read_text(encoding="utf-8").split()
    draw = random.Random(5)
    lines = [" ".join(draw.choices(words, k=draw.randrange(6))) for _ in range(60)]
    lines += draw.choices(lines, k=20)
    draw.shuffle(lines)
    return "\ufeff" + "\n".join(lines[:40]) + "\r\nx\ry\n" + "\n".join(lines[40:])


def run(capfd, *arguments, status=0):
    """What the command says on stderr."""
    assert corpus.main([str(argument) for argument in arguments]) == status, capfd.readouterr().err
    err = capfd.readouterr().err
    assert "Traceback" not in err
    return err


def whole(output):
    """The decompressed shards, concatenated in the order of their names."""
    return b"".join(open_read(path).read() for path in sorted(output.glob("part-*")))


@pytest.fixture(scope="module")
def expected(folder, text, tmp_path_factory):
    """What specdec-translate writes for the text, by further options."""
    made = tmp_path_factory.mktemp("expected")
    (made / "in.txt").write_bytes(text.encode())
    known = {}

    def of(*options):
        if options not in known:
            out = made / f"{len(known)}.out"
            given = ["--model", folder, "-i", made / "in.txt", "-o", out, *QUICK, *options]
            assert translate.main(list(map(str, given))) == 0
            known[options] = out.read_bytes()
        return known[options]

    return of


@pytest.mark.parametrize("options", [(), ("--max-tokens", 9), ("--beam", 3, "--nbest", 2), SAMPLES], ids=str)
def test_shards_concatenate_to_the_output_of_translate(folder, text, expected, tmp_path, capfd, options):
    cut = len("\n".join(text.split("\n")[:31]).encode()) + 1
    data, paths = text.encode(), [tmp_path / "a.txt.gz", tmp_path / "b.txt.zst"]
    for path, part in zip(paths, (data[:cut], data[cut:])):
        path.write_bytes(compress(part, path))
    sizes = [(100, ["--compress", "gz"]), (333, ["--compress", "zst"]), (10**6, [])]
    for number, (size, more) in enumerate(sizes[: 1 if options else None]):
        out = tmp_path / f"out{number}"
        run(capfd, *paths, "--model", folder, "-o", out, "--shard-size", size, *QUICK, *more, *options)
        assert whole(out) == expected(*options)
        assert (len(list(out.glob("part-*"))) > 4) == (size == 100)


@pytest.mark.long
def test_any_number_of_processes_writes_the_same(folder, text, expected, tmp_path, capfd):
    (tmp_path / "in.txt").write_bytes(text.encode())
    run(
        capfd,
        tmp_path / "in.txt",
        "--model",
        folder,
        "-o",
        tmp_path / "out",
        *"--shard-size 70 --workers 4".split(),
        *QUICK,
        *SAMPLES,
    )
    assert whole(tmp_path / "out") == expected(*SAMPLES)


def test_two_machines_that_write_one_shard_do_not_meet(tmp_path):
    """As where one was taken for dead, though their processes may have the same number."""
    with files.whole(tmp_path / "part") as mine:
        mine.write_text("a\n")
        with files.whole(tmp_path / "part") as theirs:
            theirs.write_text("a\n")
    assert (tmp_path / "part").read_text() == "a\n" and len(list(tmp_path.iterdir())) == 1


def test_json_has_the_numbers_and_texts_of_translate(folder, text, expected, tmp_path, capfd):
    """Its figures of drafts follow the controller, which measures time."""
    (tmp_path / "in.txt").write_bytes(text.encode())
    run(capfd, tmp_path / "in.txt", "--model", folder, "-o", tmp_path / "out", "--shard-size", 300, "--format", "json", *QUICK)
    mine, theirs = (
        [json.loads(line) for line in data.splitlines()] for data in (whole(tmp_path / "out"), expected("--format", "json"))
    )
    assert [(each["id"], each["text"], each["tokens"]) for each in mine] == [
        (each["id"], each["text"], each["tokens"]) for each in theirs
    ]


def test_equal_lines_are_translated_once(folder, text, expected, tmp_path, capfd):
    (tmp_path / "in.txt").write_bytes(text.encode())
    run(capfd, tmp_path / "in.txt", "--model", folder, "-o", tmp_path / "all", *QUICK)
    run(capfd, tmp_path / "in.txt", "--model", folder, "-o", tmp_path / "once", *QUICK, "--dedup", "--buffer-size", 7)
    assert whole(tmp_path / "all") == whole(tmp_path / "once") == expected()
    tokens = [json.loads((tmp_path / name / "summary.json").read_text())["tokens"] for name in ("all", "once")]
    assert tokens[1] < tokens[0]


@pytest.fixture
def source(text, tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def started(folder, source, tmp_path):
    """The options of a run with some twenty shards, and its output folder."""
    out = tmp_path / "out"
    return [source, "--model", folder, "-o", out, "--shard-size", 70, *QUICK], out


def test_a_run_goes_on_where_it_stopped(started, expected, monkeypatch, capfd):
    options, out = started
    keep, calls = manifest.record, []

    def record(folder, report):
        calls.append(report.number)
        if len(calls) % 4 == 0:  # its file is in place, but nobody knows
            raise KeyboardInterrupt
        keep(folder, report)

    monkeypatch.setattr(manifest, "record", record)
    for _ in range(2):
        err = run(capfd, *options, status=130)
        assert err.endswith("specdec-corpus: stopped: run the same command to resume\n")
    assert calls == [0, 1, 2, 3, 3, 4, 5, 6]
    (out / "reports" / "2.json").write_text('{"number": 2')  # what a machine left that failed
    (out / "part-00007.txt.1f.tmp").write_text("half a li")
    (out / "reports" / "4.json").write_text(json.dumps(json.loads((out / "reports" / "4.json").read_text()) | {"errors": 7}))
    (out / "reports" / "5.json").write_text("[" * 100_000)
    (out / "part-00001.txt").unlink()
    monkeypatch.setattr(manifest, "record", keep)
    keep_translate, again = shard.Work, []
    monkeypatch.setattr(shard, "Work", lambda *given: again.append(given[1].number) or keep_translate(*given))
    run(capfd, *options)
    summary = json.loads((out / "summary.json").read_text())
    assert again == [1, 2, *range(4, len(summary["shards"]))]
    assert whole(out) == expected() and not list(out.glob("*.tmp"))
    assert summary["lines"] == summary["records"] == expected().count(b"\n") and summary["errors"] == 0
    assert run(capfd, *options[:-1]).endswith(f"{summary['verdict']}\n") and summary["verdict"].startswith("greedy; ")
    assert run(capfd, *options[:-1]).count("\n") == 2 and again[-1] == len(summary["shards"]) - 1  # nothing is left to do


def test_another_run_is_refused_by_name(started, folder, source, tmp_path, capfd):
    options, out = started
    run(capfd, *options)
    before = contents(str(out))

    def refused(what, *arguments):
        err = run(capfd, *arguments, status=1)
        assert err.count("\n") == 1 and what in err, err
        assert {**contents(str(out)), "part-00002.txt": b""} == {**before, "part-00002.txt": b""}

    refused("was made with --beam None, not 2; delete it, or name another --output", *options, "--beam", 2)
    refused("was made with --shard-size 70, not 80;", *options, "--shard-size", 80)
    refused("was made with --too-long skip, not truncate;", *options, "--too-long", "truncate")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    with open(other / "codes", "a") as stream:
        stream.write("\n")
    refused("was made with another model;", *options, "--model", other)
    refused("was made from 1 input, not 2;", source, *options)
    shutil.copy(source, tmp_path / "copy.txt")
    refused(f"was made from other inputs than {tmp_path}/copy.txt;", tmp_path / "copy.txt", *options[1:])
    with open(out / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(f"{out}: another run is writing here", *options)
    written = (out / "part-00002.txt").read_bytes()
    (out / "part-00002.txt").write_bytes(written[:-1])
    bytes_left = f"{out}/part-00002.txt: has {len(written) - 1} bytes, not {len(written)} as when it was written; delete it to"
    refused(bytes_left, *options)
    (out / "part-00002.txt").unlink()
    source.touch()
    run(capfd, *options)  # the same content
    assert (out / "part-00002.txt").read_bytes() == written
    source.write_text(source.read_text() + "\n")
    before = contents(str(out))
    refused(f"was made from another {source}, which has changed since;", *options)
    good = json.loads((out / "manifest.json").read_text())
    first = good["shards"][0]
    for bad in (
        [],
        {},
        good | {"shards": [first | {"output": "../part-00000.txt"}]},
        good | {"shards": [first | {"first": "0"}]},
        good | {"shards": [first | {"pieces": [first["pieces"][0] | {"path": "/etc/passwd"}]}]},
        good | {"shards": [first | {"pieces": [first["pieces"][0] | {"start": -1}]}]},
    ):
        (out / "manifest.json").write_text(json.dumps(bad))
        before["manifest.json"] = json.dumps(bad).encode()
        refused(f"{out}/manifest.json: not a manifest (", *options)
    (out / "manifest.json").unlink()
    err = run(capfd, *options, status=1)
    assert f"{out}/reports: has reports, but there is no manifest.json; delete it, or name another --output" in err


def test_folders_that_cannot_be_used_are_named(started, tmp_path, monkeypatch, capfd):
    options, out = started
    (tmp_path / "file").write_text("mine")
    assert f"error: {tmp_path}/file" in run(capfd, *options, "-o", tmp_path / "file", status=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.tmp").write_text("mine")
    err = run(capfd, *options, "-o", tmp_path / "mine", status=1)
    assert "mine: has files of something else, such as notes.tmp; name another --output" in err
    assert "mine: not a regular file, and inputs are" in run(capfd, tmp_path / "mine", *options[1:], status=1)
    assert f"error: {tmp_path}/no.txt: No such file or directory" in run(capfd, tmp_path / "no.txt", *options[1:], status=1)
    assert "error: /proc/" in run(capfd, *options, "-o", "/proc/out", status=1)  # nobody can write there
    keep, calls = shard.compress, []

    def full(data, path):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return keep(data, path)

    monkeypatch.setattr(shard, "compress", full)
    err = run(capfd, *options, status=1)
    assert err == f"specdec-corpus: error: {out}/part-00002.txt: No space left on device\n"
    assert sorted(path.name for path in out.glob("part-*")) == ["part-00000.txt", "part-00001.txt"]


def test_bad_lines_end_in_a_report(started, source, expected, monkeypatch, capfd):
    """Lines that are no text, are too long, or on which decoding raises: each once, and the others are translated."""
    options, out = started
    lines = source.read_bytes().split(b"\n")
    lines[3:3], lines[30:30] = [b"no \xff text"], [b"a \0", b" ".join([b"un"] * 2000), b"poison un"]
    source.write_bytes(b"\n".join(lines))
    options = ["--buffer-size" if each == "--shard-size" else each for each in options]
    keep, tried = corpus.LineAnswerer.__call__, []

    def answer(self, first, lines):
        tried.append(lines)
        if any("poison" in line for line in lines):
            raise RuntimeError("index 7 is out of bounds")
        return keep(self, first, lines)

    monkeypatch.setattr(corpus.LineAnswerer, "__call__", answer)
    assert f"error: {source}, line 4: not UTF-8 (byte 4 of the line)\n" in run(capfd, *options, status=1)
    run(capfd, *options, "--on-error", "skip")
    assert sum("poison un" in lines for lines in tried) == 2  # with others, and alone
    found = whole(out).split(b"\n")
    assert [found.pop(at) for at in (32, 31, 30, 3)] == [b""] * 4 and b"\n".join(found) == expected()
    report = json.loads((out / "reports" / "0.json").read_text())
    assert [each.removeprefix(f"{source}, line ")[:35] for each in sorted(report["errors"])] == [
        "31: contains a NUL byte, so it is n",
        "32: too long for the model, skipped",
        "33: index 7 is out of bounds",
        "4: not UTF-8 (byte 4 of the line)",
    ]


def test_lines_at_fault_are_skipped_where_no_other_is_in_their_batch(started, source, expected, monkeypatch, capfd):
    options, out = started
    source.write_bytes(b"poison\npoison\n" + source.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    keep = corpus.LineAnswerer.__call__

    def answer(self, first, lines):
        if "poison" in lines:
            raise RuntimeError("index 7 is out of bounds")
        return keep(self, first, lines)

    monkeypatch.setattr(corpus.LineAnswerer, "__call__", answer)
    assert f"error: {source}, line 1: index 7 is out of bounds\n" in run(capfd, *options, status=1)
    run(capfd, *options, "--on-error", "skip", "--buffer-size", 1)
    assert whole(out) == b"\n\n" + expected()


def test_an_input_that_changes_during_a_run_is_named(started, source, monkeypatch, capfd):
    options, out = started
    keep = manifest.record

    def record(folder, report):
        keep(folder, report)
        source.write_bytes(source.read_bytes() + b"more\n")

    monkeypatch.setattr(manifest, "record", record)
    assert f"was made from another {source}, which has changed since;" in run(capfd, *options, status=1)
    assert not (out / "summary.json").exists()


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.tsv.zst"])
def test_a_compressed_input_is_read_twice_however_many_shards_it_has(folder, text, expected, tmp_path, monkeypatch, capfd, name):
    rows = "".join(f"{line}\tx\n" for line in text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", " ").split("\n"))
    (tmp_path / name).write_bytes(compress(f"source\tmore\n{rows}".encode(), name))
    keep, calls = inputs.open_file, []
    monkeypatch.setattr(inputs, "open_file", lambda path: calls.append(path) or keep(path))
    options = [tmp_path / name, "--model", folder, "--column", "source", "--shard-size", 70, *QUICK]
    run(capfd, *options, "-o", tmp_path / "out")
    assert whole(tmp_path / "out") == expected() and len(list((tmp_path / "out").glob("part-*"))) > 9
    assert len(calls) == 2  # the plan; the header and the shards
    (tmp_path / "out" / "part-00003.txt").unlink()
    run(capfd, *options, "-o", tmp_path / "out")
    assert whole(tmp_path / "out") == expected() and len(calls) == 3


def test_a_fault_of_all_lines_is_no_fault_of_the_lines(started, monkeypatch, capfd):
    options, out = started

    def answer(self, first, lines):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(corpus.LineAnswerer, "__call__", answer)
    assert "in.txt, line 1: no kernel\n" in run(capfd, *options, "--on-error", "skip", status=1)
    assert not list(out.glob("part-*"))


def test_columns_of_tables_are_translated(folder, text, expected, tmp_path, capfd):
    import pyarrow
    import pyarrow.parquet

    lines = [line.rstrip("\r").replace("\r", " ") for line in text.removeprefix("\ufeff").split("\n")]
    rows = "".join(f"{number}\t{line}\tx\n" for number, line in enumerate(lines))
    (tmp_path / "a.tsv").write_bytes(rows.encode())
    (tmp_path / "b.tsv.gz").write_bytes(compress(f"\ufeffid\tsource\tmore\n{rows}".encode(), "b.tsv.gz"))
    records = "".join(json.dumps({"source": line, "id": 7}) + "\n" for line in lines)
    (tmp_path / "c.jsonl.zst").write_bytes(compress(records.encode(), "c.jsonl.zst"))
    table = pyarrow.table({"id": range(len(lines)), "source": [line or None for line in lines]})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet", row_group_size=33)
    for number, (names, column) in enumerate(
        [(["a.tsv"], "2"), (["b.tsv.gz"], "source"), (["c.jsonl.zst", "d.parquet"], "source")]
    ):
        out, paths = tmp_path / f"{number}", [tmp_path / name for name in names]
        run(capfd, *paths, "--model", folder, "-o", out, "--column", column, "--shard-size", 200, *QUICK)
        assert whole(out) == expected() * len(names)
        assert len(list(out.glob("part-*"))) > 4
        err = run(capfd, *paths, "--model", folder, "-o", tmp_path / "new", *QUICK, status=1)
        assert f"{paths[0]}: name the column to translate with --column" in err
    refused = run(capfd, tmp_path / "d.parquet", "--model", folder, "-o", tmp_path / "x", "--column", "text", *QUICK, status=1)
    assert "d.parquet: no column is named text; there are id, source\n" in refused
    cells = pyarrow.array([lines[0].encode(), b"x \xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"source": cells}), tmp_path / "bad.parquet")
    options = [tmp_path / "bad.parquet", "--model", folder, "-o", tmp_path / "z", "--column", "source", *QUICK]
    assert f"error: {tmp_path}/bad.parquet, line 2: not UTF-8\n" in run(capfd, *options, status=1)
    run(capfd, *options, "--on-error", "skip")
    assert whole(tmp_path / "z") == expected().split(b"\n")[0] + b"\n\n"
    (tmp_path / "bad.jsonl").write_text(
        f'{{"source": "{lines[0]}"}}\n{{"sauce": 1}}\n[]\n{{"source": 1}}\n{{\n{{"source": null}}\n{{"source": "\\ud800"}}\n'
    )
    run(
        capfd, tmp_path / "bad.jsonl", "--model", folder, "-o", tmp_path / "y", "--column", "source", "--on-error", "skip", *QUICK
    )
    assert whole(tmp_path / "y") == expected().split(b"\n")[0] + b"\n" * 7
    (tmp_path / "a.html.gz").write_bytes(b"")
    said = run(capfd, tmp_path / "a.html.gz", "--model", folder, "-o", tmp_path / "x", *QUICK, status=1)
    assert f"{tmp_path}/a.html.gz: .html files are not supported; inputs are lines of text, .tsv" in said
    said = [each.partition(": ")[2] for each in json.loads((tmp_path / "y" / "reports" / "0.json").read_text())["errors"]]
    assert said == [
        "has no field source",
        "has no field source",
        "not text",
        "not JSON",
        "contains half a surrogate pair, so it is not text",
    ]


class StoredFile(AbstractBufferedFile):
    """Reads as files of S3 do, where memory's own are `BytesIO`, and fails as they do."""

    def _fetch_range(self, start, end):
        if "far" in self.path:
            raise LookupError("cannot connect")  # botocore's errors are none of files, either
        return self.fs.store[self.path].getvalue()[start:end]


def test_stores_are_read_and_written(folder, text, expected, tmp_path, monkeypatch, capfd):
    system, _ = store("memory://corpora")
    keep = type(system)._open

    def opened(own, path, mode="rb", **more):
        return StoredFile(own, path) if mode == "rb" else keep(own, path, mode, **more)

    monkeypatch.setattr(type(system), "_open", opened)
    system.pipe_file("/corpora/in.txt.gz", compress(text.encode(), "in.txt.gz"))
    options = ["memory://corpora/in.txt.gz", "--model", folder, "-o", "memory://corpora/out", "--shard-size", 300, *QUICK]
    run(capfd, *options)
    written = contents("memory://corpora/out")
    assert b"".join(written[name] for name in sorted(written) if name.startswith("part-")) == expected()
    system.rm_file("/corpora/out/reports/1.json")
    assert "shards done before: 3 of 4\n" in run(capfd, *[each for each in options if each != "--quiet"])
    again = contents("memory://corpora/out")
    assert {name for name in written if written[name] != again[name]} <= {"summary.json"}
    assert "was made with --beam None, not 2" in run(capfd, *options, "--nbest", 2, "--beam", 2, status=1)
    (tmp_path / "in.txt").write_bytes(text.encode())
    run(capfd, f"file://{tmp_path}/in.txt", "--model", folder, "-o", f"file://{tmp_path}/out", *QUICK)
    assert whole(tmp_path / "out") == expected()
    system.pipe_file("/corpora/in.txt", text.encode())
    run(capfd, "memory://corpora/in.txt", "--model", folder, "-o", tmp_path / "plain", "--shard-size", 300, *QUICK)
    assert whole(tmp_path / "plain") == expected()
    system.pipe_file("/corpora/far.txt", b"a")
    err = run(capfd, "memory://corpora/far.txt", "--model", folder, "-o", tmp_path / "out2", *QUICK, status=1)
    assert err == "specdec-corpus: error: memory://corpora/far.txt: cannot connect\n"
    err = run(capfd, "memory://corpora/no.txt", "--model", folder, "-o", tmp_path / "out2", *QUICK, status=1)
    assert "error: memory://corpora/no.txt: No such file\n" in err
    assert "nosuch" in run(capfd, "nosuch://a/b", "--model", folder, "-o", tmp_path / "out2", *QUICK, status=1)


def test_a_dry_run_estimates_and_writes_nothing(started, capfd):
    options, out = started
    assert corpus.main([*map(str, options), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert "81 lines, 0.0 MB; shards: 13\n" in said and "lines of a sample took" in said and "all would take about 0." in said
    assert not out.exists()


def test_options_that_do_not_fit(started, capfd):
    options, _ = started
    assert "--dedup cannot be combined with --sampling" in run(capfd, *options, "--dedup", "--sampling", status=2)
    assert "--dedup cannot be combined with --format json" in run(capfd, *options, "--dedup", "--format", "json", status=2)
    assert "--shard-size 0 is less than 1" in run(capfd, *options, "--shard-size", 0, status=2)


@pytest.mark.long
def test_runs_whose_processes_are_killed_lose_nothing(tmp_path):
    """SIGKILL at random moments, of the command and of a process beside it. More of this: ``benchmarks/shards.py chaos``."""
    from shards import chaos

    found = chaos(tmp_path, 4, ("worker", "parent"))  # raises if an output is wrong
    assert [run["kind"] for run in found] == ["worker", "parent"] * 2
