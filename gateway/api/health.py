"""Liveness and readiness. Readiness says of each part what it is, without secrets."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import asyncpg
import msgspec
from fastapi import APIRouter, Response

from gateway.api.services import Services
from gateway.errors import StoreError
from gateway.store.workers import Workers

_ALIVE_S = 10.0
_PATIENCE_S = 0.5


def _answer(body: object, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def judging(workers: Workers) -> dict[str, Any]:
    """`{"state", "judges", "alarms"}`: ok, alarm, none where no judge runs, or unknown.

    The alarms are those of any judge. Unknown where Postgres does not tell in time.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await workers.alive("judge", _ALIVE_S)
    except (StoreError, asyncpg.PostgresError, TimeoutError):
        return {"state": "unknown", "judges": None, "alarms": []}
    alarms = sorted({str(name) for one in found for name in one.detail.get("alarms", ())})
    state = "alarm" if alarms else "ok" if found else "none"
    return {"state": state, "judges": len(found), "alarms": alarms}


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

    workers = Workers(services.database)

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 when turns can be served, and will be for a while.

        Postgres may be away: turns then wait in the spool.

        What is wrong with judging is told and makes nothing less ready: serving needs no judge.
        """
        ready = services.pool.ready and not services.draining
        body = {
            "status": "draining" if services.draining else "ready" if ready else "no_engine",
            "engines": services.pool.describe(),
            "spooling": services.writer.spooling,
            "model": services.settings.model.name,
            "judge": await judging(workers),
            "admission": services.admitter.state(),
            "paused": services.pauses.current.counts(),
        }
        return _answer(body, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return router
