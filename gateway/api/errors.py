"""The one place where errors become HTTP answers outside a dialect's own."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.errors import (
    EngineError,
    EngineRejected,
    EngineTimeout,
    NextstateError,
    RequestError,
    StoreError,
    TooManyRequests,
)
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Seconds after which a client may try again while an engine or Postgres is away.
AWAY_RETRY_AFTER_S = 2


def status_of(error: NextstateError) -> int:
    """HTTP status of an error that reached the boundary."""
    match error:
        case RequestError():
            return error.status
        case EngineTimeout():
            return HTTPStatus.GATEWAY_TIMEOUT
        case EngineRejected():
            return HTTPStatus.BAD_GATEWAY
        case EngineError() | StoreError():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def retry_after(error: NextstateError) -> int | None:
    """Whole seconds for the Retry-After header, or None where waiting does not help."""
    if isinstance(error, TooManyRequests):
        return max(1, round(error.retry_after_s))
    if status_of(error) == HTTPStatus.SERVICE_UNAVAILABLE:
        return AWAY_RETRY_AFTER_S
    return None


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
        status = status_of(error)
        code = error.code if isinstance(error, RequestError) else None
        answer = problem(status, HTTPStatus(status).phrase, error.message, code)
        if (seconds := retry_after(error)) is not None:
            answer.headers["retry-after"] = str(seconds)
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
