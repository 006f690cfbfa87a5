"""Training through fairseq's own commands: the published recipe, repeatability, resuming, the whole toy pipeline."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import ROOT, fast_python, run_fairseq, run_python

from specdec_plugins.commands import pack
from specdec_plugins.formats import checkpoint
from specdec_plugins.text.bpe import remove_bpe
from specdec_plugins.text.tokenizers import load_tokenizer
from specdec_plugins.training import presets
from specdec_plugins.translator import Translator

pytestmark = pytest.mark.long
TINY = """
    --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 32
    --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2
""".split()
PUBLISHED = """
    --task translation_lev_modified --noise block_mask --arch block --criterion glat_loss --block-size 6 --total-up 300000
    --start-p 0.5 --minus-p 0.2 --src-embedding-copy --apply-bert-init --encoder-learned-pos --decoder-learned-pos
    --share-all-embeddings --activation-fn gelu --label-smoothing 0.1 --dropout 0.1 --weight-decay 0.01 --optimizer adam
    --adam-betas (0.9,0.999) --adam-eps 1e-6 --lr-scheduler inverse_sqrt --warmup-updates 4 --warmup-init-lr 1e-7 --lr 0.001
    --stop-min-lr 1e-9 --clip-norm 5 --no-progress-bar --fixed-validation-seed 7 --best-checkpoint-metric accept_len
    --maximize-best-checkpoint-metric
""".split()
CAUSAL = [
    *"--task translation --arch drafter --criterion drafter_loss --drafter glide".split(),
    *"--drafter-options length=6 layers=1".split(),
    *PUBLISHED[PUBLISHED.index("--weight-decay") :],
]
STOCK = ["--task", "translation", "--arch", "transformer", "--share-all-embeddings", "--optimizer", "adam", "--lr", "0.01"]
VERIFIER = [*STOCK, "--criterion", "cross_entropy"]
PARALLEL = """
    --distributed-world-size 2 --distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp
""".split()
recipes = pytest.mark.parametrize("recipe", [PUBLISHED, CAUSAL], ids=["published", "causal"])


def train(data, folder, *options, updates=6, recipe=PUBLISHED, check=True, **environment):
    """fairseq-train a tiny model; returns its log lines by kind (train_inner, valid) and the finished process."""
    shape = frozen_verifier(data) if recipe is CAUSAL else TINY
    result = run_fairseq(
        "train",
        data / "bin",
        "--user-dir",
        ROOT / "specdec_plugins",
        *recipe,
        *shape,
        *"--cpu --num-workers 0 --max-tokens 600 --max-update".split(),
        updates,
        *"--log-format json --log-interval 1 --save-dir".split(),
        folder,
        "--seed",
        3,
        *options,
        check=check,
        **environment,
    )
    logs = {"train_inner": [], "valid": []}
    for kind, line in re.findall(r"\| (train_inner|valid) \| (\{.*\})", result.stdout + result.stderr):
        logs[kind].append(json.loads(line))
    return logs, result


def frozen_verifier(data):
    """Options that name a verifier for the data, which is trained once."""
    if not (data / "verifier").exists():
        train(data, data / "verifier", recipe=VERIFIER, updates=2)
    return ["--verifier", data / "verifier/checkpoint_last.pt"]


def weights(folder):
    return checkpoint.load(folder / "checkpoint_last.pt")["model"]


def losses(logs):
    return [float(line["loss"]) for line in logs["train_inner"]]


@recipes
def test_recipes_repeat_and_resume(toy_data, tmp_path, recipe):
    (first, _), (again, _) = (train(toy_data, tmp_path / name, recipe=recipe) for name in "ab")
    assert len(losses(first)) == 6 and losses(first) == losses(again)
    lengths = [logs["valid"][-1]["valid_accept_len"] for logs in (first, again)]
    assert lengths[0] == lengths[1] and float(lengths[0]) >= 1 and len(first["valid"][-1]["valid_block_acc"]) == 6
    # interrupted after three updates, in the middle of an epoch, and resumed
    train(toy_data, tmp_path / "c", updates=3, recipe=recipe)
    part = weights(tmp_path / "c")
    train(toy_data, tmp_path / "c", recipe=recipe)
    unbroken, resumed = weights(tmp_path / "a"), weights(tmp_path / "c")
    assert unbroken.keys() == resumed.keys()
    for name, tensor in unbroken.items():
        assert tensor.equal(resumed[name]), name
    name = next(name for name in part if name.endswith("decoder.layers.0.fc1.weight"))
    assert not part[name].equal(resumed[name])


@recipes
def test_training_learns(toy_data, tmp_path, recipe):
    logs, _ = train(toy_data, tmp_path, "--lr", "0.005", "--warmup-updates", 40, updates=150, recipe=recipe)
    found = losses(logs)
    assert sum(found[-20:]) / 20 < found[0] - 0.5
    assert float(logs["valid"][-1]["valid_accept_len"]) > 1


def test_starts_from_a_verifier_and_validates(toy_data, tmp_path):
    """Verifier by stock fairseq, strict restore of the initial checkpoint, its loss at update 0, fairseq-validate."""
    train(toy_data, tmp_path / "verifier", recipe=VERIFIER)
    verifier, init = tmp_path / "verifier" / "checkpoint_last.pt", tmp_path / "init.pt"
    options = ["--src-embedding-copy", "--encoder-learned-pos", "--decoder-learned-pos", "--data", toy_data / "bin"]
    run_python("encoder_initial.py", "--verifier", verifier, "--output", init, *options)
    recipe = [option for option in PUBLISHED if option not in ("--activation-fn", "gelu")]
    for how in (["--finetune-from-model", init], ["--restore-file", init, "--reset-optimizer", "--reset-dataloader"]):
        folder = tmp_path / how[0].strip("-")
        _, result = train(toy_data, folder, *how, "--lr", "1e-8", "--warmup-init-lr", "1e-8", updates=1, recipe=recipe)
        assert "Loaded checkpoint" in result.stdout + result.stderr
        theirs, ours = checkpoint.load(verifier)["model"], weights(folder)
        for name in ("encoder.layers.0.fc1.weight", "encoder.embed_tokens.weight", "decoder.output_projection.weight"):
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
    common = [toy_data / "bin", "--user-dir", ROOT / "specdec_plugins", "--cpu", "--task", "translation_lev_modified", "--path"]
    trained = [*common, folder / "checkpoint_last.pt", "--max-tokens", 600, "--block-size", 6]
    result = run_fairseq("validate", *trained)
    assert "accept_len" in result.stdout + result.stderr
    # fairseq's own generator decodes the verifier under our task
    options = ["--beam", 1, "--max-len-b", 10, "--batch-size", 20]
    result = run_fairseq("generate", *common, verifier, *options)
    assert len(re.findall(r"^H-\d+", result.stdout, re.MULTILINE)) == 20


def test_update_freq_and_bf16_products(toy_data, tmp_path):
    for name, options, environment in (("a", ["--update-freq", 2], {}), ("b", [], {"SPECDEC_MATMUL": "bf16"})):
        assert len(losses(train(toy_data, tmp_path / name, *options, updates=2, **environment)[0])) == 2
    _, result = train(toy_data, tmp_path / "c", updates=2, SPECDEC_MATMUL="int4", check=False)
    assert result.returncode and "SPECDEC_MATMUL: precision 'int4' is unknown; available: float32, bf16" in result.stderr


@recipes
def test_two_processes_train_one_model(toy_data, tmp_path, recipe):
    """fairseq's data parallel training on CPUs: workers log figures summed over both."""
    parallel = [*PARALLEL, "--distributed-init-method", f"file://{tmp_path}/store", "--no-save", "--distributed-rank"]
    single, _ = train(toy_data, tmp_path, "--no-save", updates=2, recipe=recipe)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, toy_data, tmp_path, *parallel, rank, updates=2, recipe=recipe) for rank in (0, 1)]
        (logs, _), _ = (run.result() for run in runs)
    assert float(logs["train_inner"][0]["wpb"]) > 1.5 * float(single["train_inner"][0]["wpb"])
    assert 1 <= float(logs["valid"][-1]["valid_accept_len"]) <= 7


def test_loss_and_model_must_fit(toy_data, tmp_path):
    recipe = [*STOCK, "--criterion", "drafter_loss"]
    _, result = train(toy_data, tmp_path, "--no-save", recipe=recipe, updates=1, check=False)
    assert result.returncode and "--criterion drafter_loss requires --arch drafter" in result.stderr


def test_malicious_checkpoint_is_not_run_by_fairseq(toy_data, tmp_path):
    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    torch.save({"model": {}, "args": Malicious()}, tmp_path / "evil.pt")
    _, result = train(toy_data, tmp_path / "run", "--finetune-from-model", tmp_path / "evil.pt", check=False)
    assert result.returncode and not (tmp_path / "executed").exists()


def run_train_sh(*arguments, check=True, **environment):
    command = ["bash", ROOT / "train.sh", *map(str, arguments)]
    environment = {**os.environ, "PYTHON": fast_python(), **environment}
    how = {"cwd": "/", "env": environment, "capture_output": True, "text": True, "timeout": 600}
    result = subprocess.run(command, check=False, **how)
    assert not check or result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result


def test_toy_pipeline_end_to_end(toy_data, tmp_path):
    """Every stage runs, writes its files, and is skipped the second time."""

    def texts():
        return [(tmp_path / "distilled/text" / f"train.{lang}").read_text().splitlines() for lang in ("xa", "xb")]

    def times():
        kept = ("verifier.pt", "distilled/text/train.xb", "distilled/bin", "drafter/checkpoint_last.pt")
        return [(tmp_path / name).stat().st_mtime_ns for name in kept]

    shutil.copytree(toy_data, tmp_path / "data")  # a small corpus, so that it takes a minute
    run_python("data/toy.py", "--output", tmp_path / "more", "--seed", 2, "--train", 30, "--valid", 1, "--test", 1)
    stages = ["verifier", "distill", "init", "drafter", "average", "score"]
    command = ["toy", *stages, "--output", tmp_path, "--updates", 12, "--mono", tmp_path / "more/train.xa"]
    result = run_train_sh(*command)
    for name in ("verifier.pt", "drafter.pt", "distilled/bin/train.xa-xb.xa.idx"):
        assert (tmp_path / name).exists()
    text = texts()
    prepared = (tmp_path / "data/bpe/train.xa").read_text().splitlines()
    assert len(text[0]) == len(text[1]) == len(prepared) + 30
    assert text[0][: len(prepared)] == prepared
    for line in (
        "verifier, greedy, test: BLEU|",
        "score valid: accept_len ",
        "accuracy by block position: [",
        "== toy: score\n",
        "== toy: verifier, then distill, init, drafter, average, score\n",
        "verifier valid: update 12 of 12, nll_loss ",
    ):
        assert line in result.stdout
    assert (tmp_path / "recipe").read_text() == "glide\n"
    written = times()
    again = run_train_sh(*command)
    assert written == times()
    assert result.stdout[result.stdout.index("verifier, greedy") :] == again.stdout[again.stdout.index("verifier, greedy") :]

    # other text is translated again, and an existing drafter was not trained on it
    (tmp_path / "more.xa").write_text((tmp_path / "more/train.xa").read_text())
    run_train_sh("toy", "distill", "--output", tmp_path, "--mono", tmp_path / "more.xa")  # the same in another file
    assert written == times()
    anew = run_train_sh("toy", "distill", "--output", tmp_path)
    assert "the source text or the beam size changed: redoing the translations in " in anew.stdout
    refused = run_train_sh("toy", "drafter", "--output", tmp_path, check=False)
    assert refused.returncode == 1 and refused.stderr == (
        f"train.sh: drafter: {tmp_path}/distilled/bin is newer than the training in {tmp_path}/drafter; "
        "remove that folder or use another --output to retrain\n"
    )
    text = texts()
    assert text[0] == prepared and len(text[1]) == len(prepared)

    # a folder keeps its recipe; another recipe needs another folder
    refused = run_train_sh("toy", "drafter", "--output", tmp_path, "--recipe", "published", check=False)
    assert refused.returncode == 1 and refused.stderr == (
        f"train.sh: --recipe published: {tmp_path} has a drafter of the recipe glide; name another --output\n"
    )
    for name in ("data", "distilled"):
        shutil.copytree(tmp_path / name, tmp_path / "other" / name)
    shutil.copy(tmp_path / "verifier.pt", tmp_path / "other")
    run_train_sh("toy", "init", "drafter", "--output", tmp_path / "other", "--recipe", "published", "--updates", 2)
    drafter = checkpoint.load(tmp_path / "other/drafter/checkpoint_last.pt")
    assert checkpoint.model_args(drafter).arch == "block" and checkpoint.model_args(drafter).decoder_layers == 2
    assert (tmp_path / "other/recipe").read_text() == "published\n"


def test_drafters_on_the_frozen_verifier(toy_data, tmp_path):
    """Each trains by its recipe's name, can be packed, and does not change outputs; the first is also resumed and scored."""
    shutil.copytree(toy_data, tmp_path / "data")
    how = ["--device", "cpu", "--output"]
    run_train_sh("toy", "verifier", "distill", *how, tmp_path, "--updates", 12)
    lines = (toy_data / "raw/test.xa").read_text().splitlines()[:20]
    expected = None
    for recipe in ("glide", "block_causal", "small", "medusa", "hydra", "block_state", "eagle"):
        folder = tmp_path / recipe
        for name in ("data", "distilled"):
            shutil.copytree(tmp_path / name, folder / name)
        shutil.copy(tmp_path / "verifier.pt", folder)
        stages = ["init", "drafter", *["average"] * (recipe in ("glide", "small"))]
        if recipe == "small":
            run_train_sh("toy", "drafter", *how, folder, "--recipe", recipe, "--updates", 2)
            stages.append("score")
        result = run_train_sh("toy", *stages, *how, folder, "--recipe", recipe, "--updates", 4)
        assert f"init: not needed by {recipe}, which starts from the verifier\n" in result.stdout
        assert "drafter valid: update 4 of 4, accept_len " in result.stdout
        assert ("score valid: accept_len " in result.stdout) == (recipe == "small")
        trained = "drafter.pt" if "average" in stages else "drafter/checkpoint_last.pt"
        files = {"verifier": "verifier.pt", "drafter": trained, "data": "data/bin", "codes": "data/codes", "output": "pair"}
        assert pack.main(["--half", *(word for name, file in files.items() for word in (f"--{name}", str(folder / file)))]) == 0
        if expected is None:
            plain = Translator.from_pretrained(str(folder / "pair"), strategy="ar")
            expected = [each.text for each in plain.translate(lines)]
        found = Translator.from_pretrained(str(folder / "pair"), strategy="specdec").translate(lines, batch_size=3)
        assert [each.text for each in found] == expected
        if recipe in ("medusa", "eagle"):
            with pytest.raises(ValueError, match="its drafter reads what the verifier computes"):
                Translator.from_pretrained(str(folder / "pair"), strategy="drafter")


def test_a_corpus_of_ones_own(toy_data, tmp_path):
    """The preset ``small`` prepares any text; its models are stock fairseq's and ours, of its shape. Python starts as usual."""
    run_train_sh("small.xb-xa", "data", "--local", toy_data / "raw", "--output", tmp_path)
    lines = [len((tmp_path / f"data/bpe/test.{lang}").read_text().splitlines()) for lang in ("xa", "xb")]
    assert lines == [len((toy_data / "raw/test.xa").read_text().splitlines())] * 2
    options = ["--updates", 1, "--", "--encoder-layers", 1, "--max-tokens", 300]
    run_train_sh("small.xb-xa", "verifier", "--output", tmp_path, *options, PYTHON=sys.executable)
    weights = checkpoint.load(tmp_path / "verifier.pt")["model"]
    assert "decoder.layers.3.fc1.weight" in weights and "encoder.layers.1.fc1.weight" not in weights
    assert "encoder.layer_norm.weight" in weights, "norms come before the layers"


def test_documentation_is_prepared_so_that_it_comes_back(toy_data, tmp_path):
    """Raw text to subwords of the model and back, through the preset: what a model does not lose is not lost."""
    for split in ("train", "valid", "test"):
        for old, new in (("xa", "en"), ("xb", "fr")):
            text = (toy_data / f"raw/{split}.{old}").read_text().splitlines()
            lines = [f"{line[:-1]} foo_{index % 7}(), `--x`: {line}" for index, line in enumerate(text)]
            (tmp_path / f"{split}.{new}").write_text("".join(f"{line}\n" for line in lines))
    run_train_sh("docs.en-fr", "data", "--local", tmp_path, "--output", tmp_path / "out")
    assert json.loads((tmp_path / "out/data/prepare.json").read_text())["tokenizer"] == "reversible"
    tokenizer = load_tokenizer("reversible", "fr")
    for lang in ("en", "fr"):
        subwords = (tmp_path / f"out/data/bpe/test.{lang}").read_text().splitlines()
        raw = (tmp_path / f"test.{lang}").read_text().splitlines()
        assert [tokenizer.detokenize(remove_bpe(line)) for line in subwords] == raw
    assert run_train_sh("docs.en-fr", "data", "--output", tmp_path / "out").stdout == "== docs.en-fr: data\ndata: done\n"


def test_the_verifiers_loss_is_fairseqs_and_runs_in_bfloat16_on_request(toy_data, tmp_path):
    """In float32 exactly the figures of label_smoothed_cross_entropy, in bfloat16 nearly; resuming changes no weight."""
    stock, found = [*STOCK, "--label-smoothing", "0.1", "--criterion"], {}
    for name, criterion, precision in (
        ("stock", "label_smoothed_cross_entropy", "float32"),
        ("ours", "verifier_loss", "float32"),
        ("bf16", "verifier_loss", "bf16"),
    ):
        logs, _ = train(toy_data, tmp_path / name, recipe=[*stock, criterion], updates=4, SPECDEC_MATMUL=precision)
        found[name] = losses(logs)
    assert found["stock"] == found["ours"] != found["bf16"]
    assert found["bf16"] == pytest.approx(found["ours"], rel=0.02)
    for updates in (2, 4):
        train(toy_data, tmp_path / "cut", recipe=[*stock, "verifier_loss"], updates=updates, SPECDEC_MATMUL="bf16")
    unbroken, resumed = weights(tmp_path / "bf16"), weights(tmp_path / "cut")
    assert all(tensor.equal(resumed[name]) and tensor.dtype == torch.float32 for name, tensor in unbroken.items())


def test_train_sh_hands_options_to_fairseq_and_averages_once(toy_data, tmp_path):
    """Two processes train one verifier, as in docs/reproduce.md; given options override the preset's."""
    shutil.copytree(toy_data, tmp_path / "data")
    command = ["toy", "verifier", "--output", tmp_path, "--device", "cpu", "--precision", "float32", "--updates", 2, "--"]
    command += [*PARALLEL, "--distributed-init-method", f"file://{tmp_path}/store", "--max-tokens", 600, "--log-interval", 1]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run_train_sh, *command, "--distributed-rank", rank, RANK=str(rank), OMP_NUM_THREADS="1")
            for rank in (0, 1)
        ]
        first, second = (run.result().stdout for run in runs)
    assert "average of 1 checkpoint\n" in first and "average of" not in second
    reports = re.findall(r"train_inner \| (.*)", (tmp_path / "logs/verifier.log").read_text())
    wpb = [float(json.loads(report)["wpb"]) for report in reports]
    assert len(wpb) == 2 and 600 < wpb[0] <= 1200  # target tokens of both; the preset alone has 2,048 per process
    assert len(checkpoint.load(tmp_path / "verifier.pt")["model"]) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wmt15"], f"no preset named 'wmt15'. Available: {', '.join(presets.names())}"),
        (["small.english-german"], "no preset named 'small.english-german'. Available: "),
        (
            ["toy", "--recipe", "best"],
            "'best'. Available: block_causal, block_state, eagle, glide, hydra, medusa, published, small",
        ),
        (["folder"], "preset folder requires --verifier"),
        (["small.en-de", "data"], "small.en-de requires --local DIR, a folder with train, valid and test .en and .de"),
        (["toy", "distil"], "no stage named 'distil'. Available: data, verifier, distill, "),
        (["toy", "drafter"], "drafter needs {out}/distilled/bin/train.xa-xb.xa.idx: run stage 'distill' first"),
        (["toy", "--precision", "fp16", "--device", "cpu"], "no precision 'fp16' on cpu. Available: float32, bf16"),
        (["toy", "--device", "tpu"], "no device named 'tpu'. Available: cpu, cuda"),
        (["toy", "--speed"], "unknown option --speed"),
        (["toy", "--mono", "/absent"], "--mono /absent: no such file"),
        (["toy", "--updates", "many"], "--updates many: not a number"),
        (["toy", "--updates", "0"], "--updates 0: not a positive number"),
        (["multi30k", "data", "--local", "/absent"], ""),
    ],
)
def test_train_sh_names_what_is_wrong(tmp_path, arguments, message):
    result = run_train_sh(*arguments, "--output", tmp_path, check=False)
    assert result.returncode not in (0, 127)
    assert result.stderr.count("\n") == 1, result.stderr
    assert message.format(out=tmp_path) in result.stderr


def test_train_sh_shows_fairseqs_error_in_one_line(tmp_path):
    """That of this run, although the log still has an earlier one."""
    run_train_sh("toy", "data", "--output", tmp_path)
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs/verifier.log").write_text("ValueError: of yesterday\n")
    dictionary = tmp_path / "data/bin/dict.xa.txt"
    good = dictionary.read_bytes()
    dictionary.write_bytes(b"\xff\xfe broken\n")
    result = run_train_sh("toy", "verifier", "--output", tmp_path, check=False)
    assert result.returncode == 1 and result.stderr.startswith("train.sh: verifier failed: ")
    assert "verifier.log" in result.stderr and "yesterday" not in result.stderr and result.stderr.count("\n") == 1
    dictionary.write_bytes(good)
    silent = run_train_sh("toy", "verifier", "--output", tmp_path, "--", "--help", check=False)  # neither trains nor fails
    assert "yesterday" not in silent.stderr


def test_a_stage_that_cannot_begin_leaves_the_recipe_open(tmp_path):
    for stage in ("init", "drafter"):
        assert run_train_sh("toy", stage, "--output", tmp_path, "--recipe", "published", check=False).returncode == 1
    assert not (tmp_path / "recipe").exists()


def test_the_average_has_the_last_update(toy_data, tmp_path):
    """The preset saves every 100 updates; a last update between two saves counts too."""
    folder, data = tmp_path / "verifier", tmp_path / "data"
    shutil.copytree(toy_data, data)
    folder.mkdir()
    for name, value in (("1_100", 1.0), ("2_200", 3.0), ("last", 8.0)):
        checkpoint.save(
            {**checkpoint.untrained(), "args": argparse.Namespace(), "model": {"w": torch.tensor([value])}},
            folder / f"checkpoint_{name}.pt",
        )
    (folder / "done.250").touch()
    result = run_train_sh("toy", "verifier", "--output", tmp_path, "--updates", 250)
    assert "verifier/done.250: done" in result.stdout and "average of 3 checkpoints" in result.stdout
    assert checkpoint.load(tmp_path / "verifier.pt")["model"]["w"].tolist() == [4.0]
    shutil.copy(folder / "checkpoint_last.pt", folder / "checkpoint_3_300.pt")
    (folder / "checkpoint_last.pt").touch()
    assert "average of 3 checkpoints" in run_train_sh("toy", "verifier", "--output", tmp_path, "--updates", 250).stdout
    assert checkpoint.load(tmp_path / "verifier.pt")["model"]["w"].tolist() == [4.0]  # 1, 3, 8: the last one once
