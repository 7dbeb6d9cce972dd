"""The one place where errors become HTTP answers outside a dialect's own.

What no route takes is answered in the form of the dialect that its path is of; the gateway's own
routes answer with problem+json.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from gateway.api.exchange import client_request_id
from gateway.errors import MethodNotAllowed, NextstateError, NotFound, RequestError
from gateway.records import new_id
from gateway.telemetry import get_logger
from gateway.wire import anthropic_errors
from gateway.wire.chat_encoder import error_body
from gateway.wire.outcome import outcome_of

log = get_logger(__name__)

#: Routes below `/v1` that are of no dialect.
_OWN = ("/v1/turns/", "/v1/sessions/")
#: Those of one dialect, whatever headers say.
_ANTHROPIC = "/v1/messages"
_OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_METHODS = frozenset({"get", "post", "put", "patch", "delete"})
_SHOWN_CHARACTERS = 200
#: How long a body that nobody asked for is read.
_DRAIN_S = 2.0


def problem(status: int, title: str, detail: str, code: str | None = None) -> Response:
    """An application/problem+json answer (RFC 9457)."""
    body: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
    body["detail"] = detail
    if code:
        body["code"] = code
    return Response(msgspec.json.encode(body), status, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Answer every error of the routes with problem+json, without a traceback."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, NextstateError)
        outcome = outcome_of(error)
        answer = problem(
            outcome.status, HTTPStatus(outcome.status).phrase, outcome.message, outcome.code
        )
        answer.headers.update(outcome.headers)
        return answer

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, path = error.status_code, request.url.path
        if path.startswith("/v1/") and not path.startswith(_OWN) and status in (404, 405):
            await _drain(request)
            answer = _of_no_route(request, status)
        else:
            answer = problem(status, HTTPStatus(status).phrase, str(error.detail))
        answer.headers.update(error.headers or {})
        if status == HTTPStatus.METHOD_NOT_ALLOWED and (allowed := methods_of(app, path)):
            # Each route knows its own method alone.
            answer.headers["allow"] = ", ".join(allowed)
        return answer

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        detail = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        )
        return problem(HTTPStatus.BAD_REQUEST, "Bad Request", detail, "invalid_request")

    async def unknown(request: Request, error: Exception) -> Response:
        log.error("unhandled_error", path=request.url.path, exc_info=error)
        return problem(500, "Internal Server Error", "The gateway failed; see its log.")

    app.add_exception_handler(NextstateError, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unknown)


def methods_of(app: FastAPI, path: str) -> list[str]:
    """The methods that a path has, by the document."""
    for template, operations in app.openapi()["paths"].items():
        if compile_path(template)[0].match(path):
            return sorted(name.upper() for name in operations if name in _METHODS)
    return []


async def _drain(request: Request) -> None:
    """A connection closed with bytes unread is reset, and with it the answer."""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in request.stream():
                pass


def _of_no_route(request: Request, status: int) -> Response:
    """A dialect's answer to a path that it does not have, or a method that the path does not."""
    asked = f"{request.method} {request.url.path}"[:_SHOWN_CHARACTERS]
    error: RequestError
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        error = MethodNotAllowed(f"Not allowed: {asked}.")
    else:
        error = NotFound(f"There is no such URL: {asked}.", code="unknown_url")
        error.kind = "invalid_request_error"
    request_id = new_id()
    path = request.url.path
    marked = anthropic_errors.VERSION_HEADER in request.headers and not path.startswith(_OPENAI)
    if path.startswith(_ANTHROPIC) or marked:
        _, _, body = anthropic_errors.answer(error, request_id)
    else:
        body = error_body(error)
    named = client_request_id(request.headers) or request_id.hex
    headers = {"x-request-id": named, "request-id": f"req_{request_id.hex}"}
    return Response(body, status, headers, media_type="application/json")
