"""Who is asking: the API key of a request, and what its role may reach."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from gateway.errors import AuthenticationError, PermissionDenied
from gateway.records import Principal, Role

MAX_KEY_BYTES = 512


class Keys(Protocol):
    def principal(self, secret: str) -> Awaitable[Principal]: ...


def secret_of(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer` or `x-api-key`.

    Raises AuthenticationError where there is none, or where it cannot be one.
    """
    scheme, _, value = headers.get("authorization", "").partition(" ")
    secret = value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    if not secret:
        raise AuthenticationError(
            "You didn't provide an API key. Send it as 'Authorization: Bearer KEY'.",
            code="missing_api_key",
        )
    if len(secret) > MAX_KEY_BYTES:
        raise AuthenticationError("Incorrect API key provided.")
    return secret


def authenticate(keys: Keys, headers: Mapping[str, str]) -> Awaitable[Principal]:
    """The principal of a request. Raises AuthenticationError."""
    return keys.principal(secret_of(headers))


async def require_admin(keys: Keys, headers: Mapping[str, str]) -> Principal:
    """The principal of an admin request. Raises AuthenticationError or PermissionDenied."""
    principal = await authenticate(keys, headers)
    if principal.role is not Role.ADMIN:
        raise PermissionDenied("This API key has no admin role.")
    return principal
