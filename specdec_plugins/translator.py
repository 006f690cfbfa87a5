"""Text to text: tokenise, decode by a strategy, and put the words together again.

    >>> from specdec_plugins import Translator
    >>> translator = Translator.from_pretrained("data/demo.en-de")
    >>> translator.translate(["A dog runs."])[0].text
    'Ein Hund rennt.'

Knows the engine and the model folder; fairseq only where its own generator is the strategy.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
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
    facts_of,
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
from specdec_plugins.decoding.values import Hypothesis, ModelLimits, Request
from specdec_plugins.encoders import source_encoder, target_encoder
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.settings import WHOLE, OptionError, Settings, rank_faults
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.bpe import remove_bpe as join_subwords
from specdec_plugins.text.lines import MAX_LINE_BYTES
from specdec_plugins.text.tokenizers import BYTE_LEVEL, Tokenizer, load_codes, load_tokenizer
from specdec_plugins.translations import Encoded, SourceTooLong, Translation
from specdec_plugins.windowed import translate_documents, windows_of

__all__ = [
    "USUAL_BLOCK_SIZE", "SourceTooLong", "Translation", "Translator", "beyond_training", "facts_of", "source_encoder",
    "target_encoder",
]  # fmt: skip


class Translator:
    """A loaded pair and its settings; ``stats`` sums over everything translated. Not for use by several threads at once.

    ``roles`` are those that sessions are made of, except under strategy ``fairseq``; they may be replaced.

    ``drafter`` is one of your own in place of the pair's and the settings'.
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
        if isinstance(settings.windows, int) and pair.tokenizer == BYTE_LEVEL:
            raise OptionError([("windows", f"of several sentences are not for byte-level BPE; {WHOLE} is")])
        if settings.tensor_parallel and (faults := rank_faults(settings.device)):
            raise OptionError(faults)
        self.ranks = all_ranks() if settings.tensor_parallel else None
        if self.ranks is not None:
            settings = settings.for_worker(local("RANK"), local("WORLD_SIZE"))
        self.pair, self.settings = pair, settings
        self.drafter_name, self.block_size = drafter_name(pair, settings, drafter), block_size(settings, self.trained_block_size)
        self.stats = DecodeStats()
        device = usable_device(settings.device)
        drafting = pair.drafter if settings.strategy in DRAFTING else None
        specs = [pair.verifier.spec] + ([drafting.spec] if drafting and drafting.spec else [])
        self.max_source = min(spec.encoder.max_positions for spec in specs)
        self.max_target = pair.verifier.spec.decoder.max_positions - 1  # as in fairseq, which counts the closing eos
        if settings.strategy == "drafter":
            self.max_target = min(spec.decoder.max_positions for spec in specs) - 1
        self.limits = ModelLimits(len(pair.source.symbols), len(pair.target.symbols), self.max_source, self.max_target + 1)
        if isinstance(settings.windows, int) and settings.windows >= self.max_source:
            raise OptionError([("windows", f"of {settings.windows} tokens: the models read at most {self.max_source - 1:,}")])
        if settings.strategy == "fairseq":
            from specdec_plugins.measure.fairseq_generator import FairseqGenerator

            torch.set_num_threads(settings.threads or THREADS)
            self._generator = FairseqGenerator(pair.verifier, settings.beam, device, getattr(torch, settings.dtype))
        else:
            self.roles = assign(pair, settings, device, self.trained_block_size, drafter, self.ranks)
        self.longest_symbol = MAX_LINE_BYTES if pair.tokenizer == BYTE_LEVEL else max(map(len, pair.source.symbols))
        self._kept: tuple[tuple, Session] | None = None  # the last session, with its caches, and what it was made for
        self._codes = load_codes(pair.tokenizer, pair.codes, pair.source.symbols) if pair.codes else None
        self._tokenizers: tuple[Tokenizer, Tokenizer] | None = None
        self._encode_target: Callable[[str], list[int]] | None = None

    @classmethod
    def from_pretrained(cls, folder: str, drafter: Drafter | None = None, **settings) -> "Translator":
        """Load a model folder; keywords are the fields of `Settings`. Raises ValueError with what is wrong."""
        return cls(load_folder(folder), Settings(**settings), drafter)

    def translate(
        self,
        sentences: Sequence[str],
        batch_size: int | Literal["auto"] | None = "auto",
        bpe: bool = False,
        remove_bpe: bool = True,
        max_tokens: int | None = None,
        too_long: Literal["error", "truncate", "skip"] = "error",
        first: int = 0,
        hints: Sequence[str] | None = None,
    ) -> list[Translation]:
        """The translations of some sentences, in their order; several of each, one after the other, with `Settings.num_samples`.

        ``batch_size`` sentences are decoded at a time (auto: `Settings.usual_batch_size`; None: any number), and at most
        ``max_tokens`` source tokens, padding included.
        With ``bpe`` the sentences are tokens in BPE already, and so are the texts, joined to words under ``remove_bpe``.
        ``too_long``: what to do with a source beyond the models' positions. Raises SourceTooLong before anything is decoded.
        ``first`` is the number of the first sentence in a longer text, of which samples depend. ``hints`` are earlier
        translations of the sentences, for a drafter that uses them; empty where there is none.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not one string")
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        if self.settings.windows is None:
            results = self._translate_lines(sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints)
        elif hints is not None:
            raise ValueError("hints are of whole lines, and do not go with windows")
        else:
            results = translate_documents(self, sentences, batch_size, bpe, remove_bpe, max_tokens, first)
        if self.settings.mbr:
            samples = self.settings.mbr
            groups = [results[start : start + samples] for start in range(0, len(results), samples)]
            results = [group[most_agreed([result.text for result in group])] for group in groups]
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

    def _translate_lines(self, sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints) -> list[Translation]:
        """All samples of each line, each of which is a sentence."""
        sources = [self._encode(index, line, bpe, too_long) for index, line in enumerate(sentences)]
        if hints is not None and len(hints) != len(sentences):
            raise ValueError(f"{len(sentences):,} sentences, and {len(hints):,} hints")
        hinted = self.encode_target(hints, bpe) if hints else []
        requests = self._requests({i: source.tokens for i, source in enumerate(sources) if len(source.tokens) > 1}, first, hinted)
        found = {(each.index, each.output): each for each in self._decode(requests, batch_size, max_tokens)}
        samples, keep_bpe = self.settings.drawn, bpe and not remove_bpe
        return [
            self.finish(source, found.get((index, sample)), keep_bpe, bpe, sample)
            for index, source in enumerate(sources)
            for sample in range(samples)
        ]

    def windows(self, line: str, bpe: bool = False) -> Iterator[list[int]]:
        """Yield the windows of a line, as the settings say: token numbers of the source, without eos."""
        return windows_of(self, line, bpe)

    def translate_tokens(
        self, sources: Sequence[Sequence[int]], batch_size: int | Literal["auto"] | None = "auto", max_tokens: int | None = None,
        first: int = 0,
    ) -> list[Hypothesis]:  # fmt: skip
        """The outputs of some sources in their order, all samples of each: tokens in, tokens out.

        A source is its token numbers with the closing eos. ``batch_size``, ``max_tokens`` and ``first`` as for `translate`.
        """
        requests = self._requests(dict(enumerate(sources)), first)
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        return sorted(self._decode(requests, batch_size, max_tokens), key=lambda each: (each.index, each.output))

    def encode(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """What `translate_tokens` takes: the token numbers of some sentences, eos included. Raises SourceTooLong."""
        return [self._encode(index, line, bpe, "error").tokens for index, line in enumerate(sentences)]

    def encode_target(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """The token numbers of some translations, without eos, as `Request.hint` has them."""
        if bpe:
            return [self.pair.target.encode(line)[:-1] for line in sentences]
        if self._encode_target is None:
            self._encode_target = target_encoder(self.pair)
        return list(map(self._encode_target, sentences))

    def request(self, index: int, source: Sequence[int], **options) -> Request:
        """A request for a session, with the lengths, the rule against repeats and the sampling of the settings; ``options`` are
        further fields of `Request`. Raises SourceTooLong, or ValueError for a request that these models cannot decode.
        """
        if len(source) > self.max_source:
            raise SourceTooLong(index, f"{len(source) - 1:,}", self.max_source - 1)
        how = self.settings
        usual = {
            "limit": self.limit(len(source)), "min_length": how.min_len, "no_repeat": how.no_repeat_ngram_size,
            "sampling": how.drawing,
        }  # fmt: skip
        request = Request(index, source, **{**usual, **options})
        request.check(self.limits)
        return request

    def _requests(self, sources: Mapping[int, Sequence[int]], first: int, hints: Sequence[Sequence[int]] = ()) -> list[Request]:
        """A request for each source, with an output for each sample."""
        samples, seed = range(self.settings.drawn), self.settings.seed
        return [
            self.request(
                index, source, seeds=[mixed(seed, first + index, n) for n in samples], hint=hints[index] if hints else ()
            )
            for index, source in sources.items()
        ]

    def session(self, rows: int, max_tokens: int | None = None, max_bytes: int | None = None) -> Session:
        """A session on this translator's roles; adds to its statistics. At most ``rows`` rows are in flight, ``max_tokens``
        source tokens (padding included) and about ``max_bytes`` bytes of cache. Not under strategy ``fairseq``.
        """
        roles = self.roles

        def bytes_for(request: Request) -> int:
            return roles.drafter.bytes_for(request) + roles.verifier.bytes_for(request)

        admission: Admission = BoundedAdmission(rows, max_tokens, max_bytes, bytes_for)
        if self.ranks is not None:
            admission = LedAdmission(admission, self.ranks)
        constraints = Constraints.of(self.pair.verifier.spec)
        return Session(*roles, admission, rows, constraints, self.stats, self.settings.device)

    def stream(self, sentences: Iterable[str], buffer_size: int = 512, **options) -> Iterator[Translation]:
        """Yield the translations in order, reading ``buffer_size`` sentences at a time. Options as for `translate`."""
        if isinstance(sentences, str):
            raise TypeError("stream takes a list of sentences, or another iterable, not one string")
        lines, first, begun = iter(sentences), options.pop("first", 0), 0
        hints = options.pop("hints", None)
        while buffer := list(islice(lines, buffer_size)):
            if hints is not None:
                options["hints"] = hints[begun : begun + len(buffer)]
            try:
                yield from self.translate(buffer, first=first + begun, **options)
            except SourceTooLong as error:
                error.index += begun
                raise
            begun += len(buffer)
        if hints is not None and len(hints) != begun:
            raise ValueError(f"{begun:,} sentences, and {len(hints):,} hints")

    def take_stats(self) -> DecodeStats:
        """What ``stats`` summed up since the last time; they begin again."""
        taken, self.stats = self.stats, DecodeStats()
        return taken

    def _encode(self, index: int, line: str, bpe: bool, too_long: str) -> Encoded:
        """The tokens of a sentence with eos."""
        words = line.split()
        limit = self.max_source - 1  # without eos
        count = f"over {limit:,}"  # a line has at least as many tokens as words, and these no more letters than symbols have
        letters = limit * self.longest_symbol  # a word that goes on for a megabyte takes minutes to split
        more = len(words) > limit or sum(map(len, words)) > letters
        if not more or too_long == "truncate":
            text = " ".join(words[:limit])[: letters + limit]
            tokens = self.pair.source.encode(text if bpe else self.to_subwords(text))
            shortened = more or len(tokens) - 1 > limit
            if not shortened or too_long == "truncate":
                return Encoded([*tokens[:-1][:limit], tokens[-1]], shortened)
            count = f"{len(tokens) - 1:,}"
        if too_long == "error":
            raise SourceTooLong(index, count, limit)
        return Encoded([], True)

    def to_subwords(self, line: str) -> str:
        """A line of the source language in subwords, as one string."""
        if self._codes is None:
            raise ValueError(f"{self.pair.name} has no BPE codes, so its input must be tokens in BPE already (bpe)")
        return self._codes.apply(self._languages()[0].tokenize(line)) if line else ""

    def _languages(self) -> tuple[Tokenizer, Tokenizer]:
        """The tokenisers of both languages, loaded when they are used."""
        if self._tokenizers is None:
            name, pair = self.pair.tokenizer, self.pair
            source, target = (load_tokenizer(name, lang, pair.codes) for lang in (pair.source_lang, pair.target_lang))
            self._tokenizers = source, target
        return self._tokenizers

    def _decode(self, requests: Sequence[Request], batch_size: int | None, max_tokens: int | None) -> Iterator[Hypothesis]:
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

    @contextmanager
    def borrowed(self, rows: int, max_tokens: int | None) -> Iterator[Session]:
        """The last session, if it was for as many, else a new one; one whose caller went away is not used again."""
        how = rows, max_tokens, self.roles, get_ident()
        kept, self._kept = self._kept, None
        session = kept[1] if kept and kept[0] == how else self.session(rows, max_tokens)
        session.stats = self.stats
        yield session
        self._kept = how, session

    def limit(self, source_length: int) -> int:
        """The most tokens that the output of so many source tokens, eos included, may have (fairseq's --max-len-a, -b)."""
        return min(int(self.settings.max_len_a * source_length + self.settings.max_len_b), self.max_target)

    def finish(
        self, source: Encoded, hypothesis: Hypothesis | None, keep_bpe: bool, keep_tokens: bool, sample: int
    ) -> Translation:
        """The text of an output; of a source that was skipped (None) no text."""
        if hypothesis is None:
            return Translation("", shortened=source.shortened, sample=sample, drafter=self.drafter_name)
        line = self.pair.target.decode(hypothesis.tokens)
        text = line if keep_bpe else join_subwords(line)
        return Translation(
            text if keep_tokens else self._languages()[1].detokenize(text),
            [self.pair.source.symbols[token] for token in source.tokens[:-1]],
            self.words(hypothesis.tokens),
            hypothesis.token_scores,
            hypothesis.steps,
            hypothesis.cut,
            sample,
            source.shortened,
            self.drafter_name,
        )

    def text(self, subwords: Sequence[str]) -> str:
        """Plain text of the target's subwords."""
        return self._languages()[1].detokenize(join_subwords(" ".join(subwords)))

    def words(self, tokens: Iterable[int]) -> list[str]:
        """Target tokens as subwords; eos is ``</s>``."""
        return [self.pair.target.symbols[token] for token in tokens]
