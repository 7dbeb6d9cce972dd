"""What a client is told when a request fails, before its dialect puts it into words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import (
    Conflict,
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
_LONGEST_WAIT_S = 60


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
            if error.retry_after_s > _LONGEST_WAIT_S:
                # Official clients wait no longer than this, and would come back in vain.
                headers["x-should-retry"] = "false"
        if isinstance(error, Conflict):
            headers["x-should-retry"] = "false"
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
            headers = {"retry-after": str(_RETRY_S)} if status == 503 else {}
            if kind is EngineRejected:
                # Official clients would send again what will be refused again.
                headers = {"x-should-retry": "false"}
            return Outcome(
                status=status, kind="server_error", message=message, code=code, headers=headers
            )
    return Outcome(
        status=500,
        kind="server_error",
        message="The gateway had an error while serving the request.",
        code="internal_error",
    )
