"""Concurrent calls: each result is the translator's, whatever runs beside it; cancellation, deadlines, faults, closing."""

import asyncio
import functools
import gc
import itertools
import random
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import pytest
from conftest import ROOT, once

from specdec_plugins import AsyncTranslator, Translator
from specdec_plugins.decoding import assembly
from specdec_plugins.decoding.compiled import library
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.fields import OptionError
from specdec_plugins.formats.folder import load_folder
from specdec_plugins.serving import garbage
from specdec_plugins.serving.calls import Call, Calls
from specdec_plugins.serving.guest import Cancelled, Guest
from specdec_plugins.serving.texts import translate_texts
from specdec_plugins.serving.threads import EngineThread
from specdec_plugins.serving.translator import Closed, QueueFull, settings_for
from specdec_plugins.settings import Settings

PAIR = str(ROOT / "data" / "demo.en-de")
LINES = (ROOT / "data" / "demo.txt").read_text(encoding="utf-8").splitlines()
OPTIONS: list[dict] = [
    {},
    {"scores": True},
    {"beam": 3, "nbest": 2, "lenpen": 0.5},
    {"sampling": True, "seed": 5, "num_samples": 2, "scores": True},
    {"sampling": True, "rule": "rejection", "temperature": 0.7, "seed": 3, "scores": True},
    {"beta": 3, "tau": 1.0},
    {"windows": "sentence", "no_repeat_ngram_size": 2, "scores": True},
    {"sampling": True, "mbr": 3},
    {"max_len_b": 5, "too_long": "truncate"},
]


def asynchronous(test):
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 1000))  # a machine under load takes long

    return run


def load(threads=2, **options):
    """Two threads run two sessions."""
    return AsyncTranslator.from_pretrained(PAIR, threads=threads, **options)


def expected(texts, options, **base):
    """The translator's own results."""
    settings = settings_for(Settings(threads=1, **base), options)[0]
    rest = {name: value for name, value in options.items() if not hasattr(settings, name)}
    return translator(settings).translate(texts, **rest)


@functools.cache
def pair():
    return load_folder(PAIR)


@functools.cache
def translator(settings, load=once(assembly.load)):  # noqa: B008
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "load", load)  # models are packed once for all settings
        return Translator(pair(), settings)


def plain(results):
    """What may not differ: everything but the drafts, which nothing depends on. A call that asks for several gets lists."""
    results = [one for each in results for one in (each if isinstance(each, list) else [each])]
    scores = [each.token_scores and [round(score, 4) for score in each.token_scores] for each in results]
    return [(each.text, each.tokens, own, each.sample, each.cut) for each, own in zip(results, scores)]


async def finished(served):
    """The sessions, once nothing is in flight, and the engine's threads have done all that this led to."""
    while served.line.guests or any(desk.owners for desk in served.line.desks):
        await asyncio.sleep(0.01)
    for desk in served.line.desks:
        between = threading.Event()
        desk.thread.post(between.set)
        await asyncio.to_thread(between.wait)
    return [desk.session for desk in served.line.desks]


@asynchronous
async def test_calls_of_all_kinds_side_by_side():
    served = load()
    texts = [[LINES[0] + " " + LINES[1]], LINES[2:4]]
    asked = [*itertools.product(texts, OPTIONS)]
    found = await asyncio.gather(*(served.translate(lines, **options) for lines, options in asked))
    for (lines, options), results in zip(asked, found):
        assert plain(results) == plain(expected(lines, options)), options
    assert served.stats.sentences and served.stats.drafted
    await served.close()


@asynchronous
async def test_streams_concatenate_to_the_translation():
    served = load()
    text = " ".join(LINES[:4])
    for options in ({}, {"windows": "sentence"}, {"sampling": True, "seed": 1}, {"beam": 3}):
        beside = asyncio.gather(*(served.translate(LINES[n : n + 3], windows="sentence") for n in range(5)))
        *pieces, result = [piece async for piece in served.stream(text, **options)]
        assert "".join(pieces) == result.text == expected([text], options)[0].text
        assert len(pieces) > 2
        found = [piece async for piece in served.stream(text, passes=True, **options)]
        assert "".join(piece for piece in found[:-1] if isinstance(piece, str)) == result.text
        steps = [step for piece in found[:-1] if not isinstance(piece, str) for step in piece]
        assert len(steps) == found[-1].iterations and (options.get("windows") or steps == found[-1].steps)
        assert "beam" in options or not isinstance(found[0], str)
        await beside
    assert [piece async for piece in served.stream("")] == expected([""], {})
    with pytest.raises(ValueError, match="one output"):
        await anext(served.stream(text, beam=3, nbest=2))
    await served.close()


@asynchronous
async def test_who_leaves_frees_its_rows_and_disturbs_nobody():
    served = load()
    long = " ".join(LINES * 3)
    calls = [asyncio.ensure_future(served.translate([long] * 8, windows="sentence", beam=4)) for _ in range(4)]
    stream = served.stream(long, windows="sentence")
    await anext(stream)
    await asyncio.sleep(0.05)
    for call in calls[1:]:
        call.cancel()
    await stream.aclose()
    with pytest.raises(TimeoutError):
        await served.translate([long] * 50, windows="sentence", timeout=0.02)
    assert plain(await served.translate(LINES[:2])) == plain(expected(LINES[:2], {}))
    calls[0].cancel()
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*calls, return_exceptions=True))
    assert all(session.idle for session in await finished(served))
    assert not served.line.guests and not served.pending
    await served.close()


@asynchronous
async def test_a_fault_touches_nobody_else(monkeypatch):
    served = load(threads=1)
    beside = asyncio.ensure_future(served.translate(LINES[:6], windows="sentence"))
    for options, error, message in (
        ({"beam": 65}, ValueError, "65 live hypotheses need as many rows"),
        ({"beam": 0}, OptionError, "beam 0 is less than 1"),
        ({"beam": "4"}, OptionError, "beam '4' is not an int"),
        ({"dtype": "int8", "beam": 2}, OptionError, "dtype belongs to the loaded model"),
        ({"target_lang": "fr"}, ValueError, "target language is de"),
        ({"max_lenb": 3}, TypeError, "max_lenb"),
    ):
        with pytest.raises(error, match=message):
            await served.translate(LINES[0], **options)
    with pytest.raises(ValueError, match="the models read at most"):
        await served.translate([LINES[0], "dog " * 3000])
    assert plain(await beside) == plain(expected(LINES[:6], {"windows": "sentence"}))

    # A pass that fails takes its rows with it; those that wait, and all that come later, do not notice.
    (session,) = await finished(served)
    step, raised = session.step, []

    def failing(*how):
        if session.prefix.requests and not raised:
            raised.append(1)
            raise ValueError("broken")
        return step(*how)

    monkeypatch.setattr(session, "step", failing)
    first, *rest = await asyncio.gather(*(served.translate(LINES * 2) for _ in range(2)), return_exceptions=True)
    outcomes = {type(each) for each in (first, *rest)}
    assert outcomes <= {RuntimeError, list} and RuntimeError in outcomes
    assert served.line.desks[0].session is not session
    assert plain(await served.translate(LINES[:2])) == plain(expected(LINES[:2], {}))
    await served.close()


@asynchronous
async def test_a_refused_request_does_not_keep_the_next_one_waiting():
    """Both wait when the session next takes requests."""
    served, held = load(threads=1), threading.Event()
    served.threads[0].post(held.wait)
    calls = []
    for count, options in enumerate(({"beam": 65}, {}), 1):
        calls.append(asyncio.ensure_future(served.translate(LINES[0], timeout=600, **options)))
        while len(served.line.guests) < count:
            await asyncio.sleep(0.01)
    held.set()
    refused, found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, ValueError) and plain(found) == plain(expected(LINES[:1], {}))
    await served.close()


@pytest.mark.skipif(not library(), reason="the kernels were not compiled for this machine")
@asynchronous
async def test_two_sessions_run_passes_at_the_same_time(monkeypatch):
    """And share the threads; results are the translator's own."""
    served, texts, both = load(), LINES * 6, threading.Barrier(2, timeout=600)
    for session in await finished(served):
        met = []

        def step(*how, run=session.step, met=met):
            if not met:
                met.append(both.wait())
            return run(*how)

        monkeypatch.setattr(session, "step", step)
    assert plain(await served.translate(texts)) == plain(expected(texts, {}))
    engine, found = served.translator.engine, []
    engine.join(2)
    other = threading.Thread(target=lambda: found.append(engine.kernels.members))
    other.start()
    other.join()
    assert (engine.kernels.members, *found) == (1, 2)
    assert plain(served.translator.translate(texts)) == plain(expected(texts, {}))
    await served.close()


@asynchronous
async def test_a_search_drafts_nothing_where_others_are_greedy():
    """Alone and beside them; so nobody learns from its drafts, which fail more often."""
    served = load()
    for session in await finished(served):
        session.controller.inner = FixedLength(4)  # the usual one drafts where that pays on this machine
    assert plain(await served.translate(LINES, beam=5)) == plain(expected(LINES, {"beam": 5}))
    assert not served.stats.drafted and served.stats.iterations
    both = await asyncio.gather(served.translate(LINES[:2]), served.translate(LINES[:1], beam=2))
    assert served.stats.drafted and not any(each.drafted for each in both[1])
    await served.close()
    served = load(beam=2)
    await served.translate(LINES * 4)
    assert any(session.controller.inner.classes for session in await finished(served))
    await served.close()


@asynchronous
async def test_a_search_may_have_fewer_outputs_than_asked_for():
    """Where its beginning fills the limit, it has one; the call ends with what there is."""
    served, how = load(), {"beam": 3, "nbest": 3, "beginnings": ["Ein Mann " * 700]}
    (found,) = await served.translate(LINES[:1], timeout=600, **how)
    assert plain(found) == plain(expected(LINES[:1], how))
    assert [bool(each.text) for each in found] == [each.confidence > 0 for each in found] == [True, False, False]
    assert not any(desk.owners or desk.unfinished for desk in served.line.desks)
    await served.close()


@asynchronous
async def test_a_full_queue_and_closing():
    served = AsyncTranslator(Translator.from_pretrained(PAIR, threads=1), rows=4, queue=len(LINES))
    first = asyncio.ensure_future(served.translate(LINES))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match=r"try again in \d+ s") as full:
        await served.translate(LINES[0])
    assert full.value.retry_after >= 1
    with pytest.raises(ValueError, match="do not fit in a queue"):
        await served.translate([*LINES, LINES[0]])
    closing = asyncio.ensure_future(served.close())
    await asyncio.sleep(0)
    with pytest.raises(Closed):
        await served.translate(LINES[0])
    await closing
    assert plain(await first) == plain(expected(LINES, {}))
    served.translator.settings = Settings(strategy="fairseq")
    with pytest.raises(OptionError, match="fairseq cannot share a batch"):
        AsyncTranslator(served.translator)


@asynchronous
async def test_models_take_turns(monkeypatch):
    """One thread runs the passes of all models; a busy model does not hold up another, and results are the translators' own."""
    thread, both, order = EngineThread(), {}, []
    stopped, go = threading.Event(), threading.Event()
    for name, folder in ("busy", PAIR), ("other", str(ROOT / "data" / "docs.en-fr")):
        both[name] = AsyncTranslator(Translator.from_pretrained(folder, threads=1), rows=8, threads=[thread])
        (session,) = await finished(both[name])

        def step(*how, name=name, run=session.step):
            order.append((name, both["other"].line.desks[0].session.idle, threading.current_thread().name))
            if len(order) == 1:
                stopped.set()
                assert go.wait(600)
            return run(*how)

        monkeypatch.setattr(session, "step", step)
    many = asyncio.ensure_future(both["busy"].translate(LINES * 6))
    await asyncio.to_thread(stopped.wait)
    one = asyncio.ensure_future(both["other"].translate("The file does not exist."))
    while thread._mail.empty():
        await asyncio.sleep(0.001)
    go.set()
    assert plain(await many) == plain(expected(LINES * 6, {}))
    assert plain(await one) == plain(both["other"].translator.translate(["The file does not exist."]))
    names = [name for name, *_ in order]
    assert {where for *_, where in order} == {"engine"}
    assert "other" in names and names[-1] == "busy"
    assert all(idle for (first, *_), (second, idle, _) in itertools.pairwise(order) if first == second == "busy")
    for served in both.values():
        await served.close()
    thread.close()


@asynchronous
async def test_a_model_that_nobody_uses_any_more_is_freed():
    """Its thread lives on for others."""
    thread = EngineThread()
    served = AsyncTranslator(Translator.from_pretrained(PAIR, threads=1), threads=[thread])
    first = asyncio.ensure_future(served.translate(LINES))
    await asyncio.sleep(0)
    gone = weakref.ref(served.line)
    del served
    assert plain(await first) == plain(expected(LINES, {}))
    del first
    while gone() is not None:
        gc.collect()
        await asyncio.sleep(0.01)
        thread.post(int)
    thread.close()


@asynchronous
async def test_jobs_do_not_hold_up_passes():
    """Alignments are jobs between passes; callers may post them faster than they are done."""
    served, ends = load(), threading.Event()

    def again():
        if not ends.is_set():
            served.threads[0].post(again)

    served.threads[0].post(again)
    assert plain(await served.translate(LINES[:2])) == plain(expected(LINES[:2], {}))
    ends.set()
    await served.close()


@pytest.mark.long
@asynchronous
async def test_hundreds_of_calls_a_tenth_cancelled():
    served, choose = load(), random.Random(1)
    calls = []
    for number in range(400):
        lines, options = choose.choices(LINES, k=choose.randrange(1, 5)), choose.choice(OPTIONS)
        calls.append((lines, options, asyncio.ensure_future(served.translate(lines, **options)), number % 10 == 0))
    began = time.monotonic()
    for *_, call, leaves in calls:
        if leaves:
            await asyncio.sleep(choose.random() / 20)
            call.cancel()
    for lines, options, call, leaves in calls:
        if not leaves or not call.cancelled():
            try:
                found = await call
            except asyncio.CancelledError:
                assert leaves
                continue
            assert plain(found) == plain(expected(lines, options)), options
    print(f"{time.monotonic() - began:.1f} s")
    assert all(session.idle for session in await finished(served))
    await served.close()


@asynchronous
async def test_alignments_are_read_by_the_engines_thread():
    """A pass of another thread beside the session's would break both."""
    served, threads = load(), set()
    verifier = served.translator.engine.roles.verifier
    read = verifier.model.read
    verifier.model.read = lambda *given: threads.add(threading.current_thread().name) or read(*given)
    asked = {"alignments": True, "word_scores": True}
    found = await asyncio.gather(
        *(served.translate(LINES[n : n + 4], **asked) for n in range(4)), served.translate(LINES, beam=2)
    )
    assert [each.alignment for each in found[1]] == [each.alignment for each in expected(LINES[1:5], asked)]
    assert found[1][0].alignment and threads == {"engine"}
    await served.close()


@asynchronous
async def test_long_work_on_text_gives_way_and_ends_when_cancelled(monkeypatch):
    served, times, give_way = load(), [], Guest.give_way
    monkeypatch.setattr(Guest, "give_way", lambda guest: (times.append(guest), give_way(guest)))
    await served.translate(LINES[:5])
    assert len(times) >= 10  # each sentence that is read, and each that is written
    await served.close()
    call, had = Call(Calls(asyncio.get_running_loop())), list[int]()
    guest = Guest(served.line, call)

    def work():
        asyncio.get_running_loop().call_soon(had.append, 1)
        while not had:
            give_way(guest)
        guest.cancelled = True
        give_way(guest)

    call.start(work)
    with pytest.raises(Cancelled):
        await call.future
    assert had and call.ended


def test_large_calls_leave_no_cyclic_garbage():
    """Full collections would hold up all requests, and memory would wait for them."""

    def broken(translator):
        kept = [[number] for number in range(1000)]
        raise ValueError(len(kept))

    async def calls():
        served = load()
        work = partial(translate_texts, texts=["*A dog* runs.\n\n" * 200], form="markdown")
        await served.run(work, served.translator.settings, ["A dog runs." * 200])
        gc.collect()
        gc.disable()
        try:
            await served.run(work, served.translator.settings, ["A dog runs." * 200])
            with suppress(ValueError):
                await served.run(broken, served.translator.settings, ["A dog runs." * 200])
            await asyncio.sleep(0.05)
            return gc.collect()
        finally:
            gc.enable()
            await served.close()

    assert asyncio.run(calls()) < 500  # a Markdown file of as many paragraphs has 2,000 spans, marks and tokens


def test_collections_wait_for_large_calls(monkeypatch):
    collected, busy, threshold = [], [True] * 3, gc.get_threshold()
    monkeypatch.setattr(garbage, "LOOK", 0.001)
    monkeypatch.setattr(garbage, "OFTEN", 0.0)
    try:
        kept = garbage.Garbage()
        assert gc.get_threshold()[2] == garbage.NEVER and gc.get_freeze_count() > 0
        kept.thaw()
        assert gc.get_freeze_count() == 0
        monkeypatch.setattr(gc, "collect", lambda: collected.append(len(busy)))

        async def some():
            collecting = asyncio.ensure_future(kept.collect(lambda: bool(busy) and busy.pop()))
            while len(collected) < 2:
                await asyncio.sleep(0.001)
            collecting.cancel()

        asyncio.run(some())
        assert set(collected) == {0} and kept.frozen
    finally:
        gc.freeze()  # as conftest.py has it
        gc.set_threshold(*threshold)
