"""``fairseq-generate`` and ``-interactive`` print fairseq's own output, searched by the engine or drafted with --drafter-path."""

import re
from itertools import chain

import pytest
import torch
from conftest import ROOT, run_fairseq
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from test_training import VERIFIER, train

from specdec_plugins.fairseq_engine import FairseqGenerator
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.checkpoint import CheckpointError
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.tasks.generator import BeamGenerator, SpeculativeGenerator, load_drafter

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(toy_data, tmp_path_factory):
    """A briefly trained verifier, by stock fairseq, and a drafter after two updates."""
    folder = tmp_path_factory.mktemp("pair")
    train(toy_data, folder / "verifier", recipe=VERIFIER, updates=60)
    train(toy_data, folder / "drafter", updates=2)
    return folder / "verifier" / "checkpoint_last.pt", folder / "drafter" / "checkpoint_last.pt"


def generate(toy_data, verifier, *options, task="translation_lev_modified", check=True, **environment):
    return run_fairseq(
        "generate",
        toy_data / "bin",
        "--user-dir",
        ROOT / "specdec_plugins",
        "--cpu",
        "--task",
        task,
        "--path",
        verifier,
        *"--batch-size 7 --required-batch-size-multiple 1 --max-len-a 1.1 --max-len-b 3".split(),
        *options,
        check=check,
        **environment,
    )


def lines(result, kinds="STHDP"):
    """The output lines by name, scores rounded: passes of different shapes round differently."""
    found = dict(re.findall(rf"^([{kinds}]-\d+)\t(.*)$", result.stdout, re.MULTILINE))
    return {name: re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3f}", line) for name, line in found.items()}


def test_generate_says_what_beam_1_says(toy_data, pair):
    verifier, drafter = pair
    stock = generate(toy_data, verifier, "--beam", 1, "--remove-bpe", task="translation")
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


def hypotheses(result):
    """Number, score and text of each H line, and the P lines' scores."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", result.stdout, re.MULTILINE)
    parts = re.findall(r"^P-\d+\t(.*)$", result.stdout, re.MULTILINE)
    return [(number, float(score), text) for number, score, text in found], [list(map(float, each.split())) for each in parts]


def check_searches(stock, ours, count):
    """Texts are equal, scores within the four digits that are written."""
    (theirs, theirs_parts), (found, parts) = hypotheses(stock), hypotheses(ours)
    assert len(found) == count
    assert [(number, text) for number, _, text in found] == [(number, text) for number, _, text in theirs]
    assert [score for _, score, _ in found] == pytest.approx([score for _, score, _ in theirs], abs=1e-4)
    assert [*chain(*parts)] == pytest.approx([*chain(*theirs_parts)], abs=2e-4)
    assert "fairseq's own generator decodes" not in ours.stdout + ours.stderr


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--beam 1",
        "--beam 4 --nbest 2 --lenpen 0.6 --unkpen 0.5 --min-len 3",
        "--nbest 5 --unnormalized --prefix-size 2",
        "--beam 3 --max-len-a 0 --max-len-b 4 --prefix-size 30",
    ],
)
def test_generate_searches_as_fairseq(toy_data, pair, options):
    both = (generate(toy_data, pair[0], *options.split(), task=task) for task in ("translation", "translation_lev_modified"))
    nbest = re.search(r"--nbest (\d)", options)
    check_searches(*both, 20 * int(nbest[1] if nbest else 1))


def test_what_the_engine_does_not_support_goes_to_fairseq(toy_data, pair):
    found = generate(toy_data, pair[0], "--match-source-len", "--temperature", 0.7)
    log = found.stdout + found.stderr
    assert "fairseq's own generator decodes, as ours does not support --match-source-len True, --temperature 0.7" in log
    assert len(hypotheses(found)[0]) == 20


@pytest.mark.parametrize("flags", ["--nbest 3", "--beam 8 --lenpen 1.4 --min-len 9 --max-len-b 14"])
def test_searches_on_the_shipped_pair_are_fairseqs(flags):
    pair, options = load_folder(str(ROOT / "data" / "demo.en-de")), generation_options(flags)
    built = FairseqGenerator(pair.verifier, "cpu", torch.float32)
    lines = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()
    sources = [pair.codec.encode(line).ids for line in lines]
    width = max(map(len, sources))
    tokens = torch.tensor([[built.dictionaries[0].pad()] * (width - len(source)) + source for source in sources])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([*map(len, sources)])}}
    stock = SequenceGenerator(
        [built.model],
        built.dictionaries[1],
        options.beam,
        options.max_len_a,
        options.max_len_b,
        min_len=options.min_len,
        len_penalty=options.lenpen,
    )
    ours = BeamGenerator([built.model], built.dictionaries, options).generate([built.model], sample)
    for found, expected in zip(ours, stock.generate([built.model], sample)):
        assert len(found) == options.nbest
        for one, other in zip(found, expected):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert float(one["score"]) == pytest.approx(float(other["score"]), abs=1e-5)
            assert one["positional_scores"].tolist() == pytest.approx(other["positional_scores"].tolist(), abs=1e-4)


def generation_options(flags):
    return fairseq_options.get_generation_parser().parse_args(flags.split())


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
        "interactive",
        toy_data / "bin",
        *"-s xa -t xb --user-dir".split(),
        ROOT / "specdec_plugins",
        "--cpu",
        "--path",
        verifier,
        "--input",
        source,
        *"--buffer-size 20 --batch-size 8 --beam 1 --max-len-b 20 --required-batch-size-multiple 1".split(),
    ]
    ours = ["--task", "translation_lev_modified"]
    drafted = [*ours, "--drafter-path", drafter, "--beta", 1]
    outputs = [run_fairseq(*command, *options) for options in (["--task", "translation"], ours, drafted)]
    first, *others = ({name: line.split("\t")[-1] for name, line in lines(output, "H").items()} for output in outputs)
    assert len(first) == 20 and all(each == first for each in others)


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
        (
            "--nbest 2 --beam 2 --sampling --beta 3 --match-source-len",
            ["--match-source-len True", "--beta 3 together with --sampling", "--beta 3 without --tau"],
        ),
        ("--temperature 0.5 --retain-dropout", ["--temperature 0.5", "--retain-dropout True"]),
    ],
)
def test_unsupported_options_are_named_together(options, named):
    parsed = generation_options(options.replace("--beta 3", ""))
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
