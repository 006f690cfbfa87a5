"""The page at /: a form, which works without scripts; with them it shows drafts pass, alternatives and alignments."""

import secrets
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader

from specdec_plugins.serving.api.fields import read_fields, text_of
from specdec_plugins.serving.names import name_of
from specdec_plugins.serving.service import Refused, Service
from specdec_plugins.serving.texts import translate_texts


def router(service: Service) -> APIRouter:
    page = APIRouter(include_in_schema=False)
    template = Environment(loader=FileSystemLoader(Path(__file__).parents[1] / "templates"), autoescape=True).get_template(
        "page.html"
    )

    def answer(status: int = 200, text: str = "", pair: str = "", beam: str = "1", **found: Any) -> HTMLResponse:
        pairs = [
            (source, target, f"{name_of(source)} to {name_of(target)}")
            for source, targets in service.languages().items()
            for target in targets
        ]
        nonce = secrets.token_urlsafe(16)
        shown = {"text": text, "pair": pair, "beam": beam, "error": None, "translation": None, **found}
        content = template.render(
            nonce=nonce, pairs=pairs, keyed=service.keys is not None, characters=service.limits.characters, **shown
        )
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
        text, pair, beam = given.get("text", ""), given.get("pair", ""), given.get("beam", "1")
        try:
            service.admit(given.get("key") or None, [text])
            source, _, target = pair.partition(" ")
            route = service.route(source or None, target or None)
            if not beam.isascii() or not beam.isdigit():
                raise Refused(400, "beam is not a number")
            work = partial(translate_texts, texts=[text], **route.languages)  # type: ignore[arg-type]
            [[best, *_]] = await service.translate(request, route, [text], {"beam": int(beam[:4])}, work)
        except Refused as error:
            return answer(error.status, text, pair, beam, error=str(error))
        return answer(200, text, pair, beam, translation=best)

    return page
