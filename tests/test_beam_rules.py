"""The rules of beam search on random tables of log-probabilities, against slow readings of the rules and the libraries."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import transformers

from specdec_plugins.decoding import search as rules
from specdec_plugins.decoding.options import Beam
from specdec_plugins.decoding.search.beam import Ranked, Search

PAD, EOS, START, UNK, SIZE = 1, 2, 2, 3, 24
TIE = 1e-5  # the libraries add up in float32


class Table:
    """Log-probabilities of the token after each prefix, at random; ``bias`` decides how soon sentences end."""

    def __init__(self, seed, bias, least=1, scale=1.5):
        self.seed, self.bias, self.least, self.scale, self.known = seed, bias, least, scale, {}

    def __call__(self, prefix):
        prefix = tuple(prefix)
        if prefix not in self.known:
            drawn = self.scale * np.random.default_rng([self.seed, *prefix]).standard_normal(SIZE)
            drawn[EOS] += self.bias
            self.known[prefix] = drawn - np.logaddexp.reduce(drawn)
        return self.known[prefix]

    def constrained(self, prefix, how):
        """What a pass returns."""
        scores = self(prefix).copy()
        if how.ends and len(prefix) >= how.limit:
            scores[np.arange(SIZE) != EOS] = -math.inf
        elif len(prefix) < self.least:
            scores[EOS] = -math.inf
        scores[PAD] = -math.inf
        scores[UNK] -= how.beam.unk_penalty
        return scores - np.logaddexp.reduce(scores) if how.beam.renormalize else scores


def tokens_of(node):
    return [each.token for each in node.path()]


def searched(table, how):
    """By the engine's rules: (tokens, score, token scores) of each finished hypothesis, best first; and the smallest margin."""
    beams, margin = rules.begin(how, [], []), math.inf
    while not beams.over:
        found = []
        for node in beams.live:
            scores = table.constrained(tokens_of(node), how)
            order = np.argsort(-scores, kind="stable")[: 2 * how.beam.size]
            found.append(Ranked(order.tolist(), scores[order].tolist()))
        totals = sorted((node.total + score for node, each in zip(beams.live, found) for score in each.scores), reverse=True)
        after = rules.step(how, beams, found)
        assert [node.before for node in after.live] == [beams.live[parent] for parent in after.parents]
        ranked = [*totals[: 2 * how.beam.size + 1]]
        margin = min([margin, *(one - other for one, other in pairwise(ranked) if other > -math.inf)])
        beams = after
        scores = sorted([*(score for score, _ in beams.finished), *bounds(how, beams)])
        margin = min([margin, *(other - one for one, other in pairwise(scores))])
    best = beams.best()
    return [(tokens_of(node), score, [each.score for each in node.path()]) for score, node in best], margin


def bounds(how, beams):
    """What the search compares finished scores with, under Hugging Face's rules."""
    if how.beam.rules == "fairseq" or not beams.live:
        return []
    return [beams.live[0].total / length**how.beam.length_penalty for length in (beams.live[0].length, how.limit + how.ends)]


def naive_fairseq(table, how):
    """As the issue states the rules, with whole matrices: every beam's every token, at every step."""
    size, live, done = how.beam.size, [((), 0.0)], []
    for step in range(how.limit + 1):
        matrix = np.array([total + table.constrained(prefix, how) for prefix, total in live])
        order = np.argsort(-matrix, axis=None, kind="stable")[: 2 * size]
        kept = []
        for rank, place in enumerate(order):
            beam, token = divmod(int(place), SIZE)
            total = matrix[beam, token]
            if total == -math.inf:
                continue
            if token == EOS:
                if rank < size and len(done) < size:
                    done.append(((*live[beam][0], EOS), total / (step + 1) ** how.beam.length_penalty))
            else:
                kept.append(((*live[beam][0], token), total))
        if len(done) == size:
            break
        live = kept[:size]
    return sorted(done, key=lambda each: -each[1])


def naive_huggingface(table, how):
    """As the issue states the rules; ``limit`` counts the tokens that `generate` may write, less a forced eos."""
    size, penalty, live, done = how.beam.size, how.beam.length_penalty, [((), 0.0)], []
    most = how.limit + how.ends
    while True:
        length = len(live[0][0]) + 1
        rows = []
        for prefix, total in live:
            scores = table.constrained(prefix, how)
            if how.ends and length == most:
                scores[:] = -math.inf
                scores[EOS] = 0
            rows.append(total + scores)
        matrix = np.array(rows)
        found = []
        for place in np.argsort(-matrix, axis=None, kind="stable")[: 2 * size]:
            beam, token = divmod(int(place), SIZE)
            if matrix[beam, token] > -math.inf:
                found.append(((*live[beam][0], token), matrix[beam, token]))
        ends = [each[0][-1] == EOS or length == most for each in found]
        live = [each for each, end in zip(found, ends) if not end][:size]
        done += [(tokens, total / length**penalty) for (tokens, total), end in list(zip(found, ends))[:size] if end]
        done = sorted(done, key=lambda each: -each[1])[:size]
        if not live:
            return done
        if len(done) == size:
            if how.beam.early_stopping == "true":
                return done
            hoped = most if how.beam.early_stopping == "never" and penalty > 0 else length
            if live[0][1] / hoped**penalty <= done[-1][1]:
                return done


def cases(library, count, seed=0):
    """Random searches and their tables."""
    rng = random.Random(seed)
    for number in range(count):
        fairseqs = library == "fairseq"
        beam = Beam(
            rng.choice([1, 2, 4, 5, 8]),
            library,
            rng.choice([0.6, 1, 1.4]),
            unk_penalty=rng.choice([0, 0, 0.8]) if fairseqs else 0,
            renormalize=not fairseqs and rng.random() < 0.5,
            early_stopping=rng.choice(["false", "true", "never"]),
        )
        ends = fairseqs or rng.random() < 0.5
        how = Search(beam, EOS, rng.choice([1, 2, 5, 9, 14]), ends)
        yield Table(seed + number, rng.choice([-4, -1, 0, 1, 3]), least=1 if fairseqs else rng.choice([0, 0, 2])), how


@pytest.mark.parametrize("library, naive", [("fairseq", naive_fairseq), ("huggingface", naive_huggingface)])
def test_a_search_is_the_naive_one(library, naive, request, count=150):
    for table, how in cases(library, count):
        found, _ = searched(table, how)
        assert [(tokens, pytest.approx(score, abs=1e-9)) for tokens, score in naive(table, how)] == [
            (tuple(tokens), score) for tokens, score, _ in found
        ], how
        for _, score, parts in found:
            assert score == pytest.approx(sum(parts) / len(parts) ** how.beam.length_penalty, abs=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("library, naive", [("fairseq", naive_fairseq), ("huggingface", naive_huggingface)])
def test_thousands_of_searches_are_the_naive_ones(library, naive, request):
    test_a_search_is_the_naive_one(library, naive, request, 3000)


# ---- the libraries themselves


def by_fairseq(table, how):
    """fairseq's own generator on the table: (tokens, score, token scores), best first."""
    from fairseq.data import Dictionary
    from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
    from fairseq.sequence_generator import SequenceGenerator

    dictionary = Dictionary()
    for number in range(SIZE - len(dictionary)):
        dictionary.add_symbol(f"#{number}")

    class Encoder(FairseqEncoder):
        def forward_torchscript(self, net_input):
            return {}

        def reorder_encoder_out(self, encoder_out, new_order):
            return encoder_out

    class Decoder(FairseqDecoder):
        def forward(self, prev_output_tokens, encoder_out=None, **rest):
            rows = [table(row[1:])[None] for row in prev_output_tokens.tolist()]
            return torch.from_numpy(np.stack(rows)), None

        def max_positions(self):
            return 1000

    model = FairseqEncoderDecoderModel(Encoder(dictionary), Decoder(dictionary))
    beam = how.beam
    generator = SequenceGenerator(
        [model],
        dictionary,
        beam_size=beam.size,
        max_len_a=0,
        max_len_b=how.limit,
        min_len=table.least,
        len_penalty=beam.length_penalty,
        unk_penalty=beam.unk_penalty,
    )
    sample = {"net_input": {"src_tokens": torch.tensor([[EOS]]), "src_lengths": torch.tensor([1])}}
    (found,) = generator.generate([model], sample)
    return [(each["tokens"].tolist(), float(each["score"]), each["positional_scores"].tolist()) for each in found]


def by_transformers(table, how):
    """The beam search of transformers on the table: (tokens, score), best first."""
    library = transformers()
    from transformers.generation import GenerationMixin
    from transformers.modeling_outputs import CausalLMOutput

    class Fake(library.PreTrainedModel, GenerationMixin):
        config_class = library.PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.post_init()

        def forward(self, input_ids, **rest):
            rows = [table(row[1:])[None] for row in input_ids.tolist()]
            return CausalLMOutput(logits=torch.from_numpy(np.stack(rows)))

        def prepare_inputs_for_generation(self, input_ids, **rest):
            return {"input_ids": input_ids}

    model = Fake(library.PretrainedConfig(vocab_size=SIZE))
    beam, most = how.beam, how.limit + how.ends
    config = library.GenerationConfig(
        num_beams=beam.size,
        num_return_sequences=beam.size,
        max_length=most + 1,
        min_length=table.least + 1 if table.least else 0,
        length_penalty=beam.length_penalty,
        early_stopping={"true": True, "false": False}.get(beam.early_stopping, "never"),
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=START,
        forced_eos_token_id=EOS if how.ends else None,
        bad_words_ids=[[PAD]],
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        renormalize_logits=beam.renormalize,
    )
    out = model.generate(torch.tensor([[START]]), generation_config=config)
    found = []
    for row, score in zip(out.sequences[:, 1:].tolist(), out.sequences_scores.tolist()):
        row = row[:most]
        row = row[: row.index(EOS) + 1] if EOS in row else row
        found.append((row[: row.index(PAD)] if PAD in row else row, score))
    return found


def compare(library, theirs, count, seed):
    ties = 0
    for table, how in cases(library, count, seed):
        if library == "huggingface" and how.beam.size == 1:
            continue  # greedy there
        found, margin = searched(table, how)
        expected = theirs(table, how)
        if [tokens for tokens, *_ in found] != [tokens for tokens, *_ in expected]:
            assert margin < TIE, (how, table.seed)
            ties += 1
            continue
        for ours, other in zip(found, expected):
            assert ours[1] == pytest.approx(other[1], abs=TIE)
            for parts in other[2:]:
                assert ours[2] == pytest.approx(parts, abs=TIE)
    assert ties <= 1 + count // 20


def test_searches_are_fairseqs():
    compare("fairseq", by_fairseq, 12, 10_000)


def test_searches_are_those_of_transformers():
    compare("huggingface", by_transformers, 8, 20_000)


@pytest.mark.long
@pytest.mark.parametrize("library, theirs", [("fairseq", by_fairseq), ("huggingface", by_transformers)])
def test_a_thousand_searches_are_the_librarys(library, theirs):
    compare(library, theirs, 1000, 30_000)


# ---- details


def test_what_hypotheses_share_is_never_taken_back():
    rng, how, grown = random.Random(0), Search(Beam(3), EOS, 12), 0
    for seed in range(40):
        beams, shared, prefix = rules.begin(how, [7, 8], [-1.0, -1.0]), 2, [7, 8]
        table = Table(seed, -2, scale=rng.choice([1.5, 4]))
        while not beams.over:
            found = []
            for node in beams.live:
                scores = table.constrained(tokens_of(node), how)
                order = np.argsort(-scores, kind="stable")[:6]
                found.append(Ranked(order.tolist(), scores[order].tolist()))
            beams = rules.step(how, beams, found)
            if beams.live:
                grown += beams.shared > shared
                assert beams.shared >= shared
                shared = beams.shared
                prefix = tokens_of(beams.live[0])[:shared]
        assert all(tokens_of(node)[:shared] == prefix for _, node in beams.finished)
    assert grown > 20


def test_a_search_without_an_allowed_token_ends_with_what_it_has():
    for library in ("fairseq", "huggingface"):
        how = Search(Beam(2, library), EOS, 9)
        for scores in ([-math.inf, -math.inf], [math.nan, math.nan], []):
            beams = rules.step(how, rules.begin(how, [5], [-2.0]), [Ranked([4, 5][: len(scores)], scores)])
            assert beams.over and [tokens_of(node) for _, node in beams.finished] == [[5]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 2.0},
        {"size": 1001},
        {"nbest": 0},
        {"nbest": 5},
        {"length_penalty": math.nan},
        {"unk_penalty": "1"},
        {"length_penalty": 31},
        {"rules": "marian"},
        {"early_stopping": False},
        {"renormalize": 2},
    ],
)
def test_invalid_options_are_named(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} "):
        Beam(**{"size": 4, **wrong})
