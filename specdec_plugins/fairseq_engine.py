"""Strategy ``fairseq``: fairseq's own model and generator on the same weights. Imports fairseq when built."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from specdec_plugins.assignment import usable_device
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau
from specdec_plugins.decoding.assembly import THREADS
from specdec_plugins.decoding.backends.torch.tensors import send, source_tokens
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.options import Beam
from specdec_plugins.decoding.requests import Hypothesis, Request, Source
from specdec_plugins.decoding.roles import NoDrafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.verifier import Unverified
from specdec_plugins.engine import Engine, beam_of
from specdec_plugins.extras import needed
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.spec import Model
from specdec_plugins.formats.to_fairseq import checkpoint_of
from specdec_plugins.model.spec import OutputRules, Symbols
from specdec_plugins.settings import Settings


class FairseqEngine(Engine):
    """An engine that hands its requests to fairseq. It has no sessions."""

    def __init__(self, pair: Pair, settings: Settings):
        self.trained_block_size = pair.block_size
        self._begin(pair, settings, None)
        self.roles = Roles(NoDrafter(), Unverified(self.limits), TopBetaTau(), FixedLength(0))
        device = usable_device(settings.device)
        torch.set_num_threads(settings.threads or THREADS)
        self._generator = FairseqGenerator(pair.verifier, device, getattr(torch, settings.dtype))

    def adopt(self, settings: Settings) -> None:
        super().adopt(settings)
        self.search, self.beam = beam_of(settings, OutputRules()), None  # fairseq's own search, for all requests

    def decode(self, requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> Iterator[Hypothesis]:
        for request in requests:
            request.check(self.limits)
        requests, lengths = sorted(requests, key=lambda each: -len(each.tokens)), (self.settings.max_len_a, self.max_len_b)
        if requests:
            rows = batch_size or len(requests)
            yield from self._generator.decode(requests, self.search, rows, max_tokens, lengths, self.stats)

    def session(self, *_, **__) -> Session:
        raise ValueError("strategy fairseq has no sessions; use specdec or ar")


class FairseqGenerator:
    """fairseq's `SequenceGenerator` for the engine's requests. Raises ValueError for a model that fairseq does not support."""

    def __init__(self, model: Model, device: str, dtype: torch.dtype):
        checkpoint = checkpoint_of(replace(model, spec=replace(model.spec, forced=())))
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # importing it reports missing optional packages
        with needed("train", "strategy fairseq"):
            from fairseq.data import Dictionary
            from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

        args = checkpoint["args"]
        ARCH_CONFIG_REGISTRY[args.arch](args)
        self.dictionaries = []
        for side in ("encoder", "decoder"):
            size = len(model.tensors[f"{side}.embed_tokens.weight"])
            dictionary = Dictionary()  # only its size and special symbols matter here
            for number in range(size - len(dictionary)):
                dictionary.add_symbol(f"#{number}")
            self.dictionaries.append(dictionary)
        source, target = self.dictionaries
        if args.share_all_embeddings:
            target = self.dictionaries[1] = source
        task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
        self.model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
        self.model.load_state_dict(checkpoint["model"], strict=True)
        self.model.make_generation_fast_()
        self.model.to(device=device, dtype=dtype).eval()
        self.device, self.forced = device, model.spec.forced
        self.limits = self.model.max_decoder_positions()

    def decode(
        self,
        requests: Sequence[Request],
        beam: Beam,
        rows: int,
        max_tokens: int | None,
        lengths: tuple[float, int],
        stats: DecodeStats,
    ) -> Iterator[Hypothesis]:
        """Yield the best outputs of each request, in batches of at most ``rows`` and ``max_tokens`` source tokens with padding.

        All requests share their minimum length and n-gram rule. ``lengths`` are fairseq's --max-len-a and -b; as there, the
        longest source sets a batch's length limit.
        """
        from fairseq.sequence_generator import SequenceGenerator

        max_len_a, max_len_b = lengths
        generator = SequenceGenerator(
            [self.model],
            self.dictionaries[1],
            beam_size=beam.size,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
            len_penalty=beam.length_penalty,
            unk_penalty=beam.unk_penalty,
        )
        if requests[0].no_repeat:
            generator.repeat_ngram_blocker = Blocker(requests[0].no_repeat)
        pad = Symbols().pad
        for batch in batches(requests, rows, max_tokens):
            stats.lap(None, self.device)
            source = Source([request.tokens for request in batch], Symbols(), self.device)
            tokens = source_tokens(source)
            left = torch.full_like(tokens, pad)  # fairseq pads sources on the left
            for row, request in enumerate(batch):
                left[row, left.size(1) - len(request.tokens) :] = tokens[row, : len(request.tokens)]
            sample = {"net_input": {"src_tokens": left, "src_lengths": send(source.sizes, self.device)}}
            limit = min(int(max_len_a * left.size(1) + max_len_b), self.limits - 1)
            generator.min_len = min(requests[0].min_length, limit)
            forced = torch.tensor([self.forced] * len(batch), device=self.device) if self.forced else None
            outputs = generator.generate([self.model], sample, prefix_tokens=forced)
            stats.lap("verifying", self.device)
            stats.settle()
            for request, ranked in zip(batch, outputs):
                for number, each in enumerate(ranked[: beam.nbest]):
                    tokens, score = each["tokens"].tolist()[:-1], float(each["score"]) if beam.size > 1 else None
                    parts, cut = each["positional_scores"].tolist(), len(tokens) >= limit
                    found = Hypothesis(request.index, tokens, parts, [], cut, number, score=score)
                    stats.finish(found)
                    stats.iterations += len(tokens) + 1
                    stats.own_tokens += len(tokens) + 1
                    yield found


class Blocker:
    """fairseq's rule against repeated n-grams, without padding: fairseq passes padding, and then its Python code bans nothing."""

    def __init__(self, size: int):
        from fairseq.ngram_repeat_block import NGramRepeatBlock

        self.rule = NGramRepeatBlock(size, use_extension=False)

    def __call__(self, tokens: Tensor, scores: Tensor, sentences: int, beam: int, step: int) -> Tensor:
        return self.rule(tokens[:, : step + 1], scores, sentences, beam, step)


def batches(requests: Sequence[Request], rows: int, max_tokens: int | None) -> Iterator[list[Request]]:
    """Batches in order, of at most ``rows`` and ``max_tokens`` tokens with padding; a longer request goes alone."""
    batch: list[Request] = []
    for request in requests:
        longest = max(len(each.tokens) for each in (*batch, request))
        if batch and (len(batch) == rows or (max_tokens is not None and (len(batch) + 1) * longest > max_tokens)):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch
