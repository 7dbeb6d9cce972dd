"""`/dashboard`: one page of static files, which reads the admin API with a key that it asks for.

The files need no other host: what they may load and do is bound by the policy below.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request, Response

from gateway.errors import NotFound

_STATIC = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    headers: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> _File:
        data = path.read_bytes()
        tag = hashlib.blake2b(data, digest_size=12).hexdigest()
        named = {"content-type": _TYPES[path.suffix], "etag": f'"{tag}"'}
        return cls(data, _HEADERS | named)


def routes() -> APIRouter:
    """The page and its files, read once; nothing else on the disk can be named."""
    router = APIRouter(include_in_schema=False)
    files = {
        path.relative_to(_STATIC).as_posix(): _File.read(path)
        for path in sorted(_STATIC.rglob("*"))
        if path.is_file()
    }

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise NotFound("There is no such file.")
        if request.headers.get("if-none-match") == file.headers["etag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=file.headers)
        return Response(file.data, headers=file.headers)

    @router.get("/dashboard")
    async def page(request: Request) -> Response:
        return answer(request, _PAGE)

    @router.get("/dashboard/{name:path}")
    async def file(request: Request, name: str) -> Response:
        if not name:
            return Response(
                status_code=HTTPStatus.PERMANENT_REDIRECT, headers={"location": "../dashboard"}
            )
        return answer(request, name)

    return router
