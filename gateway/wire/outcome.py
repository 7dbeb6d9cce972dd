"""What a client is told when a request fails, before its dialect puts it into words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import (
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    NextstateError,
    RequestError,
    StoreError,
    TooManyRequests,
)

_RETRY_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """HTTP status and headers, and the error as the client may know it."""

    status: int
    kind: str
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


#: What failed behind the gateway: (type, status, code, message). Addresses and details stay here.
_BEHIND = (
    (EngineOverloaded, 503, "engine_overloaded", "The model is overloaded. Try again shortly."),
    (EngineUnavailable, 503, "engine_unavailable", "The model is not available at the moment."),
    (EngineTimeout, 502, "engine_timeout", "The model did not answer in time."),
    (EngineRejected, 502, "engine_rejected", "The model's server refused the request."),
    (StoreError, 503, "store_unavailable", "The gateway cannot store turns at the moment."),
)


def outcome_of(error: NextstateError) -> Outcome:
    """The client's view of an error. Only a RequestError speaks for itself."""
    if isinstance(error, RequestError):
        headers: dict[str, str] = {}
        if isinstance(error, TooManyRequests):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        return Outcome(
            status=error.status,
            kind=error.kind,
            message=error.message,
            code=error.code,
            param=error.param,
            headers=headers,
        )
    for kind, status, code, message in _BEHIND:
        if isinstance(error, kind):
            retry = {"retry-after": str(_RETRY_S)} if status == 503 else {}
            return Outcome(
                status=status, kind="server_error", message=message, code=code, headers=retry
            )
    return Outcome(
        status=500,
        kind="server_error",
        message="The gateway had an error while serving the request.",
        code="internal_error",
    )
