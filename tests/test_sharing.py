"""A drafter on its own: its folder and record, its model card, and drafters of the Hub by name."""

import json
import logging
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import hf_text
import pytest
from conftest import ROOT, edit_json, run_forked, run_python
from hub_server import Hub
from test_hf_translator import saved
from test_hub import executed

from specdec_plugins.commands import draft, ready, serve, translate
from specdec_plugins.commands.card import card
from specdec_plugins.formats import drafter_folder, hub
from specdec_plugins.formats.drafter_folder import Record
from specdec_plugins.formats.folder import load_folder, save_drafter, save_folder, with_drafter
from specdec_plugins.translator import Translator

PAIR, OTHER = ROOT / "data" / "docs.en-fr", ROOT / "data" / "demo.en-de"
LINES = ["Open the file and press the button.", "This option is not used.", "The server returns a list of all users.", "", "Yes."]
RECORD = Record(
    model="org/pair@" + "a" * 40,
    source_lang="en",
    target_lang="fra_Latn",
    multilingual=False,
    data="some_text.en",
    data_sha256="b" * 64,
    trained=5725,
    held_out=200,
    updates=158,
    seed=1,
    precision="bf16",
    tokens_per_pass=3.1249,
    acceptance=(0.75, 0.8),
    gain={"1": 1.524, "8": 1.2},
    dtype="int8",
    threads=2,
    machine={"date": "2026-11-28", "cpu": "Some CPU", "cores": 2, "kernels": "amx", "python": "3.11.7", "torch": "2.13.0"},
    command=("specdec-draft", "org/pair", "--sources", "TEXT"),
    specdec="0.3.0",
    licence="CC-BY-4.0",
    name="me/fast",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The shipped drafter of the documentation pair in a folder of its own, with a card."""
    folder, pair = tmp_path_factory.mktemp("drafter") / "fast", load_folder(PAIR)
    save_drafter(pair.drafter, pair.verifier, RECORD, folder)
    assert draft.main(["--card", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def plain():
    return [each.tokens for each in Translator.from_pretrained(str(PAIR), strategy="ar").translate(LINES)]


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


def tokens_with(drafter, model=PAIR):
    translator = Translator.from_pretrained(str(model), drafter=str(drafter), block_size=4)
    return [each.tokens for each in translator.translate(LINES)], translator.stats.mean_accepted_length


# ---- the folder


def test_a_drafter_folder_drafts_for_its_model(folder, plain, tmp_path, caplog):
    """Whether the model has a drafter of its own or not, and whichever kind of folder the drafter lies in."""
    assert {each.name for each in folder.iterdir()} == {"drafter.json", "drafter.safetensors", "README.md"}
    save_folder(replace(load_folder(PAIR), drafter=None), tmp_path / "alone")
    with caplog.at_level(logging.WARNING):
        for drafter in (folder, PAIR):
            found, length = tokens_with(drafter, tmp_path / "alone")
            assert found == plain and length > 2
    assert not caplog.records


def test_the_record_is_nothing_that_loading_reads(copied, plain):
    content = json.loads((copied / "drafter.json").read_text())
    for record in ({}, {"anything": [[]]}):
        (copied / "drafter.json").write_text(json.dumps({**content, "record": record}))
        assert tokens_with(copied)[0] == plain


def test_a_drafter_of_another_verifier_is_warned_of(copied, caplog, monkeypatch):
    monkeypatch.setattr("specdec_plugins.formats.spec.fingerprint", None)  # the pair's folder has it
    path = copied / "drafter.json"
    path.write_text(path.read_text().replace('"verifier": "d0', '"verifier": "00'))
    with caplog.at_level(logging.WARNING):
        assert with_drafter(load_folder(PAIR), copied).drafter.verifier.startswith("00")
    said = f"{copied}: the drafter was trained for another verifier: fewer of its tokens will be accepted"
    assert [each.getMessage() for each in caplog.records] == [said]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda all: all.update(format=9), "drafter.json: format 9; this version reads format 1"),
        (lambda all: all.update(more=1), "drafter.json: unknown key 'more'"),
        (lambda all: all.pop("drafter"), "drafter.json: no 'drafter'"),
        (lambda all: all["drafter"].update(block_size="8"), "drafter.json: 'drafter.block_size' is '8', not of type int"),
        (lambda all: all["drafter"].update(weights="gone.safetensors"), "not a drafter folder (no gone.safetensors in it)"),
        (lambda all: all["drafter"].update(weights="../fast/drafter.safetensors"), "is not the name of a file in the folder"),
        (lambda all: all["drafter"].update(shared=["nothing"]), "drafter: shared: unknown tensor nothing"),
        (lambda all: all["drafter"].update(code="nothing"), "no drafter named 'nothing'"),
    ],
)
def test_a_damaged_folder_is_one_line(copied, capfd, change, said):
    edit_json(copied / "drafter.json", change)
    arguments = ["--model", PAIR, "--drafter", copied, "-i", ROOT / "data" / "docs.txt", "-o", copied / "out"]
    assert translate.main([*map(str, arguments), "--quiet"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("specdec-translate: error: ") and said in lines[0], lines


def test_a_drafter_of_another_model_is_refused_as_such(folder, capsys):
    assert translate.main(["--model", str(OTHER), "--drafter", str(folder), "-i", str(ROOT / "data" / "demo.txt")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("specdec-translate: error: the drafter does not fit this model: "), said


def test_python_takes_a_drafter_by_path_and_no_other_beside(folder):
    assert Translator.from_pretrained(str(OTHER), drafter=OTHER).engine.drafter_name == "glide"
    with pytest.raises(ValueError, match="drafter cannot be combined with draft_with"):
        Translator.from_pretrained(str(PAIR), drafter=str(folder), draft_with="ngram")


def test_a_drafter_is_no_model(folder):
    for loaded in (ready.model, load_folder):
        with pytest.raises(ValueError, match=r"fast: (a drafter; name its model with --model|not a model folder)"):
            loaded(folder)


# ---- the card


def front_matter(text):
    yaml = pytest.importorskip("yaml")
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def test_a_card_has_the_hubs_front_matter_and_the_figures(folder):
    fields, body = front_matter((folder / "README.md").read_text())
    assert fields == {
        "license": "cc-by-4.0",
        "library_name": "specdec",
        "tags": ["speculative-decoding", "drafter", "specdec"],
        "base_model": "org/pair",
        "language": ["en", "fra"],
    }
    assert body.startswith("\n# fast\n") and "[org/pair](https://huggingface.co/org/pair)" in body and "$" not in body
    for said in (
        "    specdec-translate --model org/pair --drafter me/fast -i input.txt -o output.txt\n",
        'Translator.from_pretrained("org/pair", drafter="me/fast")',
        "| Tokens a pass | 3.12 |",
        "| Gain in speed at batch size 1 | 1.52 |",
        "| Gain in speed at batch size 8 | 1.20 |",
        "| Machine | Some CPU, 2 cores, amx kernels |",
        "| Date | 2026-11-28 |",
        "SpecDec 0.3.0, python 3.11.7, torch 2.13.0",
        "Measured on 200 sentences",
        "in int8, with 2 threads",
        "    specdec-draft org/pair --sources TEXT\n",
        "some\\_text.en; 5,725 sentences",
        "b" * 64,
        "158 updates in bf16, seed 1",
        "Licence: CC-BY-4.0.",
        load_folder(PAIR).drafter.verifier,
        "glide (length=8, layers=2, dropout=0.1), drafts of up to 8 tokens",
    ):
        assert said in body, said


def test_a_card_is_one_that_huggingface_hub_reads(folder):
    cards = pytest.importorskip("huggingface_hub")
    found = cards.ModelCard.load(folder / "README.md").data
    assert (found.license, found.base_model, found.library_name) == ("cc-by-4.0", "org/pair", "specdec")


def test_a_card_says_what_it_knows(folder):
    """No licence, no languages, a data set of the Hub, a local model, languages that requests name, text with Markdown in it."""
    entry = drafter_folder.read(folder).drafter
    record = replace(RECORD, model="mine", licence=None, name=None, data="them/texts@v1", source_lang="", target_lang="ROMANCE")
    fields, body = front_matter(card(entry, record))
    assert fields == {"library_name": "specdec", "tags": fields["tags"], "datasets": ["them/texts"]}
    assert "# mine-glide\n" in body and "--model mine --drafter OWNER/mine-glide" in body and "Licence: not stated." in body
    record = replace(RECORD, multilingual=True, data="a | b <script> [x](y) `c`", target_lang="fr_XX")
    fields, body = front_matter(card(replace(entry, code="package:My Drafter\n# x"), record))
    assert "--drafter me/fast -s en -t fr_XX -i" in body and fields["language"] == ["en", "fr"]
    assert r"a \| b \<script\> \[x\](y) \`c\`" in body and "\n# x" not in body
    record = replace(RECORD, model="a` <b> `", gain={"1 | <i>": 1.5})
    _, body = front_matter(card(entry, record))
    assert r"batch size 1 \| \<i\> | 1.50 |" in body
    assert all(line.startswith("    ") for line in body.splitlines() if "<b>" in line and r"\<b\>" not in line)


def test_a_card_is_written_anew_with_what_is_given(copied, tmp_path, capsys):
    before = json.loads((copied / "drafter.json").read_text())
    (copied / "README.md").unlink()
    (tmp_path / "mine").mkdir()
    shutil.move(copied, tmp_path / "mine" / "drafter")
    options = ["--licence", "mit", "--data", "org/texts", "--name", "org/fast2"]
    assert draft.main([str(tmp_path / "mine"), "--card", *options]) == 0  # also of the folder around it
    path = tmp_path / "mine" / "drafter"
    assert capsys.readouterr().out == f"{path / 'README.md'}: written\n"
    after = json.loads((path / "drafter.json").read_text())
    assert after["drafter"] == before["drafter"]
    assert after["record"] == {**before["record"], "licence": "mit", "data": "org/texts", "name": "org/fast2"}
    fields, _ = front_matter((path / "README.md").read_text())
    assert fields["license"] == "mit" and fields["datasets"] == ["org/texts"]


def refused(capsys, status, *options):
    capsys.readouterr()
    assert draft.main([*map(str, options)]) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("specdec-draft: error: "), lines
    return lines[0].removeprefix("specdec-draft: error: ")


def test_what_a_card_cannot_be_of(copied, tmp_path, capsys):
    for status, options, said in (
        (1, [tmp_path / "none"], f"{tmp_path / 'none'}: no drafter.json in it; specdec-draft writes one when it trains"),
        (1, [PAIR], f"{PAIR}: no drafter.json in it"),
        (1, [copied / "drafter.json"], "no drafter.json in it"),
        (2, [copied, "--licence", "my own licence"], "--licence my own licence is not an identifier such as cc-by-4.0 or mit"),
        (2, [copied, "--name", "fast"], "--name fast is not ORG/NAME"),
        (2, [copied, "--data", "two\nlines"], "--data is not one line of at most 500 characters"),
        (2, [copied, "--estimate"], "--estimate cannot be combined with --card"),
        (2, [copied, "--sources", "x", "--output", "y"], "--sources cannot be combined with --card; --output cannot"),
        (2, [copied, "--minutes", "3", "-s", "de"], "--minutes cannot be combined with --card; --source-lang cannot"),
    ):
        assert said in refused(capsys, status, "--card", *options)
    good = (copied / "drafter.json").read_text()
    for field, value in (
        ("updates", -1),
        ("seed", "1"),
        ("tokens_per_pass", float("nan")),
        ("tokens_per_pass", 1e300),
        ("data", "x" * 501),
        ("data", "a\nb"),
        ("model", "\x1b[2J"),
        ("machine", {"cpu": [1]}),
        ("machine", {"cpu": "\ud800"}),
        ("licence", "my own"),
        ("gain", {str(n): 1.0 for n in range(65)}),
        ("acceptance", [1.0] * 65),
        ("trained", 10**400),
        ("more", 1),
        ("dtype", None),
    ):
        edit_json(copied / "drafter.json", lambda all, field=field, value=value: all["record"].update({field: value}))
        said = refused(capsys, 1, "--card", copied)
        assert said.startswith(f"{copied / 'drafter.json'}: ") and field in said, (field, value, said)
        (copied / "drafter.json").write_text(good)
    for content in (b"{", b"[]", b"\xff", b"[" * 100_000, b" " * 1_000_001, b"7" * 5000):
        (copied / "drafter.json").write_bytes(content)
        assert str(copied / "drafter.json") in refused(capsys, 1, "--card", copied)


def test_a_card_needs_no_torch(folder):
    code = f"assert draft.main(['--card', {str(folder)!r}]) == 0 and 'torch' not in sys.modules"
    run_python("-c", f"import sys; from specdec_plugins.commands import draft; {code}")


def test_a_record_is_kept_as_it_is(folder):
    assert drafter_folder.read_record(folder) == RECORD
    assert json.loads((folder / "drafter.json").read_text())["record"] == json.loads(json.dumps(asdict(RECORD)))


# ---- the Hub


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    """A drafter as its folder was uploaded, a model with a drafter, models of Hugging Face without one, and what is neither."""
    pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    server, made = Hub(), tmp_path_factory.mktemp("hub")
    other = shutil.copytree(folder, made / "other")
    (other / "drafter.json").write_text((folder / "drafter.json").read_text().replace('"block_size": 8', '"block_size": 5'))
    damaged = shutil.copytree(folder, made / "damaged")
    (damaged / "drafter.json").write_text("{")
    empty = made / "empty"
    empty.mkdir()
    (empty / "README.md").write_text("nothing")
    marian = made / "marian"
    marian.mkdir()
    saved(marian, hf_text.marian, "marian", "Marian")
    incomplete = shutil.copytree(folder, made / "incomplete", ignore=shutil.ignore_patterns("*.safetensors"))
    published = {"fast": folder, "pair": PAIR, "damaged": damaged, "empty": empty, "marian": marian, "incomplete": incomplete}
    for name, where in published.items():
        server.publish(f"org/{name}", where)
    server.publish("org/fast", other, "v1")
    yield server
    server.shutdown()


def found_for(name, environment, **more):
    """The folder that a name means, before torch is loaded."""
    code = f"from specdec_plugins.commands import ready; print(ready.trained_drafter({name!r}, {str(PAIR)!r}))"
    result = run_forked(executed, code, **{**environment, **more})
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_drafter_of_the_hub_by_name(served, environment, plain):
    """Only its own files are fetched, once; the cache answers then, also offline; revisions are other drafters."""
    fetched = found_for("org/fast", environment)
    assert sorted(served.asked) == names(fetched) == ["drafter.json", "drafter.safetensors"]
    served.asked.clear()
    commit = served.repositories["org/fast"][0]["main"]
    assert found_for("org/fast", environment, HF_HUB_OFFLINE="1") == fetched and hub.title(str(fetched)) == "org/fast"
    assert found_for(f"org/fast@{commit}", environment, HF_HUB_OFFLINE="1") == fetched and not served.asked
    assert tokens_with(fetched)[0] == plain
    assert drafter_folder.read(found_for("org/fast@v1", environment)).drafter.block_size == 5


def test_of_a_model_only_the_drafters_are_fetched(served, environment, plain):
    fetched = found_for("org/pair", environment)
    assert sorted(served.asked) == names(fetched) == ["drafter-2.safetensors", "drafter.safetensors", "model.json"]
    found, length = tokens_with(fetched)
    assert found == plain and length > 2


def test_a_model_without_a_drafter_is_fetched_to_draft_itself(served, environment):
    fetched = found_for("org/marian", environment)
    assert "model.safetensors" in served.asked and load_folder(fetched).drafter is None


NOT_THERE = "not in the cache of huggingface_hub, or not whole"


@pytest.mark.parametrize(
    "model, name, more, said",
    [
        (PAIR, "org/none", {}, "org/none: no such folder, and no such model on the Hugging Face Hub, or a private one"),
        (PAIR, "org/fast@v9", {}, "org/fast@v9: the model has no such revision"),
        (PAIR, "org/fast", {"HF_HUB_OFFLINE": "1"}, f"org/fast: {NOT_THERE}, and HF_HUB_OFFLINE is set"),
        (PAIR, "org/fast", {"HF_ENDPOINT": "http://127.0.0.1:9"}, f"org/fast: {NOT_THERE}, and the Hub cannot be reached: "),
        (PAIR, "org/empty", {}, "org/empty: the repository has none of model.json, config.json, drafter.json, so it is no "),
        (PAIR, "org/damaged", {}, "drafter.json: damaged or not ours"),
        (PAIR, "org/incomplete", {}, "not a drafter folder (no drafter.safetensors in it)"),
        (PAIR, "org/marian", {}, f"cannot draft for {PAIR}: it has another source vocabulary and another target vocabulary"),
        (
            PAIR,
            "fast",
            {},
            f"fast: no such folder; a drafter of the Hugging Face Hub is named ORG/NAME; drafters of {PAIR}: glide, block_causal",
        ),
        ("org/fast", None, {}, "org/fast: a drafter; name its model with --model, and this with --drafter"),
    ],
)
def test_what_cannot_draft_is_one_line(environment, tmp_path, model, name, more, said):
    arguments = ["--model", str(model), *(["--drafter", name] if name else []), "-i", str(ROOT / "data" / "docs.txt"), "--quiet"]
    code = f"from specdec_plugins.commands import translate; raise SystemExit(translate.main({arguments}))"
    result = run_forked(executed, code, **{**environment, **more})
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == 1 and said in lines[0], result.stderr
    assert lines[0].startswith("specdec-translate: error: ")


def test_the_command_and_python_take_the_name(served, environment, plain, tmp_path):
    output = tmp_path / "out"
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    command = [
        "--model",
        str(PAIR),
        "--drafter",
        "org/fast@v1",
        "-i",
        str(tmp_path / "in"),
        "-o",
        str(output),
        "--format",
        "json",
    ]
    code = (
        "from specdec_plugins import Translator\n"
        "from specdec_plugins.commands import translate\n"
        f"assert translate.main({command}) == 0\n"
        f"translator = Translator.from_pretrained({str(PAIR)!r}, 'org/fast', threads=1)\n"
        f"assert [each.tokens for each in translator.translate({LINES})] == {plain}\n"
    )
    result = run_forked(executed, code, **environment)
    assert result.returncode == 0 and "another verifier" not in result.stderr, result.stderr
    said = [json.loads(line) for line in output.read_text().splitlines()]
    assert [each["tokens"] for each in said] == plain


# ---- the server


def test_a_server_takes_a_drafter(folder, tmp_path, capsys, monkeypatch):
    """For all models, or one of a configuration; what cannot draft is refused before torch is loaded."""
    path = tmp_path / "models.toml"
    path.write_text(f'[model.a]\nfolder = "{PAIR}"\ndrafter = "{folder}"\n[model.b]\nfolder = "{OTHER}"\n')
    options = serve.parser().parse_args(["--config", str(path)])
    assert [each.drafter for _, each in serve.models_of(options)] == [str(folder), None] and serve.check(options) == []
    both = ["--model", str(PAIR), "--drafter", str(folder), "--draft-with", "lookahead"]
    assert serve.main(both) == 2 and "--drafter cannot be combined with --draft-with" in capsys.readouterr().err
    assert serve.main(["--model", str(PAIR), "--drafter", str(tmp_path), "--port", "0"]) == 1
    assert capsys.readouterr().err == f"specdec-serve: error: {tmp_path}: not a model folder (no model.json in it)\n"
    taken = []
    monkeypatch.setattr(Translator, "from_pretrained", lambda *given, **_: taken.append(given) or sys.exit(3))
    with pytest.raises(SystemExit):
        serve.main(["--config", str(path), "--port", "0"])
    path.write_text(f'[model.a]\nfolder = "{PAIR}"\ndrafter = ""\n')
    with pytest.raises(SystemExit):
        serve.main(["--config", str(path), "--port", "0"])
    assert taken == [(str(PAIR), str(folder)), (str(PAIR), None)]


def test_a_model_of_the_hub_is_recorded_with_its_commit(served, environment, tmp_path):
    """So that the card names it, and the command means the same model elsewhere."""
    (tmp_path / "text").write_text("x\n")
    given = ["org/pair", "--sources", str(tmp_path / "text"), "--output", str(tmp_path / "out")]
    code = (
        "from specdec_plugins.commands import draft, drafting\n"
        "def work(options, *_):\n    raise ValueError(f'named {options.named}')\n"
        f"drafting.Work = work\nraise SystemExit(draft.main({given}))"
    )
    commit = served.repositories["org/pair"][0]["main"]
    assert f"specdec-draft: error: named org/pair@{commit}\n" in run_forked(executed, code, **environment).stderr
