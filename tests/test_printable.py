"""Control characters in names, option values and contents never reach a terminal or a log."""

import io
import logging
import re

import pytest
from conftest import ROOT, run_python

from specdec_plugins.commands import average, benchmark, corpus, datastore, import_model, pack, prepare, score, serve, translate
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import LogFormatter
from specdec_plugins.formats.errors import brief, printable

EVIL = "a\x1b]0;owned\x07\x9b31m\u202eb\udcff"  # sets a terminal's title, colours, reverses; its last byte is not UTF-8
SHOWN = r"a\x1b]0;owned\x07\x9b31m\u202eb\udcff"
PAIR = str(ROOT / "data" / "demo.en-de")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COMMANDS = [
    (translate, ["--model", EVIL]),
    (translate, ["--model", PAIR, "-i", EVIL]),
    (translate, ["--model", PAIR, "-i", "in.txt", "-o", f"none/{EVIL}"]),
    (translate, ["--model", PAIR, "--glossary", EVIL, "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--draft-with", EVIL, "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--draft-with", f"{EVIL}:x", "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--device", EVIL, "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--dtype", EVIL, "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--protect-pattern", f"({EVIL}", "-i", "in.txt"]),
    (translate, ["--model", PAIR, "--beta", EVIL]),
    (translate, ["--model", PAIR, f"--{EVIL}"]),
    (translate, ["--model", PAIR, "--format", EVIL]),
    (translate, ["--model", PAIR, "--markup", "html", "-i", "in.txt", "--ignore-tags", EVIL, "-o", EVIL + "/x"]),
    (translate, ["--verifier", EVIL, "--data", ".", "--strategy", "ar"]),
    (translate, ["--model", PAIR, "--columns", EVIL, "-o", "out.csv", "table.csv"]),
    (corpus, [EVIL, "--model", PAIR, "--output", "out"]),
    (corpus, ["in.txt", "--model", EVIL, "--output", "out"]),
    (corpus, ["in.jsonl", "--column", EVIL, "--model", PAIR, "--output", "out"]),
    (serve, ["--model", EVIL]),
    (serve, ["--model", PAIR, "--keys", EVIL]),
    (serve, ["--config", EVIL]),
    (serve, ["--config", "evil.toml"]),
    (import_model, [EVIL, "--output", "mine"]),
    (benchmark, ["--model", EVIL, "--input", "in.txt"]),
    (benchmark, ["--model", PAIR, "--input", "in.txt", "--block-sizes", EVIL]),
    (score, [EVIL]),
    (score, ["in.txt", "--reference", EVIL]),
    (pack, ["--verifier", EVIL, "--data", ".", "--output", "mine"]),
    (average, ["--inputs", EVIL, "--output", "mine"]),
    (datastore, ["--model", EVIL, "--output", "store", "in.txt"]),
    (prepare, ["--source-lang", EVIL, "--target-lang", "de", "--train", "x", "--output", "mine"]),
]


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_errors_of_commands(number, tmp_path, monkeypatch, capfd):
    command, arguments = COMMANDS[number]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("A dog.\n")
    (tmp_path / "in.jsonl").write_text('{"text": "A dog."}\n')
    (tmp_path / "table.csv").write_text("text\nA dog.\n")
    (tmp_path / "evil.toml").write_text('[model."a\\u001b[31m"]\nrows = "\\u001b[31m"\n')
    try:
        assert command.main(arguments) in (1, 2)
    except SystemExit as stopped:
        assert stopped.code == 2
    said = capfd.readouterr().err
    assert "error: " in said and not STEERING.search(said)


def test_what_lines_and_names_contain_is_escaped(tmp_path, monkeypatch, capfd):
    """Warnings name files, too, and what is printed about an output names it."""
    monkeypatch.chdir(tmp_path)
    name = "a\x1b[31mb"
    (tmp_path / name).write_bytes(b"\n")
    (tmp_path / f"{name}2").write_bytes(b"A dog.\n\xff\n")
    assert translate.main(["--model", PAIR, "-i", f"{name}2", "-o", "out", "--on-error", "skip", "--quiet"]) == 0
    assert translate.main(["--model", PAIR, "-i", f"{name}2", "-o", f"out{name}", "--quiet"]) == 1
    assert datastore.main(["--model", PAIR, "--output", f"store{name}", "out"]) == 0
    captured = capfd.readouterr()
    assert r"a\x1b[31mb2, line 2" in captured.err and rf"to out{printable(name)}" in captured.err
    assert rf"store{printable(name)}: " in captured.out and not STEERING.search(captured.out + captured.err)


def test_progress(capfd):
    with Steps(1.0) as steps:
        steps.step(EVIL, 0.0)
        steps.say(EVIL)
    assert capfd.readouterr().err.splitlines() == [SHOWN] * 2


def test_logs():
    """What a server logs: model names, errors that quote files, tracebacks."""
    log, stream = logging.getLogger("test_printable"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False  # xdist cannot send what pytest would capture
    try:
        log.error("model %s: %s", EVIL, "two\nlines")
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("failed")
    finally:
        log.removeHandler(handler)
    first, second, third, *rest = stream.getvalue().splitlines()
    assert (first, second, third) == (f"ERROR model {SHOWN}: two", "    lines", "ERROR failed")
    assert rest[-1] == f"    ValueError: {SHOWN}" and not STEERING.search(stream.getvalue())


def test_warnings_of_a_command(tmp_path):
    """A library's warning reaches stderr by Python's last resort, which a command makes safe."""
    code = (
        "import argparse, logging; from specdec_plugins.commands.runner import run_command\n"
        "run_command(argparse.ArgumentParser(), [], lambda options: logging.getLogger('x').warning('a\\x1b[31m'))"
    )
    assert run_python("-c", code).stderr == "a\\x1b[31m\n"


@pytest.mark.parametrize("text", ["Straße, naïve “quotes” – हिन्दी \u200d\u200c\u00a0", "tab\tstays", r"\x1b written out"])
def test_text_is_left_alone(text):
    assert printable(text) == text


def test_excerpts_of_untrusted_text():
    assert brief(f"one\n{EVIL}") == f"one {SHOWN}"
