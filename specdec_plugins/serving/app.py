"""The web application: the dialects' routes, health, metrics, and what surrounds every request."""

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_plugins import __version__
from specdec_plugins.serving import page
from specdec_plugins.serving.api import deepl, libretranslate, own
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.service import GONE, Limits, Refused, Service

access = logging.getLogger("specdec.access")
LINGERING = 1.0  # seconds for reading the rest of a body that is refused


def make_app(service: Service, grace: float = 30.0, names: Collection[str] | None = None) -> FastAPI:
    """The application. At its end translations in flight have ``grace`` seconds left. ``names`` are those that requests may call
    the server by, besides localhost and IP addresses; None: any."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close(grace)

    metrics = Metrics(service)
    options: dict[str, Any] = {
        "docs_url": None,
        "redoc_url": None,  # these load scripts
        "telemetry": {"tracing": False, "metrics": False, "logs": False},  # looking for it took a tenth of the event loop's time
    }
    app = FastAPI(title="SpecDec", version=__version__, lifespan=life, **options)
    for routes in (own, page, libretranslate, deepl):  # they are tried in this order
        app.include_router(routes.router(service))

    @app.get("/health", tags=["operations"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["operations"])
    async def ready() -> Response:
        """503 while stopping, and while a model cannot translate."""
        served = [model.served for model in service.models]
        stopping, failed = any(each.closing for each in served), any(each.line.failed for each in served)
        status = "stopping" if stopping else "failed" if failed else "ready"
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def figures() -> Response:
        return PlainTextResponse(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    add_errors(app)
    app.add_middleware(Boundary, service=service, metrics=metrics, names=names)
    return app


def add_errors(app: FastAPI) -> None:
    """Answers to what goes wrong."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return answer(request, error.status, str(error), wait)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        headers = {**(error.headers or {})}
        path = getattr(request.scope.get("route"), "path", None)
        if error.status_code == 405 and (known := app.openapi()["paths"].get(path)):  # a route knows its own method alone
            headers["Allow"] = ", ".join(sorted(map(str.upper, known)))
        return answer(request, error.status_code, str(error.detail), headers)

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, 400, "; ".join(map(fault, error.errors())))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        """A fault of ours, which uvicorn logs."""
        return answer(request, 500, "the request failed; the server's log says why")


def fault(found: dict) -> str:
    """What is wrong with a field, in one line. It does not repeat what was sent."""
    if len(found["loc"]) == 1:
        return "the body is not a JSON object; send one, with Content-Type: application/json"
    if found["type"] == "json_invalid":
        return f"the body is not JSON: {found['msg']} at character {found['loc'][1]}"
    where = ".".join(str(part) for part in found["loc"][1:])
    return f"{where}: {found['msg']}" if where else found["msg"]


def answer(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error, in the dialect of its path."""
    path, message = request.url.path, message.encode(errors="replace").decode()  # it may quote half of a surrogate pair
    body = {"error": message}
    if path in libretranslate.PATHS:
        status, body = libretranslate.error(status, message)
    elif path.startswith(deepl.PREFIX):
        status, body = deepl.error(status, message)
    return JSONResponse(body, status, headers)


def called(host: str, names: Collection[str]) -> bool:
    """Whether a Host header calls us localhost, an IP address or one of ``names``. A page of another site may have its own name
    lead to this machine (DNS rebinding), and would be as good as ours to a browser."""
    name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".").lower()
    try:
        return name in ("", "localhost", *names) or name.endswith(".localhost") or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class Boundary:
    """Checks hosts, bounds bodies, and notes each request in metrics and the access log: neither texts nor query, which may hold
    some."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics, names: Collection[str] | None):
        self.app, self.service, self.metrics, self.names = app, service, metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        exchange = Exchange(scope, receive, send, self.service.limits)
        try:
            if self.names is None or called(exchange.headers.get(b"host", b"").decode("latin-1"), self.names):
                await self.app(scope, exchange.receive, exchange.send)
            else:
                refusal = answer(Request(scope), 403, "the server is not known by this name; see --allow-host")
                await refusal(scope, receive, exchange.send)
        finally:
            seconds, status = time.perf_counter() - exchange.began, exchange.status
            route = getattr(scope.get("route"), "path", "other")  # known paths only: labels must be few
            self.metrics.note(route, status, seconds)
            client = scope["client"][0] if scope.get("client") else "-"
            access.info("%s %s %s %d %.0f ms", client, scope["method"], route, status, 1000 * seconds)


class Exchange:
    """A request whose body is bounded in time and size, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits):
        self.began, self.limits, self.status, self.size = time.perf_counter(), limits, 500, 0
        self._receive, self._send = receive, send
        self.headers = dict(scope["headers"])
        length = self.headers.get(b"content-length", b"")
        self.announced = int(length[:20]) if length.isdigit() else 0
        self.whole = not self.announced and b"transfer-encoding" not in self.headers  # whether the body has arrived

    async def receive(self) -> Message:
        """The next part of the body. Raises HTTPException."""
        limits = self.limits
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise HTTPException(415, "the body is compressed; send it as it is")
        try:
            async with asyncio.timeout(None if self.whole else self.began + limits.seconds - time.perf_counter()):
                message = await self._read()
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {limits.seconds:g} s") from None
        if max(self.size, self.announced) > limits.body:
            raise HTTPException(413, f"the body exceeds the limit of {limits.body:,} bytes")
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the client has gone."""
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.start" and not self.whole and self.status != GONE:
            await self._discard(2 * self.limits.body)
        if message["type"] == "http.response.start" and not self.whole:  # or the rest, without end perhaps, would be read
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        if self.status != GONE:
            await self._send(message)

    async def _discard(self, most: int) -> None:
        """Read what a client is still sending, or it would see its connection reset and no answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGERING):
                while not self.whole and self.size < most:
                    await self._read()

    async def _read(self) -> Message:
        message = await self._receive()
        self.size += len(message.get("body", b""))
        self.whole = self.whole or not message.get("more_body")
        return message
