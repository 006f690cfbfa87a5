"""Text in, text out: a codec, an engine, and this facade over both.

>>> from specdec_plugins import Translator
>>> translator = Translator.from_pretrained("data/demo.en-de")
>>> translator.translate(["A dog runs."])[0].text
'Ein Hund rennt.'
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from specdec_plugins.annotation import annotated
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Hypothesis
from specdec_plugins.documents import translate_documents
from specdec_plugins.engine import BatchSize, Engine
from specdec_plugins.formats.folder import Pair, load_folder, with_drafter
from specdec_plugins.protection import translate_protected
from specdec_plugins.settings import WHOLE, OptionError, Settings
from specdec_plugins.terms import translate_terms
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.codec import Encoded, NoLanguage
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.text.words import Span
from specdec_plugins.translations import BESIDE, Source, SourceTooLong, Translation

__all__ = ["SourceTooLong", "Translation", "Translator"]

TooLong = Literal["error", "truncate", "skip"]  # how to handle a source longer than the models' positions
Languages = str | Sequence[str | None] | None  # of all sentences, or of each; None: the model's own


class Translator:
    """A loaded pair and its settings, for one thread at a time. ``drafter`` replaces the pair's."""

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        self.codec = pair.codec
        self._frames: dict[tuple[str | None, str | None], Encoded] = {}  # the empty text in each pair of languages
        self._use(Engine(pair, settings, drafter))
        with suppress(NoLanguage):  # requests may name one
            self.codec.encode("")  # loads the codec's files, so that faults show up front

    @classmethod
    def from_pretrained(cls, folder: str, drafter: Drafter | str | None = None, **settings) -> "Translator":
        """Load a model folder, ours or from Hugging Face; keywords are fields of `Settings`. ``drafter`` may name the folder of a
        smaller model with the same vocabulary. Raises ValueError."""
        pair = load_folder(folder)
        if isinstance(drafter, str):
            return cls(with_drafter(pair, drafter), Settings(**settings))
        return cls(pair, Settings(**settings), drafter)

    def through(self, engine: Engine) -> "Translator":
        """This translator with another engine of the same models, and its settings."""
        other = copy(self)
        other._use(engine)
        return other

    def _use(self, engine: Engine) -> None:
        self.engine, self.pair, self.settings = engine, engine.pair, engine.settings
        self.max_source = min(engine.max_source, self.codec.max_length or engine.max_source)
        windows = self.settings.windows
        if isinstance(windows, int) and not self.codec.concatenates:
            name = self.pair.config.name
            raise OptionError([("windows", f"of several sentences are not supported by codec {name}; use {WHOLE}")])
        if isinstance(windows, int) and windows >= self.max_source:
            raise OptionError([("windows", f"of {windows} tokens: the models read at most {self.max_source - 1:,}")])

    @property
    def stats(self) -> DecodeStats:
        """Totals since the last ``engine.take_stats()``."""
        return self.engine.stats

    def translate(
        self, sentences: Sequence[str], batch_size: BatchSize = "auto", tokenized: bool = False, remove_bpe: bool = True,
        max_tokens: int | None = None, too_long: TooLong = "error", first: int = 0, hints: Sequence[str] | None = None,
        source_lang: Languages = None, target_lang: Languages = None, max_length: int | None = None, alignments: bool = False,
        word_scores: bool = False, protect: re.Pattern[str] | None = None, protected: Sequence[Sequence[Span]] | None = None,
        glossary: Glossary | None = None, beginnings: Sequence[str] | None = None,
    ) -> list[Translation]:  # fmt: skip
        """Translate sentences in order; with `Settings.nbest` or ``num_samples``, the outputs of each follow one another.

        ``batch_size`` bounds the sentences in flight (auto: `Settings.usual_batch_size`; None: no bound), and ``max_tokens``
        their source tokens, padding included. With ``tokenized`` the sentences are subwords, and so are the texts, unless
        ``remove_bpe`` joins them to words. ``first`` is the index of the first sentence in a longer text: samples depend on it.
        ``hints`` are earlier translations for a drafter that uses them, empty where missing. Multilingual models read
        ``source_lang`` and ``target_lang``, one for all sentences or one for each. ``max_length`` limits an output's tokens as in
        ``transformers``, the one before the first included. ``alignments`` and ``word_scores`` fill in these fields of the
        results. What ``protect`` matches, and the characters ``protected`` of each sentence, outputs contain unchanged
        (`protection.py`). Outputs use the terms of a ``glossary`` (`terms.py`) and begin with the texts ``beginnings``. Raises
        SourceTooLong before decoding.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not one string")
        if protect is not None or protected is not None or glossary is not None:
            options: dict[str, Any] = {
                "batch_size": batch_size, "tokenized": tokenized, "max_tokens": max_tokens, "too_long": too_long, "first": first,
                "hints": hints, "source_lang": source_lang, "target_lang": target_lang, "max_length": max_length,
                "alignments": alignments, "word_scores": word_scores, "beginnings": beginnings,
            }  # fmt: skip
            if glossary is not None and protect is None and protected is None:
                return translate_terms(self, sentences, glossary, options)
            options["glossary"] = glossary
            spans = [[]] * len(sentences) if protected is None else protected
            if len(spans) != len(sentences):
                raise ValueError(f"{len(sentences):,} sentences, but {len(spans):,} lists of protected spans")
            return translate_protected(self, sentences, protect, spans, options)
        batch_size = self.settings.usual_batch_size if batch_size == "auto" else batch_size
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        languages = list(zip(*(self._each(each, len(sentences)) for each in (source_lang, target_lang))))
        if self.settings.windows is None:
            pairs = enumerate(zip(sentences, languages))
            sources = [self.source(index, line, tokenized, too_long, *each) for index, (line, each) in pairs]
            if beginnings is not None:
                begun = zip(sources, self.encode_target(beginnings, tokenized, [target for _, target in languages]), strict=True)
                sources = [replace(source, forced=[*source.forced, *tokens]) for source, tokens in begun]
            hinted = self._hints(hints, [target for _, target in languages], tokenized)
            found = self._decode(sources, hinted, batch_size, max_tokens, first, max_length)
            finish = partial(self.finish, keep_bpe=tokenized and not remove_bpe, keep_tokens=tokenized)
            samples = range(self.settings.drawn)
            results = [finish(source, found.get((n, sample)), sample) for n, source in enumerate(sources) for sample in samples]
            if alignments or word_scores:
                keys = [(n, sample) for n in range(len(sources)) for sample in samples]
                outputs = [(sentences[n], sources[n], found[n, sample]) if (n, sample) in found else None for n, sample in keys]
                asked = [languages[n] for n, _ in keys]
                results = annotated(self, results, outputs, asked, alignments, word_scores, tokenized)
        elif beginnings is not None or hints is not None or max_length is not None or alignments or word_scores:
            raise ValueError("beginnings, hints, max_length, alignments and word_scores are for whole lines, not for windows")
        else:
            results = translate_documents(self, sentences, languages, batch_size, tokenized, remove_bpe, max_tokens, first)
        if drawn := self.settings.mbr:
            groups = [results[start : start + drawn] for start in range(0, len(results), drawn)]
            results = [group[most_agreed([result.text for result in group], self.engine.give_way)] for group in groups]
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

    def __call__(
        self, text: str | Sequence[str], src_lang: Languages = None, tgt_lang: Languages = None, max_length: int | None = None,
        **options,
    ) -> list[dict[str, str]]:  # fmt: skip
        """Translate as the translation pipeline that ``transformers`` had until version 4: one text or several, a dictionary
        for each. Options as for `translate`."""
        texts = [text] if isinstance(text, str) else text
        found = self.translate(texts, source_lang=src_lang, target_lang=tgt_lang, max_length=max_length, **options)
        return [{"translation_text": each.text} for each in found]

    @staticmethod
    def _each(value: Languages, count: int) -> list[str | None]:
        """The language of each sentence."""
        if value is None or isinstance(value, str):
            return [value] * count
        if len(value) != count:
            raise ValueError(f"{count:,} sentences, but {len(value):,} languages")
        return list(value)

    def _hints(self, hints: Sequence[str] | None, languages: Sequence[str | None], tokenized: bool) -> list[list[int]]:
        if hints is not None and len(hints) != len(languages):
            raise ValueError(f"{len(languages):,} sentences, but {len(hints):,} hints")
        return self.encode_target(hints, tokenized, languages) if hints else [[]] * len(languages)

    def _decode(
        self, sources: list[Source], hints: list[list[int]], batch_size: int | None, max_tokens: int | None, first: int,
        max_length: int | None,
    ) -> dict[tuple[int, int], Hypothesis]:  # fmt: skip
        """The outputs by source and sample; none for a source that is empty or skipped."""
        engine = self.engine
        options = {}
        if max_length is not None:
            options["limit"] = min(max(1, max_length - 1 - engine.rules.ends), engine.max_target)
        requests = [
            engine.request(index, source.tokens, forced=source.forced, seeds=engine.seeds(first + index), hint=hint, **options)
            for index, (source, hint) in enumerate(zip(sources, hints))
            if source.text
        ]
        return {(each.index, each.output): each for each in engine.decode(requests, batch_size, max_tokens)}

    def stream(self, sentences: Iterable[str], buffer_size: int = 512, **options) -> Iterator[Translation]:
        """Yield translations in order, reading ``buffer_size`` sentences at a time. Options as for `translate`."""
        if isinstance(sentences, str):
            raise TypeError("stream takes a list of sentences, or another iterable, not one string")
        lines, first, begun = iter(sentences), options.pop("first", 0), 0
        beside = {name: options.pop(name) for name in BESIDE if not isinstance(options.get(name), str | None)}
        while buffer := list(islice(lines, buffer_size)):
            parts = {name: values[begun : begun + len(buffer)] for name, values in beside.items()}
            try:
                yield from self.translate(buffer, first=first + begun, **parts, **options)
            except SourceTooLong as error:
                error.index += begun
                raise
            begun += len(buffer)
        for name, values in beside.items():
            if len(values) != begun:
                raise ValueError(f"{begun:,} sentences, but {len(values):,} {name}")

    def stream_text(
        self, sentence: str, too_long: TooLong = "error", first: int = 0, hint: str | None = None, source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Yield the translation of one sentence in pieces, as passes commit it; they concatenate to its text.

        Nothing is taken back: text that the next token may change waits for it. Options as for `translate`.
        """
        if self.settings.drawn > 1 or self.settings.windows is not None or self.settings.strategy == "fairseq":
            raise ValueError("stream_text needs a single sentence and output; it does not support mbr, windows or fairseq")
        source = self.source(0, sentence, False, too_long, source_lang, target_lang)
        if not source.text:
            return
        options = {"hint": self.codec.encode_target(hint, target_lang)} if hint else {}
        decoder = self.codec.decoder()
        request = self.engine.request(0, source.tokens, forced=source.forced, seeds=self.engine.seeds(first), **options)
        for commit in self.engine.stream(request):
            if text := decoder.push(commit.tokens):
                yield text
        if text := decoder.finish():
            yield text

    def encode(
        self, sentences: Sequence[str], tokenized: bool = False, source_lang: str | None = None, target_lang: str | None = None
    ) -> list[list[int]]:
        """The token ids of sentences, eos included, as `Engine.generate` takes them. Raises SourceTooLong."""
        languages = source_lang, target_lang
        return [self.source(index, line, tokenized, "error", *languages).tokens for index, line in enumerate(sentences)]

    def encode_target(self, sentences: Sequence[str], tokenized: bool = False, target_lang: Languages = None) -> list[list[int]]:
        """The token ids of translations without eos, as in `Request.hint`."""
        codec, pairs = self.codec, zip(sentences, self._each(target_lang, len(sentences)))
        return [codec.target.ids(line.split()) if tokenized else codec.encode_target(line, lang) for line, lang in pairs]

    def source(
        self, index: int, line: str, tokenized: bool, too_long: TooLong, source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> Source:  # fmt: skip
        """A sentence as the models read it; errors give its ``index``."""
        self.engine.give_way()
        languages = source_lang, target_lang
        frame = self._frames.get(languages)
        if frame is None:
            frame = self._frames[languages] = self.codec.encode("", *languages)
        limit = self.max_source - len(frame.ids)
        more, count = False, f"over {limit:,}"
        if (each := self.codec.max_characters) is not None:
            # By its words or letters alone: BPE would take minutes for a word of a megabyte.
            words, letters = line.split(), limit * each
            more = len(words) > limit or sum(map(len, words)) > letters
            line = " ".join(words[:limit])[: letters + limit] if more else line
        if not more or too_long == "truncate":
            encoded = None if tokenized else self.codec.encode(line, *languages)
            text = self.codec.source.ids(line.split()) if encoded is None else encoded.text
            shortened = more or len(text) > limit
            if not shortened or too_long == "truncate":
                return Source(frame.framed(text[:limit]), text[:limit], shortened, frame.forced, None if more else encoded)
            count = f"{len(text):,}"
        if too_long == "error":
            raise SourceTooLong(index, count, limit)
        return Source([], [], True)

    def tokens_of(self, line: str, tokenized: bool, source_lang: str | None, target_lang: str | None) -> list[int]:
        """The token ids of a source without special tokens at its ends; with ``tokenized``, its subwords are given."""
        return self.codec.source.ids(line.split()) if tokenized else self.codec.encode(line, source_lang, target_lang).text

    def finish(
        self, source: Source, hypothesis: Hypothesis | None, sample: int, keep_bpe: bool, keep_tokens: bool
    ) -> Translation:
        """An output with its text; None stands for a source that was empty or skipped, and for an output too many of a search."""
        self.engine.give_way()
        codec, name = self.codec, self.engine.drafter_name
        said = codec.source.tokens(source.text)
        if hypothesis is None:
            return Translation("", said, shortened=source.shortened, sample=sample, drafter=name)
        words = codec.target.tokens(hypothesis.tokens)
        return Translation(
            (" ".join(words) if keep_bpe else codec.join(words)) if keep_tokens else codec.decode(hypothesis.tokens),
            said, words, hypothesis.token_scores, hypothesis.steps, hypothesis.cut, sample,
            source.shortened, name, hypothesis.score,
        )  # fmt: skip
