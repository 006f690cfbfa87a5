"""Text in, text out: a codec, an engine, and this facade over both.

>>> from specdec_plugins import Translator
>>> translator = Translator.from_pretrained("data/demo.en-de")
>>> translator.translate(["A dog runs."])[0].text
'Ein Hund rennt.'
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Unpack, overload

from specdec_plugins.annotation import annotated
from specdec_plugins.decoding.requests import Hypothesis
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.documents import translate_documents
from specdec_plugins.engine import Engine
from specdec_plugins.formats.folder import Pair, load_folder, with_drafter
from specdec_plugins.options import (
    CALL_FIELDS,
    REQUEST_FIELDS,
    SETTING_FIELDS,
    AllSettings,
    CallOptions,
    Languages,
    RequestSettings,
    TooLong,
    TranslateOptions,
    check_list,
    described,
    per_sentence,
    settings_for,
    settings_of,
    texts_of,
    values_of,
)
from specdec_plugins.protection import translate_protected
from specdec_plugins.settings import WHOLE, OptionError, Settings
from specdec_plugins.terms import translate_terms
from specdec_plugins.text.agreement import most_agreed
from specdec_plugins.text.codec import Encoded, NoLanguage
from specdec_plugins.text.framed import Framed
from specdec_plugins.text.languages import two_letters
from specdec_plugins.text.numbers import missing_numbers
from specdec_plugins.translations import BESIDE, Source, SourceTooLong, Translation

__all__ = ["SourceTooLong", "Translation", "Translator"]

Pairing = tuple[str | None, str | None]  # the languages of a sentence and of its translation


class Translator:
    """A loaded pair and its settings, for one thread at a time. ``drafter`` replaces the pair's."""

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        self._use(Engine(pair, settings, drafter))
        with suppress(NoLanguage):  # requests may name one
            self.codec.encode("")  # loads the codec's files, so that faults show up front

    @classmethod
    @described(*SETTING_FIELDS)
    def from_pretrained(cls, folder: str, drafter: Drafter | str | None = None, **settings: Unpack[AllSettings]) -> "Translator":
        """Load a model folder, ours or from Hugging Face. ``drafter`` replaces the folder's; it may name one of the folder's, the
        folder of another, or that of a smaller model with the same vocabulary. Folders may be ORG/NAME of the Hub. Raises
        ValueError, and TypeError for an unknown setting.

        Settings (those that shape no model may also be given to `translate`):
        """
        checked = settings_of(settings)
        pair = load_folder(folder, checked.device)
        if isinstance(drafter, str):
            return cls(with_drafter(pair, drafter, checked.device), checked)
        return cls(pair, checked, drafter)

    def through(self, engine: Engine) -> "Translator":
        """This translator with another engine of the same models, and its settings."""
        other = copy(self)
        other._use(engine)
        return other

    def _use(self, engine: Engine) -> None:
        self.engine, self.pair, self.settings = engine, engine.pair, engine.settings
        self.codec = self.pair.codec
        if (prefix := self.settings.prefix) is not None:
            if not isinstance(self.codec, Framed):
                raise OptionError([("prefix", f"is not supported by codec {self.pair.config.name}, only by imported models")])
            self.codec = self.codec.with_prefix(prefix)
        self._frames: dict[Pairing, Encoded] = {}  # the empty text in each pair of languages
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

    def under(self, settings: Settings) -> "Translator":
        """This translator with a call's settings."""
        return self if settings is self.settings or settings == self.settings else self.through(self.engine.under(settings))

    @overload
    def translate(self, sentences: Iterable[str], **options: Unpack[TranslateOptions]) -> list[Translation]: ...
    @overload
    def translate(
        self, sentences: Iterable[str], *, nbest: int, **options: Unpack[TranslateOptions]
    ) -> list[list[Translation]]: ...
    @overload
    def translate(
        self, sentences: Iterable[str], *, num_samples: int, **options: Unpack[TranslateOptions]
    ) -> list[list[Translation]]: ...

    @described(*CALL_FIELDS, *REQUEST_FIELDS)
    def translate(self, sentences: Iterable[str], **options: Any) -> list[Translation] | list[list[Translation]]:
        """Translate sentences in order.

        A call that names ``nbest`` or ``num_samples`` returns a list of that many outputs for each sentence. Where only the
        translator's own settings ask for several, its result is one flat list, in which the outputs of each sentence follow one
        another. Raises SourceTooLong before decoding, TypeError for what is no string and for unknown options, and ValueError.

        Options, and settings of this call in place of the translator's:
        """
        lines = texts_of(sentences, "sentences", "translate")
        settings, rest = settings_for(self.settings, options)
        results = self.under(settings)._translate(lines, CallOptions(**rest))
        return per_sentence(results, settings.outputs, options)

    def _translate(self, sentences: list[str], options: CallOptions) -> list[Translation]:
        """All outputs in one list."""
        count = len(sentences)
        protected = values_of("protected", options.protected, count, "lists of protected spans")
        if options.protect is not None or protected is not None or options.glossary is not None:
            rest = {name: value for name, value in vars(options).items() if name not in ("protect", "protected", "glossary")}
            if options.glossary is not None and options.protect is None and protected is None:
                return translate_terms(self, sentences, options.glossary, rest)
            rest["glossary"] = options.glossary
            return translate_protected(self, sentences, options.protect, protected or [None] * count, rest)
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        languages = list(zip(*(self._each(each, count) for each in (options.source_lang, options.target_lang))))
        results = (self._lines if self.settings.windows is None else self._documents)(sentences, languages, options)
        if not options.tokenized:
            results = self.counted(sentences, results, [target for _, target in languages])
        if drawn := self.settings.mbr:
            groups = [results[start : start + drawn] for start in range(0, len(results), drawn)]
            results = [group[most_agreed([result.text for result in group], self.engine.give_way)] for group in groups]
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

    def _lines(self, sentences: list[str], languages: Sequence[Pairing], options: CallOptions) -> list[Translation]:
        """The outputs of whole lines."""
        count, tokenized = len(sentences), options.tokenized
        hints, beginnings = values_of("hints", options.hints, count), values_of("beginnings", options.beginnings, count)
        targets = [target for _, target in languages]
        pairs = enumerate(zip(sentences, languages))
        sources = [self.source(index, line, tokenized, options.too_long, *each) for index, (line, each) in pairs]
        if beginnings is not None:
            begun = zip(sources, self.encode_target(texts_of(beginnings, "beginnings"), tokenized, targets))
            sources = [replace(source, forced=[*source.forced, *tokens]) for source, tokens in begun]
        hinted = self.encode_target(texts_of(hints, "hints"), tokenized, targets) if hints else [[]] * count
        found = self._decode(sources, hinted, options)
        finish = partial(self.finish, keep_bpe=tokenized and not options.remove_bpe, keep_tokens=tokenized)
        keys = [(n, sample) for n in range(count) for sample in range(self.settings.drawn)]
        results = [finish(sources[n], found.get((n, sample)), sample) for n, sample in keys]
        if options.alignments or options.word_scores:
            outputs = [(sentences[n], sources[n], found[n, sample]) if (n, sample) in found else None for n, sample in keys]
            asked = [languages[n] for n, _ in keys]
            results = annotated(self, results, outputs, asked, options.alignments, options.word_scores, tokenized)
        return results

    def _documents(self, sentences: list[str], languages: Sequence[Pairing], options: CallOptions) -> list[Translation]:
        """The outputs of documents, which are decoded in windows."""
        whole = "beginnings", "hints", "max_length", "alignments", "word_scores"
        if any(getattr(options, name) not in (None, False) for name in whole):
            raise ValueError("beginnings, hints, max_length, alignments and word_scores are for whole lines, not for windows")
        rows, most = self._batch_size(options), options.max_tokens
        return translate_documents(self, sentences, languages, rows, options.tokenized, options.remove_bpe, most, options.first)

    def _batch_size(self, options: CallOptions) -> int | None:
        return options.batch_size if isinstance(options.batch_size, int | None) else self.settings.usual_batch_size

    def __call__(
        self,
        text: str | Sequence[str],
        src_lang: Languages = None,
        tgt_lang: Languages = None,
        max_length: int | None = None,
        **options,
    ) -> list[Any]:
        """Translate as the translation pipeline that ``transformers`` had until version 4: one text or several, a dictionary
        for each; with ``nbest`` or ``num_samples`` several for one text, a list of them for each of several. Options as for
        `translate`."""
        texts = [text] if isinstance(text, str) else text
        found = self.translate(texts, source_lang=src_lang, target_lang=tgt_lang, max_length=max_length, **options)
        records = [[{"translation_text": one.text} for one in (each if isinstance(each, list) else [each])] for each in found]
        listed = isinstance(found[0], list) and not isinstance(text, str) if found else False
        return records if listed else [*chain(*records)]

    def counted(
        self, sentences: Sequence[str], results: Sequence[Translation], languages: Sequence[str | None]
    ) -> list[Translation]:
        """The results, one or several for each sentence, with the numbers that they lack."""
        each, usual, found = len(results) // max(1, len(sentences)), self.pair.config.target_lang, list[Translation]()
        for n, result in enumerate(results):
            lang = languages[n // each] or usual
            missing = [] if result.shortened else missing_numbers(sentences[n // each], result.text, two_letters(lang))
            found.append(replace(result, missing_numbers=missing) if missing or result.missing_numbers else result)
        return found

    @staticmethod
    def _each(value: Languages, count: int) -> Sequence[str | None]:
        """The language of each sentence."""
        known: Sequence[str | None] = [value] * count if isinstance(value, str | None) else value
        values_of("source_lang and target_lang", known, count, "languages")
        return known

    def _decode(self, sources: list[Source], hints: list[list[int]], options: CallOptions) -> dict[tuple[int, int], Hypothesis]:
        """The outputs by source and sample; none for a source that is empty or skipped."""
        engine = self.engine
        limit = {}
        if options.max_length is not None:
            limit["limit"] = min(max(1, options.max_length - 1 - engine.rules.ends), engine.max_target)
        seeds = [engine.seeds(options.first + index) for index in range(len(sources))]
        requests = [
            engine.request(index, source.tokens, forced=source.forced, seeds=seeds[index], hint=hint, **limit)
            for index, (source, hint) in enumerate(zip(sources, hints))
            if source.text
        ]
        found = engine.decode(requests, self._batch_size(options), options.max_tokens)
        return {(each.index, each.output): each for each in found}

    @overload
    def stream(
        self, sentences: Iterable[str], buffer_size: int = 512, **options: Unpack[TranslateOptions]
    ) -> Iterator[Translation]: ...
    @overload
    def stream(
        self, sentences: Iterable[str], buffer_size: int = 512, *, nbest: int, **options: Unpack[TranslateOptions]
    ) -> Iterator[list[Translation]]: ...
    @overload
    def stream(
        self, sentences: Iterable[str], buffer_size: int = 512, *, num_samples: int, **options: Unpack[TranslateOptions]
    ) -> Iterator[list[Translation]]: ...

    def stream(
        self, sentences: Iterable[str], buffer_size: int = 512, **options: Any
    ) -> Iterator[Translation] | Iterator[list[Translation]]:
        """Yield what `translate` returns for each sentence, in order, reading ``buffer_size`` sentences at a time. Options as
        for `translate`."""
        check_list(sentences, "stream")
        CallOptions(**settings_for(self.settings, options)[1])
        if type(buffer_size) is not int or buffer_size < 1:
            raise OptionError([("buffer_size", f"{buffer_size!r:.80} is not a number from 1")])
        return self._stream(iter(sentences), buffer_size, options)

    def _stream(self, lines: Iterator[str], buffer_size: int, options: dict[str, Any]) -> Iterator[Any]:
        first, begun = options.pop("first", 0), 0
        beside = {name: options.pop(name) for name in BESIDE if not isinstance(options.get(name), str | None)}
        while buffer := texts_of(islice(lines, buffer_size), "sentences", first=begun):
            parts = {name: values[begun : begun + len(buffer)] for name, values in beside.items()}
            try:
                yield from self.translate(buffer, first=first + begun, **parts, **options)
            except SourceTooLong as error:
                error.index += begun
                raise
            begun += len(buffer)
        for name, values in beside.items():
            values_of(name, values, begun)

    def stream_text(
        self,
        sentence: str,
        too_long: TooLong = "error",
        first: int = 0,
        hint: str | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **settings: Unpack[RequestSettings],
    ) -> Iterator[str]:
        """Yield the translation of one sentence in pieces, as passes commit it; they concatenate to its text.

        Nothing is taken back: text that the next token may change waits for it. Options and settings as for `translate`.
        """
        for name, text in ("sentence", sentence), ("hint", hint or ""):
            if not isinstance(text, str):
                raise TypeError(f"{name} is {text!r:.80}, not a string")
        CallOptions(too_long=too_long, first=first, source_lang=source_lang, target_lang=target_lang)
        mine = settings_for(self.settings, settings, ())[0]
        if mine.drawn > 1 or mine.windows is not None or mine.strategy == "fairseq":
            raise ValueError("stream_text needs a single sentence and output; it does not support mbr, windows or fairseq")
        return self.under(mine)._stream_text(sentence, too_long, first, hint, source_lang, target_lang)

    def _stream_text(
        self, sentence: str, too_long: TooLong, first: int, hint: str | None, source_lang: str | None, target_lang: str | None
    ) -> Iterator[str]:
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
        languages, lines = (source_lang, target_lang), texts_of(sentences, "sentences", "encode")
        return [self.source(index, line, tokenized, "error", *languages).tokens for index, line in enumerate(lines)]

    def encode_target(self, sentences: Sequence[str], tokenized: bool = False, target_lang: Languages = None) -> list[list[int]]:
        """The token ids of translations without eos, as in `Request.hint`."""
        lines = texts_of(sentences, "sentences", "encode_target")
        codec, pairs = self.codec, zip(lines, self._each(target_lang, len(lines)))
        return [codec.target.ids(line.split()) if tokenized else codec.encode_target(line, lang) for line, lang in pairs]

    def source(
        self,
        index: int,
        line: str,
        tokenized: bool,
        too_long: str,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> Source:
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
                ids = (encoded or frame).framed(text[:limit])
                return Source(ids, text[:limit], shortened, frame.forced, None if more else encoded)
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
            said,
            words,
            hypothesis.token_scores,
            hypothesis.steps,
            hypothesis.cut,
            sample,
            source.shortened,
            name,
            hypothesis.score,
        )
