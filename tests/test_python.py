"""The Python interface: options per call equal the same settings of a translator, byte for byte; faults name what is wrong."""

import asyncio
import inspect
import re
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from conftest import ROOT, run_python

import specdec_plugins
from specdec_plugins import AsyncTranslator, Translator
from specdec_plugins.fields import OptionError, option_of
from specdec_plugins.options import COUNTS, AllSettings, CallOptions, RequestSettings, TranslateOptions
from specdec_plugins.serving.api.own import TranslateCall
from specdec_plugins.settings import PER_REQUEST, Settings

PAIRS = {name: str(ROOT / "data" / name) for name in ("demo.en-de", "docs.en-fr")}
TEXTS = {name: (ROOT / "data" / f"{name.partition('.')[0]}.txt").read_text(encoding="utf-8").splitlines()[:5] for name in PAIRS}
DEMO, DOCS = PAIRS
SEARCH = {"beam": 4, "lenpen": 0.6, "unkpen": 1.0}
OPTIONS = [
    {"beam": 4},
    {**SEARCH, "nbest": 3},
    {"beam": 3, "min_len": 12, "no_repeat_ngram_size": 2},
    {"max_len_b": 6},
    {"max_len_a": 0.5, "max_len_b": 2},
    {"sampling": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 3, "num_samples": 2},
    {"sampling": True, "mbr": 3},
    {"sampling": True, "nbest": 2},
    {"windows": "sentence"},
    {"windows": 40, "context": 1},
]
DRAFTED = [{"beta": 3, "tau": 1.0}, {"sampling": True, "rule": "rejection", "seed": 2}]
FAIRSEQ = [{"beam": 4}, {**SEARCH, "nbest": 3}, {"beam": 3, "min_len": 12, "no_repeat_ngram_size": 2}, {"max_len_b": 6}]


pytestmark = pytest.mark.usefixtures("loaded_once")


def load(path, **settings):
    return Translator.from_pretrained(path, threads=1, **settings)


def plain(results, drafts=False):
    """All of a result; its drafts only where something depends on them."""
    return [
        (
            each.text,
            each.source_tokens,
            each.tokens,
            each.token_scores,
            each.beam_score,
            each.sample,
            each.cut,
            each.drafter,
            each.steps if drafts else None,
        )
        for each in results
    ]


def flat(results):
    return [each for one in results for each in (one if isinstance(one, list) else [one])]


def compare(translator, lines, options):
    """A call's options give what the same settings give at construction, also between other calls. Returns whether they change
    anything."""
    base = translator.settings
    own, more = Translator(translator.pair, replace(base, **options)), {"scores": base.strategy != "drafter"}
    drafts, other = not own.settings.indifferent, not base.indifferent
    expected, usual = plain(own.translate(lines, **more), drafts), plain(translator.translate(lines, **more), other)
    for _ in range(2):  # with a new session and controller, and with kept ones
        found = translator.translate(lines, **options, **more)
        assert plain(flat(found), drafts) == expected
    assert plain(translator.translate(lines, **more), other) == usual
    several = COUNTS & options.keys()
    assert [isinstance(each, list) and len(each) for each in found] == [several and own.settings.outputs] * len(
        lines
    ) or not several
    fairseq = base.strategy == "fairseq"  # whose scores depend on the batch
    streamed = translator.stream(iter(lines), buffer_size=4 if fairseq else 2, **options, **more)
    assert plain(flat(streamed), drafts) == expected
    if own.settings.drawn == 1 and own.settings.windows is None and not fairseq:
        assert "".join(translator.stream_text(lines[0], **options)) == expected[0][0]
    assert translator.settings == base
    return usual != expected


@pytest.mark.parametrize(
    ("name", "base", "asked"),
    [
        (name, *each)
        for name in PAIRS
        for each in [
            ({}, [*OPTIONS, *DRAFTED]),
            ({"block_size": 3, "dtype": "int8"}, [*OPTIONS[:2], *DRAFTED]),
            ({"sampling": True, "rule": "rejection"}, [{"rule": "coupled"}, {"sampling": False, "rule": "coupled"}]),
            ({"beta": 3, "tau": 1.0}, [{"beta": 1, "tau": None}]),
        ]
    ]
    + [
        (DEMO, {"strategy": "ar"}, OPTIONS),
        (DOCS, {"draft_with": "ngram"}, [OPTIONS[0], *DRAFTED]),
        (DEMO, {"beam": 3, "nbest": 2}, [{"beam": 2}, {"beam": 1, "nbest": 1}]),
        (DEMO, {"strategy": "fairseq"}, FAIRSEQ[:2]),
        (DOCS, {"strategy": "fairseq"}, FAIRSEQ[2:]),
    ],
)
def test_options_of_a_call_equal_settings(name, base, asked):
    if base.get("strategy") == "fairseq":
        pytest.importorskip("fairseq")
    translator = load(PAIRS[name], **base)
    changes = [compare(translator, TEXTS[name][:2], options) for options in asked]
    assert sum(changes) > len(asked) // 2 or asked[0] == {"beta": 1, "tau": None}


def test_options_of_a_call_without_a_verifier(folder):
    """The shipped drafters need one."""
    translator = load(str(folder), strategy="drafter", max_len_b=12)
    for options in {"max_len_b": 5}, {"sampling": True, "seed": 1, "num_samples": 2}, {"windows": "sentence"}:
        compare(translator, ["a b c", "b c", "", "c a b a"], options)


def test_options_of_asynchronous_calls():
    """Shapes and faults are the translator's."""

    async def run():
        served, lines = AsyncTranslator(load(PAIRS["demo.en-de"])), TEXTS["demo.en-de"][:2]
        for options in {"beam": 3, "nbest": 2}, {"sampling": True, "num_samples": 1}, {"beam": 2}:
            expected, found = served.translator.translate(lines, **options), await served.translate(lines, **options)
            assert [isinstance(each, list) for each in found] == [isinstance(each, list) for each in expected]
            assert [each.text for each in flat(found)] == [each.text for each in flat(expected)]
        (alone,) = await served.translate(lines[0], beam=3, nbest=2)
        assert len(alone) == 2
        for options, error, said in FAULTS:
            with pytest.raises(error, match=said):
                await served.translate(lines, **options)
            if "glossary" not in options:
                with pytest.raises(error, match=said):
                    await anext(served.stream(lines[0], **options))
        with pytest.raises(TypeError, match=r"texts\[1\] is None, not a string"):
            await served.translate(["a", None])
        await served.close()

    asyncio.run(run())


FAULTS = [
    ({"beem": 4}, TypeError, "no option is called 'beem'; did you mean beam\\?"),
    ({"temprature": 1.0}, TypeError, "did you mean temperature\\?"),
    ({"xyz": 1}, TypeError, "no option is called 'xyz'$"),
    (
        {"dtype": "int8"},
        OptionError,
        "dtype belongs to the loaded model, and a call cannot change it; pass it to from_pretrained",
    ),
    ({"beam": 0}, OptionError, "beam 0 is less than 1"),
    ({"beam": "4"}, OptionError, "beam '4' is not an int"),
    ({"temperature": 0.5}, OptionError, "temperature requires sampling"),
    ({"too_long": "cut"}, OptionError, "too_long 'cut' is unknown; available: error, truncate, skip"),
    ({"alignments": 1}, OptionError, "alignments 1 is not a bool"),
    ({"glossary": {"dog": "Hund"}}, OptionError, "glossary {'dog': 'Hund'} is not a Glossary"),
    ({"batch_size": "all", "first": -1}, OptionError, "batch_size 'all' is unknown; available: a number, auto; first -1 is less"),
]


def test_faults_of_calls():
    translator, lines = load(PAIRS["demo.en-de"]), TEXTS["demo.en-de"][:2]
    for options, error, said in FAULTS:
        for method in translator.translate, translator.stream:  # at once, not when the first result is asked for
            with pytest.raises(error, match=said):
                method(lines, **options)
        if options.keys().isdisjoint(["alignments", "glossary", "batch_size"]):
            with pytest.raises(error, match=said):
                translator.stream_text(lines[0], **options)
    with pytest.raises(TypeError, match="no option is called 'alignments'"):
        translator.stream_text(lines[0], alignments=True)
    with pytest.raises(OptionError, match="buffer_size 0 is not a number from 1"):
        translator.stream(lines, 0)
    for options, said in (
        ({"hints": ["a"]}, "2 sentences, but 1 hints"),
        ({"target_lang": ["de"]}, "2 sentences, but 1 languages"),
        ({"beginnings": []}, "2 sentences, but 0 beginnings"),
        ({"protected": [[]]}, "but 1 lists of protected spans"),
    ):
        with pytest.raises(ValueError, match=said):
            translator.translate(lines, **options)


@pytest.mark.parametrize("wrong", [None, 3, float("nan"), b"a"])
def test_what_is_no_string_is_named_by_its_index(wrong):
    translator, lines = load(PAIRS["demo.en-de"]), TEXTS["demo.en-de"]
    said = rf"sentences\[4\] is {re.escape(repr(wrong))}, not a string"
    for method in translator.translate, translator.encode, translator, translator.encode_target:
        with pytest.raises(TypeError, match=said):
            method([*lines[:4], wrong])
    found = translator.stream(iter([*lines[:4], wrong]), buffer_size=3)
    assert [next(found).text for _ in range(3)] == [each.text for each in translator.translate(lines[:3])]
    with pytest.raises(TypeError, match=said):
        next(found)
    for name in "hints", "beginnings":
        with pytest.raises(TypeError, match=rf"{name}\[1\] is {re.escape(repr(wrong))}"):
            translator.translate(lines[:2], **{name: ["", wrong]})
    with pytest.raises(TypeError, match=f"sentence is {re.escape(repr(wrong))}, not a string"):
        translator.stream_text(wrong)
    if not isinstance(wrong, bytes):
        with pytest.raises(TypeError, match=f"translate takes a list of strings, not {re.escape(repr(wrong))}"):
            translator.translate(wrong)


def test_several_sentences_are_any_iterable_but_one_string():
    translator, lines = load(PAIRS["demo.en-de"]), TEXTS["demo.en-de"][:3]
    expected = [each.text for each in translator.translate(lines)]
    assert [each.text for each in translator.translate(line for line in lines)] == expected
    assert translator.translate([]) == [] and list(translator.stream([])) == []
    for method in translator.translate, translator.stream, translator.encode, translator.encode_target:
        with pytest.raises(TypeError, match=f"{method.__name__} takes a list of strings, not one string"):
            method("a dog")
    for name in "hints", "beginnings", "protected":
        with pytest.raises(TypeError, match=f"{name} takes a list, not one string"):
            translator.translate(lines, **{name: "abc"})


def test_as_a_pipeline_with_several_outputs():
    """As transformers' pipelines return them."""
    translator, lines = load(PAIRS["demo.en-de"]), TEXTS["demo.en-de"][:2]
    expected = [[{"translation_text": one.text} for one in each] for each in translator.translate(lines, beam=3, nbest=2)]
    assert translator(lines, beam=3, nbest=2) == expected
    assert translator(lines[0], beam=3, nbest=2) == expected[0]
    assert translator(lines[0], nbest=1) == translator(lines[0]) == [{"translation_text": translator.translate(lines)[0].text}]


def test_a_translators_own_settings_give_a_flat_list():
    lines, settings = TEXTS["demo.en-de"][:2], {"beam": 3, "nbest": 2}
    own = load(PAIRS["demo.en-de"], **settings)
    assert plain(own.translate(lines)) == plain(flat(load(PAIRS["demo.en-de"]).translate(lines, **settings)))
    assert [len(each) for each in own.translate(lines, nbest=1)] == [1, 1]
    assert [len(each) for each in own.translate(lines, nbest=3)] == [3, 3]


def test_names_and_types_are_those_that_are_checked():
    """What editors show of each method, and what the dataclasses accept; the server's options are the same."""
    settings, call = get_type_hints(Settings), get_type_hints(CallOptions)
    assert get_type_hints(AllSettings) == settings
    requests = {name: kind for name, kind in settings.items() if name in PER_REQUEST - COUNTS}
    assert get_type_hints(RequestSettings) == requests
    assert get_type_hints(TranslateOptions) == requests | call
    assert PER_REQUEST.issubset(settings) and not settings.keys() & call.keys()
    served = {*TranslateCall.model_fields} - {*call, "text", "source", "target", "model", "stream", "trace"}
    assert served == PER_REQUEST


def test_help_lists_the_options_with_their_meanings():
    for method in Translator.from_pretrained, AsyncTranslator.from_pretrained:
        text = " ".join(inspect.getdoc(method).split())
        for each in fields(Settings):
            assert f"{each.name}: " in text and option_of(each).help.split(" --")[0] in text
        assert "--" not in text and "min_len: int | None = None minimum number of tokens" in text
    for method in Translator.translate, AsyncTranslator.translate:
        text = " ".join(inspect.getdoc(method).split())
        for each in fields(CallOptions):
            assert option_of(each).help and f"{each.name}: " in text and option_of(each).help in text
        assert all(f" {name}: " in text for name in PER_REQUEST) and "dtype" not in text


def test_settings_that_do_not_exist(tmp_path):
    """They are refused before anything is loaded."""
    for method in Translator.from_pretrained, AsyncTranslator.from_pretrained:
        with pytest.raises(TypeError, match=r"no setting is called 'blocksize'; did you mean block_size\?"):
            method(str(tmp_path), blocksize=4)
        with pytest.raises(TypeError, match="batch_size is an option of translate, not of from_pretrained"):
            method(str(tmp_path), batch_size=4)
        with pytest.raises(OptionError, match="beam 0 is less than 1"):
            method(str(tmp_path), beam=0)


def test_dir_shows_the_interface():
    assert dir(specdec_plugins) == specdec_plugins.__all__ == ["AsyncTranslator", "Translator", "__version__"]
    code = "import specdec_plugins, sys; dir(specdec_plugins); print('torch' in sys.modules)\n"
    code += "from specdec_plugins import *; print(Translator.__name__, AsyncTranslator.__name__, __version__)"
    assert run_python("-c", code).stdout == f"False\nTranslator AsyncTranslator {specdec_plugins.__version__}\n"
    with pytest.raises(AttributeError, match="no attribute 'translator_'"):
        specdec_plugins.translator_  # noqa: B018
