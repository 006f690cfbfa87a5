"""The page at /: a form, which works without scripts. With them it shows drafts pass, alternatives and alignments, swaps
languages, copies and translates files."""

import asyncio
import secrets
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader

from specdec_plugins.files import FORMATS
from specdec_plugins.serving.api.fields import read_fields, text_of
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.service import Refused, Service
from specdec_plugins.serving.texts import translate_texts


def router(service: Service) -> APIRouter:
    page = APIRouter(include_in_schema=False)
    template = Environment(loader=FileSystemLoader(Path(__file__).parents[1] / "templates"), autoescape=True).get_template(
        "page.html"
    )

    def answer(status: int = 200, source: str = "", target: str = "", **found: Any) -> HTMLResponse:
        served, nonce, usual = service.languages(), secrets.token_urlsafe(16), service.usual
        shown = {
            "text": "",
            "beam": "1",
            "error": None,
            "translation": None,
            "served": served,
            "sources": named(served),
            "targets": named({target for targets in served.values() for target in targets}),
            "source": source or usual[0],
            "target": target or usual[1],
            "accepted": ",".join(f".{ending}" for ending in FORMATS),
            **found,
        }
        content = template.render(nonce=nonce, keyed=service.keys is not None, characters=service.limits.characters, **shown)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; form-action 'self'; "
            "frame-ancestors 'none'; base-uri 'none'"
        )
        return HTMLResponse(content, status, {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})

    @page.get("/")
    async def show() -> HTMLResponse:
        return answer()

    @page.post("/")
    async def translate(request: Request) -> HTMLResponse:
        """The form without scripts."""
        given = {name: text_of(value, name) for name, value in (await read_fields(request)).items()}
        text, beam, source, target = (given.get(name, "") for name in ("text", "beam", "source", "target"))
        shown: dict[str, Any] = {"text": text, "beam": beam, "source": source, "target": target}
        try:
            service.admit(given.get("key") or None, [text])
            if source == "auto":
                source = (await asyncio.to_thread(service.source_of, [text]))[0]
            route = service.route(source or None, target or None)
            if not beam.isascii() or not beam.isdigit():
                raise Refused(400, "beam is not a number")
            work = partial(translate_texts, texts=[text], **route.languages)  # type: ignore[arg-type]
            [[best, *_]] = await service.translate(request, route, [text], {"beam": int(beam[:4])}, work)
        except Refused as error:
            return answer(error.status, error=str(error), **shown)
        return answer(translation=best, **shown)

    return page


def named(codes: Iterable[str]) -> list[tuple[str, str]]:
    """Languages with their names, in the names' order."""
    return sorted(((code, name_of(code)) for code in codes), key=lambda each: each[1])
