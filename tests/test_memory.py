"""The translation memory of a datastore: against a naive search, in its file, and as what drafter `retrieval` follows."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from support import EOS, SYMBOLS, commit
from test_drafters import command, prefix_of, random_text

from specdec_plugins.commands import datastore
from specdec_plugins.decoding import memory
from specdec_plugins.decoding.datastore import Datastore
from specdec_plugins.decoding.drafters import retrieval
from specdec_plugins.decoding.memory import Memory
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import uniform

DEMO = ROOT / "data" / "demo.en-de"


def similarity(one, other, sources):
    """Of two sources, by the definition."""
    weight = {}
    for token in {*one, *other}:
        weight[token] = math.log((len(sources) + 1) / max(1, sum(token in source for source in sources)))
    total = sum(weight[token] for token in set(one)) + sum(weight[token] for token in set(other))
    return 2 * sum(weight[token] for token in {*one} & {*other}) / total if total else 0.0


def random_sources(rng, count, words):
    return [random_text(rng, rng.randrange(9), words) for _ in range(count)]


def test_the_nearest_source_is_that_of_the_naive_search():
    rng, kinds = random.Random(0), set()
    for words in (3, 12, 200):
        sources = random_sources(rng, 60, words)
        store = Memory.of(sources, [1] * len(sources), words + 4)
        for query in [*random_sources(rng, 30, words), *sources[:5], []]:
            found = store.nearest(query)
            every = [similarity(query, source, sources) for source in sources]
            kinds.add(found is None)
            if found is None:
                assert max(every) == 0
                continue
            best = [number for number, each in enumerate(every) if each > max(every) - 1e-6]
            assert found[0] in best and found[1] == pytest.approx(max(every), abs=1e-5)
            if len(query) > 3 and query in sources:
                assert found[1] == pytest.approx(1, abs=1e-6)
    assert kinds == {True, False}


def test_frequent_tokens_cost_no_more_than_some_sentences(monkeypatch):
    """Of 1,000 sources with the token 5 few are looked at; the similarity that is told is of all tokens nevertheless."""
    monkeypatch.setattr(memory, "LOOKED_AT", 8)
    sources = [[5, 6 + number % 250, 4] for number in range(1000)]  # 4 sources have each of 250 tokens
    store = Memory.of(sources, [1] * 1000, 300)
    assert store.nearest([5, 4]) is None
    looked = []
    having = Memory._having
    monkeypatch.setattr(Memory, "_having", lambda self, token: looked.append(token) or having(self, token))
    assert store.nearest([5, 20]) == (14, pytest.approx(similarity([5, 20], sources[14], sources), abs=1e-6))
    assert looked == [20, 5]
    assert store.nearest([5, 20, 21])[0] == 14  # both are as near: the first


def test_arrays_that_do_not_belong_together_are_found():
    """Every damage that would lead to a wrong place or an error is."""
    sources, targets = [[5, 6], [], [6, 7, 7]], [[9], [10, 11], []]
    store = Datastore.of_pairs(zip(sources, targets), EOS, 9)
    whole = store.memory
    assert whole is not None and whole.fits(len(store), 9)
    assert [store.after(*whole.target(number)) for number in range(3)] == [(9, EOS), (10, 11, EOS), (EOS,)]
    assert [whole._having(token).tolist() for token in range(9)] == [[], [], [], [], [], [0], [0, 2], [2], []]
    damages = [
        {"begins": whole.begins + 1},
        {"begins": whole.begins[::-1]},
        {"begins": whole.begins[:-1]},
        {"begins": whole.begins[:1]},
        {"sentences": whole.sentences + 1},
        {"sentences": whole.sentences - 1},
        {"sentences": whole.sentences[:-1]},
        {"first": whole.first[::-1]},
        {"first": whole.first[:-1]},
        {"first": whole.first + 1},
        {"totals": whole.totals[:-1]},
        {"totals": whole.totals.astype(np.float64)},
        {"sentences": whole.sentences[None]},
    ]
    assert [replace(whole, **damage).fits(len(store), 9) for damage in damages] == [False] * len(damages)
    assert not whole.fits(len(store) + 1, 9) and not whole.fits(len(store), 10)


def test_a_file_has_the_memory_of_its_source_dictionary(tmp_path):
    path = str(tmp_path / "store")
    store = Datastore.of_pairs([([5, 6], [7]), ([6], [8, 9])], EOS, 9)
    store.save(path, "target", "source")
    again = Datastore.open(path, "target", 40, "source", 9)
    assert again.memory.nearest([5, 6]) == store.memory.nearest([5, 6]) == (0, pytest.approx(1))
    for name, values in store.memory.tensors().items():
        assert np.array_equal(getattr(again.memory, name), values)
    with pytest.raises(ValueError, match="store: made with another source dictionary than the model's"):
        Datastore.open(path, "target", 40, "other", 9)
    with pytest.raises(ValueError, match="store: damaged, its translation memory does not fit its text"):
        Datastore.open(path, "target", 40, "source", 10)
    Datastore.of([[7], [8, 9]], EOS).save(path, "target")  # as before there were memories
    assert Datastore.open(path, "target", 40, "source", 9).memory is None


def test_a_near_sentence_is_followed_and_a_far_one_is_not():
    """From the first token on; while the output has left its path, the longest suffix counts; then it goes on."""
    near, far = [20, 21, 22, 23, 24], [30, 31]
    pairs = [(near, [9, 10, 11, 12, 13]), (far, [14, 15, 14, 40, 41, 42]), ([50], [60])]
    drafter = retrieval.Retrieval(Datastore.of_pairs(pairs, EOS, 90), EOS)
    sources = [[*near[:4], 25, EOS], [30, *range(70, 80), EOS], [80, EOS]]
    state = drafter.start(3, None)
    drafter.admit(state, Source(sources, SYMBOLS))
    assert [row is None for row in state.rows] == [False, True, True]
    prefix = prefix_of([[], [], []], sources=sources)

    def drafts(*tokens):
        commit(prefix, [list(each) for each in tokens])
        return drafter.propose(state, prefix, uniform(3, 3)).tokens

    assert drafts((9,), (60,), (60,)) == [[10, 11, 12], [EOS], [EOS]]
    assert drafts((10, 40), (), ()) == [[41, 42, EOS], [EOS], [EOS]]  # 40 is not the memory's
    assert drafts((12,), (), ()) == [[13, EOS], [EOS], [EOS]]  # there they meet
    assert drafts((77,), (), ())[0] == [EOS]  # which is nowhere: the memory is what is left


def test_the_command_takes_sources(capfd, tmp_path):
    """The translation of a near sentence is drafted, and the output stays the verifier's."""
    lines = {
        "in": "A man is playing a guitar on the street .\n",
        "near": "A man is playing a guitar on the stage .\n\nA cat .\n",
        "more": "A dog\n",
        "far": "Zwei\n",
    }
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    usual = ["--model", DEMO, "--input", tmp_path / "in", "--dtype", "int8", "--quiet"]
    _, expected, _ = command(capfd, *usual, "--strategy", "ar")
    (tmp_path / "target").write_text(f"{expected.strip()}\n\nEine Katze .\n")
    make = ["--model", DEMO, "--output", tmp_path / "store"]
    status, out, err = command(capfd, *make, tmp_path / "target", "--source", tmp_path / "near", of=datastore)
    assert status == 0 and out.endswith("tokens, of 2 sentences with sources\n"), err
    drafting = ["--draft-with", "retrieval", "--datastore", tmp_path / "store", "--block-size", 20, "--format", "text"]
    found = command(capfd, *[each for each in usual if each != "--quiet"], *drafting)
    assert found[:2] == (0, expected) and "100% of the drafted tokens accepted" in found[2]
    status, out, err = command(capfd, *make, tmp_path / "target", "--source", tmp_path / "more", of=datastore)
    assert status == 1 and f"{tmp_path / 'more'} has only 1 lines, and {tmp_path / 'target'} has more" in err
    status, out, err = command(capfd, *make, tmp_path / "far", tmp_path / "far", "--source", tmp_path / "near", of=datastore)
    assert status == 2 and "--source is given 1 times for 2 texts" in err and err.count("\n") == 1
