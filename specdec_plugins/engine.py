"""A loaded pair of models with settings: token ids in, token ids out.

Owns models, roles, limits and sessions. Knows no text: a codec turns it into ids before, and ids into text afterwards
(`translator.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Literal

import torch

from specdec_plugins.assignment import (
    DRAFTING,
    USUAL_BLOCK_SIZE,
    assign,
    beyond_training,
    block_size,
    drafter_name,
    usable_device,
)
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.assembly import THREADS
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import MAX_BLOCK_SIZE
from specdec_plugins.decoding.ranks import LedAdmission, all_ranks, local
from specdec_plugins.decoding.roles import Admission, Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Commit, Hypothesis, ModelLimits, Request
from specdec_plugins.formats.folder import Pair
from specdec_plugins.settings import OptionError, Settings, rank_faults
from specdec_plugins.translations import SourceTooLong

BatchSize = int | Literal["auto"] | None  # rows decoded at a time; auto: `Settings.usual_batch_size`, None: any number


class Engine:
    """``stats`` sums over everything decoded. Belongs to one thread at a time.

    ``roles`` make up the sessions, except under strategy ``fairseq``; they may be replaced. ``drafter`` is one of your own in
    place of the pair's and the settings'.
    """

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        if pair.drafter is not None and not 1 <= pair.block_size <= MAX_BLOCK_SIZE:
            raise ValueError(f"{pair.name}: a block size of {pair.block_size:,}; from 1 to {MAX_BLOCK_SIZE:,}")
        self.trained_block_size = pair.block_size
        if drafter is not None or settings.draft_with:
            self.trained_block_size = pair.block_size or USUAL_BLOCK_SIZE
            pair = replace(pair, drafter=None)
        elif pair.drafter is None and settings.strategy in DRAFTING:
            choice = ", or one without weights, by name (--draft-with)" if settings.strategy == "specdec" else ""
            raise ValueError(f"{pair.name} has no drafter, which strategy {settings.strategy} needs{choice}")
        if settings.max_positions:
            pair = beyond_training(pair, settings.max_positions, settings.strategy != "ar")
        if settings.tensor_parallel and (faults := rank_faults(settings.device)):
            raise OptionError(faults)
        self.ranks = all_ranks() if settings.tensor_parallel else None
        if self.ranks is not None:
            settings = settings.for_worker(local("RANK"), local("WORLD_SIZE"))
        self.pair, self.settings, self.stats = pair, settings, DecodeStats()
        self.drafter_name, self.block_size = drafter_name(pair, settings, drafter), block_size(settings, self.trained_block_size)
        self.limits = limits_of(pair, settings)
        self.max_source, self.max_target = self.limits.source_positions, self.limits.target_positions - 1
        device = usable_device(settings.device)
        if settings.strategy == "fairseq":
            from specdec_plugins.measure.fairseq_generator import FairseqGenerator

            torch.set_num_threads(settings.threads or THREADS)
            self._generator = FairseqGenerator(pair.verifier, settings.beam, device, getattr(torch, settings.dtype))
        else:
            self.roles = assign(pair, settings, device, self.trained_block_size, drafter, self.ranks)
        self._kept: tuple[tuple, Session] | None = None  # the last session, with its caches, and what it was made for

    def generate(
        self, sources: Sequence[Sequence[int]], batch_size: BatchSize = "auto", max_tokens: int | None = None, first: int = 0
    ) -> list[Hypothesis]:
        """The outputs of some sources in their order, all samples of each. A source is its token ids with the closing eos.

        ``max_tokens`` bounds the source tokens decoded at a time, padding included. ``first`` is the
        number of the first source in a longer text, which samples depend on.
        """
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        requests = [self.request(index, source, seeds=self.seeds(first + index)) for index, source in enumerate(sources)]
        return sorted(self.decode(requests, batch_size, max_tokens), key=lambda each: (each.index, each.output))

    def decode(self, requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> Iterator[Hypothesis]:
        """Yield the outputs of some requests as they finish."""
        options = self.settings
        if not requests:
            return
        requests = sorted(requests, key=lambda request: -len(request.tokens))  # short outputs end a run, and leave few rows idle
        rows = batch_size or len(requests) * options.drawn
        if options.strategy == "fairseq":
            yield from self._generator.decode(requests, rows, max_tokens, options.max_len_a, options.max_len_b, self.stats)
            return
        rows = max(options.drawn, min(rows, len(requests) * options.drawn))  # all samples of a sentence at least
        with self.borrowed(rows, max_tokens) as session:
            yield from session.run(requests)

    def stream(self, request: Request) -> Iterator[Commit]:
        """Yield what each pass commits to the outputs of a request. Raises the error of one that failed."""
        with self.borrowed(request.rows, None) as session:
            session.submit(request)
            while not session.idle:
                for commit in session.step():
                    if commit.finished is not None and commit.finished.error is not None:
                        raise commit.finished.error
                    yield commit
            session.stats.settle()

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        """A request with the lengths, the rule against repeats and the sampling of the settings.

        ``options`` are further fields of `Request`; ``forced`` tokens add to the usual lengths. Raises SourceTooLong, or
        ValueError for what these models cannot decode.
        """
        if len(source) > self.max_source:
            raise SourceTooLong(index, f"{len(source) - 1:,}", self.max_source - 1)
        settings, forced = self.settings, len(options.get("forced", ()))
        usual = {
            "limit": min(self.limit(len(source)) + forced, self.max_target), "min_length": settings.min_len + forced,
            "no_repeat": settings.no_repeat_ngram_size, "sampling": settings.drawing,
        }  # fmt: skip
        request = Request(index, source, **{**usual, **options})
        request.check(self.limits)
        return request

    def seeds(self, number: int, *more: int) -> list[int]:
        """The seeds of the samples of the source ``number`` of a text; of a part of it, where ``more`` numbers say which."""
        return [mixed(self.settings.seed, number, sample, *more) for sample in range(self.settings.drawn)]

    def limit(self, source_length: int) -> int:
        """The most tokens that the output of so many source tokens, eos included, may have (fairseq's --max-len-a, -b)."""
        return min(int(self.settings.max_len_a * source_length + self.settings.max_len_b), self.max_target)

    def session(self, rows: int, max_tokens: int | None = None, max_bytes: int | None = None) -> Session:
        """A new session; adds to the statistics. At most ``rows`` rows are in flight, ``max_tokens`` source tokens (padding
        included) and about ``max_bytes`` bytes of cache. Not under strategy ``fairseq``.
        """
        roles = self.roles

        def bytes_for(request: Request) -> int:
            return roles.drafter.bytes_for(request) + roles.verifier.bytes_for(request)

        admission: Admission = BoundedAdmission(rows, max_tokens, max_bytes, bytes_for)
        if self.ranks is not None:
            admission = LedAdmission(admission, self.ranks)
        constraints = Constraints.of(self.pair.verifier.spec)
        return Session(*roles, admission, rows, constraints, self.stats, self.settings.device)

    @contextmanager
    def borrowed(self, rows: int, max_tokens: int | None) -> Iterator[Session]:
        """The last session, if it was for as many, else a new one; one whose caller went away is not used again."""
        how = rows, max_tokens, self.roles, get_ident()
        kept, self._kept = self._kept, None
        session = kept[1] if kept and kept[0] == how else self.session(rows, max_tokens)
        session.stats = self.stats
        yield session
        self._kept = how, session

    def take_stats(self) -> DecodeStats:
        """What ``stats`` summed up since the last time; they begin again."""
        taken, self.stats = self.stats, DecodeStats()
        return taken


def limits_of(pair: Pair, settings: Settings) -> ModelLimits:
    """What the models that a strategy uses can read and write."""
    drafting = pair.drafter if settings.strategy in DRAFTING else None
    specs = [pair.verifier.spec] + ([drafting.spec] if drafting and drafting.spec else [])
    writing = specs if settings.strategy == "drafter" else specs[:1]  # their positions include eos, as in fairseq
    return ModelLimits(
        len(pair.source), len(pair.target), min(spec.encoder.max_positions for spec in specs),
        min(spec.decoder.max_positions for spec in writing),
    )  # fmt: skip
