"""What the OpenAPI document says of the dialects' fields, answers and errors. The routes' own checks decide."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

Text = Annotated[str, Field(min_length=1)]


class Error(TypedDict):
    """LibreTranslate's, and our own."""

    error: str


class Message(TypedDict):
    """DeepL's error."""

    message: str


def errors(form: type) -> dict[int | str, dict[str, Any]]:
    """A router's ``responses``."""
    wrong = {"model": form, "description": "The request is wrong, or beyond a limit"}
    return {"4XX": wrong, "5XX": {"model": form, "description": "The translation failed, took too long, or found no place"}}


def fields(form: type, *types: str) -> dict[str, Any]:
    """A route's ``openapi_extra``: its body, of JSON or of a form unless ``types`` are others."""
    schema = TypeAdapter(form).json_schema()
    content = {each: {"schema": schema} for each in types or ("application/json", "application/x-www-form-urlencoded")}
    return {"requestBody": {"required": True, "content": content}}


class Direct(APIRoute):
    """An endpoint that reads its request and writes its response itself: FastAPI would take as long for both as all else does on
    the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def post(api: APIRouter, path: str, **described: Any) -> Callable[[Callable], None]:
    return lambda endpoint: api.add_api_route(path, endpoint, methods=["POST"], route_class_override=Direct, **described)


class Asked(TypedDict):
    """Of LibreTranslate."""

    q: Annotated[
        Text | Annotated[list[str], Field(min_length=1)], Field(description="one text or several", examples=["A dog runs."])
    ]
    source: Annotated[Text, Field(description="the text's language, or auto", examples=["en"])]
    target: Annotated[Text, Field(examples=["de"])]
    format: NotRequired[Literal["text", "html"] | None]
    alternatives: NotRequired[Annotated[int, Field(ge=0, le=10)] | None]
    api_key: NotRequired[str | None]


class Sent(TypedDict):
    """A file for LibreTranslate."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    source: Annotated[Text, Field(description="the file's language, or auto", examples=["en"])]
    target: Annotated[Text, Field(examples=["de"])]
    columns: NotRequired[Annotated[str, Field(description="of a table")]]
    api_key: NotRequired[str]


class Unknown(TypedDict):
    """A text whose language is asked for."""

    q: Annotated[Text, Field(examples=["A dog runs."])]
    api_key: NotRequired[str | None]


class Detected(TypedDict):
    confidence: float
    language: str


class Translated(TypedDict):
    """A list for each text if q is a list."""

    translatedText: str | list[str]
    detectedLanguage: NotRequired[Detected | list[Detected]]
    alternatives: NotRequired[list[str] | list[list[str]]]


class Language(TypedDict):
    code: str
    name: str
    targets: list[str]


class Texts(TypedDict):
    """Of DeepL."""

    text: Annotated[Text | Annotated[list[str], Field(min_length=1, max_length=50)], Field(examples=[["A dog runs."]])]
    target_lang: Annotated[Text, Field(examples=["DE"])]
    source_lang: NotRequired[Annotated[str, Field(examples=["EN"])] | None]
    tag_handling: NotRequired[Literal["xml", "html"] | None]
    ignore_tags: NotRequired[str | list[str] | None]
    split_sentences: NotRequired[Literal["0", "1", "nonewlines", 0, 1] | None]
    glossary_id: NotRequired[str | None]
    formality: NotRequired[Literal["default", "prefer_more", "prefer_less"] | None]


class Terms(TypedDict):
    """A glossary of DeepL's."""

    name: Text
    source_lang: Annotated[Text, Field(examples=["EN"])]
    target_lang: Annotated[Text, Field(examples=["DE"])]
    entries_format: Literal["tsv", "csv"]
    entries: Annotated[Text, Field(examples=["dog\tRüde"])]


class Best(TypedDict):
    detected_source_language: str
    text: str
    billed_characters: int
    model_type_used: NotRequired[str]


class Translations(TypedDict):
    translations: list[Best]
