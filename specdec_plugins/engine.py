"""A loaded pair of models with settings: token ids in, token ids out.

Owns models, roles, limits and sessions. Text is encoded and decoded outside, by a codec (`translator.py`).
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Literal

import numpy as np

from specdec_plugins.assignment import USUAL_BLOCK_SIZE, assign, beyond_training, controller_of, drafter_name, usable_device
from specdec_plugins.decoding.admission import BoundedAdmission
from specdec_plugins.decoding.alignment import Aligner
from specdec_plugins.decoding.assembly import drafter_beside
from specdec_plugins.decoding.backends.cpu.binding import Engine as Kernels
from specdec_plugins.decoding.backends.cpu.model import CpuModel
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.loop import Session
from specdec_plugins.decoding.noise import mixed
from specdec_plugins.decoding.options import MAX_BLOCK_SIZE, Beam, Tolerance
from specdec_plugins.decoding.requests import Commit, Hypothesis, ModelLimits, Request
from specdec_plugins.decoding.roles import Controller, Drafter, Roles
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import Pair
from specdec_plugins.formats.spec import DrafterModel
from specdec_plugins.model.spec import Heads, OutputRules
from specdec_plugins.sessions import Host, OwnHost, Requests
from specdec_plugins.settings import DRAFTING, MAX_LEN_B, Settings
from specdec_plugins.translations import SourceTooLong

log = logging.getLogger(__name__)
BatchSize = int | Literal["auto"] | None  # rows in flight; auto: `Settings.usual_batch_size`, None: no bound


class Engine:
    """For one thread at a time. ``stats`` totals everything decoded.

    Sessions consist of ``roles``, which may be replaced. ``drafter`` overrides pair and settings.
    """

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        if pair.drafter is not None and not 1 <= pair.block_size <= MAX_BLOCK_SIZE:
            raise ValueError(f"{pair.name}: a block size of {pair.block_size:,} is not from 1 to {MAX_BLOCK_SIZE:,}")
        self.trained_block_size = pair.block_size
        if drafter is not None or settings.draft_with:
            self.trained_block_size = pair.block_size or USUAL_BLOCK_SIZE
            pair = replace(pair, drafter=None)
        elif pair.drafter is None and settings.strategy == "specdec":
            log.warning(
                "%s has no drafter; decoding without drafts (--draft-with names drafters that need no training)", pair.name
            )
            settings = replace(settings, strategy="ar")
        elif pair.drafter is None and settings.strategy in DRAFTING:
            raise ValueError(f"{pair.name} has no drafter, which strategy {settings.strategy} requires")
        if settings.max_positions:
            pair = beyond_training(pair, settings.max_positions, settings.strategy != "ar")
        self._begin(pair, settings, drafter_name(pair, settings, drafter))
        if self.rules.beams > 1 and settings.beam is None and not settings.sampling:
            count = self.rules.beams
            said = (
                "searching with them; beam 1 is greedy" if self.beam else f"decoding with drafts is greedy; beam {count} searches"
            )
            log.warning("%s asks for %d beams: %s", pair.name, count, said)
        device = usable_device(settings.device)
        self.roles = assign(pair, settings, device, self.trained_block_size, drafter)

    def _begin(self, pair: Pair, settings: Settings, drafter_name: str | None) -> None:
        """Everything but the roles."""
        self.pair, self.rules, self.drafter_name = pair, pair.verifier.spec.outputs, drafter_name
        self.limits = limits_of(pair, settings)
        self.max_source, self.max_target = self.limits.source_positions, self.limits.target_positions - 1
        self.host: Host = OwnHost()
        self.tolerance: Tolerance | None = None  # of requests; None: the session's
        self._controllers: dict[tuple[bool, bool], Controller] = {}  # of calls' settings; shared with `under`
        self.adopt(settings)

    def adopt(self, settings: Settings) -> None:
        """Take over the settings of requests. All others have shaped the roles."""
        self.settings, self.search = settings, beam_of(settings, self.rules)
        self.beam = self.search if self.search.size > 1 else None
        if self.pair.verifier.spec.ends and (self.beam or settings.sampling):
            raise ValueError(
                f"{self.pair.name}: several tokens end its outputs, which only greedy decoding supports: beam 1, no sampling"
            )
        self.min_length = self.rules.min_length if settings.min_len is None else settings.min_len

    def under(self, settings: Settings, host: Host | None = None) -> "Engine":
        """This engine with a call's settings, which differ in `PER_REQUEST` alone: the same models, statistics and sessions, or
        those of another host, whose controllers plan for all calls."""
        other = copy(self)
        other.adopt(settings)
        other.tolerance = Tolerance(settings.beta, math.inf if settings.tau is None else settings.tau)
        kind = settings.adaptive, settings.searches
        if host is not None:
            other.host = host
        elif kind != (self.settings.adaptive, self.settings.searches):
            if kind not in self._controllers:
                drafter, length = self.roles.drafter, self.trained_block_size
                self._controllers[kind] = controller_of(settings, length, drafter)
            other.roles = self.roles._replace(controller=self._controllers[kind])
        return other

    def redraft(self, drafter: DrafterModel) -> None:
        """Draft with other weights, of a drafter of the same code, from the next session on; sessions keep theirs. Needs the CPU
        kernels. Raises ValueError for weights that cannot be."""
        verifier = self.roles.verifier
        assert isinstance(verifier, ModelVerifier) and isinstance(verifier.model, CpuModel)
        self.roles = self.roles._replace(drafter=drafter_beside(verifier.model, self.pair.verifier, drafter))

    @property
    def stats(self) -> DecodeStats:
        """Totals since the last `take_stats`."""
        return self.host.stats

    def generate(
        self, sources: Sequence[Sequence[int]], batch_size: BatchSize = "auto", max_tokens: int | None = None, first: int = 0
    ) -> list[Hypothesis]:
        """The outputs of sources in order, all of each. A source is its token ids with eos. Options as for
        `Translator.translate`.
        """
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        requests = [self.request(index, source, seeds=self.seeds(first + index)) for index, source in enumerate(sources)]
        return sorted(self.decode(requests, batch_size, max_tokens), key=lambda each: (each.index, each.output))

    def decode(self, requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> Iterator[Hypothesis]:
        """Yield the outputs of requests as they finish."""
        if not requests:
            return
        requests = sorted(requests, key=lambda request: -len(request.tokens))  # short outputs last: few rows idle at the end
        rows, group = len(requests) * requests[0].rows, requests[0].rows
        if batch_size:  # at least all rows of a sentence
            rows = min(rows, batch_size * group if self.beam else max(group, batch_size))
        with self.borrowed(rows, max_tokens) as session:
            yield from session.run(requests)

    def stream(self, request: Request) -> Iterator[Commit]:
        """Yield what each pass commits to the outputs of a request. Raises the request's own error."""
        with self.borrowed(request.rows, None) as session:
            session.submit(request)
            while not session.idle:
                for commit in session.step():
                    if commit.finished is not None and commit.finished.error is not None:
                        raise commit.finished.error
                    yield commit
            session.stats.settle()

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        """A request with the settings' lengths, n-gram ban and sampling.

        ``options`` override fields of `Request`; ``forced`` tokens extend the length limits, unless the model's rules count them.
        Raises SourceTooLong; the session checks everything else.
        """
        if len(source) > self.max_source:
            raise SourceTooLong(index, f"{len(source) - 1:,}", self.max_source - 1)
        settings, rules = self.settings, self.rules
        forced = len(options.get("forced", ())) if rules.library == "fairseq" else 0
        no_repeat = rules.no_repeat if settings.no_repeat_ngram_size is None else settings.no_repeat_ngram_size
        usual = {
            "limit": min(self.limit(len(source)) + forced, self.max_target),
            "min_length": self.min_length + forced,
            "no_repeat": no_repeat,
            "sampling": settings.drawing,
            "beam": self.beam,
            "tolerance": self.tolerance,
        }
        return Request(index, source, **{**usual, **options})

    def seeds(self, number: int, *more: int) -> list[int]:
        """The seeds of the samples of source ``number``; ``more`` indices name a part of it. Without sampling, one that no token
        depends on.
        """
        settings = self.settings
        return [mixed(settings.seed, number, sample, *more) for sample in range(settings.drawn)] if settings.sampling else [0]

    def limit(self, source_length: int) -> int:
        """The length limit for a source of that many tokens, eos included: fairseq's --max-len-a, -b, or else the model's."""
        return min(int(self.settings.max_len_a * source_length + self.max_len_b), self.max_target)

    @property
    def max_len_b(self) -> int:
        """The limit's constant part. The model's limit does not depend on the source."""
        settings = self.settings
        usual = MAX_LEN_B if self.rules.limit is None or settings.max_len_a else self.rules.limit
        return usual if settings.max_len_b is None else settings.max_len_b

    def attention(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray]:
        """(T, S) for each source, eos included, and output, without: how much each output token attends to each source token.

        Raises ValueError for a strategy that does not load the verifier.
        """
        verifier = self.roles.verifier
        if not isinstance(verifier, ModelVerifier):
            raise ValueError(f"alignments are not supported by strategy {self.settings.strategy}; use specdec or ar")
        spec = self.pair.verifier.spec
        read = Aligner(verifier.model, self.pair.alignment or Heads.usual(spec.decoder), spec.symbols)
        return self.host.read(lambda some: read(*([*each] for each in zip(*some))), pairs) if pairs else []

    def session(
        self,
        rows: int,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
        usual_rows: int | None = None,
        roles: Roles | None = None,
        stats: DecodeStats | None = None,
    ) -> Session:
        """A new session. At most ``rows`` rows, ``max_tokens`` source tokens (padding included) and about ``max_bytes`` bytes of
        cache are in flight; requests wait while there are ``usual_rows``, and those with more rows are decoded alone.

        Its roles and statistics are the engine's unless others are given.
        """
        roles = roles or self.roles

        def bytes_for(request: Request) -> int:
            return roles.drafter.bytes_for(request) + roles.verifier.bytes_for(request)

        admission = BoundedAdmission(usual_rows or rows, max_tokens, max_bytes, bytes_for)
        constraints = Constraints.of(self.pair.verifier.spec)
        stats = self.stats if stats is None else stats
        return Session(roles, admission, rows, constraints, stats, self.settings.device, self.limits)

    def borrowed(self, rows: int, max_tokens: int | None) -> AbstractContextManager[Requests]:
        """A session of the host's: the last one if its parameters match, else a new one."""
        return self.host.lend((rows, max_tokens, self.roles), lambda: self.session(rows, max_tokens))

    @property
    def kernels(self) -> Kernels | None:
        """What passes run on, if they run on the CPU kernels."""
        model = getattr(self.roles.verifier, "model", None)
        return model.engine if isinstance(model, CpuModel) else None

    @property
    def sessions(self) -> int:
        """How many sessions can run at the same time, each in a thread of its own: on the kernels, one for each of theirs."""
        learns = self.drafter_name is not None and self.pair.drafter is None  # without weights, perhaps from all requests
        return 1 if learns or self.kernels is None else self.kernels.threads

    def join(self, running: int) -> None:
        """Share the CPU threads with so many running sessions, from the next pass of this thread on."""
        if self.kernels is not None:
            self.kernels.members = max(1, self.kernels.threads // running)

    def give_way(self) -> None:
        """Called for each sentence that is read, written or worked on, which may take long for many: lets other callers run, if
        any."""
        self.host.give_way()

    def take_stats(self) -> DecodeStats:
        """The totals since the last call; resets them."""
        taken, self.host.stats = self.host.stats, DecodeStats()
        taken.drafter, taken.beam = self.drafter_name, self.search.size
        return taken


def beam_of(settings: Settings, rules: OutputRules) -> Beam:
    """The beam search that the settings ask for, with what they leave open from the model's rules."""
    penalty = rules.length_penalty if settings.lenpen is None else settings.lenpen
    size = settings.size(rules.beams)
    nbest = min(size, settings.nbest)
    return replace(rules.beam(), size=size, length_penalty=penalty, nbest=nbest, unk_penalty=settings.unkpen)


def limits_of(pair: Pair, settings: Settings) -> ModelLimits:
    """The sizes and positions of the models that the strategy uses."""
    drafting = pair.drafter if settings.strategy in DRAFTING else None
    specs = [pair.verifier.spec] + ([drafting.spec] if drafting and drafting.spec else [])
    writing = specs if settings.strategy == "drafter" else specs[:1]  # their positions include eos, as in fairseq
    return ModelLimits(
        len(pair.source),
        len(pair.target),
        min(spec.encoder.max_positions for spec in specs),
        min(spec.decoder.max_positions for spec in writing),
    )
