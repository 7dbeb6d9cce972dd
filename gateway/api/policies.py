"""The admin REST API that moves lineages: promote, roll back, pin and unpin a version.

What several tenants use is moved by operators alone (403 else).
"""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from gateway.api import shapes
from gateway.api.admin_access import change, changer, lineage_to_move
from gateway.api.admin_answer import answer
from gateway.api.admin_query import LineageName as Name
from gateway.api.admin_query import Reason
from gateway.api.services import Services
from gateway.records import Principal
from gateway.store.changes import note_change
from gateway.store.moves import Moved, PolicyMoves
from gateway.telemetry import get_logger

log = get_logger(__name__)

Version = Annotated[int, Path(ge=0, lt=2**53)]


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/policies/{version}", tags=["learning"])
    moves = PolicyMoves(services.database)
    Admin = Annotated[Principal, Depends(changer(services))]  # noqa: N806 - a type

    async def moved(  # noqa: PLR0917
        request: Request, who: Principal, action: str, lineage: str, version: int, done: Moved
    ) -> Response:
        if done.changed:
            made = change(who, action, lineage, version=version, live=done.live_version)
            async with services.database.acquire() as connection:
                await note_change(connection, made)
            log.info("lineage_moved", lineage=lineage, by=str(who.key_id), live=done.live_version)
        return answer(request, {"lineage": lineage, **asdict(done)})

    async def lineage_of(who: Principal, lineage: str) -> UUID:
        return await lineage_to_move(services, who, lineage)

    @router.post("/promote", responses=shapes.ok(shapes.Moved))
    async def promote(
        request: Request,
        who: Admin,
        version: Version,
        lineage: Name = "default",
        reason: Reason = "",
    ) -> Response:
        """Make the canary live, or again a version that was rolled back to the live one.

        Where it is live already, nothing changes. 409 where it cannot be.
        """
        found = await lineage_of(who, lineage)
        done = await moves.promote(found, version, reason=_why(who, reason))
        return await moved(request, who, "version_promoted", lineage, version, done)

    @router.post("/rollback", responses=shapes.ok(shapes.Moved))
    async def rollback(  # noqa: PLR0917 - its parameters are the query's
        request: Request,
        who: Admin,
        version: Version,
        lineage: Name = "default",
        to: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
        reason: Reason = "",
    ) -> Response:
        """Take a version back and all that came of it; what was live before it, or `to`, is again.

        Where it was taken back already, nothing changes. The samples that it was trained on are
        quarantined. 409 where it is neither the canary nor led to the live version.
        """
        found = await lineage_of(who, lineage)
        done = await moves.rollback(found, version, to=to, reason=_why(who, reason))
        return await moved(request, who, "version_rolled_back", lineage, version, done)

    @router.post("/pin", responses=shapes.ok(shapes.Moved))
    async def pin(
        request: Request,
        who: Admin,
        version: Version,
        lineage: Name = "default",
        reason: Reason = "",
    ) -> Response:
        """Keep the live version: nothing is promoted or rolled back until it is unpinned."""
        found = await lineage_of(who, lineage)
        done = await moves.pin(found, version, reason=_why(who, reason))
        return await moved(request, who, "version_pinned", lineage, version, done)

    @router.post("/unpin", responses=shapes.ok(shapes.Moved))
    async def unpin(
        request: Request,
        who: Admin,
        version: Version,
        lineage: Name = "default",
        reason: Reason = "",
    ) -> Response:
        """Let versions be promoted and rolled back again."""
        found = await lineage_of(who, lineage)
        done = await moves.unpin(found, version, reason=_why(who, reason))
        return await moved(request, who, "version_unpinned", lineage, version, done)

    return router


def _why(who: Principal, reason: str) -> str:
    return reason or f"asked for by key {who.name}"
