"""The admin REST API: what is served, captured, judged and trained. Reads, inside one tenant."""

from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.api.auth import require_admin
from gateway.api.services import Services
from gateway.errors import NotFound
from gateway.records import Principal

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=100)]


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["admin"])
    reads = services.admin

    async def admin(request: Request) -> Principal:
        return await require_admin(services.keys, request.headers)

    Admin = Annotated[Principal, Depends(admin)]  # noqa: N806 - a type

    @router.get("/status")
    async def status(who: Admin) -> Response:
        """Lineages with their live versions, waiting jobs, and which workers are alive."""
        found = await reads.status(who.tenant_id)
        found["funnel"] = await reads.funnel(who.tenant_id)
        found["engines"] = services.pool.describe()
        found["spooling"] = services.writer.spooling
        return _json(found)

    @router.get("/sessions")
    async def sessions(who: Admin, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """Sessions, those seen last first, with turn counts and mean score."""
        return _json(await reads.sessions(who.tenant_id, cursor=cursor, limit=limit))

    @router.get("/sessions/{session_id}")
    async def session(who: Admin, session_id: UUID, content: bool = True) -> Response:
        """One session with its turns, their scores and verdicts; `content=false` hides words."""
        found = await reads.session(who.tenant_id, session_id, content=content)
        if found is None:
            raise NotFound("There is no such session.")
        return _json(found)

    @router.get("/policies")
    async def policies(who: Admin, limit: Limit = 100) -> Response:
        """Versions of the tenant's lineages, the newest first."""
        return _json({"items": await reads.policies(who.tenant_id, limit=limit)})

    @router.get("/train-steps")
    async def train_steps(who: Admin, limit: Limit = 100) -> Response:
        """Training steps with their metrics, the latest first."""
        return _json({"items": await reads.train_steps(who.tenant_id, limit=limit)})

    @router.get("/swaps")
    async def swaps(who: Admin, limit: Limit = 100) -> Response:
        """Engines moved from one version to another, the latest first."""
        return _json({"items": await reads.swaps(who.tenant_id, limit=limit)})

    return router
