"""Whole corpora: what shards concatenate to is specdec-translate's output, however a run is cut, spread, stopped and resumed."""

import json
import random

import pytest
import torch
from conftest import make_drafter, make_verifier

from specdec_plugins.commands import corpus, pack, translate
from specdec_plugins.formats import checkpoint
from specdec_plugins.text.compressed import compress, open_read
from specdec_plugins.text.vocabulary import Vocabulary

QUICK = ("--max-len-b", 9, "--quiet")


@pytest.fixture(scope="module")
def folder(toy_data, tmp_path_factory):
    """A model folder with a random pair."""
    made = tmp_path_factory.mktemp("pair")
    words = len(Vocabulary.read(toy_data / "bin" / "dict.xa.txt")) - 4
    verifier, args = make_verifier(seed=3, words=words)
    drafter = make_drafter(seed=4, dtype=torch.float32, words=words)
    args.source_lang, args.target_lang = "xa", "xb"
    checkpoint.save({"model": verifier.state_dict(), "args": args, "cfg": None}, made / "v.pt")
    block = type(args)(**{**vars(args), "arch": "block", "src_embedding_copy": True, "block_size": 5})
    checkpoint.save({"model": drafter.state_dict(), "args": block, "cfg": None}, made / "d.pt")
    options = ["--verifier", made / "v.pt", "--drafter", made / "d.pt", "--data", toy_data / "bin", "--codes", toy_data / "codes"]
    assert pack.main([*map(str, options), "--output", str(made / "pair")]) == 0
    return made / "pair"


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


@pytest.mark.parametrize("options", [(), ("--beam", 3, "--nbest", 2), ("--sampling", "--num-samples", 2, "--seed", 7)], ids=str)
def test_shards_concatenate_to_the_output_of_translate(folder, text, expected, tmp_path, capfd, options):
    cut = len("\n".join(text.split("\n")[:31]).encode()) + 1
    data, paths = text.encode(), [tmp_path / "a.txt.gz", tmp_path / "b.txt.zst"]
    for path, part in zip(paths, (data[:cut], data[cut:])):
        path.write_bytes(compress(part, path))
    for number, (size, more) in enumerate([(100, ["--compress", "gz"]), (333, ["--compress", "zst"]), (10**6, [])]):
        out = tmp_path / f"out{number}"
        run(capfd, *paths, "--model", folder, "-o", out, "--shard-size", size, *QUICK, *more, *options)
        assert whole(out) == expected(*options)
        assert (len(list(out.glob("part-*"))) > 4) == (size == 100)


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
