"""What listens: uvicorn, which starts, stops and loads models again, on signals."""

import asyncio
import logging
import math
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Event

import uvicorn

from specdec_plugins.serving.app import make_app
from specdec_plugins.serving.connection import Patient
from specdec_plugins.serving.garbage import Garbage
from specdec_plugins.serving.learning import Learning, Lessons, continued, learner
from specdec_plugins.serving.service import Model, Service
from specdec_plugins.serving.threads import EngineThread
from specdec_plugins.serving.translator import AsyncTranslator
from specdec_plugins.settings import Settings
from specdec_plugins.text.codec import NoLanguage
from specdec_plugins.translator import Translator

log = logging.getLogger(__name__)
DRAIN = 5  # seconds that answers have to leave once translations have ended; clients may not read them


def load(
    name: str,
    folder: str,
    drafter: str | None,
    settings: Settings,
    rows: int,
    queue: int,
    threads: Sequence[EngineThread],
    learn: Lessons | None = None,
) -> Model:
    """Load a model to serve, whose drafter may ``learn``."""
    if learn is None:
        translator = Translator.from_pretrained(folder, drafter, **vars(settings))
    else:
        translator = Translator(continued(name, learner(folder, drafter), learn.keep), settings)
    with suppress(NoLanguage):  # now, as a codec's libraries would hold up the first requests
        translator.codec.decode(translator.codec.encode("A.").text)
    served = AsyncTranslator(translator, rows, queue, threads)
    if learn is not None:
        served.learning = Learning(name, served.line, folder, learn)
    return Model.of(name, served)


class Server(uvicorn.Server):
    """Serves a service, whose models it loads again by ``loads`` on SIGHUP; ``again`` says whether one has arrived. At its end
    translations have ``grace`` seconds left. ``names``: those of `make_app`."""

    def __init__(
        self,
        service: Service,
        address: tuple[str, int],
        loads: Sequence[Callable[[], Model]],
        again: Event,
        grace: float,
        names: Collection[str] | None,
    ):
        app = make_app(service, grace, names)
        app.openapi()  # is kept
        super().__init__(
            uvicorn.Config(
                app,
                *address,
                access_log=False,
                log_config=None,
                server_header=False,
                loop="asyncio",
                http=Patient,
                ws="none",
                timeout_graceful_shutdown=math.ceil(grace) + DRAIN,
            )
        )
        self.service, self.loads, self.again, self.grace = service, loads, again, grace
        self.garbage = Garbage()  # once models are loaded
        self.reloading: asyncio.Task | None = None
        self.collecting: asyncio.Task | None = None

    async def startup(self, sockets=None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another process has come to listen there since
            raise OSError(error.errno, error.strerror, f"{self.config.host}:{self.config.port}") from None
        for each in sockets or ():
            host, port, *_ = each.getsockname()
            log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        self.collecting = asyncio.ensure_future(self.garbage.collect(self.busy))
        if self.again.is_set():
            self.reload()

    def busy(self) -> bool:
        """Whether a large call runs."""
        return any(each.served.large for each in self.service.models)

    def reload(self) -> None:
        self.again.set()
        if self.reloading is None or self.reloading.done():
            self.reloading = asyncio.ensure_future(self.reloads())

    async def reloads(self) -> None:
        """Once more if SIGHUP arrives meanwhile: a folder may have been replaced after it was read."""
        while self.again.is_set() and not self.should_exit:
            self.again.clear()
            await self.load_all()

    async def load_all(self) -> None:
        """Load the folders again, one at a time, and use each from then on. One that cannot be loaded changes nothing."""
        self.garbage.thaw()
        for place, load in enumerate(self.loads):
            name = self.service.models[place].name
            try:
                self.service.swap(place, await asyncio.to_thread(load))
            except Exception as error:  # an unreadable folder must not stop the server
                log.error("model %s was not loaded again, and stays as it was: %s", name, error)
            else:
                log.info("model %s was loaded again", name)

    async def shutdown(self, sockets=None) -> None:
        """Connections end when their requests are answered, at the latest when the translators have closed."""
        closing = asyncio.ensure_future(self.service.close(self.grace))
        await super().shutdown(sockets)
        await closing
