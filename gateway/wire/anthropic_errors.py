"""Errors as the Anthropic API answers them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import ContextTooLong, EngineOverloaded, EngineTimeout, NextstateError
from gateway.wire.outcome import Outcome, outcome_of

#: The code of a request that asks for a conversation kept by the server.
THREAD = "thread_unsupported_request"
#: The header that every client of the Messages API sends, and no other.
VERSION_HEADER = "anthropic-version"

_OVERLOADED = 529
_KINDS = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.METHOD_NOT_ALLOWED: "invalid_request_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "invalid_request_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def answer(error: NextstateError, request_id: UUID | None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request that failed."""
    outcome = outcome_of(error)
    return _status(error, outcome), dict(outcome.headers), body(error, request_id)


def body(error: NextstateError, request_id: UUID | None = None) -> bytes:
    """`{"type": "error", "error": {type, message}, "request_id"}`."""
    outcome = outcome_of(error)
    status = _status(error, outcome)
    told: dict[str, Any] = {
        "type": _KINDS.get(status, "api_error"),
        "message": _words(error, outcome),
    }
    if outcome.code == THREAD:
        # The tool runner of the official clients then sends the whole conversation again.
        told["details"] = {"error_code": THREAD, "unsupported": ["thread"]}
    return msgspec.json.encode(
        {
            "type": "error",
            "error": told,
            "request_id": None if request_id is None else f"req_{request_id.hex}",
        }
    )


def _status(error: NextstateError, outcome: Outcome) -> int:
    if isinstance(error, EngineOverloaded):
        return _OVERLOADED
    return HTTPStatus.GATEWAY_TIMEOUT if isinstance(error, EngineTimeout) else outcome.status


def _words(error: NextstateError, outcome: Outcome) -> str:
    if isinstance(error, ContextTooLong):
        # Clients look for these words, and compact the conversation when they find them.
        most = min(error.limit, error.prompt_tokens - 1)
        return f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum"
    if outcome.code == "missing_required_parameter" and outcome.param:
        return f"{outcome.param}: field required"
    if outcome.code == "model_not_found":
        return outcome.message if outcome.param is None else f"model: {outcome.message}"
    return outcome.message
