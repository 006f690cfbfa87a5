"""Training a verifier on documents: guided attention, shifted positions, repetition noise, the kernel for long batches."""

import math
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace

import pytest
import torch
from conftest import make_batch, make_dictionary, make_verifier
from torch import nn

import specdec_plugins.tasks  # noqa: F401  (as --user-dir does)
from specdec_plugins.criterions import document_loss, verifier_loss
from specdec_plugins.criterions.document_loss import DocumentLoss, GuidedAttention, repeated, shifted_positions, shifts
from specdec_plugins.criterions.verifier_loss import VerifierLoss

PAD, EOS, END = 1, 2, 5
LAYERS = [
    f"{side}.layers.{layer}.{kind}_attn"
    for side, kinds in (("encoder", ["self"]), ("decoder", ["self", "encoder"]))
    for layer in (0, 1)
    for kind in kinds
]
CORPUS = [[4, 3, 6], [3, 3]], [[3, 5, 4], [4, 4]]  # lengths of sentences by document, of sources and targets


def documents(*sides: list[list[int]]) -> list[torch.Tensor]:
    """Batches of documents with sentences of given lengths: sources padded on the left, prefixes on the right."""
    generator, batches = torch.Generator().manual_seed(1), []
    for side, lengths in enumerate(sides):
        rows = []
        for document in lengths:
            drawn = (torch.randint(6, 24, (length - 1,), generator=generator).tolist() for length in document)
            row = [token for sentence in drawn for token in (*sentence, END)]
            rows.append([*row, EOS] if side == 0 else [EOS, *row])
        width = max(map(len, rows))
        filled = [[PAD] * (width - len(row)) + row if side == 0 else row + [PAD] * (width - len(row)) for row in rows]
        batches.append(torch.tensor(filled))
    return batches


def symbols(*batches):
    return [batch.ne(PAD) for batch in batches]


def run(model, source, prefix):
    return model(source, source.ne(PAD).sum(1), prefix)[0]


def guided(model, source, prefix, damping):
    """Logits with guided attention."""
    with GuidedAttention(model, source, prefix, PAD, (END, END), damping).watch():
        return run(model, source, prefix)


def sentence(row: list[int], at: int, exclusive: bool) -> int:
    """The sentence number of a position: a full stop belongs to its sentence in the source, to the next one in a prefix."""
    return row[: at if exclusive else at + 1].count(END)


def task_of(dictionary):
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def document_criterion(label_smoothing, noise):
    dictionary = make_dictionary()
    dictionary.symbols[END], dictionary.indices["."] = ".", END
    return DocumentLoss(task_of(dictionary), False, label_smoothing, repetition_noise=noise)


def sample_of(source, prefix):
    target = torch.cat([prefix[:, 1:], torch.full((len(prefix), 1), EOS)], 1).masked_fill(prefix.eq(PAD), PAD)
    inputs = {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1), "prev_output_tokens": prefix}
    return {"target": target, "ntokens": target.numel(), "net_input": inputs}


# ---- guided attention


def everywhere(monkeypatch):
    """Guide the first layers too, and to the sentence alone, so that infinite damping isolates sentences."""
    monkeypatch.setattr(document_loss, "FIRST", ())
    monkeypatch.setattr(document_loss, "NEIGHBOURS", 0)


def test_the_first_layers_are_left_alone():
    model = make_verifier()[0]
    source, prefix = documents([[4, 3]], [[3, 5]])
    attention = GuidedAttention(model, source, prefix, PAD, (END, END), damping=1.0)
    assert list(attention.layers) == [name for name in LAYERS if ".0." not in name] and len(attention.layers) == 3
    with attention.watch():
        run(model, source, prefix)
    assert set(attention.inputs) == set(attention.layers)
    wrapped = nn.Module()
    wrapped.module = nn.Module()
    wrapped.module.module = model  # as fairseq's wrappers for several GPUs do
    assert GuidedAttention(wrapped, source, prefix, PAD, (END, END), damping=1.0).layers == attention.layers


@pytest.mark.parametrize("neighbours", [0, 1])
def test_near_positions_equal_a_naive_count(neighbours, monkeypatch):
    everywhere(monkeypatch)
    monkeypatch.setattr(document_loss, "NEIGHBOURS", neighbours)
    model = make_verifier()[0]
    source, prefix = documents([[4, 3, 6, 2], [2, 5], [3]], [[3, 5, 4, 3], [4, 4], [2, 2]])  # the last two differ in sentences
    attention = GuidedAttention(model, source, prefix, PAD, (END, END), damping=0.0)
    assert list(attention.layers) == LAYERS
    for name in LAYERS:
        side = name.split(".")[0]
        queries = source if side == "encoder" else prefix
        keys = prefix if name.startswith("decoder") and name.endswith("self_attn") else source
        seen, near = attention.visible_and_near(name, torch.arange(queries.size(1)))
        seen = seen.expand_as(near)
        for b in range(len(source)):
            for q in range(queries.size(1)):
                for k in range(keys.size(1)):
                    visible = keys[b, k] != PAD and not (keys is prefix and k > q)
                    assert seen[b, q, k] == visible
                    if queries[b, q] != PAD:
                        own = sentence(queries[b].tolist(), q, side == "encoder")
                        distance = abs(own - sentence(keys[b].tolist(), k, keys is source))
                        free = b == 2 and name.endswith("encoder_attn")
                        assert near[b, q, k] == (visible and (free or distance <= neighbours))


@pytest.mark.parametrize("damping", [0.0, 1.0, math.inf])
def test_the_loss_is_the_attention_that_fairseq_computes(damping, monkeypatch):
    """Mean over layers, heads and tokens of -log(attention mass in the sentence), by torch's own attention."""
    everywhere(monkeypatch)
    model = make_verifier()[0].double()
    source, prefix = documents([[4, 3], [2, 6]], [[3, 5], [4, 3]])
    attention = GuidedAttention(model, source, prefix, PAD, (END, END), damping)
    with attention.watch():
        run(model, source, prefix)
    assert not any(layer._forward_pre_hooks for layer in attention.layers.values())
    monkeypatch.setattr(document_loss.torch, "randint", lambda high, size, device: torch.arange(high))
    found = attention.loss()
    expected = []
    for name, (query, key) in attention.inputs.items():
        seen, near = attention.visible_and_near(name, torch.arange(query.size(0)))
        hidden = torch.zeros(seen.expand_as(near).shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        layer = attention.layers[name]
        _, weights = nn.functional.multi_head_attention_forward(
            query,
            key,
            key,
            layer.embed_dim,
            layer.num_heads,
            torch.empty(0),
            torch.cat([layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias]),
            None,
            None,
            False,
            0.0,
            layer.out_proj.weight,
            layer.out_proj.bias,
            False,
            attn_mask=hidden.repeat_interleave(layer.num_heads, 0),
            use_separate_proj_weight=True,
            q_proj_weight=layer.q_proj.weight,
            k_proj_weight=layer.k_proj.weight,
            v_proj_weight=layer.v_proj.weight,
            average_attn_weights=False,
        )
        mass = (weights * near[:, None]).sum(3)
        symbols = (source if name.startswith("encoder") else prefix).ne(PAD)
        expected.append(-mass.log().transpose(1, 2)[symbols].mean())
    assert found.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-9) and found > 0.1


def test_an_isolated_sentence_does_not_depend_on_the_others(monkeypatch):
    everywhere(monkeypatch)
    model = make_verifier()[0].double()
    source, prefix = documents([[4, 3, 6], [3, 3, 3]], [[3, 5, 4], [4, 4, 2]])
    other_source, other_prefix = source.clone(), prefix.clone()
    for batch, exclusive in ((other_source, True), (other_prefix, False)):
        for row in range(2):
            for at, symbol in enumerate(batch[row].tolist()):
                if symbol > END and sentence(batch[row].tolist(), at, exclusive) != 1:
                    batch[row, at] = 6 + (symbol - 5) % 18
    second = torch.stack([torch.tensor([sentence(row, at, False) == 1 for at in range(len(row))]) for row in prefix.tolist()])
    for damping in (math.inf, 0.0):
        one, other = guided(model, source, prefix, damping), guided(model, other_source, other_prefix, damping)
        same = torch.allclose(one[second], other[second], rtol=0, atol=1e-12)
        assert one.isfinite().all() and same is (damping > 0) and not torch.allclose(one[~second], other[~second])


@pytest.mark.parametrize("damping", [0.0, 0.5, 3.0, math.inf])
def test_damping_reveals_neither_later_tokens_nor_padding(damping):
    model = make_verifier()[0].double()
    source, prefix = documents(*CORPUS)
    wider = nn.functional.pad(source, (3, 0), value=PAD)
    ahead = prefix.clone()
    ahead[:, 7:] = torch.where(ahead[:, 7:].gt(END), 29 - ahead[:, 7:], ahead[:, 7:])
    one, other = guided(model, source, prefix, damping), guided(model, wider, ahead, damping)
    assert torch.allclose(one[:, :7], other[:, :7], rtol=0, atol=1e-6)  # fairseq's softmax is in float32
    assert not torch.allclose(one[:, 7:], other[:, 7:])


def test_damping_narrows_attention_from_the_document_to_the_sentence(monkeypatch):
    everywhere(monkeypatch)
    model = make_verifier()[0].double()
    source, prefix = documents(*CORPUS)
    results = [guided(model, source, prefix, damping)[prefix.ne(PAD)] for damping in (0.0, 1e-9, 1.0, 50.0, math.inf)]
    assert torch.allclose(results[0], run(model, source, prefix)[prefix.ne(PAD)], rtol=0, atol=0)
    for one, other, atol in ((0, 1, 1e-6), (3, 4, 1e-12)):
        assert torch.allclose(results[one], results[other], rtol=0, atol=atol)
    assert min((results[2] - results[end]).abs().max() for end in (0, 4)) > 1e-3


def test_guided_a_model_learns_where_to_look(monkeypatch):
    monkeypatch.setattr(document_loss, "SHIFTED", 0.0)
    torch.manual_seed(1)
    model = make_verifier()[0]
    source, prefix = documents(*[[[4, 3, 6, 5, 4]] * 8] * 2)
    criterion, sample = document_criterion(0.1, noise=0.0), sample_of(source, prefix)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    strayed = []
    for _ in range(60):
        loss, size, log = criterion(model, sample)
        (loss / size).backward()
        optimizer.step()
        optimizer.zero_grad()
        strayed.append(float(log["guidance"]) / size)
    assert strayed[0] > 0.5 and strayed[-1] < 0.3 * strayed[0]
    assert criterion.average < 0.8
    model.eval()
    assert "guidance" not in criterion(model, sample)[2]


def test_a_dictionary_without_full_stops_is_refused():
    task = task_of(make_dictionary())
    with pytest.raises(ValueError, match="which a dictionary lacks"):
        DocumentLoss(task, False, 0.1)
    VerifierLoss(task, False, 0.1)


# ---- shifted positions


def test_shifts_stay_in_range_and_sides_move_together():
    torch.manual_seed(1)
    source, target = symbols(make_batch([40] * 400, left=True), make_batch([60] * 400))
    by, target_by = shifts(source, target, (1000, 1000), 0.5)
    assert 150 < by.eq(0).sum() < 250 and by.min() == 0 and by.max() <= 960
    assert by[by > 0].float().mean() == pytest.approx(480, rel=0.1)
    inside = (by > 0) & (target_by < 940)
    assert target_by[by == 0].eq(0).all() and target_by.min() >= 0 and target_by.max() <= 940
    drift = target_by[inside] - 1.5 * by[inside]
    assert drift.abs().max() < 5 * 0.3 * 1000**0.5 and drift.std() > 2
    assert shifts(source, target, (1000, 1000), 0.0)[0].eq(0).all()
    full = symbols(make_batch([1000]), make_batch([700]))
    assert not any(map(torch.any, shifts(*full, (1000, 700), 1.0)))  # no room
    for most in ((2000, 700), (2000, 690), (900, 2000)):  # each side is bounded by its own room
        by, target_by = shifts(*full, most, 1.0)
        assert 0 <= by <= max(0, most[0] - 1000) and 0 <= target_by <= max(0, most[1] - 700)


def test_shifted_rows_read_later_positions(monkeypatch):
    model = make_verifier()[0]
    source, prefix = make_batch([5, 3, 6], left=True), make_batch([4, 7, 2])
    by = torch.tensor([0, 10, 30]), torch.tensor([0, 12, 33])
    monkeypatch.setattr(document_loss, "shifts", lambda *_: by)
    for side, batch, moved in (("encoder", source, by[0]), ("decoder", prefix, by[1])):
        table = getattr(model, side).embed_positions
        with shifted_positions(model, *symbols(source, prefix), 1.0):
            found = table(batch)
        assert torch.equal(table(batch)[0], found[0]) and not table._forward_hooks
        for row in range(3):
            position = PAD + moved[row]
            for at, symbol in enumerate(batch[row].tolist()):
                position += symbol != PAD
                assert torch.equal(found[row, at], table.weights[position] if symbol != PAD else torch.zeros(16))


def test_learned_positions_are_refused():
    model, _ = make_verifier(encoder_learned_pos=True, decoder_learned_pos=True)
    moved = shifted_positions(model, *symbols(make_batch([3]), make_batch([3])), 1.0)
    with pytest.raises(ValueError, match="document_loss requires sinusoidal positions"), moved:
        pass


# ---- repetition noise


def test_noise_repeats_the_last_tokens_and_then_continues():
    """Parsed from its indices: a row advances by one, or goes back over its last tokens and returns."""
    random = Random(1)
    lengths, times = set(), set()
    for _ in range(200):
        row = random.choices(range(2, 24), k=random.randint(1, 60))
        most = len(row) + random.randint(0, 300)
        indices, predicted = repeated(row, 0.1, {EOS, END}, most, random)
        assert len(indices) == len(predicted) <= most
        furthest, at, due = -1, 0, []
        while at < len(indices):
            if indices[at] == furthest + 1:
                furthest, at = furthest + 1, at + 1
                due.append(True)
                continue
            first = indices[at]
            again = list(range(first, furthest + 1))
            count = 0
            while indices[at : at + len(again)] == again:
                at, count = at + len(again), count + 1
            due += [False] * (len(again) * count - 1) + [True]
            lengths.add(len(again))
            times.add(count)
            assert count > 0 and not {EOS, END} & {row[index] for index in again}
        assert furthest == len(row) - 1 and due == predicted
    assert lengths == set(range(1, document_loss.LONGEST + 1)) and 1 in times and 32 < max(times) <= document_loss.MOST == 64


def test_repetitions_match_the_rate():
    row = [7] * 100_000
    indices, predicted = repeated(row, 0.002, {EOS}, 10**6, Random(1))
    ended = sum(due and index == before for (index, before), due in zip(zip(indices[1:], indices), predicted[1:]))
    back = sum(index <= before for index, before in zip(indices[1:], indices))
    assert 0 < ended < back and 120 < sum(predicted) - len(row) < 280
    assert repeated(row, 0.0, set(), 10**6, Random(1)) == (list(range(len(row))), [True] * len(row))
    assert repeated(row, 1.0, set(), len(row), Random(1))[0] == list(range(len(row)))  # no room


def test_noise_predicts_no_token_within_a_repetition():
    _, prefix = documents([[2]] * 3, [[30, 40, 25], [20], [90, 5]])
    target = torch.cat([prefix[:, 1:], torch.full((3, 1), PAD)], 1)
    target[range(3), prefix.ne(PAD).sum(1) - 1] = EOS
    read, due = document_loss.with_repetitions(prefix, target, 0.05, PAD, {EOS, END}, 10**6)
    assert read.shape == due.shape and prefix.size(1) < read.size(1) <= prefix.size(1) * 9 // 8
    for row in range(3):
        length = int(prefix[row].ne(PAD).sum())
        symbols, following = read[row][read[row].ne(PAD)], due[row][: int(read[row].ne(PAD).sum())]
        assert set(symbols.tolist()) == set(prefix[row, :length].tolist())
        # A target follows the last token read, as in the original row.
        pairs = set(zip(prefix[row, :length].tolist(), target[row, :length].tolist()))
        assert {(a, b) for a, b in zip(symbols.tolist(), following.tolist()) if b != PAD} == pairs
        assert due[row, len(symbols) :].eq(PAD).all()
    assert torch.equal(
        document_loss.with_repetitions(prefix, target, 0.5, PAD, {EOS, END}, prefix.size(1))[0][2], prefix[2]
    )  # no room
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(document_loss.with_repetitions(prefix, target, 0.05, PAD, {EOS, END}, 10**6)[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_only_training_has_noise(monkeypatch):
    for name in ("GUIDANCE", "DAMPING", "SHIFTED"):
        monkeypatch.setattr(document_loss, name, 0.0)
    model = make_verifier()[0].double()
    source, prefix = documents([[4, 3, 20], [20, 3]], [[30, 5, 14], [40, 4]])
    criterion, sample = document_criterion(0.0, noise=30.0), sample_of(source, prefix)
    target = sample["target"]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()
    torch.manual_seed(1)
    loss = criterion(model, sample)[0]
    torch.manual_seed(1)
    read, due = document_loss.with_repetitions(prefix, target, 0.03, PAD, {EOS, END}, model.max_decoder_positions())
    assert read.size(1) > prefix.size(1)

    def expected(prefix, target):
        chosen = run(model, source, prefix).log_softmax(-1).gather(2, target[:, :, None])[:, :, 0]
        return -chosen[target.ne(PAD)].sum()

    assert torch.allclose(loss.double(), expected(read, due), rtol=1e-5)  # fairseq computes it in float32
    assert torch.equal(sample["net_input"]["prev_output_tokens"], prefix)  # the sample is unchanged
    model.eval()
    assert torch.allclose(criterion(model, sample)[0].double(), expected(prefix, target), rtol=1e-5)


# ---- the attention kernel


def test_only_long_batches_take_the_flash_kernel(monkeypatch):
    enabled = torch.backends.cuda.flash_sdp_enabled
    monkeypatch.setattr(verifier_loss.LabelSmoothedCrossEntropyCriterion, "forward", lambda *_: enabled())
    before = enabled()
    loss = VerifierLoss(task_of(SimpleNamespace(pad=lambda: PAD)), False, 0.1)
    model = make_verifier()[0]
    try:
        torch.backends.cuda.enable_flash_sdp(False)  # as the tasks do on a machine without a GPU
        for length, flash in ((verifier_loss.LONG - 1, False), (verifier_loss.LONG, True)):
            assert loss.forward(model, {"target": torch.zeros(2, length)}) is flash
        assert not enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(before)


def test_the_flash_kernel_computes_fairseqs_loss_and_gradients():
    model = make_verifier()[0]
    model.double().train()
    source, prefix = documents([[4, 3], [2, 5]], [[3, 5], [4, 4]])
    found = []
    for kernel in (nullcontext(), verifier_loss.flash_attention(model)):
        model.zero_grad()
        with kernel, torch.profiler.profile() as profile:
            output = run(model, source, prefix)
        loss = output[prefix.ne(PAD)].log_softmax(-1)[:, 7].sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    kernels = {event.key: event.count for event in profile.key_averages()}
    assert kernels["aten::_scaled_dot_product_flash_attention_for_cpu"] == len(LAYERS)
    assert len(found[0]) == len(found[1]) > 20
    # fairseq's own softmax is in float32, whatever the model's data type.
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(*found))
