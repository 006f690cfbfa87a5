"""What all HTTP dialects share: models by language pair, limits, keys, language detection, and errors with a status."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, TypeVar
from weakref import WeakSet

from starlette.requests import Request

from specdec_plugins.extras import needed
from specdec_plugins.fields import OptionError
from specdec_plugins.options import settings_for
from specdec_plugins.serving.downloads import Downloads
from specdec_plugins.serving.glossaries import Glossaries
from specdec_plugins.serving.refused import GONE, SPENT, Refused
from specdec_plugins.serving.translator import AsyncTranslator, Closed, Failed, QueueFull
from specdec_plugins.settings import Settings
from specdec_plugins.text.framed import UNKNOWN, languages_of
from specdec_plugins.text.languages import language, two_letters
from specdec_plugins.text.lines import surrogate
from specdec_plugins.translations import SourceTooLong
from specdec_plugins.translator import Translator

log = logging.getLogger(__name__)
Result = TypeVar("Result")
RESTART = 10  # seconds that a restart takes, for Retry-After
OUTPUTS = 8  # of a request, at most, for each text that it may have
MBR = 256  # samples of a text that are compared with one another
DETECTED = 1000  # characters that a language is detected by


@dataclass(frozen=True)
class Limits:
    """Of a request."""

    characters: int = 100_000
    texts: int = 256
    seconds: float = 60.0
    body: int = 1 << 20  # bytes
    per_minute: int | None = None  # characters of all requests with one key
    quota: int | None = None  # and since the server started

    def check(self, settings: Settings, texts: int) -> None:
        """Raises Refused for more outputs than a request may have."""
        if (settings.mbr or 0) > MBR:
            raise Refused(400, f"mbr {settings.mbr:,} is above the server's limit of {MBR:,} samples of a text")
        if (outputs := texts * settings.drawn) > (most := OUTPUTS * self.texts):
            raise Refused(400, f"{outputs:,} outputs, of {texts:,} texts, exceed the limit of {most:,} of a request")


@dataclass(frozen=True)
class Model:
    """A model that is served, and the languages that it translates from and to, in its own codes."""

    name: str
    served: AsyncTranslator
    sources: Sequence[str]
    targets: Sequence[str]

    @classmethod
    def of(cls, name: str, served: AsyncTranslator) -> "Model":
        pair = served.translator.pair
        return cls(name, served, *languages_of(pair.codec, pair.config))


@dataclass(frozen=True)
class Route:
    """A model, and the codes of a request's languages for it."""

    model: Model
    source: str
    target: str

    @property
    def languages(self) -> dict[str, str | None]:
        """The options of `Translator.translate`."""
        source, target = (None if code == UNKNOWN else code for code in (self.source, self.target))
        return {"source_lang": source, "target_lang": target}


@dataclass
class Service:
    """``keys`` are those that requests must have; None: none. Counts each key's characters."""

    models: list[Model]
    limits: Limits = field(default_factory=Limits)
    keys: frozenset[str] | None = None
    glossaries: Glossaries = field(default_factory=Glossaries)
    downloads: Downloads = field(default_factory=Downloads)
    used: dict[str, int] = field(default_factory=dict)  # characters by key
    _minutes: dict[str, tuple[int, int]] = field(default_factory=dict)  # the last one of each key, and its characters
    _retired: WeakSet[AsyncTranslator] = field(default_factory=WeakSet)
    _detector: Any = None

    def swap(self, number: int, model: Model) -> None:
        """Serve another model from now on. Requests that the old one has accepted end with it."""
        self._retired.add(old := self.models[number].served)
        if old.learning is not None:
            old.learning.stop()
        self.models[number] = model
        self._detector = None

    async def close(self, grace: float) -> None:
        """Refuse requests, and finish those that were accepted, up to ``grace`` seconds."""
        await asyncio.gather(*(each.close(grace) for each in [*(model.served for model in self.models), *self._retired]))

    def route(self, source: str | None, target: str | None, model: str | None = None) -> Route:
        """The first model for a pair of languages; None stands for any. Raises Refused."""
        if model is not None and model not in [each.name for each in self.models]:
            raise Refused(400, f"model '{model:.100}' is unknown; available: {', '.join(each.name for each in self.models)}")
        candidates = [each for each in self.models if model in (None, each.name)]
        for each in candidates:
            codes = code_of(source, each.sources), code_of(target, each.targets)
            if codes[0] is not None and codes[1] is not None:
                return Route(each, codes[0], codes[1])
        pairs = ", ".join(f"{short(each.sources)} to {short(each.targets)}" for each in candidates)
        asked = f"{source or 'any language':.100} to {target or 'any language':.100}"
        raise Refused(400, f"no model translates from {asked}; available: {pairs}")

    def languages(self) -> dict[str, list[str]]:
        """The languages that can be translated to, by language that can be translated from: ISO 639-1 where it has a code."""
        found: dict[str, set[str]] = {}
        for model in self.models:
            for source in model.sources:
                found.setdefault(public(source), set()).update(map(public, model.targets))
        return {source: sorted(targets) for source, targets in sorted(found.items())}

    @property
    def usual(self) -> tuple[str, str]:
        """The languages of requests that name none, of the first model."""
        sources, targets = (map(public, codes) for codes in (self.models[0].sources, self.models[0].targets))
        source = next(sources)
        return source, next((each for each in targets if each != source), source)

    def detect(self, text: str) -> list[tuple[str, float]]:
        """The likeliest languages among those that are served, best first, with probabilities."""
        if (detector := self._detector) is None:
            with needed("serve", "language detection"):
                from py3langid.langid import MODEL_FILE, LanguageIdentifier
            detector = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
            known = {code for code, _ in detector.rank("")}
            served = {*self.languages()}.union(*self.languages().values())
            detector.set_languages(sorted(served & known) or None)
            self._detector = detector
        return [(code, float(sure)) for code, sure in detector.rank(text[:DETECTED])]

    def source_of(self, texts: Sequence[str]) -> tuple[str, float]:
        """The language of texts that name none."""
        sources = self.languages()
        return next(found for found in [*self.detect(" ".join(texts)), (next(iter(sources)), 0.0)] if found[0] in sources)

    def admit(self, key: str | None, texts: Sequence[str]) -> None:
        """Raises Refused for an unknown key, or texts beyond the limits."""
        given = (key or "").encode()
        if self.keys is not None and not sum(compare_digest(given, each.encode()) for each in self.keys):  # time tells nothing
            raise Refused(403, "Invalid API key" if key else "An API key is required")
        if any(surrogate(text) for text in texts):
            raise Refused(400, "a text is not Unicode: it has half of a surrogate pair")
        characters, limits = sum(map(len, texts)), self.limits
        if len(texts) > limits.texts:
            raise Refused(413, f"{len(texts):,} texts exceed the limit of {limits.texts:,}")
        if characters > limits.characters:
            raise Refused(413, f"{characters:,} characters exceed the limit of {limits.characters:,}")
        total = self.used.get(self.account(key), 0) + characters
        if limits.quota is not None and characters and total > limits.quota:
            raise Refused(SPENT, f"more than {limits.quota:,} characters with this key; the quota is spent")
        if self.keys is not None and key is not None and limits.per_minute is not None:
            self._ration(key, characters, limits.per_minute)
        self.used[self.account(key)] = total

    def account(self, key: str | None) -> str:
        """Whose characters are counted; all together without keys, as clients may send any."""
        return "" if self.keys is None else key or ""

    def _ration(self, key: str, characters: int, most: int) -> None:
        """Raises Refused if a key's characters of this minute exceed ``most``."""
        minute, passed = divmod(int(time.monotonic()), 60)
        before = self._minutes.get(key, (minute, 0))
        total = characters + (before[1] if before[0] == minute else 0)
        if total > most:
            raise Refused(429, f"more than {most:,} characters in a minute with this key", 60 - passed)
        self._minutes[key] = minute, total

    async def translate(
        self,
        request: Request,
        route: Route,
        texts: Sequence[str],
        options: Mapping[str, Any],
        work: Callable[[Translator], Result],
    ) -> Result:
        """The result of ``work`` for a request; `AsyncTranslator.run` explains it. Raises Refused."""
        with refusals():
            served = route.model.served
            settings = self.settings(route, options)
            self.limits.check(settings, len(texts))
            return await while_connected(request, served.run(work, settings, texts, self.limits.seconds))

    def settings(self, route: Route, options: Mapping[str, Any]) -> Settings:
        return settings_for(route.model.served.translator.settings, options)[0]


class refusals:
    """Turns errors of a translation into `Refused`. A fault of ours is logged; the caller learns no details."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        match error:
            case None | Refused() | asyncio.CancelledError() | GeneratorExit():
                return
            case QueueFull():
                raise Refused(503, str(error), error.retry_after) from None
            case Closed() | Failed():
                raise Refused(503, str(error), RESTART) from None
            case TimeoutError():
                raise Refused(504, "the translation took too long; send shorter texts") from None
            case SourceTooLong():
                raise Refused(400, f"text {error.index + 1}: {error}; split it, or set too_long") from None
            case OptionError() | ValueError() | TypeError():
                raise Refused(400, str(error)) from None
            case Exception():
                log.error("a translation failed", exc_info=error)
                raise Refused(500, "the translation failed; the server's log says why") from None


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """The result of ``work``, which is cancelled when the client leaves. What is left of the request's body is dropped."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    leaving.add_done_callback(lambda _: working.cancel())
    try:
        return await working
    except asyncio.CancelledError:
        if leaving.done():
            raise Refused(GONE, "the client has gone") from None
        raise
    finally:
        working.cancel()
        leaving.cancel()


def code_of(asked: str | None, known: Sequence[str]) -> str | None:
    """A model's code for a language; None if it does not know the language."""
    if asked is None:
        return known[0]
    try:
        return language(asked, known, "languages")
    except ValueError:
        return None


def public(code: str) -> str:
    """A language's code for clients."""
    return two_letters(code) or code


def short(codes: Sequence[str]) -> str:
    return codes[0] if len(codes) == 1 else f"{len(codes)} languages"
