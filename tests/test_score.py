"""specdec-score says what sacreBLEU's command and fairseq-score say, and nothing about text that cannot be scored."""

import gzip
import json
import random
import re
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from conftest import ROOT, run_fairseq, run_python

from specdec_plugins.commands import score
from specdec_plugins.extras import install_command
from specdec_plugins.measure import hypotheses, scores

TEXT = "der die das Hund Kind Frau Mann läuft spielt schläft im Park auf dem E-Mail-Konto S-Bahn-Hof l'été und 1,5 große"
WORDS = TEXT.split()


def sentences(count, seed):
    """Plain sentences of invented German, some with hyphens, quotes and commas."""
    draw = random.Random(seed)
    return [
        f'{" ".join(draw.choices(WORDS, k=draw.randint(4, 9)))}, {draw.choice(WORDS)} "{" ".join(draw.choices(WORDS, k=3))}".'
        for _ in range(count)
    ]


def changed(lines, share, seed):
    """The same with some words replaced."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split()) for line in lines]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write lines to a file in the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(**texts):
        for name, lines in texts.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    return write


@pytest.fixture
def texts(files):
    """A reference and three systems."""
    reference = sentences(60, 1)
    greedy = changed(reference, 0.1, 2)
    texts = {
        "ref": reference,
        "greedy": greedy,
        "near": greedy[:40] + changed(greedy[40:], 0.1, 3),
        "far": changed(reference, 0.4, 4),
    }
    files(**texts)
    return texts


def run(capsys, command, status=0):
    """What it says on stdout and stderr."""
    assert score.main(command.split()) == status, capsys.readouterr().err
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, captured.err


def result(capsys, command):
    out, err = run(capsys, f"{command} --json -")
    assert err == "" and out.count("\n") == 1
    return json.loads(out)


def found(capsys, command, name):
    """The first system's score of one kind."""
    return result(capsys, command)["systems"][0]["scores"][name]


def fairseq_score(system, reference, folder):
    """What fairseq-score prints of two files."""
    lines = run_fairseq("score", "--sys", folder / system, "--ref", folder / reference).stdout
    return lines.splitlines()[-1]


def as_fairseq(scored):
    """A score in the words of fairseq-score."""
    precisions = "/".join(f"{value:2.1f}" for value in scored["precisions"])
    ratio = scored["sys_len"] / scored["ref_len"]
    return (
        f"BLEU4 = {scored['score']:2.2f}, {precisions} (BP={scored['bp']:.3f}, ratio={ratio:.3f}, "
        f"syslen={scored['sys_len']}, reflen={scored['ref_len']})"
    )


def test_plain_text_has_the_scores_and_signatures_of_sacrebleus_command(texts, tmp_path, capsys):
    ours = result(capsys, "near far --reference ref")
    for row in ours["systems"]:
        theirs = run_python(
            "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / row["system"], "-m", "bleu", "chrf", "-w", "12"
        ).stdout
        for each in json.loads(theirs):
            assert round(row["scores"][each["name"]]["score"], 12) == each["score"]
            assert ours["signatures"][each["name"]] == each["signature"]
    out, _ = run(capsys, "near far --reference ref")
    near, far = (row["scores"] for row in ours["systems"])
    assert out.splitlines()[1].split() == ["near", f"{near['BLEU']['score']:.2f}", f"{near['chrF2']['score']:.2f}"]
    assert out.splitlines()[2].split() == ["far", f"{far['BLEU']['score']:.2f}", f"{far['chrF2']['score']:.2f}"]
    assert all(signature in out for signature in ours["signatures"].values())


def test_other_languages_have_sacrebleus_tokenisers(files, tmp_path, capsys):
    files(ref=["一个男人在公园里睡觉。", "两个孩子在玩"], out=["一个女人在公园里睡觉。", "两个孩子玩"])
    ours = result(capsys, "out --reference ref -t zh")
    theirs = json.loads(run_python("-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "out", "-tok", "zh", "-w", "12").stdout)
    assert round(ours["systems"][0]["scores"]["BLEU"]["score"], 12) == theirs["score"]
    assert ours["signatures"]["BLEU"] == theirs["signature"]
    err = run(capsys, "out --reference ref -t ja", status=1)[1]
    assert "sacrebleu[ja]" in err and err.count("\n") == 1


def tokens(lines):
    import sacremoses

    moses = sacremoses.MosesTokenizer("de")
    return [moses.tokenize(line, return_str=True) for line in lines]


@pytest.mark.long
def test_tokenised_text_has_the_score_of_fairseqs_command(texts, files, tmp_path, capsys):
    unknown = [line.replace("Park", "<unk>") for line in tokens(texts["ref"])]
    files(ref=unknown, near=[line.replace("Park", "<unk>") for line in tokens(texts["near"])], far=tokens(texts["far"]))
    ours = result(capsys, "near far --reference ref --tokenized")
    for row in ours["systems"]:
        assert as_fairseq(row["scores"]["tokenised BLEU"]) == fairseq_score(row["system"], "ref", tmp_path)
    assert "|tok:none|smooth:none|" in ours["signatures"]["tokenised BLEU"]


def test_without_matches_of_four_tokens_there_is_no_smoothing(files, tmp_path, capsys):
    files(ref=["a b c d e f", "g h"], out=["a b c x e f", "g h"])
    assert fairseq_score("out", "ref", tmp_path).startswith("BLEU4 = 0.00, ")
    assert as_fairseq(found(capsys, "out --reference ref --tokenized", "tokenised BLEU")) == fairseq_score("out", "ref", tmp_path)


def test_compounds_are_split_by_hand(files, tmp_path, capsys):
    files(ref=["Das E-Mail-Konto ist leer, sagt er."], out=["Das E-Mail Konto ist leer, sagt er."])
    files(hand_ref=["Das E ##AT##-##AT## Mail ##AT##-##AT## Konto ist leer , sagt er ."])
    files(hand_out=["Das E ##AT##-##AT## Mail Konto ist leer , sagt er ."])
    ours = found(capsys, "out --reference ref -t de", "compound-split BLEU")
    assert as_fairseq(ours) == fairseq_score("hand_out", "hand_ref", tmp_path)
    # 11 tokens for 13; of 11, 10, 9 and 8 n-grams these are in the reference
    assert (ours["sys_len"], ours["ref_len"]) == (11, 12)
    right, every = (11, 9, 7, 5), (11, 10, 9, 8)
    product = 1.0
    for matched, total in zip(right, every):
        product *= matched / total
    assert ours["score"] == pytest.approx(100 * 2.718281828459045 ** (1 - 12 / 11) * product**0.25, abs=1e-9)
    files(ref=["Das E-Mail-Konto ist leer , sagt er ."], out=["Das E-Mail Konto ist leer , sagt er ."])
    assert found(capsys, "out --reference ref -t de --tokenized", "compound-split BLEU") == ours


@pytest.mark.skipif(not shutil.which("perl"), reason="there is no Perl here")
def test_compounds_are_split_as_the_published_scripts_do(texts):
    lines = [*tokens(texts["ref"]), "a-b-c - -x y- --- E @-@ Mail", "ä-ö-ü é-\u00a0-x \u2028-b ß-ß-ß-ß", "##AT##-##AT##"]
    program = "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"
    theirs = subprocess.run(["perl", "-ple", program], input="\n".join(lines).encode(), capture_output=True, check=True).stdout
    assert [scores.split_compounds(line) for line in lines] == theirs.decode().split("\n")[: len(lines)]


def test_plain_and_tokenised_text_have_the_same_compounds(texts, files, capsys):
    plain = found(capsys, "near --reference ref -t de", "compound-split BLEU")
    assert plain != found(capsys, "near --reference ref -t de", "BLEU")
    files(near=tokens(texts["near"]), ref=tokens(texts["ref"]))
    ours = result(capsys, "near --reference ref -t de --tokenized")
    assert ours["systems"][0]["scores"]["compound-split BLEU"] == plain
    assert ours["signatures"]["compound-split BLEU"].split("|")[3] == "tok:none+compound-split"
    assert set(ours["signatures"]) == {"tokenised BLEU", "compound-split BLEU"}


@pytest.mark.long
def test_paired_tests_are_those_of_sacrebleus_command(texts, tmp_path, capsys):
    ours = result(capsys, "near far --baseline greedy --reference ref -t de")
    assert [row["system"] for row in ours["systems"]] == ["greedy", "near", "far"]
    systems = [tmp_path / row["system"] for row in ours["systems"]]
    for option, title in (("--paired-bs", "paired bootstrap"), ("--paired-ar", "approximate randomisation")):
        theirs = run_python(  # its JSON of chrF fails: numpy's float32
            "-m", "sacrebleu", tmp_path / "ref", "-i", *systems, "-m", "bleu", "chrf", option, "-w", "4", "-f", "latex", "-nc"
        ).stdout
        rows = [line.rstrip(" \\").split("&") for line in theirs.splitlines() if line.count("&") == 2][1:]
        for row, cells in zip(ours["systems"], rows, strict=True):
            for name, cell in zip(("BLEU", "chrF2"), cells[1:]):
                tested = row["scores"][name][title]
                shown = [row["scores"][name]["score"], *(tested[part] for part in ("mean", "ci", "p_value") if part in tested)]
                assert [f"{value:.4f}" for value in shown] == re.findall(r"\d+\.\d+", cell)
                assert f"{ours['signatures'][title]}|case:mixed" in theirs
    near, far = (row["scores"] for row in ours["systems"][1:])
    assert all(far[name]["paired bootstrap"]["p_value"] < 0.01 for name in ("BLEU", "chrF2", "compound-split BLEU"))
    assert near["compound-split BLEU"]["paired bootstrap"] != near["BLEU"]["paired bootstrap"]


def test_consistency_with_the_baseline(texts, tmp_path, capsys):
    ours = result(capsys, "greedy near --baseline greedy --reference ref")
    baseline, same, near = ours["systems"]
    assert "identical" not in baseline and same["identical"] == 60 and same["bleu_to_baseline"] == pytest.approx(100)
    assert near["identical"] == sum(a == b for a, b in zip(texts["near"], texts["greedy"])) and 40 <= near["identical"] < 60
    theirs = json.loads(run_python("-m", "sacrebleu", tmp_path / "greedy", "-i", tmp_path / "near", "-w", "12").stdout)
    assert round(near["bleu_to_baseline"], 12) == theirs["score"]
    for title in ("paired bootstrap", "approximate randomisation"):  # sacreBLEU has p = 0.001 for a system and itself
        assert "p_value" in near["scores"]["BLEU"][title] and "p_value" not in same["scores"]["BLEU"][title]
    share = f"{near['identical']} of 60 ({near['identical'] / 60:.1%})"
    assert (
        f"sentences identical to greedy: {share}; BLEU to it {theirs['score']:.2f}"
        in run(capsys, "greedy near --baseline greedy --reference ref")[0]
    )


def generated(texts, system, bpe=lambda line: line):
    """Output of fairseq-generate: sentences by length, not in order, among other lines."""
    rows = []
    for index in sorted(range(60), key=lambda index: len(texts["ref"][index])):
        hypothesis, plain = tokens([texts[system][index]])[0], texts[system][index]
        rows += [f"S-{index}\ta source", f"T-{index}\t{texts['ref'][index]}", f"H-{index}\t-0.5\t{bpe(hypothesis)}"]
        rows += [f"D-{index}\t-0.5\t{plain}", f"P-{index}\t-0.5 -0.25"]
    return ["2024-01-01 | INFO | fairseq_cli.generate | loading", *rows, "Generate test with beam=1: BLEU4 = 1.00"]


def test_output_of_fairseq_generate_is_put_in_order(texts, files, capsys):
    bpe = lambda line: line.replace("Park", "Pa@@ rk")  # noqa: E731
    files(**{"gen.out": generated(texts, "near", bpe)}, tokenised=tokens(texts["near"]), tokenised_ref=tokens(texts["ref"]))
    expected = found(capsys, "near --reference ref", "BLEU")
    assert found(capsys, "gen.out", "BLEU") == expected  # D lines against the T lines beside them
    assert found(capsys, "near --reference gen.out", "BLEU") == expected
    assert found(capsys, "gen.out --reference ref --remove-bpe", "BLEU") == expected
    expected = found(capsys, "tokenised --reference tokenised_ref --tokenized", "tokenised BLEU")
    assert found(capsys, "gen.out --reference tokenised_ref --tokenized --remove-bpe", "tokenised BLEU") == expected
    files(old=[line for line in generated(texts, "near") if not line.startswith("D-")])  # fairseq before 0.10: H lines alone
    files(tokenised_ref=texts["ref"])
    assert result(capsys, "gen.out")["systems"][0]["form"] == "D"
    assert "looks tokenised" in run(capsys, "old")[1]
    assert json.loads(run(capsys, "old --json -")[0])["systems"][0]["form"] == "H"


def test_json_of_specdec_translate(texts, files, capsys):
    records = [
        {"id": index, "text": line, "tokens": tokens([line])[0].replace("Park", "Pa@@ rk").split(), "score": None}
        for index, line in enumerate(texts["near"])
    ]
    files(json=[json.dumps(record, ensure_ascii=index % 2 == 0) for index, record in enumerate(reversed(records))])
    assert found(capsys, "json --reference ref", "BLEU") == found(capsys, "near --reference ref", "BLEU")
    files(near=tokens(texts["near"]), ref=tokens(texts["ref"]))
    expected = found(capsys, "near --reference ref --tokenized", "tokenised BLEU")
    assert found(capsys, "json --reference ref --tokenized --remove-bpe", "tokenised BLEU") == expected


def test_gzip_carriage_returns_and_empty_sentences(texts, files, tmp_path, capsys):
    files(out=["", *texts["near"][1:]])
    expected = result(capsys, "out --reference ref")["systems"][0]["scores"]
    (tmp_path / "out.gz").write_bytes(gzip.compress("\r\n".join(["", *texts["near"][1:]]).encode()))
    assert result(capsys, "out.gz --reference ref")["systems"][0]["scores"] == expected


def test_a_json_file_beside_the_table(texts, tmp_path, capsys):
    out, _ = run(capsys, "near --reference ref --json all.json")
    assert out.startswith("sentences: 60 ") and "{" not in out
    assert json.loads((tmp_path / "all.json").read_text()) == result(capsys, "near --reference ref")


RIGHT = ["Ein Mann schläft.", "Zwei Hunde laufen."]
WRONG = {
    "less": ([*RIGHT[:1]], "ref, line 2: one sentence too many: out has 1 and ref has 2"),
    "more": ([*RIGHT, "mehr"], "out, line 3: one sentence too many: ref has 2 and out has 3"),
    "empty": ([], "out is empty"),
    "blank": (["", " "], "out is empty"),
    "bpe": (["Ein Mann", "schlä@@ ft."], "out, line 2: BPE left in the text ('@@ '): --remove-bpe joins it"),
    "cut bpe": (["Ein Mann", "schlä@@"], "out, line 2: BPE left in the text ('@@ '): --remove-bpe joins it"),
    "missing": (["H-0\t-1\ta", "D-0\t-1\ta", "D-2\t-1\tb"], "out, line 3: D-2, but D-1 is missing"),
    "twice": (["D-0\t-1\ta", "D-1\t-1\ta", "D-0\t-1\tb"], "out, line 3: D-0 a second time, after line 1"),
    "no score": (["D-0\ta", "D-1\tb"], "out, line 1: not index, score and text, as fairseq's H and D lines are"),
    "only sources": (["S-0\ta", "S-1\tb"], "out has no D or H lines"),
    "bad json": (['{"id": 0, "text": "a"}', '{"id": 1}'], "out, line 2: not JSON of specdec-translate (id, text, tokens)"),
    "no text": (
        ['{"id": 0, "text": "a"}', '{"id": 1, "text": 3}'],
        "out, line 2: not JSON of specdec-translate (id, text, tokens)",
    ),
    "json twice": (['{"id": 1, "text": "a"}', '{"id": 1, "text": "b"}'], "out, line 2: id 1 a second time, after line 1"),
    "json missing": (['{"id": 1, "text": "a"}', '{"id": 2, "text": "b"}'], "out, line 2: id 2, but id 0 is missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_text_that_cannot_be_scored(case, files, capsys):
    lines, message = WRONG[case]
    files(ref=RIGHT, out=lines)
    out, err = run(capsys, "out --reference ref", status=1)
    assert out == "" and err == f"specdec-score: error: {message}\n"


def test_files_that_cannot_be_read(files, tmp_path, capsys, monkeypatch):
    files(ref=RIGHT, out=RIGHT)
    (tmp_path / "latin").write_bytes("Ein Mann\nschläft\n".encode("latin-1"))
    (tmp_path / "long").write_bytes(b"x" * 1_000_001)
    for bad, message in {
        "latin --reference ref": "latin, line 2: not UTF-8 (byte 5 of the line)",
        "out --reference latin": "latin, line 2: not UTF-8 (byte 5 of the line)",
        "long --reference ref": "long, line 1: longer than 1,000,000 bytes",
        "nowhere --reference ref": "nowhere: No such file or directory",
        ". --reference ref": ".: Is a directory",
        "out": "out has no T lines: give --reference",
        "out --reference ref --json nowhere/x": "nowhere/x: No such file or directory",
    }.items():
        assert run(capsys, bad, status=1)[1] == f"specdec-score: error: {message}\n"
    monkeypatch.setattr(scores, "MAX_PAIRED", 1)
    err = run(capsys, "out --baseline out --reference ref", status=1)[1]
    assert err == "specdec-score: error: ref, line 2: the tests of --baseline take no more than 1 sentences\n"
    monkeypatch.setattr(hypotheses, "MAX_LINES", 1)
    assert "out, line 2: too long for a test set" in run(capsys, "out --reference out", status=1)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-t German", "--target-lang German is not a two-letter code"),
        ("--comet x", "--comet and --source require each other"),
        ("--source ref", "--comet and --source require each other"),
        ("--comet x --source ref --tokenized", "--comet requires plain text, not --tokenized"),
        ("--json out", "--json out is also an input"),
    ],
)
def test_options_that_cannot_be(options, message, files, tmp_path, capsys):
    files(ref=RIGHT, out=RIGHT)
    assert run(capsys, f"out --reference ref {options}", status=2)[1] == f"specdec-score: error: {message}\n"
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == RIGHT


def test_wrong_tokenisation_is_noticed(texts, files, capsys):
    files(tokens=tokens(texts["near"]), hyphens=["Ein Ort", *["eine E @-@ Mail"] * 9], quote=["Ein Ort", *["l &apos; été"] * 9])
    files(tokens_ref=tokens(texts["ref"]), ten=["Ein Ort"] * 10)
    for command, place in {
        "tokens --reference ref": "tokens, line 1",
        "near --reference tokens_ref": "tokens_ref, line 1",
        "hyphens --reference ten": "hyphens, line 2",
        "quote --reference ten": "quote, line 2",
    }.items():
        err = run(capsys, command)[1]
        assert err.startswith(f"specdec-score: warning: {place}: looks tokenised, but sacreBLEU") and err.count("\n") == 1
    err = run(capsys, "near --reference tokens_ref --tokenized")[1]
    assert err.startswith("specdec-score: warning: near, line 1: looks not tokenised, but --tok") and err.count("\n") == 1
    assert run(capsys, "tokens --reference tokens_ref --tokenized")[1] == run(capsys, "near --reference ref")[1] == ""
    files(odd=["Er sagte , nichts", *["Ein Ort"] * 19], twenty=["Ein Ort"] * 20)  # a slip, not a tokeniser
    assert run(capsys, "odd --reference twenty")[1] == ""


def test_rouge_is_rouge_scores_own(texts, files, capsys, monkeypatch):
    module = pytest.importorskip("rouge_score.rouge_scorer")
    files(summary=["The cats sat. He ran!", "a  b", ""], gold=["A cat sat. He runs home. No?", "b a c", "x y"])
    found = result(capsys, "summary gold --reference gold --rouge --baseline summary")
    scorer = module.RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    pairs = [("A cat sat.\nHe runs home.\nNo?", "The cats sat.\nHe ran!"), ("b a c", "a b"), ("x y", "")]
    for name, title in (("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeLsum", "ROUGE-Lsum")):
        expected = sum(scorer.score(*pair)[name].fmeasure for pair in pairs) / 3
        assert [row["scores"][title]["score"] for row in found["systems"][1:]] == pytest.approx([100 * expected, 100.0])
        assert found["signatures"][title].startswith("mean F1|stemmer:yes|sentences end:.!?|rouge-score:")
    assert "ROUGE-Lsum" in run(capsys, "summary --reference gold --rouge")[0]
    assert run(capsys, "summary --reference gold --rouge --tokenized", status=2)[1].startswith(
        "specdec-score: error: --rouge requires plain text, not --tokenized"
    )
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    err = run(capsys, "summary --reference gold --rouge", status=1)[1]
    assert install_command("summarisation") in err and err.count("\n") == 1


def test_comet_is_asked_only_on_request_and_missed_in_one_line(texts, files, capsys, monkeypatch):
    pytest.importorskip("torch")  # comes with COMET
    files(source=[f"source {index}" for index in range(60)], short=["source"])
    monkeypatch.setitem(sys.modules, "comet", None)
    assert result(capsys, "near --reference ref")
    err = run(capsys, "near --reference ref --comet Some/model --source source", status=1)[1]
    assert install_command("comet") in err and err.count("\n") == 1
    assert "one sentence too many: short has 1" in run(capsys, "near --reference ref --comet x --source short", status=1)[1]

    class Model:
        def predict(self, data, gpus):
            assert [row["src"] for row in data] == [f"source {index}" for index in range(60)] and gpus in (0, 1)
            return SimpleNamespace(system_score=sum(row["mt"] == row["ref"] for row in data) / len(data))

    fake = ModuleType("comet")
    fake.download_model = lambda name: {"Some/model": "path"}[name]
    fake.load_from_checkpoint = lambda path: Model()
    monkeypatch.setitem(sys.modules, "comet", fake)
    monkeypatch.setattr(scores, "version", lambda package: "9.9")
    ours = result(capsys, "near ref --reference ref --comet Some/model --source source --baseline greedy")
    equal = sum(a == b for a, b in zip(texts["near"], texts["ref"])) / 60
    assert [row["scores"]["COMET"]["score"] for row in ours["systems"][1:]] == [equal, 1.0]
    assert ours["signatures"]["COMET"] == "model:Some/model|unbabel-comet:9.9"
    assert "1.0000" in run(capsys, "ref --reference ref --comet Some/model --source source --baseline ref")[0]
    err = run(capsys, "near --reference ref --comet Other/model --source source", status=1)[1]
    assert err == "specdec-score: error: --comet Other/model: 'Other/model'\n"


@pytest.mark.long
def test_the_shell_door_does_what_the_published_script_does(texts, files, tmp_path):
    """Which took T lines for a reference and plain output, split both, and gave them to fairseq-score."""
    reference, near = tokens(texts["ref"]), tokens(texts["near"])
    rows = [f"T-{index}\t{line}" for index, line in enumerate(reference)]
    files(gen=[line for row in sorted(rows) for line in (row.replace("T", "S", 1), row, "P-0\t-1.0")], near=near)
    split = lambda line: re.sub(r"(?<=\w)-(?=\w\w)", " ##AT##-##AT## ", line)  # noqa: E731
    files(ref_split=map(split, reference), near_split=map(split, near))
    options = ["near", "--tokenized", "-t", "de", "--reference", "gen", "--json", "-"]
    door = subprocess.run(
        [ROOT / "score.sh", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    assert door.returncode == 0 and door.stderr == ""
    scores = json.loads(door.stdout)["systems"][0]["scores"]
    assert as_fairseq(scores["compound-split BLEU"]) == fairseq_score("near_split", "ref_split", tmp_path)
    assert scores["compound-split BLEU"]["ref_len"] > scores["tokenised BLEU"]["ref_len"]


def test_output_that_nobody_takes(texts, tmp_path):
    command = f"{sys.executable} -m specdec_plugins.commands.score {tmp_path}/near --reference {tmp_path}/ref"
    left = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | true"], capture_output=True, text=True, cwd=ROOT)
    assert left.returncode == 141 and left.stderr == ""
    full = subprocess.run(f"{command} >/dev/full", shell=True, capture_output=True, text=True, cwd=ROOT)
    assert full.returncode == 1 and full.stderr == "specdec-score: error: stdout: No space left on device\n"
