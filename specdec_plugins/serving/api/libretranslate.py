"""LibreTranslate's API, for its clients: texts, files, /detect, /languages, /frontend/settings. It answers 400 to every limit."""

import asyncio
from functools import partial
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import UploadFile

from specdec_plugins.files import FORMATS, Options, split
from specdec_plugins.files.content import Source, read_source
from specdec_plugins.serving.api.fields import fields_of, form_of, given_or, read_fields, text_of, texts_of
from specdec_plugins.serving.api.schemas import Asked, Detected, Error, Language, Sent, Translated, Unknown, errors, fields, post
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.service import Refused, Route, Service, public
from specdec_plugins.serving.texts import translate_content, translate_texts

PATHS = ("/translate", "/detect", "/languages", "/frontend/settings", "/translate_file", "/suggest")
STATUSES = {413: 400, 456: 403, 503: 429, 504: 500}
MOST = 10  # alternatives
ENDINGS = [f".{ending}" for ending in FORMATS if "." not in ending]
MARKUP_SIZE = 50  # characters of XML to one of text; Word's own files have 10 to 30
BYTES = "application/octet-stream"


def error(status: int, message: str) -> tuple[int, dict[str, str]]:
    """The status and body of an error."""
    return STATUSES.get(status, status), {"error": message}


def router(service: Service) -> APIRouter:
    api = APIRouter(tags=["LibreTranslate"], responses=errors(Error))

    @post(api, "/translate", openapi_extra=fields(Asked), response_model=Translated)
    async def translate(request: Request) -> Response:
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
        work = partial(translate_texts, texts=texts, form=form if form == "html" else "lines", **route.languages)  # type: ignore[arg-type]
        ranked = await service.translate(request, route, texts, searching(service, route, more), work)
        found["translatedText"] = [best for best, *_ in ranked] if many else ranked[0][0]
        if more:
            others = [[*dict.fromkeys(each for each in rest if each != best)] for best, *rest in ranked]
            found["alternatives"] = others if many else others[0]
        return JSONResponse(found)

    @api.post("/detect", openapi_extra=fields(Unknown))
    async def detect(request: Request) -> list[Detected]:
        """The likeliest languages of q, best first."""
        given = await read_fields(request)
        text = text_of(needed(given, "q"), "q")
        service.admit(key_of(given), [text])
        found = await asyncio.to_thread(service.detect, text)
        return [{"confidence": round(100 * sure), "language": code} for code, sure in found if sure >= 0.005] or [
            {"confidence": 0, "language": found[0][0]}
        ]

    @api.get("/languages")
    async def languages() -> list[Language]:
        """Source and target languages: clients look up both here."""
        pairs = service.languages()
        codes = sorted({*pairs}.union(*pairs.values()))
        return [{"code": code, "name": name_of(code), "targets": pairs.get(code, [])} for code in codes]

    @api.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        keyed, usual = service.keys is not None, dict(zip(("source", "target"), service.usual))
        return {
            "apiKeys": keyed,
            "keyRequired": keyed,
            "charLimit": service.limits.characters,
            "frontendTimeout": 500,
            "filesTranslation": True,
            "supportedFilesFormat": ENDINGS,
            "suggestions": False,
            "language": {side: {"code": code, "name": name_of(code)} for side, code in usual.items()},
        }

    @api.post("/suggest")
    async def suggest() -> None:
        raise Refused(403, "Suggestions are disabled on this server")

    add_files(api, service)
    return api


def add_files(api: APIRouter, service: Service) -> None:
    @api.post("/translate_file", openapi_extra=fields(Sent, "multipart/form-data"))
    async def translate_file(request: Request) -> dict[str, str]:
        """Fields of a form: file, source, target, api_key; of a table, columns. The answer has the translated file's address."""
        form = await form_of(request, 1)
        file, given = form.get("file"), fields_of(request, form)
        if not isinstance(file, UploadFile) or not file.filename:
            raise Refused(400, "Invalid request: missing file parameter")
        name, data = PurePath(text_of(file.filename, "the file's name")), await file.read()
        source, target = (text_of(needed(given, side), side) for side in ("source", "target"))
        service.admit(key_of(given), [])
        options = Options(columns=split(text_of(given.get("columns"), "columns")))
        ending = name.suffix[1:].lower()
        if (how := FORMATS.get(name.name.lower(), FORMATS.get(ending))) is None:
            raise Refused(400, f"Invalid request: file format not supported; available: {', '.join(FORMATS)}")
        try:
            read = await asyncio.to_thread(read_source, data, "the file", how)
            admit(service, key_of(given), read)
            content = await asyncio.to_thread(read.content, options)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        texts = ["".join(unit.text for unit in content.units)]  # one, whose outputs are one
        service.admit(key_of(given), texts * read.packed)
        if source == "auto":
            source = (await asyncio.to_thread(service.source_of, texts))[0]
        route = service.route(source, target)
        work = partial(translate_content, content=content, **route.languages)  # type: ignore[arg-type]
        best = await service.translate(request, route, texts, {}, work)
        path = service.downloads.add(f"{name.stem[:100]}.{public(route.target)}.{ending}", best)
        return {"translatedFileUrl": str(request.url_for("download", path=path))}

    @api.get("/download_file/{path}", response_class=Response, responses={200: {"content": {BYTES: {}}}})
    async def download(path: str) -> Response:
        found = service.downloads.get(path)
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, '')}",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(found.content, media_type=BYTES, headers=headers)


def admit(service: Service, key: str | None, read: Source) -> None:
    """Admit a file's characters; of a package, whose XML is not counted, only bound them. Raises Refused."""
    if not read.packed:
        service.admit(key, list(read.texts.values()))
    elif (size := sum(map(len, read.texts.values()))) > (most := MARKUP_SIZE * service.limits.characters):
        raise Refused(413, f"{size:,} characters of XML exceed the limit of {most:,}")


def needed(given: dict[str, Any], name: str) -> Any:
    if not given.get(name):
        raise Refused(400, f"Invalid request: missing {name} parameter")
    return given[name]


def key_of(given: dict[str, Any]) -> str | None:
    return text_of(given.get("api_key"), "api_key") or None


def alternatives_of(value: Any) -> int:
    shown = str(given_or(value, 0))
    if not shown.isascii() or not shown.isdigit() or len(shown) > 4 or int(shown) > MOST:
        raise Refused(400, f"Invalid request: alternatives parameter is not a number from 0 to {MOST}")
    return int(shown)


def searching(service: Service, route: Route, more: int) -> dict[str, Any]:
    """The options for the best output and ``more`` of them, which a search finds."""
    if not more:
        return {}
    usual = service.settings(route, {}).size(route.model.served.translator.engine.rules.beams)
    return {"beam": max(usual, more + 1), "nbest": more + 1}
