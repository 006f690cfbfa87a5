"""``fairseq-generate`` and ``-interactive`` with --drafter-path print the verifier's own output."""

import re

import pytest
from conftest import ROOT, run_fairseq
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from test_training import VERIFIER, train

from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.tasks.generator import SpeculativeGenerator, load_drafter

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(toy_data, tmp_path_factory):
    """A briefly trained verifier, by stock fairseq, and a drafter after two updates."""
    folder = tmp_path_factory.mktemp("pair")
    train(toy_data, folder / "verifier", recipe=VERIFIER, updates=60)
    train(toy_data, folder / "drafter", updates=2)
    return folder / "verifier" / "checkpoint_last.pt", folder / "drafter" / "checkpoint_last.pt"


def generate(toy_data, verifier, *options, check=True, **environment):
    return run_fairseq(
        "generate", toy_data / "bin", "--user-dir", ROOT / "specdec_plugins", "--cpu",
        "--task", "translation_lev_modified", "--path", verifier, "--batch-size", 7, "--max-len-a", 1.1, "--max-len-b", 3,
        *options,
        check=check, **environment,
    )  # fmt: skip


def lines(result, kinds="STHDP"):
    """The output lines by name, scores rounded: passes of different shapes round differently."""
    found = dict(re.findall(rf"^([{kinds}]-\d+)\t(.*)$", result.stdout, re.MULTILINE))
    return {name: re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3f}", line) for name, line in found.items()}


def test_generate_says_what_beam_1_says(toy_data, pair):
    verifier, drafter = pair
    stock = generate(toy_data, verifier, "--beam", 1, "--remove-bpe")
    fast = generate(toy_data, verifier, "--drafter-path", drafter, "--block-size", 4, "--remove-bpe")
    assert len(lines(stock)) == 5 * 20
    first, second = ({name: line.split("\t")[-1] for name, line in lines(result, "STHD").items()} for result in (stock, fast))
    scores = {}
    assert first == second
    for result in (stock, fast):
        for name, line in lines(result, "HP").items():
            numbers = [float(number) for number in line.split("\t")[0].split()]
            assert scores.setdefault(name, numbers) == pytest.approx(numbers, abs=2e-3)
    bleu = [re.search(r"BLEU4 = \S+", result.stdout)[0] for result in (stock, fast)]
    assert bleu[0] == bleu[1]
    log = fast.stdout + fast.stderr  # logging goes to either
    assert re.search(r"speculative decoding: 1\.\d+ tokens per verifier pass", log)
    assert "--beam 5 is ignored" in log


def test_generate_samples_what_the_verifier_samples(toy_data, pair):
    """--beam samples per sentence, best first, independent of the drafts and different with another seed."""
    verifier, drafter = pair
    sampling = ["--sampling", "--sampling-topp", 0.9, "--temperature", 0.8, "--beam", 2, "--nbest", 2]
    found = []
    for more in (["--block-size", 1], ["--block-size", 5], ["--block-size", 5, "--seed", 7]):
        output = generate(toy_data, verifier, "--drafter-path", drafter, *sampling, *more).stdout
        found.append(re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.M))
    assert [len(each) for each in found] == [2 * 20] * 3
    texts = [[(number, text) for number, _, text in each] for each in found]
    assert texts[0] == texts[1] != texts[2]
    scores = [float(score) for _, score, _ in found[0]]
    assert all(first >= second for first, second in zip(scores[::2], scores[1::2]))


def test_interactive(toy_data, pair, tmp_path):
    verifier, drafter = pair
    source = toy_data / "bpe" / "test.xa"
    command = [
        "interactive", toy_data / "bin", "-s", "xa", "-t", "xb", "--user-dir", ROOT / "specdec_plugins",
        "--cpu", "--task", "translation_lev_modified", "--path", verifier, "--input", source, "--buffer-size", 20,
        "--batch-size", 8, "--beam", 1, "--max-len-b", 20,
    ]  # fmt: skip
    outputs = [run_fairseq(*command, *options) for options in ([], ["--drafter-path", drafter, "--beta", 1])]
    first, second = ({name: line.split("\t")[-1] for name, line in lines(output, "H").items()} for output in outputs)
    assert len(first) == 20 and first == second


def test_tolerance_reaches_the_rule(toy_data, pair):
    verifier, drafter = pair
    exact, loose, strict = (
        lines(generate(toy_data, verifier, "--drafter-path", drafter, "--beam", 1, *rule), "H")
        for rule in ([], ["--beta", 100, "--tau", "inf"], ["--beta", 100, "--tau", 0])
    )
    assert strict == exact != loose


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--nbest 2 --beam 2 --unkpen 1", ["--beam 2", "--nbest 2", "--unkpen 1"]),
        ("--nbest 2 --beam 2 --sampling --beta 3 --min-len 3",
         ["--min-len 3", "--beta 3 together with --sampling", "--beta 3 without --tau"]),
        ("--prefix-size 1 --temperature 0.5 --min-len 3 --retain-dropout",
         ["--min-len 3", "--prefix-size 1", "--temperature 0.5", "--retain-dropout True"]),
    ],
)  # fmt: skip
def test_unsupported_options_are_named_together(options, named):
    parsed = fairseq_options.get_generation_parser().parse_args(options.replace("--beta 3", "").split())
    with pytest.raises(ValueError, match="--drafter-path cannot be combined with") as error:
        SpeculativeGenerator([None], (), "", None, 3 if "--beta" in options else 1, None, parsed)
    assert all(option in str(error.value) for option in named)


def test_unusable_drafters_are_refused(toy_data, pair, tmp_path):
    verifier, drafter = pair
    state = checkpoint.load(drafter)
    foreign, missing = tmp_path / "foreign.pt", tmp_path / "missing.pt"
    checkpoint.save({**state, "task_state": {"dictionaries": ["other", "other"]}}, foreign)
    dictionaries = [Dictionary.load(str(toy_data / f"bin/dict.{lang}.txt")) for lang in ("xa", "xb")]
    for path, message in ((missing, "no such checkpoint"), (verifier, "is not a drafter")):
        with pytest.raises(CheckpointError, match=message):
            load_drafter(str(path), dictionaries)
    result = generate(toy_data, verifier, "--drafter-path", foreign, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode and "was trained with a source dictionary that is not the verifier's" in last
