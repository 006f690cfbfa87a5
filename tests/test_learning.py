"""specdec-serve --learn: the drafter learns from what is served; outputs stay the same, and whatever fails harms nobody."""

import asyncio
import gc
import json
import logging
import os
import signal
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for package in ("fastapi", "greenlet", "prometheus_client"):
    pytest.importorskip(package)

from conftest import ROOT, run_python  # noqa: E402
from test_draft import letters, sentences  # noqa: E402
from test_serving import asynchronous  # noqa: E402

from specdec_plugins import AsyncTranslator, Translator  # noqa: E402
from specdec_plugins.commands import serve  # noqa: E402
from specdec_plugins.decoding.loop import Session  # noqa: E402
from specdec_plugins.decoding.options import Tolerance  # noqa: E402
from specdec_plugins.decoding.requests import Hypothesis, Request  # noqa: E402
from specdec_plugins.extras import install_command  # noqa: E402
from specdec_plugins.fields import OptionError  # noqa: E402
from specdec_plugins.formats import drafter_folder  # noqa: E402
from specdec_plugins.formats.folder import Pair, load_folder, save_folder  # noqa: E402
from specdec_plugins.formats.spec import fingerprint  # noqa: E402
from specdec_plugins.serving import learning  # noqa: E402
from specdec_plugins.serving.learning import LONGEST, STARTS, WAITING, Learning, Lessons, continued, learner  # noqa: E402
from specdec_plugins.serving.metrics import Metrics  # noqa: E402
from specdec_plugins.serving.server import load  # noqa: E402
from specdec_plugins.serving.service import Model, Service  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.training.learner import Learner  # noqa: E402
from specdec_plugins.training.served import Example, Pace, Task  # noqa: E402

SETTINGS = Settings(dtype="int8", threads=1)
LANGUAGE = {"source_lang": "xa", "target_lang": "xb"}
PACE = Pace(least=40, updates=12, epochs=12, pause=0.05, idle_time=False)
LINES = sentences(150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pair with random weights, whose drafter knows nothing yet."""
    folder = tmp_path_factory.mktemp("pair")
    verifier, drafter, config = letters(folder, 1.7)
    save_folder(Pair.open(verifier, replace(drafter, verifier=fingerprint(verifier)), config), folder / "pair")
    return str(folder / "pair")


@pytest.fixture(scope="module")
def translator(folder):
    return Translator(load_folder(folder), SETTINGS)


def requests_of(translator, lines):
    codec = translator.codec
    encoded = [codec.encode(line, "xa", "xb") for line in lines]
    return [translator.engine.request(n, each.framed(each.text), forced=each.forced) for n, each in enumerate(encoded)]


@pytest.fixture(scope="module")
def examples(translator):
    requests = requests_of(translator, LINES)
    outputs = {each.index: each for each in translator.engine.decode(requests, 8, None)}
    return [Example(each, outputs[each.index].tokens) for each in requests if not outputs[each.index].cut]


@pytest.fixture
def made(folder):
    """A learner in this process."""
    precision = torch.get_float32_matmul_precision()
    yield Learner(folder, load_folder(folder).drafter, SETTINGS, 1.0, PACE)
    torch.set_float32_matmul_precision(precision)


def compared(learner, taken=False):
    """The report of the next comparison."""
    for _ in range(2 * PACE.updates):
        report = learner(Task([], taken))
        if report.drafter or report.refused:
            return report
        taken = False
    raise AssertionError("no comparison")


def test_a_state_is_offered_if_it_is_faster_on_requests_held_back(made, examples):
    assert made(Task([])).rest == PACE.pause and made.made < 0  # nothing to learn from
    made(Task(examples))
    trained = {bytes(np.array(pair.source, "i")) for pair in made.recent}
    held = {bytes(np.array(each.request.tokens, "i")) for each in made.held_back}
    assert (
        trained
        and held
        and not trained & held
        and len(trained) + len(held) == len({*map(str, (e.request.tokens for e in examples))})
    )
    report = compared(made)
    assert report.drafter is not None and report.present > 1.01 * report.first > 0 and report.updates == PACE.updates
    offered = report.drafter
    report = compared(made, taken=True)
    assert made.present in (offered, made.present) and report.first < report.present
    assert made.replay(offered) > made.replay(made.first)


def test_states_that_are_hardly_better_worse_or_damaged_are_dropped(made, examples, monkeypatch):
    made(Task(examples))
    usual, first = made.replay, made.first
    monkeypatch.setattr(made, "replay", lambda drafter: 2.0 if drafter is first else 2.01)
    report = compared(made)
    assert report.drafter is None and "2.01 instead of 2.00" in report.refused and made.present is first
    monkeypatch.setattr(made, "replay", lambda drafter: 1.0 + (drafter is first))
    made.fresh = PACE.least
    assert "1.00 instead of 2.00" in compared(made).refused
    unchanged(made, first)
    monkeypatch.setattr(made, "replay", usual)
    made.fresh = PACE.least
    with torch.no_grad():
        next(iter(made.training.network.parameters())).fill_(float("nan"))
    assert "not finite" in compared(made).refused and made.present is first
    unchanged(made, first)
    assert not made.ready()  # until there are new requests
    made(Task(examples[: PACE.least + 20]))
    assert made.made >= 0


def unchanged(learner, drafter):
    """Training has gone back to a drafter."""
    for name, tensor in learner.training.network.state_dict().items():
        assert np.array_equal(tensor.numpy(), drafter.tensors[name].astype(np.float32)), name


def test_a_replay_that_differs_from_what_was_served_is_no_replay(made, examples):
    made(Task(examples))
    made.held_back[0] = made.held_back[0]._replace(output=[*made.held_back[0].output, 5])
    assert "differs from the one served" in compared(made).refused


def test_rests_keep_to_the_share(made, examples, monkeypatch):
    made.share = 0.25
    monkeypatch.setattr("time.process_time", iter(range(0, 100, 2)).__next__)
    monkeypatch.setattr("time.monotonic", iter(range(0, 100, 3)).__next__)
    assert made(Task(examples)).rest == 2 / 0.25 - 3


async def served_by(folder, **lessons):
    translator = Translator(learner(folder, None), SETTINGS)
    served = AsyncTranslator(translator)
    served.learning = Learning("tiny", served.line, folder, Lessons(1.0, pace=PACE, **lessons))
    return served


@asynchronous
async def test_served_learned_swapped_and_every_output_the_same(folder, translator, tmp_path, caplog):
    """The whole way, with a process of its own, which is killed once there was a swap."""
    caplog.set_level(logging.INFO)
    wanted = [each.tokens for each in translator.translate(LINES, **LANGUAGE)]
    sampled = [each.tokens for each in translator.translate(LINES[:5], sampling=True, seed=3, **LANGUAGE)]
    keep = tmp_path / "tiny"
    served = await served_by(folder, keep=keep)
    first, until = served.translator.engine.roles.drafter, time.monotonic() + 600
    while not served.learning.swaps:
        assert [each.tokens for each in await served.translate(LINES, **LANGUAGE)] == wanted
        assert [each.tokens for each in await served.translate(LINES[:5], sampling=True, seed=3, **LANGUAGE)] == sampled
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
    os.kill(served.learning.process, signal.SIGKILL)
    assert served.translator.engine.roles.drafter is not first and served.learning.present > served.learning.first
    assert [each.tokens for each in await served.translate(LINES, **LANGUAGE)] == wanted
    while not caplog.messages[-1].endswith("; the process starts again"):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    metrics = {each.name: each for each in Metrics(Service([Model.of("tiny", served)]))._learned()}
    found = {each.labels["drafter"]: each.value for each in metrics["specdec_learning_tokens_per_pass"].samples}
    assert found == {"first": served.learning.first, "present": served.learning.present}
    assert metrics["specdec_learning_swaps"].samples[0].value == served.learning.swaps
    for options, said in ({"beta": 2, "tau": 1.0}, "beta above 1"), ({"sampling": True, "rule": "rejection"}, "rule rejection"):
        with pytest.raises(OptionError, match=f"{said} is not supported while the drafter learns"):
            await served.translate(LINES[:1], **LANGUAGE, **options)
    await served.close()
    assert not served.learning._thread.is_alive() and served.learning.process is None
    again = continued("tiny", load_folder(folder), keep)
    drafted = served.learning.drafter.tensors
    assert all(np.array_equal(tensor, drafted[name]) for name, tensor in again.drafter.tensors.items())
    assert Translator(again, SETTINGS).translate(LINES[:9], **LANGUAGE)[3].tokens == wanted[3]


class Silent:
    """In place of the process: learns nothing."""

    def __init__(self, number, build):
        self.process, Silent.begun = self, [*getattr(Silent, "begun", []), self]

    def receive(self):
        raise ValueError("a worker process died")

    def kill(self):
        pass

    stop = kill


@asynchronous
async def test_a_process_that_keeps_dying_is_given_up(folder, translator, monkeypatch, caplog):
    monkeypatch.setattr(learning, "Worker", Silent)
    Silent.begun = []
    served = await served_by(folder)
    served.learning._thread.join()
    assert len(Silent.begun) == STARTS and served.line.learn is None
    assert caplog.messages[-1] == "model tiny: learning failed (a worker process died); it ends until the model is loaded again"
    assert (await served.translate(LINES[:1], **LANGUAGE))[0].tokens == translator.translate(LINES[:1], **LANGUAGE)[0].tokens
    await served.close()


@asynchronous
async def test_examples_are_few_and_short_and_no_draft_could_change_them(folder, monkeypatch):
    monkeypatch.setattr(learning, "Worker", Silent)
    served = await served_by(folder)
    served.learning._thread.join()
    output, keeps = Hypothesis(0, [5, 6], [], [], False), served.learning.learn
    for request, each in (
        (Request(0, [4, 2], 9, tolerance=Tolerance(2, 1.0)), output),
        (Request(0, [4] * LONGEST, 9), output),
        (Request(0, [4, 2], 9), replace(output, cut=True)),
        (Request(0, [4, 2], 9), replace(output, tokens=[])),
        (Request(0, [4, 2], 9), replace(output, error=ValueError())),
    ):
        keeps(request, each)
    assert not served.learning.examples
    for number in range(2 * WAITING):
        keeps(Request(number, [4, 2], 9), output)
    assert len(served.learning.examples) == WAITING and served.learning.examples[0].request.index == WAITING
    await served.close()


@asynchronous
async def test_rows_in_flight_keep_their_drafter(folder, translator, monkeypatch):
    """A swap in the middle of everything: nothing is lost, outputs are the same, and the old drafter is freed."""
    monkeypatch.setattr(learning, "Worker", Silent)
    served = await served_by(folder)
    drafter, wanted = load_folder(folder).drafter, [each.tokens for each in translator.translate(LINES, **LANGUAGE)]
    (desk,), seen = served.line.desks, []
    monkeypatch.setattr(Session, "step", lambda session, *how, step=Session.step: seen.append(session) or step(session, *how))
    for number in range(3):
        shaken = {name: each * np.float16(1 + 0.1 * number) for name, each in drafter.tensors.items()}
        old = served.translator.engine.roles.drafter
        calls = [asyncio.ensure_future(served.translate(LINES, **LANGUAGE)) for _ in range(2)]
        while not desk.rows_in_flight:
            await asyncio.sleep(0.001)
        assert served.learning.install(replace(drafter, tensors=shaken))
        assert [[each.tokens for each in call] for call in await asyncio.gather(*calls)] == [wanted] * 2
        assert served.translator.engine.roles.drafter is not old
    assert served.learning.swaps == 3 and len({*map(id, seen)}) > 3
    kept = weakref.ref(served.translator.engine.roles.drafter)
    assert not served.learning.install(
        replace(drafter, tensors={**drafter.tensors, "decoder.layers.0.fc1.bias": np.full(32, np.nan)})
    )
    assert served.learning.refused == 1 and served.translator.engine.roles.drafter is kept()
    served.learning.install(drafter)
    await served.translate(LINES[:1], **LANGUAGE)
    seen.clear()
    gc.collect()
    assert kept() is None
    await served.close()


def test_what_was_learned_is_dropped_if_it_is_damaged_or_anothers(folder, tmp_path, caplog):
    pair, keep = learner(folder, None), tmp_path / "keep"
    assert continued("m", pair, keep) is pair and continued("m", pair, None) is pair
    changed = {name: each + each.dtype.type(0.5) for name, each in pair.drafter.tensors.items()}
    for _ in range(3):  # each in place of the last
        learning.replace_drafter(replace(pair.drafter, tensors=changed), pair.verifier, keep)
        assert len([*keep.iterdir()]) == 2
    found = continued("m", pair, keep)
    assert np.array_equal(found.drafter.tensors["decoder.layers.0.fc1.bias"], changed["decoder.layers.0.fc1.bias"])
    described = (keep / drafter_folder.NAME).read_text()
    for text, said in (
        (described.replace(pair.drafter.verifier, "0" * 64), "it was trained for another verifier"),
        (described.replace('"glide"', '"block"'), "it has another drafter than glide"),
        (described[:-9], "drafter.json"),
        (described.replace("drafter.safetensors", "other").replace("drafter-2.safetensors", "other"), "other"),
    ):
        caplog.clear()
        (keep / drafter_folder.NAME).write_text(text)
        assert continued("m", pair, keep) is pair
        said_so = [each for each in caplog.messages if each.startswith("model m: what its drafter had learned was dropped: ")]
        assert len(said_so) == 1 and said in said_so[0] and "\n" not in said_so[0]


def test_a_model_without_a_drafter_is_refused(folder, tmp_path):
    save_folder(replace(load_folder(folder), drafter=None), tmp_path / "plain")
    with pytest.raises(ValueError, match="plain has no drafter that could learn; specdec-draft trains one"):
        load("m", str(tmp_path / "plain"), None, SETTINGS, 8, 8, [], Lessons(0.5))
    plain, shipped = str(tmp_path / "plain"), str(ROOT / "data" / "docs.en-fr")
    for model, drafter, code in (plain, plain, "small"), (shipped, "block_causal", "block_causal"):  # whole Transformers
        with pytest.raises(ValueError, match=f"its drafter {code} cannot learn; use one that specdec-draft made"):
            learner(model, drafter)


def test_the_commands_options(folder, tmp_path, capsys, monkeypatch):
    def refused(*arguments, status=2):
        assert serve.main(["--model", folder, "--port", "0", *map(str, arguments)]) == status
        return capsys.readouterr().err.removeprefix("specdec-serve: error: ").rstrip("\n")

    assert refused("--learn", 1.5) == "--learn 1.5 is not a share of a core, above 0 and up to 1"
    assert refused("--learn", 0) == "--learn 0 is not a share of a core, above 0 and up to 1"
    assert refused("--learn", 0.5, "--draft-with", "ngram").startswith("--learn cannot be combined with --draft-with")
    assert refused("--learn", 0.5, "--device", "cuda") == "--learn requires --device cpu, not cuda"
    assert refused("--learn-dir", tmp_path) == "--learn-dir requires --learn"
    (tmp_path / "c.toml").write_text(f'learn-dir = "x"\n[model."a/b"]\nfolder = "{folder}"\nlearn = 0.5')
    assert serve.main(["--config", str(tmp_path / "c.toml")]) == 2
    assert "--learn-dir needs a model's name that can be a folder's, not a/b" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused("--learn", 0.5, status=1).endswith(f"run: {install_command('torch')}")


def test_the_server_imports_no_pytorch():
    code = "import sys, specdec_plugins.serving.server; print('torch' in sys.modules)"
    assert run_python("-c", code).stdout == "False\n"


@pytest.mark.long
def test_the_benchmark_of_learning_runs():
    """On too few requests to learn from: outputs, latency of both servers, and the memory of both processes."""
    options = ["--model", ROOT / "data/demo.en-de", "--input", ROOT / "data/demo.txt", "--every", "0.1", "--busy"]
    found = json.loads(run_python(ROOT / "benchmarks/learning.py", *options).stdout)
    assert found["served_differ"] == found["unseen_differ"] == found["updates"] == 0 and found["before"] == found["after"] > 1
    assert set(found["p95_ms"]) == {"usual", "learning"} and found["p95_ratio"] > 0
    server, learner_ = (found["memory_mib"][name] for name in ("server", "learner"))
    assert len(server) == len(learner_) > 1 and min(server) > 50
