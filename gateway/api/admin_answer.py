"""How the admin API answers: JSON with an ETag, and nothing where the asker has it already.

A change may name the tag of what its maker has seen (`If-Match`); of anything else it changes
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import Request, Response

from gateway.errors import PreconditionFailed

#: Of what one tenant may read, nothing is to be kept by others on the way.
_CACHING = "private, no-cache"
_DIGEST_BYTES = 12


def answer(request: Request, body: object) -> Response:
    """200 with the body; to a GET 304 where `If-None-Match` names it (RFC 9110, 13.1.2)."""
    data = msgspec.json.encode(body)
    tag = _tag(data)
    headers = {"etag": tag, "cache-control": _CACHING, "vary": "authorization, x-api-key"}
    if request.method == "GET" and _has(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(data, headers=headers, media_type="application/json")


def made(body: Mapping[str, Any], *, secret: str | None = None, at: str | None = None) -> Response:
    """201 with what was made, its tag, and its address; a secret is shown here and never again."""
    headers = {"etag": _tag(msgspec.json.encode(body)), "cache-control": "no-store"}
    if at is not None:
        headers["location"] = at
    shown = body if secret is None else {**body, "secret": secret}
    return Response(
        msgspec.json.encode(shown), HTTPStatus.CREATED, headers, media_type="application/json"
    )


def expected(request: Request) -> Callable[[Mapping[str, Any]], None]:
    """What a change is held to: raises PreconditionFailed for a body that If-Match does not name.

    Without If-Match everything is as expected.
    """
    given = request.headers.get("if-match")

    def check(stored: Mapping[str, Any]) -> None:
        if given is not None and not _has(given, _tag(msgspec.json.encode(stored))):
            raise PreconditionFailed("It was changed meanwhile: read it again.")

    return check


def _tag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}"'


def _has(given: str, tag: str) -> bool:
    """Whether a list of tags has one, weak or strong (RFC 9110, 13.1.2)."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in given.split(","))
