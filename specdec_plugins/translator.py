"""Text in, text out: a codec, an engine, and this facade over both.

>>> from specdec_plugins import Translator
>>> translator = Translator.from_pretrained("data/demo.en-de")
>>> translator.translate(["A dog runs."])[0].text
'Ein Hund rennt.'
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache, partial
from itertools import chain, islice
from typing import Any, Unpack, overload

from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.engine import Engine
from specdec_plugins.extras import needed
from specdec_plugins.fields import OptionError
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
    each_language,
    per_sentence,
    settings_for,
    settings_of,
    texts_of,
    values_of,
)
from specdec_plugins.rewriters import rewritten
from specdec_plugins.sessions import Host
from specdec_plugins.settings import DRAFTING, WHOLE, Settings
from specdec_plugins.text.codec import Encoded, NoLanguage
from specdec_plugins.text.framed import Framed
from specdec_plugins.translations import BESIDE, SourceTooLong, Translation
from specdec_plugins.whole_lines import read_line, target_ids

__all__ = ["SourceTooLong", "Translation", "Translator"]


class Translator:
    """A loaded pair and its settings, for one thread at a time. ``drafter`` replaces the pair's."""

    def __init__(self, pair: Pair, settings: Settings, drafter: Drafter | None = None):
        self._use(engine_of(pair, settings, drafter))
        with suppress(NoLanguage):  # requests may name one
            self.codec.encode("")  # loads the codec's files, so that faults show up front

    @classmethod
    @described(*SETTING_FIELDS)
    def from_pretrained(
        cls, folder: str, drafter: Drafter | str | os.PathLike[str] | None = None, **settings: Unpack[AllSettings]
    ) -> "Translator":
        """Load a model folder, ours or from Hugging Face. ``drafter`` replaces the folder's; it may name one of the folder's, the
        folder of another, or that of a smaller model with the same vocabulary. Folders may be ORG/NAME of the Hub. Raises
        ValueError, and TypeError for an unknown setting.

        Settings (those that shape no model may also be given to `translate`):
        """
        checked = settings_of(settings)
        if drafter is not None and checked.draft_with:
            raise OptionError([("drafter", "cannot be combined with `draft_with`")])
        pair = load_folder(folder, checked.device)
        if isinstance(drafter, str | os.PathLike):
            named, drafter = drafter, None
            pair = with_drafter(pair, named, checked.device) if checked.strategy in DRAFTING else pair
        return cls(pair, checked, drafter)

    def _use(self, engine: Engine) -> None:
        self.engine, self.pair, self.settings = engine, engine.pair, engine.settings
        self.codec = self.pair.codec
        if (prefix := self.settings.prefix) is not None:
            if not isinstance(self.codec, Framed):
                raise OptionError([("prefix", f"is not supported by codec {self.pair.config.name}, only by imported models")])
            self.codec = self.codec.with_prefix(prefix)
        self.frame: Callable[..., Encoded] = cache(partial(self.codec.encode, ""))
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

    def under(self, settings: Settings, host: Host | None = None) -> "Translator":
        """This translator with a call's settings, and perhaps another host for its requests."""
        if host is None and settings == self.settings:
            return self
        other = copy(self)
        other._use(self.engine.under(settings, host))
        return other

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
        began, busy = time.perf_counter(), sum(self.stats.seconds.values())
        results = rewritten(self, sentences, options)
        self.stats.seconds["text"] += time.perf_counter() - began - (sum(self.stats.seconds.values()) - busy)
        return results

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
        call = CallOptions(too_long=too_long, first=first, source_lang=source_lang, target_lang=target_lang)
        mine = settings_for(self.settings, settings, ())[0]
        if mine.drawn > 1 or mine.windows is not None or mine.strategy == "fairseq":
            raise ValueError("stream_text needs a single sentence and output; it does not support mbr, windows or fairseq")
        translator = self.under(mine)
        engine, codec = translator.engine, translator.codec

        def pieces() -> Iterator[str]:
            source = read_line(translator, sentence, call, (source_lang, target_lang))
            if not source.text:
                return
            options = {"hint": codec.encode_target(hint, target_lang)} if hint else {}
            decoder = codec.decoder()
            request = engine.request(0, source.ids, forced=source.forced, seeds=engine.seeds(first), **options)
            for commit in engine.stream(request):
                if text := decoder.push(commit.tokens):
                    yield text
            if text := decoder.finish():
                yield text

        return pieces()

    def encode(
        self, sentences: Sequence[str], tokenized: bool = False, source_lang: str | None = None, target_lang: str | None = None
    ) -> list[list[int]]:
        """The token ids of sentences, eos included, as `Engine.generate` takes them. Raises SourceTooLong."""
        lines, how = texts_of(sentences, "sentences", "encode"), CallOptions(tokenized=tokenized)
        return [read_line(self, line, how, (source_lang, target_lang), index).ids for index, line in enumerate(lines)]

    def encode_target(self, sentences: Sequence[str], tokenized: bool = False, target_lang: Languages = None) -> list[list[int]]:
        """The token ids of translations without eos, as in `Request.hint`."""
        lines = texts_of(sentences, "sentences", "encode_target")
        return target_ids(self.codec, lines, each_language(target_lang, len(lines)), tokenized)


def engine_of(pair: Pair, settings: Settings, drafter: Drafter | None = None) -> Engine:
    """The engine for a strategy: ours, or fairseq's generator."""
    if settings.strategy != "fairseq":
        return Engine(pair, settings, drafter)
    with needed("train", "strategy fairseq"):
        from specdec_plugins.fairseq_engine import FairseqEngine

    return FairseqEngine(pair, settings)
