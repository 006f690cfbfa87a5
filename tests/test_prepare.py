"""Preparation: the text pipeline, the steps and their safety, the corpora's scripts. No test needs the network."""

import gzip
import http.server
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import conftest
import corpora
import generated
import pytest
import toy
from conftest import ROOT, run_script

from specdec_plugins.commands import prepare
from specdec_plugins.commands.preparation import pairs as pairs_of_lines
from specdec_plugins.commands.preparation import steps
from specdec_plugins.commands.preparation.pairs import CHUNK, map_pairs
from specdec_plugins.settings import MOST_THREADS
from specdec_plugins.text.bpe import Bpe, remove_bpe
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.moses import Moses
from specdec_plugins.text.restyle import restyle
from specdec_plugins.text.reversible import Reversible
from specdec_plugins.text.tokenizers import load_tokenizer


def sentences(prefix: Path, source: list[str], target: list[str]) -> str:
    """Write a pair of text files; return their prefix."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for lang, lines in (("en", source), ("de", target)):
        Path(f"{prefix}.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(prefix)


@pytest.fixture
def corpus(tmp_path):
    """Prefixes of a small parallel text: train and valid."""
    toy.write_corpus(tmp_path / "in", train=150, valid=20, test=20)
    for path in list((tmp_path / "in").iterdir()):
        path.rename(path.with_suffix({".xa": ".en", ".xb": ".de"}[path.suffix]))
    return tmp_path / "in"


@pytest.fixture
def fake_fairseq(monkeypatch):
    """Put a recorder in the place of fairseq-preprocess, which takes seconds to start; return its calls."""
    calls = []

    def run(command, cwd, stdout, **_):
        calls.append(command)
        destination = Path(command[command.index("--destdir") + 1])
        destination.mkdir()
        for lang in ("en", "de"):
            (destination / f"dict.{lang}.txt").write_text("le 3\n")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(steps.subprocess, "run", run)
    return calls


def run(output: Path, *more: str, operations: int | None = 60) -> int:
    """Run specdec-prepare from English to German into `output`."""
    command = ["--source-lang", "en", "--target-lang", "de", "--output", str(output), "--workers", "2", *more]
    return prepare.main(command + (["--bpe-operations", str(operations)] if operations else []))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def only_error(capsys) -> str:
    """Return the one line on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# ---- options


@pytest.mark.parametrize("content", ["{}", "{", "[]"])
def test_a_record_that_is_none(tmp_path, corpus, capsys, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/prepare.json").write_text(content)
    assert run(tmp_path / "out", "--train", str(corpus / "train")) == 1
    assert f"{tmp_path / 'out/prepare.json'}: damaged or not ours" in only_error(capsys)


@pytest.mark.parametrize("merge", [" c", "a b c", "#version: x.y\na b"])
def test_codes_that_are_none(tmp_path, merge):
    (tmp_path / "codes").write_text(f"{merge}\n")
    with pytest.raises(ValueError, match=r"codes: (not a BPE codes file|BPE codes of)"):
        Bpe(tmp_path / "codes")


# ---- text


@pytest.mark.parametrize(
    "lang, sentence",
    [
        ("en", "A well-known man's dog isn't barking; it \"sleeps\" (at 5,000 & 3.5%) in the U.S. today."),
        ("en", "Is 5 < 6 | [x] & 7 > y?"),
        ("de", 'Ein schwarz-weißer Hund läuft über die Straße, z.B. am 3. Mai, und sagt: "Nein!"'),
        ("ro", "Președintele țării a spus că își dorește 1.000 de școli."),
    ],
)
def test_tokens_go_back_to_the_sentence(lang, sentence):
    moses = Moses(lang)
    tokens = moses.tokenize(sentence)
    assert tokens != sentence and moses.detokenize(tokens) == sentence


def test_tokens_are_those_of_fairseqs_moses_option():
    assert Moses("en").tokenize("The dog's well-known [toy]\u00a0is “red”\tnow\u200b.") == (
        "The dog &apos;s well @-@ known &#91; toy &#93; is &quot; red &quot; now ."
    )


def test_romanian_cedillas_become_commas():
    assert Moses("ro").tokenize("Ştiinţa şi ţara") == "Știința și țara"


def test_bpe_is_undone(tmp_path):
    codes = tmp_path / "codes"
    steps.learn_codes({"lower": 5, "lowest": 3, "@-@": 2}, 4, codes)
    subwords = Bpe(codes).apply("lowest @-@ lower x")
    assert "@@ " in subwords and remove_bpe(subwords) == "lowest @-@ lower x"
    assert remove_bpe("lo@@ w@@") == "low"


# ---- preparation


def test_layout_and_cleaning(tmp_path, fake_fairseq, capsys):
    # a line separator inside a sentence, white space of many kinds, and one pair for every reason to drop it
    source = ["a b\u2028c", "", "a " * 9, "a b c d", "a\u00a0b\tc"]
    target = ["a b c", "a", "a " * 9, "a", "c b a"]
    train = sentences(tmp_path / "train", source, target)
    valid = sentences(tmp_path / "valid", source, target)
    output = tmp_path / "out"
    assert run(output, "--train", train, "--valid", valid, "--test", f"{valid},{train}", "--max-length", "8", operations=1) == 1
    assert "too small" in only_error(capsys)  # words of one letter: nothing to merge

    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\na b</w>\n")
    tests = ["--valid", valid, "--test", f"{valid},{train}"]
    assert run(output, "--train", train, *tests, "--codes", str(codes), "--max-length", "8", operations=None) == 0
    assert "bpe train: 2 pairs kept, 1 removed (empty), 1 removed (too long), 1 removed (ratio)" in capsys.readouterr().out
    assert (output / "bpe/train.en").read_text() == "a b c\na b c\n" and (output / "bpe/train.de").read_text() == "a b c\nc b a\n"
    for split in ("valid", "test", "test1"):  # nothing dropped, nothing shifted
        assert (output / f"bpe/{split}.en").read_text() == "a b c\n\n" + " ".join("a" * 9) + "\na b c d\na b c\n"
        assert list(read_lines(output / f"raw/{split}.en")) == source
    assert fake_fairseq[0][fake_fairseq[0].index("--testpref") + 1] == "bpe/test,bpe/test1"
    told = json.loads((output / "prepare.json").read_text())
    assert told["lines"] == dict.fromkeys(["train", "valid", "test", "test1"], 5)
    assert told["sha256"][f"{train}.en"] == steps.file_digest(Path(f"{train}.en"))


def test_parts_of_the_training_text_are_joined(tmp_path, corpus, fake_fairseq):
    assert run(tmp_path / "out", "--train", f"{corpus}/train,{corpus}/valid") == 0
    joined = (corpus / "train.en").read_text() + (corpus / "valid.en").read_text()
    assert (tmp_path / "out/raw/train.en").read_text() == joined


@pytest.mark.parametrize(
    "source, target, message",
    [
        (b"a\nb\n", b"a\n", "bad.en has 2 lines but {in}/bad.de has 1"),
        (b"a\n", None, "bad.de: no such file"),
        (b"a\n", b"", "bad.de: the file is empty"),
        (b"a\n", b"\xff\n", "bad.de, line 1: not UTF-8"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_bad_input_changes_nothing(tmp_path, corpus, fake_fairseq, capsys, source, target, message, split):
    output = tmp_path / "out"
    good = {"--train": f"{corpus}/train", "--test": f"{corpus}/test"}
    assert run(output, *sum(good.items(), ())) == 0
    before = contents(output)
    for lang, data in (("en", source), ("de", target)):
        if data is not None:
            (corpus / f"bad.{lang}").write_bytes(data)
    capsys.readouterr()
    assert run(output, *sum((good | {f"--{split}": f"{corpus}/bad"}).items(), ())) == 1
    assert message.replace("{in}", str(corpus)) in only_error(capsys)
    assert contents(output) == before


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, corpus, fake_fairseq, capsys, monkeypatch):
    command = ["--train", f"{corpus}/train", "--valid", f"{corpus}/valid"]
    assert run(tmp_path / "whole", *command) == 0

    def die(*_, **__):
        raise KeyboardInterrupt

    for victim in ("learn_codes", "write_pairs", "move", "write_json"):
        output = tmp_path / victim
        with monkeypatch.context() as patch:
            patch.setattr(steps, victim, die)
            assert run(output, *command) == 130
        assert "run the same command again to resume" in only_error(capsys)
        assert not (output / ".partial").exists()
        assert run(output, *command) == 0
        assert ("tok train: done" in capsys.readouterr().out) == (victim == "learn_codes")
        assert contents(output) == contents(tmp_path / "whole")


def test_a_kill_between_two_files_is_noticed(tmp_path, corpus, fake_fairseq, monkeypatch):
    output, command = tmp_path / "out", ["--train", f"{corpus}/train"]
    assert run(output, *command) == 0
    before = contents(output)
    moves = []

    def move_once(new: Path, old: Path) -> None:
        if moves:
            raise KeyboardInterrupt
        moves.append(old.name)
        os.replace(new, old)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "move", move_once)
        assert run(output, *command, "--max-length", "40") == 130 and moves == ["train.en"]
    assert run(output, *command) == 0 and contents(output) == before  # not the mixture of the two


def test_only_what_is_missing_or_outdated_is_made_again(tmp_path, corpus, fake_fairseq, capsys):
    output = tmp_path / "out"
    command = ["--train", f"{corpus}/train", "--valid", f"{corpus}/valid"]

    def made_again(*more: str, operations: int = 60) -> set[str]:
        assert run(output, *command, *more, operations=operations) == 0
        return {line.split(":")[0] for line in capsys.readouterr().out.splitlines() if not line.endswith(": done")}

    everything = {"tok train", "tok valid", "codes", "bpe train", "bpe valid", "bin"}
    assert made_again() == everything
    before = contents(output)
    assert made_again() == set() and contents(output) == before
    (output / "tok/train.de").unlink()
    (output / "codes").unlink()
    assert made_again() == {"tok train", "codes"} and contents(output) == before
    assert made_again("--max-length", "100") == {"bpe train", "bin"}
    assert made_again(operations=50) == everything - {"tok train", "tok valid"}
    with open(corpus / "valid.en", "a") as source, open(corpus / "valid.de", "a") as target:
        print("one", file=source)
        print("more", file=target)
    assert made_again(operations=50) == {"tok valid", "bpe valid", "bin"}
    assert made_again("--test", f"{corpus}/test", operations=50) == {"tok test", "bpe test", "bin"}


def test_splits_are_not_lost(tmp_path, corpus, fake_fairseq, capsys):
    output = tmp_path / "out"
    assert run(output, "--train", f"{corpus}/train", "--valid", f"{corpus}/valid") == 0
    capsys.readouterr()
    assert run(output, "--train", f"{corpus}/train") == 1
    assert "en-de train, valid, which this command would lose" in only_error(capsys)


def test_workers_do_not_change_the_result(tmp_path, corpus, fake_fairseq, monkeypatch):
    monkeypatch.setattr(pairs_of_lines, "CHUNK", 7)
    for workers in ("1", "3"):
        assert run(tmp_path / workers, "--train", f"{corpus}/train", "--workers", workers) == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


@pytest.mark.long
def test_fairseqs_complaint_is_shown(tmp_path, corpus, capsys):
    (tmp_path / "dict").write_text("no dictionary\n")
    output = tmp_path / "out"
    assert run(output, "--test", f"{corpus}/test", "--bpe-applied", "--dict", f"{tmp_path}/dict", operations=None) == 1
    assert "fairseq-preprocess failed: ValueError: Incorrect dictionary format" in only_error(capsys)
    assert not (output / "bin").exists() and not (output / "prepare.json").exists()


def test_text_without_translation(tmp_path, corpus, fake_fairseq, capsys):
    assert run(tmp_path / "out", "--train", f"{corpus}/train", "--max-ratio", "0") == 0
    lines = (corpus / "train.en").read_text().splitlines(keepends=True)
    (tmp_path / "more.en.gz").write_bytes(gzip.compress("".join(["\n", *lines]).encode()))
    calls = len(fake_fairseq)
    command = ["--mono", f"{tmp_path}/more.en.gz", "--codes", f"{tmp_path}/out/codes"]
    assert run(tmp_path / "mono", *command, operations=None) == 0
    assert "bpe mono: 150 pairs kept, 1 removed (empty)" in capsys.readouterr().out and len(fake_fairseq) == calls
    assert (tmp_path / "mono/bpe/mono.en").read_bytes() == (tmp_path / "out/bpe/train.en").read_bytes()
    assert not list((tmp_path / "mono").rglob("*.de"))


@pytest.mark.parametrize("codes", ["no codes here", ""])
def test_bad_codes_are_named(tmp_path, corpus, fake_fairseq, capsys, codes):
    (tmp_path / "codes").write_text(codes)
    assert run(tmp_path / "out", "--train", f"{corpus}/train", "--codes", f"{tmp_path}/codes", operations=None) == 1
    assert "codes: not a BPE codes file" in only_error(capsys)
    assert not (tmp_path / "out/codes").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "--train is missing"),
        (["--test", "x"], "--dict is required without --train"),
        (["--train", "x", "--dict", "d"], "--dict requires"),
        (["--mono", "x"], "--mono requires --codes"),
        (["--train", "x", "--target-lang", "en"], "are the same"),
        (["--mono", "x", "--restyle", "0.1"], "--restyle requires raw text in two languages"),
        (["--train", "x", "--dict-size", "9", "--tokenizer", "byte-level"], "--dict-size cannot be combined with --dict, --mono"),
        (["--train", "x", "--max-ratio", "nan"], "--max-ratio nan is not a number from 0"),
        (["--train", "x", "--max-length", "-1"], "--max-length -1 is not a number from 0"),
        (["--train", "x", "--workers", "0"], "--workers 0 is less than 1"),
        (["--train", "x", "--workers", f"{MOST_THREADS + 1}"], f"--workers {MOST_THREADS + 1:,} is more than {MOST_THREADS:,}"),
    ],
)
def test_senseless_options(tmp_path, capsys, options, message):
    assert run(tmp_path / "out", *options) == 2 and message in only_error(capsys)


def test_a_fraction_is_checked_while_parsing(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path / "out", "--train", "x", "--restyle", "0.6")
    assert exit_.value.code == 2 and "'0.6' is not a number from 0 to 0.5" in capsys.readouterr().err


def test_needs_neither_torch_nor_fairseq():
    modules = "specdec_plugins.commands.prepare, specdec_plugins.text.moses"
    code = f"import sys, {modules}; specdec_plugins.text.moses.Moses('en'); print({{'torch', 'fairseq'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"


# ---- corpora


def test_toy_corpus(tmp_path):
    toy.write_corpus(tmp_path / "a", seed=3, train=600)
    toy.write_corpus(tmp_path / "b", seed=3, train=500)
    toy.write_corpus(tmp_path / "c", seed=4, train=500)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a["test.xb"] == b["test.xb"] != c["test.xb"] and a["train.xa"].startswith(b["train.xa"])

    pairs = [
        pair
        for split in ("train", "valid", "test")
        for pair in zip(*(a[f"{split}.{lang}"].decode().splitlines() for lang in toy.LANGS))
    ]
    assert len({source for source, _ in pairs}) == len(pairs) == 1000
    assert all(4 <= len(source.split()) <= 20 for source, _ in pairs)
    assert not set(" ".join(s for s, _ in pairs).split()) & set(" ".join(t for _, t in pairs).split())  # no copying
    assert any("," in target for _, target in pairs)


def test_toy_grammar():
    language = toy.Toy(1)
    language.nouns = {"dog": (["hu", "nd"], toy.ENDINGS[1])}
    language.adjectives, language.adverbs, language.prepositions = {"big": "gross"}, {"now": "jetzt"}, {"of": "von"}
    language.verbs = {"sees": ("seh", "fel")}
    drawn = [language.sentence() for _ in range(9000)]
    found = dict(drawn)
    assert len(found) == len(set(drawn)) < len(drawn)  # one translation each
    assert len({source for source, _ in islice(generated.without_repeats(language.sentence), 2000)}) == 2000
    assert found["le big doglin sees un dog."] == "ilae hu nd grossae sehant sema hu nd fel."  # order, agreement, particle
    assert found["mi sees le dog now."] == "jetzt sehom ila hu nd fel."  # adverb first, pronoun dropped
    subordinate = next(target for source, target in found.items() if source.startswith("tu sees un dog ke nos sees "))
    assert subordinate.startswith("sehes sema hu nd fel, dat ") and subordinate.endswith(" felsehamo.")  # verb last


def load_both_ways(folder: Path, langs: tuple[str, str], split: str = "test") -> list[tuple[str, str]]:
    """Load a split with fairseq in both directions; return the first pair of each as text."""
    from fairseq.data import Dictionary
    from fairseq.tasks.translation import load_langpair_dataset

    first = []
    for source, target in (langs, langs[::-1]):
        dictionary = [Dictionary.load(str(folder / "bin" / f"dict.{lang}.txt")) for lang in (source, target)]
        assert dictionary[0] == dictionary[1]
        data = load_langpair_dataset(
            str(folder / "bin"),
            split,
            source,
            dictionary[0],
            target,
            dictionary[1],
            combine=False,
            dataset_impl=None,
            upsample_primary=1,
            left_pad_source=True,
            left_pad_target=False,
            max_source_positions=1024,
            max_target_positions=1024,
        )
        assert len(data) == len(list(read_lines(folder / "bpe" / f"{split}.{source}")))
        first.append(tuple(dictionary[0].string(data[0][side], "@@ ") for side in ("source", "target")))
    return first


@pytest.mark.long
def test_multi30k_and_reuse_of_its_codes(tmp_path):
    multi30k, local = conftest.corpus("multi30k"), tmp_path / "local"
    local.mkdir()
    for lang in ("en", "de"):
        lines = list(read_lines(multi30k / f"train.{lang}.gz"))
        (local / f"train.{lang}.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines[:400]).encode()))
        (local / f"val.{lang}").write_text("".join(f"{line}\n" for line in lines[400:420]))  # the published name
        (local / f"test2016.{lang}").write_bytes((multi30k / f"test2016.{lang}").read_bytes())  # the short one
    first = tmp_path / "first"
    result = run_script("multi30k.sh", "--local", str(local), "--output", str(first), "--bpe-operations", "300")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert (first / "raw/test.de").read_bytes() == (multi30k / "test2016.de").read_bytes()
    one, other = load_both_ways(first, ("en", "de"))
    assert one == other[::-1] and one[1] == (first / "tok/test.de").read_text().split("\n")[0]

    # another test set with the same codes and dictionary, and the same again from subwords
    again, distilled = tmp_path / "again, with a comma", tmp_path / "distilled"
    given = ["--dict", f"{first}/bin/dict.en.txt"]
    assert run(again, "--test", f"{multi30k}/test2016", "--codes", f"{first}/codes", *given, operations=None) == 0
    assert run(distilled, "--test", f"{first}/bpe/test", "--bpe-applied", *given, operations=None) == 0
    tests = {name: data for name, data in contents(first / "bin").items() if not name.startswith(("train", "valid"))}
    assert contents(again / "bin") == contents(distilled / "bin") == tests
    assert sorted(path.name for path in distilled.iterdir()) == [".steps", "bin", "bpe", "prepare.json", "preprocess.log"]


def sgm(lines: list[str]) -> str:
    """Return a test set in the form of WMT."""
    return '<refset>\n<doc id="1">\n' + "".join(f'<seg id="{n}"> {line} </seg>\n' for n, line in enumerate(lines)) + "</doc>\n"


def archive(path: Path, members: dict[str, str]) -> None:
    """Write a .tgz or .zip archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as opened:
            for name, text in members.items():
                opened.writestr(name, text)
        return
    with tarfile.open(path, "w:gz") as opened:
        for name, text in members.items():
            member, content = tarfile.TarInfo(name), text.encode()
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))


def text(words: str) -> list[str]:
    """Return some sentences that differ."""
    return [f"{words} {number} {words[::-1]}." for number in range(12)]


@pytest.mark.long
def test_wmt14_from_folder_and_archives(tmp_path):
    local = tmp_path / "local"
    english, german = text("the house"), text("das Haus")
    plain = local / "unpacked" / "europarl-v7.de-en"  # one corpus unpacked, the others in their archives
    sentences(plain, english, german)
    parallel = {"en": "\n".join(english) + "\n", "de": "\n".join(german) + "\n"}
    archive(local / "training-parallel-commoncrawl.tgz", {f"commoncrawl.de-en.{lang}": parallel[lang] for lang in parallel})
    archive(
        local / "training-parallel-nc-v9.tgz",
        {f"training/news-commentary-v9.{pair}.{lang}": parallel[lang] for lang in parallel for pair in ("de-en", "ru-en")},
    )
    archive(local / "test.tgz", {f"test/newstest2013-src.{lang}.sgm": sgm(text(lang)) for lang in parallel})
    for side, lang in (("src", "en"), ("ref", "de")):
        (local / f"newstest2014-deen-{side}.{lang}.sgm").write_text(sgm(text(f"{lang} &amp; co")))
    output = tmp_path / "out"
    result = run_script("wmt14.en-de.sh", "--local", str(local), "--output", str(output), "--bpe-operations", "20")
    assert result.returncode == 0 and "tok train: 36 pairs" in result.stdout, result.stderr
    assert list(read_lines(output / "raw/valid.de")) == text("de")
    assert list(read_lines(output / "raw/test.en")) == text("en &amp; co")  # as sacreBLEU has it
    one, other = load_both_ways(output, ("en", "de"))
    assert one == other[::-1]


def test_wmt16_and_what_mask_predict_used(tmp_path, capsys, monkeypatch, fake_fairseq):
    local = tmp_path / "local"
    local.mkdir()
    parallel = {lang: "\n".join(text(f"{lang} ţară")) + "\n" for lang in ("en", "ro")}
    archive(
        local / "training-parallel-ep-v8.tgz",
        {f"training-parallel-ep-v8/europarl-v8.ro-en.{lang}": parallel[lang] for lang in parallel},
    )
    archive(local / "en-ro.txt.zip", {f"SETIMES.en-ro.{lang}": parallel[lang] for lang in parallel})
    for name, year in (("dev.tgz", "dev/newsdev"), ("test.tgz", "test/newstest")):
        archive(
            local / name, {f"{year}2016-enro-{side}.{lang}.sgm": sgm(text(lang)) for side, lang in (("src", "en"), ("ref", "ro"))}
        )
    command = ["wmt16.en-ro", "--local", str(local), "--workers", "1"]
    assert corpora.main([*command, "--output", str(tmp_path / "out"), "--bpe-operations", "20"]) == 0
    assert "tok train: 24 pairs" in capsys.readouterr().out
    assert (tmp_path / "out/tok/train.ro").read_text().startswith("ro țară 0")

    folders = {"train": "train/corpus", "valid": "dev/dev", "test": "test/test"}
    members = {f"wmt16/en-ro/{name}.bpe.{lang}": parallel[lang] for name in folders.values() for lang in parallel}
    archive(local / "wmt16.tar.gz", members)
    assert corpora.main([*command, "--output", str(tmp_path / "mp"), "--mask-predict"]) == 0
    assert (tmp_path / "mp/bpe/train.ro").read_text() == parallel["ro"]  # untouched
    assert fake_fairseq[-1][fake_fairseq[-1].index("--nwordssrc") + 1] == "40000"

    (local / "en-ro.txt.zip").write_bytes(b"<html>quota exceeded</html>")
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert corpora.main([*command, "--output", str(tmp_path / "out")]) == 1
    assert "en-ro.txt.zip is not a valid tar or zip archive" in only_error(capsys)
    assert contents(tmp_path / "out") == before


# ---- downloads


class Server(http.server.SimpleHTTPRequestHandler):
    """Serve a folder; promise more than there is of ``cut``; honour ranges of ``ranged``."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.lstrip("/")
        path = Path(self.directory) / name
        if name not in ("cut", "ranged"):
            return super().do_GET()
        data = path.read_bytes()
        start = int(self.headers.get("Range", "bytes=0-")[6:-1]) if name == "ranged" else 0
        self.server.starts.append(start)
        if start >= len(data):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start + (5 if name == "cut" else 0)))
        self.end_headers()
        self.wfile.write(data[start:])


@pytest.fixture
def server(tmp_path):
    """The URL of a folder served on this machine, the folder, and where its downloads were asked to start."""
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(folder))) as running:
        running.starts = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", folder, running.starts
        running.shutdown()


def test_download(tmp_path, server, capsys):
    url, folder, starts = server
    (folder / "ranged").write_bytes(b"0123456789")
    target = tmp_path / "downloads" / "file"
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(b"0123")
    corpora.download(f"{url}/ranged", target)
    assert target.read_bytes() == b"0123456789" and starts == [4]
    assert f"{steps.file_digest(target)}  file" in (target.parent / "SHA256SUMS").read_text()
    target.rename(target.with_name("file.part"))
    corpora.download(f"{url}/ranged", target)  # killed before the renaming
    assert target.read_bytes() == b"0123456789" and starts == [4, 10, 0]
    corpora.download("http://127.0.0.1:1/none", target)  # no request: the file exists

    target.unlink()
    (folder / "ranged").write_bytes(b"other")
    with pytest.raises(ValueError, match="/ranged: not the expected file"):
        corpora.download(f"{url}/ranged", target)
    (folder / "md5").write_bytes(b"x")
    with pytest.raises(ValueError, match="/md5: not the expected file"):
        corpora.download(f"{url}/md5", target.with_name("new"), "md5:0")
    (folder / "plain").write_bytes(b"whole")
    target.with_name("whole.part").write_bytes(b"who")
    corpora.download(f"{url}/plain", target.with_name("whole"))  # this server knows no ranges
    assert target.with_name("whole").read_bytes() == b"whole"
    corpora.download((folder / "md5").as_uri(), target.with_name("new"), "md5:9dd4e461268c8034f5c8564e155c67a6")
    assert sorted(path.name for path in target.parent.iterdir()) == ["SHA256SUMS", "new", "whole"]


@pytest.mark.parametrize("name, message", [("cut", "got 3 of 8 bytes"), ("absent", "HTTP Error 404")])
def test_failed_download(tmp_path, server, name, message):
    url, folder, _ = server
    (folder / "cut").write_bytes(b"abc")
    with pytest.raises(ValueError, match=f"{url}/{name}: download failed: .*{message}"):
        corpora.download(f"{url}/{name}", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_corpus_is_downloaded(tmp_path, server, fake_fairseq, monkeypatch, capsys):
    url, folder, _ = server
    local = sentences(folder / "train", text("a dog"), text("ein Hund"))
    monkeypatch.setattr(corpora, "DATA", tmp_path)
    parts = {split: [corpora.Text(("train.{lang}",), url + "/train.{lang}")] for split in ("train", "test")}
    monkeypatch.setitem(corpora.CORPORA, "multi30k", lambda: corpora.Corpus(("en", "de"), parts, ("--bpe-operations", "20")))
    assert corpora.main(["multi30k", "--workers", "1"]) == 0
    assert (tmp_path / "prepared/multi30k/raw/test.de").read_bytes() == Path(f"{local}.de").read_bytes()
    Path(f"{local}.de").unlink()
    (tmp_path / "downloads/multi30k/train.de").unlink()
    capsys.readouterr()
    assert corpora.main(["multi30k"]) == 1
    assert f"{url}/train.de: download failed: HTTP Error 404" in only_error(capsys)


# ---- the reversible tokeniser


CODE = [
    'Set `skew_correction` in printer.cfg, or pass --option="x" -tz -Ddex, $var, $this->foo()[0], __init__.py.',
    "See https://www.php.net/manual/fr/?a=b%20c&d=e#frag and mailto:a.b@example.org; not //server\\share\\x or C:\\dir.",
    "Use %s, %1$d, {name}, {{ value }}, ${HOME}, <?php echo 1; ?>, <br/>, &nbsp;, &amp; and *args, **kwargs.",
    "Écrivez « l'option » : qu'il n'ait jusqu'à 3,5 % ; aujourd'hui ? Oui ! L'URL d'origine…",
    "It's the program's own \"quote\", 'single', ‘curly’, “double”; don't, we'll, they've, 'tis, rock 'n' roll.",
    "@@ -1,3 +1,3 @@ a@@ b@@c user@host @property ends with @@",
    "￭ ％ ％41％ a￭b ％ffed％ <unk> </s> <pad> #fairseq:overwrite",
    "黄 ✅ ½ naïve Übermut ſ з \u200b zero width, e\u0301 combining, \x07 bell, \U0001f6a7",
    "1e-3 0x1F 10.0.0.1/8 v1.2.3-rc1 G28 utf8mb4 $$ $0.5 ~/x_y a..b ::: ---- () ()() (()) [] ->",
]


@pytest.mark.parametrize("sentence", CODE)
def test_text_with_code_in_it_comes_back_from_subwords(tmp_path, sentence):
    codes = tmp_path / "codes"
    steps.learn_codes(Counter({"option": 5, "￭.": 4, "￭_￭": 4, "@@": 9, "%￭": 2, "l'￭": 2, "￭@": 3, "￭()": 3}), 12, codes)
    tokenizer = Reversible()
    tokens = tokenizer.tokenize(sentence)
    assert tokenizer.detokenize(tokens) == sentence
    subwords = Bpe(codes).apply(tokens)
    assert tokenizer.detokenize(remove_bpe(subwords)) == sentence
    alone = Bpe(codes)
    alone.bpe.bpe_codes = {}  # every character by itself
    assert tokenizer.detokenize(remove_bpe(alone.apply(tokens))) == sentence
    assert not {"<unk>", "</s>", "<pad>"} & set(subwords.split())


def test_every_token_can_be_written_in_the_symbols_of_a_dictionary(tmp_path):
    """A subword that the dictionary lacks is split, and a character that it lacks is spelled."""
    codes, tokenizer = tmp_path / "codes", Reversible()
    steps.learn_codes(Counter({"wooden": 9, "wood": 5, "food": 3}), 6, codes)
    spelling = {form for character in "％0123456789abcdef￭" for form in (character, f"{character}@@")}
    symbols = spelling | {"w@@", "o@@", "o", "d", "d@@", "e@@", "n", "wood@@", "@@@", "n@@"}
    assert Bpe(codes).apply("wood") not in symbols
    for sentence in ("wood", "no wooden `food`", "@@ `@@ q@@", "q", "’"):
        subwords = Bpe(codes, symbols).apply(tokenizer.tokenize(sentence))
        assert set(subwords.split()) <= symbols, subwords
        assert tokenizer.detokenize(remove_bpe(subwords)) == sentence
    plain = Bpe(codes).apply("food")
    assert Bpe(codes, symbols | set(plain.split())).apply("food") == plain != Bpe(codes, symbols).apply("food")


@pytest.mark.parametrize(
    "sentence, tokens",
    [
        ("set skew_correction=1.", "set skew ￭_￭ correction ￭=￭ 1 ￭."),
        ("printer.cfg", "printer ￭.￭ cfg"),
        ("the program's foo(): don't", "the program ￭'s foo ￭() ￭: don ￭'t"),
        ("qu'il l'a, s'il", "qu'￭ il l'￭ a ￭, s'￭ il"),
        ("✅", "％2705％"),
        ("", ""),
    ],
)
def test_words_are_the_same_tokens_in_prose_and_in_code(sentence, tokens):
    assert Reversible().tokenize(sentence) == tokens


def test_only_white_space_is_normalised():
    """Non-breaking spaces before French punctuation are plain ones in what comes back, as in the training text."""
    line = "  Attention\u00a0: «\u202foui\u202f»\t \u2009fin\u00a0! "
    assert Reversible().detokenize(Reversible().tokenize(line)) == "Attention : « oui » fin !"


def test_what_only_a_model_writes_is_no_error():
    tokenizer = Reversible()
    for tokens, text in (
        ("a￭ ￭b", "ab"),
        ("￭ a ￭", "a"),
        ("a￭￭b", "ab"),
        ("％ffffffffff％ ％d800％", "％ffffffffff％ ％d800％"),
        ("％zz％", "％zz％"),
        ("％a％ ％d％ ％0％ ％7％", "％a％ ％d％ ％0％ \x07"),  # an output is one line
    ):
        assert tokenizer.detokenize(tokens) == text


def test_random_characters_come_back():
    generator = random.Random(1)
    alphabet = "aA1é_'’@￭％-.(){}<>/\\$%&\"`:;, ✅\u0301ſß"
    for _ in range(3000):
        line = " ".join("".join(generator.choices(alphabet, k=12)).split())
        assert Reversible().detokenize(remove_bpe(Reversible().tokenize(line))) == line


def test_backticks_and_apostrophes_come_to_both_sides_alike():
    pair = (
        "See foo_bar(), the_x and it's --long in a.b, not x.",
        "Voir foo_bar(), l'option --long de a.b, foo et non the_x the_x.",
    )
    seen = {restyle(f"{pair[0]}{index}", pair[1], 0.25) for index in range(60)}
    plain, code, typographic = (f"{pair[0]}0", pair[1]), [], []
    for source, target in seen:
        stripped = source.replace("`", "").replace("’", "'"), target.replace("`", "").replace("’", "'")
        assert stripped[0].startswith(pair[0]) and stripped[1] == pair[1]
        code += [(source, target)] * ("`" in target)
        typographic += [(source, target)] * ("’" in target)
    assert 5 < len(code) < 25 and 5 < len(typographic) < 25 and not set(code) & set(typographic)
    assert code[0][1] == "Voir `foo_bar()`, l'option `--long` de `a.b`, foo et non the_x the_x."
    assert code[0][0].startswith("See `foo_bar()`, the_x and it's `--long` in `a.b`, not x.")
    assert typographic[0][1] == pair[1].replace("'", "’")
    assert restyle(*plain, 0) == plain


def test_only_training_text_is_restyled(tmp_path, fake_fairseq):
    text = sentences(tmp_path / "text", ["the dog's foo_bar"] * 3, ["l'option foo_bar"] * 3)
    command = ["--train", text, "--valid", text, "--tokenizer", "reversible", "--restyle", "0.5"]
    assert run(tmp_path / "out", *command, operations=5) == 0
    for lang, marks in (("en", "`’"), ("de", "`’")):
        assert any(mark in (tmp_path / f"out/tok/train.{lang}").read_text() for mark in marks)
        assert not any(mark in (tmp_path / f"out/tok/valid.{lang}").read_text() for mark in marks)
        assert not any(mark in (tmp_path / f"out/raw/train.{lang}").read_text() for mark in marks)


def test_a_data_set_records_its_tokeniser(tmp_path, corpus, fake_fairseq, capsys):
    command = ["--train", f"{corpus}/train", "--valid", f"{corpus}/valid"]
    assert run(tmp_path / "out", *command) == 0
    assert json.loads((tmp_path / "out/prepare.json").read_text())["tokenizer"] == "moses"
    capsys.readouterr()
    assert run(tmp_path / "out", *command, "--tokenizer", "reversible") == 0
    assert "tok train: done" not in capsys.readouterr().out  # nothing of the other tokeniser's is kept
    assert json.loads((tmp_path / "out/prepare.json").read_text())["tokenizer"] == "reversible"
    first = (tmp_path / "out/raw/train.en").read_text().splitlines()[0]
    assert (tmp_path / "out/tok/train.en").read_text().splitlines()[0] == Reversible().tokenize(first)
    with pytest.raises(ValueError, match="no tokenizer named 'spaces'"):
        load_tokenizer("spaces", "en")


def killed(line):
    if line == "700":
        os.kill(os.getpid(), signal.SIGKILL)
    return line


@pytest.mark.parametrize("count", [0, 3, CHUNK, 3 * CHUNK + 1])
def test_processes_give_pairs_in_order(count):
    pairs = [(f"a{number}", f"b{number}") for number in range(count)]
    expected = [(source.upper(), target.title()) for source, target in pairs]
    assert list(map_pairs([str.upper, str.title], iter(pairs), 2)) == expected


def test_a_process_that_is_killed_ends_the_command():
    with pytest.raises(ValueError, match="a worker process died"):
        list(map_pairs([killed, killed], ((str(number), "") for number in range(1200)), 2))
