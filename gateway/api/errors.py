"""The one place where errors become HTTP answers outside a dialect's own."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.errors import NextstateError
from gateway.telemetry import get_logger
from gateway.wire.outcome import outcome_of

log = get_logger(__name__)


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

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))

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
