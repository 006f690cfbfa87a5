"""Scores on demand: rows that want none get none, and nothing else depends on it."""

import json
import random
from ctypes import byref
from dataclasses import replace

import pytest
import torch
from conftest import ROOT
from support import EOS, WORDS, Knowing, load, sentences
from test_beam import Planned
from test_kernels import on_kernels, wide_verifier
from test_tree_rules import RULES, given_pass
from test_trees import KERNELS, Branching, random_tree

from specdec_plugins import engine
from specdec_plugins.commands import translate
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.backends.cpu.arguments import address
from specdec_plugins.decoding.backends.cpu.binding import DTYPES, Engine
from specdec_plugins.decoding.backends.cpu.rules import Judging
from specdec_plugins.decoding.constraints import Bounds, Constraints
from specdec_plugins.decoding.loop import speculative_decode
from specdec_plugins.decoding.options import Beam, Sampling, Tolerance, Tree
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Draft, Draws
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.files import Options, TextFile
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.translator import Translator
from specdec_plugins.units import translate_units

DEMO = str(ROOT / "data" / "demo.en-de")
LINES = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()[:4]


@RULES
@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("rule", [None, "coupled", "rejection"])
def test_a_verdict_has_the_scores_of_the_rows_that_want_them(rule, shape, kernels):
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    for _ in range(20):
        rows = rng.randrange(1, 7)
        parents = [
            random_tree(rng, rng.randrange(9)) if shape == "tree" else range(-1, rng.randrange(9) - 1) for _ in range(rows)
        ]
        tokens = [rng.choices(range(4, 9), k=len(each)) for each in parents]
        draft = TreeDraft(tokens, [[*each] for each in parents]) if shape == "tree" else Draft(tokens)
        logits = torch.randn(rows, max(map(len, tokens)) + 1, 12, generator=generator, dtype=torch.float64).mul(2).round()
        bounds = Bounds(Constraints(), [rng.choice((1, 30)) for _ in range(rows)], [rng.choice((0, 2)) for _ in range(rows)])
        how = Sampling(0.9, rule=rule or "coupled")
        draws = [Draws(how, row, [0, 5]) if rng.random() < 0.7 else None for row in range(rows)] if rule else None
        tolerances = [rng.choice((Tolerance(), Tolerance(4, 2.0))) for _ in range(rows)]
        whole = given_pass(logits, kernels).judge(draft, bounds, tolerances, draws)
        for scored in ([rng.random() < 0.5 for _ in range(rows)], [False] * rows):
            some = given_pass(logits, kernels).judge(draft, bounds, tolerances, draws, scored)
            assert some._replace(scores=whole.scores) == whole
            assert some.scores == [scores if wanted else [] for scores, wanted in zip(whole.scores, scored)]


@KERNELS
@pytest.mark.parametrize("kernels", compiled.available())
def test_the_kernels_write_no_score_that_nobody_wants(kernels):
    """Chains and trees, on every instruction set."""
    library, logits = compiled.library(kernels), torch.randn(3, 4, 37, generator=torch.Generator().manual_seed(1)).numpy()
    logits[..., :4] -= 9  # special tokens
    team, bounds, scored = Engine(2, library), Bounds(Constraints(), [9] * 3, [0] * 3), [True, False, True]
    tokens = [[int(values.argmax()) for values in row[:3]] for row in logits]
    for draft in Draft(tokens), TreeDraft(tokens, [[-1, 0, 1]] * 3):
        judging = Judging(4, draft, bounds, [Tolerance(), Tolerance(3, 9.0), Tolerance()], None, scored)
        library.specdec_judge(team.pointer, address(logits), 3, 4, 37, byref(judging.call))
        scores = [judging._scores[row * 4 : row * 4 + 4].tolist() for row in range(3)]
        assert judging.verdict().accepted == [3] * 3
        assert [all(score < 0 for score in row) for row in scores] == scored and not any(scores[1])


KINDS = (
    {},
    {"tolerance": Tolerance(4, 2.0)},
    {"sampling": Sampling(0.8, top_k=9)},
    {"sampling": Sampling(0.9, rule="rejection")},
    {"beam": Beam(3, nbest=2)},
    {"no_repeat": 2},
)


def decoded(verifier, drafter, requests, tree):
    """Outputs by request and number, decoded together, without and with drafts, which branch under a ``tree``."""
    roles = Roles(drafter, verifier, TopBetaTau(), Planned([3, 0, 4], tree=tree))
    found = speculative_decode(roles, requests, 12, DecodeStats())
    return {(each.index, each.output): each for each in found}


@pytest.mark.parametrize("backend", ["torch", *(pytest.param(dtype, marks=KERNELS) for dtype in DTYPES)])
@pytest.mark.parametrize("drafts", ["none", "chains", "trees"])
def test_outputs_do_not_depend_on_who_wants_scores(drafts, backend):
    """Rows of all kinds in one batch, some of which want scores: against a batch in which all do. Forced tokens count as well."""
    pair, rng, wanting = wide_verifier(), random.Random(backend + drafts), 0
    pair[0].decoder.output_projection.weight.data[EOS] *= 0.5
    model = load(pair)[0] if backend == "torch" else on_kernels(pair, dtype=backend)[0]
    verifier, outputs = ModelVerifier(model), [[rng.randrange(4, WORDS) for _ in range(20)] for _ in range(18)]
    for kinds in ([KINDS[0], KINDS[1], KINDS[5]], KINDS):  # those that one call of the kernels runs, and all
        requests = []
        for index, source in enumerate(sentences(18, seed=4)):
            forced = outputs[index][: rng.choice((0, 0, 1, 5, 30))]
            more = {"min_length": len(forced) + 1, "forced": forced, "seeds": [index], **kinds[index % len(kinds)]}
            requests.append(Request(index, source, len(forced) + rng.randrange(1, 9), **more))
        known = decoded(verifier, NoDrafter(), [replace(each, scores=True) for each in requests if not each.beam], None)
        for (index, _), each in known.items():
            outputs[index] = each.tokens

        def run(wanted, requests=requests):
            drafter = {"none": NoDrafter, "chains": lambda: Knowing(outputs, 0.3), "trees": lambda: Branching(outputs, 0.3)}[
                drafts
            ]()
            asked = [replace(each, scores=want) for each, want in zip(requests, wanted)]
            return decoded(verifier, drafter, asked, Tree(9) if drafts == "trees" else None)

        whole = run([True] * 18)
        for wanted in ([rng.random() < 0.5 for _ in range(18)], [False] * 18):
            found = run(wanted)
            assert found.keys() == whole.keys()
            for key, each in found.items():
                assert replace(each, token_scores=whole[key].token_scores) == whole[key]
                if not (wanted[key[0]] or requests[key[0]].beam):
                    assert each.token_scores is None
                    continue
                tolerance = 1e-9 if backend == "torch" else 0  # PyTorch's products depend on how many results a pass has
                assert each.token_scores == pytest.approx(whole[key].token_scores, abs=tolerance, rel=tolerance)
                assert len(each.token_scores) == len(each.tokens) + 1 > 1
                wanting += 1
    assert wanting > 20


@pytest.fixture
def asked(monkeypatch):
    """Whether requests wanted scores."""
    seen, request = [], engine.Engine.request

    def noted(*arguments, **options):
        made = request(*arguments, **options)
        seen.append(made.scored)
        return made

    monkeypatch.setattr(engine.Engine, "request", noted)
    return seen


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], False),
        (["--alignments"], False),
        (["--sampling", "--num-samples", "2"], False),
        (["--sampling", "--mbr", "3"], False),
        (["--windows", "sentence"], False),
        (["--protect"], False),
        (["--format", "json"], True),
        (["--format", "json", "--windows", "sentence"], True),
        (["--format", "fairseq"], True),
        (["--beam", "2"], True),
    ],
    ids=str,
)
def test_what_specdec_translate_writes_decides(options, wanted, asked, tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("\n".join(LINES) + "\n")
    command = ["--model", DEMO, "--quiet", "--threads", "1", "-i", source, "-o", tmp_path / "output.txt", *options]
    assert translate.main([*map(str, command)]) == 0
    assert asked and set(asked) == {wanted}


@pytest.mark.parametrize(("options", "wanted"), [([], False), (["--min-confidence", "0.99"], True)], ids=str)
def test_confidences_of_files_are_computed_where_they_are_compared(options, wanted, asked, tmp_path, capsys):
    source, output = tmp_path / "source.po", tmp_path / "output.po"
    source.write_text('msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "A dog runs."\nmsgstr ""\n')
    assert translate.main(["--model", DEMO, "--threads", "1", "-o", str(output), str(source), *options]) == 0
    assert set(asked) == {wanted} and ("fuzzy" in output.read_text()) == ("confidence 0." in capsys.readouterr().err) == wanted


def test_python_asks():
    """``scores`` and ``word_scores`` ask, and so does a beam; a glossary compares scores, and returns none."""
    translator = Translator.from_pretrained(DEMO, threads=1, dtype="int8", block_size=4)
    lines, terms = [*LINES, ""], Glossary.of([["dog", "Köter"]])
    plain, scored = translator.translate(lines), translator.translate(lines, scores=True)
    words = translator.translate(lines, word_scores=True)
    for none, each, word in zip(plain, scored, words):
        assert none == replace(each, token_scores=None) == replace(word, token_scores=None, word_scores=None)
        assert none.score is none.confidence is none.token_scores is none.word_scores is each.word_scores is None
        assert len(each.token_scores) == len(each.tokens) + bool(each.text) and each.token_scores == word.token_scores
        assert each.score <= 0 < each.confidence <= 1 and len(word.word_scores) == len(each.text.split())
    for options in {"sampling": True}, {"windows": "sentence"}, {"glossary": terms}, {"alignments": True}:
        without, having = translator.translate(lines, **options), translator.translate(lines, scores=True, **options)
        assert [each.text for each in without] == [each.text for each in having]
        assert all(each.token_scores is None for each in without) and all(each.token_scores is not None for each in having)
    assert "Köter" in translator.translate(["A dog runs."], glossary=terms)[0].text
    for each in translator.translate(lines, beam=2, nbest=2):
        assert all(one.score <= 0 < one.confidence for one in each)


def test_units_have_confidence_where_scores_are_asked_for():
    translator, units = Translator.from_pretrained(DEMO, threads=1), TextFile("<p>A dog runs.</p>", "html", Options()).units
    (plain,), (scored,) = translate_units(translator, units), translate_units(translator, units, scores=True)
    assert plain == replace(scored, confidence=1.0) and 0 < scored.confidence < 1


def test_without_a_verifier_there_are_none(folder):
    translator = Translator.from_pretrained(str(folder), strategy="drafter", threads=1, max_len_b=12)
    assert translator.translate(["a b"])[0].token_scores is None
    with pytest.raises(ValueError, match="scores need a verifier"):
        translator.translate(["a b"], scores=True)


def test_json_of_unverified_drafts_has_no_score(folder, tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("a b\n")
    command = ["--model", folder, "--strategy", "drafter", "--format", "json", "-i", source, "-o", output, "--quiet"]
    assert translate.main([*map(str, command)]) == 0
    assert json.loads(output.read_text())["score"] is None
