"""LibreTranslate's API, for its clients: /translate, /detect, /languages, /frontend/settings. It answers 400 to every limit."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from specdec_plugins.serving.api.fields import read_fields, text_of, texts_of
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.service import Refused, Route, Service
from specdec_plugins.serving.texts import translate_texts

PATHS = ("/translate", "/detect", "/languages", "/frontend/settings", "/translate_file", "/suggest")
STATUSES = {413: 400, 456: 403, 503: 429, 504: 500}
MOST = 10  # alternatives


def error(status: int, message: str) -> tuple[int, dict[str, str]]:
    """The status and body of an error."""
    return STATUSES.get(status, status), {"error": message}


def router(service: Service) -> APIRouter:
    api = APIRouter(tags=["LibreTranslate"])

    @api.post("/translate")
    async def translate(request: Request) -> dict[str, Any]:
        """Fields, as JSON or a form: q, a string or a list; source, which may be auto; target; format, text or html;
        alternatives; api_key."""
        given = await read_fields(request)
        texts, many = texts_of(needed(given, "q"), "q"), isinstance(given["q"], list)
        source, target, form = (
            text_of(needed(given, "source"), "source"),
            text_of(needed(given, "target"), "target"),
            given.get("format"),
        )
        if form not in (None, "", "text", "html"):
            raise Refused(400, f"{form!s:.40} format is not supported")
        more = alternatives_of(given.get("alternatives"))
        service.admit(key_of(given), texts)
        found: dict[str, Any] = {}
        if source == "auto":
            source, sure = await asyncio.to_thread(service.source_of, texts)
            detected = {"confidence": round(100 * sure), "language": source}
            found["detectedLanguage"] = [detected] * len(texts) if many else detected
        route = service.route(source, target)
        work = partial(translate_texts, texts=texts, markup="html" if form == "html" else None, **route.languages)  # type: ignore[arg-type]
        ranked = await service.translate(request, route, len(texts), searching(service, route, more), work)
        found["translatedText"] = [best for best, *_ in ranked] if many else ranked[0][0]
        if more:
            others = [[*dict.fromkeys(each for each in rest if each != best)] for best, *rest in ranked]
            found["alternatives"] = others if many else others[0]
        return found

    @api.post("/detect")
    async def detect(request: Request) -> list[dict[str, Any]]:
        """The likeliest languages of q, best first."""
        given = await read_fields(request)
        text = text_of(needed(given, "q"), "q")
        service.admit(key_of(given), [text])
        found = await asyncio.to_thread(service.detect, text)
        return [{"confidence": round(100 * sure), "language": code} for code, sure in found if sure >= 0.005] or [
            {"confidence": 0, "language": found[0][0]}
        ]

    @api.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        pairs = service.languages().items()
        return [{"code": source, "name": name_of(source), "targets": targets} for source, targets in pairs]

    @api.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        source, targets = next(iter(service.languages().items()))
        keyed, usual = service.keys is not None, {"source": source, "target": targets[0]}
        return {
            "apiKeys": keyed, "keyRequired": keyed, "charLimit": service.limits.characters, "frontendTimeout": 500,
            "filesTranslation": False, "supportedFilesFormat": [], "suggestions": False,
            "language": {side: {"code": code, "name": name_of(code)} for side, code in usual.items()},
        }  # fmt: skip

    @api.post("/translate_file")
    async def translate_file() -> None:
        raise Refused(403, "Files translation is disabled on this server; specdec-translate reads files")

    @api.post("/suggest")
    async def suggest() -> None:
        raise Refused(403, "Suggestions are disabled on this server")

    return api


def needed(given: dict[str, Any], name: str) -> Any:
    if not given.get(name):
        raise Refused(400, f"Invalid request: missing {name} parameter")
    return given[name]


def key_of(given: dict[str, Any]) -> str | None:
    return text_of(given.get("api_key"), "api_key") or None


def alternatives_of(value: Any) -> int:
    try:
        number = int(value or 0)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= MOST:
        raise Refused(400, f"Invalid request: alternatives parameter is not a number from 0 to {MOST}")
    return number


def searching(service: Service, route: Route, more: int) -> dict[str, Any]:
    """The options for the best output and ``more`` of them, which a search finds."""
    if not more:
        return {}
    usual = service.settings(route, {}).size(route.model.served.translator.engine.rules.beams)
    return {"beam": max(usual, more + 1), "nbest": more + 1}
