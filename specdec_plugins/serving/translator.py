"""`AsyncTranslator`: a translator for asyncio."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, TypeVar, Unpack, overload

from specdec_plugins.decoding.requests import Commit, Step
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.fields import OptionError
from specdec_plugins.options import (
    CALL_FIELDS,
    REQUEST_FIELDS,
    SETTING_FIELDS,
    AllSettings,
    TranslateOptions,
    described,
    per_sentence,
    settings_for,
    texts_of,
)
from specdec_plugins.serving.calls import Call, Calls
from specdec_plugins.serving.guest import Guest
from specdec_plugins.serving.learning import Learning, check_learnable
from specdec_plugins.serving.line import Line
from specdec_plugins.serving.threads import SESSIONS, EngineThread, close_all
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import Codec
from specdec_plugins.translations import Translation
from specdec_plugins.translator import Translator

Result = TypeVar("Result")
ROWS = 64  # rows in flight
QUEUE = 1024  # texts of all calls, waiting and in flight
SMALL, FEW = 1000, 8  # characters and outputs of a call whose work on text takes milliseconds
AGAIN = "glossary", "protect", "protected"  # options with which a text may be translated several times


class QueueFull(Exception):
    """Too many texts are waiting. ``retry_after`` is an estimate in seconds."""

    def __init__(self, retry_after: int):
        super().__init__(f"too many texts are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Closed(Exception):
    """The translator is closing and takes no more texts."""


class Failed(Exception):
    """No session can be opened at present."""


class AsyncTranslator:
    """A `Translator` for one event loop: any number of concurrent calls with options of their own, in one batch.

    ``rows`` bounds the outputs in flight, a beam counting its size, and ``queue`` the texts. Models may share ``threads``.
    """

    def __init__(
        self, translator: Translator, rows: int = ROWS, queue: int = QUEUE, threads: Sequence[EngineThread] | None = None
    ):
        if translator.settings.strategy == "fairseq":
            raise OptionError([("strategy", "fairseq cannot share a batch between calls; use specdec or ar")])
        self.translator, self.queue = translator, queue
        most = min(SESSIONS, translator.engine.sessions)
        self.threads, self._owned = threads or [EngineThread() for _ in range(most)], threads is None
        self.line = Line(translator.engine, rows, self.threads[:most])
        self.pending = 0  # texts
        self.closing = False
        self.learning: Learning | None = None  # from what is served
        self._calls: tuple[Calls, Calls] | None = None  # on the loop's thread, and beside it
        self._running: set[asyncio.Future] = set()

    @classmethod
    @described(*SETTING_FIELDS)
    def from_pretrained(
        cls, folder: str, drafter: Drafter | str | os.PathLike[str] | None = None, **settings: Unpack[AllSettings]
    ) -> "AsyncTranslator":
        """Load a model folder as `Translator.from_pretrained` does. Settings:"""
        return cls(Translator.from_pretrained(folder, drafter, **settings))

    @overload
    async def translate(
        self, texts: str | Iterable[str], timeout: float | None = None, **options: Unpack[TranslateOptions]
    ) -> list[Translation]: ...
    @overload
    async def translate(
        self, texts: str | Iterable[str], timeout: float | None = None, *, nbest: int, **options: Unpack[TranslateOptions]
    ) -> list[list[Translation]]: ...
    @overload
    async def translate(
        self, texts: str | Iterable[str], timeout: float | None = None, *, num_samples: int, **options: Unpack[TranslateOptions]
    ) -> list[list[Translation]]: ...

    @described(*CALL_FIELDS, *REQUEST_FIELDS)
    async def translate(
        self, texts: str | Iterable[str], timeout: float | None = None, **options: Any
    ) -> list[Translation] | list[list[Translation]]:
        """What `Translator.translate` returns for one text or several.

        Cancelling the call drops its texts, and so does ``timeout``, in seconds, with TimeoutError. Raises `QueueFull`, `Closed`,
        and what `Translator.translate` and `Settings` raise.

        Options, and settings of this call in place of the translator's:
        """
        lines = texts_of([texts] if isinstance(texts, str) else texts, "texts", "translate")
        settings, rest = settings_for(self.translator.settings, options)
        results = await self.run(lambda translator: translator.translate(lines, **rest), settings, lines, timeout)
        return per_sentence(results, settings.outputs, options)

    async def stream(
        self, text: str, timeout: float | None = None, passes: bool = False, **options: Unpack[TranslateOptions]
    ) -> AsyncIterator[str | Sequence[Step] | Translation]:
        """Yield the translation in pieces, as passes commit it, and at the end the `Translation`. Nothing is taken back.

        With ``passes`` also yield what these accepted and refused, before their pieces; of a search all passes at its end. Other
        options as for `translate`.
        """
        settings, rest = settings_for(self.translator.settings, options)
        pieces: asyncio.Queue[str | Sequence[Step] | None] = asyncio.Queue()
        calls = self._calls_for(settings, [text])

        def tell(piece: str | Sequence[Step]) -> None:
            calls.tell(partial(pieces.put_nowait, piece))

        deltas, told = Deltas(self.translator.codec, tell), Counter[int]()

        def on_commit(commit: Commit) -> None:
            if passes and (steps := commit.steps[told[commit.request] :]):
                told[commit.request] += len(steps)
                tell(steps)
            deltas.push(commit)

        if settings.drawn > 1 or settings.context or not rest.keys().isdisjoint(AGAIN):
            raise ValueError("a stream has one output; it does not support nbest, num_samples, mbr, context, protect or glossary")
        call = self.run(lambda translator: translator.translate([text], **rest), settings, [text], timeout, on_commit)
        call.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield (await call)[0]
        finally:
            call.cancel()

    async def close(self, grace: float | None = None) -> None:
        """Refuse new calls, finish those that were accepted, up to ``grace`` seconds, and stop."""
        self.closing = True
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace)
            for call in late:
                call.set_exception(Closed("the server stopped before the translation was done"))
        if self.learning is not None:
            await asyncio.to_thread(self.learning.close)
        if self._owned:
            await asyncio.to_thread(close_all, self.threads)

    @property
    def stats(self) -> DecodeStats:
        """Totals over all calls."""
        each = [self.translator.stats, *(desk.stats for desk in self.line.desks)]
        return reduce(add, (replace(stats, lengths=stats.lengths.copy()) for stats in each))  # they change meanwhile

    @property
    def large(self) -> int:
        """Calls beside the event loop that have not come to their end, although they may have been cancelled."""
        return 0 if self._calls is None else self._calls[1].running

    def run(
        self,
        work: Callable[[Translator], Result],
        settings: Settings,
        texts: Sequence[str],
        timeout: float | None = None,
        on_commit: Callable[[Commit], None] | None = None,
    ) -> asyncio.Future[Result]:
        """The future result of ``work`` on ``texts``, to which a translator of these settings is given; it may call all its
        methods. Unless the work is small, it is done beside the event loop (`calls.py`)."""
        if self.closing:
            raise Closed("the server is stopping")
        if self.line.failed:
            raise Failed("the model cannot translate at present; the server's log says why")
        if self.learning is not None:
            check_learnable(settings)
        if (count := len(texts)) > self.queue:
            raise ValueError(f"{count:,} texts do not fit in a queue of {self.queue:,}; send fewer at a time")
        if self.pending + count > self.queue:
            raise QueueFull(self._retry_after())
        call = Call[Result](self._calls_for(settings, texts))
        guest, future = Guest(self.line, call, on_commit), call.future
        late = call.calls.loop.call_later(timeout, expire, future) if timeout is not None else None

        def ended(future: asyncio.Future) -> None:
            self.pending -= count
            self.translator.stats.seconds["text"] += guest.stats.seconds["text"]
            self._running.discard(future)
            if late is not None:
                late.cancel()
            if not call.ended:  # cancelled, or too late
                guest.cancel()
                call.end()

        self.pending += count
        self._running.add(future)
        future.add_done_callback(ended)
        call.start(lambda: work(self.translator.under(settings, guest)))
        return future

    def _calls_for(self, settings: Settings, texts: Sequence[str]) -> Calls:
        """Where a call for these texts runs."""
        loop = asyncio.get_running_loop()
        if self._calls is None or self._calls[0].loop is not loop:
            self._calls = Calls(loop), Calls(loop, beside=True)
        on_the_loop, beside = self._calls
        small = sum(map(len, texts)) <= SMALL and len(texts) * settings.drawn <= FEW and not settings.mbr
        return on_the_loop if small else beside

    def _retry_after(self) -> int:
        """Seconds until a queue that is full now may have room."""
        return max(1, min(60, round(self.pending * self.line.desks[0].seconds)))


def expire(future: asyncio.Future) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class Deltas:
    """The text of an output as its commits arrive; of a document, window by window, joined as `documents.joined` does."""

    def __init__(self, codec: Codec, tell: Callable[[str], object]):
        self.codec, self.tell = codec, tell
        self.decoders: dict[int, Any] = {}
        self.held: dict[int, str] = {}  # text of windows whose turn has not come
        self.finished: set[int] = set()
        self.window, self.told, self.begun = 0, False, False  # the present one; whether there is text of any, and of this one

    def push(self, commit: Commit) -> None:
        number = commit.request
        if number not in self.decoders:
            self.decoders[number] = self.codec.decoder()
        text = self.decoders[number].push(commit.tokens)
        if commit.finished is not None:
            text += self.decoders[number].finish()
            self.finished.add(number)
        self.held[number] = self.held.get(number, "") + text
        while True:
            if text := self.held.pop(self.window, ""):
                self.tell(" " * (self.told and not self.begun) + text)
                self.told = self.begun = True
            if self.window not in self.finished:
                return
            self.window, self.begun = self.window + 1, False
