"""Fields of requests that come as JSON or as a form."""

import json
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request

from specdec_plugins.serving.service import Refused
from specdec_plugins.text.lines import surrogate

MOST = 100  # fields of a JSON object
LISTS = frozenset(["text", "ignore_tags"])  # fields that a form may repeat


async def read_fields(request: Request) -> dict[str, Any]:
    """The fields of a body, or of the query; those of `LISTS` that a form repeats are lists. Raises Refused."""
    if "json" in request.headers.get("content-type", ""):
        try:
            given = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise Refused(400, "Invalid request: the body is not JSON") from None
        if not isinstance(given, dict):
            raise Refused(400, "Invalid request: the body is not a JSON object")
        if len(given) > MOST:
            raise Refused(400, f"Invalid request: over {MOST:,} fields")
        return given
    return fields_of(request, await form_of(request))


async def form_of(request: Request, files: int = 0) -> FormData:
    """A form with up to so many files. Raises Refused."""
    try:
        return await request.form(max_files=files)
    except UnicodeError:  # of a charset that the request names
        raise Refused(400, "Invalid request: the form is not UTF-8") from None


def fields_of(request: Request, form: FormData) -> dict[str, Any]:
    """The fields of a form, and of the query."""
    values: dict[str, list[Any]] = {}
    for source in (request.query_params, form):
        own: dict[str, list[Any]] = {}
        for name, value in source.multi_items():
            own.setdefault(name, []).append(value)
        values |= own
    return {name: each if name in LISTS and len(each) > 1 else each[-1] for name, each in values.items()}


def key_of(request: Request, scheme: str) -> str | None:
    """The key of ``Authorization: SCHEME KEY``."""
    given, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() or None if given.lower() == scheme.lower() else None


def text_of(value: Any, name: str) -> str:
    """A field that is a string; empty if it is missing."""
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"Invalid request: {name} is not a string")
    if surrogate(value or ""):
        raise Refused(400, f"Invalid request: {name} is not Unicode: it has half of a surrogate pair")
    return value or ""


def texts_of(value: Any, name: str) -> list[str]:
    """A field that is a string or a list of strings."""
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in texts):
        raise Refused(400, f"Invalid request: {name} is neither a string nor a list of strings")
    return texts


def given_or(value: Any, usual: Any) -> Any:
    """A field's value; ``usual`` if it is missing, null or empty."""
    return usual if value is None or value == "" else value
