"""DeepL's API, version 2, for its clients: translations, languages, usage, glossaries. Options that we do not have are refused
by name."""

import asyncio
import csv
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from specdec_plugins.files import MARKUP, Options, split
from specdec_plugins.serving.api.fields import given_or, key_of, read_fields, text_of, texts_of
from specdec_plugins.serving.api.schemas import Message, Terms, Texts, Translations, errors, fields, post
from specdec_plugins.serving.glossaries import Stored
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.service import Refused, Route, Service, public
from specdec_plugins.serving.texts import translate_texts

PREFIX = "/v2/"
SCHEME = "DeepL-Auth-Key"
TABLE = "text/tab-separated-values"
MOST = 50  # texts
UNLIMITED = 10**12  # characters
# What changes a translation, and we cannot do. `context`, `preserve_formatting` and `model_type` leave ours as it is.
UNSUPPORTED = "glossary_ids style_id custom_instructions translation_memory_id splitting_tags non_splitting_tags".split()
VARIANTS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}  # target languages that the API has no plain code for


def error(status: int, message: str) -> tuple[int, dict[str, str]]:
    """The status and body of an error."""
    return status, {"message": message}


def router(service: Service) -> APIRouter:
    api = APIRouter(prefix=PREFIX.rstrip("/"), tags=["DeepL"], responses=errors(Message))

    @post(api, "/translate", openapi_extra=fields(Texts), response_model=Translations)
    async def translate(request: Request) -> Response:
        """Fields, as JSON or a form: text, up to 50 of them; target_lang; source_lang; tag_handling, xml or html; ignore_tags;
        split_sentences, 0, 1 or nonewlines."""
        given = await read_fields(request)
        check(given)
        texts = texts_of(required(given, "text"), "text")
        if len(texts) > MOST:
            raise Refused(413, f"{len(texts):,} texts exceed the limit of {MOST}")
        service.admit(key_of(request, SCHEME), texts)
        source, target = text_of(given.get("source_lang"), "source_lang"), text_of(required(given, "target_lang"), "target_lang")
        source = source or (await asyncio.to_thread(service.source_of, texts))[0]
        route, markup = service.route(source, target), given.get("tag_handling") or None
        choices: dict[str, Any] = {**route.languages, **glossary_of(service, request, given, route)}
        whole, lines = splitting(given.get("split_sentences"), markup)
        ignored = split(",".join(texts_of(given_or(given.get("ignore_tags"), []), "ignore_tags")))
        work = partial(
            translate_texts,
            texts=texts if lines else [" ".join(text.split("\n")) for text in texts],
            form=MARKUP[markup] if markup else "lines",
            options=Options(ignored=ignored),
            whole=whole,
            **choices,
        )
        found = await service.translate(request, route, texts, {}, work)
        code = public(route.source).upper()
        used = {"model_type_used": "latency_optimized"} if given.get("model_type") else {}
        translations = [
            {"detected_source_language": code, "text": best, "billed_characters": len(text), **used}
            for text, (best, *_) in zip(texts, found)
        ]
        return JSONResponse({"translations": translations})

    @api.get("/languages")
    async def languages(request: Request) -> list[dict[str, Any]]:
        """Source languages, or with type=target those of translations."""
        admitted(service, request)
        kind = request.query_params.get("type") or (await read_fields(request)).get("type") or "source"  # clients send a body
        pairs = service.languages()
        if kind == "source":
            return [{"language": code.upper(), "name": name_of(code)} for code in pairs]
        codes = sorted({code for targets in pairs.values() for code in targets})
        shown = [(code, each) for code in codes for each in VARIANTS.get(code, (code.upper(),))]
        return [{"language": each, "name": name_of(code), "supports_formality": False} for code, each in shown]

    @api.get("/usage")
    async def usage(request: Request) -> dict[str, int]:
        """Characters of the key since the server started."""
        count = service.used[admitted(service, request)]
        return {"character_count": count, "character_limit": service.limits.quota or UNLIMITED}

    add_glossaries(api, service)
    return api


def add_glossaries(api: APIRouter, service: Service) -> None:
    @api.get("/glossary-language-pairs")
    async def pairs(request: Request) -> dict[str, list]:
        admitted(service, request)
        found = [(source, target) for source, targets in service.languages().items() for target in targets]
        return {"supported_languages": [{"source_lang": source, "target_lang": target} for source, target in found]}

    @api.get("/glossaries")
    async def glossaries(request: Request) -> dict[str, list]:
        return {"glossaries": [described(each) for each in service.glossaries.of(admitted(service, request))]}

    @api.post("/glossaries", status_code=201, openapi_extra=fields(Terms))
    async def create(request: Request) -> dict[str, Any]:
        """Fields: name, source_lang, target_lang, entries_format (tsv or csv), entries."""
        if request.headers.get("sec-fetch-site") == "cross-site":  # a browser sends a form of a page that is not ours
            raise Refused(403, "glossaries are not taken from pages of other sites")
        account, given = admitted(service, request), await read_fields(request)
        name, source, target, form, entries = (
            text_of(required(given, field), field)
            for field in ("name", "source_lang", "target_lang", "entries_format", "entries")
        )
        service.admit(key_of(request, SCHEME), [name])
        route = service.route(source, target)
        found = entries_of(entries, form)
        return described(service.glossaries.add(account, name, public(route.source), public(route.target), found))

    @api.get("/glossaries/{number}")
    async def glossary(number: str, request: Request) -> dict[str, Any]:
        return described(service.glossaries.get(admitted(service, request), number))

    @api.get("/glossaries/{number}/entries", response_class=Response, responses={200: {"content": {TABLE: {}}}})
    async def entries(number: str, request: Request) -> Response:
        found = service.glossaries.get(admitted(service, request), number)
        lines = "".join(f"{term.source}\t{term.target}\n" for term in found.glossary.terms)
        return Response(lines, media_type=TABLE)

    @api.delete("/glossaries/{number}", status_code=204, response_class=Response)
    async def delete(number: str, request: Request) -> None:
        service.glossaries.delete(admitted(service, request), number)


def admitted(service: Service, request: Request) -> str:
    """The account of a request's key. Raises Refused."""
    key = key_of(request, SCHEME)
    service.admit(key, [])
    return service.account(key)


def described(stored: Stored) -> dict[str, Any]:
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "source_lang": stored.source,
        "target_lang": stored.target,
        "creation_time": stored.created,
        "entry_count": stored.entries,
    }


def entries_of(text: str, form: str) -> list[tuple[str, str]]:
    """A glossary's pairs. CSV may have the languages in a third and fourth column. Raises Refused."""
    if form not in ("tsv", "csv"):
        raise Refused(400, "Value for 'entries_format' not supported; use tsv or csv")
    try:
        rows = [line.split("\t") for line in text.splitlines()] if form == "tsv" else [*csv.reader(text.splitlines())]
    except csv.Error as error:
        raise Refused(400, f"entries: {error}") from None
    pairs = list[tuple[str, str]]()
    for number, row in enumerate(rows, 1):
        if not any(map(str.strip, row)):
            continue
        if len(row) != 2 and (form, len(row)) != ("csv", 4):
            raise Refused(400, f"entries: line {number} is not a source term and a target term")
        pairs.append((row[0], row[1]))
    return pairs


def glossary_of(service: Service, request: Request, given: dict[str, Any], route: Route) -> dict[str, Any]:
    """The option for the glossary that a request names. Raises Refused."""
    if not (number := text_of(given.get("glossary_id"), "glossary_id")):
        return {}
    if not given.get("source_lang"):
        raise Refused(400, "Value for 'source_lang' required with glossary_id")
    found = service.glossaries.get(service.account(key_of(request, SCHEME)), number)
    if (found.source, found.target) != (public(route.source), public(route.target)):
        raise Refused(400, f"the glossary is for {found.source} to {found.target}")
    return {"glossary": found.glossary}


def check(given: dict[str, Any]) -> None:
    """Raises Refused for options that would change the translation and are not supported."""
    for name in UNSUPPORTED:
        if given.get(name):
            raise Refused(400, f"{name} is not supported")
    if given_or(given.get("formality"), "default") not in ("default", "prefer_more", "prefer_less"):
        raise Refused(400, "formality is not supported; leave it out, or use prefer_more or prefer_less")
    if given.get("tag_handling") not in (None, "", "xml", "html"):
        raise Refused(400, "Value for 'tag_handling' not supported; use xml or html")


def splitting(value: Any, markup: str | None) -> tuple[bool, bool]:
    """Whether texts stay whole, and whether lines are sentences of their own."""
    value = str(given_or(value, "nonewlines" if markup else "1"))
    if value not in ("0", "1", "nonewlines"):
        raise Refused(400, "Value for 'split_sentences' not supported; use 0, 1 or nonewlines")
    return value == "0", value == "1" or bool(markup)


def required(given: dict[str, Any], name: str) -> Any:
    if not given.get(name):
        raise Refused(400, f"Parameter '{name}' not specified.")
    return given[name]
