"""Text in, text out: a codec, an engine, and this facade over both.

>>> from specdec_plugins import Translator
>>> translator = Translator.from_pretrained("data/demo.en-de")
>>> translator.translate(["A dog runs."])[0].text
'Ein Hund rennt.'
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Hypothesis
from specdec_plugins.documents import translate_documents
from specdec_plugins.engine import BatchSize, Engine
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.settings import WHOLE, OptionError, Settings
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.translations import Source, SourceTooLong, Translation

__all__ = ["SourceTooLong", "Translation", "Translator"]

TooLong = Literal["error", "truncate", "skip"]  # what to do with a source beyond the models' positions


class Translator:
    """A loaded pair and its settings. Belongs to one thread at a time. ``drafter`` is one of your own in place of the pair's."""

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        self.codec, windows = pair.codec, settings.windows
        if isinstance(windows, int) and not self.codec.concatenates:
            raise OptionError([("windows", f"of several sentences are not for codec {pair.config.name}; {WHOLE} is")])
        self.engine = Engine(pair, settings, drafter)
        self.pair, self.settings, self.max_source = self.engine.pair, self.engine.settings, self.engine.max_source
        if isinstance(windows, int) and windows >= self.max_source:
            raise OptionError([("windows", f"of {windows} tokens: the models read at most {self.max_source - 1:,}")])
        self.codec.encode("")  # what is wrong with its files shows before there is work

    @classmethod
    def from_pretrained(cls, folder: str, drafter: Drafter | None = None, **settings) -> "Translator":
        """Load a model folder; keywords are the fields of `Settings`. Raises ValueError with what is wrong."""
        return cls(load_folder(folder), Settings(**settings), drafter)

    @property
    def stats(self) -> DecodeStats:
        """Sums over everything translated, until ``engine.take_stats()``."""
        return self.engine.stats

    def translate(
        self, sentences: Sequence[str], batch_size: BatchSize = "auto", bpe: bool = False, remove_bpe: bool = True,
        max_tokens: int | None = None, too_long: TooLong = "error", first: int = 0, hints: Sequence[str] | None = None,
    ) -> list[Translation]:  # fmt: skip
        """The translations of some sentences, in their order; several of each, one after the other, with `Settings.num_samples`.

        ``batch_size`` sentences are decoded at a time (auto: `Settings.usual_batch_size`; None: any number), and at most
        ``max_tokens`` source tokens, padding included. With ``bpe`` the sentences are tokens already, and so are the texts,
        joined to words under ``remove_bpe``. ``first`` is the number of the first sentence in a longer text, which samples depend
        on. ``hints`` are earlier translations, for a drafter that uses them; empty where there is none. Raises SourceTooLong
        before anything is decoded.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not one string")
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        if self.settings.windows is None:
            results = self._translate_lines(sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints)
        elif hints is not None:
            raise ValueError("hints are of whole lines, and do not go with windows")
        else:
            results = translate_documents(self, sentences, batch_size, bpe, remove_bpe, max_tokens, first)
        if samples := self.settings.mbr:
            groups = [results[start : start + samples] for start in range(0, len(results), samples)]
            results = [group[most_agreed([result.text for result in group])] for group in groups]
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

    def _translate_lines(self, sentences, batch_size, bpe, remove_bpe, max_tokens, too_long, first, hints) -> list[Translation]:
        """All samples of each line, each of which is a sentence."""
        sources = [self.source(index, line, bpe, too_long) for index, line in enumerate(sentences)]
        if hints is not None and len(hints) != len(sentences):
            raise ValueError(f"{len(sentences):,} sentences, and {len(hints):,} hints")
        hinted = self.encode_target(hints, bpe) if hints else [()] * len(sources)
        engine, keep_bpe = self.engine, bpe and not remove_bpe
        requests = [
            engine.request(index, source.tokens, forced=source.forced, seeds=engine.seeds(first + index), hint=hint)
            for index, (source, hint) in enumerate(zip(sources, hinted))
            if len(source.tokens) > 1
        ]
        found = {(each.index, each.output): each for each in engine.decode(requests, batch_size, max_tokens)}
        return [
            self.finish(source, found.get((index, sample)), keep_bpe, bpe, sample)
            for index, source in enumerate(sources)
            for sample in range(self.settings.drawn)
        ]

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

    def stream_text(self, sentence: str, too_long: TooLong = "error", first: int = 0, hint: str | None = None) -> Iterator[str]:
        """Yield the translation of one sentence piece by piece, as passes commit it; the pieces add up to its text.

        Nothing is taken back: text that the next token may still change comes with that. Not with several samples, windows or
        strategy fairseq. Options as for `translate`.
        """
        if self.settings.drawn > 1 or self.settings.windows is not None or self.settings.strategy == "fairseq":
            raise ValueError("text of a single sentence and sample can be streamed: not with samples, mbr, windows or fairseq")
        source = self.source(0, sentence, False, too_long)
        if len(source.tokens) <= 1:
            return
        options = {"hint": self.codec.encode_target(hint)} if hint else {}
        decoder = self.codec.decoder()
        request = self.engine.request(0, source.tokens, forced=source.forced, seeds=self.engine.seeds(first), **options)
        for commit in self.engine.stream(request):
            if text := decoder.push(commit.tokens):
                yield text
        if text := decoder.finish():
            yield text

    def encode(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """What `Engine.generate` takes: the token ids of some sentences, eos included. Raises SourceTooLong."""
        return [self.source(index, line, bpe, "error").tokens for index, line in enumerate(sentences)]

    def encode_target(self, sentences: Sequence[str], bpe: bool = False) -> list[list[int]]:
        """The token ids of some translations, without eos, as `Request.hint` has them."""
        return [self.codec.target.ids(line.split()) if bpe else self.codec.encode_target(line) for line in sentences]

    def source(self, index: int, line: str, bpe: bool, too_long: TooLong) -> Source:
        """A sentence as the models read it; ``index`` is what errors call it."""
        words = line.split()
        limit = self.max_source - 1  # without eos
        count = f"over {limit:,}"  # a line has at least as many tokens as words, and these no more letters than symbols have
        letters = limit * self.codec.max_characters  # a word that goes on for a megabyte takes minutes to split
        more = len(words) > limit or sum(map(len, words)) > letters
        if not more or too_long == "truncate":
            tokens, forced = self.tokens_of(" ".join(words[:limit])[: letters + limit], bpe)
            shortened = more or len(tokens) > limit
            if not shortened or too_long == "truncate":
                return Source([*tokens[:limit], self.pair.verifier.spec.symbols.eos], shortened, forced)
            count = f"{len(tokens):,}"
        if too_long == "error":
            raise SourceTooLong(index, count, limit)
        return Source([], True)

    def tokens_of(self, line: str, bpe: bool) -> tuple[list[int], tuple[int, ...]]:
        """The token ids of a source without eos, and those that its output must begin with; with ``bpe`` it is tokens already."""
        if bpe:
            return self.codec.source.ids(line.split()), ()
        encoded = self.codec.encode(line)
        return encoded.ids[:-1], encoded.forced

    def finish(
        self, source: Source, hypothesis: Hypothesis | None, keep_bpe: bool, keep_tokens: bool, sample: int
    ) -> Translation:
        """The text of an output; of a source that was skipped (None) no text."""
        codec, name = self.codec, self.engine.drafter_name
        if hypothesis is None:
            return Translation("", shortened=source.shortened, sample=sample, drafter=name)
        words = codec.target.tokens(hypothesis.tokens)
        return Translation(
            (" ".join(words) if keep_bpe else codec.join(words)) if keep_tokens else codec.decode(hypothesis.tokens),
            codec.source.tokens(source.tokens[:-1]), words, hypothesis.token_scores, hypothesis.steps, hypothesis.cut, sample,
            source.shortened, name,
        )  # fmt: skip
