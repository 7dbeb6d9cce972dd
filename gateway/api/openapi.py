"""The OpenAPI document: FastAPI's own of its routes, and of the raw ones what is said here.

Bodies are described by the records that they are decoded into, so that the two cannot disagree;
`openapi_fields` adds what no type says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.api.openapi_fields import described
from gateway.wire.anthropic_errors import VERSION_HEADER
from gateway.wire.anthropic_messages import ConversationBody, MessageBody
from gateway.wire.openai_chat import ChatBody
from gateway.wire.openai_completions import CompletionBody
from gateway.wire.openai_responses import ResponseBody

Schema = dict[str, Any]

_REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503)
_READ_REFUSALS = (400, 401, 403, 404, 500, 503)
_REFUSALS_BY_DIALECT = {"OpenAIError": _REFUSALS, "AnthropicError": (*_REFUSALS, 504, 529)}
_BODIES = (ChatBody, CompletionBody, ResponseBody, MessageBody, ConversationBody)
_TEXT: Schema = {"type": "string"}


def install(app: FastAPI) -> None:
    """Have the application show the whole document. It is made once, when it is first asked for."""

    def document() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> Schema:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, bodies = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {name: described(name, body) for name, body in bodies.items()} | _ERRORS
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _own(path, method, operation)
    document["paths"] |= _paths()
    document["security"] = [{"bearer": []}, {"key": []}]
    return document


def _own(path: str, method: str, operation: Schema) -> None:
    """Put right what FastAPI supposes of the gateway's own routes."""
    responses = operation["responses"]
    responses.pop("422", None)
    if path in ("/healthz", "/readyz"):
        operation["security"] = []
        responses["200"] = _json({"type": "object"})
        if path == "/readyz":
            responses["503"] = _json({"type": "object"})
        return
    admin = path.startswith("/admin/")
    if admin and "200" in responses and method == "get":
        responses["304"] = {"description": "What If-None-Match names has not changed"}
    changes = () if method == "get" else (408, 409, 412, 413) if admin else (408, 409, 413)
    for status in (400, 401, 403, 404, *changes, 503):
        responses[str(status)] = _said(status, "application/problem+json", "Problem")


def _paths() -> Schema:
    """The routes of the dialects."""
    response = {"name": "response_id", "in": "path", "required": True, "schema": _TEXT}
    model = {"name": "model", "in": "path", "required": True, "schema": _TEXT}
    # With it models are shown in Anthropic's form.
    version = {"name": VERSION_HEADER, "in": "header", "schema": _TEXT}
    page = [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        _query("order", {"enum": ["asc", "desc"]}),
        _query("after", _TEXT),
    ]
    # Pages are of the one form; the other takes no notice of them, whatever they say.
    models = [_query(name, {}) for name in ("limit", "before_id", "after_id")]
    return {
        "/v1/chat/completions": {"post": _inference("chat_completion", "ChatBody")},
        "/v1/completions": {"post": _inference("completion", "CompletionBody")},
        "/v1/responses": {"post": _inference("response", "ResponseBody")},
        "/v1/messages": {"post": _inference("message", "MessageBody", "AnthropicError")},
        "/v1/messages/count_tokens": {
            "post": _posted(
                "count_tokens",
                "ConversationBody",
                "AnthropicError",
                _json(_object(input_tokens={"type": "integer", "minimum": 0})),
            )
        },
        "/v1/models": {
            "parameters": [version, *models],
            "get": _read("models", {"anyOf": [_OPENAI_MODELS, _ANTHROPIC_MODELS]}, *_BOTH),
        },
        "/v1/models/{model}": {
            "parameters": [model, version],
            "get": _read("model", {"anyOf": [_OPENAI_MODEL, _ANTHROPIC_MODEL]}, *_BOTH),
        },
        "/v1/responses/{response_id}": {
            "parameters": [response],
            "get": _read("read_response", _object(id=_TEXT, output={"type": "array"})),
            "delete": _read("delete_response", _object(id=_TEXT, deleted={"type": "boolean"})),
        },
        "/v1/responses/{response_id}/input_items": {
            "parameters": [response, *page],
            "get": _read("input_items", _object(data={"type": "array"})),
        },
    }


def _inference(name: str, body: str, error: str = "OpenAIError") -> Schema:
    """A reply as one object, or with `stream` as events."""
    served = _json(_object(id=_TEXT))
    served["content"]["text/event-stream"] = {"schema": _TEXT}
    return _posted(name, body, error, served)


def _posted(name: str, body: str, error: str, served: Schema) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    return {
        "operationId": name,
        "tags": ["agents"],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": served} | _refusals(error, statuses=_REFUSALS_BY_DIALECT[error]),
    }


def _read(name: str, shown: Schema, *errors: str) -> Schema:
    refusals = _refusals(*(errors or ("OpenAIError",)), statuses=_READ_REFUSALS)
    return {
        "operationId": name,
        "tags": ["agents"],
        "responses": {"200": _json(shown)} | refusals,
    }


def _refusals(*errors: str, statuses: Iterable[int]) -> dict[str, Schema]:
    return {str(status): _said(status, "application/json", *errors) for status in statuses}


def _said(status: int, kind: str, *schemas: str) -> Schema:
    forms = [{"$ref": f"#/components/schemas/{schema}"} for schema in schemas]
    said: Schema = {
        "description": _PHRASES.get(status) or HTTPStatus(status).phrase,
        "content": {kind: {"schema": forms[0] if len(forms) == 1 else {"anyOf": forms}}},
    }
    if status in (429, 503, 529):
        said["headers"] = {"retry-after": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}
    return said


def _json(schema: Schema) -> Schema:
    return {"description": "Served", "content": {"application/json": {"schema": schema}}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "schema": schema}


_BOTH = ("OpenAIError", "AnthropicError")
_OPENAI_MODEL: Schema = _object(id=_TEXT, object={"const": "model"}, owned_by=_TEXT)
_ANTHROPIC_MODEL: Schema = _object(id=_TEXT, type={"const": "model"}, display_name=_TEXT)
_OPENAI_MODELS: Schema = _object(
    object={"const": "list"}, data={"type": "array", "items": _OPENAI_MODEL}
)
_ANTHROPIC_MODELS: Schema = _object(
    data={"type": "array", "items": _ANTHROPIC_MODEL}, has_more={"type": "boolean"}
)
_PHRASES: Mapping[int, str] = {529: "Overloaded"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_ERRORS: dict[str, Schema] = {
    "OpenAIError": _object(
        error=_object(message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT)
    ),
    "AnthropicError": _object(
        type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_MAYBE_TEXT
    ),
    "Problem": _object(type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT),
}
