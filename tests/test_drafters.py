"""Drafters without weights: each against a naive search, and all of them against the verifier alone."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT, make_verifier
from reference import greedy, greedy_all
from support import EOS, SHAPES, SYMBOLS, WORDS, Lengths, commit, load, make_tilt, outputs_of, sentences, tilted_verifier
from test_kernels import on_kernels, wide_verifier

from specdec_plugins.commands import datastore, translate
from specdec_plugins.decoding import compiled, drafters
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.datastore import CONTEXT, Datastore, sorted_places
from specdec_plugins.decoding.drafters import PairFacts, lookahead, ngram, previous, recycling, retrieval
from specdec_plugins.decoding.drafters.ngram import RECENT, Suffixes
from specdec_plugins.decoding.loop import Session, speculative_decode
from specdec_plugins.decoding.options import Sampling, Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.trees import path_to
from specdec_plugins.decoding.values import Draft, Plan, Verdict, uniform
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.settings import UNTRAINED

NAMES = ["lookahead", "memory", "ngram", "previous", "recycling", "retrieval"]  # memory: retrieval with sources
DEMO = ROOT / "data" / "demo.en-de"
COPIES = [*range(4), *range(5, WORDS + 4), -1]  # the target has every token but the last, under another number


def test_the_options_know_the_drafters_without_weights():
    assert sorted(UNTRAINED) == [name for name in drafters.built_in() if hasattr(drafters.find(name), "for_pair")]


def random_text(rng, size, words):
    return [rng.randrange(4, 4 + words) for _ in range(size)]


def prefix_of(outputs, hints=None, sources=None, limit=500):
    """A prefix whose rows have said ``outputs``."""
    prefix = Prefix()
    hints, sources = hints or [()] * len(outputs), sources or [[EOS]] * len(outputs)
    prefix.admit([Request(i, source, limit, hint=hint) for i, (source, hint) in enumerate(zip(sources, hints))])
    commit(prefix, outputs)
    return prefix


def common_suffix(one, other):
    return next((n for n, (a, b) in enumerate(zip(reversed(one), reversed(other))) if a != b), min(len(one), len(other)))


# ---- suffixes of the output


def naive_ngram(source, output, length):
    """What follows the longest earlier occurrence of a suffix, the last of several; it may begin where source or output do."""
    text = [None, *(COPIES[token] for token in source), None, *output]
    places = [(common_suffix(text[:place], text), place) for place in range(1, len(text))]
    best, place = max(places)
    draft = text[place : place + length] if best else []
    return draft[: next((n for n, token in enumerate(draft) if token is None or token < 0), length)]


def test_ngram_is_the_naive_search():
    """Drafts of outputs that grow by any number of tokens, with few words, so that much occurs often."""
    rng, lengths, drafter = random.Random(0), set(), ngram.NGram(COPIES)
    for trial in range(60):
        sources = [[*random_text(rng, rng.randrange(12), rng.choice([2, 5, WORDS])), EOS] for _ in range(3)]
        state, outputs = drafter.start(3, None), [[] for _ in sources]
        drafter.admit(state, Source(sources, SYMBOLS))
        for _ in range(8):
            wanted = [rng.randrange(7) for _ in sources]
            drafts = drafter.propose(state, prefix_of(outputs), Plan(wanted)).tokens
            assert drafts == [naive_ngram(*row) for row in zip(sources, outputs, wanted)], trial
            lengths |= set(map(len, drafts))
            outputs = [output + random_text(rng, rng.randrange(4), 4) for output in outputs]
    assert lengths == set(range(7))


def test_ngram_on_hand_made_texts():
    """Token 8 of the source is 9 in the target; the source's last token is none of the target's, and ends a draft."""
    drafter = ngram.NGram(COPIES)
    state = drafter.start(1, None)
    drafter.admit(state, Source([[8, 9, WORDS + 3, 10, EOS]], SYMBOLS))
    assert drafter.propose(state, prefix_of([[]]), uniform(1, 9)).tokens == [[9, 10]]
    assert drafter.propose(state, prefix_of([[9]]), uniform(1, 9)).tokens == [[10]]
    assert drafter.propose(state, prefix_of([[9, 11]]), uniform(1, 9)).tokens == [[EOS]]
    # A frequent token costs no more than some occurrences.
    text = Suffixes([5] * 1000, growing=True)
    for _ in range(3 * RECENT):
        text.say(5)
        assert len(text.lengths) <= RECENT


@pytest.fixture
def sure(monkeypatch):
    """Hints are followed everywhere, whatever other rows have said."""
    monkeypatch.setattr(previous, "SURE", 0.0)


@pytest.mark.usefixtures("sure")
@pytest.mark.parametrize(
    "output, draft",
    [
        ([], "abc,d"),
        ("a", "bc,de"),
        ("ax", "c,de"),  # another token stands for b
        ("axb", "c,de"),  # no: it was inserted
        ("ac", ",de"),  # b is missing
        ("axy", ",de"),
        ("abc,d", "e,fg"),
        ("x,", "de,f"),  # of both commas the nearest
        ("abxxxe,", "fg$"),  # of both commas the one after e
        ("abc,de,fg", "$"),
        ("abc,de,fgx", ""),
    ],
)
def test_previous_goes_on_where_the_hint_and_the_output_meet_again(output, draft):
    numbers = {letter: 4 + number for number, letter in enumerate("abcdefg,xy")} | {"$": EOS}
    hint, output, draft = ([numbers[letter] for letter in text] for text in ("abc,de,fg", output, draft))
    drafter = previous.Previous()
    state = drafter.start(2, None)
    drafter.admit(state, Source([[EOS], [EOS]], SYMBOLS))
    prefix = prefix_of([output, output], hints=[hint, ()])
    assert drafter.propose(state, prefix, Plan([5, 5])).tokens[0][: len(draft)] == draft[:5]
    drafts = drafter.propose(state, prefix, Plan([9, 9])).tokens
    assert drafts[0][: len(draft)] == draft and drafts[1] == []  # a request without a hint


def passes_with_hint(drafter, hint, output, length):
    """Passes of a verifier that says ``output``, drafts of ``length`` tokens, eos included."""
    numbers = {subword: number for number, subword in enumerate(SUBWORDS)}
    hint, output = ([numbers[subword] for subword in text.split()] for text in (hint, f"{output} $"))
    state, said, passes = drafter.start(1, None), 0, 0
    drafter.admit(state, Source([[EOS]], SYMBOLS))
    while said < len(output):
        draft = drafter.propose(state, prefix_of([output[:said]], hints=[hint]), uniform(1, length)).tokens[0]
        said += next((n for n, (one, other) in enumerate(zip(draft, output[said:])) if one != other), len(draft)) + 1
        passes += 1
    return passes


SUBWORDS = """
    <s> <pad> $ <unk> w@@ l@@ al@@ ks c@@ ou@@ ch a an the in on is man men walk walks green room couch .
""".split()
CONTINUED = [number for number, subword in enumerate(SUBWORDS) if subword.endswith("@@")]
FACTS = PairFacts(SYMBOLS, COPIES, "", 0, subwords=SUBWORDS, continued=CONTINUED)


@pytest.mark.usefixtures("sure")
@pytest.mark.parametrize(
    "hint, output, passes",
    [
        ("a man walks in the green room .", "a man walks in the green room .", 1),
        ("a man w@@ l@@ al@@ ks in the green room .", "a man walks in the green room .", 2),  # pieces for a word
        ("a man walks on the c@@ ou@@ ch .", "a man walks on the couch .", 2),
        ("a man walks on the couch .", "a man w@@ al@@ ks on the couch .", 4),  # a word for pieces, each the verifier's own
        ("a men walks on the couch .", "a man walks on the couch .", 2),
        ("a man w@@ ks on an couch .", "a man walks on a couch .", 3),
        ("a man walks in green room on the couch .", "a man walks in the green room on the couch .", 2),  # inserted
        ("a man is on couch .", "a man is on the couch .", 3),  # inserted, which the hint does not tell of `the`
        ("a man is in a the green room on the couch .", "a man is in the green room on the couch .", 2),  # left out
        ("a man . the men walk in the green room .", "the men walk in the green room . a man .", 5),  # moved: two tokens tell
    ],
)
def test_previous_goes_on_after_a_corrected_word(hint, output, passes):
    assert passes_with_hint(previous.for_pair(FACTS), hint, output, 20) == passes


@pytest.mark.usefixtures("sure")
def test_previous_without_subwords_takes_each_token_for_a_word():
    hint, output = "a man w@@ l@@ al@@ ks in the green room .", "a man walks in the green room ."
    assert passes_with_hint(previous.for_pair(PairFacts(SYMBOLS, COPIES, "", 0)), hint, output, 20) == 3


@pytest.mark.usefixtures("sure")
def test_previous_drafts_the_same_however_many_tokens_are_said_at_once():
    """Of any hint and output: what is drafted is part of the hint."""
    rng, drafted = random.Random(5), Counter()
    drafter = previous.for_pair(FACTS)
    for _ in range(150):
        hint = [rng.randrange(4, len(SUBWORDS)) for _ in range(rng.randrange(1, 20))]
        edits = (rng.choice([[token], [token], [], [rng.randrange(4, len(SUBWORDS))] * 2]) for token in hint * 2)
        output = [token for edit in edits for token in edit]
        state = drafter.start(2, None)
        drafter.admit(state, Source([[EOS], [EOS]], SYMBOLS))
        for size in range(len(output) + 1):
            once = drafter.start(1, None)
            drafter.admit(once, Source([[EOS]], SYMBOLS))
            draft = drafter.propose(once, prefix_of([output[:size]], hints=[hint]), uniform(1, 50)).tokens[0]
            both = [output[:size], output[: size - size % 3]]
            assert drafter.propose(state, prefix_of(both, hints=[hint, hint]), uniform(2, 50)).tokens[0] == draft
            assert draft == [*hint, EOS][len(hint) + 1 - len(draft) :]
            drafted[len(draft) > 1] += 1
    assert min(drafted[True], drafted[False]) > 100


def test_previous_waits_where_hints_were_seldom_right():
    """After a word that is not the hint's it drafts once the hint was right after such a word, and no more if it is mostly wrong.
    Where they meet it always drafts."""
    drafter, hint = previous.for_pair(PairFacts(SYMBOLS, COPIES, "", 0)), [*range(10, 30)]
    state = drafter.start(1, None)

    def after(output):
        """Whether something is drafted in a new row after an output, which all other rows learn from."""
        drafter.admit(state, Source([[EOS]], SYMBOLS))
        drafts = drafter.propose(state, prefix_of([output], hints=[hint]), uniform(1, 4)).tokens
        state.select([])
        return bool(drafts[0])

    assert after([10]) and not after([10, 5])
    assert after([10, 5, 12]) and after([10, 5]) and not after([10, 5, 6])
    for _ in range(20):
        after([10, 5, 6, 7])
    assert not after([10, 5]) and after([10]) and after([10, 11])
    for _ in range(20):
        after([10, 5, 12])
    assert after([10, 5]) and not after([10, 5, 6])


def test_rows_that_part_learn_together():
    state = previous.Previous().start(1, None)
    state.rows.append(previous.Followed(Suffixes([5])))
    hits = state.hits
    state.select([0, 0])
    assert state.hits is hits and state.rows[0] is not state.rows[1]


@pytest.mark.usefixtures("sure")
def test_a_hint_that_is_the_output_takes_a_pass_for_each_block():
    model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    loaded, _ = load((model.double(), args))
    tilt, source = make_tilt(3, -1.0), sentences(1, seed=4)[0]
    expected = greedy(model, source, 30, tilt)
    assert len(expected) > 8
    for hint in (expected, [*expected[:3], *expected[4:]], [*expected[:3], 5, *expected[3:]]):
        stats = DecodeStats()
        request = Request(0, source, 30, hint=hint)
        roles = Roles(previous.Previous(), tilted_verifier(loaded, tilt), TopBetaTau(), FixedLength(30))
        assert [each.tokens for each in speculative_decode(roles, [request], 1, stats)] == [expected]
        assert stats.passes <= (1 if hint is expected else 3)


# ---- a datastore


def test_places_are_sorted_by_what_is_there():
    rng = random.Random(1)
    for size, words in ((1, 1), (7, 1), (50, 1), (300, 2), (300, 9)):
        tokens = random_text(rng, size, words)
        naive = sorted(range(size), key=lambda place: (tokens[place : place + CONTEXT], place))
        assert sorted_places(np.array(tokens)).tolist() == naive


def naive_retrieval(text, output, length):
    """By looking at every place of a text whose sentences stand between eos."""
    wanted = [EOS, *output][-CONTEXT:]
    found = [(common_suffix(text[:place], wanted), place) for place in range(1, len(text))]
    longest = max((size for size, _ in found), default=0)
    following = [text[place : place + length] for size, place in found if size == longest] if longest else []
    return longest, following


def test_retrieval_finds_the_longest_suffix():
    """Each drafted token is the one that follows most often, in the sentences that have the drafted tokens before it."""
    rng, drafted, longest_found = random.Random(2), 0, set()
    for _ in range(120):
        words = rng.choice([2, 4, 30])
        lines = [random_text(rng, rng.randrange(1, 24), words) for _ in range(rng.randrange(1, 5))]
        text = [EOS, *(token for line in lines for token in [*line, EOS])]
        drafter = retrieval.Retrieval(Datastore.of(lines, EOS), EOS)
        line = rng.choice(lines)
        begin = rng.randrange(len(line))
        output = [*random_text(rng, rng.randrange(4), words), *line[begin : begin + rng.randrange(20)]]
        output += random_text(rng, rng.choice([0, 0, 1]), 40)
        draft = drafter.propose(previous.Hints([None]), prefix_of([output]), uniform(1, 4)).tokens[0]
        longest, following = naive_retrieval(text, output, 4)
        assert bool(draft) == bool(following)
        assert EOS not in draft[:-1]
        drafted += len(draft)
        longest_found.add(longest)
        if len(following) > retrieval.VOTES // 2:  # not all of them vote
            assert any(tokens[: len(draft)] == draft for tokens in following)
            continue
        for position, token in enumerate(draft):
            votes = [tokens[position] for tokens in following if len(tokens) > position]
            assert votes.count(token) == max(map(votes.count, votes))
            following = [tokens for tokens in following if len(tokens) > position and tokens[position] == token]
    assert drafted > 150 and {0, 1, CONTEXT} <= longest_found


def test_a_datastore_is_mapped_and_checked(tmp_path):
    path = str(tmp_path / "store")
    store = Datastore.of([[5, 6], [5, 7, 300_000]], EOS)
    store.save(path, "ours")
    again = Datastore.open(path, "ours", 300_001)
    assert len(again) == 8 and again.tokens == store.tokens and again.places == store.places
    drafter = retrieval.Retrieval(again, EOS)
    assert drafter.continuation([7], 4) == [300_000, EOS] and drafter.continuation([9], 4) == []
    for damage in ({"size": 300_000}, {"places": store.arrays[1] + 1}, {"places": store.arrays[1] - 1}):
        Datastore(store.arrays[0], damage.get("places", store.arrays[1])).save(path, "ours")
        with pytest.raises(ValueError, match="store: damaged, it has positions or tokens out of range"):
            Datastore.open(path, "ours", damage.get("size", 300_001))
    with pytest.raises(ValueError, match="store: made with another target dictionary than the model's"):
        Datastore.open(path, "theirs", 40)
    with pytest.raises(ValueError, match="nowhere: there is no such file"):
        Datastore.open(str(tmp_path / "nowhere"), "ours", 40)
    (tmp_path / "text").write_text("no datastore")
    with pytest.raises(ValueError, match="text: not a datastore"):
        Datastore.open(str(tmp_path / "text"), "ours", 40)
    from safetensors.numpy import save_file

    save_file({"tokens": np.zeros((3, 4), np.uint8)}, path, {"format": "other"})
    with pytest.raises(ValueError, match="store: not a datastore of specdec-datastore"):
        Datastore.open(path, "ours", 40)
    with pytest.raises(OSError, match="text"):  # a file where a folder would be
        store.save(str(tmp_path / "text" / "store"), "ours")
    store.save(str(tmp_path / "nowhere" / "store"), "ours")
    assert len(Datastore.open(str(tmp_path / "nowhere" / "store"), "ours", 300_001)) == 8
    with pytest.raises(ValueError, match=r"has 2 to .* tokens, and this would have 1"):
        Datastore.of([], EOS)


# ---- what the verifier chose


class Told:
    """Scores whose likeliest tokens are given, by row and position."""

    def __init__(self, choices):
        self.choices = choices

    def logits(self):
        return torch.nn.functional.one_hot(torch.tensor(self.choices), 30).float()


def told(drafter, outputs, drafts, choices, accepted, state=None):
    """The drafter has drafted for ``outputs``, and learns what became of it. Returns its state."""
    state = state or drafter.start(2, None)
    drafter.admit(state, Source([[EOS]] * len(outputs), SYMBOLS))
    drafter.propose(state, prefix_of(outputs), uniform(len(outputs), 4))
    own = [row[count] for row, count in zip(choices, accepted)]
    drafter.observe(state, Told(choices), Draft(drafts), Verdict(accepted, own, [], []))
    return state


def test_recycling_learns_of_refused_tokens_too():
    """5 was followed by 6; 7, which was refused, would have been followed by 8; what is past a row's own draft does not count."""
    drafter = recycling.Recycling()
    state = told(drafter, [[9, 5], [9, 12]], [[7, 20], []], [[6, 8, 21], [13, 14, 15]], [0, 0])
    continuations = {5: [6], 7: [8], 20: [21], 12: [13], 13: [], 14: []}
    for token, draft in continuations.items():
        assert drafter.propose(state, prefix_of([[token], []]), Plan([3, 0])).tokens == [draft, []]
    told(drafter, [[4, 5], [9, 6]], [[], []], [[22], [23]], [0, 0], state)  # the last time counts
    assert drafter.propose(state, prefix_of([[5], [6]]), uniform(2, 3)).tokens == [[22], [23]]
    told(drafter, [[22], [23]], [[], []], [[5], [6]], [0, 0], state)
    assert drafter.propose(state, prefix_of([[5], [6]]), Plan([5, 2])).tokens == [[22, 5, 22, 5, 22], [23, 6]]
    # What is learned is bounded by the vocabulary.
    drafter, rng = recycling.Recycling(), random.Random(3)
    for _ in range(500):
        told(drafter, [[rng.randrange(30)]], [random_text(rng, 5, 26)], [random_text(rng, 6, 26)], [0])
    assert set(drafter.successors) == set(range(30))


# ---- n-grams that the verifier made


def chosen_after(tokens):
    """A verifier's choice, which depends on the last two tokens."""
    return 4 + (3 * tokens[-1] + tokens[-2] % 2) % 13


def read(tokens, parents, prefix):
    """The choices after a prefix, and after each node of a tree."""
    paths = [prefix]
    for token, parent in zip(tokens, parents):
        paths.append([*paths[parent + 1], token])
    return list(map(chosen_after, paths))


def accepted_path(tokens, parents, choices):
    path, node = [], -1
    while found := [n for n, each in enumerate(zip(parents, tokens)) if each == (node, choices[node + 1])]:
        node = found[0]
        path.append(node)
    return path, choices[node + 1]


def test_lookahead_has_the_window_of_the_paper():
    """Against a window of levels, each the choices of a pass, and the n-grams down its columns; and n-grams are accepted."""
    nodes, length, columns, size = 24, 6, 4, lookahead.GRAM
    drafter, source = lookahead.Lookahead(COPIES), [8, 9, 10, EOS]
    copied = [COPIES[token] for token in source[:-1]]
    state, output, made, accepted = drafter.start(1, None), [], [], 0
    drafter.admit(state, Source([source], SYMBOLS))
    levels = [[copied[(number - 1) % 3] for number in range(columns)]]
    for _ in range(12):
        draft = drafter.propose(state, prefix_of([output]), Plan([length], tree=Tree(nodes)))
        [tokens], [parents] = draft.tokens, draft.parents
        paths = {tuple(tokens[node] for node in path_to(end, parents)) for end in range(len(tokens))} | {()}
        before = [EOS, SYMBOLS.start, *output]
        levels[0][0] = before[-1]
        window = [levels[0][1 : number + 1] + [level[number] for level in levels[1:]] for number in range(columns)]
        newest = [gram[1:] for gram in made[::-1] if gram[0] == before[-1]]
        assert {*map(tuple, window), *newest[:2]} <= paths
        assert len(tokens) == len(paths) - 1 <= nodes and max(map(len, paths)) <= length
        levels.append([chosen_after([*before, *path]) for path in window])
        if len(levels) == size:
            for gram in zip(*levels):
                made = [each for each in made if each != gram] + [gram]
            del levels[0]
        choices = read(tokens, parents, before)
        path, own = accepted_path(tokens, parents, choices)
        drafter.observe(state, Told([choices]), draft, Verdict([len(path)], [own], [[]], [False], [path]))
        output = [*output, *(tokens[node] for node in path), own]
        accepted += len(path)
    for token in range(4, 17):
        newest = [gram[1:] for gram in made[::-1] if gram[0] == token]
        assert list(drafter.pool.after(token)) == newest[: lookahead.KEPT]
    assert len(made) > 10 and accepted > 5


def test_what_lookahead_learns_is_bounded_and_an_end_breaks_its_window():
    pool, rng = lookahead.Pool(), random.Random(1)
    for _ in range(500):
        pool.learn(rng.randrange(3), (rng.randrange(30), rng.randrange(30)))
    assert [len(list(pool.after(token))) for token in range(4)] == [lookahead.KEPT] * 3 + [0]
    drafter = lookahead.Lookahead([-1] * WORDS)  # the source has nothing that may be copied
    state, prefix = drafter.start(1, None), prefix_of([[5]])
    drafter.admit(state, Source([[5, EOS]], SYMBOLS))
    columns = []
    for _ in range(3):  # the verifier says eos at first, and then 6, 7, ..
        draft = drafter.propose(state, prefix, Plan([6], tree=Tree(16))).clip([5], EOS)
        drafter.observe(state, Told([[EOS, *range(6, 26)]]), draft, Verdict([0], [EOS], [[]], [False], [[]]))
        columns.append([list(column) for column in state.rows[0].columns])
    assert columns[0] == [[EOS], [5, 6], [5, 7]] and columns[1][0] == [EOS, 6]
    assert columns[2][0] == [] and list(map(len, columns[2][1:])) == [3, 3]  # what follows eos is not in a draft


def test_lookahead_without_a_tree_takes_the_newest_ngrams():
    drafter = lookahead.Lookahead(COPIES)
    state = told(drafter, [[4], [5]], [[6, 7], []], [[6, 8, 9], [10, 0, 0]], [1, 0])
    drafter.pool.learn(9, (11, 12))
    assert drafter.propose(state, prefix_of([[7], [5]]), uniform(2, 4)).tokens == [[9, 11, 12], [10]]
    assert drafter.propose(state, prefix_of([[6], [7]]), Plan([1, 2])).tokens == [[8], [9, 11]]


# ---- all of them


def make(name, outputs, sources, copies=COPIES):
    """A drafter; a datastore has every other output, the last word of which is another, as that of its source is."""
    known = [[*output[:-1], 4] for output in outputs[::2]]
    if name == "retrieval":
        return retrieval.Retrieval(Datastore.of(known, EOS), EOS)
    if name == "memory":
        pairs = zip([[*source[:-2], 4] for source in sources[::2]], known)
        return retrieval.Retrieval(Datastore.of_pairs(pairs, EOS, WORDS + 4), EOS)
    return drafters.without_weights(name, PairFacts(SYMBOLS, copies, "", WORDS + 4))


def damaged(output, rng):
    """A hint: the output with errors."""
    return [token if rng.random() < 0.8 else rng.randrange(4, WORDS + 4) for token in output if rng.random() < 0.9]


@pytest.mark.parametrize("name", NAMES)
def test_exact_on_pytorch(name):
    """float64, against fairseq's own model: ragged drafts, plain steps between, refills, ends of sentences, limits."""
    rng, accepted = random.Random(4), 0
    for seed, bias in ((0, -1.0), (1, 1.0)):
        model, args = make_verifier(seed=seed, words=WORDS, **SHAPES["pre-norm"])
        loaded, _ = load((model.double(), args))
        tilt, sources = make_tilt(seed, bias), sentences(14, seed)
        limits = [rng.randrange(1, 25) for _ in sources]
        expected = greedy_all(model, sources, limits, tilt)
        rows = enumerate(zip(sources, limits, expected))
        requests = [Request(i, source, limit, hint=damaged(output, rng)) for i, (source, limit, output) in rows]
        verifier, drafter = tilted_verifier(loaded, tilt), make(name, expected, sources)
        for rows, lengths in ((1, [4]), (3, [5, 0, 2, 7]), (14, [1, 3])):
            outputs, stats = outputs_of(verifier, drafter, requests, lengths, rows)
            assert outputs == expected
            accepted += stats.accepted
    assert accepted > 10


@pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_exact_on_the_kernels(name, dtype):
    """Against the verifier alone, whose plain steps beside a drafter are native; greedy, and sampled by the coupled rule."""
    fairseq_model, args = wide_verifier(**SHAPES["pre-norm"])
    with torch.no_grad():
        fairseq_model.decoder.output_projection.weight[EOS] *= 0.5
    verifier = ModelVerifier(on_kernels((fairseq_model, args), dtype=dtype)[0])
    for sampling in (None, Sampling(0.4)):
        rng, sources = random.Random(5), sentences(12, seed=6)
        requests = [Request(i, source, 20, sampling=sampling, seeds=[i]) for i, source in enumerate(sources)]
        expected, _ = outputs_of(verifier, NoDrafter(), requests, [0], 5)
        hinted = [replace(request, hint=damaged(output, rng)) for request, output in zip(requests, expected)]
        drafter, accepted = make(name, expected, sources), 0
        for rows, lengths in ((1, [4]), (5, [6, 0, 3])):
            outputs, stats = outputs_of(verifier, drafter, hinted, lengths, rows)
            assert outputs == expected
            accepted += stats.accepted
        assert accepted > 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("sure")
def test_rows_move_and_part(name):
    """After any order of rows, some twice, each drafts what a row drafts that has said the same from the beginning."""
    rng = random.Random(7)
    outputs = [random_text(rng, 6, 5) for _ in range(4)]
    sources = [[*random_text(rng, 5, 5), EOS] for _ in range(4)]
    drafter = make(name, outputs, sources)
    state, prefix = drafter.start(4, None), prefix_of([[] for _ in outputs], [list(o) for o in outputs], sources)
    drafter.admit(state, Source(sources, SYMBOLS))
    for _ in range(12):
        drafts = drafter.propose(state, prefix, uniform(len(prefix), 4)).tokens
        fresh = drafter.start(4, None)
        drafter.admit(fresh, Source([request.tokens for request in prefix.requests], SYMBOLS))
        assert drafts == drafter.propose(fresh, prefix, uniform(len(prefix), 4)).tokens
        order = [rng.randrange(len(prefix)) for _ in range(4)]
        for each in (state, prefix):
            each.select(order)
        commit(prefix, [random_text(rng, rng.randrange(1, 3), 5) for _ in order])


def test_learning_asks_for_nothing_in_plain_steps():
    """The verifier's logits are read only after a draft was asked for."""
    fairseq_model, args = make_verifier(words=WORDS, **SHAPES["pre-norm"])
    loaded, _ = load((fairseq_model.double(), args))
    asked = []

    class Asked(recycling.Recycling):
        def observe(self, state, scores, draft, verdict):
            asked.append(len(draft.tokens))
            super().observe(state, scores, draft, verdict)

    controller = Lengths([0, 3, 0])
    session = Session(
        Roles(Asked(), tilted_verifier(loaded, make_tilt(3, -9.0)), TopBetaTau(), controller), BoundedAdmission(2), 2
    )
    for index in range(2):
        session.submit(Request(index, [5, EOS], 60))
    for _ in range(6):
        session.step()
    assert asked == [2, 2]


# ---- by name


def test_drafters_are_found_by_what_they_need():
    facts = PairFacts(SYMBOLS, COPIES, "", WORDS + 4)
    names = "lookahead, ngram, previous, recycling, retrieval, window"
    with pytest.raises(ValueError, match=f"drafter 'block_causal' needs weights; available without weights: {names}$"):
        drafters.without_weights("block_causal", facts)
    with pytest.raises(ValueError, match=r"no drafter named 'nothing'\. Available: "):
        drafters.without_weights("nothing", facts)
    with pytest.raises(ValueError, match="drafter 'ngram' has no weights"):
        drafters.with_weights("ngram")
    assert drafters.without_weights("test_drafters:Mine", facts) is facts


class Mine:
    """Somebody's own drafter, which is what it is given."""

    @staticmethod
    def for_pair(facts):
        return facts


def command(capfd, *arguments, of=translate):
    status = of.main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return status, out, err


def test_commands(capfd, tmp_path):
    """The output is the verifier's; a hint takes fewer passes; a datastore is made of text and used."""
    lines = ["A man is playing a guitar.", "", "Two dogs run through the snow."]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    usual = ["--model", DEMO, "--input", tmp_path / "in", "--dtype", "int8", "--batch-size", 1]
    _, expected, _ = command(capfd, *usual, "--strategy", "ar", "--quiet")
    (tmp_path / "hint").write_text(expected)
    status, out, err = command(capfd, *usual, "--draft-with", "previous", "--hint", tmp_path / "hint", "--block-size", 20)
    assert (status, out) == (0, expected) and "100% of the drafted tokens accepted" in err
    text = ["--model", DEMO, "--output", tmp_path / "store"]
    assert command(capfd, *text, tmp_path / "hint", of=datastore) == (0, f"{tmp_path / 'store'}: 15 tokens\n", "")
    before = (tmp_path / "hint").read_bytes()
    status, _, err = command(capfd, "--model", DEMO, "--output", tmp_path / "hint", tmp_path / "hint", of=datastore)
    assert (status, err) == (2, f"specdec-datastore: error: --output {tmp_path / 'hint'} is also an input\n")
    assert (tmp_path / "hint").read_bytes() == before
    store = ["--draft-with", "retrieval", "--datastore", tmp_path / "store"]
    status, out, err = command(capfd, *usual, *store, "--block-size", 4)
    assert (status, out) == (0, expected) and " 0% of the drafted" not in err
    (tmp_path / "hint").write_text("Ein\n")
    status, out, err = command(capfd, *usual, "--draft-with", "previous", "--hint", tmp_path / "hint")
    assert status == 1 and "hint has only 1 lines" in err and out == expected.splitlines(True)[0]


@pytest.mark.parametrize(
    "options, status, message",
    [
        (
            ["--draft-with", "magic"],
            1,
            "no drafter without weights is named 'magic'; available: ngram, recycling, lookahead, previous, retrieval, window, ",
        ),
        (["--draft-with", "block"], 1, "no drafter without weights is named 'block'"),
        (["--draft-with", "ngram", "--strategy", "ar"], 2, "--draft-with is not supported by strategy ar"),
        (["--draft-with", "retrieval"], 2, "--datastore is required by drafter retrieval"),
        (["--draft-with", "retrieval", "--datastore", "/nowhere"], 1, "/nowhere: No such file or directory"),
        (["--draft-with", "ngram", "--datastore", "x"], 2, "--datastore requires drafter retrieval"),
        (["--draft-with", "ngram", "--kv-budget", "8"], 2, "--kv-budget requires drafter window"),
        (["--kv-choice", "recent"], 2, "--kv-choice requires drafter window"),
        (["--strategy", "drafter", "--kv-budget", "8"], 2, "--kv-budget is not supported by strategy drafter"),
        (["--kv-budget", "0"], 2, "--kv-budget 0 is less than 1"),
        (["--draft-with", "window", "--kv-budget", "0"], 2, "--kv-budget 0 is less than 1"),
        (["--draft-with", "window", "--kv-budget", "4"], 2, "--sinks 4 uses up the budget of 4"),
        (["--draft-with", "previous"], 2, "--hint is missing; --draft-with previous requires it"),
        (["--hint", "x"], 2, "--hint requires --draft-with previous"),
        (["--draft-with", "previous", "--hint", "/nowhere"], 1, "/nowhere: No such file or directory"),
    ],
)
def test_what_is_wrong_takes_one_line(capfd, tmp_path, options, status, message):
    (tmp_path / "in").write_text("A dog.\n")
    found, out, err = command(capfd, "--model", DEMO, "--input", tmp_path / "in", *options)
    assert (found, out) == (status, "") and message in err and err.count("\n") == 1
