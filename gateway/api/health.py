"""Liveness and readiness. Readiness says of each part what it is, without secrets."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import APIRouter, Response

from gateway.api.services import Services


def _answer(body: object, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    @router.get("/health", include_in_schema=False)
    async def healthz() -> Response:
        """The process answers; says nothing of what it needs."""
        return _answer({"status": "ok"})

    @router.head("/", include_in_schema=False)
    async def root() -> Response:
        """Some agents ask whether anybody is there before their first request."""
        return Response()

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 when turns can be served. Postgres may be away: turns then wait in the spool."""
        ready = services.pool.ready
        body = {
            "status": "ready" if ready else "no_engine",
            "engines": services.pool.describe(),
            "spooling": services.writer.spooling,
            "model": services.settings.model.name,
        }
        return _answer(body, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return router
