"""The kernels' functions on random stacks: against a plain PyTorch forward, and against themselves.

B rows, S source positions, T target positions, D width, V vocabulary, R width of the successor network.
"""

import math
import os
import platform
import random
from ctypes import byref
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, run_python
from naive import side_of
from support import read_call
from test_kernels import DTYPES, rounded, variant  # noqa: F401

from specdec_plugins.commands import translate
from specdec_plugins.decoding import compiled
from specdec_plugins.decoding.backends.cpu import binding, passes
from specdec_plugins.decoding.backends.cpu.arguments import address, integers, start
from specdec_plugins.decoding.backends.cpu.binding import Engine, NativeLinear, Norm, Projection, Stack

pytestmark = pytest.mark.skipif(not compiled.library(), reason="the kernels were not compiled for this machine")
WIDTH, INNER, HEADS, VOCABULARY, LAYERS, GATE = 64, 96, 4, 45, 2, 32  # 45: the last panel of the projection is not full
PAD, EOS, SLOTS, ROOM = 1, 2, 8, 40
LINEARS = ("qkv", "out", "cross_query", "cross_out", "fc1", "fc2")
NORMS = ("norm", "cross_norm", "final_norm")
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swish": lambda x: x * x.sigmoid(),
}


def test_a_buffer_remembers_some_shapes_and_no_more():
    buffer = passes.Buffer()
    buffer.view(3, 5)
    for width in range(1, 3 * passes.VIEWS):
        assert buffer.view(1, 1 + width % 15, 1, width)[0].shape == (1, 1 + width % 15, 1, width)
        assert len(buffer.views) <= passes.VIEWS
    again, where = buffer.view(3, 5)
    assert again.shape == (3, 5) and address(again) == where == address(buffer.memory)


def norm_of(weight, bias):
    return Norm(weight.numpy(), bias.numpy(), rms=False, eps=1e-5)


class Decoder:
    """A random decoder on the kernels, and the same one in PyTorch, in float64."""

    def __init__(
        self,
        dtype="float32",
        threads=2,
        seed=0,
        activation="relu",
        prenorm=False,
        zero_start=False,
        offset=0,
        bias=True,
        embedding_norm=False,
        scale=1.0,
        gate=False,
    ):
        generator = torch.Generator().manual_seed(seed)

        def tensor(*shape, spread=None):
            return torch.randn(*shape, generator=generator) * (spread or shape[-1] ** -0.5)

        def linear(outputs, inputs=WIDTH):
            return tensor(outputs, inputs), tensor(outputs, spread=0.3)

        def norm():
            return 1 + tensor(WIDTH, spread=0.2), tensor(WIDTH, spread=0.2)

        self.dtype, self.prenorm, self.zero_start, self.offset, self.scale = dtype, prenorm, zero_start, offset, scale
        self.activation = activation
        self.tokens, self.positions = tensor(VOCABULARY, WIDTH, spread=1.0), tensor(ROOM + offset, WIDTH, spread=1.0)
        self.norms = norm() if embedding_norm else None, norm() if prenorm else None
        self.layers = [
            (
                [linear(3 * WIDTH), *[linear(WIDTH) for _ in range(3)], linear(INNER), linear(WIDTH, INNER)],
                [norm() for _ in "123"],
            )
            for _ in range(LAYERS)
        ]
        self.memory = linear(LAYERS * 2 * WIDTH)
        self.projection = tensor(VOCABULARY, WIDTH), tensor(VOCABULARY, spread=1.0) if bias else None
        self.gate = linear(GATE) if gate else None
        self.successor = [tensor(VOCABULARY, GATE, spread=1.0) for _ in range(2)]

        self.engine, self.library = Engine(threads), compiled.library()
        held = [NativeLinear(*each, dtype) if each else None for each in (self.projection, self.gate, self.memory)]
        self.native_memory = held.pop()
        side = side_of(
            layers=LAYERS,
            heads=HEADS,
            width=WIDTH,
            inner_width=INNER,
            max_positions=ROOM,
            activation=activation,
            prenorm=prenorm,
            embedding_scale=scale,
            position_offset=offset,
        )
        norms = [norm_of(*each) if each else None for each in self.norms]
        self.stack = Stack(
            self.engine,
            side,
            self.tokens,
            self.positions,
            zero_start=zero_start,
            embedding_norm=norms[0],
            last_norm=norms[1],
            output=Projection(held[0], gate=held[1]),
        )
        for number, (linears, norms) in enumerate(self.layers):
            packed = dict(zip(LINEARS, (NativeLinear(*each, dtype) for each in linears)))
            self.stack.add_layer(packed, dict(zip(NORMS, (norm_of(*each) for each in norms))), None, None, None, number)
        self.cache = torch.full((LAYERS, SLOTS, ROOM, 2 * WIDTH), math.nan)
        self.entries = torch.full((LAYERS, SLOTS, ROOM, 2 * WIDTH), math.nan)

    def remember(self, encoded, lengths, slots):
        """Fill source slots from encoded (B, S, D)."""
        rows = self.library.rows("RememberRow", sentence=range(len(slots)), slot=slots, length=lengths)
        self.library.specdec_remember(
            self.engine.pointer,
            None,
            self.native_memory.pointer,
            len(slots),
            encoded.size(1),
            start(rows),
            encoded.data_ptr(),
            2 * WIDTH,
            *layout(self.entries),
        )

    def read(self, tokens, places, slots, source_slots, source_lengths, firsts=None):
        """Each row's results in lists: logits, features and gates (None without)."""
        firsts = firsts or [0] * len(tokens)
        counts = [len(row) - first for row, first in zip(tokens, firsts)]
        width = max(counts)
        logits, features, gates = (torch.full((len(tokens), width, size), math.nan) for size in (VOCABULARY, WIDTH, GATE))
        call, _kept = self.call(
            width,
            tokens,
            places,
            firsts,
            slots,
            source_slots,
            source_lengths,
            logits=logits.data_ptr(),
            gates=gates.data_ptr(),
            features=features.data_ptr(),
        )
        self.library.specdec_read(self.engine.pointer, byref(call))
        for result in (logits, features):
            for row, count in zip(result, counts):
                assert row[:count].isfinite().all() and row[count:].isnan().all()
        rows = zip(logits, features, gates, counts)
        return [SimpleNamespace(logits=a[:n], features=b[:n], gates=c[:n] if self.gate else None) for a, b, c, n in rows]

    def call(self, width, *rows, **results):
        return read_call(self.stack, width, (*layout(self.cache), *layout(self.entries)), *rows, **results)

    def expected(self, tokens, encoded):
        """(T, V) and (T, D) float64 logits and features of all of one sentence, for encoded (S, D)."""

        def product(x, weights):
            weight, bias = weights
            return x @ rounded(weight, self.dtype).T + (0 if bias is None else bias.double())

        def norm(x, weights):
            return x if weights is None else F.layer_norm(x, (WIDTH,), *(each.double() for each in weights))

        def attend(queries, entries, mask=None):
            heads = [each.unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in (queries, *entries)]
            return F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1).flatten(1)

        def compose(*functions):
            return lambda x: reduce(lambda value, function: function(value), functions, x)

        causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        x = self.tokens[tokens].double() * self.scale
        if self.zero_start:
            x[0] = 0
        x = norm(x + self.positions[self.offset : self.offset + len(tokens)].double(), self.norms[0])
        remembered = product(encoded.double(), self.memory).split(WIDTH, -1)
        for index, (linears, norms) in enumerate(self.layers):
            qkv, out, cross_query, cross_out, fc1, fc2 = (partial(product, weights=each) for each in linears)
            entries = remembered[2 * index : 2 * index + 2]
            parts = (
                compose(qkv, lambda y: attend(y[:, :WIDTH], y[:, WIDTH:].split(WIDTH, -1), causal), out),
                compose(cross_query, partial(attend, entries=entries), cross_out),
                compose(fc1, ACTIVATIONS[self.activation], fc2),
            )
            for weights, part in zip(norms, parts):
                x = x + part(norm(x, weights)) if self.prenorm else norm(x + part(x), weights)
        x = norm(x, self.norms[1])
        return product(x, self.projection), x


def layout(entries):
    return entries.data_ptr(), *entries.stride()[:2]


def close(found, expected, exact):
    """Whether results are those of float64, or, where inputs are quantised, near them in the mean."""
    if exact:
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
    else:
        assert (found - expected).abs().mean() < 0.03 * expected.abs().mean()


def texts(rng, lengths):
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


MODELS = {
    "marian": {"activation": "swish", "zero_start": True, "scale": 8.0},
    "bart": {"activation": "gelu", "embedding_norm": True, "offset": 2},
    "nllb": {"prenorm": True, "offset": 2, "scale": 8.0, "bias": False},
    "mixed": {"activation": "gelu_tanh", "prenorm": True, "zero_start": True, "embedding_norm": True, "offset": 5},
}


@pytest.mark.parametrize("dtype", binding.KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_forward_is_pytorchs(model, dtype, variant):  # noqa: F811
    """Activations, output bias, a zero embedding at the start, position offsets: first a prefix, then what follows it."""
    decoder = Decoder(dtype, **MODELS[model])
    exact = dtype in ("float32", "bfloat16")
    rng, lengths = random.Random(model), [5, 1, 9]
    encoded = torch.randn(3, 9, WIDTH, generator=torch.Generator().manual_seed(3))
    decoder.remember(encoded, lengths, [4, 0, 2])
    for prefix, more in (((3, 1, 7), (4, 2, 6)), ((20, 2, 9), (1, 12, 3))):
        prefixes, drafts = texts(rng, prefix), texts(rng, more)
        read = [
            decoder.read(tokens, places, [1, 5, 3], [4, 0, 2], lengths)
            for tokens, places in ((prefixes, [0] * 3), (drafts, prefix))
        ]
        for row, length in enumerate(lengths):
            logits, features = decoder.expected(prefixes[row] + drafts[row], encoded[row, :length])
            close(torch.cat([each[row].logits for each in read]), logits, exact)
            close(torch.cat([each[row].features for each in read]), features, exact)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_the_extremes(name, variant):  # noqa: F811
    """Finite and right from -1e4 to 1e4, through the feed-forward part of a layer that is otherwise the identity."""
    x = torch.tensor([0.0, -0.0, 1e-6, 0.5, -0.5, 3, -3, 20, -20, 87, -87, 89, -89, 1e4, -1e4, 500]).repeat(2)
    unit, none = torch.eye(32), torch.zeros(32, 32)
    engine = Engine(1)
    side = side_of(layers=1, heads=1, width=32, inner_width=32, max_positions=4, activation=name, prenorm=True)
    stack = Stack(engine, side, torch.zeros(3, 32), torch.zeros(4, 32))
    weights = {"qkv": (torch.zeros(96, 32), None), "out": (none, None), "fc1": (none, x), "fc2": (unit, None)}
    linears = {part: NativeLinear(*each, "float32") for part, each in weights.items()}
    plain = norm_of(torch.ones(32), torch.zeros(32))
    stack.add_layer(linears, {"norm": plain, "final_norm": plain}, None, None, None, 0)
    lengths, tokens, output = integers([1]), integers([2]), torch.empty(1, 1, 32)
    stack.library.specdec_encode(engine.pointer, stack.pointer, 1, 1, start(lengths), start(tokens), output.data_ptr())
    torch.testing.assert_close(output[0, 0].double(), ACTIVATIONS[name](x.double()), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_each_other(dtype, variant):  # noqa: F811
    """Bit for bit, ragged: rows of any length, some without results or tokens, siblings of one source slot, any threads."""
    encoded, lengths = torch.randn(2, 11, WIDTH, generator=torch.Generator().manual_seed(5)), [11, 4]
    source_slots, slots = [3, 3, 0, 0, 3, 0], [6, 2, 0, 7, 1, 4]
    rng, alone = random.Random(4), []
    prefixes, drafts = texts(rng, (4, 9, 1, 15, 6, 2)), texts(rng, (5, 1, 20, 3, 9, 0))
    firsts = [2, 0, 19, 3, 0, 0]
    source_lengths = [lengths[0 if slot == 3 else 1] for slot in source_slots]
    for row in range(6):
        decoder = Decoder(dtype, 1, gate=True)
        decoder.remember(encoded[:1] if source_slots[row] == 3 else encoded[1:], source_lengths[row : row + 1], [5])
        results = [
            decoder.read([[token]], [place], [2], [5], source_lengths[row : row + 1])[0]
            for place, token in enumerate(prefixes[row] + drafts[row])
        ]
        alone.append(results[len(prefixes[row]) + firsts[row] :])
    for threads in (1, 2, 3):
        decoder = Decoder(dtype, threads, gate=True)
        decoder.remember(encoded, lengths, [3, 0])
        decoder.read(prefixes, [0] * 6, slots, source_slots, source_lengths, [len(row) - 1 for row in prefixes])
        together = decoder.read(drafts, list(map(len, prefixes)), slots, source_slots, source_lengths, firsts)
        for row, results in enumerate(alone):
            for name in ("logits", "features", "gates"):
                found = getattr(together[row], name)
                assert len(found) == len(results)
                assert all(torch.equal(one, getattr(other, name)[0]) for one, other in zip(found, results))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_blocks_are_those_of_rows_alone(dtype, variant):  # noqa: F811
    """Bit for bit: the block drafter's pass, with and without the source copy; rows without masks are left out."""
    rng, drafted, lengths = random.Random(8), [3, 0, 7, 1], [2, 11, 5, 5]
    source_slots, encoded = [1, 0, 4, 4], torch.randn(4, 11, WIDTH, generator=torch.Generator().manual_seed(2))
    prefixes = texts(rng, (4, 2, 0, 12))
    copied = torch.randn(SLOTS, ROOM, 2 * WIDTH, generator=torch.Generator().manual_seed(6))

    def draft(decoder, rows, slots, copied):
        cache = torch.full((SLOTS, 20, 2 * WIDTH), math.nan)
        width = max(drafted[row] for row in rows)
        logits = torch.full((len(rows), max(width, 1), VOCABULARY), math.nan)
        given = [prefixes[row] for row in rows]
        sources, sizes = ([values[row] for row in rows] for values in (source_slots, lengths))
        reads = decoder.library.rows(
            "BlockRow",
            tokens=map(len, given),
            drafted=[drafted[row] for row in rows],
            slot=slots,
            source_slot=sources,
            source_length=sizes,
        )
        tokens = integers(*given)
        decoder.library.specdec_draft(
            decoder.engine.pointer,
            decoder.stack.pointer,
            len(rows),
            max(width, 1),
            start(reads),
            start(tokens),
            3,
            cache.data_ptr(),
            cache.stride(0),
            *layout(decoder.entries),
            None if copied is None else copied.data_ptr(),
            logits.data_ptr(),
        )
        return logits

    for given, threads in ((copied, 1), (copied, 2), (None, 3)):
        decoder = Decoder(dtype, threads, prenorm=True)
        decoder.remember(encoded, lengths, source_slots)
        together = draft(decoder, range(4), [2, 3, 0, 5], given)
        for row, count in enumerate(drafted):
            assert torch.equal(together[row, :count], draft(decoder, [row], [1], given)[0, :count])
            assert together[row, :count].isfinite().all() and together[row, count:].isnan().all()


# ---- drafts


@pytest.mark.parametrize("gate", [False, True])
def test_each_row_is_chosen_for_as_alone(gate, variant):  # noqa: F811
    """A row with as many drafted tokens as it has positions gets what it gets alone."""
    rng, encoded = random.Random(3), torch.randn(3, 6, WIDTH, generator=torch.Generator().manual_seed(4))
    tokens, firsts, drafted = texts(rng, (6, 3, 9, 1)), [2, 3, 0, 0], [4, 0, 7, 1]
    sources = [0, 1, 2, 2], [6, 2, 5, 5]
    empty, candidates = [True, False, True, False], 5

    def run(rows, threads):
        decoder = Decoder("float32", threads, gate=gate)
        decoder.remember(encoded, [6, 2, 5], [0, 1, 2])
        mine = [[values[row] for row in rows] for values in (tokens, firsts, *sources, drafted, empty)]
        width = max(1, *(len(row) - first for row, first in zip(*mine[:2])))
        logits, gates = torch.full((len(rows), width, VOCABULARY), math.nan), torch.full((len(rows), width, GATE), math.nan)
        to, library, engine = integers([-1] * (len(rows) * width)), decoder.library, decoder.engine
        given = mine[0], [0] * len(rows), mine[1], rows, *mine[2:4]
        call, _kept = decoder.call(width, *given, logits=logits.data_ptr(), gates=gates.data_ptr())
        choices = library.rows("ChooseRow", drafted=mine[4], empty=mine[5])
        before, after = (each.data_ptr() for each in decoder.successor)
        choose = library.structs["ChooseCall"](
            pad=PAD, eos=EOS, rows=start(choices), tokens=before, outs=after, candidates=candidates, chosen=start(to)
        )
        library.specdec_read(engine.pointer, byref(call))
        table = gates.data_ptr() if gate else None
        library.specdec_choose(engine.pointer, logits.data_ptr(), len(rows), width, VOCABULARY, table, GATE, byref(choose))
        return [to[row * width : (row + 1) * width].tolist() for row in range(len(rows))], logits

    expected = [run([row], 1)[0][0][:count] for row, count in enumerate(drafted)]
    assert len({*expected[0], *expected[2]}) > 2
    for threads in (1, 2, 3):
        found, logits = run(range(4), threads)
        for row, count in enumerate(drafted):
            assert found[row] == expected[row] + [-1] * (len(found[row]) - count)
            assert (logits[row, :count, PAD] == -math.inf).all()
            assert all(logits[row, k, EOS].isfinite() != (k == 0 and empty[row]) for k in range(count))


# ---- errors


def test_too_little_memory_for_weights_is_an_error(variant):  # noqa: F811
    with pytest.raises(MemoryError, match="weights"):  # biases and scales stay small
        compiled.library().specdec_linear(2**12, 2**30, 0, None)


def test_too_little_memory_for_a_pass_is_an_error(variant):  # noqa: F811
    weight, library, engine, decoder = torch.zeros(4), compiled.library(), Engine(1), Decoder()
    lengths, tokens = integers([1]), integers([3])
    with pytest.raises(MemoryError, match="pass"):
        library.specdec_encode(engine.pointer, decoder.stack.pointer, 1, 2**50, start(lengths), start(tokens), weight.data_ptr())


@pytest.mark.skipif(not os.environ.get("CI"), reason="where CI is not set, PyTorch may compute alone")
def test_every_variant_is_compiled():
    """setup.py marks them optional: a variant that does not compile is left out without an error."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    folder = Path(binding.__file__).parent
    found = {name for name in compiled.VARIANTS if list(folder.glob(f"_kernels_{name}.*"))}
    assert found == (set(compiled.VARIANTS) if x86 else {"generic"})


@pytest.mark.long
def test_members_that_share_a_core_give_up():
    """Two threads on one core: a pass takes about as long as on one thread and gives the same."""
    program = """
import os, sys, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
sys.path.insert(0, "tests")
import torch
from test_binding import Decoder, texts
import random
seconds, results = [], []
for threads in (1, 2):
    decoder = Decoder(threads=threads)
    decoder.remember(torch.ones(1, 5, 64), [5], [0])
    tokens = texts(random.Random(1), [9])
    read = lambda: decoder.read(tokens, [0], [0], [0], [5])[0].logits
    began = time.perf_counter()
    while time.perf_counter() - began < 1: results.append(read().tolist())
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        read()
        taken.append(time.perf_counter() - began)
    seconds.append(sorted(taken)[100])
assert all(each == results[0] for each in results)
print(seconds[1] / seconds[0])
"""
    assert float(run_python("-c", program).stdout) < 3  # 20 and more with two members all the time


def test_a_library_of_other_sources_is_refused(variant, monkeypatch, capsys):  # noqa: F811
    compiled.library.cache_clear()
    monkeypatch.setattr(compiled, "sources_hash", lambda folder: "other")
    with pytest.raises(ImportError, match=r"_kernels_.* was compiled from other sources: run `pip install -e .`"):
        compiled.library()
    assert translate.main(["--model", str(ROOT / "data" / "demo.en-de"), str(ROOT / "data" / "demo.txt")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("specdec-translate: error: ") and "_kernels_" in err and err.count("\n") == 1
