"""Our own API: every option of a request, scores, drafts and acceptance; server-sent events as passes commit tokens."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields as fields_of
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from specdec_plugins.decoding.requests import Step
from specdec_plugins.fields import option_of
from specdec_plugins.serving.api.fields import MOST, key_of
from specdec_plugins.serving.api.schemas import Error, errors, fields, post
from specdec_plugins.serving.service import Refused, Service, refusals, while_connected
from specdec_plugins.settings import PER_REQUEST, Settings
from specdec_plugins.text.glossary import Glossary
from specdec_plugins.translations import Translation, passes_of
from specdec_plugins.translator import Translator

Tokens = Callable[[Sequence[int]], list[str]]
Piece = str | Sequence[Step] | Translation
PASS = "accepted", "refused", "own"
TERMS = 1000  # of a request


class Call(BaseModel):
    """Texts and their languages. Other fields are options of specdec-translate."""

    model_config = ConfigDict(strict=True, extra="forbid")
    text: str | list[str] = Field(description="one text or several", examples=["A dog runs."])
    source: str | None = Field(None, description="the text's language, or auto (default: the model's)", examples=["en"])
    target: str | None = Field(None, description="the translation's language (default: the model's)", examples=["de"])
    model: str | None = Field(None, description="a model's name (default: the first for the languages)")
    stream: bool = Field(
        False, description="server-sent events with pieces of the text, and passes with trace; for one text with one output"
    )
    too_long: Literal["error", "truncate", "skip"] = Field("error", description="what to do with overlong texts")
    alignments: bool = Field(False, description="which words of the text the translation's words come from")
    scores: bool = Field(False, description="the scores of tokens, which a beam search has anyway")
    word_scores: bool = Field(False, description="the mean score of each word's tokens, and the other scores")
    trace: bool = Field(False, description="what each pass accepted and refused")
    glossary: list[Annotated[list[str], Field(min_length=2, max_length=2)]] | None = Field(
        None, description="terms to use: source and translation", max_length=TERMS, examples=[[["dog", "Köter"]]]
    )


class Link(BaseModel):
    """Characters of the text and of the translation that correspond: start and end."""

    source: tuple[int, int]
    target: tuple[int, int]


class Pass(BaseModel):
    """Drafted tokens that the verifier accepted, those that it refused, and the token that it wrote itself."""

    accepted: list[str]
    refused: list[str]
    own: str | None


class Output(BaseModel):
    text: str
    tokens: list[str] = Field(description="subwords")
    score: float | None = Field(None, description="with scores: a beam's, otherwise the tokens' mean log-probability in nats")
    token_scores: list[float | None] | None = Field(
        None, description="with scores: log-probabilities in nats; the last is that of the end"
    )
    drafter: str | None
    iterations: int = Field(description="verifier passes")
    drafted: int = Field(description="tokens")
    accepted: int = Field(description="drafted tokens that were accepted")
    alignment: list[Link] | None = Field(None, description="of words, with alignments")
    word_scores: list[float | None] | None = Field(None, description="mean log-probabilities of words, with word_scores")
    accepted_lengths: list[int] = Field(description="tokens committed by each pass, the verifier's own included")
    trace: list[Pass] | None = Field(None, description="with trace")
    unplaced: list[str] | None = Field(None, description="terms whose translations the text lacks, with a glossary")
    missing_numbers: list[str] | None = Field(None, description="numbers that the text lacks, if any")


class Result(BaseModel):
    outputs: list[Output]


class Answer(BaseModel):
    model: str
    source: str
    target: str
    results: list[Result]


def options_of_a_call() -> type[Call]:
    """`Call` with a field for each setting that requests may change."""
    extra: dict[str, Any] = {}
    for each in fields_of(Settings):
        if each.name in PER_REQUEST:
            how = option_of(each)
            kind: Any = int | str if how.least is not None and how.words else Literal[how.words] if how.words else how.kind
            bounds = {"exclusiveMinimum" if how.above else "minimum": how.least, "maximum": how.most}
            shown: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
            extra[each.name] = (kind | None, Field(None, description=how.help, json_schema_extra=shown))
    return create_model("TranslateCall", __base__=Call, **extra)


TranslateCall: Any = options_of_a_call()


def router(service: Service) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["translate"], responses=errors(Error))

    body = fields(TranslateCall, "application/json")

    @post(api, "/translate", response_model=Answer, responses={200: {"content": {EVENTS: {}}}}, openapi_extra=body)
    async def translate(request: Request) -> Response:
        call = call_of(request.headers.get("content-type", ""), await request.body(), service.limits.texts)
        texts = [call.text] if isinstance(call.text, str) else call.text
        service.admit(key_of(request, "Bearer"), texts)
        source = (await asyncio.to_thread(service.source_of, texts))[0] if call.source == "auto" else call.source
        route = service.route(source, call.target, call.model)
        given = {name: getattr(call, name) for name in call.model_fields_set & PER_REQUEST}
        options = {name: value for name, value in given.items() if value is not None}
        head = {"model": route.model.name, "source": route.source, "target": route.target}
        rest = {name: getattr(call, name) for name in ("too_long", "alignments", "scores", "word_scores")} | route.languages
        if call.glossary:
            with refusals():
                rest["glossary"] = Glossary.of(call.glossary)
        tokens = route.model.served.translator.codec.target.tokens if call.trace else None
        if call.stream:
            if not isinstance(call.text, str):
                raise Refused(400, "a stream translates one text, not a list")
            pieces = route.model.served.stream(call.text, service.limits.seconds, call.trace, **rest, **options)
            with refusals():
                # What is wrong with the request is answered with a status of its own.
                first = await while_connected(request, anext(pieces))
            return StreamingResponse(events(head, first, pieces, tokens), media_type=EVENTS, headers=UNBUFFERED)

        def work(translator: Translator) -> bytes:
            return answered(translator, head, translator.translate(texts, **rest), tokens)

        content = await service.translate(request, route, texts, options, work)
        return Response(content, media_type="application/json")

    @api.get("/models")
    async def models() -> list[dict[str, Any]]:
        """The models and their languages."""
        return [{"name": each.name, "sources": each.sources, "targets": each.targets} for each in service.models]

    return api


def call_of(kind: str, body: bytes, most: int) -> Any:
    """The fields of a body with up to ``most`` texts. Raises RequestValidationError and Refused."""
    given: Any = body
    if re.fullmatch(r"application/([^;]+\+)?json *(;.*)?", kind, re.IGNORECASE):
        try:
            given = json.loads(body)
        except json.JSONDecodeError as error:
            raise RequestValidationError(
                [{"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}]
            ) from None
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
    if isinstance(given, dict):  # or each of them would be a fault of its own
        texts = given.get("text")
        if isinstance(texts, list) and len(texts) > most:
            raise Refused(413, f"{len(texts):,} texts exceed the limit of {most:,}")
        if len(given) > MOST:
            raise Refused(400, f"over {MOST:,} fields")
    try:
        return TranslateCall.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


EVENTS = "text/event-stream"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second for nginx


async def events(head: dict[str, str], first: Piece, pieces: AsyncIterator[Piece], tokens: Tokens | None) -> AsyncIterator[str]:
    """Server-sent events: ``pass``, if ``tokens`` gives subwords; ``delta`` with a piece of the text; at the end ``result``, or
    ``error``."""
    piece: Piece | None = first
    while piece is not None:
        if isinstance(piece, Translation):
            # In a thread, as it may be a whole book's.
            yield await asyncio.to_thread(lambda last: event("result", {**head, "results": [result([last], tokens)]}), piece)
        elif isinstance(piece, str):
            yield event("delta", {"text": piece})
        elif tokens:
            for step in passes_of(piece, tokens):
                yield event("pass", dict(zip(PASS, step)))
        await asyncio.sleep(0)  # others' turn: many pieces may be there already
        try:
            with refusals():
                piece = await anext(pieces, None)
        except Refused as error:
            yield event("error", {"error": str(error)})
            return


def event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {written(data).decode()}\n\n"


def answered(translator: Translator, head: dict[str, str], found: Sequence[Translation], tokens: Tokens | None) -> bytes:
    """The answer with the outputs of all texts."""
    each, results = translator.settings.outputs, []
    for start in range(0, len(found), each):
        translator.engine.give_way()
        results.append(result(found[start : start + each], tokens))
    return written({**head, "results": results})


def written(data: dict[str, Any]) -> bytes:
    """As JSON, which has no infinity. Five times as fast as `json.dumps`."""
    return to_json(data, inf_nan_mode="null")


def result(outputs: Sequence[Translation], tokens: Tokens | None) -> dict[str, Any]:
    """The outputs of a text; with their passes, if ``tokens`` gives subwords for ids."""
    return {
        "outputs": [
            {
                "text": each.text,
                "tokens": each.tokens,
                "drafter": each.drafter,
                "iterations": each.iterations,
                "drafted": each.drafted,
                "accepted": each.accepted,
                "accepted_lengths": each.accepted_lengths,
                **annotations(each),
                **({"trace": [dict(zip(PASS, step)) for step in each.passes(tokens)]} if tokens else {}),
            }
            for each in outputs
        ]
    }


def annotations(output: Translation) -> dict[str, Any]:
    """What was asked for beside the text."""
    links = [] if output.alignment is None else [{"source": one, "target": other} for one, other in output.alignment.links]
    found: dict[str, Any] = {} if output.alignment is None else {"alignment": links}
    found |= {name: value for name in ("unplaced", "missing_numbers") if (value := getattr(output, name))}
    if output.token_scores is not None:
        found |= {"score": output.score if output.token_scores else None, "token_scores": output.token_scores}
    return found | ({} if output.word_scores is None else {"word_scores": output.word_scores})
